//! What a disk has made of chunks since they came.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::SystemTime;

use exo_formats::FileRange;

use super::PartialModel;
use crate::disk::failed;
use crate::{ChunkError, ChunkRef};

/// Threads that compare chunks: more wait for the disk.
const THREADS_MAX: usize = 4;

impl PartialModel {
    /// The chunk is damaged: neither this process nor the next one holds it, and what a check found counts no
    /// more.
    pub(super) fn lose(&self, chunk: ChunkRef, len: u64) {
        let _turn = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(_there) = self.stay() else { return };
        {
            let mut state = self.state();
            state.held.remove(chunk, len);
            state.verified.remove(chunk, len);
            state.unsynced.retain(|unsynced| *unsynced != chunk);
        }
        tracing::warn!(target: "events::model", model = %self.id, name = self.manifest.name, %chunk, "damaged on this disk: it is to be fetched again");
        if let Err(error) = self.forget_check().and_then(|()| self.write_map()) {
            tracing::warn!(model = %self.id, %error, "that a chunk is damaged was not noted; it is noticed again after a restart");
        }
    }

    /// Chunks that `ranges` touch and that are held, but for those that came or were compared since this was
    /// opened, unless somebody else was seen to have written to their file since, and for those of which
    /// nobody knows what they were.
    pub fn unverified(&self, ranges: &[FileRange]) -> Vec<ChunkRef> {
        self.unverified_of(self.touched_by(ranges))
    }

    /// [`PartialModel::unverified`] of what must be here before the model opens.
    pub fn unverified_head(&self) -> Vec<ChunkRef> {
        self.unverified_of(self.head())
    }

    fn unverified_of(&self, wanted: BTreeSet<ChunkRef>) -> Vec<ChunkRef> {
        let files: BTreeSet<u32> = wanted.iter().map(|chunk| chunk.file).collect();
        let modified = |file: u32| fs::metadata(self.file_path(file)).and_then(|about| about.modified()).ok();
        let modified: Vec<(u32, Option<SystemTime>)> =
            files.into_iter().map(|file| (file, modified(file))).collect();
        let mut state = self.state();
        for (file, modified) in modified {
            if std::mem::replace(&mut state.modified[file as usize], modified) != modified {
                state.verified.forget_file(file, &self.manifest);
            }
        }
        let is_known =
            |chunk: ChunkRef| self.manifest.chunk_hash(chunk).or_else(|| state.recorded.get(chunk)).is_some();
        let is_due =
            |chunk: &ChunkRef| state.held.has(*chunk) && !state.verified.has(*chunk) && is_known(*chunk);
        wanted.into_iter().filter(is_due).collect()
    }

    /// Every chunk that is held.
    pub fn held_chunks(&self) -> Vec<ChunkRef> {
        let files = 0..self.manifest.files.len() as u32;
        let all = files
            .flat_map(|file| (0..self.manifest.chunk_count(file)).map(move |index| ChunkRef { file, index }));
        let state = self.state();
        all.filter(|chunk| state.held.has(*chunk)).collect()
    }

    /// Reads chunks and compares them with what they were when they came; the damaged ones come back, and are
    /// held no more. `goes_on` hears the bytes of each that is good, from several threads, and says whether
    /// anybody still wants to know.
    pub fn verify(
        &self,
        chunks: &[ChunkRef],
        goes_on: &(dyn Fn(u64) -> bool + Sync),
    ) -> Result<Vec<ChunkRef>, ChunkError> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let (next, damaged) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let look = || {
            while let Some(chunk) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
                match self.read_chunk(*chunk) {
                    // Somebody else has found it damaged.
                    Err(ChunkError::Damaged { .. } | ChunkError::NotHeld { .. }) => {
                        damaged.lock().unwrap_or_else(PoisonError::into_inner).push(*chunk);
                    }
                    read => {
                        if !goes_on(read?.len() as u64) {
                            break;
                        }
                    }
                }
            }
            Ok::<(), ChunkError>(())
        };
        let broke_off = || failed("read", &self.path, 0, std::io::Error::other("a thread broke off")).into();
        thread::scope(|scope| {
            let threads = cores.min(THREADS_MAX).min(chunks.len());
            let looks: Vec<_> = (0..threads).map(|_| scope.spawn(look)).collect();
            looks.into_iter().try_for_each(|look| look.join().unwrap_or_else(|_| Err(broke_off())))
        })?;
        Ok(damaged.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}
