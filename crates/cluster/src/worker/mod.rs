//! The worker's reconcile loop: what the coordinator wants against what is here, again and again.
//!
//! [`plan`] is a pure function from both to the next action. It is idempotent: an action changes the phase of its
//! shard, so the same question gives the next answer, and after a crash or a lost message the loop simply goes on
//! from what is there. What is wanted no more leaves before something new is loaded. An action that makes no
//! progress is cancelled, a failed one is tried again later and later.
//!
//! Start reading at [`plan`].

mod plan;
#[cfg(test)]
mod tests;
mod words;

use std::collections::BTreeMap;

use exo_types::{DeviceId, Epoch, Placement, Time};

pub use self::plan::plan;
pub use self::words::{Action, ActualShard, CacheShape, Phase, ShardKey, WorkerConfig, WorkerInput};
use crate::StageStatus;
use crate::wire::{DesiredShard, DesiredState, Refusal, StageReport};

/// Brings this node's shards to what the coordinator wants.
#[derive(Clone, Debug)]
pub struct Worker {
    config: WorkerConfig,
    /// What each device may hold in all.
    memory_bytes: BTreeMap<DeviceId, u64>,
    desired: Option<DesiredState>,
    actual: Vec<ActualShard>,
}

impl Worker {
    /// A worker that holds nothing. `memory_bytes` is what each device may hold in all.
    pub fn new(config: WorkerConfig, memory_bytes: BTreeMap<DeviceId, u64>) -> Self {
        Self { config, memory_bytes, desired: None, actual: Vec::new() }
    }

    /// Takes in what happened and returns what to start now, in order; a stale desired state is refused.
    pub fn handle(&mut self, now: Time, input: WorkerInput) -> Result<Vec<Action>, Refusal> {
        let mut actions = Vec::new();
        match input {
            WorkerInput::Tick => self.give_up_stalled(now, &mut actions),
            WorkerInput::Desired(desired) => self.want(desired)?,
            WorkerInput::Moved => self.desired = None,
            WorkerInput::ManifestHeld(key) => {
                self.advance(now, key, &Phase::FetchingManifest, Phase::ManifestHeld)
            }
            WorkerInput::Stored(key) => {
                let fetching = Phase::FetchingChunks { done_bytes: 0, total_bytes: 0 };
                self.advance(now, key, &fetching, Phase::Stored);
            }
            WorkerInput::Ready(key) => {
                let loading = Phase::Loading { done_bytes: 0, total_bytes: 0 };
                self.advance(now, key, &loading, Phase::Ready);
            }
            WorkerInput::Progress { key, done_bytes, total_bytes } => {
                self.progress(now, key, done_bytes, total_bytes);
            }
            WorkerInput::Failed { key, reason } => self.failed(now, key, reason),
            WorkerInput::Refused { key, reason } => {
                if let Some(entry) =
                    self.entry(key).filter(|entry| matches!(entry.phase, Phase::Loading { .. }))
                {
                    entry.failed_loads = entry.failed_loads.saturating_add(1);
                }
                self.failed(now, key, reason);
            }
            WorkerInput::Unloaded(key) => self.unloaded(now, key),
        }
        self.reconcile(now, &mut actions);
        Ok(actions)
    }

    /// A device may hold this much in all from now on.
    pub fn set_memory(&mut self, device: DeviceId, memory_bytes: u64) {
        self.memory_bytes.insert(device, memory_bytes);
    }

