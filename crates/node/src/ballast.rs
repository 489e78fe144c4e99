//! A ballast file: room on the disk that a node sets aside while there is plenty, and gives back when the
//! disk is full.
//!
//! A start writes a few small files and opens the journal, and an unloaded model is an entry of it. On a full
//! disk neither would be possible, so that nothing could be freed through the node. What else fills the disk
//! may take what the ballast gives back, too: then a start is refused, and says what frees space without a
//! node.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const FILE: &str = "ballast";
/// More than a start and some hundred entries of the journal take.
const BALLAST_BYTES: u64 = 4 << 20;
/// With less left, what the node writes next may not fit.
const RELEASE_BELOW_BYTES: u64 = 2 << 20;
/// With so much left, no one misses it.
const MAKE_ABOVE_BYTES: u64 = 32 << 20;

/// Gives the ballast back if the disk of a data folder is full, or a write has failed. Whether it did.
pub fn release(data_dir: &Path, has_failed: bool) -> bool {
    let is_full = || exo_stdx::free_bytes(data_dir).is_some_and(|free| free < RELEASE_BELOW_BYTES);
    if !(has_failed || is_full()) || fs::remove_file(path(data_dir)).is_err() {
        return false;
    }
    let folder = data_dir.display();
    tracing::warn!(bytes = BALLAST_BYTES, %folder, "the disk is full: what was set aside for the node's own files is used now");
    true
}

/// Sets room aside if there is plenty. A disk that does not take it stops nothing; `false` then.
pub fn keep(data_dir: &Path) -> bool {
    let path = path(data_dir);
    let is_plenty = || exo_stdx::free_bytes(data_dir).is_some_and(|free| free >= MAKE_ABOVE_BYTES);
    let is_whole = fs::metadata(&path).is_ok_and(|about| about.len() == BALLAST_BYTES);
    if is_whole || !is_plenty() {
        return true;
    }
    let written = write(&path);
    if let Err(error) = &written {
        tracing::warn!(%error, path = %path.display(), "nothing is set aside for a full disk");
        let _ = fs::remove_file(&path);
    }
    written.is_ok()
}

/// What is free on the disk of a data folder beside what the node sets aside for itself: when that is used,
/// the disk is as full as it was before.
pub fn free_bytes(data_dir: &Path) -> Option<u64> {
    let free = exo_stdx::free_bytes(data_dir)?;
    Some(if path(data_dir).exists() { free } else { free.saturating_sub(BALLAST_BYTES) })
}

fn path(data_dir: &Path) -> PathBuf {
    data_dir.join(FILE)
}

/// Random bytes: some file systems store nothing of zeros.
fn write(path: &Path) -> io::Result<()> {
    let mut bytes = vec![0; BALLAST_BYTES as usize];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    fs::write(path, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_made_once_where_there_is_plenty_and_stays_until_the_disk_is_full() {
        let folder = tempfile::tempdir().unwrap();
        let there = || fs::metadata(path(folder.path())).map(|about| about.len()).ok();
        keep(folder.path());
        assert_eq!(there(), Some(BALLAST_BYTES));
        // One that was cut off is made whole.
        fs::write(path(folder.path()), b"0").unwrap();
        keep(folder.path());
        assert_eq!(there(), Some(BALLAST_BYTES));
        assert!(!release(folder.path(), false) && there().is_some());
        assert!(release(folder.path(), true) && there().is_none(), "a write has failed");
        assert!(!release(folder.path(), true));
    }
}
