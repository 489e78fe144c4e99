//! Hashes a file's chunks on a few threads: BLAKE3 on one core is slower than a good disk.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;

use crate::StoreError;
use crate::disk::failed;

/// More threads than this wait for the disk.
const THREADS_MAX: usize = 4;

/// BLAKE3 of each chunk of the first `size` bytes of the file. `done` is told the bytes of each chunk hashed.
pub(crate) fn hash_chunks(
    path: &Path,
    size: u64,
    chunk_bytes: u32,
    done: &mut dyn FnMut(u64),
) -> Result<Vec<[u8; 32]>, StoreError> {
    let at = |e| failed("read", path, size, e);
    let file = File::open(path).map_err(at)?;
    let count = size.div_ceil(chunk_bytes.into());
    let count = u32::try_from(count).map_err(|e| at(io::Error::other(e)))?;
    let mut hashes = vec![[0; 32]; count as usize];
    let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX).min(count as usize);
    let next = AtomicU32::new(0);
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..threads {
            let (file, next, sender) = (&file, &next, sender.clone());
            scope.spawn(move || {
                let mut buffer = vec![0; chunk_bytes as usize];
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        return;
                    }
                    let start = u64::from(index) * u64::from(chunk_bytes);
                    let chunk = &mut buffer[..(size - start).min(chunk_bytes.into()) as usize];
                    let hashed = exo_stdx::read_exact_at(file, chunk, start)
                        .map(|()| (index, chunk.len(), *blake3::hash(chunk).as_bytes()));
                    let failed = hashed.is_err();
                    if sender.send(hashed).is_err() || failed {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for hashed in receiver {
            let (index, len, hash) = hashed.map_err(at)?;
            hashes[index as usize] = hash;
            done(len as u64);
        }
        Ok(hashes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_hash_as_if_alone_and_progress_adds_up() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = (0..10_500u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(file.path(), &bytes).unwrap();
        let mut total = 0;
        let hashes = hash_chunks(file.path(), 10_500, 4096, &mut |n| total += n).unwrap();
        let expected: Vec<[u8; 32]> = bytes.chunks(4096).map(|c| *blake3::hash(c).as_bytes()).collect();
        assert_eq!((hashes, total), (expected, 10_500));
        assert_eq!(hash_chunks(file.path(), 0, 4096, &mut |_| {}).unwrap().len(), 0);
        assert!(hash_chunks(file.path(), 10_501, 4096, &mut |_| {}).is_err(), "the file is shorter");
    }
}
