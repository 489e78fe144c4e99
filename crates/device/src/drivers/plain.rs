//! Windows keeps every version of every driver in one folder; Apple's come with the system.

use std::path::{Path, PathBuf};

use super::{Parts, Setting};

/// Their loaders keep no descriptions that we know.
pub fn troubles(_root: &Path, _source: &str, _setting: Setting<'_>) -> Vec<String> {
    Vec::new()
}

pub fn parts(root: &Path, _source: &str, setting: Setting<'_>) -> Parts {
    let store = setting("SystemRoot").map(|root| {
        let parts = ["System32", "DriverStore", "FileRepository"];
        parts.iter().fold(PathBuf::from(root), |path, part| path.join(part))
    });
    let system = root.join("System/Library/CoreServices/SystemVersion.plist");
    Parts { settings: Vec::new(), files: store.into_iter().chain([system]).collect() }
}
