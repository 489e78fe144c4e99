//! Chunks of a model that was known before it was fetched: from members that have them, a few at once, else
//! from its hub, else through a member that reaches the hub.
//!
//! Nodes that fetch at the same time look at each other's lists between two batches: what a member is
//! fetching is left to it and taken from it afterwards, so that a byte leaves the hub about once. Only what
//! really is under way is on such a list, so no two nodes wait for each other; and a list that does not
//! shrink is not waited for long. A chunk that a member refuses because its own is damaged is left to it for
//! a moment, too: it fetches that again, and is asked once more.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use exo_hub::HubError;
use exo_machine::Holder;
use exo_store::{ChunkRef, PartialModel};
use exo_transport::Endpoint;
use exo_types::NodeId;
use futures_util::StreamExt;

use crate::bulk::{ChunkShare, RefusedChunks, SOURCES_MAX, SharedChunks};
use crate::bulk::{ChunkSource, FetchError, FetchProgress, Fetcher, PeerChunks};
use crate::hub_bytes::{HubBytes, HubBytesError};
use crate::library_error::LibraryError;
use exo_accelerators::chain;

/// Chunks that are asked of the hub between two looks at what members have.
const BATCH_CHUNKS: usize = 64;
/// For what a member is fetching to come nearer: its own client notices a stall within five seconds.
const LEFT_TO_OTHERS_MAX: Duration = Duration::from_secs(20);
/// After a member has failed, until it is asked again.
const PEER_AGAIN: Duration = Duration::from_secs(20);
/// Between two looks while the hub asks to wait.
const WAIT_LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Hears from whom how many bytes came, and how long that took.
pub type Received<'a> = &'a (dyn Fn(NodeId, (u64, Duration)) + Send + Sync);

/// Where chunks of members go, and how these are reached.
#[derive(Clone, Copy)]
struct Destination<'a> {
    endpoint: &'a Endpoint,
    partial: &'a Arc<PartialModel>,
    received: Received<'a>,
}

pub struct Obtaining<'a> {
    destination: Destination<'a>,
    hub: &'a Arc<HubBytes>,
    partial: &'a Arc<PartialModel>,
    peers: Vec<Peer<'a>>,
}

/// What is left to members that are fetching it, and for how long.
#[derive(Default)]
struct LeftToOthers {
    /// How many chunks were missing, and since when no more of them came.
    since: Option<(usize, Instant)>,
    /// Chunks that did not come in that time: they are left to no one any more.
    waited_out: BTreeSet<ChunkRef>,
}

impl LeftToOthers {
    /// What is to be asked of the hub now; nothing while the rest is left to others.
    fn batch(
        &mut self,
        now: Instant,
        missing: &[ChunkRef],
        is_left: impl Fn(&ChunkRef) -> bool,
    ) -> Vec<ChunkRef> {
        let is_late = |(count, since): (usize, Instant)| {
            count == missing.len() && now.duration_since(since) > LEFT_TO_OTHERS_MAX
        };
        if self.since.is_some_and(is_late) {
            self.waited_out.extend(missing.iter().filter(|chunk| is_left(chunk)));
        }
        let is_ours = |chunk: &&ChunkRef| !is_left(chunk) || self.waited_out.contains(*chunk);
        let batch: Vec<ChunkRef> = missing.iter().filter(is_ours).take(BATCH_CHUNKS).copied().collect();
        self.since = match self.since {
            _ if !batch.is_empty() => None,
            Some((count, since)) if count == missing.len() => Some((count, since)),
            _ => Some((missing.len(), now)),
        };
        batch
    }
}

/// A member that knows the model.
struct Peer<'a> {
    holder: &'a Holder,
    fetcher: Option<Fetcher>,
    /// What it did not give of its disk since it was last given up.
    refused: RefusedChunks,
    /// Since when it is not asked, and why.
    failure: Option<(Instant, String)>,
}

