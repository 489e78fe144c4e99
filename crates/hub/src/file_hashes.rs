//! Hashes of the blocks of a file that came: a model's identity is made of the same, so nobody need read the
//! file again for it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::chunk_map::BLOCK_BYTES;

/// BLAKE3 of each MiB of a file, as it was when it came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileHashes {
    path: PathBuf,
    size: u64,
    modified: SystemTime,
    blocks: Vec<[u8; 32]>,
}

impl FileHashes {
    /// Of a file that is whole and that nobody has written to since.
    pub(crate) fn of(path: &Path, blocks: Vec<[u8; 32]>) -> io::Result<Self> {
        let path = fs::canonicalize(path)?;
        let about = fs::metadata(&path)?;
        Ok(Self { size: about.len(), modified: about.modified()?, path, blocks })
    }

    /// BLAKE3 of each `block_bytes` of the file at `path`, if one of these is of it and it has not changed
    /// since.
    pub(crate) fn find(all: &[Self], path: &Path, block_bytes: u32) -> Option<Vec<[u8; 32]>> {
        let path = fs::canonicalize(path).ok()?;
        let found = all.iter().find(|file| file.path == path)?;
        let about = fs::metadata(&path).ok()?;
        let is_same = about.len() == found.size && about.modified().ok()? == found.modified;
        (is_same && block_bytes as usize == BLOCK_BYTES).then(|| found.blocks.clone())
    }
}
