use std::fs::OpenOptions;
use std::io;

/// Whether an error of locking says that the file system has no locks.
pub fn is_without_locks(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported
}

/// The data folder is in the user's own, which others cannot read.
pub fn for_owner_only(_options: &mut OpenOptions) {}
