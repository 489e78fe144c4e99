//! Which chunks of a file are on disk: appended to as they come, each with its BLAKE3, so that a torn end or
//! a power cut costs what was being written, and a chunk that is not what was written is noticed.
//!
//! A line of JSON says which file it is; then come records of 40 bytes: index, hash, and four bytes that
//! check the record itself.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::HubError;

/// What of a file comes and counts at once: small enough that eight lost ones are nothing, large enough that
/// synchronising each costs little.
pub const CHUNK_BYTES: u64 = 4 << 20;
/// What is hashed by itself within a chunk: a model's identity is made of the same hashes, so the file need
/// not be read again for it.
pub const BLOCK_BYTES: usize = 1 << 20;
const RECORD_BYTES: usize = 40;
const HEAD_BYTES_MAX: usize = 4096;
/// Since 2 the hash of a chunk is that of its blocks' hashes.
const VERSION: u32 = 2;

#[derive(Serialize, Deserialize, PartialEq)]
struct Head {
    version: u32,
    identity: String,
    size: u64,
    chunk_bytes: u64,
}

/// The map of one partial file, open for more.
#[derive(Debug)]
pub(crate) struct ChunkMap {
    file: File,
    path: PathBuf,
}

/// Chunks that a map holds, and where its last whole record ends.
#[derive(Default, Debug, PartialEq)]
pub(crate) struct HeldChunks {
    pub(crate) chunks: BTreeMap<u32, [u8; 32]>,
    pub(crate) end: u64,
}

pub(crate) fn chunk_count(size: u64) -> u32 {
    u32::try_from(size.div_ceil(CHUNK_BYTES)).unwrap_or(u32::MAX)
}

/// Start and end of a chunk.
pub(crate) fn chunk_range(index: u32, size: u64) -> (u64, u64) {
    let start = u64::from(index) * CHUNK_BYTES;
    (start, (start + CHUNK_BYTES).min(size))
}

/// BLAKE3 of each block of a chunk.
pub(crate) fn block_hashes(chunk: &[u8]) -> Vec<[u8; 32]> {
    chunk.chunks(BLOCK_BYTES).map(|block| *blake3::hash(block).as_bytes()).collect()
}

/// [`block_hashes`] of a chunk that comes in pieces.
#[derive(Default)]
pub(crate) struct BlockHasher {
    hasher: blake3::Hasher,
    /// Bytes of the block under way.
    len: usize,
    done: Vec<[u8; 32]>,
}

impl BlockHasher {
    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (piece, rest) = bytes.split_at(bytes.len().min(BLOCK_BYTES - self.len));
            self.hasher.update(piece);
            self.len += piece.len();
            bytes = rest;
            if self.len == BLOCK_BYTES {
                self.end_block();
            }
        }
    }

    /// The hashes so far, the last block's included; afterwards it is as new.
    pub(crate) fn finish(&mut self) -> Vec<[u8; 32]> {
        if self.len > 0 {
            self.end_block();
        }
        std::mem::take(&mut self.done)
    }

    pub(crate) fn clear(&mut self) {
        self.hasher.reset();
        self.len = 0;
        self.done.clear();
    }

    fn end_block(&mut self) {
        self.done.push(*self.hasher.finalize().as_bytes());
        self.hasher.reset();
        self.len = 0;
    }
}

/// What the map has of a chunk.
pub(crate) fn chunk_hash(blocks: &[[u8; 32]]) -> [u8; 32] {
    *blake3::hash(blocks.as_flattened()).as_bytes()
}

/// What a map says of this file; `None` if it is about another one, or not a map.
pub(crate) fn parse(bytes: &[u8], identity: &str, size: u64) -> Option<HeldChunks> {
    let line_end = bytes.iter().take(HEAD_BYTES_MAX).position(|b| *b == b'\n')?;
    let head: Head = serde_json::from_slice(&bytes[..line_end]).ok()?;
    if head != head_of(identity, size) {
        return None;
    }
    let mut held = HeldChunks { chunks: BTreeMap::new(), end: line_end as u64 + 1 };
    let (records, _) = bytes[line_end + 1..].as_chunks::<RECORD_BYTES>();
    for record in records {
        let (index, hash) = decode(record)?;
        if index >= chunk_count(size) {
            break;
        }
        match hash {
            Some(hash) => held.chunks.insert(index, hash),
            None => held.chunks.remove(&index),
        };
        held.end += RECORD_BYTES as u64;
    }
    Some(held)
}

/// A record that checks, and what it holds: a zero hash takes a chunk back. A torn record is the end, not a
/// failure.
fn decode(record: &[u8; RECORD_BYTES]) -> Option<(u32, Option<[u8; 32]>)> {
    let (body, check) = record.split_at(RECORD_BYTES - 4);
    let sum = blake3::hash(body);
    if sum.as_bytes()[..4] != *check {
        return Some((u32::MAX, None)); // beyond every file: the reader stops here
    }
    let index = u32::from_le_bytes(body[..4].try_into().ok()?);
    let hash: [u8; 32] = body[4..].try_into().ok()?;
    Some((index, (hash != [0; 32]).then_some(hash)))
}

