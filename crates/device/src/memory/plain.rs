use std::path::Path;

use super::Memory;

pub(super) fn memory(_root: &Path) -> Option<Memory> {
    let mut system = sysinfo::System::new().ok()?;
    system.refresh_memory();
    let memory = Memory { total_bytes: system.total_memory(), available_bytes: system.available_memory() };
    (memory.total_bytes > 0).then_some(memory)
}

/// Control groups are Linux's.
pub(super) fn group_limits(_root: &Path, _machine_bytes: u64) -> Vec<Memory> {
    Vec::new()
}

/// Read from `/proc`, which is Linux's.
pub(super) fn data_limit(_root: &Path) -> Option<Memory> {
    None
}
