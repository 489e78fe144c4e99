//! Files of a download from members that have them, whole or in layers: they are asked before the hub.
//!
//! A member names the model that has the file; its chunks are then asked for and checked as those of layers
//! are. That it is the hub's file the SHA-256 of all of it says, as of what a hub sends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use exo_api::{ClusterView, NodeView};
use exo_hub::{Cancel, HubError, Nearby, TakeRange, WantedFile};
use exo_store::{ChunkRef, HeldMap, Manifest};
use exo_transport::Endpoint;
use exo_types::ModelId;
use futures_util::future::join_all;
use tokio::runtime::Handle;

use super::DownloadsInner;
use crate::bulk::{Fetcher, MemberError};
use exo_accelerators::chain;

/// Between two looks at a wish to end.
const WISH_LOOK_EVERY: Duration = Duration::from_millis(200);

/// The members of this node's cluster.
pub struct Members<'a> {
    shared: &'a DownloadsInner,
    state: Mutex<State>,
}

/// Names of members.
#[derive(Default)]
struct State {
    givers: BTreeSet<String>,
    /// Asked no more in this download: of many files each would wait for them.
    silent: BTreeSet<String>,
}

/// What a member has of the file.
struct MemberCopy {
    member: String,
    fetcher: Fetcher,
    model: ModelId,
    manifest: Manifest,
    file: u32,
    /// Of layers; `None` where it has the whole model.
    held: Option<HeldMap>,
}

impl MemberCopy {
    /// The chunk that begins at `at`, and its end, if the member has it and it ends before `end_max`.
    fn chunk_at(&self, at: u64, end_max: u64) -> Option<(ChunkRef, u64)> {
        let index = u32::try_from(at / u64::from(self.manifest.chunk_bytes)).ok()?;
        let chunk = ChunkRef { file: self.file, index };
        let end = at + self.manifest.chunk_len(chunk)?;
        let is_here = self.held.as_ref().is_none_or(|held| held.has(chunk));
        (is_here && self.manifest.chunk_start(chunk) == at && end <= end_max).then_some((chunk, end))
    }
}

impl<'a> Members<'a> {
    /// Of the cluster as it is when they are asked.
    pub fn new(shared: &'a DownloadsInner) -> Self {
        Self { shared, state: Mutex::default() }
    }

    async fn take(&self, file: &WantedFile<'_>, take: &mut TakeRange<'_>) -> Result<(), HubError> {
        let mut copies = self.copies(file).await;
        for &range in file.ranges {
            if copies.is_empty() {
                break;
            }
            if let Some((bytes, givers)) = bring(&mut copies, range).await {
                self.lock().givers.extend(givers);
                take(range, &bytes)?;
            }
        }
        Ok(())
    }

    /// What members have of the file, that of the nearest first.
    async fn copies(&self, file: &WantedFile<'_>) -> Vec<MemberCopy> {
        let mut nodes = nearest_first(&self.shared.view.borrow());
        nodes.retain(|node| !self.lock().silent.contains(&node.name));
        let endpoint = self.shared.library.endpoint();
        let asked = join_all(nodes.iter().map(|node| copy_of(endpoint, node, file))).await;
        let mut copies = Vec::new();
        for (answer, node) in asked.into_iter().zip(nodes) {
            match answer {
                Ok(copy) => copies.extend(copy),
                Err(error) => {
                    tracing::debug!(
                        peer = node.name,
                        error = chain(&error),
                        "a member does not say what it has"
                    );
                    self.lock().silent.insert(node.name);
                }
            }
        }
        copies
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Nearby for Members<'_> {
    fn give(&self, file: &WantedFile<'_>, cancel: &Cancel, take: &mut TakeRange<'_>) -> Result<(), HubError> {
        Handle::current().block_on(async {
            tokio::select! {
                taken = self.take(file, take) => taken,
                () = cancelled(cancel) => Err(HubError::Cancelled),
            }
        })
    }

    fn givers(&self) -> String {
        self.lock().givers.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
    }
}

async fn cancelled(cancel: &Cancel) {
    while !cancel.is_cancelled() {
        tokio::time::sleep(WISH_LOOK_EVERY).await;
    }
}

/// The members that are there, by the round trip to them as this node measured it; those without one last.
fn nearest_first(view: &ClusterView) -> Vec<NodeView> {
    let is_other = |node: &&NodeView| !node.is_self && !node.status.is_gone();
    let mut nodes: Vec<NodeView> = view.nodes.iter().filter(is_other).cloned().collect();
    let own = view.nodes.iter().find(|node| node.is_self);
    let rtt_us = |node: &NodeView| {
        let own = own?;
        let link = view.links.iter().find(|link| link.from == own.id && link.to == node.id)?;
        link.rtt_ms.map(|ms| (1000.0 * ms) as u64)
    };
    nodes.sort_by_key(|node| (rtt_us(node).unwrap_or(u64::MAX), node.name.clone()));
    nodes
}

async fn copy_of(
    endpoint: &Endpoint,
    node: &NodeView,
    file: &WantedFile<'_>,
) -> Result<Option<MemberCopy>, MemberError> {
    let mut fetcher = Fetcher::dial_member(endpoint, node).await?;
    let Some(copy) = fetcher.copy_of(file.sha256).await? else { return Ok(None) };
    let manifest = fetcher.manifest(copy.model).await?;
    // It may have become another file of that name.
    if manifest.files.get(copy.file as usize).is_none_or(|entry| entry.size != file.size) {
        return Ok(None);
    }
    let held = match &manifest.hub {
        Some(_) => Some(fetcher.held(&manifest).await?.held),
        None => None,
    };
    let (member, model, file) = (node.name.clone(), copy.model, copy.file);
    Ok(Some(MemberCopy { member, fetcher, model, manifest, file, held }))
}

/// A range, put together of what members have, and who gave of it. Of a member that fails nothing more is
/// taken.
async fn bring(
    copies: &mut Vec<MemberCopy>,
    (start, end): (u64, u64),
) -> Option<(Vec<u8>, BTreeSet<String>)> {
    'again: loop {
        let mut chunks: BTreeMap<usize, Vec<ChunkRef>> = BTreeMap::new();
        let mut at = start;
        while at < end {
            let has = |(index, copy): (usize, &MemberCopy)| Some((index, copy.chunk_at(at, end)?));
            let (index, (chunk, chunk_end)) = copies.iter().enumerate().find_map(has)?;
            chunks.entry(index).or_default().push(chunk);
            at = chunk_end;
        }
        let mut bytes = vec![0; (end - start) as usize];
        let mut givers = BTreeSet::new();
        for (index, chunks) in chunks {
            let MemberCopy { member, fetcher, model, manifest, .. } = &mut copies[index];
            if let Err(error) = fetcher.read((*model, manifest), &chunks, (start, &mut bytes)).await {
                error.report();
                copies.remove(index);
                continue 'again;
            }
            givers.insert(member.clone());
        }
        return Some((bytes, givers));
    }
}
