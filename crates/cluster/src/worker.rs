//! The worker's reconcile loop: what the coordinator wants against what is here, again and again.
//!
//! A shard in memory is what it is ([`ShardSpec`](exo_types::ShardSpec)), not when it was placed: a wanted
//! shard takes over an entry with the same content (`assign`), so that the next placement of an instance
//! loads only what changed. [`plan`] is a pure function from both to the next action. It is idempotent: an
//! action changes the phase of its shard, so the same question gives the next answer, and after a crash or a
//! lost message the loop simply goes on from what is there. What is wanted no more leaves before something
//! new is loaded. An action that makes no progress is cancelled, a failed one is tried again later and later.
//!
//! Start reading at [`plan`].

mod assign;
mod plan;
#[cfg(test)]
mod tests;
mod types;

use std::collections::BTreeMap;
use std::time::Duration;

use exo_types::{DeviceId, Epoch, ShardPosition, Time};

pub use self::plan::plan;
pub use self::types::{Action, ActualShard, Phase, WorkerInput};
use crate::wire::{DesiredShard, DesiredState, Refusal, StageReport};
use crate::{EngineId, LoadFailure, StageStatus};

/// An action without progress for this long is given up.
pub(crate) const STALL_DEADLINE: Duration = Duration::from_secs(60);
/// Wait after the first failure; doubled with each further one.
const BACKOFF_MIN: Duration = Duration::from_secs(1);
/// Longest wait between attempts.
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// Brings this node's shards to what the coordinator wants.
#[derive(Clone, Debug)]
pub struct Worker {
    /// What each device may hold in all.
    memory_bytes: BTreeMap<DeviceId, u64>,
    desired: Option<DesiredState>,
    actual: Vec<ActualShard>,
    /// The last name given.
    engine_last: EngineId,
}

impl Worker {
    /// A worker that holds nothing. `memory_bytes` is what each device may hold in all.
    pub fn new(memory_bytes: BTreeMap<DeviceId, u64>) -> Self {
        Self { memory_bytes, desired: None, actual: Vec::new(), engine_last: EngineId(0) }
    }

    /// Takes in what happened and returns what to start now, in order; a stale desired state is refused.
    pub fn handle(&mut self, now: Time, input: WorkerInput) -> Result<Vec<Action>, Refusal> {
        let mut actions = Vec::new();
        match input {
            WorkerInput::Tick => self.give_up_stalled(now, &mut actions),
            WorkerInput::Desired(desired) => self.want(desired)?,
            WorkerInput::Moved => self.desired = None,
            WorkerInput::ManifestHeld(engine) => {
                self.advance(now, engine, &Phase::FetchingManifest, Phase::ManifestHeld);
            }
            WorkerInput::Stored(engine) => {
                let fetching = Phase::FetchingChunks { done_bytes: 0, total_bytes: 0, hub_wait_s: 0 };
                self.advance(now, engine, &fetching, Phase::Stored);
            }
            WorkerInput::Ready(engine) => {
                let loading = Phase::Loading { done_bytes: 0, total_bytes: 0 };
                self.advance(now, engine, &loading, Phase::Ready);
            }
            WorkerInput::Progress { engine, done_bytes, total_bytes, hub_wait_s } => {
                self.progress(now, engine, (done_bytes, total_bytes), hub_wait_s);
            }
            WorkerInput::Failed { engine, why } => self.failed(now, engine, why),
            WorkerInput::Unloaded(engine) => self.unloaded(now, engine),
        }
        self.reconcile(now, &mut actions);
        Ok(actions)
    }

    /// A device may hold this much in all from now on.
    pub fn set_memory(&mut self, device: DeviceId, memory_bytes: u64) {
        self.memory_bytes.insert(device, memory_bytes);
    }

    /// What to report of the shards, those that are wanted no more included.
    pub fn reports(&self) -> Vec<StageReport> {
        self.actual.iter().map(report).collect()
    }

    /// What is wanted here.
    pub fn desired(&self) -> &[DesiredShard] {
        self.desired.as_ref().map_or(&[], |d| &d.shards)
    }

    /// Epoch and revision of the wish being worked on, for the report.
    pub fn desired_revision(&self) -> Option<(Epoch, u64)> {
        self.desired.as_ref().map(|d| (d.epoch, d.revision))
    }

