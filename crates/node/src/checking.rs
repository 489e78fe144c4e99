//! The digest of each file of a model of a hub, over the members that have its chunks: none of them may have
//! the whole.
//!
//! A whole copy is compared alone; what its disk has damaged is fetched again first, if that brings it back.
//!
//! The state of SHA-256 goes through the file in its order. Who has the next chunks adds them and gives the
//! state back; the end must be what the hub promised.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use exo_hub::{Comparison, Origin};
use exo_machine::Holder;
use exo_store::{ChunkError, ChunkRef, Digested, HeldMap, Manifest, PartialModel, Sha256State};
use exo_transport::Endpoint;
use exo_types::{ModelId, NodeId};

use crate::bulk::{DIGEST_CHUNKS_MAX, FetchError, Fetcher};
use crate::library::Library;
use crate::library_error::LibraryError;
use exo_accelerators::chain;

/// A check begins anew when something was found to be damaged, and fetched again.
const TRIES_MAX: u32 = 3;
/// For a member to fetch again what it found damaged on its disk.
const REPAIR_TIME: Duration = Duration::from_secs(3);

/// What a check found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CheckOutcome {
    /// Every file is what the hub promised.
    Matches {
        bytes: u64,
        /// Members that had some of them, besides this node.
        nodes: Vec<NodeId>,
    },
    /// A file is not.
    Differs { file: String },
    /// No one has the bytes from here.
    Missing {
        file: String,
        /// Where they begin.
        start: u64,
    },
}

/// A member that has chunks.
struct Peer<'a> {
    holder: &'a Holder,
    fetcher: Fetcher,
    held: HeldMap,
    was_used: bool,
}

impl Peer<'_> {
    /// Goes on with a digest. The member has hung up if others had the chunks before for a minute: it is
    /// dialled once more.
    async fn digest(
        &mut self,
        endpoint: &Endpoint,
        model: ModelId,
        first: ChunkRef,
        count: u32,
        state: Sha256State,
    ) -> Result<Digested, FetchError> {
        match self.fetcher.digest(model, first, count, state).await {
            Err(FetchError::Broken { .. }) => {
                self.fetcher = Fetcher::dial(endpoint, self.holder.node, &self.holder.addresses).await?;
                self.fetcher.digest(model, first, count, state).await
            }
            answer => answer,
        }
    }
}

impl Library {
    /// Compares a model of a hub with the digests that the hub named. What was found is kept with this node's
    /// copy.
    pub async fn check(&self, id: ModelId, holders: &[Holder]) -> Result<CheckOutcome, LibraryError> {
        self.ensure_manifest(id, holders).await?;
        let store = self.store().clone();
        let partial = tokio::task::spawn_blocking(move || store.partial(id)).await??;
        let partial = partial.filter(|partial| partial.manifest().hub.is_some());
        let Some(partial) = partial else { return self.check_whole(id, holders).await };
        let mut tries = 0;
        let (outcome, unseen) = loop {
            tries += 1;
            let unseen = partial.unseen();
            let mut peers = self.peers_with_chunks(&partial, holders).await;
            let asked = peers.len();
            match self.check_files(&partial, &mut peers).await {
                Err(LibraryError::Chunk(ChunkError::Damaged { chunk, .. })) if tries < TRIES_MAX => {
                    self.repair(id, chunk, holders).await?;
                }
                // Of a member that found its own bytes damaged they come again.
                Ok(CheckOutcome::Missing { .. }) if peers.len() < asked && tries < TRIES_MAX => {
                    tokio::time::sleep(REPAIR_TIME).await;
                }
                outcome => break (outcome?, unseen),
            }
        };
        let matches = match &outcome {
            CheckOutcome::Matches { .. } => true,
            CheckOutcome::Differs { .. } => false,
            CheckOutcome::Missing { .. } => return Ok(outcome),
        };
        tokio::task::spawn_blocking(move || partial.note_check(matches, unseen)).await??;
        Ok(outcome)
    }

    /// The same for one that a download brought whole: this node's copy, with what the hub named then.
    async fn check_whole(&self, id: ModelId, holders: &[Holder]) -> Result<CheckOutcome, LibraryError> {
        let record = self.record(id).await?.filter(|record| record.complete).ok_or(LibraryError::NotOfHub)?;
        let found = tokio::task::spawn_blocking(move || Origin::with_folder(&record.path)).await?;
        let (origin, folder) = found.ok_or(LibraryError::NotOfHub)?;
        let mut compared = compare(&origin, &folder).await?;
        if matches!(compared, Comparison::Differs { .. }) {
            match self.repaired_and_compared(id, (&origin, &folder), holders).await {
                Ok(again) => compared = again.unwrap_or(compared),
                // What was found is noted below all the same.
                Err(error) => {
                    tracing::error!(target: "events::model", model = %id, error = chain(&error), "what a check found damaged was not repaired");
                }
            }
        }
        let (outcome, matches) = match compared {
            Comparison::Matches { bytes } => (CheckOutcome::Matches { bytes, nodes: Vec::new() }, true),
            Comparison::Differs { file } => (CheckOutcome::Differs { file }, false),
            Comparison::NoDigests => return Err(LibraryError::NoDigests),
        };
        let store = self.store().clone();
        // On a full disk it is said all the same.
        if let Err(error) = tokio::task::spawn_blocking(move || store.note_check(id, matches)).await? {
            tracing::warn!(model = %id, error = chain(&error), "what a check found is not kept");
        }
        Ok(outcome)
    }

