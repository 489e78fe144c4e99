//! Members that a fetch of layers takes chunks from: what each says to have, and taking its share.
//!
//! A member is looked at all the while, over one channel for what it has of the model and one for all files
//! that it may pull whole: a member serves a few channels of each other one. It gives over further ones. One
//! that fails is left alone for a moment, and so is one that could not fetch from the hub for this node.

use std::collections::BTreeSet;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use exo_accelerators::chain;
use exo_hub::{PartialState, Sharer};
use exo_machine::Holder;
use exo_stdx::Mutex;
use exo_store::{ChunkRef, PartialModel};
use exo_transport::Endpoint;
use exo_types::NodeId;

use crate::bulk::{AskedOf, ChunkShare, FetchError, Fetcher, PeerChunks};
use crate::bulk::{ProgressSender, RefusedChunks, SharedChunks};

/// After a member has failed, until it is asked again.
const PEER_AGAIN: Duration = Duration::from_secs(20);
/// Between two looks at what a member has, and at one that does not pull the file.
const LOOK_EVERY: Duration = Duration::from_millis(200);
const IDLE_LOOK_EVERY: Duration = Duration::from_secs(5);
/// For a member to say what it has: meanwhile the hub is not asked for what that may be.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// Hears from whom how many bytes came, and how long that took.
pub type Received<'a> = &'a (dyn Fn(NodeId, (u64, Duration)) + Send + Sync);

/// Where chunks of members go, and how these are reached.
#[derive(Clone, Copy)]
pub struct Destination<'a> {
    pub endpoint: &'a Endpoint,
    pub partial: &'a Arc<PartialModel>,
    pub received: Received<'a>,
}

/// What a member is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerKind {
    /// What it has of the model.
    Layers,
    /// What it has of this file of the model, which it pulls whole.
    Pulled { file: u32, sha256: [u8; 32] },
}

/// What a member says to have, and to be about to.
enum PeerList {
    Layers(PeerChunks),
    Pulled { file: u32, state: PartialState },
}

impl PeerList {
    fn has(&self, chunk: ChunkRef) -> bool {
        match self {
            Self::Layers(chunks) => chunks.held.has(chunk),
            Self::Pulled { file, state } => chunk.file == *file && state.has_block(chunk.index),
        }
    }

    fn brings(&self, chunk: ChunkRef) -> bool {
        match self {
            Self::Layers(chunks) => chunks.coming.contains(&chunk),
            Self::Pulled { file, state } => chunk.file == *file && state.brings_block(chunk.index),
        }
    }

    /// A pull shares its file out by another rule, with other pulls.
    fn wants(&self, chunk: ChunkRef) -> bool {
        match self {
            Self::Layers(chunks) => chunks.wanted.iter().any(|run| run.has(chunk)),
            Self::Pulled { .. } => false,
        }
    }
}

/// The channel over which a member is looked at, while it is open. Who looks takes it out, and puts it back
/// once the answer is there: one whose answer is still to come is of no use to the next one.
pub type Lister = Arc<tokio::sync::Mutex<Option<Fetcher>>>;

/// A member.
pub struct Peer<'a> {
    pub holder: &'a Holder,
    pub kind: PeerKind,
    lister: Lister,
    state: Mutex<PeerState>,
}

/// What is known of it.
#[derive(Default)]
pub struct PeerState {
    pub was_looked_at: bool,
    list: Option<PeerList>,
    /// What it did not give of its disk since it was last given up.
    refused: RefusedChunks,
    /// Since when it is not asked, and why.
    failure: Option<(Instant, String)>,
    /// The same of what it was to fetch from the hub.
    relay_failure: Option<(Instant, String)>,
    /// As it came last.
    pub bytes_per_s: Option<u64>,
}

impl PeerState {
    /// What was wrong with a member may pass, as its line may.
    pub fn is_asked(&self, now: Instant) -> bool {
        is_over(self.failure.as_ref(), now)
    }

    fn may_relay(&self, now: Instant) -> bool {
        self.is_asked(now) && is_over(self.relay_failure.as_ref(), now)
    }

    /// Whether it gives the chunk.
    pub fn has(&self, chunk: ChunkRef) -> bool {
        self.list.as_ref().is_some_and(|list| list.has(chunk)) && !self.refused.has(chunk)
    }

    /// Why it does not help.
    pub fn failure(&self) -> Option<String> {
        self.failure.as_ref().or(self.relay_failure.as_ref()).map(|(_, reason)| reason.clone())
    }
}

fn is_over(failure: Option<&(Instant, String)>, now: Instant) -> bool {
    failure.is_none_or(|(at, _)| now.saturating_duration_since(*at) >= PEER_AGAIN)
}