    /// Which shard in memory serves a wanted shard. It may not be loaded yet.
    pub fn engine_of(&self, position: ShardPosition) -> Option<EngineId> {
        self.actual.iter().find(|entry| entry.serves == Some(position)).map(|entry| entry.engine)
    }

    /// Which wanted shard a shard in memory serves; `None` if it is unknown or to leave.
    pub fn position_of(&self, engine: EngineId) -> Option<ShardPosition> {
        self.actual.iter().find(|entry| entry.engine == engine)?.serves
    }

    /// All there is here.
    pub fn shards(&self) -> &[ActualShard] {
        &self.actual
    }

    fn want(&mut self, desired: DesiredState) -> Result<(), Refusal> {
        if let Some((seen, revision)) = self.desired_revision() {
            let (got, at) = (desired.revision, desired.epoch.counter);
            if desired.epoch < seen {
                tracing::trace!(got = at, seen = seen.counter, "a wish of an older epoch");
                return Err(Refusal::StaleEpoch { got: desired.epoch, seen });
            }
            if desired.epoch == seen && got < revision {
                tracing::trace!(got, seen = revision, "an older wish");
                return Err(Refusal::StaleRevision { got: desired.revision, seen: revision });
            }
        }
        self.desired = Some(desired);
        Ok(())
    }

    /// Acts until there is nothing to do now.
    fn reconcile(&mut self, now: Time, actions: &mut Vec<Action>) {
        self.assign(now);
        while let Some(action) = plan(self.desired(), &self.actual, &self.memory_bytes, now) {
            self.begin(now, &action);
            actions.push(action);
        }
        self.note_starved(now);
    }

    /// Notes that an action was started.
    fn begin(&mut self, now: Time, action: &Action) {
        let (engine, phase) = match action {
            Action::FetchManifest { engine, .. } => (*engine, Phase::FetchingManifest),
            Action::FetchChunks { engine, .. } => {
                (*engine, Phase::FetchingChunks { done_bytes: 0, total_bytes: 0, hub_wait_s: 0 })
            }
            Action::LoadShard { engine, .. } => (*engine, Phase::Loading { done_bytes: 0, total_bytes: 0 }),
            Action::UnloadShard { engine } | Action::Cancel { engine } => (*engine, Phase::Unloading),
        };
        if let Some(entry) = self.entry(engine) {
            entry.phase = phase;
            entry.since = now;
        }
    }

    fn entry(&mut self, engine: EngineId) -> Option<&mut ActualShard> {
        self.actual.iter_mut().find(|a| a.engine == engine)
    }

    /// An action succeeded, if it is the one under way.
    fn advance(&mut self, now: Time, engine: EngineId, from: &Phase, to: Phase) {
        let Some(entry) = self.entry(engine) else { return unknown(engine) };
        if std::mem::discriminant(&entry.phase) != std::mem::discriminant(from) {
            return tracing::trace!(engine = engine.0, phase = ?entry.phase, got = ?to, "the end of an action that is not under way");
        }
        if to == Phase::Ready {
            entry.failures = 0;
            entry.failed_loads = 0;
            entry.failure = None;
        }
        entry.phase = to;
        entry.since = now;
    }

    /// Only bytes that grow put the deadline off, and a wait that the hub asks for.
    fn progress(&mut self, now: Time, engine: EngineId, (done, total): (u64, u64), wait_s: u32) {
        let Some(entry) = self.entry(engine) else { return unknown(engine) };
        if let Phase::FetchingChunks { hub_wait_s, .. } = &mut entry.phase {
            *hub_wait_s = wait_s;
        }
        if let Phase::FetchingChunks { done_bytes, total_bytes, .. }
        | Phase::Loading { done_bytes, total_bytes } = &mut entry.phase
        {
            if done > *done_bytes || wait_s > 0 {
                entry.since = now;
            }
            *done_bytes = done;
            *total_bytes = total;
        }
    }

    /// What the device would not take, or the disk has no room for, is counted besides.
    fn failed(&mut self, now: Time, engine: EngineId, why: LoadFailure) {
        let Some(entry) = self.entry(engine).filter(|entry| !entry.phase.is_idle()) else {
            return tracing::trace!(engine = engine.0, ?why, "a failure of an action that is not under way");
        };
        let is_coming = matches!(entry.phase, Phase::FetchingChunks { .. } | Phase::Loading { .. });
        entry.failed_loads = entry.failed_loads.saturating_add(u32::from(is_coming && why.is_refusal()));
        self.begin_again(now, engine, why);
    }