impl Peer<'_> {
    /// What was wrong with a member may pass, as its line may.
    fn is_asked(&self, now: Instant) -> bool {
        self.failure.as_ref().is_none_or(|(at, _)| now.duration_since(*at) >= PEER_AGAIN)
    }

    /// Fetches what it has of its share; what it is fetching comes back. An error is one of this disk.
    async fn take(
        &mut self,
        to: Destination<'_>,
        share: ChunkShare<'_>,
        mut progress: &(dyn Fn(FetchProgress) + Send + Sync),
    ) -> Result<BTreeSet<ChunkRef>, FetchError> {
        match self.take_share(to, &share, &mut progress).await {
            Err(error @ FetchError::Disk { .. }) => Err(error),
            Err(error) => {
                self.give_up(&error);
                Ok(BTreeSet::new())
            }
            taken => taken,
        }
    }

    async fn take_share(
        &mut self,
        to: Destination<'_>,
        share: &ChunkShare<'_>,
        progress: &mut (dyn FnMut(FetchProgress) + Send),
    ) -> Result<BTreeSet<ChunkRef>, FetchError> {
        if !self.is_asked(Instant::now()) {
            return Ok(BTreeSet::new());
        }
        let listed = tokio::select! {
            biased;
            // The others gave everything. Its list may still come over this connection.
            () = share.over() => {
                self.fetcher = None;
                return Ok(BTreeSet::new());
            }
            listed = self.list(to) => listed,
        };
        let PeerChunks { held, coming } = match listed {
            // It may be told of the model in a moment.
            Err(FetchError::Refused { .. }) => return Ok(BTreeSet::new()),
            answer => answer?,
        };
        self.refused.note_list(Instant::now(), |chunk| held.has(chunk));
        if share.offer(|chunk| held.has(chunk) && !self.refused.has(chunk)) {
            self.fetch(to, share, ChunkSource::Disk, progress).await?;
        }
        Ok(coming)
    }

    /// What a member has. A connection that it closed while the hub was slow is opened once more.
    async fn list(&mut self, to: Destination<'_>) -> Result<PeerChunks, FetchError> {
        let was_open = self.fetcher.is_some();
        let manifest = to.partial.manifest().clone();
        match self.fetcher(to).await?.held(&manifest).await {
            Err(FetchError::Broken { .. }) if was_open => {
                self.fetcher = None;
                self.fetcher(to).await?.held(&manifest).await
            }
            answer => answer,
        }
    }

    async fn fetch(
        &mut self,
        to: Destination<'_>,
        share: &ChunkShare<'_>,
        from: ChunkSource,
        progress: &mut (dyn FnMut(FetchProgress) + Send),
    ) -> Result<(), FetchError> {
        let node = self.holder.node;
        let mut refused = std::mem::take(&mut self.refused);
        let fetcher = self.fetcher(to).await?;
        let fetched = fetcher.chunks(to.partial, share, from, &mut refused, progress).await;
        // What a member fetches from the hub meanwhile says nothing of the path from it, nor does what shares
        // this node's line with others.
        if from == ChunkSource::Disk && share.is_alone() {
            (to.received)(node, fetcher.received());
        }
        self.refused = refused;
        fetched
    }

    async fn fetcher(&mut self, to: Destination<'_>) -> Result<&mut Fetcher, FetchError> {
        match &mut self.fetcher {
            Some(fetcher) => Ok(fetcher),
            empty => {
                let dialled = Fetcher::dial(to.endpoint, self.holder.node, &self.holder.addresses).await?;
                Ok(empty.insert(dialled))
            }
        }
    }

    fn give_up(&mut self, error: &FetchError) {
        error.report();
        self.fetcher = None;
        self.refused = RefusedChunks::default();
        self.failure = Some((Instant::now(), chain(error)));
    }
}

impl<'a> Obtaining<'a> {
    /// From these members and the hub.
    pub fn new(
        endpoint: &'a Endpoint,
        hub: &'a Arc<HubBytes>,
        partial: &'a Arc<PartialModel>,
        holders: &'a [Holder],
        received: Received<'a>,
    ) -> Self {
        let peer = |holder| Peer { holder, fetcher: None, refused: RefusedChunks::default(), failure: None };
        let destination = Destination { endpoint, partial, received };
        Self { destination, hub, partial, peers: holders.iter().map(peer).collect() }
    }

