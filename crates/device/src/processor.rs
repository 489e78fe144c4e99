//! The processor: its name and how much of it is ours.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod plain;

use std::path::Path;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
use plain as system;

/// Processors this process may use: affinity and cgroup quotas counted, at least 1.
pub fn cores() -> usize {
    // The standard library reads sched_getaffinity and the quota of cgroup v1 and v2, rounding down to at
    // least 1.
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Marketing name. `root` is where `/proc` is on Linux.
pub fn processor_name(root: &Path) -> Option<String> {
    system::name(root).filter(|name| !name.is_empty())
}

/// What the last caches of the processors this process may use hold together; `None` where the system does
/// not say. `root` is where `/sys` is on Linux.
pub(crate) fn last_cache_bytes(root: &Path) -> Option<u64> {
    system::last_cache_bytes(root).filter(|bytes| *bytes > 0)
}

/// Operating system and architecture, for example `linux-x86_64`.
pub fn platform() -> String {
    format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH)
}
