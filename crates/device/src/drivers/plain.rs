//! Windows keeps every version of every driver in one folder; Apple's come with the system.

use std::path::Path;

use super::Setting;

/// Their loaders keep no descriptions that we know.
pub fn troubles(_root: &Path, _backend: &str, _setting: Setting<'_>) -> Vec<String> {
    Vec::new()
}