    /// Has these chunks on disk, or says why not, of each source.
    pub async fn run(
        mut self,
        chunks: &[ChunkRef],
        progress: &mut (dyn FnMut(FetchProgress) + Send),
    ) -> Result<(), LibraryError> {
        let mut others = LeftToOthers::default();
        let id = self.partial.id();
        loop {
            let coming = self.take_from_peers(chunks, progress).await?;
            let missing = self.missing(chunks);
            if missing.is_empty() {
                return Ok(());
            }
            let batch = self.batch(&mut others, &coming, &missing);
            if batch.is_empty() {
                tokio::time::sleep(LOOK_EVERY).await;
                continue;
            }
            let mut failure = String::new();
            if self.hub.is_to_be_asked(id, Instant::now()) || !self.has_peers() {
                match self.hub.fetch(self.partial, &batch, progress).await {
                    Ok(()) => continue,
                    // Members could not help this disk.
                    Err(error @ HubBytesError::Hub(HubError::Disk { .. })) => {
                        let model = self.partial.manifest().name.clone();
                        return Err(LibraryError::NotFetched { model, reasons: chain(&error) });
                    }
                    Err(error) => failure = chain(&error),
                }
            }
            let Some(of_peers) = self.through_peers(&batch, progress).await? else { continue };
            // Who waits as the hub asks goes on looking at what members have.
            if let Some(left) = self.hub.hub_wait(Instant::now()) {
                progress(FetchProgress::HubWaits(left));
                tokio::time::sleep(left.min(WAIT_LOOK_EVERY)).await;
                continue;
            }
            if failure.is_empty() {
                failure = self.hub.last_failure(id).unwrap_or_default();
            }
            let model = self.partial.manifest().name.clone();
            return Err(LibraryError::NotFetched { model, reasons: format!("{failure}{of_peers}") });
        }
    }

    /// What is to be asked of the hub now: not what members are fetching, or may be about to fetch again.
    fn batch(
        &self,
        others: &mut LeftToOthers,
        coming: &BTreeSet<ChunkRef>,
        missing: &[ChunkRef],
    ) -> Vec<ChunkRef> {
        let now = Instant::now();
        let own: BTreeSet<ChunkRef> = self.hub.coming(self.partial.id()).into_iter().collect();
        let is_left = |chunk: &ChunkRef| {
            let may_come = |peer: &Peer<'_>| peer.is_asked(now) && peer.refused.may_come(now, *chunk);
            coming.contains(chunk) || own.contains(chunk) || self.peers.iter().any(may_come)
        };
        others.batch(now, missing, is_left)
    }

    /// Whether a member may still be asked to fetch for this node.
    fn has_peers(&self) -> bool {
        let now = Instant::now();
        self.peers.iter().any(|peer| peer.is_asked(now))
    }

    fn missing(&self, chunks: &[ChunkRef]) -> Vec<ChunkRef> {
        chunks.iter().copied().filter(|chunk| !self.partial.has_chunk(*chunk)).collect()
    }

    /// Fetches what members have, of a few at once, the nearest first; what they are fetching comes back.
    /// What one of them did not give, the others are asked for.
    async fn take_from_peers(
        &mut self,
        chunks: &[ChunkRef],
        progress: &mut (dyn FnMut(FetchProgress) + Send),
    ) -> Result<BTreeSet<ChunkRef>, LibraryError> {
        let to = self.destination;
        let progress = Mutex::new(progress);
        let tell = |news: FetchProgress| {
            let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
            (*progress)(news);
        };
        loop {
            let missing = self.missing(chunks);
            if missing.is_empty() {
                return Ok(BTreeSet::new());
            }
            let shared = SharedChunks::new(&missing);
            let asks: Vec<_> =
                self.peers.iter_mut().map(|peer| peer.take(to, shared.share(), &tell)).collect();
            let answers: Vec<_> =
                futures_util::stream::iter(asks).buffer_unordered(SOURCES_MAX).collect().await;
            let mut coming = BTreeSet::new();
            for answer in answers {
                coming.extend(answer.map_err(|error| LibraryError::Kept(Box::new(error)))?);
            }
            if !shared.came_back() {
                return Ok(coming);
            }
        }
    }

