//! How much memory an adapter has, on Apple's systems.

use objc2_metal::MTLDevice as _;

/// What Metal recommends to keep resident at most: most of the machine's memory, which the adapter shares.
pub(crate) fn heap_bytes(adapter: &wgpu::Adapter) -> Option<u64> {
    // SAFETY: the handle is only asked for a property, which changes and destroys nothing.
    let adapter = unsafe { adapter.as_hal::<wgpu::hal::api::Metal>() }?;
    Some(adapter.raw_device().recommendedMaxWorkingSetSize())
}
