//! Chunks of a model that was known before it was fetched: from members that have them, else from its hub, else through a member that
//! reaches the hub.
//!
//! Nodes that fetch at the same time look at each other's lists between two batches: what a member is fetching is left to it and
//! taken from it afterwards, so that a byte leaves the hub about once. Only what really is under way is on such a list, so no two
//! nodes wait for each other; and a list that does not shrink is not waited for long.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_machine::Holder;
use exo_store::{ChunkRef, PartialModel};
use exo_transport::Endpoint;
use exo_types::NodeId;

use crate::bulk::{FetchError, Fetcher, From, PeerChunks};
use crate::hub_bytes::HubBytes;
use exo_accelerators::chain;

/// Chunks that are asked of the hub between two looks at what members have.
const BATCH_CHUNKS: usize = 64;
/// For what a member is fetching to come nearer: its own client notices a stall within five seconds.
const LEFT_TO_OTHERS_MAX: Duration = Duration::from_secs(20);
/// After the hub has failed, until it is asked again.
const HUB_AGAIN: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Hears from whom how many bytes came, and how long that took.
pub type Received<'a> = &'a (dyn Fn(NodeId, (u64, Duration)) + Send + Sync);

/// One fetch under way.
pub struct Obtaining<'a> {
    pub endpoint: &'a Endpoint,
    pub hub: &'a Arc<HubBytes>,
    pub partial: &'a Arc<PartialModel>,
    pub received: Received<'a>,
    peers: Vec<Peer<'a>>,
}

/// When this node asks the hub itself. After a failure members fetch for it, until the hub has had some time: a failure may pass, and a
/// member's line is another's.
#[derive(Default)]
struct HubTries {
    failed_at: Option<Instant>,
    /// What was wrong the last time.
    failure: String,
}

impl HubTries {
    fn is_to_be_asked(&self, now: Instant) -> bool {
        self.failed_at.is_none_or(|at| now.duration_since(at) >= HUB_AGAIN)
    }

    fn failed(&mut self, now: Instant, failure: String) {
        tracing::debug!(failure, "the hub gives no chunks; members are asked to fetch them");
        (self.failed_at, self.failure) = (Some(now), failure);
    }
}

