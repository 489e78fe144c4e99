//! Whether an interface is a radio.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod plain;

use std::path::Path;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
use plain as system;

/// Whether the interface of that name is a radio; `None` where nothing tells. `root` is where `/sys` is on
/// Linux; other systems are not asked.
pub(crate) fn is_wireless(root: &Path, interface: &str) -> Option<bool> {
    system::is_wireless(root, interface)
}