/// One file, as a member says to be about to fetch of it.
pub struct FileSharer<'s> {
    pub node: NodeId,
    pub file: u32,
    pub state: &'s PeerState,
    pub now: Instant,
}

impl FileSharer<'_> {
    fn chunk(&self, index: u32) -> ChunkRef {
        ChunkRef { file: self.file, index }
    }
}

impl Sharer for FileSharer<'_> {
    fn node(&self) -> [u8; 32] {
        self.node.0
    }

    fn has(&self, index: u32) -> bool {
        self.state.has(self.chunk(index))
    }

    /// Or it has found its own damaged, and may be about to fetch it again.
    fn brings(&self, index: u32) -> bool {
        let chunk = self.chunk(index);
        let is_listed = self.state.list.as_ref().is_some_and(|list| list.brings(chunk));
        is_listed || self.state.refused.may_come(self.now, chunk)
    }

    fn wants(&self, index: u32) -> bool {
        self.state.list.as_ref().is_some_and(|list| list.wants(self.chunk(index)))
    }
}

impl<'a> Peer<'a> {
    pub fn new(holder: &'a Holder, kind: PeerKind, lister: &Lister) -> Self {
        Self { holder, kind, lister: lister.clone(), state: Mutex::default() }
    }

    pub fn state(&self) -> MutexGuard<'_, PeerState> {
        self.state.lock()
    }

    /// Whether it may be asked to fetch for this node.
    pub fn may_relay(&self, now: Instant) -> bool {
        self.kind == PeerKind::Layers && self.state().may_relay(now)
    }

    /// Looks at what it has again and again.
    pub async fn look_on(&self, to: Destination<'_>) {
        loop {
            if self.state().is_asked(Instant::now()) {
                self.look(to).await;
            }
            let is_idle = self.kind != PeerKind::Layers && self.state().list.is_none();
            tokio::time::sleep(if is_idle { IDLE_LOOK_EVERY } else { LOOK_EVERY }).await;
        }
    }

    async fn look(&self, to: Destination<'_>) {
        let listed = tokio::time::timeout(LOOK_MAX, self.list(to)).await;
        let late = |_| {
            let reason = format!("it did not say within {} s what it has", LOOK_MAX.as_secs());
            Err(FetchError::Broken { holder: self.holder.node, reason })
        };
        match listed.unwrap_or_else(late) {
            Ok(list) => {
                let mut state = self.state();
                let is_listed =
                    |chunk: ChunkRef| list.as_ref().is_some_and(|list: &PeerList| list.has(chunk));
                state.refused.note_list(Instant::now(), is_listed);
                state.list = list;
            }
            // It may be told of the model in a moment.
            Err(FetchError::Refused { .. }) => self.state().list = None,
            Err(error) => self.give_up(&error),
        }
        self.state().was_looked_at = true;
    }

    /// What it has. A channel that it closed meanwhile is opened once more.
    async fn list(&self, to: Destination<'_>) -> Result<Option<PeerList>, FetchError> {
        let mut lister = self.lister.lock().await;
        let (mut fetcher, was_open) = match lister.take() {
            Some(open) => (open, true),
            None => (self.dial(to).await?, false),
        };
        let mut answer = self.ask(to, &mut fetcher).await;
        if was_open && matches!(answer, Err(FetchError::Broken { .. })) {
            fetcher = self.dial(to).await?;
            answer = self.ask(to, &mut fetcher).await;
        }
        if matches!(answer, Ok(_) | Err(FetchError::Refused { .. })) {
            *lister = Some(fetcher);
        }
        answer
    }

    async fn dial(&self, to: Destination<'_>) -> Result<Fetcher, FetchError> {
        Fetcher::dial(to.endpoint, self.holder.node, &self.holder.addresses).await
    }

    async fn ask(&self, to: Destination<'_>, fetcher: &mut Fetcher) -> Result<Option<PeerList>, FetchError> {
        let manifest = to.partial.manifest();
        match self.kind {
            PeerKind::Layers => Ok(Some(PeerList::Layers(fetcher.held(manifest).await?))),
            PeerKind::Pulled { file, sha256 } => {
                let size = manifest.files.get(file as usize).map_or(0, |entry| entry.size);
                let state = fetcher.partial_file(sha256, size).await?;
                Ok(state.map(|state| PeerList::Pulled { file, state }))
            }
        }
    }

    /// How long it takes for a chunk, by how fast its bytes came last.
    pub fn each(&self, to: Destination<'_>) -> Option<Duration> {
        let bytes_per_s = self.state().bytes_per_s?.max(1);
        Some(Duration::from_secs_f64(f64::from(to.partial.manifest().chunk_bytes) / bytes_per_s as f64))
    }

    /// Whether something of what is shared out is to be asked of it now, although it gives nothing of that:
    /// what waits for someone, if it `may_begin` with that, or what others bring too slowly.
    pub fn is_needed(
        &self,
        to: Destination<'_>,
        shared: &SharedChunks,
        coming: &BTreeSet<ChunkRef>,
        may_begin: bool,
    ) -> bool {
        let (each, now) = (self.each(to), Instant::now());
        let state = self.state();
        let has = |chunk| state.has(chunk) && !coming.contains(&chunk) && !to.partial.has_chunk(chunk);
        let is_asked = state.list.is_some() && state.is_asked(now);
        is_asked && (may_begin && shared.has_waiting(has) || shared.has_overdue(now, each, has))
    }

    /// Gives what it has of its share, but for what is `coming` from elsewhere; `is_quiet` says whether
    /// nothing else came over this node's line meanwhile. An error is one of this disk.
    pub async fn take(
        &self,
        to: Destination<'_>,
        share: ChunkShare<'_>,
        coming: impl Fn() -> BTreeSet<ChunkRef>,
        is_quiet: impl Fn() -> bool,
        progress: &ProgressSender,
    ) -> Result<(), FetchError> {
        if !self.offer(to, &share, &coming()) {
            return Ok(());
        }
        match self.give(to, &share, is_quiet, progress).await {
            Err(error @ FetchError::Disk { .. }) => Err(error),
            Err(error) => {
                self.give_up(&error);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn offer(&self, to: Destination<'_>, share: &ChunkShare<'_>, coming: &BTreeSet<ChunkRef>) -> bool {
        let state = self.state();
        let is_needed = |chunk: ChunkRef| !coming.contains(&chunk) && !to.partial.has_chunk(chunk);
        state.is_asked(Instant::now()) && share.offer(|chunk| state.has(chunk) && is_needed(chunk))
    }

    async fn give(
        &self,
        to: Destination<'_>,
        share: &ChunkShare<'_>,
        is_quiet: impl Fn() -> bool,
        progress: &ProgressSender,
    ) -> Result<(), FetchError> {
        // One that waited for its turn would have hung up by now.
        let dialled = tokio::select! {
            biased;
            () = share.over() => return Ok(()),
            dialled = self.dial(to) => dialled,
        };
        let mut fetcher = dialled?;
        let of = match self.kind {
            PeerKind::Layers => AskedOf::Model(to.partial.id()),
            PeerKind::Pulled { sha256, .. } => AskedOf::PartialFile(sha256),
        };
        let note = &mut |chunk, error| self.state().refused.note(Instant::now(), chunk, error);
        let given = fetcher.chunks(to.partial, share, of, note, progress).await;
        let (bytes, took) = fetcher.received();
        let rate = u128::from(bytes) * 1000 / took.as_millis().max(1);
        if bytes > 0 {
            self.state().bytes_per_s = Some(u64::try_from(rate).unwrap_or(u64::MAX));
        }
        // What shares this node's line with others says nothing of the path.
        if is_quiet() && share.is_alone() {
            (to.received)(self.holder.node, (bytes, took));
        }
        given
    }

    /// Has it fetch chunks from the hub for this node.
    pub async fn relay(
        &self,
        to: Destination<'_>,
        chunks: &[ChunkRef],
        progress: &ProgressSender,
    ) -> Result<(), FetchError> {
        let relayed = self.relay_all(to, &SharedChunks::new(chunks).whole(), progress).await;
        if let Err(error) = &relayed {
            error.report();
            self.state().relay_failure = Some((Instant::now(), chain(error)));
        }
        relayed
    }

    async fn relay_all(
        &self,
        to: Destination<'_>,
        share: &ChunkShare<'_>,
        progress: &ProgressSender,
    ) -> Result<(), FetchError> {
        let mut fetcher = self.dial(to).await?;
        // What a hub refuses a member, it refuses it for all of them.
        let mut refused = |_: ChunkRef, error: FetchError| -> Result<(), FetchError> { Err(error) };
        let of = AskedOf::Relayed(to.partial.id());
        fetcher.chunks(to.partial, share, of, &mut refused, progress).await
    }

    fn give_up(&self, error: &FetchError) {
        error.report();
        let mut state = self.state();
        state.list = None;
        state.refused = RefusedChunks::default();
        state.failure = Some((Instant::now(), chain(error)));
    }
}
