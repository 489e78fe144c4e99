use std::path::Path;

/// Not asked on this system.
pub(crate) fn is_wireless(_root: &Path, _interface: &str) -> Option<bool> {
    None
}
