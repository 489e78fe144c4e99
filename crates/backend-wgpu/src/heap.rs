//! How much memory an adapter has, from the interface beneath `wgpu`, which has no word for it: one file for
//! each system.

#[cfg(target_vendor = "apple")]
mod apple;
#[cfg(not(target_vendor = "apple"))]
mod vulkan;
#[cfg(windows)]
mod windows;

#[cfg(target_vendor = "apple")]
pub(crate) use apple::heap_bytes;
#[cfg(not(any(windows, target_vendor = "apple")))]
pub(crate) use vulkan::heap_bytes;
#[cfg(windows)]
pub(crate) use windows::heap_bytes;
