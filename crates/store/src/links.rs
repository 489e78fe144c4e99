//! Files that have several names on one disk, as updates of models make them.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub(crate) use unix::shared_file;
#[cfg(windows)]
pub(crate) use windows::shared_file;
