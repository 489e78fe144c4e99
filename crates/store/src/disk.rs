//! The few ways this crate touches the disk, each with an error that says path and bytes.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use crate::StoreError;

/// Turns the system's answer into ours.
pub(crate) fn failed(attempt: &'static str, path: &Path, bytes: u64, source: io::Error) -> StoreError {
    let path = path.to_owned();
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => StoreError::DiskFull { path, bytes },
        ErrorKind::PermissionDenied => StoreError::Permission { attempt, path },
        ErrorKind::ReadOnlyFilesystem => StoreError::ReadOnly { attempt, path },
        _ => StoreError::Io { attempt, path, bytes, source },
    }
}

/// Creates the folder and those around it.
pub(crate) fn create_folder(path: &Path) -> Result<(), StoreError> {
    fs::create_dir_all(path).map_err(|e| failed("create the folder", path, 0, e))
}

/// What is not there need not be deleted: an earlier attempt may have ended half way.
pub(crate) fn deleted(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Replaces the file by `bytes`: afterwards it is the old one or the new one, even after a power cut.
pub(crate) fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    exo_stdx::replace(path, bytes).map_err(|e| failed("write", path, bytes.len() as u64, e))
}

/// The file's bytes, at most `bytes_max`; `None` if there is no such file.
pub(crate) fn read_bounded(path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>, StoreError> {
    exo_stdx::read_bounded(path, bytes_max).map_err(|e| failed("read", path, 0, e))
}

/// The first bytes of a file, fewer if it has fewer.
pub(crate) fn read_start(path: &Path, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(len).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Size and modification time: enough to notice that somebody's file is not the one we hashed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Fingerprint {
    pub(crate) size: u64,
    pub(crate) modified_ns: u64,
}

impl Fingerprint {
    pub(crate) fn of(metadata: &fs::Metadata) -> Self {
        let since = metadata.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
        let modified_ns = since.and_then(|d| u64::try_from(d.as_nanos()).ok()).unwrap_or(0);
        Self { size: metadata.len(), modified_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `/dev/full` answers every write as a full disk does.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_says_path_and_bytes() {
        use std::io::Write;
        let path = Path::new("/dev/full");
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        let error = (&file).write_all(&[0; 4096]).map_err(|e| failed("write", path, 4096, e)).unwrap_err();
        assert_eq!(error.to_string(), "the disk is full: 4096 bytes for /dev/full do not fit");
    }

    #[test]
    fn permission_and_other_failures_are_told_apart() {
        let path = Path::new("/x");
        let say = |kind: ErrorKind| failed("write", path, 7, kind.into()).to_string();
        assert_eq!(say(ErrorKind::PermissionDenied), "no permission to write /x");
        assert_eq!(say(ErrorKind::ReadOnlyFilesystem), "cannot write /x: its disk is read-only");
        assert_eq!(say(ErrorKind::NotADirectory), "cannot write /x (7 bytes)");
    }

    #[test]
    fn an_atomic_write_leaves_no_other_file_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        write_atomic(&path, b"one").unwrap();
        write_atomic(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(write_atomic(&folder.path().join("none/b"), b"x").is_err());
    }
}
