//! Files that are being fetched whole here, for others that fetch the same: what is on the disk of each and
//! what is on its way, and their blocks.
//!
//! A file is known by its SHA-256. What is given of it is what came, by its BLAKE3, and not known to be the
//! hub's before all of the file is: whoever takes it compares all of it again.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_stdx::Mutex;

use crate::chunk_bits::ChunkBits;
use crate::chunk_map::{BLOCK_BYTES, CHUNK_BYTES, chunk_hash, chunk_range};
use crate::chunk_queue::ChunkQueue;

const BLOCKS_OF_CHUNK: u32 = (CHUNK_BYTES / BLOCK_BYTES as u64) as u32;
/// A file that came whole is given for so long after somebody last asked for it: who takes the last of it
/// would else not find it before its model is known here.
const GIVEN_FOR: Duration = Duration::from_secs(300);
/// Files that came whole and are still given.
const WHOLE_MAX: usize = 16;

/// The files that one process fetches.
#[derive(Default)]
pub struct PartialFiles {
    files: Mutex<Vec<Arc<PartialFile>>>,
}

/// How far a fetch of a file is: chunks of [`CHUNK_BYTES`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartialState {
    /// On the disk.
    pub held: ChunkBits,
    /// On their way from the hub.
    pub coming: ChunkBits,
}

impl PartialState {
    /// Whether a block of [`BLOCK_BYTES`] is on the disk.
    pub fn has_block(&self, block: u32) -> bool {
        self.held.has(block / BLOCKS_OF_CHUNK)
    }

    /// Whether it is on its way from the hub.
    pub fn brings_block(&self, block: u32) -> bool {
        self.coming.has(block / BLOCKS_OF_CHUNK)
    }
}

/// Why a block is not given.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// It has not come, or nothing of its file is fetched any more.
    #[error("the block is not here")]
    NotHeld,
    /// The disk has damaged it.
    #[error("the block is not what it was when it came")]
    Changed,
    /// The disk does not give it.
    #[error("the block cannot be read")]
    Read(#[source] std::io::Error),
}

/// BLAKE3 of each block of a file, zero where nobody has hashed it yet.
pub(crate) type BlockHashes = Arc<Mutex<Vec<[u8; 32]>>>;

/// A file that is fetched, or came a while ago.
pub(crate) struct PartialFile {
    pub(crate) sha256: [u8; 32],
    pub(crate) size: u64,
    pub(crate) work: Arc<ChunkQueue>,
    /// Hashes of the chunks that an earlier attempt left: compared before they are given.
    pub(crate) found: BTreeMap<u32, [u8; 32]>,
    pub(crate) blocks: BlockHashes,
    pub(crate) place: Mutex<FilePlace>,
}

/// Where a file is.
pub(crate) struct FilePlace {
    path: PathBuf,
    is_whole: bool,
    /// When somebody asked for it last.
    asked: Instant,
}

impl FilePlace {
    /// Of a file that is not whole.
    pub(crate) fn partial(path: &Path) -> Self {
        Self { path: path.to_owned(), is_whole: false, asked: Instant::now() }
    }

    fn is_old(&self, now: Instant) -> bool {
        self.is_whole && now.saturating_duration_since(self.asked) > GIVEN_FOR
    }
}

/// A file is given as long as this is there, and for a while if it is [kept](OfferedFile::keep).
pub(crate) struct OfferedFile<'a> {
    files: &'a PartialFiles,
    file: Arc<PartialFile>,
    is_kept: bool,
}

impl PartialFiles {
    /// How far the fetch of a file is; `None` where it is not fetched.
    pub fn state(&self, sha256: &[u8; 32], size: u64) -> Option<PartialState> {
        let file = self.find(sha256).filter(|file| file.size == size)?;
        let (held, coming) = file.work.bits();
        Some(PartialState { held, coming })
    }

    /// A block of [`BLOCK_BYTES`] of a file. Reads the disk.
    pub fn block(&self, sha256: &[u8; 32], index: u32) -> Result<Vec<u8>, BlockError> {
        let file = self.find(sha256).ok_or(BlockError::NotHeld)?;
        let given = file.block(index);
        let is_gone = matches!(given, Err(BlockError::Read(_) | BlockError::Changed));
        if is_gone && file.place.lock().is_whole {
            // Its model was removed, or somebody has written to it.
            self.files.lock().retain(|other| !Arc::ptr_eq(other, &file));
        }
        given
    }

    /// Gives what comes of a file to who asks.
    pub(crate) fn offer(&self, file: PartialFile) -> OfferedFile<'_> {
        let file = Arc::new(file);
        self.files.lock().push(file.clone());
        OfferedFile { files: self, file, is_kept: false }
    }

    /// The fullest of that digest: two models may have the same file.
    fn find(&self, sha256: &[u8; 32]) -> Option<Arc<PartialFile>> {
        let now = Instant::now();
        let mut files = self.files.lock();
        files.retain(|file| !file.place.lock().is_old(now));
        let same = files.iter().filter(|file| file.sha256 == *sha256);
        let found = same.max_by_key(|file| file.work.held_bytes())?.clone();
        found.place.lock().asked = now;
        Some(found)
    }

    fn drop_oldest_whole(&self) {
        let mut files = self.files.lock();
        let whole: Vec<usize> = (0..files.len()).filter(|at| files[*at].place.lock().is_whole).collect();
        if whole.len() > WHOLE_MAX {
            files.remove(whole[0]); // of several the one that came first
        }
    }
}

