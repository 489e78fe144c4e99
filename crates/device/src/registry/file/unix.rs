use std::io;

/// Whether an error of locking says that the file system has no locks.
pub fn is_without_locks(error: &io::Error) -> bool {
    let none = rustix::io::Errno::NOLCK.raw_os_error();
    error.kind() == io::ErrorKind::Unsupported || error.raw_os_error() == Some(none)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_without_locks_is_told_from_a_lock_that_failed() {
        for (number, expected) in [(rustix::io::Errno::NOLCK, true), (rustix::io::Errno::IO, false)] {
            let error = io::Error::from_raw_os_error(number.raw_os_error());
            assert_eq!(is_without_locks(&error), expected, "{error}");
        }
        assert!(is_without_locks(&io::ErrorKind::Unsupported.into()));
    }
}
