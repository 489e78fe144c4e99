//! How a fetch of chunks goes, for whoever asked for it.
//!
//! Each chunk is told of once, by who writes it and in the thread that writes: by then its source may not be
//! waited for any more, because another one has brought the last chunk. What no source of this fetch has
//! brought, because another fetch of this node was sooner, is found on the disk.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use exo_store::{ChunkError, ChunkRef, PartialModel};
use exo_types::NodeId;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

/// Between two looks at what is here and was not told of. Who writes a chunk tells of it before the second.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Behind the end of a fetch, for those who still write to tell of it: a disk synchronises the last chunk.
const WRITES_MAX: Duration = Duration::from_secs(5);
const WRITES_LOOK_EVERY: Duration = Duration::from_millis(5);

/// How a fetch of chunks goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FetchProgress {
    /// A chunk of so many bytes is on the disk.
    Stored(u64),
    /// The next chunk that is stored came from this member, with so many bytes.
    From(NodeId, u64),
    /// A chunk of so many bytes is on the disk that did not come with this fetch.
    Found(u64),
    /// So many bytes have come of chunks that are not whole: on a slow line all that moves for minutes.
    InFlight(u64),
    /// The hub asked to wait, for so long still.
    HubWaits(Duration),
}

enum ChunkNews {
    Written {
        chunk: ChunkRef,
        bytes: u64,
        from: Option<NodeId>,
    },
    /// What is about no single chunk.
    Other(FetchProgress),
}

/// Where those who fetch tell how it goes.
#[derive(Clone)]
pub struct ProgressSender {
    news: mpsc::UnboundedSender<ChunkNews>,
    /// How many are writing a chunk, or about to tell of it.
    writes: Arc<AtomicUsize>,
}

/// A write is under way as long as this is there.
struct WriteUnderWay<'a>(&'a AtomicUsize);

/// What is told of a fetch, and what is still to be told.
pub struct ProgressReceiver {
    partial: Arc<PartialModel>,
    news: mpsc::UnboundedReceiver<ChunkNews>,
    writes: Arc<AtomicUsize>,
    untold: BTreeSet<ChunkRef>,
    /// Of those, what was here at the last look.
    here_before: BTreeSet<ChunkRef>,
}

/// For a fetch of chunks that are missing.
pub fn progress_channel(
    partial: &Arc<PartialModel>,
    missing: Vec<ChunkRef>,
) -> (ProgressSender, ProgressReceiver) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let writes = Arc::<AtomicUsize>::default();
    let untold = missing.into_iter().collect();
    let (partial, here_before) = (partial.clone(), BTreeSet::new());
    let told = ProgressReceiver { partial, news: receiver, writes: writes.clone(), untold, here_before };
    (ProgressSender { news: sender, writes }, told)
}

impl ProgressSender {
    /// Tells what is about no single chunk.
    pub fn tell(&self, news: FetchProgress) {
        self.send(ChunkNews::Other(news));
    }

    /// Writes a chunk that came from a member, or from the hub, and tells of it unless it was here. Blocks.
    pub fn write(
        &self,
        partial: &PartialModel,
        chunk: ChunkRef,
        bytes: &[u8],
        from: Option<NodeId>,
    ) -> Result<(), ChunkError> {
        let _write = WriteUnderWay::begin(&self.writes);
        if partial.write_new_chunk(chunk, bytes)? {
            self.send(ChunkNews::Written { chunk, bytes: bytes.len() as u64, from });
        }
        Ok(())
    }

    /// Whoever asked may have gone.
    fn send(&self, news: ChunkNews) {
        let _ = self.news.send(news);
    }
}

impl<'a> WriteUnderWay<'a> {
    fn begin(writes: &'a AtomicUsize) -> Self {
        writes.fetch_add(1, Ordering::AcqRel);
        Self(writes)
    }
}

impl Drop for WriteUnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl ProgressReceiver {
    /// Has `progress` hear how a fetch goes until it ends, and of all that is here then.
    pub async fn until<T>(
        mut self,
        fetching: impl Future<Output = T>,
        progress: &mut (dyn FnMut(FetchProgress) + Send),
    ) -> T {
        let mut fetching = pin!(fetching);
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let fetched = loop {
            tokio::select! {
                biased;
                Some(news) = self.news.recv() => self.tell(news, progress),
                fetched = &mut fetching => break fetched,
                _ = look.tick() => self.tell_found(progress),
            }
        };
        self.tell_rest(progress).await;
        fetched
    }

