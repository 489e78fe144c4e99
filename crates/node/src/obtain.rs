//! Chunks of a model that was known before it was fetched: from members that have them, a few at once, and
//! meanwhile from its hub what no member has; where the hub gives nothing, through a member that reaches it.
//!
//! Nodes that fetch at the same time look at each other's lists all the while: what a member is fetching is
//! left to it and taken from it afterwards, and of what several want each asks the hub for [another
//! part](left_to_others), so that a byte leaves the hub about once. A member that pulls a file whole gives
//! what it has of it in the same way. Only what really is under way, or about to be, is on such a list, so no
//! two nodes wait for each other; and a list that does not shrink is not waited for long. A chunk that a
//! member refuses because its own is damaged is left to it for a moment, too: it fetches that again, and is
//! asked once more.

mod peers;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use exo_hub::{BLOCK_BYTES, HubError, SourcePace, left_to_others};
use exo_machine::Holder;
use exo_stdx::Mutex;
use exo_store::{ChunkRef, HubFile, Manifest, PartialModel};
use exo_transport::Endpoint;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;

pub use self::peers::Received;
use self::peers::{Destination, FileSharer, Lister, Peer, PeerKind};
use crate::bulk::{ChunkShare, FetchError, FetchProgress, Givers, SharedChunks};
use crate::bulk::{ProgressSender, progress_channel};
use crate::hub_bytes::{HubBytes, HubBytesError};
use crate::library_error::LibraryError;
use exo_accelerators::chain;

/// Chunks that are asked of the hub between two looks at what members have.
const BATCH_CHUNKS: usize = 64;
/// The same at first: of two that begin at once, the one that looked first has not seen the other.
const FIRST_BATCH_CHUNKS: usize = 8;
/// Rounds at once in which chunks are shared out among members; and where all that give in them are slow.
const ROUNDS_MAX: usize = 2;
const SLOW_ROUNDS_MAX: usize = 6;
/// Chunks that the hub is asked for at once because members give them too slowly.
const HELPED_CHUNKS: usize = 8;
/// As if the hub took so long for a chunk at least: then five seconds of a member's silence are too long, and
/// not less than it may wait for room to answer.
const HELPED_EACH_MIN: Duration = Duration::from_millis(1500);
/// For what a member is fetching to come nearer: its own client notices a stall within five seconds.
const LEFT_TO_OTHERS_MAX: Duration = Duration::from_secs(20);
/// Between two looks while the hub asks to wait, or only members give.
const WAIT_LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Between two looks whether each member has said what it has, when a fetch begins.
const FIRST_LOOK_EVERY: Duration = Duration::from_millis(20);
/// For members to say what they have before the hub is asked for the first time: one that is gone may take
/// longer to be found out than that.
const FIRST_LOOK_MAX: Duration = Duration::from_secs(3);

pub struct Obtaining<'a> {
    destination: Destination<'a>,
    hub: &'a Arc<HubBytes>,
    partial: &'a Arc<PartialModel>,
    /// Those that know the model, the nearest first, and then those that may pull a file of it.
    peers: Vec<Peer<'a>>,
    /// How often chunks were shared out among members.
    rounds_begun: AtomicU64,
    /// How often a batch of the hub began or ended: odd while one is under way.
    hub_turns: AtomicU64,
    /// Held while a batch is under way.
    hub_turn: tokio::sync::Mutex<()>,
    /// How fast the chunks of batches come.
    hub_pace: Mutex<SourcePace>,
}

/// A batch of the hub is under way as long as this is there.
struct HubTurn<'a> {
    turns: &'a AtomicU64,
    _turn: tokio::sync::MutexGuard<'a, ()>,
}

impl Drop for HubTurn<'_> {
    fn drop(&mut self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }
}

/// What is left to members that are fetching it, and for how long.
#[derive(Default)]
struct LeftToOthers {
    /// How few chunks were missing, and since when they are no fewer.
    since: Option<(usize, Instant)>,
    /// Chunks that did not come in that time: they are left to no one any more.
    waited_out: BTreeSet<ChunkRef>,
    /// Whether the hub was asked for something.
    has_begun: bool,
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
            missing.len() >= count && now.duration_since(since) > LEFT_TO_OTHERS_MAX
        };
        if self.since.is_some_and(is_late) {
            self.waited_out.extend(missing.iter().filter(|chunk| is_left(chunk)));
        }
        let is_ours = |chunk: &&ChunkRef| !is_left(chunk) || self.waited_out.contains(*chunk);
        let chunks_max = if self.has_begun { BATCH_CHUNKS } else { FIRST_BATCH_CHUNKS };
        let batch: Vec<ChunkRef> = missing.iter().filter(is_ours).take(chunks_max).copied().collect();
        self.has_begun |= !batch.is_empty();
        self.since = match self.since {
            _ if !batch.is_empty() => None,
            // Who lists a chunk, and then does not, puts nothing off.
            Some((count, since)) if missing.len() >= count => Some((count, since)),
            _ => Some((missing.len(), now)),
        };
        batch
    }
}

impl<'a> Obtaining<'a> {
    /// From these members that know the model, from any that pull a file of it, and from the hub.
    pub fn new(
        endpoint: &'a Endpoint,
        hub: &'a Arc<HubBytes>,
        partial: &'a Arc<PartialModel>,
        (holders, members): (&'a [Holder], &'a [Holder]),
        received: Received<'a>,
    ) -> Self {
        let layers = holders.iter().map(|holder| Peer::new(holder, PeerKind::Layers, &Lister::default()));
        let pulled = pulled_kinds(partial.manifest());
        let of_pulls = members.iter().flat_map(|member| {
            let lister = Lister::default();
            pulled.iter().map(move |kind| Peer::new(member, *kind, &lister))
        });
        Self {
            destination: Destination { endpoint, partial, received },
            hub,
            partial,
            peers: layers.chain(of_pulls).collect(),
            rounds_begun: AtomicU64::new(0),
            hub_turns: AtomicU64::new(0),
            hub_turn: tokio::sync::Mutex::default(),
            hub_pace: Mutex::new(SourcePace::new(Instant::now())),
        }
    }