/// A member that knows the model.
struct Peer<'a> {
    holder: &'a Holder,
    fetcher: Option<Fetcher>,
    /// Why it is not asked any more.
    failure: Option<String>,
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
        let peer = |holder| Peer { holder, fetcher: None, failure: None };
        Self { endpoint, hub, partial, received, peers: holders.iter().map(peer).collect() }
    }

    /// Has these chunks on disk, or says why not, of each source.
    pub async fn run(
        mut self,
        chunks: &[ChunkRef],
        progress: &mut (dyn FnMut(u64) + Send),
    ) -> Result<(), String> {
        let mut left_since: Option<(usize, Instant)> = None;
        let mut is_waited_out = false;
        let mut hub = HubTries::default();
        loop {
            let coming = self.take_from_peers(chunks, progress).await?;
            let missing = self.missing(chunks);
            if missing.is_empty() {
                return Ok(());
            }
            let own: BTreeSet<ChunkRef> = self.hub.coming(self.partial.id()).into_iter().collect();
            let is_left = |chunk: &&ChunkRef| coming.contains(chunk) || own.contains(chunk);
            is_waited_out |= left_since
                .is_some_and(|(count, since)| count == missing.len() && since.elapsed() > LEFT_TO_OTHERS_MAX);
            let batch: Vec<ChunkRef> =
                missing.iter().filter(|c| is_waited_out || !is_left(c)).take(BATCH_CHUNKS).copied().collect();
            if batch.is_empty() {
                match left_since {
                    Some((count, _)) if count == missing.len() => {}
                    _ => left_since = Some((missing.len(), Instant::now())),
                }
                tokio::time::sleep(LOOK_EVERY).await;
                continue;
            }
            left_since = None;
            if hub.is_to_be_asked(Instant::now()) {
                match self.hub.fetch(self.partial, &batch, progress).await {
                    Ok(()) => continue,
                    Err(reason) => hub.failed(Instant::now(), reason),
                }
            }
            let relayed = self.through_peers(&batch, progress).await;
            relayed.map_err(|of_peers| {
                format!("model {} could not be fetched: {}{of_peers}", self.partial.id(), hub.failure)
            })?;
        }
    }

    fn missing(&self, chunks: &[ChunkRef]) -> Vec<ChunkRef> {
        chunks.iter().copied().filter(|chunk| !self.partial.has_chunk(*chunk)).collect()
    }

    /// Fetches what members have; what they are fetching comes back.
    async fn take_from_peers(
        &mut self,
        chunks: &[ChunkRef],
        progress: &mut (dyn FnMut(u64) + Send),
    ) -> Result<BTreeSet<ChunkRef>, String> {
        let mut coming = BTreeSet::new();
        for index in 0..self.peers.len() {
            let missing = self.missing(chunks);
            if missing.is_empty() {
                break;
            }
            match self.take_from(index, &missing, progress).await {
                Ok(found) => coming.extend(found),
                Err(error @ FetchError::Disk { .. }) => return Err(chain(&error)),
                Err(error) => self.give_up(index, &error),
            }
        }
        Ok(coming)
    }

    async fn take_from(
        &mut self,
        index: usize,
        missing: &[ChunkRef],
        progress: &mut (dyn FnMut(u64) + Send),
    ) -> Result<BTreeSet<ChunkRef>, FetchError> {
        if self.peers[index].failure.is_some() {
            return Ok(BTreeSet::new());
        }
        let PeerChunks { held, coming } = match self.list_of(index).await {
            // It may be told of the model in a moment.
            Err(FetchError::Refused { .. }) => return Ok(BTreeSet::new()),
            answer => answer?,
        };
        let there: Vec<ChunkRef> = missing.iter().copied().filter(|chunk| held.has(*chunk)).collect();
        self.fetch(index, &there, From::Disk, progress).await?;
        Ok(coming)
    }

    /// What a member has. A connection that it closed while the hub was slow is opened once more.
    async fn list_of(&mut self, index: usize) -> Result<PeerChunks, FetchError> {
        let was_open = self.peers[index].fetcher.is_some();
        let manifest = self.partial.manifest().clone();
        match self.fetcher(index).await?.held(&manifest).await {
            Err(FetchError::Broken { .. }) if was_open => {
                self.peers[index].fetcher = None;
                self.fetcher(index).await?.held(&manifest).await
            }
            answer => answer,
        }
    }

    async fn fetch(
        &mut self,
        index: usize,
        chunks: &[ChunkRef],
        from: From,
        progress: &mut (dyn FnMut(u64) + Send),
    ) -> Result<(), FetchError> {
        if chunks.is_empty() {
            return Ok(());
        }
        let (partial, node, received) = (self.partial, self.peers[index].holder.node, self.received);
        let fetcher = self.fetcher(index).await?;
        let fetched = fetcher.chunks(partial, chunks, from, progress).await;
        // What a member fetches from the hub meanwhile says nothing of the path from it.
        if from == From::Disk {
            received(node, fetcher.received());
        }
        fetched
    }

    async fn fetcher(&mut self, index: usize) -> Result<&mut Fetcher, FetchError> {
        let peer = &mut self.peers[index];
        match &mut peer.fetcher {
            Some(fetcher) => Ok(fetcher),
            empty => {
                let dialled = Fetcher::dial(self.endpoint, peer.holder.node, &peer.holder.addresses).await?;
                Ok(empty.insert(dialled))
            }
        }
    }

    fn give_up(&mut self, index: usize, error: &FetchError) {
        let peer = &mut self.peers[index];
        tracing::debug!(peer = %peer.holder.node, error = chain(error), "a member gives no chunks");
        peer.fetcher = None;
        peer.failure = Some(chain(error));
    }

    /// Has members fetch from the hub what this node cannot; the error has what each said.
    async fn through_peers(
        &mut self,
        chunks: &[ChunkRef],
        progress: &mut (dyn FnMut(u64) + Send),
    ) -> Result<(), String> {
        for index in 0..self.peers.len() {
            if self.peers[index].failure.is_some() {
                continue;
            }
            self.peers[index].fetcher = None; // it has hung up if the hub was tried for a minute
            let missing = self.missing(chunks);
            match self.fetch(index, &missing, From::Hub, progress).await {
                Ok(()) => return Ok(()),
                Err(error @ FetchError::Disk { .. }) => return Err(format!("; {}", chain(&error))),
                Err(error) => self.give_up(index, &error),
            }
        }
        let failures = self.peers.iter().filter_map(|peer| peer.failure.as_deref());
        Err(failures.map(|failure| format!("; {failure}")).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_that_failed_is_asked_again_after_some_time_and_not_before() {
        let (mut hub, start) = (HubTries::default(), Instant::now());
        assert!(hub.is_to_be_asked(start));
        hub.failed(start, "503".to_owned());
        assert!(!hub.is_to_be_asked(start) && !hub.is_to_be_asked(start + HUB_AGAIN / 2));
        assert!(hub.is_to_be_asked(start + HUB_AGAIN));
        hub.failed(start + HUB_AGAIN, "401".to_owned());
        assert!(!hub.is_to_be_asked(start + HUB_AGAIN));
        assert_eq!(hub.failure, "401");
    }
}
