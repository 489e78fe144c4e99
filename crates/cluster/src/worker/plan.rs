//! The reconcile decision.

use std::collections::BTreeMap;

use exo_types::{DeviceId, Time};

use super::{Action, ActualShard, Phase, ShardKey, cache_of, key_of};
use crate::wire::DesiredShard;

/// The next action that brings `actual` nearer to `desired`; `None` when there is nothing to do now.
///
/// In this order: what is wanted no more leaves or is handed to the generation that wants the same; then each
/// wanted shard takes its next step (manifest, bytes, load). A shard is loaded only when `memory_bytes` of its
/// device would hold it beside everything that still holds memory there, unloading included.
pub fn plan(
    desired: &[DesiredShard],
    actual: &[ActualShard],
    memory_bytes: &BTreeMap<DeviceId, u64>,
    now: Time,
) -> Option<Action> {
    let unwanted = actual.iter().filter(|a| !desired.iter().any(|d| key_of(d) == a.key));
    let leave = unwanted.filter_map(|a| leave(a, desired, actual)).next();
    leave.or_else(|| desired.iter().find_map(|d| approach(d, actual, memory_bytes, now)))
}

/// How an unwanted shard goes; `None` if it is going or holds nothing.
fn leave(entry: &ActualShard, desired: &[DesiredShard], actual: &[ActualShard]) -> Option<Action> {
    let key = entry.key;
    match entry.phase {
        Phase::FetchingManifest | Phase::FetchingChunks { .. } | Phase::Loading { .. } => {
            Some(Action::Cancel { key })
        }
        Phase::Ready => Some(match heir(entry, desired, actual) {
            Some(d) => Action::AdoptShard { from: key, to: key_of(d), placement: d.placement.clone() },
            None => Action::UnloadShard { key },
        }),
        Phase::Absent | Phase::ManifestHeld | Phase::Stored | Phase::Unloading => None,
    }
}

/// The wanted shard that is the same weights and the same cache in a newer generation, and not loaded yet.
fn heir<'a>(
    entry: &ActualShard,
    desired: &'a [DesiredShard],
    actual: &[ActualShard],
) -> Option<&'a DesiredShard> {
    desired.iter().find(|d| {
        let p = &d.placement;
        let same = p.instance == entry.key.instance
            && p.model == entry.model
            && *d.shard() == entry.shard
            && *d.device() == entry.device
            && cache_of(p) == entry.cache;
        same && find(actual, key_of(d)).is_none_or(|a| a.phase.is_idle())
    })
}

/// The wanted shard's next step; `None` if it is there, under way, or waiting.
fn approach(
    shard: &DesiredShard,
    actual: &[ActualShard],
    memory_bytes: &BTreeMap<DeviceId, u64>,
    now: Time,
) -> Option<Action> {
    let key = key_of(shard);
    let entry = find(actual, key);
    if entry.is_some_and(|a| a.retry_at > now) {
        return None;
    }
    let (model, holders) = (shard.placement.model, shard.holders.clone());
    match entry.map_or(&Phase::Absent, |a| &a.phase) {
        Phase::Absent => Some(Action::FetchManifest { key, model, holders }),
        Phase::ManifestHeld => Some(Action::FetchChunks { key, model, shard: *shard.shard(), holders }),
        Phase::Stored if free_bytes(shard.device(), actual, memory_bytes) >= shard.memory_bytes => {
            Some(Action::LoadShard { key, placement: shard.placement.clone() })
        }
        Phase::Stored
        | Phase::FetchingManifest
        | Phase::FetchingChunks { .. }
        | Phase::Loading { .. }
        | Phase::Ready
        | Phase::Unloading => None,
    }
}

/// Why a stored shard cannot be loaded although nothing on its device is about to go; `None` if it can, or if
/// waiting helps.
pub(super) fn starved(
    shard: &DesiredShard,
    actual: &[ActualShard],
    memory_bytes: &BTreeMap<DeviceId, u64>,
    now: Time,
) -> Option<String> {
    let entry = find(actual, key_of(shard)).filter(|a| a.phase == Phase::Stored && a.retry_at <= now)?;
    let going = actual.iter().any(|a| a.device == entry.device && a.phase == Phase::Unloading);
    let free_bytes = free_bytes(&entry.device, actual, memory_bytes);
    let short = free_bytes < shard.memory_bytes && !going;
    short.then(|| format!("{} needs {} bytes, {free_bytes} are free", shard.shard(), shard.memory_bytes))
}

fn free_bytes(device: &DeviceId, actual: &[ActualShard], memory_bytes: &BTreeMap<DeviceId, u64>) -> u64 {
    let here = actual.iter().filter(|a| a.device == *device && a.phase.holds_memory());
    let held = here.fold(0u64, |sum, a| sum.saturating_add(a.memory_bytes));
    memory_bytes.get(device).copied().unwrap_or(0).saturating_sub(held)
}

fn find(actual: &[ActualShard], key: ShardKey) -> Option<&ActualShard> {
    actual.iter().find(|a| a.key == key)
}

impl Phase {
    /// Whether nothing runs and no device memory is held.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self, Self::Absent | Self::ManifestHeld | Self::Stored)
    }

    /// Whether device memory is, or may be, held.
    pub(super) fn holds_memory(&self) -> bool {
        matches!(self, Self::Loading { .. } | Self::Ready | Self::Unloading)
    }
}