    /// What a comparison says once what is damaged has come again; `None` where it has not.
    async fn repaired_and_compared(
        &self,
        id: ModelId,
        (origin, folder): (&Origin, &Path),
        holders: &[Holder],
    ) -> Result<Option<Comparison>, LibraryError> {
        if !self.repair_whole(id, origin, holders).await? {
            return Ok(None);
        }
        compare(origin, folder).await.map(Some)
    }

    /// Whether a model may be placed, by a command or a request of this node: not once a check has found that
    /// it is not what its hub promised.
    pub async fn check_placeable(&self, id: ModelId) -> Result<(), LibraryError> {
        match self.record(id).await? {
            Some(record) if record.checked == Some(false) => Err(LibraryError::Differs { id }),
            _ => Ok(()),
        }
    }

    async fn peers_with_chunks<'a>(&self, partial: &PartialModel, holders: &'a [Holder]) -> Vec<Peer<'a>> {
        let mut peers = Vec::new();
        for holder in holders {
            let asked = async {
                let mut fetcher = Fetcher::dial(self.endpoint(), holder.node, &holder.addresses).await?;
                let held = fetcher.held(partial.manifest()).await?.held;
                Ok::<_, FetchError>(Peer { holder, fetcher, held, was_used: false })
            };
            match asked.await {
                Ok(peer) => peers.push(peer),
                Err(error) => {
                    tracing::debug!(error = chain(&error), "a member does not help to check a model")
                }
            }
        }
        peers
    }

    async fn check_files(
        &self,
        partial: &Arc<PartialModel>,
        peers: &mut Vec<Peer<'_>>,
    ) -> Result<CheckOutcome, LibraryError> {
        let manifest = partial.manifest().clone();
        let digests = manifest.hub.iter().flat_map(|hub| &hub.files).map(|file| file.sha256);
        let mut bytes = 0u64;
        for (index, (file, expected)) in manifest.files.iter().zip(digests).enumerate() {
            // A small file without a digest has all its chunks in the identity.
            let Some(expected) = expected else { continue };
            match digest_of(self.endpoint(), partial, peers, &manifest, index as u32).await? {
                Ok(found) if found == expected => bytes = bytes.saturating_add(file.size),
                Ok(_) => return Ok(CheckOutcome::Differs { file: file.name.clone() }),
                Err(start) => return Ok(CheckOutcome::Missing { file: file.name.clone(), start }),
            }
        }
        let nodes = peers.iter().filter(|peer| peer.was_used).map(|peer| peer.holder.node).collect();
        Ok(CheckOutcome::Matches { bytes, nodes })
    }
}

async fn compare(origin: &Origin, folder: &Path) -> Result<Comparison, LibraryError> {
    let (origin, folder) = (origin.clone(), folder.to_owned());
    Ok(tokio::task::spawn_blocking(move || origin.compare(&folder)).await??)
}

/// The digest of one file, or where the first byte is that no one has.
async fn digest_of(
    endpoint: &Endpoint,
    partial: &Arc<PartialModel>,
    peers: &mut Vec<Peer<'_>>,
    manifest: &Manifest,
    file: u32,
) -> Result<Result<[u8; 32], u64>, LibraryError> {
    let count = manifest.chunk_count(file);
    let (mut state, mut at) = (Sha256State::default(), 0);
    loop {
        let first = ChunkRef { file, index: at };
        let run = |has: &dyn Fn(ChunkRef) -> bool| {
            let last = count.min(at.saturating_add(DIGEST_CHUNKS_MAX));
            (at..last).take_while(|index| has(ChunkRef { file, index: *index })).count() as u32
        };
        let own = run(&|chunk| partial.has_chunk(chunk));
        let best = (0..peers.len()).max_by_key(|peer| run(&|chunk| peers[*peer].held.has(chunk)));
        let digested = if own > 0 {
            let partial = partial.clone();
            let work = tokio::task::spawn_blocking(move || partial.digest(first, own, state));
            (own, work.await??)
        } else {
            let Some((index, length)) = best.map(|peer| (peer, run(&|chunk| peers[peer].held.has(chunk))))
            else {
                return Ok(Err(u64::from(at) * u64::from(manifest.chunk_bytes)));
            };
            if length == 0 {
                return Ok(Err(u64::from(at) * u64::from(manifest.chunk_bytes)));
            }
            let peer = &mut peers[index];
            peer.was_used = true;
            match peer.digest(endpoint, manifest.root(), first, length, state).await {
                Ok(digested) => (length, digested),
                Err(error) => {
                    tracing::debug!(error = chain(&error), "a member stopped helping to check a model");
                    peers.remove(index);
                    continue;
                }
            }
        };
        at += digested.0;
        let is_end = at >= count;
        match digested.1 {
            Digested::Done(digest) if is_end => return Ok(Ok(digest)),
            Digested::Going(next)
                if !is_end && next.bytes() == u64::from(at) * u64::from(manifest.chunk_bytes) =>
            {
                state = next;
            }
            _ => return Err(LibraryError::OtherState),
        }
    }
}
