//! The few ways this crate touches the disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

use crate::HubError;

/// The file's bytes; `None` if there is no such file, an error if it has more than `bytes_max`.
pub(crate) fn read_bounded(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    match File::open(path).and_then(|f| f.take(bytes_max + 1).read_to_end(&mut bytes)) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
        Ok(len) if len as u64 > bytes_max => {
            Err(io::Error::new(ErrorKind::FileTooLarge, format!("it has more than {bytes_max} bytes")))
        }
        Ok(_) => Ok(Some(bytes)),
    }
}

pub(crate) fn create_folder(path: &Path) -> Result<(), HubError> {
    fs::create_dir_all(path).map_err(HubError::disk("create the folder", path))
}

/// Replaces a small file: afterwards it is the old one or the new one.
pub(crate) fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), HubError> {
    let draft = beside(path, &format!("tmp-{}", std::process::id()));
    let write = || {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&draft)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&draft, path)?;
        exo_stdx::sync_folder_of(path)
    };
    write().map_err(HubError::disk("write", path))
}

/// The path with an ending more.
pub(crate) fn beside(path: &Path, ending: &str) -> std::path::PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(ending);
    path.with_file_name(name)
}

/// Fails if the disk would have less than `reserve_bytes` left.
pub(crate) fn check_room(folder: &Path, needed_bytes: u64, reserve_bytes: u64) -> Result<(), HubError> {
    let Some(free_bytes) = exo_stdx::free_bytes(folder) else { return Ok(()) };
    if needed_bytes.saturating_add(reserve_bytes) <= free_bytes || needed_bytes == 0 {
        return Ok(());
    }
    Err(HubError::NoRoom { needed_bytes, reserve_bytes, free_bytes, folder: folder.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_is_too_small_is_refused_before_anything_is_fetched() {
        let folder = tempfile::tempdir().unwrap();
        check_room(folder.path(), 1, 0).unwrap();
        let text = check_room(folder.path(), 1 << 60, 5).unwrap_err().to_string();
        assert!(
            text.contains("1152921504606846976 bytes are to be fetched") && text.contains("5 are kept free"),
            "{text}"
        );
    }
}