    fn unloaded(&mut self, now: Time, engine: EngineId) {
        self.begin_again(now, engine, LoadFailure::LetGo);
    }

    /// Nothing of it is left. Unless that was asked for, it counts as a failure. What comes next is another
    /// engine.
    fn begin_again(&mut self, now: Time, engine: EngineId, why: LoadFailure) {
        let next = EngineId(self.engine_last.0 + 1);
        let Some(entry) = self.entry(engine) else { return unknown(engine) };
        if entry.phase != Phase::Unloading {
            note_failure(entry, now, why);
        }
        (entry.engine, entry.phase, entry.since) = (next, Phase::Absent, now);
        self.engine_last = next;
    }

    /// What does not move is cancelled, and unloading that does not end is asked for again.
    fn give_up_stalled(&mut self, now: Time, actions: &mut Vec<Action>) {
        for entry in &mut self.actual {
            if now.since(entry.since) <= STALL_DEADLINE {
                continue;
            }
            let engine = entry.engine;
            match entry.phase {
                Phase::FetchingManifest | Phase::FetchingChunks { .. } | Phase::Loading { .. } => {
                    let why = LoadFailure::NoProgress { seconds: STALL_DEADLINE.as_secs() };
                    note_failure(entry, now, why);
                    actions.push(Action::Cancel { engine });
                }
                Phase::Unloading => actions.push(Action::UnloadShard { engine }),
                Phase::Absent | Phase::ManifestHeld | Phase::Stored | Phase::Ready => continue,
            }
            entry.phase = Phase::Unloading;
            entry.since = now;
        }
    }

    /// A shard that waits for memory that nothing is about to free says so.
    fn note_starved(&mut self, now: Time) {
        let Some(desired) = &self.desired else { return };
        let starved: Vec<(ShardPosition, LoadFailure)> = desired
            .shards
            .iter()
            .filter_map(|d| Some((d.position(), plan::starved(d, &self.actual, &self.memory_bytes, now)?)))
            .collect();
        for (position, why) in starved {
            if let Some(entry) = self.actual.iter_mut().find(|entry| entry.serves == Some(position)) {
                note_failure(entry, now, why);
            }
        }
    }
}

fn unknown(engine: EngineId) {
    tracing::trace!(engine = engine.0, "news of a shard that is not here");
}

/// Doubles the wait with each failure in a row.
fn note_failure(entry: &mut ActualShard, now: Time, why: LoadFailure) {
    let doublings = entry.failures.min(16);
    let wait = BACKOFF_MIN.saturating_mul(1 << doublings).min(BACKOFF_MAX);
    entry.failures = entry.failures.saturating_add(1);
    entry.failure = Some(why.clipped());
    entry.retry_at = now + wait;
}

fn report(entry: &ActualShard) -> StageReport {
    let status = match (&entry.phase, &entry.failure) {
        (Phase::FetchingManifest, _) => {
            StageStatus::Fetching { done_bytes: 0, total_bytes: 0, hub_wait_s: 0 }
        }
        (&Phase::FetchingChunks { done_bytes, total_bytes, hub_wait_s }, _) => {
            StageStatus::Fetching { done_bytes, total_bytes, hub_wait_s }
        }
        (&Phase::Loading { done_bytes, total_bytes }, _) => StageStatus::Loading { done_bytes, total_bytes },
        (Phase::Ready, _) => StageStatus::Loaded,
        (_, Some(why)) => StageStatus::Failed { why: why.clone(), failed_loads: entry.failed_loads },
        (_, None) => StageStatus::Waiting,
    };
    let held_bytes = if entry.phase.holds_memory() { entry.memory_bytes } else { 0 };
    let (engine, serves, spec) = (entry.engine, entry.serves, entry.spec.clone());
    let (weight_bytes, unpacked_bytes, busy_us) = (0, 0, 0);
    let (rows_bytes, rows_bytes_max) = (0, 0);
    let (sequences, sources) = (0, Vec::new());
    StageReport {
        engine,
        serves,
        spec,
        status,
        held_bytes,
        weight_bytes,
        unpacked_bytes,
        rows_bytes,
        rows_bytes_max,
        busy_us,
        sequences,
        sources,
    }
}
