//! BLAKE3 of chunks as they came, of those that the manifest has no hash of: what a disk makes of them later
//! is noticed.
//!
//! Records of 44 bytes, each with a check of its own, appended before the map promises the chunk. Where one
//! is missing or torn, nobody knows what the chunk was, and it is believed.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::disk::{failed, read_bounded};
use crate::{ChunkRef, Manifest, StoreError};

const RECORD_BYTES: usize = 44;
const CHECKED_BYTES: usize = 40;
/// Records of one chunk, on average: it has one more for each time that it came again.
const AGAIN_MAX: u64 = 4;

/// What came, and which file says so.
#[derive(Debug)]
pub(crate) struct RecordedHashes {
    path: PathBuf,
    hashes: BTreeMap<ChunkRef, [u8; 32]>,
}

impl RecordedHashes {
    /// What the file says; of one that cannot be such a file nothing.
    pub(crate) fn open(path: PathBuf, manifest: &Manifest) -> Self {
        let chunks: u64 = (0..manifest.files.len()).map(|f| u64::from(manifest.chunk_count(f as u32))).sum();
        let bytes_max = chunks.saturating_mul(RECORD_BYTES as u64 * AGAIN_MAX);
        let bytes = match read_bounded(&path, bytes_max) {
            Ok(bytes) => bytes.unwrap_or_default(),
            Err(error) => {
                tracing::warn!(%error, "what chunks were when they came is not known any more");
                let _ = fs::remove_file(&path);
                Vec::new()
            }
        };
        let hashes = parse(&bytes).filter(|(chunk, _)| manifest.chunk_len(*chunk).is_some()).collect();
        Self { path, hashes }
    }

    pub(crate) fn get(&self, chunk: ChunkRef) -> Option<&[u8; 32]> {
        self.hashes.get(&chunk)
    }

    pub(crate) fn note(&mut self, chunk: ChunkRef, hash: [u8; 32]) {
        self.hashes.insert(chunk, hash);
    }

    /// The file, and its records of these chunks for [`append`].
    pub(crate) fn records(&self, chunks: &[ChunkRef]) -> (PathBuf, Vec<u8>) {
        let known = chunks.iter().filter_map(|chunk| Some((*chunk, *self.get(*chunk)?)));
        (self.path.clone(), known.flat_map(|(chunk, hash)| encode(chunk, &hash)).collect())
    }
}

/// Adds records to the file, which last then.
pub(crate) fn append(path: &Path, records: &[u8]) -> Result<(), StoreError> {
    if records.is_empty() {
        return Ok(());
    }
    let write = || {
        let mut file = OpenOptions::new().append(true).create(true).open(path)?;
        let len = file.metadata()?.len();
        // What a full disk or a power cut left half written.
        let whole = len - len % RECORD_BYTES as u64;
        if whole != len {
            file.set_len(whole)?;
        }
        file.write_all(records).inspect_err(|_| _ = file.set_len(whole))?;
        file.sync_data()
    };
    write().map_err(|e| failed("write", path, records.len() as u64, e))
}

pub(crate) fn encode(chunk: ChunkRef, hash: &[u8; 32]) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[..4].copy_from_slice(&chunk.file.to_le_bytes());
    record[4..8].copy_from_slice(&chunk.index.to_le_bytes());
    record[8..CHECKED_BYTES].copy_from_slice(hash);
    let check = blake3::hash(&record[..CHECKED_BYTES]);
    record[CHECKED_BYTES..].copy_from_slice(&check.as_bytes()[..RECORD_BYTES - CHECKED_BYTES]);
    record
}

/// The records that check, in their order: of a chunk the last one counts.
pub(crate) fn parse(bytes: &[u8]) -> impl Iterator<Item = (ChunkRef, [u8; 32])> + '_ {
    bytes.as_chunks::<RECORD_BYTES>().0.iter().filter_map(|record| {
        let (file, rest) = record.split_first_chunk::<4>()?;
        let (index, rest) = rest.split_first_chunk::<4>()?;
        let chunk = ChunkRef { file: u32::from_le_bytes(*file), index: u32::from_le_bytes(*index) };
        let hash = *rest.first_chunk::<32>()?;
        (encode(chunk, &hash) == *record).then_some((chunk, hash))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(index: u32) -> ChunkRef {
        ChunkRef { file: 0, index }
    }

    #[test]
    fn a_torn_or_damaged_record_costs_itself_alone_and_the_last_of_a_chunk_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hashes");
        let records: Vec<u8> = (0..3).flat_map(|index| encode(chunk(index), &[index as u8; 32])).collect();
        append(&path, &records).unwrap();
        let file = OpenOptions::new().append(true).open(&path).unwrap();
        (&file).write_all(b"torn").unwrap();
        append(&path, &encode(chunk(1), &[9; 32])).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 4 * RECORD_BYTES, "what was torn is gone");
        bytes[10] ^= 1;
        let found: BTreeMap<_, _> = parse(&bytes).collect();
        assert_eq!(found, BTreeMap::from([(chunk(1), [9; 32]), (chunk(2), [2; 32])]));
    }
}
