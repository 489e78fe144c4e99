//! Folders of `/sys`, which are numbered.

use std::fs;
use std::path::{Path, PathBuf};

/// The folders in `folder` that are called `prefix` and a number, in order.
pub(crate) fn children(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let is_one = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.strip_prefix(prefix).is_some_and(|rest| rest.parse::<u32>().is_ok())
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = entries.filter(is_one).collect();
    found.sort();
    found
}
