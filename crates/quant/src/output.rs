//! The new file: written under another name beside its place, and renamed when it is complete and on the disk.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use exo_formats::Model;
use tempfile::NamedTempFile;

use crate::QuantError;

/// A file that is being written. Dropped unfinished, it is gone.
pub(crate) struct Output {
    file: NamedTempFile,
    path: PathBuf,
    replace: bool,
}

impl Output {
    /// Checks name and space, and creates the file.
    pub(crate) fn create(path: &Path, bytes: u64, replace: bool, model: &Model) -> Result<Self, QuantError> {
        let folder = folder_of(path);
        if path.exists() {
            let same = |other: &Path| fs::canonicalize(path).ok() == fs::canonicalize(other).ok();
            if model.files.iter().any(|f| f.path.exists() && same(&f.path)) {
                return Err(QuantError::IsSource { path: path.to_owned() });
            }
            if !replace {
                return Err(QuantError::Exists { path: path.to_owned() });
            }
        }
        if let Some(free_bytes) = free_bytes(folder).filter(|free| *free < bytes) {
            return Err(QuantError::DiskFull { needed_bytes: bytes, free_bytes, folder: folder.to_owned() });
        }
        let mut builder = tempfile::Builder::new();
        builder.prefix(".exo-").suffix(".partial");
        // As any new file, not as a secret: the user's mask takes off what it should.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let file = builder.tempfile_in(folder).map_err(failed("create a file in", folder))?;
        Ok(Self { file, path: path.to_owned(), replace })
    }

    pub(crate) fn file(&self) -> &File {
        self.file.as_file()
    }

    /// An error about writing this file.
    pub(crate) fn write_failed(&self, source: io::Error) -> QuantError {
        failed("write", &self.path)(source)
    }

    /// Makes it durable and gives it its name.
    /// Unless `cancel` was set before it has one.
    pub(crate) fn finish(self, cancel: &AtomicBool) -> Result<(), QuantError> {
        self.file.as_file().sync_all().map_err(failed("write", &self.path))?;
        if cancel.load(Ordering::Relaxed) {
            return Err(QuantError::Cancelled);
        }
        let path = self.path;
        let persisted = match self.replace {
            true => self.file.persist(&path),
            false => self.file.persist_noclobber(&path),
        };
        persisted.map_err(|e| match e.error.kind() {
            io::ErrorKind::AlreadyExists => QuantError::Exists { path: path.clone() },
            _ => failed("rename the finished file to", &path)(e.error),
        })?;
        if cfg!(unix) {
            let folder = folder_of(&path);
            // The file is whole and has its name; some network file systems cannot synchronise a folder.
            let _ = File::open(folder).and_then(|f| f.sync_all());
        }
        Ok(())
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn failed(attempt: &'static str, path: &Path) -> impl FnOnce(io::Error) -> QuantError + use<> {
    let path = path.to_owned();
    move |source| QuantError::Io { attempt, path, source }
}

/// Bytes this user may still write there, if the system says.
#[cfg(unix)]
fn free_bytes(folder: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(folder).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(not(unix))]
fn free_bytes(_folder: &Path) -> Option<u64> {
    None
}
