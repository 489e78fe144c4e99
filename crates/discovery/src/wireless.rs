//! Whether an interface is a radio.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod plain;

#[cfg(target_os = "linux")]
pub(crate) use linux::is_wireless;
#[cfg(not(target_os = "linux"))]
pub(crate) use plain::is_wireless;
