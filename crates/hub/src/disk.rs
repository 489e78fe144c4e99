//! The few ways this crate touches the disk.

use std::fs;
use std::path::Path;

use crate::HubError;

pub(crate) fn create_folder(path: &Path) -> Result<(), HubError> {
    fs::create_dir_all(path).map_err(HubError::disk("create the folder", path))
}

/// Replaces a small file: afterwards it is the old one or the new one.
pub(crate) fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), HubError> {
    exo_stdx::replace(path, bytes).map_err(HubError::disk("write", path))
}

/// The path with an ending more.
pub(crate) fn beside(path: &Path, ending: &str) -> std::path::PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(ending);
    path.with_file_name(name)
}
