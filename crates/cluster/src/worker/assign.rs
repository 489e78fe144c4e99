//! Which shard in memory serves which wanted shard.

use std::cmp::Reverse;

use exo_types::Time;

use super::{ActualShard, EngineId, Phase, Worker};
use crate::wire::DesiredShard;

impl Worker {
    /// Gives every wanted shard an entry: the one that serves it already, unless one with the same content is
    /// further and serves none; else a new one. An entry serves one wanted shard at a time, so two with the
    /// same content take two. An entry that is left over and holds nothing is dropped.
    pub(super) fn assign(&mut self, now: Time) {
        let wanted = self.desired.as_ref().map_or(&[][..], |desired| &desired.shards);
        for entry in &mut self.actual {
            let goes_on = |w: &DesiredShard| entry.serves == Some(w.position()) && w.spec() == entry.spec;
            if !wanted.iter().any(goes_on) {
                entry.serves = None;
            }
        }
        for shard in wanted {
            let (position, spec) = (shard.position(), shard.spec());
            let own = self.actual.iter().position(|entry| entry.serves == Some(position));
            let is_same =
                |e: &ActualShard| e.serves.is_none() && e.phase != Phase::Unloading && e.spec == spec;
            let same = self.actual.iter().enumerate().filter(|(_, entry)| is_same(entry));
            let furthest = same.max_by_key(|(_, entry)| (entry.phase.order(), Reverse(entry.engine)));
            let furthest = furthest.map(|(index, _)| index);
            let order = |index: usize| self.actual[index].phase.order();
            match (own, furthest) {
                (Some(own), Some(other)) if order(other) > order(own) => {
                    self.actual[own].serves = None;
                    self.actual[other].take_over(shard, now);
                }
                (Some(_), _) => {}
                (None, Some(other)) => self.actual[other].take_over(shard, now),
                (None, None) => {
                    self.engine_last = EngineId(self.engine_last.0 + 1);
                    self.actual.push(ActualShard::absent(self.engine_last, shard, now));
                }
            }
        }
        self.actual.retain(|entry| entry.serves.is_some() || !entry.phase.is_idle());
    }
}

impl ActualShard {
    /// Nothing yet of a wanted shard.
    pub(super) fn absent(engine: EngineId, shard: &DesiredShard, now: Time) -> Self {
        Self {
            engine,
            serves: Some(shard.position()),
            spec: shard.spec(),
            memory_bytes: shard.memory_bytes,
            phase: Phase::Absent,
            since: now,
            failures: 0,
            failed_loads: 0,
            failure: None,
            retry_at: now,
        }
    }

    /// Serves another wanted shard of the same content from now on. What failed before does not count against
    /// it.
    fn take_over(&mut self, shard: &DesiredShard, now: Time) {
        self.serves = Some(shard.position());
        if !self.phase.holds_memory() {
            self.memory_bytes = shard.memory_bytes;
        }
        (self.failures, self.failed_loads, self.failure, self.retry_at) = (0, 0, None, now);
    }
}

impl Phase {
    /// Grows from nothing to loaded: of two shards with the same content, the one that is further is taken.
    fn order(&self) -> u8 {
        match self {
            Self::Absent | Self::Unloading => 0,
            Self::FetchingManifest => 1,
            Self::ManifestHeld => 2,
            Self::FetchingChunks { .. } => 3,
            Self::Stored => 4,
            Self::Loading { .. } => 5,
            Self::Ready { .. } => 6,
        }
    }
}
