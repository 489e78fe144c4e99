//! Where Vulkan and Direct3D tell it through `wgpu`.

/// There is no one else to ask.
pub(crate) fn address(_adapter: &wgpu::Adapter) -> Option<String> {
    None
}