    /// Has these chunks on disk, or says why not, of each source.
    pub async fn run(
        mut self,
        chunks: &[ChunkRef],
        progress: &mut (dyn FnMut(FetchProgress) + Send),
    ) -> Result<(), LibraryError> {
        let missing = self.missing(chunks);
        if missing.is_empty() {
            return Ok(());
        }
        self.peers.retain(|peer| match peer.kind {
            PeerKind::Layers => true,
            PeerKind::Pulled { file, .. } => chunks.iter().any(|chunk| chunk.file == file),
        });
        // Before anyone is looked at: of two that begin at once, the second one sees the first.
        let _wanted = self.hub.want(self.partial.id(), chunks);
        let (sender, receiver) = progress_channel(self.partial, missing);
        let fetched = async {
            let fetched = async {
                tokio::try_join!(self.fetch_from_peers(chunks, &sender), self.fetch_from_hub(chunks, &sender))
                    .map(drop)
            };
            let looks = async {
                join_all(self.peers.iter().map(|peer| peer.look_on(self.destination))).await;
                std::future::pending().await // none ends, but there may be none
            };
            tokio::select! {
                fetched = fetched => fetched,
                never = looks => never,
            }
        };
        let mut is_given = false;
        let mut note = |news: FetchProgress| {
            match news {
                FetchProgress::From(..) => is_given = true,
                FetchProgress::Stored(_) if !std::mem::take(&mut is_given) => {
                    self.hub_pace.lock().answer(Instant::now());
                }
                _ => {}
            }
            progress(news);
        };
        receiver.until(fetched, &mut note).await
    }

    /// Fetches what members have until all chunks are here. What they have got while a round is under way
    /// begins another one: a member that is slow holds up nothing that others have.
    async fn fetch_from_peers(
        &self,
        chunks: &[ChunkRef],
        progress: &ProgressSender,
    ) -> Result<(), LibraryError> {
        let (mut rounds, mut due) = (FuturesUnordered::new(), Instant::now());
        let (mut in_rounds, mut under_way) = (BTreeSet::<ChunkRef>::new(), Vec::<Weak<SharedChunks>>::new());
        loop {
            let missing = self.missing(chunks);
            if missing.is_empty() {
                return Ok(());
            }
            under_way.retain(|shared| shared.strong_count() > 0);
            if rounds.len() < rounds_max(&under_way) && Instant::now() >= due {
                let (mut given, left) = (self.held_by_peers(&missing), self.left_to_hub());
                given.retain(|chunk| !left.contains(chunk) && !in_rounds.contains(chunk));
                if !given.is_empty() {
                    in_rounds.extend(given.iter().copied());
                    let (given, is_alone) = (given.into_iter().collect::<Vec<_>>(), rounds.is_empty());
                    let shared = Arc::new(SharedChunks::new(&given));
                    under_way.push(Arc::downgrade(&shared));
                    rounds.push(self.take_from_peers(given, shared, is_alone, progress));
                }
            }
            let look_after = match (rounds.is_empty(), self.has_looked()) {
                (false, _) => WAIT_LOOK_EVERY,
                (true, true) => LOOK_EVERY,
                (true, false) => FIRST_LOOK_EVERY,
            };
            tokio::select! {
                Some(given) = rounds.next() => {
                    let given: Vec<ChunkRef> = given?;
                    if !given.iter().any(|chunk| self.partial.has_chunk(*chunk)) {
                        due = Instant::now() + LOOK_EVERY;
                    }
                    given.iter().for_each(|chunk| _ = in_rounds.remove(chunk));
                }
                () = tokio::time::sleep(look_after) => {}
            }
        }
    }

    /// Whether each member has said what it has, or failed to.
    fn has_looked(&self) -> bool {
        self.peers.iter().all(|peer| peer.state().was_looked_at)
    }

    /// Takes chunks from a few members at once. What one of them does not give, the others are asked for, and
    /// so are those that have it by then.
    async fn take_from_peers(
        &self,
        given: Vec<ChunkRef>,
        shared: Arc<SharedChunks>,
        is_alone: bool,
        progress: &ProgressSender,
    ) -> Result<Vec<ChunkRef>, LibraryError> {
        let round = self.rounds_begun.fetch_add(1, Ordering::Relaxed) + 1;
        let of_hub = shared.whole();
        let turns = self.hub_turns.load(Ordering::Relaxed);
        let is_quiet = || {
            let is_last = self.rounds_begun.load(Ordering::Relaxed) == round;
            let is_hub_quiet = turns.is_multiple_of(2) && self.hub_turns.load(Ordering::Relaxed) == turns;
            is_alone && is_last && is_hub_quiet
        };
        tokio::select! {
            taken = self.take_round(&shared, &is_quiet, progress) => taken?,
            error = self.help_from_hub(&of_hub, progress) => return Err(error),
        }
        Ok(given)
    }