    fn tell(&mut self, news: ChunkNews, progress: &mut (dyn FnMut(FetchProgress) + Send)) {
        match news {
            ChunkNews::Other(news) => progress(news),
            // Found before its writer told of it.
            ChunkNews::Written { chunk, .. } if !self.untold.remove(&chunk) => {}
            ChunkNews::Written { bytes, from, .. } => {
                if let Some(member) = from {
                    progress(FetchProgress::From(member, bytes));
                }
                progress(FetchProgress::Stored(bytes));
            }
        }
    }

    /// Tells of what was here at the last look as well.
    fn tell_found(&mut self, progress: &mut (dyn FnMut(FetchProgress) + Send)) {
        let here = self.here();
        for chunk in here.intersection(&self.here_before) {
            self.untold.remove(chunk);
            progress(FetchProgress::Found(self.partial.manifest().chunk_len(*chunk).unwrap_or(0)));
        }
        self.here_before = here;
    }

    /// Tells of all that is here, once those have told who write it.
    async fn tell_rest(&mut self, progress: &mut (dyn FnMut(FetchProgress) + Send)) {
        let until = Instant::now() + WRITES_MAX;
        loop {
            // Before what they have told is taken: who writes tells first.
            let is_quiet = self.writes.load(Ordering::Acquire) == 0;
            while let Ok(news) = self.news.try_recv() {
                self.tell(news, progress);
            }
            self.here_before = self.here();
            if is_quiet || self.here_before.is_empty() || Instant::now() >= until {
                break;
            }
            tokio::time::sleep(WRITES_LOOK_EVERY).await;
        }
        self.tell_found(progress);
    }

    fn here(&self) -> BTreeSet<ChunkRef> {
        self.untold.iter().copied().filter(|chunk| self.partial.has_chunk(*chunk)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bulk::testing::demo_and_copy;

    const MEMBER: NodeId = NodeId([7; 32]);

    fn chunk(index: u32) -> ChunkRef {
        ChunkRef { file: 0, index }
    }

    #[tokio::test]
    async fn of_a_chunk_that_is_here_when_its_fetch_ends_who_still_writes_it_tells_and_once() {
        let folder = tempfile::tempdir().unwrap();
        let (from, partial) = demo_and_copy(folder.path());
        let bytes = from.read_chunk(partial.id(), chunk(10)).unwrap();
        let (sender, receiver) = progress_channel(&partial, vec![chunk(10)]);
        // It is in the file, and the disk is asked to keep it.
        let writer = sender.clone();
        writer.writes.fetch_add(1, Ordering::AcqRel);
        partial.write_chunk(chunk(10), &bytes).unwrap();
        let len = bytes.len() as u64;
        let written = std::thread::spawn(move || {
            std::thread::park_timeout(Duration::from_millis(100));
            writer.send(ChunkNews::Written { chunk: chunk(10), bytes: len, from: Some(MEMBER) });
            drop(WriteUnderWay(&writer.writes));
        });
        let mut told = Vec::new();
        receiver.until(std::future::ready(()), &mut |news| told.push(news)).await;
        written.join().unwrap();
        assert_eq!(told, [FetchProgress::From(MEMBER, len), FetchProgress::Stored(len)]);
        assert_eq!(sender.writes.load(Ordering::Acquire), 0);
    }

    #[tokio::test]
    async fn what_another_fetch_has_brought_counts_once_and_while_this_one_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let (from, partial) = demo_and_copy(folder.path());
        let bytes = [10, 11, 12].map(|index| from.read_chunk(partial.id(), chunk(index)).unwrap());
        let len = |at: usize| bytes[at].len() as u64;
        let (sender, mut receiver) = progress_channel(&partial, vec![chunk(10), chunk(11), chunk(12)]);
        let mut told = Vec::new();
        let mut progress = |news| told.push(news);
        partial.write_chunk(chunk(10), &bytes[0]).unwrap();
        receiver.tell_found(&mut progress);
        partial.write_chunk(chunk(11), &bytes[1]).unwrap();
        receiver.tell_found(&mut progress);
        // Another source of this fetch comes too late with the first, and is the first with the last.
        sender.write(&partial, chunk(10), &bytes[0], Some(MEMBER)).unwrap();
        sender.write(&partial, chunk(12), &bytes[2], None).unwrap();
        receiver.until(std::future::ready(()), &mut progress).await;
        let found = |at| FetchProgress::Found(len(at));
        assert_eq!(told, [found(0), FetchProgress::Stored(len(2)), found(1)]);
    }
}