    /// What to report of the stages.
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
        self.list_wanted(now);
        while let Some(action) = plan(self.desired(), &self.actual, &self.memory_bytes, now) {
            self.begin(now, &action);
            actions.push(action);
        }
        self.note_starved(now);
    }

    /// Wanted shards get an entry, idle entries of unwanted ones go.
    fn list_wanted(&mut self, now: Time) {
        let Some(desired) = &self.desired else { return };
        for shard in &desired.shards {
            if !self.actual.iter().any(|a| a.key == key_of(shard)) {
                self.actual.push(absent(shard, now));
            }
        }
        self.actual.retain(|a| !a.phase.is_idle() || desired.shards.iter().any(|d| key_of(d) == a.key));
    }

    /// Notes that an action was started.
    fn begin(&mut self, now: Time, action: &Action) {
        if let Action::AdoptShard { from, .. } = action {
            self.actual.retain(|a| a.key != *from);
        }
        let (key, phase) = match action {
            Action::FetchManifest { key, .. } => (*key, Phase::FetchingManifest),
            Action::FetchChunks { key, .. } => {
                (*key, Phase::FetchingChunks { done_bytes: 0, total_bytes: 0 })
            }
            Action::LoadShard { key, .. } | Action::AdoptShard { to: key, .. } => {
                (*key, Phase::Loading { done_bytes: 0, total_bytes: 0 })
            }
            Action::UnloadShard { key } | Action::Cancel { key } => (*key, Phase::Unloading),
        };
        if let Some(entry) = self.entry(key) {
            entry.phase = phase;
            entry.since = now;
        }
    }

    fn entry(&mut self, key: ShardKey) -> Option<&mut ActualShard> {
        self.actual.iter_mut().find(|a| a.key == key)
    }

    /// An action succeeded, if it is the one under way.
    fn advance(&mut self, now: Time, key: ShardKey, from: &Phase, to: Phase) {
        let Some(entry) = self.entry(key) else { return };
        if std::mem::discriminant(&entry.phase) != std::mem::discriminant(from) {
            return tracing::trace!(?key, phase = ?entry.phase, got = ?to, "the end of an action that is not under way");
        }
        if to == Phase::Ready {
            entry.failures = 0;
            entry.failed_loads = 0;
            entry.failure = None;
        }
        entry.phase = to;
        entry.since = now;
    }

    /// Only bytes that grow put the deadline off.
    fn progress(&mut self, now: Time, key: ShardKey, done: u64, total: u64) {
        let Some(entry) = self.entry(key) else { return };
        if let Phase::FetchingChunks { done_bytes, total_bytes }
        | Phase::Loading { done_bytes, total_bytes } = &mut entry.phase
        {
            if done > *done_bytes {
                entry.since = now;
            }
            *done_bytes = done;
            *total_bytes = total;
        }
    }

    fn failed(&mut self, now: Time, key: ShardKey, reason: String) {
        let config = self.config;
        let Some(entry) = self.entry(key).filter(|a| !a.phase.is_idle()) else { return };
        if entry.phase != Phase::Unloading {
            note_failure(entry, now, &config, reason);
        }
        entry.phase = Phase::Absent;
        entry.since = now;
    }

    fn unloaded(&mut self, now: Time, key: ShardKey) {
        let config = self.config;
        let Some(entry) = self.entry(key) else { return };
        if entry.phase != Phase::Unloading {
            note_failure(entry, now, &config, "the device let go of it".to_owned());
        }
        entry.phase = Phase::Absent;
        entry.since = now;
    }

    /// What does not move is cancelled, and unloading that does not end is asked for again.
    fn give_up_stalled(&mut self, now: Time, actions: &mut Vec<Action>) {
        let config = self.config;
        for entry in &mut self.actual {
            if now.since(entry.since) <= config.stall_deadline {
                continue;
            }
            let key = entry.key;
            match entry.phase {
                Phase::FetchingManifest | Phase::FetchingChunks { .. } | Phase::Loading { .. } => {
                    let what = format!("no progress for {} s", config.stall_deadline.as_secs());
                    note_failure(entry, now, &config, what);
                    actions.push(Action::Cancel { key });
                }
                Phase::Unloading => actions.push(Action::UnloadShard { key }),
                Phase::Absent | Phase::ManifestHeld | Phase::Stored | Phase::Ready => continue,
            }
            entry.phase = Phase::Unloading;
            entry.since = now;
        }
    }

    /// A shard that waits for memory nobody is about to free says so.
    fn note_starved(&mut self, now: Time) {
        let Some(desired) = &self.desired else { return };
        let config = self.config;
        let starved: Vec<(ShardKey, String)> = desired
            .shards
            .iter()
            .filter_map(|d| Some((key_of(d), plan::starved(d, &self.actual, &self.memory_bytes, now)?)))
            .collect();
        for (key, reason) in starved {
            if let Some(entry) = self.entry(key) {
                note_failure(entry, now, &config, reason);
            }
        }
    }
}

/// Names the shard.
fn key_of(shard: &DesiredShard) -> ShardKey {
    let (instance, generation) = (shard.placement.instance, shard.placement.generation);
    ShardKey { instance, generation, stage: shard.stage }
}

/// What decides the cache of a shard besides its layers.
fn cache_of(placement: &Placement) -> CacheShape {
    let Placement { context_tokens, slots, cache_tokens, kv, .. } = *placement;
    CacheShape { context_tokens, slots, cache_tokens, kv }
}

fn absent(shard: &DesiredShard, now: Time) -> ActualShard {
    ActualShard {
        key: key_of(shard),
        model: shard.placement.model,
        shard: *shard.shard(),
        device: shard.device().clone(),
        cache: cache_of(&shard.placement),
        memory_bytes: shard.memory_bytes,
        phase: Phase::Absent,
        since: now,
        failures: 0,
        failed_loads: 0,
        failure: None,
        retry_at: now,
    }
}

/// Doubles the wait with each failure in a row.
fn note_failure(entry: &mut ActualShard, now: Time, config: &WorkerConfig, reason: String) {
    let doublings = entry.failures.min(16);
    let wait = config.backoff_min.saturating_mul(1 << doublings).min(config.backoff_max);
    entry.failures = entry.failures.saturating_add(1);
    entry.failure = Some(reason.chars().take(1000).collect());
    entry.retry_at = now + wait;
}

fn report(entry: &ActualShard) -> StageReport {
    let status = match (&entry.phase, &entry.failure) {
        (Phase::FetchingManifest, _) => StageStatus::Fetching { done_bytes: 0, total_bytes: 0 },
        (&Phase::FetchingChunks { done_bytes, total_bytes }, _) => {
            StageStatus::Fetching { done_bytes, total_bytes }
        }
        (&Phase::Loading { done_bytes, total_bytes }, _) => StageStatus::Loading { done_bytes, total_bytes },
        (Phase::Ready, _) => StageStatus::Loaded,
        (_, Some(reason)) => StageStatus::Failed { reason: reason.clone(), failed_loads: entry.failed_loads },
        (_, None) => StageStatus::Waiting,
    };
    let ShardKey { instance, generation, stage } = entry.key;
    let held_bytes = if entry.phase.holds_memory() { entry.memory_bytes } else { 0 };
    let device = entry.device.clone();
    let (weight_bytes, waiting_bytes, busy_us) = (0, 0, 0);
    StageReport {
        instance,
        generation,
        stage,
        device,
        status,
        held_bytes,
        weight_bytes,
        waiting_bytes,
        busy_us,
    }
}
