/// There is no such switch.
pub(super) fn return_freed_memory() {}
