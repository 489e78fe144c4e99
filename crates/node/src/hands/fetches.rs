//! Fetches of manifests and of the bytes of shards, and the list of models on disk.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use exo_cluster::LoadFault;
use exo_cluster::wire::{FetchSource, HeldModel, limits};
use exo_machine::{FetchEvent, FetchId, FetchWhat, Holder, Input, Received};
use exo_store::{ModelRecord, StoreError};
use exo_types::{DiskRoom, ModelId, NodeId};
use tokio_util::sync::CancellationToken;

use crate::events::EventSender;
use crate::library::{Library, ShardProgress};
use crate::library_error::LibraryError;
use crate::meters::{Meters, TransferMeter};
use exo_accelerators::chain;

/// The fetches under way.
pub struct Fetches {
    library: Arc<Library>,
    events: EventSender,
    running: BTreeMap<FetchId, CancellationToken>,
    meters: Arc<Meters>,
    /// What the last look at the disk found.
    last: Arc<Mutex<Vec<HeldModel>>>,
}

impl Fetches {
    /// None yet.
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
                let mut of_members = MemberBytes { since: Instant::now(), members: BTreeMap::new() };
                let mut progress = |so_far: ShardProgress| {
                    let ShardProgress { done_bytes, total_bytes, hub_wait, from, .. } = so_far;
                    if let Some((member, bytes)) = from {
                        return of_members.note(member, bytes);
                    }
                    let came_bytes = so_far.came_bytes();
                    meters.transfers.received(came_bytes.saturating_sub(before));
                    before = came_bytes;
                    let hub_wait_s = u32::try_from(hub_wait.as_secs()).unwrap_or(u32::MAX);
                    let sources = of_members.sources(came_bytes, Instant::now());
                    let event = FetchEvent::Progress { done_bytes, total_bytes, hub_wait_s, sources };
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

/// What members gave in one fetch.
struct MemberBytes {
    since: Instant,
    members: BTreeMap<NodeId, u64>,
}

impl MemberBytes {
    fn note(&mut self, member: NodeId, bytes: u64) {
        *self.members.entry(member).or_default() += bytes;
    }

    /// Where all that came is from, the most first: what no member gave, the hub did. Nothing where that is
    /// one source.
    fn sources(&self, came_bytes: u64, now: Instant) -> Vec<FetchSource> {
        let took_ms = now.saturating_duration_since(self.since).as_millis().max(1);
        let rate = |bytes: u64| u64::try_from(u128::from(bytes) * 1000 / took_ms).unwrap_or(u64::MAX);
        let of_hub = came_bytes.saturating_sub(self.members.values().sum());
        let of_members = self.members.iter().map(|(member, bytes)| (Some(*member), *bytes));
        let all = of_members.chain([(None, of_hub)]).filter(|(_, bytes)| *bytes > 0);
        let source = |(member, bytes)| FetchSource { member, bytes, bytes_per_s: rate(bytes) };
        let mut sources: Vec<FetchSource> = all.map(source).collect();
        if sources.len() < 2 {
            return Vec::new();
        }
        sources.sort_by_key(|source| Reverse(source.bytes));
        sources.truncate(limits::FETCH_SOURCES_MAX);
        sources
    }
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
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_no_member_gave_came_from_the_hub_and_one_source_is_not_told() {
        let [ann, bob] = [1, 2].map(|number| NodeId([number; 32]));
        let since = Instant::now();
        let mut bytes = MemberBytes { since, members: BTreeMap::new() };
        let now = since + Duration::from_secs(2);
        assert!(bytes.sources(900, now).is_empty(), "the hub alone");
        bytes.note(ann, 100);
        bytes.note(ann, 100);
        assert!(bytes.sources(200, now).is_empty(), "a member alone");
        bytes.note(bob, 600);
        let source = |member, bytes| FetchSource { member, bytes, bytes_per_s: bytes / 2 };
        assert_eq!(bytes.sources(800, now), [source(Some(bob), 600), source(Some(ann), 200)]);
        let of_all = [source(Some(bob), 600), source(None, 300), source(Some(ann), 200)];
        assert_eq!(bytes.sources(1100, now), of_all);
        (3..20).for_each(|number| bytes.note(NodeId([number; 32]), 1));
        assert_eq!(bytes.sources(2000, now).len(), limits::FETCH_SOURCES_MAX);
    }

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