impl OfferedFile<'_> {
    /// The file is whole and verified, and has its name now.
    pub(crate) fn keep(mut self, path: &Path) {
        *self.file.place.lock() = FilePlace { is_whole: true, ..FilePlace::partial(path) };
        self.is_kept = true;
        self.files.drop_oldest_whole();
    }
}

impl Drop for OfferedFile<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            self.files.files.lock().retain(|file| !Arc::ptr_eq(file, &self.file));
        }
    }
}

impl PartialFile {
    fn block(&self, index: u32) -> Result<Vec<u8>, BlockError> {
        let start = u64::from(index) * BLOCK_BYTES as u64;
        let end = (start + BLOCK_BYTES as u64).min(self.size);
        if start >= end || !self.work.is_here(index / BLOCKS_OF_CHUNK) {
            return Err(BlockError::NotHeld);
        }
        let path = self.place.lock().path.clone();
        let file = File::open(path).map_err(BlockError::Read)?;
        let expected = match self.known_hash(index) {
            Some(hash) => hash,
            None => self.compare_found(&file, index)?,
        };
        let mut bytes = vec![0; (end - start) as usize];
        exo_stdx::read_exact_at(&file, &mut bytes, start).map_err(BlockError::Read)?;
        if *blake3::hash(&bytes).as_bytes() != expected {
            return Err(BlockError::Changed);
        }
        Ok(bytes)
    }

    fn known_hash(&self, block: u32) -> Option<[u8; 32]> {
        self.blocks.lock().get(block as usize).copied().filter(|hash| *hash != [0; 32])
    }

    /// Compares the chunk of a block with what an earlier attempt noted of it; the hash of the block.
    fn compare_found(&self, file: &File, block: u32) -> Result<[u8; 32], BlockError> {
        let chunk = block / BLOCKS_OF_CHUNK;
        let expected = self.found.get(&chunk).ok_or(BlockError::NotHeld)?;
        let (start, end) = chunk_range(chunk, self.size);
        let (mut bytes, mut hashes) = (vec![0; BLOCK_BYTES], Vec::new());
        for at in (start..end).step_by(BLOCK_BYTES) {
            let bytes = &mut bytes[..(end - at).min(BLOCK_BYTES as u64) as usize];
            exo_stdx::read_exact_at(file, bytes, at).map_err(BlockError::Read)?;
            hashes.push(*blake3::hash(bytes).as_bytes());
        }
        if chunk_hash(&hashes) != *expected {
            return Err(BlockError::Changed); // who reads the file in order has it fetched again
        }
        let first = (chunk * BLOCKS_OF_CHUNK) as usize;
        for (known, hash) in self.blocks.lock().iter_mut().skip(first).zip(&hashes) {
            *known = *hash;
        }
        hashes.get((block % BLOCKS_OF_CHUNK) as usize).copied().ok_or(BlockError::NotHeld)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk_map::block_hashes;

    #[test]
    fn of_a_file_under_way_what_is_here_and_is_what_came_is_given_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let (path, size) = (folder.path().join("m.part"), 2 * CHUNK_BYTES + 5);
        let mut bytes: Vec<u8> = (0..size).map(|at| (at / 251) as u8 ^ at as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let hashes = bytes.chunks(CHUNK_BYTES as usize).map(|chunk| chunk_hash(&block_hashes(chunk)));
        let found: BTreeMap<u32, [u8; 32]> = (0..).zip(hashes).filter(|(index, _)| *index != 1).collect();
        let work = Arc::new(ChunkQueue::new(size, CHUNK_BYTES, found.keys().copied(), 1));
        let (sha256, place) = ([7; 32], Mutex::new(FilePlace::partial(&path)));
        let blocks = Arc::new(Mutex::new(vec![[0; 32]; 9]));
        let files = PartialFiles::default();
        let offered = files.offer(PartialFile { sha256, size, work: work.clone(), found, blocks, place });
        let state = files.state(&sha256, size).unwrap();
        let held = |state: &PartialState| (0..9).filter(|chunk| state.held.has(*chunk)).collect::<Vec<_>>();
        assert_eq!((held(&state), files.state(&sha256, size + 1)), (vec![0, 2], None));
        assert_eq!(files.block(&sha256, 1).unwrap(), bytes[BLOCK_BYTES..2 * BLOCK_BYTES]);
        assert_eq!(files.block(&sha256, 8).unwrap(), bytes[2 * CHUNK_BYTES as usize..]);
        for (sha256, index) in [(sha256, 4), (sha256, 9), (sha256, u32::MAX), ([8; 32], 0)] {
            assert!(matches!(files.block(&sha256, index), Err(BlockError::NotHeld)), "{index}");
        }
        // Damaged since it was compared.
        bytes[0] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert!(matches!(files.block(&sha256, 0), Err(BlockError::Changed)));
        assert!(files.block(&sha256, 1).is_ok());
        work.lose(0);
        assert!(matches!(files.block(&sha256, 1), Err(BlockError::NotHeld)));
        // One that has its name is given on, while it is there; one that was given up is not.
        offered.keep(&path);
        assert!(files.block(&sha256, 8).is_ok());
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(files.block(&sha256, 8), Err(BlockError::Read(_))));
        assert_eq!(files.state(&sha256, size), None);
        let (blocks, place) = (Arc::default(), Mutex::new(FilePlace::partial(&path)));
        let given_up = PartialFile { sha256: [9; 32], size, work, found: BTreeMap::new(), blocks, place };
        drop(files.offer(given_up));
        assert_eq!(files.state(&[9; 32], size), None);
    }
}
