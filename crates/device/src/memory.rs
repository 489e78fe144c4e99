//! Memory of the machine as far as this process may use it: the system's, bounded by its control groups and
//! by `ulimit -d`.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod plain;

use std::path::Path;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
use plain as system;

/// Memory of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// In all, or the tightest limit of a control group or of this process.
    pub total_bytes: u64,
    /// Free or freeable without swapping.
    pub available_bytes: u64,
}

/// All of the machine's, also what this process may not use.
pub(crate) fn of_machine(root: &Path) -> Option<Memory> {
    system::memory(root)
}

/// What the system drew at its start: the same for everything on this machine until it starts anew, in
/// containers too. `None` where the system does not say which machine it is; `root` is where `/proc` is.
pub fn boot_id(root: &Path) -> Option<String> {
    std::fs::read_to_string(root.join("proc/sys/kernel/random/boot_id")).ok()
}

/// What the system says now. `root` is where `/proc` and `/sys` are on Linux.
pub fn memory(root: &Path) -> Option<Memory> {
    let system = system::memory(root)?;
    let limits = system::group_limits(root, system.total_bytes).into_iter().chain(system::data_limit(root));
    Some(limits.fold(system, |memory, limit| Memory {
        total_bytes: memory.total_bytes.min(limit.total_bytes),
        available_bytes: memory.available_bytes.min(limit.available_bytes),
    }))
}