    /// Has members give their shares: those first that gave fastest, and in front of them the nearest that
    /// gave nothing yet. One that is done, or had nothing, begins again when it is needed.
    async fn take_round(
        &self,
        shared: &SharedChunks,
        is_quiet: &(dyn Fn() -> bool + Send + Sync),
        progress: &ProgressSender,
    ) -> Result<(), LibraryError> {
        let mut peers: Vec<&Peer<'a>> = self.peers.iter().collect();
        peers.sort_by_cached_key(|peer| Reverse(peer.state().bytes_per_s.unwrap_or(u64::MAX)));
        let (to, coming) = (self.destination, || self.left_to_hub());
        let take = |at: usize, each: Option<Duration>| {
            let (peer, share) = (peers[at], shared.share_of(each));
            async move { (at, peer.take(to, share, coming, is_quiet, progress).await) }
        };
        let mut busy: BTreeSet<usize> = (0..peers.len()).collect();
        let mut givers = Givers::new(shared, busy.iter().map(|at| take(*at, None)).collect());
        let mut looked = Instant::now();
        loop {
            tokio::select! {
                taken = givers.next() => {
                    let Some((at, taken)) = taken else { return Ok(()) };
                    taken.map_err(|error| LibraryError::Kept(Box::new(error)))?;
                    busy.remove(&at);
                }
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            if looked.elapsed() < LOOK_EVERY {
                continue;
            }
            looked = Instant::now();
            let left = self.left_to_hub();
            for (at, peer) in peers.iter().enumerate() {
                let is_free = !busy.contains(&at) && givers.has_room();
                if is_free && peer.is_needed(to, shared, &left, givers.is_idle()) {
                    givers.begin(take(at, peer.each(to)));
                    busy.insert(at);
                }
            }
        }
    }

    /// Has the hub bring what members give too slowly, whenever it brings nothing else. Ends with an error of
    /// this disk alone.
    async fn help_from_hub(&self, share: &ChunkShare<'_>, progress: &ProgressSender) -> LibraryError {
        let id = self.partial.id();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let now = Instant::now();
            let is_idle = self.hub_turns.load(Ordering::Relaxed).is_multiple_of(2);
            if !is_idle || self.hub.hub_wait(now).is_some() || !self.hub.is_to_be_asked(id, now) {
                continue;
            }
            let each = self.hub_pace.lock().each().map(|each| each.max(HELPED_EACH_MIN));
            let overdue = share.take_overdue(now, each, HELPED_CHUNKS);
            if overdue.is_empty() {
                continue;
            }
            tracing::debug!(
                chunks = overdue.len(),
                "members give chunks slowly: the hub is asked for them, too"
            );
            let fetched = self.fetch_batch(&overdue, progress).await;
            for chunk in overdue {
                share.answered(Instant::now(), chunk, self.partial.has_chunk(chunk));
            }
            if let Err(error @ HubBytesError::Hub(HubError::Disk { .. })) = fetched {
                return self.not_fetched(chain(&error));
            }
        }
    }

    /// Asks the hub for what no member has or brings, until all chunks are here.
    async fn fetch_from_hub(
        &self,
        chunks: &[ChunkRef],
        progress: &ProgressSender,
    ) -> Result<(), LibraryError> {
        let until = Instant::now() + FIRST_LOOK_MAX;
        while !self.has_looked() && Instant::now() < until {
            tokio::time::sleep(FIRST_LOOK_EVERY).await;
        }
        let (mut others, id) = (LeftToOthers::default(), self.partial.id());
        loop {
            let missing = self.missing(chunks);
            if missing.is_empty() {
                return Ok(());
            }
            let batch = self.batch(&mut others, &missing);
            if batch.is_empty() {
                tokio::time::sleep(LOOK_EVERY).await;
                continue;
            }
            let mut failure = String::new();
            let is_helped = self.may_relay() || !self.held_by_peers(&missing).is_empty();
            if self.hub.is_to_be_asked(id, Instant::now()) || !is_helped {
                match self.fetch_batch(&batch, progress).await {
                    Ok(()) => continue,
                    // Members could not help this disk.
                    Err(error @ HubBytesError::Hub(HubError::Disk { .. })) => {
                        return Err(self.not_fetched(chain(&error)));
                    }
                    Err(error) => failure = chain(&error),
                }
            }
            let Some(of_peers) = self.through_peers(&batch, progress).await? else { continue };
            // Who waits as the hub asks goes on looking at what members have.
            if let Some(left) = self.hub.hub_wait(Instant::now()) {
                progress.tell(FetchProgress::HubWaits(left));
                tokio::time::sleep(left.min(WAIT_LOOK_EVERY)).await;
                continue;
            }
            // What members have comes first, and is no loss when it is asked for again.
            if !self.held_by_peers(&self.missing(chunks)).is_empty() {
                tokio::time::sleep(WAIT_LOOK_EVERY).await;
                continue;
            }
            if failure.is_empty() {
                failure = self.hub.last_failure(id).unwrap_or_default();
            }
            return Err(self.not_fetched(format!("{failure}{of_peers}")));
        }
    }

    async fn fetch_batch(&self, batch: &[ChunkRef], progress: &ProgressSender) -> Result<(), HubBytesError> {
        let _turn = HubTurn { turns: &self.hub_turns, _turn: self.hub_turn.lock().await };
        self.hub_turns.fetch_add(1, Ordering::Relaxed);
        self.hub_pace.lock().ask(Instant::now());
        self.hub.fetch(self.partial, batch, progress).await
    }

    fn not_fetched(&self, reasons: String) -> LibraryError {
        LibraryError::NotFetched { model: self.partial.manifest().name.clone(), reasons }
    }

    /// What is to be asked of the hub now: not what members have, nor what they are fetching, or may be about
    /// to fetch again.
    fn batch(&self, others: &mut LeftToOthers, missing: &[ChunkRef]) -> Vec<ChunkRef> {
        let (now, held, coming) = (Instant::now(), self.held_by_peers(missing), self.coming_here());
        let missing: Vec<ChunkRef> = missing.iter().copied().filter(|chunk| !held.contains(chunk)).collect();
        let states: Vec<_> = self.peers.iter().map(|peer| (peer.holder.node, peer.state())).collect();
        let mut files: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for chunk in missing.iter().filter(|chunk| !coming.contains(*chunk)) {
            files.entry(chunk.file).or_default().push(chunk.index);
        }
        let mut left = coming;
        for (file, indices) in files {
            let asked = states.iter().filter(|(_, state)| state.is_asked(now));
            let sharers: Vec<FileSharer<'_>> =
                asked.map(|(node, state)| FileSharer { node: *node, file, state, now }).collect();
            let count = self.partial.manifest().chunk_count(file);
            let of_file = left_to_others(self.destination.endpoint.node().0, count, &indices, &sharers);
            left.extend(of_file.into_iter().map(|index| ChunkRef { file, index }));
        }
        others.batch(now, &missing, |chunk| left.contains(chunk))
    }