fn encode(index: u32, hash: &[u8; 32]) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[..4].copy_from_slice(&index.to_le_bytes());
    record[4..36].copy_from_slice(hash);
    let sum = blake3::hash(&record[..36]);
    record[36..].copy_from_slice(&sum.as_bytes()[..4]);
    record
}

fn head_of(identity: &str, size: u64) -> Head {
    Head { version: VERSION, identity: identity.to_owned(), size, chunk_bytes: CHUNK_BYTES }
}

impl ChunkMap {
    /// The map at `path` if it is of this file, else a new one; and what it holds.
    pub(crate) fn open(path: &Path, identity: &str, size: u64) -> Result<(Self, HeldChunks), HubError> {
        let bytes_max = HEAD_BYTES_MAX as u64
            + u64::from(chunk_count(size)).saturating_mul(RECORD_BYTES as u64 * 4)
            + (1 << 20);
        let stored = exo_stdx::read_bounded(path, bytes_max).ok().flatten();
        let held = stored.and_then(|bytes| parse(&bytes, identity, size));
        let failed = || HubError::disk("write", path);
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(path)
            .map_err(failed())?;
        let held = match held {
            Some(held) => held,
            None => {
                let mut head = serde_json::to_vec(&head_of(identity, size)).unwrap_or_default();
                head.push(b'\n');
                file.set_len(0)
                    .and_then(|()| file.write_all(&head))
                    .and_then(|()| file.sync_all())
                    .map_err(failed())?;
                HeldChunks { chunks: BTreeMap::new(), end: head.len() as u64 }
            }
        };
        file.set_len(held.end).map_err(failed())?;
        file.seek(SeekFrom::End(0)).map_err(failed())?;
        Ok((Self { file, path: path.to_owned() }, held))
    }

    /// Promises a chunk that was written to the file.
    pub(crate) fn add(&mut self, index: u32, hash: &[u8; 32]) -> Result<(), HubError> {
        self.file.write_all(&encode(index, hash)).map_err(HubError::disk("write", &self.path))
    }

    /// The same file, to synchronise it while others add to it.
    pub(crate) fn handle(&self) -> Result<File, HubError> {
        self.file.try_clone().map_err(HubError::disk("open", &self.path))
    }

    /// Takes a promise back: the bytes on disk are not what they were.
    pub(crate) fn remove(&mut self, index: u32) -> Result<(), HubError> {
        self.add(index, &[0; 32])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = CHUNK_BYTES * 2 + 5;

    #[test]
    fn a_torn_end_costs_the_last_record_and_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("map");
        let (mut map, held) = ChunkMap::open(&path, "x", SIZE).unwrap();
        assert!(held.chunks.is_empty());
        map.add(2, &[7; 32]).unwrap();
        map.add(0, &[8; 32]).unwrap();
        drop(map);
        let bytes = std::fs::read(&path).unwrap();
        for cut in 1..RECORD_BYTES {
            let held = parse(&bytes[..bytes.len() - cut], "x", SIZE).unwrap();
            assert_eq!(held.chunks.keys().collect::<Vec<_>>(), [&2], "{cut}");
        }
        std::fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
        let (mut map, held) = ChunkMap::open(&path, "x", SIZE).unwrap();
        assert_eq!(held.chunks.len(), 1);
        map.add(1, &[9; 32]).unwrap();
        map.remove(2).unwrap();
        let (_, held) = ChunkMap::open(&path, "x", SIZE).unwrap();
        assert_eq!(held.chunks.keys().collect::<Vec<_>>(), [&1]);
    }

    #[test]
    fn a_map_of_another_file_or_a_damaged_one_promises_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("map");
        let (mut map, _) = ChunkMap::open(&path, "x", SIZE).unwrap();
        map.add(0, &[7; 32]).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(parse(&bytes, "y", SIZE), None);
        assert_eq!(parse(&bytes, "x", SIZE + 1), None);
        let mut flipped = bytes.clone();
        *flipped.last_mut().unwrap() ^= 1;
        assert!(parse(&flipped, "x", SIZE).unwrap().chunks.is_empty());
        assert_eq!(parse(b"\n", "x", SIZE), None);
        let (_, held) = ChunkMap::open(&path, "y", SIZE).unwrap();
        assert!(held.chunks.is_empty());
    }

    #[test]
    fn blocks_that_come_in_pieces_hash_as_those_of_the_whole_chunk() {
        let chunk: Vec<u8> = (0..BLOCK_BYTES * 2 + 77).map(|i| (i % 251) as u8).collect();
        let mut hasher = BlockHasher::default();
        for piece in [1, 1000, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 9, chunk.len()] {
            hasher.update(b"of one that did not become whole");
            hasher.clear();
            chunk.chunks(piece).for_each(|piece| hasher.update(piece));
            assert_eq!(hasher.finish(), block_hashes(&chunk), "{piece}");
        }
    }

    #[test]
    fn chunks_tile_a_file() {
        assert_eq!((chunk_count(0), chunk_count(1), chunk_count(SIZE)), (0, 1, 3));
        assert_eq!(chunk_range(2, SIZE), (CHUNK_BYTES * 2, SIZE));
    }
}
