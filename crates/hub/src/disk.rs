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
