//! Where an adapter is, on Apple's systems.

use objc2_metal::MTLDevice as _;

/// Of what Metal names by its number in the system's registry of devices.
pub(crate) fn address(adapter: &wgpu::Adapter) -> Option<String> {
    // SAFETY: the handle is only asked for a property, which changes and destroys nothing.
    let adapter = unsafe { adapter.as_hal::<wgpu::hal::api::Metal>() }?;
    exo_device::registered_address(adapter.raw_device().registryID())
}