    /// Has members fetch from the hub what this node cannot. Without one that does: what each said.
    async fn through_peers(
        &mut self,
        chunks: &[ChunkRef],
        progress: &mut (dyn FnMut(FetchProgress) + Send),
    ) -> Result<Option<String>, LibraryError> {
        for index in 0..self.peers.len() {
            let missing = self.missing(chunks);
            if missing.is_empty() {
                return Ok(None);
            }
            let peer = &mut self.peers[index];
            if !peer.is_asked(Instant::now()) {
                continue;
            }
            peer.fetcher = None; // it has hung up if the hub was tried for a minute
            let shared = SharedChunks::new(&missing);
            match peer.fetch(self.destination, &shared.whole(), ChunkSource::Hub, progress).await {
                Ok(()) => return Ok(None),
                Err(error @ FetchError::Disk { .. }) => return Err(LibraryError::Kept(Box::new(error))),
                Err(error) => peer.give_up(&error),
            }
        }
        let failures = self.peers.iter().filter_map(|peer| peer.failure.as_ref());
        Ok(Some(failures.map(|(_, failure)| format!("; {failure}")).collect()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use exo_store::Store;

    use super::*;
    use crate::bulk::testing::{FakeAnswer, FakeMember};
    use crate::bulk::{Ask, KIND_BYTES, KIND_REFUSED};
    use crate::host::SystemHost;

    /// All that a holder has in the end, and what it has after it has found that chunk damaged.
    fn lists(
        folder: &std::path::Path,
        from: &Store,
        id: exo_types::ModelId,
        damaged: ChunkRef,
    ) -> [Vec<u8>; 2] {
        let (holder, _) = Store::open(folder).unwrap();
        let partial = holder.prepare(&from.manifest(id).unwrap()).unwrap();
        let write = |chunk| partial.write_chunk(chunk, &from.read_chunk(id, chunk).unwrap()).unwrap();
        let all = (0..partial.manifest().chunk_count(0)).map(|index| ChunkRef { file: 0, index });
        all.filter(|chunk| *chunk != damaged).for_each(write);
        let without = partial.held();
        write(damaged);
        [partial.held(), without]
    }

    /// The member finds the chunk damaged when it is asked, fetches it, and has it again after two looks. No
    /// hub is there: whoever asks one gets no chunk.
    #[tokio::test]
    async fn a_chunk_that_a_member_refused_and_repaired_is_taken_from_it_in_the_same_fetch() {
        let folder = tempfile::tempdir().unwrap();
        let (from, _) = Store::open(&folder.path().join("from")).unwrap();
        let (to, _) = Store::open(&folder.path().join("to")).unwrap();
        let id = from.add_builtin("demo.gguf", crate::DEMO_MODEL).unwrap().id;
        let partial = to.prepare(&from.manifest(id).unwrap()).unwrap();
        let damaged = ChunkRef { file: 0, index: 10 };
        let [whole, without] = lists(&folder.path().join("holder"), &from, id, damaged);
        let counts = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false)));
        let counted = counts.clone();
        let member = FakeMember::start(move |ask| {
            let (asked, looks, is_repaired) = &*counted;
            match ask {
                Ask::Held(_) if asked.load(Ordering::SeqCst) > 0 && !is_repaired.load(Ordering::SeqCst) => {
                    let is_coming = looks.fetch_add(1, Ordering::SeqCst) > 0;
                    let coming = if is_coming { vec![damaged] } else { Vec::new() };
                    is_repaired.store(is_coming, Ordering::SeqCst);
                    (KIND_BYTES, postcard::to_allocvec(&(&without, coming)).unwrap())
                }
                Ask::Held(_) => {
                    (KIND_BYTES, postcard::to_allocvec(&(&whole, Vec::<ChunkRef>::new())).unwrap())
                }
                Ask::Chunk { model, chunk } => {
                    let is_damaged = chunk == damaged && !is_repaired.load(Ordering::SeqCst);
                    asked.fetch_add(usize::from(chunk == damaged), Ordering::SeqCst);
                    match is_damaged {
                        true => (KIND_REFUSED, b"damaged".to_vec()),
                        false => (KIND_BYTES, from.read_chunk(model, chunk).unwrap()),
                    }
                }
                _ => (KIND_REFUSED, b"no hub here".to_vec()),
            }
        });
        let member = member.await;
        let hub = Arc::new(HubBytes::new(Arc::new(SystemHost), folder.path().join("node")));
        let holders = [Holder { node: member.node, addresses: vec![member.address] }];
        let obtaining = Obtaining::new(&member.own, &hub, &partial, &holders, &|_, _| {});
        let all: Vec<ChunkRef> =
            (0..partial.manifest().chunk_count(0)).map(|index| ChunkRef { file: 0, index }).collect();
        obtaining.run(&all, &mut |_| {}).await.unwrap();
        assert!(all.iter().all(|chunk| partial.has_chunk(*chunk)));
        assert_eq!(counts.0.load(Ordering::SeqCst), 2, "it is asked once more");
    }

