//! Fetches of manifests and of the bytes of shards, and the list of models on disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use exo_cluster::LoadFault;
use exo_cluster::wire::{FetchSource, HeldModel, limits};
use exo_machine::{FetchEvent, FetchId, FetchWhat, Holder, Input, Received};
use exo_stdx::Mutex;
use exo_store::{ModelRecord, StoreError};
use exo_types::{DiskRoom, ModelId, NodeId};
use tokio_util::sync::CancellationToken;

use crate::events::EventSender;
use crate::library::{Library, ShardProgress};
use crate::library_error::LibraryError;
use crate::meters::{Meters, TransferMeter};
use crate::source_bytes::{SourceBytes, SourceShare};
use exo_accelerators::chain;

pub struct Fetches {
    library: Arc<Library>,
    events: EventSender,
    running: BTreeMap<FetchId, CancellationToken>,
    meters: Arc<Meters>,
    /// What the last look at the disk found.
    last: Arc<Mutex<Vec<HeldModel>>>,
}

impl Fetches {
    pub fn new(library: Arc<Library>, events: EventSender, meters: Arc<Meters>) -> Self {
        Self { library, events, running: BTreeMap::new(), meters, last: Arc::default() }
    }

    pub fn start(&mut self, fetch: FetchId, model: ModelId, what: FetchWhat, holders: Vec<Holder>) {
        self.running.retain(|_, token| !token.is_cancelled());
        let token = CancellationToken::new();
        self.running.insert(fetch, token.clone());
        let (library, events, meters) = (self.library.clone(), self.events.clone(), self.meters.clone());
        tokio::spawn(async move {
            let _running = TransferMeter::begin(&meters);
            let work = async {
                // What was on the disk before did not come.
                let mut before = 0;
                let mut of_members = SourceBytes::new(Instant::now());
                let mut progress = |so_far: ShardProgress| {
                    let ShardProgress { done_bytes, total_bytes, hub_wait, from, .. } = so_far;
                    if let Some((member, bytes)) = from {
                        return of_members.note(member, bytes);
                    }
                    let came_bytes = so_far.came_bytes();
                    meters.transfers.received(came_bytes.saturating_sub(before));
                    before = came_bytes;
                    let hub_wait_s = u32::try_from(hub_wait.as_secs()).unwrap_or(u32::MAX);
                    let shares = of_members.shares(came_bytes, Instant::now());
                    let sources = shares.into_iter().map(source).collect();
                    let event = FetchEvent::Progress { done_bytes, total_bytes, hub_wait_s, sources };
                    events.post(Input::Fetched { fetch, event });
                };
                let received = |from, (bytes, took)| {
                    let received = Received { bytes, took, is_burst: false };
                    events.post(Input::Received { from, received });
                };
                let done = match what {
                    FetchWhat::Manifest => library.ensure_manifest(model, &holders).await,
                    FetchWhat::Shard(shard) => {
                        library.ensure_shard(model, &shard, &holders, &mut progress, &received).await
                    }
                };
                match done {
                    Err(error) => Err(library.why_not_held(model, error).await),
                    Ok(()) => Ok(()),
                }
            };
            tokio::select! {
                () = token.cancelled() => {}
                done = work => {
                    let event = match done {
                        Ok(()) => FetchEvent::Done,
                        Err(LibraryError::NoHolder { .. }) => FetchEvent::NoHolder,
                        Err(error) => FetchEvent::Failed { kind: fault(&error), detail: chain(&error) },
                    };
                    events.post(Input::Fetched { fetch, event });
                    // Its entry goes with the next fetch.
                    token.cancel();
                }
            }
        });
    }

    pub fn cancel(&mut self, fetch: FetchId) {
        if let Some(token) = self.running.remove(&fetch) {
            token.cancel();
        }
    }

    /// Looks at the models on disk, which a slow disk may hold up.
    pub fn scan(&self) {
        let (library, events, last) = (self.library.clone(), self.events.clone(), self.last.clone());
        tokio::task::spawn_blocking(move || {
            let (mut models, room) = look(&library, &last);
            models.retain(|held| !library.room.is_leaving(held.model));
            events.post(Input::Models(models, room));
        });
    }
}

/// As the node's report has it.
fn source(share: SourceShare<NodeId>) -> FetchSource {
    FetchSource { member: share.member, bytes: share.bytes, bytes_per_s: share.bytes_per_s }
}

/// At what a fetch failed.
fn fault(error: &LibraryError) -> LoadFault {
    match error {
        LibraryError::NoRoom { .. } => LoadFault::DiskRoom,
        LibraryError::Differs { .. } => LoadFault::Differs,
        LibraryError::Damaged { .. } => LoadFault::Damaged,
        _ => LoadFault::Fetch,
    }
}

/// The models on disk, and what may still be fetched.
pub fn held_models(library: &Library) -> (Vec<HeldModel>, DiskRoom) {
    look(library, &Mutex::default())
}

fn look(library: &Library, last: &Mutex<Vec<HeldModel>>) -> (Vec<HeldModel>, DiskRoom) {
    let room = &library.room;
    let records = library.store().list().inspect(|records| room.looked_at(records));
    let usable = |records: Vec<ModelRecord>| records.into_iter().filter(|record| record.problem.is_none());
    let held = records.map(|records| usable(records).map(|record| room.held(record)).collect());
    (held_now(held, last), room.disk_room())
}

/// What is there; where the disk does not say, what was there before: one that fails for a moment is no
/// reason to have no models.
fn held_now(held: Result<Vec<HeldModel>, StoreError>, last: &Mutex<Vec<HeldModel>>) -> Vec<HeldModel> {
    let mut last = last.lock();
    match held {
        Ok(held) => *last = bounded(held),
        Err(error) => {
            let error = exo_accelerators::chain(&error);
            tracing::warn!(
                error,
                models = last.len(),
                "the models on this disk cannot be listed; those of the last look count"
            );
        }
    }
    last.clone()
}

fn bounded(mut held: Vec<HeldModel>) -> Vec<HeldModel> {
    if held.len() > limits::MODELS_MAX {
        let max = limits::MODELS_MAX;
        tracing::warn!(models = held.len(), max, "the cluster is not told of all models on this disk");
        held.truncate(max);
    }
    held
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_cannot_be_read_is_not_an_empty_one() {
        let model = HeldModel {
            model: ModelId([1; 32]),
            name: "m".to_owned(),
            bytes: 1,
            held_bytes: 1,
            complete: true,
            is_of_hub: false,
            expected_bytes: 0,
            may_go: false,
        };
        let last = Mutex::new(vec![model]);
        let unread = || Err(StoreError::UnknownModel { id: ModelId([2; 32]) });
        assert_eq!(held_now(unread(), &last).len(), 1);
        assert_eq!(held_now(Ok(Vec::new()), &last).len(), 0);
        assert_eq!(held_now(unread(), &last).len(), 0);
    }
}
