use std::path::Path;

/// Not asked on this system.
pub(super) fn is_wireless(_root: &Path, _interface: &str) -> Option<bool> {
    None
}