    #[tokio::test]
    async fn two_members_that_have_the_chunks_share_them() {
        let folder = tempfile::tempdir().unwrap();
        let (from, _) = Store::open(&folder.path().join("from")).unwrap();
        let (to, _) = Store::open(&folder.path().join("to")).unwrap();
        let id = from.add_builtin("demo.gguf", crate::DEMO_MODEL).unwrap().id;
        let partial = to.prepare(&from.manifest(id).unwrap()).unwrap();
        let [whole, _] = lists(&folder.path().join("holder"), &from, id, ChunkRef { file: 0, index: 10 });
        let (from, asked) = (Arc::new(from), Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]));
        let answer = |number: usize| -> FakeAnswer {
            let (from, asked, whole) = (from.clone(), asked.clone(), whole.clone());
            Box::new(move |ask| match ask {
                Ask::Held(_) => {
                    (KIND_BYTES, postcard::to_allocvec(&(&whole, Vec::<ChunkRef>::new())).unwrap())
                }
                Ask::Chunk { model, chunk } => {
                    asked[number].fetch_add(1, Ordering::SeqCst);
                    (KIND_BYTES, from.read_chunk(model, chunk).unwrap())
                }
                _ => (KIND_REFUSED, b"no hub here".to_vec()),
            })
        };
        let answers = vec![answer(0), answer(1)];
        let members = FakeMember::start_all(answers, Duration::from_millis(5)).await;
        let hub = Arc::new(HubBytes::new(Arc::new(SystemHost), folder.path().join("node")));
        let holders: Vec<Holder> =
            members.iter().map(|m| Holder { node: m.node, addresses: vec![m.address] }).collect();
        let obtaining = Obtaining::new(&members[0].own, &hub, &partial, &holders, &|_, _| {});
        let all: Vec<ChunkRef> =
            (0..partial.manifest().chunk_count(0)).map(|index| ChunkRef { file: 0, index }).collect();
        obtaining.run(&all, &mut |_| {}).await.unwrap();
        assert!(all.iter().all(|chunk| partial.has_chunk(*chunk)));
        let asked = [0, 1].map(|number: usize| asked[number].load(Ordering::SeqCst));
        assert!(asked.iter().all(|count| *count > 0), "{asked:?}");
        assert_eq!(asked.iter().sum::<usize>(), all.len());
    }

    #[test]
    fn what_others_do_not_bring_in_time_is_fetched_and_nothing_else_of_what_they_fetch() {
        let chunk = |index| ChunkRef { file: 0, index };
        let all: Vec<ChunkRef> = (0..10).map(chunk).collect();
        let (mut others, start) = (LeftToOthers::default(), Instant::now());
        let later = start + LEFT_TO_OTHERS_MAX + Duration::from_secs(1);
        assert_eq!(others.batch(start, &all[..4], |c| c.index < 3), [chunk(3)]);
        // All that is missing is being fetched by others, who stand still.
        let left = |c: &ChunkRef| c.index < 3;
        assert!(others.batch(start, &all[..3], left).is_empty());
        assert!(others.batch(start + LEFT_TO_OTHERS_MAX / 2, &all[..3], left).is_empty());
        assert_eq!(others.batch(later, &all[..3], left), all[..3]);
        // What they fetch next is left to them again.
        let next = |c: &ChunkRef| c.index < 8;
        assert_eq!(others.batch(later, &all[2..], next), [chunk(2), chunk(8), chunk(9)]);
        assert!(others.batch(later, &all[3..8], next).is_empty());
        // And each one that comes puts the deadline off.
        assert!(others.batch(later + LEFT_TO_OTHERS_MAX, &all[4..8], next).is_empty());
        assert!(others.batch(later + 2 * LEFT_TO_OTHERS_MAX, &all[4..8], next).is_empty());
    }
}