    /// Those of some chunks that a member gives.
    fn held_by_peers(&self, chunks: &[ChunkRef]) -> BTreeSet<ChunkRef> {
        let (now, mut held) = (Instant::now(), BTreeSet::new());
        for peer in &self.peers {
            let state = peer.state();
            if state.is_asked(now) {
                held.extend(chunks.iter().copied().filter(|chunk| state.has(*chunk)));
            }
        }
        held
    }

    /// What fetches of this node ask the hub for at the moment.
    fn coming_here(&self) -> BTreeSet<ChunkRef> {
        self.hub.coming(self.partial.id()).into_iter().collect()
    }

    /// The same, unless the hub trickles: then members are asked for them as well.
    fn left_to_hub(&self) -> BTreeSet<ChunkRef> {
        let is_under_way = !self.hub_turns.load(Ordering::Relaxed).is_multiple_of(2);
        let is_slow = is_under_way && self.hub_pace.lock().is_slow(Instant::now());
        if is_slow { BTreeSet::new() } else { self.coming_here() }
    }

    /// Whether a member may still be asked to fetch for this node.
    fn may_relay(&self) -> bool {
        let now = Instant::now();
        self.peers.iter().any(|peer| peer.may_relay(now))
    }

    fn missing(&self, chunks: &[ChunkRef]) -> Vec<ChunkRef> {
        chunks.iter().copied().filter(|chunk| !self.partial.has_chunk(*chunk)).collect()
    }

    /// Has members fetch from the hub what this node cannot. Without one that does: what each said.
    async fn through_peers(
        &self,
        chunks: &[ChunkRef],
        progress: &ProgressSender,
    ) -> Result<Option<String>, LibraryError> {
        for peer in &self.peers {
            let missing = self.missing(chunks);
            if missing.is_empty() {
                return Ok(None);
            }
            if !peer.may_relay(Instant::now()) {
                continue;
            }
            match peer.relay(self.destination, &missing, progress).await {
                Ok(()) => return Ok(None),
                Err(error @ FetchError::Disk { .. }) => return Err(LibraryError::Kept(Box::new(error))),
                Err(_) => {}
            }
        }
        let failures = self.peers.iter().filter_map(|peer| peer.state().failure());
        Ok(Some(failures.map(|failure| format!("; {failure}")).collect()))
    }
}

/// How many rounds there may be at once beside those under way.
fn rounds_max(under_way: &[Weak<SharedChunks>]) -> usize {
    let now = Instant::now();
    let is_slow = under_way.iter().filter_map(Weak::upgrade).all(|shared| shared.is_slow(now));
    if is_slow { SLOW_ROUNDS_MAX } else { ROUNDS_MAX }
}

