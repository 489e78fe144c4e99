//! The new file: written under another name beside its place, and renamed when it is complete and on the
//! disk.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use exo_formats::Model;
use tempfile::NamedTempFile;
#[cfg(unix)]
use unix as system;
#[cfg(windows)]
use windows as system;

use crate::QuantError;

/// Names of unfinished files, around something random.
const PREFIX: &str = ".exo-";
const SUFFIX: &str = ".partial";
/// A new file is taken for a leftover when another program looks at the wrong moment; not time and again.
const CREATE_TRIES: u32 = 8;

/// A file that is being written, locked for as long. Dropped unfinished, it is gone.
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
            // A rename would put the new file where `/dev/null` was.
            if !path.is_file() {
                return Err(QuantError::NotAFile { path: path.to_owned() });
            }
            if !replace {
                return Err(QuantError::Exists { path: path.to_owned() });
            }
        }
        remove_leftovers(folder);
        if let Some(free_bytes) = exo_stdx::free_bytes(folder).filter(|free| *free < bytes) {
            return Err(QuantError::DiskFull { needed_bytes: bytes, free_bytes, folder: folder.to_owned() });
        }
        let file = create_locked(folder).map_err(failed("create a file in", folder))?;
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
        // The file is whole and has its name; some network file systems cannot synchronise a folder.
        let _ = exo_stdx::sync_folder_of(&path);
        Ok(())
    }
}

/// A new file with a lock on it, by which others see that it is being written.
fn create_locked(folder: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(PREFIX).suffix(SUFFIX);
    system::as_any_new_file(&mut builder);
    for _ in 0..CREATE_TRIES {
        let file = builder.tempfile_in(folder)?;
        let is_seized = matches!(file.as_file().try_lock(), Err(TryLockError::WouldBlock));
        // A file system without locks keeps leftovers: no one can tell them from files at work.
        if !is_seized && file.path().exists() {
            return Ok(file);
        }
    }
    Err(io::Error::other(format!("{CREATE_TRIES} new files were removed at once by another program")))
}

/// Removes what writers left that were killed: files of our names that no one has locked.
fn remove_leftovers(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_ours = name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX));
        // Opening anything else than a file might wait for somebody.
        if !is_ours || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        if let Ok(file) = File::options().write(true).open(entry.path())
            && file.try_lock().is_ok()
        {
            // One that cannot be removed takes space and does no harm.
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn failed(attempt: &'static str, path: &Path) -> impl FnOnce(io::Error) -> QuantError + use<> {
    let path = path.to_owned();
    move |source| QuantError::Io { attempt, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partials(folder: &Path) -> usize {
        let ends = |e: &fs::DirEntry| e.path().extension().is_some_and(|e| e == "partial");
        fs::read_dir(folder).unwrap().filter(|e| ends(e.as_ref().unwrap())).count()
    }

    #[test]
    fn leftovers_go_and_files_at_work_stay() {
        let folder = tempfile::tempdir().unwrap();
        let at_work = create_locked(folder.path()).unwrap();
        let (dead, other) = (folder.path().join(".exo-dead.partial"), folder.path().join("mine.partial"));
        fs::write(&dead, "half").unwrap();
        fs::write(&other, "whole").unwrap();
        fs::create_dir(folder.path().join(".exo-folder.partial")).unwrap();
        remove_leftovers(folder.path());
        assert!(at_work.path().exists() && other.exists() && !dead.exists());
        assert_eq!(partials(folder.path()), 3);
        let path = at_work.path().to_owned();
        std::mem::forget(at_work.into_parts().1); // as a killed writer does: its file stays, its lock goes
        assert!(path.exists());
        remove_leftovers(folder.path());
        assert!(!path.exists());
    }
}
