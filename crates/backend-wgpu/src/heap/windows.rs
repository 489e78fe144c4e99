//! How much memory an adapter has, on Windows.

/// Through Direct3D 12, what Windows lets this process use of the adapter's own memory now; through Vulkan,
/// its heap.
pub(crate) fn heap_bytes(adapter: &wgpu::Adapter) -> Option<u64> {
    direct3d(adapter).or_else(|| super::vulkan::heap_bytes(adapter))
}

fn direct3d(adapter: &wgpu::Adapter) -> Option<u64> {
    // SAFETY: the handle is only asked for what it holds, which changes and destroys nothing.
    let adapter = unsafe { adapter.as_hal::<wgpu::hal::api::Dx12>() }?;
    // The default is the group of memory that is the adapter's own.
    Some(adapter.raw_adapter().query_video_memory_info(Default::default()).ok()?.Budget)
}
