use std::io;

/// Whether an error of locking says that the file system has no locks.
pub fn is_without_locks(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported
}
