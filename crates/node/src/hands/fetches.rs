//! Fetches of manifests and of the bytes of shards, and the list of models on disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use exo_cluster::wire::{HeldModel, limits};
use exo_machine::{FetchEvent, FetchId, FetchWhat, Holder, Input, Received};
use exo_store::ModelRecord;
use exo_types::ModelId;
use tokio_util::sync::CancellationToken;

use crate::events::EventSender;
use crate::library::{Library, LibraryError, ShardProgress};
use crate::meters::{Meters, TransferMeter};
use exo_accelerators::chain;

/// The fetches under way.
pub struct Fetches {
    library: Arc<Library>,
    events: EventSender,
    running: BTreeMap<FetchId, CancellationToken>,
    meters: Arc<Meters>,
}

impl Fetches {
    /// None yet.
    pub fn new(library: Arc<Library>, events: EventSender, meters: Arc<Meters>) -> Self {
        Self { library, events, running: BTreeMap::new(), meters }
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
                let mut before = None;
                let mut progress = |so_far: ShardProgress| {
                    let ShardProgress { done_bytes, total_bytes, hub_wait, .. } = so_far;
                    let already = before.replace(done_bytes).unwrap_or(done_bytes);
                    meters.transfers.received(done_bytes.saturating_sub(already));
                    let hub_wait_s = u32::try_from(hub_wait.as_secs()).unwrap_or(u32::MAX);
                    let event = FetchEvent::Progress { done_bytes, total_bytes, hub_wait_s };
                    events.post(Input::Fetched { fetch, event });
                };
                let received = |from, (bytes, took)| {
                    let received = Received { bytes, took, is_burst: false };
                    events.post(Input::Received { from, received });
                };
                match what {
                    FetchWhat::Manifest => library.ensure_manifest(model, &holders).await,
                    FetchWhat::Shard(shard) => {
                        library.ensure_shard(model, &shard, &holders, &mut progress, &received).await
                    }
                }
            };
            tokio::select! {
                () = token.cancelled() => {}
                done = work => {
                    let event = match done {
                        Ok(()) => FetchEvent::Done,
                        Err(error) => {
                            // It will hardly have room the next time.
                            let is_refusal = matches!(error, LibraryError::NoRoom { .. });
                            FetchEvent::Failed { reason: chain(&error), is_refusal }
                        }
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
        let (library, events) = (self.library.clone(), self.events.clone());
        tokio::task::spawn_blocking(move || {
            let records = library.store().list().unwrap_or_default();
            library.room.looked_at(&records);
            let mut models = held(records);
            models.retain(|held| !library.room.is_leaving(held.model));
            events.post(Input::Models(models));
        });
    }
}

/// The models on disk.
pub fn held_models(store: &exo_store::Store) -> Vec<HeldModel> {
    held(store.list().unwrap_or_default())
}

fn held(records: Vec<ModelRecord>) -> Vec<HeldModel> {
    let held = records.into_iter().filter(|r| r.problem.is_none()).map(|r| HeldModel {
        model: r.id,
        name: r.name,
        bytes: r.bytes,
        held_bytes: r.held_bytes.min(r.bytes),
        complete: r.complete,
        is_of_hub: r.is_of_hub,
    });
    held.take(limits::MODELS_MAX).collect()
}
