//! Where an adapter is in the machine, where `wgpu` has no word for it: one file for each system.

#[cfg(target_vendor = "apple")]
mod apple;
#[cfg(not(target_vendor = "apple"))]
mod plain;

#[cfg(target_vendor = "apple")]
pub(crate) use apple::address;
#[cfg(not(target_vendor = "apple"))]
pub(crate) use plain::address;
