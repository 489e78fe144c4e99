//! The reconcile decision.

use std::collections::BTreeMap;

use exo_types::{DeviceId, Time};

use super::{Action, ActualShard, Phase};
use crate::load_failure::LoadFailure;
use crate::wire::DesiredShard;

/// The next action that brings `actual` nearer to `desired`; `None` when there is nothing to do now.
///
/// In this order: what serves no wanted shard leaves; then the entry of each wanted shard takes its next step
/// (manifest, bytes, load). A shard is loaded only when `memory_bytes` of its device would hold it beside
/// everything that still holds memory there, unloading included. A wanted shard without an entry is passed
/// over: the worker gives it one first.
pub fn plan(
    desired: &[DesiredShard],
    actual: &[ActualShard],
    memory_bytes: &BTreeMap<DeviceId, u64>,
    now: Time,
) -> Option<Action> {
    let leave = actual.iter().filter(|entry| entry.serves.is_none()).find_map(leave);
    leave.or_else(|| desired.iter().find_map(|d| approach(d, actual, memory_bytes, now)))
}

/// How an entry that serves no wanted shard goes; `None` if it is going or holds nothing.
fn leave(entry: &ActualShard) -> Option<Action> {
    let engine = entry.engine;
    match entry.phase {
        Phase::FetchingManifest | Phase::FetchingChunks { .. } | Phase::Loading { .. } => {
            Some(Action::Cancel { engine })
        }
        Phase::Ready => Some(Action::UnloadShard { engine }),
        Phase::Absent | Phase::ManifestHeld | Phase::Stored | Phase::Unloading => None,
    }
}

/// The wanted shard's next step; `None` if it is there, under way, or waiting.
fn approach(
    shard: &DesiredShard,
    actual: &[ActualShard],
    memory_bytes: &BTreeMap<DeviceId, u64>,
    now: Time,
) -> Option<Action> {
    let entry = serving(shard, actual).filter(|entry| entry.retry_at <= now)?;
    let (engine, model, holders) = (entry.engine, entry.spec.model, shard.holders.clone());
    match entry.phase {
        Phase::Absent => Some(Action::FetchManifest { engine, model, holders }),
        Phase::ManifestHeld => {
            Some(Action::FetchChunks { engine, model, shard: entry.spec.shard(), holders })
        }
        Phase::Stored if free_bytes(&entry.spec.device, actual, memory_bytes) >= shard.memory_bytes => {
            Some(Action::LoadShard { engine, spec: entry.spec.clone() })
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
) -> Option<LoadFailure> {
    let entry = serving(shard, actual).filter(|a| a.phase == Phase::Stored && a.retry_at <= now)?;
    let device = &entry.spec.device;
    let going = actual.iter().any(|a| a.spec.device == *device && a.phase == Phase::Unloading);
    let free_bytes = free_bytes(device, actual, memory_bytes);
    let short = free_bytes < shard.memory_bytes && !going;
    let (shard, needed_bytes) = (entry.spec.shard(), shard.memory_bytes);
    short.then_some(LoadFailure::NoMemory { shard, needed_bytes, free_bytes })
}

fn free_bytes(device: &DeviceId, actual: &[ActualShard], memory_bytes: &BTreeMap<DeviceId, u64>) -> u64 {
    let here = actual.iter().filter(|a| a.spec.device == *device && a.phase.holds_memory());
    let held = here.fold(0u64, |sum, a| sum.saturating_add(a.memory_bytes));
    memory_bytes.get(device).copied().unwrap_or(0).saturating_sub(held)
}

fn serving<'a>(shard: &DesiredShard, actual: &'a [ActualShard]) -> Option<&'a ActualShard> {
    actual.iter().find(|entry| entry.serves == Some(shard.position()))
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