/// The files of a model that members may pull whole, where a chunk is a block of such a pull and the hub says
/// which file it is.
fn pulled_kinds(manifest: &Manifest) -> Vec<PeerKind> {
    let Some(hub) = manifest.hub.as_ref().filter(|_| manifest.chunk_bytes as usize == BLOCK_BYTES) else {
        return Vec::new();
    };
    let kind = |(file, of_hub): (u32, &HubFile)| Some(PeerKind::Pulled { file, sha256: of_hub.sha256? });
    (0..).zip(&hub.files).filter_map(kind).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use exo_hub::{CHUNK_BYTES, Settings};
    use exo_mock_hub::{Faults, MockHub, Repository};
    use exo_store::{HubSource, Store};
    use exo_types::ModelId;

    use super::*;
    use crate::bulk::testing::{FakeAnswer, FakeMember, KIND_SILENT, all_chunks, chunks, demo_and_copy};
    use crate::bulk::{Ask, ChunkRun, KIND_BYTES, KIND_REFUSED};
    use crate::host::SystemHost;

    /// All that a holder has in the end, and what it has after it has found that chunk damaged.
    fn lists(folder: &Path, from: &Store, id: ModelId, damaged: ChunkRef) -> [Vec<u8>; 2] {
        let (holder, _) = Store::open(folder).unwrap();
        let partial = holder.prepare(&from.manifest(id).unwrap()).unwrap();
        let write = |chunk| partial.write_chunk(chunk, &from.read_chunk(id, chunk).unwrap()).unwrap();
        all_chunks(&partial).into_iter().filter(|chunk| *chunk != damaged).for_each(write);
        let without = partial.held();
        write(damaged);
        [partial.held(), without]
    }

    /// What a member says to have, and to be fetching.
    fn encoded(held: &[u8], coming: Vec<ChunkRef>) -> Vec<u8> {
        postcard::to_allocvec(&(held, coming, Vec::<ChunkRun>::new())).unwrap()
    }

    /// The member finds the chunk damaged when it is asked, fetches it, and has it again after two looks. No
    /// hub is there: whoever asks one gets no chunk.
    #[tokio::test]
    async fn a_chunk_that_a_member_refused_and_repaired_is_taken_from_it_in_the_same_fetch() {
        let folder = tempfile::tempdir().unwrap();
        let (from, partial) = demo_and_copy(folder.path());
        let damaged = ChunkRef { file: 0, index: 10 };
        let [whole, without] = lists(&folder.path().join("holder"), &from, partial.id(), damaged);
        let counts = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false)));
        let counted = counts.clone();
        let member = FakeMember::start(move |ask| {
            let (asked, looks, is_repaired) = &*counted;
            match ask {
                Ask::Held(_) if asked.load(Ordering::SeqCst) > 0 && !is_repaired.load(Ordering::SeqCst) => {
                    let is_coming = looks.fetch_add(1, Ordering::SeqCst) > 0;
                    let coming = if is_coming { vec![damaged] } else { Vec::new() };
                    is_repaired.store(is_coming, Ordering::SeqCst);
                    (KIND_BYTES, encoded(&without, coming))
                }
                Ask::Held(_) => (KIND_BYTES, encoded(&whole, Vec::new())),
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
        let holders = [member.holder()];
        let obtaining = Obtaining::new(&member.own, &hub, &partial, (&holders, &[]), &|_, _| {});
        let all = all_chunks(&partial);
        obtaining.run(&all, &mut |_| {}).await.unwrap();
        assert!(all.iter().all(|chunk| partial.has_chunk(*chunk)));
        assert_eq!(counts.0.load(Ordering::SeqCst), 2, "it is asked once more");
    }

    /// Fetches the demo model from members that take so long for a chunk: how many chunks each was asked for,
    /// how many there are, and how long that took.
    async fn asked_of<const N: usize>(takes_ms: [u64; N]) -> ([usize; N], usize, Duration) {
        let folder = tempfile::tempdir().unwrap();
        let (from, partial) = demo_and_copy(folder.path());
        let last = ChunkRef { file: 0, index: 10 };
        let [whole, _] = lists(&folder.path().join("holder"), &from, partial.id(), last);
        let (from, asked) = (Arc::new(from), Arc::new([const { AtomicUsize::new(0) }; N]));
        let answer = |number: usize| -> FakeAnswer {
            let (from, asked, whole) = (from.clone(), asked.clone(), whole.clone());
            Box::new(move |ask| match ask {
                Ask::Held(_) => (KIND_BYTES, encoded(&whole, Vec::new())),
                Ask::Chunk { model, chunk } => {
                    asked[number].fetch_add(1, Ordering::SeqCst);
                    (KIND_BYTES, from.read_chunk(model, chunk).unwrap())
                }
                _ => (KIND_REFUSED, b"no hub here".to_vec()),
            })
        };
        let answers = takes_ms.iter().enumerate();
        let answers = answers.map(|(at, ms)| (answer(at), Duration::from_millis(*ms))).collect();
        let members = FakeMember::start_each(answers).await;
        let hub = Arc::new(HubBytes::new(Arc::new(SystemHost), folder.path().join("node")));
        let holders: Vec<Holder> = members.iter().map(FakeMember::holder).collect();
        let obtaining = Obtaining::new(&members[0].own, &hub, &partial, (&holders, &[]), &|_, _| {});
        let all = all_chunks(&partial);
        let (begun, mut stored) = (Instant::now(), 0);
        let mut note = |news| stored += usize::from(matches!(news, FetchProgress::Stored(_)));
        obtaining.run(&all, &mut note).await.unwrap();
        assert!(all.iter().all(|chunk| partial.has_chunk(*chunk)));
        // Also one that was being written when its share ended, because another brought the last one.
        assert_eq!(stored, all.len());
        let asked = std::array::from_fn(|number| asked[number].load(Ordering::SeqCst));
        (asked, all.len(), begun.elapsed())
    }

    #[tokio::test]
    async fn two_members_that_have_the_chunks_share_them() {
        let (asked, chunks, _) = asked_of([5, 5]).await;
        assert!(asked.iter().all(|count| *count > 0), "{asked:?}");
        assert_eq!(asked.iter().sum::<usize>(), chunks);
    }

    #[tokio::test]
    async fn what_a_trickling_member_was_asked_for_at_the_end_another_member_brings() {
        let (asked, _, took) = asked_of([5, 1500]).await;
        assert!(asked[1] > 0, "{asked:?}");
        // Eight chunks are asked of a member ahead.
        assert!(took < Duration::from_secs(9), "{took:?}");
    }

    #[tokio::test]
    async fn a_fourth_member_gives_what_three_that_trickle_would_take_minutes_for() {
        let (asked, chunks, took) = asked_of([20_000, 20_000, 20_000, 5]).await;
        assert!(asked[3] == chunks && asked[..3].iter().all(|count| *count > 0), "{asked:?}");
        assert!(took < Duration::from_secs(15), "{took:?}");
    }

    /// What a member says to have of the demo model by then: these chunks, from a number of looks on.
    fn list_from(
        (folder, from, id): (&Path, &Store, ModelId),
        name: &str,
        (chunk, looks): (u32, usize),
    ) -> impl Fn() -> (u8, Vec<u8>) + Send + Sync + use<> {
        let (holder, _) = Store::open(&folder.join(name)).unwrap();
        let held = holder.prepare(&from.manifest(id).unwrap()).unwrap();
        let before = encoded(&held.held(), Vec::new());
        let chunk = ChunkRef { file: 0, index: chunk };
        held.write_chunk(chunk, &from.read_chunk(id, chunk).unwrap()).unwrap();
        let (after, looked) = (encoded(&held.held(), Vec::new()), AtomicUsize::new(0));
        move || {
            let has_it = looked.fetch_add(1, Ordering::SeqCst) >= looks;
            (KIND_BYTES, if has_it { after.clone() } else { before.clone() })
        }
    }

    /// Members with one chunk each, from so many looks on, that take so long for it: when the last of these
    /// chunks was here, and how many counted by then.
    async fn came_of(members: &[((u32, usize), u64)]) -> (Duration, usize) {
        let folder = tempfile::tempdir().unwrap();
        let (from, partial) = demo_and_copy(folder.path());
        let (from, id) = (Arc::new(from), partial.id());
        let answers = members.iter().enumerate().map(|(number, (has, takes_ms))| {
            let list = list_from((folder.path(), &from, id), &format!("member {number}"), *has);
            let from = from.clone();
            let answer: FakeAnswer = Box::new(move |ask| match ask {
                Ask::Held(_) => list(),
                Ask::Chunk { model, chunk } => (KIND_BYTES, from.read_chunk(model, chunk).unwrap()),
                _ => (KIND_REFUSED, b"no hub here".to_vec()),
            });
            (answer, Duration::from_millis(*takes_ms))
        });
        let fakes = FakeMember::start_each(answers.collect()).await;
        let holders: Vec<Holder> = fakes.iter().map(FakeMember::holder).collect();
        let hub = Arc::new(HubBytes::new(Arc::new(SystemHost), folder.path().join("node")));
        let wanted: BTreeSet<u32> = members.iter().map(|((chunk, _), _)| *chunk).collect();
        let all: Vec<ChunkRef> = wanted.iter().map(|index| ChunkRef { file: 0, index: *index }).collect();
        let (begun, mut stored) = (Instant::now(), 0);
        let mut note = |news| stored += usize::from(matches!(news, FetchProgress::Stored(_)));
        let obtaining = Obtaining::new(&fakes[0].own, &hub, &partial, (&holders, &[]), &|_, _| {});
        let last = all[all.len() - 1];
        let is_here = async {
            while !partial.has_chunk(last) {
                tokio::time::sleep(FIRST_LOOK_EVERY).await;
            }
        };
        tokio::select! {
            fetched = obtaining.run(&all, &mut note) => fetched.unwrap(),
            () = is_here => {}
        }
        (begun.elapsed(), stored)
    }

    #[tokio::test]
    async fn what_a_trickling_member_was_asked_for_one_that_has_it_by_now_brings() {
        // The first takes longer than the test may, and shorter than an answer may take.
        let (took, stored) = came_of(&[((0, 0), 25_000), ((0, 8), 5)]).await;
        assert!(Duration::from_secs(4) < took && took < Duration::from_secs(12), "{took:?}");
        assert!(stored <= 1, "it counts once: {stored}");
    }

    #[tokio::test]
    async fn what_a_member_has_does_not_wait_for_two_rounds_of_trickling_ones() {
        let (took, _) = came_of(&[((0, 0), 25_000), ((1, 4), 25_000), ((2, 12), 5)]).await;
        assert!(took < Duration::from_secs(15), "{took:?}");
    }

    #[tokio::test]
    async fn what_a_member_has_got_meanwhile_does_not_wait_for_a_slow_one() {
        let folder = tempfile::tempdir().unwrap();
        let (from, partial) = demo_and_copy(folder.path());
        let (id, all) = (partial.id(), all_chunks(&partial));
        let list = |name: &str, has: fn(u32) -> bool| {
            let (holder, _) = Store::open(&folder.path().join(name)).unwrap();
            let held = holder.prepare(&from.manifest(id).unwrap()).unwrap();
            for chunk in all.iter().filter(|chunk| has(chunk.index)) {
                held.write_chunk(*chunk, &from.read_chunk(id, *chunk).unwrap()).unwrap();
            }
            encoded(&held.held(), Vec::new())
        };
        let first = list("first", |index| index == 0);
        let [before, after] = [list("before", |index| index == 1), list("after", |index| index > 0)];
        let (from, looks) = (Arc::new(from), AtomicUsize::new(0));
        let give = |from: &Store, ask: Ask| match ask {
            Ask::Chunk { model, chunk } => (KIND_BYTES, from.read_chunk(model, chunk).unwrap()),
            _ => (KIND_REFUSED, b"no hub here".to_vec()),
        };
        let of_slow = from.clone();
        let slow: FakeAnswer = Box::new(move |ask| match ask {
            Ask::Held(_) => (KIND_BYTES, first.clone()),
            ask => give(&of_slow, ask),
        });
        let other: FakeAnswer = Box::new(move |ask| match ask {
            // It has got the rest when it is looked at for the third time.
            Ask::Held(_) if looks.fetch_add(1, Ordering::SeqCst) < 2 => (KIND_BYTES, before.clone()),
            Ask::Held(_) => (KIND_BYTES, after.clone()),
            ask => give(&from, ask),
        });
        let answers = vec![(slow, Duration::from_secs(4)), (other, Duration::from_millis(5))];
        let members = FakeMember::start_each(answers).await;
        let hub = Arc::new(HubBytes::new(Arc::new(SystemHost), folder.path().join("node")));
        let holders: Vec<Holder> = members.iter().map(FakeMember::holder).collect();
        let mut last = None;
        let mut note = |news| {
            if let FetchProgress::From(member, _) = news {
                last = Some(member);
            }
        };
        let obtaining = Obtaining::new(&members[0].own, &hub, &partial, (&holders, &[]), &|_, _| {});
        obtaining.run(&all, &mut note).await.unwrap();
        assert!(all.iter().all(|chunk| partial.has_chunk(*chunk)));
        assert_eq!(last, Some(members[0].node), "the slow one's chunk comes behind all others");
    }

    const NAME: &str = "tiny-Q8_0.gguf";
    const SMALL_CHUNK: usize = 64 << 10;

    /// The demo model as a hub has it, in chunks of that size; and the hub, which sends so much a second with
    /// each answer.
    fn of_hub(chunk_bytes: usize) -> (Manifest, MockHub) {
        let bytes = crate::DEMO_MODEL;
        let digest = exo_mock_hub::File::new(NAME, bytes.to_vec()).sha256;
        let pair = |at: usize| u8::from_str_radix(&digest[2 * at..2 * at + 2], 16).unwrap();
        let model = exo_formats::open_gguf_bytes(NAME, bytes.to_vec()).unwrap();
        let head = |chunk_bytes: usize| -> Vec<[u8; 32]> {
            let count = model.files[0].head_bytes.div_ceil(chunk_bytes as u64) as usize;
            bytes.chunks(chunk_bytes).take(count).map(|chunk| *blake3::hash(chunk).as_bytes()).collect()
        };
        let repository = Repository::new(&[(NAME, bytes.to_vec())]);
        let (repo, commit) = ("org/demo-GGUF".to_owned(), repository.commit.clone());
        let (label, licence) = ("Q8_0".to_owned(), "apache-2.0".to_owned());
        let files = vec![HubFile { path: NAME.to_owned(), sha256: Some(std::array::from_fn(pair)) }];
        let hub = HubSource { repo: repo.clone(), commit, label, licence, files };
        let mut manifest = Manifest::of_hub(&model, hub, vec![head(SMALL_CHUNK)]).unwrap();
        manifest.chunk_bytes = chunk_bytes as u32;
        manifest.files[0].chunks = head(chunk_bytes);
        let mock = MockHub::start().unwrap();
        mock.put(&repo, repository);
        mock.set_faults(Faults { bytes_per_s: Some(1 << 20), ..Faults::default() });
        (manifest, mock)
    }

    /// A node that asks this hub, with these chunks of the model.
    fn node(
        folder: &Path,
        manifest: &Manifest,
        mock: &MockHub,
        held: std::ops::Range<u32>,
    ) -> (Arc<PartialModel>, Arc<HubBytes>) {
        let (store, _) = Store::open(folder).unwrap();
        let partial = store.prepare(manifest).unwrap();
        for chunk in chunks(held) {
            partial.write_chunk(chunk, bytes_of(manifest, chunk)).unwrap();
        }
        let hub = Arc::new(HubBytes::new(Arc::new(SystemHost), folder.join("node")));
        hub.use_settings(partial.id(), Settings::of(&mock.endpoint()).unwrap());
        (partial, hub)
    }

    fn bytes_of(manifest: &Manifest, chunk: ChunkRef) -> &'static [u8] {
        let start = manifest.chunk_start(chunk) as usize;
        &crate::DEMO_MODEL[start..start + manifest.chunk_len(chunk).unwrap() as usize]
    }

    /// As that node answers members.
    fn answering((partial, hub): &(Arc<PartialModel>, Arc<HubBytes>)) -> FakeAnswer {
        let (partial, hub) = (partial.clone(), hub.clone());
        Box::new(move |ask| match ask {
            Ask::Held(model) => {
                let told = (partial.held(), hub.coming(model), hub.wanted(model, Instant::now()));
                (KIND_BYTES, postcard::to_allocvec(&told).unwrap())
            }
            Ask::Chunk { chunk, .. } => match partial.read_chunk(chunk) {
                Ok(bytes) => (KIND_BYTES, bytes),
                Err(error) => (KIND_REFUSED, error.to_string().into_bytes()),
            },
            _ => (KIND_REFUSED, b"not asked here".to_vec()),
        })
    }

    fn assert_here(partial: &PartialModel, wanted: &[ChunkRef]) {
        for chunk in wanted {
            assert!(partial.read_chunk(*chunk).unwrap() == bytes_of(partial.manifest(), *chunk), "{chunk}");
        }
    }

    #[tokio::test]
    async fn the_hub_gives_what_no_member_has_while_a_member_gives_the_rest() {
        let (manifest, mock) = of_hub(SMALL_CHUNK);
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (partial, hub) = node(folder.path(), &manifest, &mock, 0..0);
        let count = manifest.chunk_count(0);
        let answer = answering(&node(other.path(), &manifest, &mock, 0..count / 2));
        let member = FakeMember::start_all(vec![answer], Duration::from_millis(15)).await.remove(0);
        let holders = [member.holder()];
        let (mut is_of_member, mut came) = (false, Vec::new());
        let mut note = |news| match news {
            FetchProgress::From(..) => is_of_member = true,
            FetchProgress::Stored(_) => came.push(std::mem::take(&mut is_of_member)),
            _ => {}
        };
        let obtaining = Obtaining::new(&member.own, &hub, &partial, (&holders, &[]), &|_, _| {});
        obtaining.run(&chunks(0..count), &mut note).await.unwrap();
        assert_here(&partial, &chunks(0..count));
        assert_eq!(came.iter().filter(|of_member| **of_member).count() as u32, count / 2);
        let spans = [true, false].map(|of_member| {
            let first = came.iter().position(|one| *one == of_member).unwrap();
            (first, came.iter().rposition(|one| *one == of_member).unwrap())
        });
        assert!(spans[0].0 < spans[1].1 && spans[1].0 < spans[0].1, "one after the other: {came:?}");
    }

    #[tokio::test]
    async fn what_a_member_lists_and_does_not_give_comes_from_the_hub_once() {
        type Answer = (u8, &'static [u8]);
        let behaviours: [Answer; 3] = [(KIND_REFUSED, b"no"), (KIND_BYTES, b"other"), (KIND_SILENT, b"")];
        for (kind, payload) in behaviours {
            let (manifest, mock) = of_hub(SMALL_CHUNK);
            let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let (partial, hub) = node(folder.path(), &manifest, &mock, 0..0);
            let count = manifest.chunk_count(0);
            let honest = answering(&node(other.path(), &manifest, &mock, 0..count / 2));
            let member = FakeMember::start(move |ask| match ask {
                Ask::Chunk { .. } => (kind, payload.to_vec()),
                ask => honest(ask),
            });
            let (member, begun) = (member.await, Instant::now());
            let holders = [member.holder()];
            let obtaining = Obtaining::new(&member.own, &hub, &partial, (&holders, &[]), &|_, _| {});
            obtaining.run(&chunks(0..count), &mut |_| {}).await.unwrap();
            assert_here(&partial, &chunks(0..count));
            let (size, sent) = (crate::DEMO_MODEL.len() as u64, mock.sent_bytes());
            assert!(size <= sent && sent <= size + size / 20, "{kind}: {sent} bytes of {size}");
            assert!(begun.elapsed() < Duration::from_secs(20), "an answer may take 30 s");
        }
    }

    #[tokio::test]
    async fn what_has_to_wait_because_the_hub_asks_for_that_is_on_its_way_nowhere() {
        let (manifest, mock) = of_hub(SMALL_CHUNK);
        mock.set_faults(Faults { limited: Some((99, "9".to_owned())), ..Faults::default() });
        let folder = tempfile::tempdir().unwrap();
        let (partial, hub) = node(folder.path(), &manifest, &mock, 0..0);
        let (wanted, id) = (chunks(0..8), partial.id());
        let (progress, _told) = progress_channel(&partial, wanted.clone());
        let _wanted = hub.want(id, &wanted);
        assert!(!hub.wanted(id, Instant::now()).is_empty());
        let asked = async {
            while hub.hub_wait(Instant::now()).is_none() {
                tokio::time::sleep(FIRST_LOOK_EVERY).await;
            }
            // While the batch waits: it ends with its future.
            (hub.coming(id), hub.wanted(id, Instant::now()))
        };
        let (coming, wanted) = tokio::select! {
            fetched = hub.fetch(&partial, &wanted, &progress) => panic!("{fetched:?}"),
            seen = asked => seen,
        };
        assert!(coming.is_empty() && wanted.is_empty(), "{coming:?}, {wanted:?}");
    }

    #[tokio::test]
    async fn of_layers_that_two_nodes_fetch_at_once_each_byte_leaves_the_hub_about_once() {
        let (manifest, mock) = of_hub(SMALL_CHUNK);
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let nodes = folders.each_ref().map(|folder| node(folder.path(), &manifest, &mock, 0..0));
        let members = FakeMember::pair(nodes.each_ref().map(answering)).await;
        let count = manifest.chunk_count(0);
        let wanted = [chunks(0..count * 3 / 4), chunks(count / 4..count)];
        let (nodes, members, wanted) = (&nodes, &members, &wanted);
        let fetch = |at: usize| async move {
            let (other, (partial, hub)) = (&members[1 - at], &nodes[at]);
            let holders = [other.holder()];
            let obtaining = Obtaining::new(&other.own, hub, partial, (&holders, &[]), &|_, _| {});
            obtaining.run(&wanted[at], &mut |_| {}).await
        };
        let (first, second) = tokio::join!(fetch(0), fetch(1));
        first.unwrap();
        second.unwrap();
        nodes.iter().zip(wanted).for_each(|((partial, _), wanted)| assert_here(partial, wanted));
        let (size, sent) = (crate::DEMO_MODEL.len() as u64, mock.sent_bytes());
        assert!(size <= sent && sent <= size + size / 20, "{sent} bytes left the hub for {size}");
    }

    #[tokio::test]
    async fn what_a_member_has_of_a_file_that_it_pulls_whole_is_not_asked_of_the_hub() {
        let (manifest, mock) = of_hub(BLOCK_BYTES);
        let folder = tempfile::tempdir().unwrap();
        let (partial, hub) = node(folder.path(), &manifest, &mock, 0..0);
        let pulled = manifest.hub.as_ref().unwrap().files[0].sha256.unwrap();
        let member = FakeMember::start(move |ask| match ask {
            // The first one of its chunks, which has four blocks.
            Ask::PartialFile { sha256, .. } if sha256 == pulled => {
                (KIND_BYTES, postcard::to_allocvec(&Some((vec![1u8], vec![0u8]))).unwrap())
            }
            Ask::PartialBlock { sha256, block } if sha256 == pulled => {
                let start = block as usize * BLOCK_BYTES;
                (KIND_BYTES, crate::DEMO_MODEL[start..start + BLOCK_BYTES].to_vec())
            }
            _ => (KIND_REFUSED, b"not known".to_vec()),
        });
        let member = member.await;
        let (members, all) = ([member.holder()], chunks(0..manifest.chunk_count(0)));
        let obtaining = Obtaining::new(&member.own, &hub, &partial, (&[], &members), &|_, _| {});
        obtaining.run(&all, &mut |_| {}).await.unwrap();
        assert_here(&partial, &all);
        let (rest, sent) = (crate::DEMO_MODEL.len() as u64 - CHUNK_BYTES, mock.sent_bytes());
        assert!(rest <= sent && sent <= rest + rest / 20, "{sent} bytes left the hub for {rest}");
    }

    #[tokio::test]
    async fn all_files_that_a_member_may_pull_are_looked_for_over_one_channel() {
        let (manifest, mock) = of_hub(BLOCK_BYTES);
        let folder = tempfile::tempdir().unwrap();
        let (partial, _) = node(folder.path(), &manifest, &mock, 0..0);
        let none = postcard::to_allocvec(&None::<(Vec<u8>, Vec<u8>)>).unwrap();
        let member = FakeMember::start(move |_| (KIND_BYTES, none.clone())).await;
        let (of_member, lister) = (member.holder(), Lister::default());
        // More files than a member serves channels of one other.
        let kinds = (0..40).map(|file| PeerKind::Pulled { file, sha256: [7; 32] });
        let peers: Vec<_> = kinds.map(|kind| Peer::new(&of_member, kind, &lister)).collect();
        let to = Destination { endpoint: &member.own, partial: &partial, received: &|_, _| {} };
        let looked = async {
            while !peers.iter().all(|peer| peer.state().was_looked_at) {
                tokio::time::sleep(FIRST_LOOK_EVERY).await;
            }
        };
        tokio::select! {
            _ = join_all(peers.iter().map(|peer| peer.look_on(to))) => {}
            () = looked => {}
        }
        assert!(peers.iter().all(|peer| peer.state().failure().is_none()));
        // And a second one over the other transport, where a machine is so slow that it is tried, too.
        let channels = member.channels.load(Ordering::Relaxed);
        assert!(channels <= 2, "{channels} channels");
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
        // One that is there for a moment, and then not, does not.
        let last = later + 2 * LEFT_TO_OTHERS_MAX + Duration::from_secs(1);
        assert_eq!(others.batch(last, &all[3..8], next), all[3..8]);
    }
}
