//! What Vulkan tells of memory.

/// Bytes of the largest heap that is the adapter's own. `wgpu` has no word for it, so its Vulkan handle is
/// asked.
pub(crate) fn heap_bytes(adapter: &wgpu::Adapter) -> Option<u64> {
    // SAFETY: the handle is only asked for properties, which changes and destroys nothing.
    let adapter = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let instance = adapter.shared_instance().raw_instance();
    // SAFETY: the physical device was enumerated from this very instance, which lives as long as the adapter.
    let properties = unsafe { instance.get_physical_device_memory_properties(adapter.raw_physical_device()) };
    let heaps = properties.memory_heaps_as_slice();
    // VK_MEMORY_HEAP_DEVICE_LOCAL_BIT is the lowest flag.
    let own = heaps.iter().filter(|heap| heap.flags.as_raw() & 1 == 1).map(|heap| heap.size);
    own.max().or_else(|| heaps.iter().map(|heap| heap.size).max())
}
