use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::windows::fs::FileExt;
use std::path::Path;

pub(crate) use crate::disks::{free_bytes, total_bytes};

/// Windows keeps files of a user's profile to that user by inherited access lists.
pub(crate) fn for_owner_only(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

pub(crate) fn restrict_to_owner(_path: &Path) -> io::Result<()> {
    Ok(())
}

/// `ERROR_TOO_MANY_OPEN_FILES` and `WSAEMFILE`.
pub(crate) fn is_out_of_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(4 | 10024))
}

pub(crate) fn mode_open_to_others(_about: &Metadata) -> Option<u32> {
    None
}

pub(crate) fn is_only_name(_about: &Metadata) -> bool {
    true
}

/// `ERROR_CRC` and `ERROR_IO_DEVICE`.
pub(crate) const DEVICE_FAULTS: &[i32] = &[23, 1117];

pub(crate) fn disk_bytes(about: &Metadata) -> u64 {
    about.len()
}

/// A folder cannot be opened as a file is.
pub(crate) fn sync_folder(_folder: &Path) -> io::Result<()> {
    Ok(())
}

pub(crate) fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        match file.seek_read(&mut buffer[done..], offset + done as u64)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            n => done += n,
        }
    }
    Ok(())
}

pub(crate) fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match file.seek_write(&bytes[done..], offset + done as u64)? {
            0 => return Err(ErrorKind::WriteZero.into()),
            n => done += n,
        }
    }
    Ok(())
}
