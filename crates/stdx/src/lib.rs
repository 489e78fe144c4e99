//! The few things about files, the wall clock, locks and logs that the standard library lacks, or has for one
//! system only.
//!
//! **Architecture invariant:** knows nothing of exo: no path of ours, no format, no setting. Errors are the
//! system's own; who calls says what was attempted.
//!
//! Start reading at [`publish`].

#![forbid(unsafe_code)]

#[cfg(any(not(unix), test))]
mod disks;
mod line_budget;
mod mutex;
mod repeats;
mod time;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

pub use line_budget::LineBudget;
pub use mutex::Mutex;
pub use repeats::Repeats;
pub use time::{unix_ms, unix_s};
#[cfg(unix)]
use unix as system;
#[cfg(windows)]
use windows as system;

/// A file that is created with these options is its owner's alone. On Windows the folders of a user's profile
/// see to that.
pub fn for_owner_only(options: &mut OpenOptions) -> &mut OpenOptions {
    system::for_owner_only(options)
}

/// Makes a file or a folder that is there its owner's alone; on Windows as [`for_owner_only`].
pub fn restrict_to_owner(path: &Path) -> io::Result<()> {
    system::restrict_to_owner(path)
}

/// The permission bits, if others than the owner have any right to it; always `None` on Windows.
pub fn mode_open_to_others(about: &Metadata) -> Option<u32> {
    system::mode_open_to_others(about)
}

/// Whether this process, or the whole system, has as many files open as it may: no other file, connection or
/// process is to blame.
pub fn is_out_of_files(error: &io::Error) -> bool {
    system::is_out_of_files(error)
}

/// Gives a finished file its name, and only if no one has that name: of two that try, the second gets
/// [`io::ErrorKind::AlreadyExists`]. Lasting when this returns. The draft's name may stay, and is the
/// caller's to remove.
///
/// On a file system without hard links, of two that try within the same instant, the last one's file may stay
/// and both hear nothing.
pub fn publish(draft: &Path, path: &Path) -> io::Result<()> {
    // A link refuses to replace a file; a file system without links gets the name by renaming.
    match fs::hard_link(draft, path) {
        Err(_) if path.exists() => return Err(ErrorKind::AlreadyExists.into()),
        Err(_) => fs::rename(draft, path)?,
        Ok(()) => {}
    }
    sync_folder_of(path)
}

/// Replaces a small file: afterwards it is the old one or the new one, also after a power cut.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_with(OpenOptions::new().write(true), path, bytes)
}

/// The same, and the file is its owner's alone before there is a byte in it.
pub fn replace_for_owner(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_with(for_owner_only(OpenOptions::new().write(true)), path, bytes)
}

/// The same through a draft of the caller's name, which it must not share with another writer. A power cut
/// may bring the old file back until [`sync_folder_of`] has returned.
pub fn replace_through(draft: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_through(for_owner_only(OpenOptions::new().write(true)), draft, path, bytes)
}

fn replace_with(options: &mut OpenOptions, path: &Path, bytes: &[u8]) -> io::Result<()> {
    static DRAFTS: AtomicU64 = AtomicU64::new(0);
    let mut draft = path.file_name().unwrap_or_default().to_owned();
    draft.push(format!(".new-{}-{}", std::process::id(), DRAFTS.fetch_add(1, Ordering::Relaxed)));
    write_through(options, &path.with_file_name(draft), path, bytes)?;
    sync_folder_of(path)
}

fn write_through(options: &mut OpenOptions, draft: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut write = || {
        // One that was left may be readable by others, or be longer.
        if let Err(error) = fs::remove_file(draft)
            && error.kind() != ErrorKind::NotFound
        {
            return Err(error);
        }
        let mut file = options.create_new(true).open(draft)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(draft, path)
    };
    let written = write();
    if written.is_err() {
        // The first error is the one to report.
        drop(fs::remove_file(draft));
    }
    written
}

/// The file's bytes; `None` if there is no such file, [`ErrorKind::FileTooLarge`] if it has more than
/// `bytes_max`.
pub fn read_bounded(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    match File::open(path).and_then(|file| file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(len) if len as u64 > bytes_max => {
            Err(io::Error::new(ErrorKind::FileTooLarge, format!("it has more than {bytes_max} bytes")))
        }
        Ok(_) => Ok(Some(bytes)),
    }
}

/// Makes the name of this file last, where folders can be synchronised.
pub fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    system::sync_folder(folder.unwrap_or(Path::new(".")))
}

/// Reads exactly `buffer` from `offset` on; leaves the file's cursor alone, except on Windows.
pub fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    system::read_exact_at(file, buffer, offset)
}

/// Writes all of `bytes` from `offset` on; the cursor as in [`read_exact_at`].
pub fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    system::write_all_at(file, bytes, offset)
}

/// Bytes that this user may still write in a folder, if the system says.
pub fn free_bytes(folder: &Path) -> Option<u64> {
    system::free_bytes(folder)
}

/// Bytes of the disk that a folder lies on, if the system says.
pub fn total_bytes(folder: &Path) -> Option<u64> {
    system::total_bytes(folder)
}

/// Whether a file has no other name on its disk, so that deleting it frees what it takes. On Windows taken
/// for so.
pub fn is_only_name(about: &Metadata) -> bool {
    system::is_only_name(about)
}

/// Bytes that a file takes on its disk: holes take none. On Windows its length.
pub fn disk_bytes(about: &Metadata) -> u64 {
    system::disk_bytes(about)
}

/// Errors of this system by which a disk says that it failed itself.
pub const DEVICE_FAULTS: &[i32] = system::DEVICE_FAULTS;

/// Whether a disk itself failed, not what was asked of it.
pub fn is_device_fault(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|code| DEVICE_FAULTS.contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_given_once_and_the_first_keeps_it() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second, path] = ["first", "second", "name"].map(|name| folder.path().join(name));
        fs::write(&first, "1").unwrap();
        fs::write(&second, "2").unwrap();
        publish(&first, &path).unwrap();
        assert_eq!(publish(&second, &path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"1");
        assert!(publish(&folder.path().join("none"), &folder.path().join("other")).is_err());
    }

    #[test]
    fn parts_are_written_and_read_where_they_belong_and_an_early_end_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let file = OpenOptions::new().create_new(true).read(true).write(true).open(&path).unwrap();
        write_all_at(&file, b"world", 6).unwrap();
        write_all_at(&file, b"hello ", 0).unwrap();
        let mut word = [0; 5];
        read_exact_at(&file, &mut word, 6).unwrap();
        assert_eq!(&word, b"world");
        let beyond = read_exact_at(&file, &mut word, 7).unwrap_err();
        assert_eq!(beyond.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_file_is_replaced_whole_and_nothing_else_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        replace(&path, b"one").unwrap();
        replace_for_owner(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(mode_open_to_others(&fs::metadata(&path).unwrap()), None);
        fs::create_dir(folder.path().join("in the way")).unwrap();
        assert!(replace(&folder.path().join("in the way"), b"three").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "no draft is left");
    }

    #[test]
    fn a_file_is_read_up_to_its_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        assert_eq!(read_bounded(&path, 3).unwrap(), None);
        fs::write(&path, "123").unwrap();
        assert_eq!(read_bounded(&path, 3).unwrap().as_deref(), Some(&b"123"[..]));
        assert_eq!(read_bounded(&path, 2).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn a_name_without_a_folder_lies_in_the_current_one() {
        sync_folder_of(Path::new("Cargo.toml")).unwrap();
    }
}
