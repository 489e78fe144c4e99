//! Repair: what is lost of a placement finds another device, and nobody else moves.
//!
//! Stages that stand keep their layers and their devices, so their nodes load nothing. Each lost range goes
//! whole to the device with which an answer is soonest done, what must be fetched first included: the one
//! that had it, a free one, or a further stage on one that has a stage already. Where none holds it whole it
//! is cut, the longest part first. What this finds is soon there; the planner is asked for a better one when
//! it finds nothing.

use std::collections::BTreeMap;

use exo_planner::{Objective, PlanDevice, PlanRequest, lacking_kernels, predict, shard_memory};
use exo_types::{
    InstanceId, LayerRange, NodeId, Pin, PinLayers, Placement, Shard, Stage, SupportClass, Time,
};

use super::Coordinator;
use super::dry_run::objective_of;
use super::reach::Reach;
use crate::wire::limits::STAGES_MAX;
use crate::{PlaceObjective, StateInstance};

/// Where nodes were asked for, a lost stage goes to one without a stage that needs no longer for its weights.
const SPREAD_FETCH_NS_MAX: u64 = 10_000_000_000;

/// What an answer takes when a device has what is lost.
#[derive(Clone, Copy)]
struct Cost {
    /// Until it is done.
    counted_ns: u64,
    /// Of it, until the weights are there.
    fetch_ns: u64,
}

/// Stages in order, each with the bytes that its shard needs.
type Layout = Vec<(Stage, u64)>;

/// What layers are to go elsewhere.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RepairScope {
    /// What is lost. The stages of a drained node stay while they stand.
    Loss,
    /// What is on drained nodes.
    Move,
    /// What is on one of them.
    MoveFrom(NodeId),
}

impl RepairScope {
    /// Whether a stage that stands on a drained node stays there.
    fn leaves(self, node: NodeId) -> bool {
        match self {
            Self::Loss => true,
            Self::Move => false,
            Self::MoveFrom(drained) => node != drained,
        }
    }
}

/// A search for devices that take lost layers.
struct Repair<'a> {
    request: &'a PlanRequest,
    reach: &'a Reach,
    /// Whether stages were asked for on devices of their own: then those without one come first.
    spreads: bool,
    room: Room<'a>,
    layout: Layout,
}

/// Bytes that are free beside the stages that stand and those that were found so far.
struct Room<'a> {
    devices: &'a [PlanDevice],
    /// On each device; 0 where no stage may be.
    free: Vec<u64>,
    /// Of each memory domain.
    shared: BTreeMap<u64, u64>,
}

impl Coordinator {
    /// The instance with its lost layers elsewhere, or `None` where no device takes them. An instance that
    /// has lost nothing comes back as it is.
    pub(super) fn repaired(
        &self,
        now: Time,
        instance: InstanceId,
        of: RepairScope,
    ) -> Option<(Vec<Stage>, Vec<u64>)> {
        let entry = self.state.instances().get(&instance)?;
        let objective = match objective_of(&entry.request) {
            Objective::Spread { .. } => Objective::Latency,
            other => other,
        };
        let request = self.request_for(now, &entry.request, (Some(instance), &[]), objective);
        let request = request.within_disks();
        let reach = self.reach();
        let is_well = |d: &PlanDevice| {
            let avoided = self.avoided(now, instance, d.node, &d.device.id);
            d.device.support != SupportClass::Unsupported && avoided.is_none()
        };
        // What is drained goes only when it moves as a whole; a hung disk moves nothing.
        let stays = |d: &PlanDevice| match self.is_drained(d.node) {
            true => of.leaves(d.node) && is_well(d),
            false => self.is_disk_hung(d.node) && is_well(d),
        };
        let mut repair = Repair::new(&request, &reach, entry, of, stays);
        repair.room.close(|d| self.takes_no_more(d.node));
        while let Some(gap) = repair.gap() {
            repair.fill(gap)?;
        }
        let are_met = request.pins.iter().all(|pin| pin.layers.are_met(&repair.held(pin)));
        let (stages, memory_bytes): (Vec<Stage>, Vec<u64>) = repair.layout.into_iter().unzip();
        (are_met && reach.joins(&stages) && stages.len() <= STAGES_MAX).then_some((stages, memory_bytes))
    }
}

impl<'a> Repair<'a> {
    /// What stands on a device that is left out stays there if it `stays`.
    fn new(
        request: &'a PlanRequest,
        reach: &'a Reach,
        entry: &StateInstance,
        of: RepairScope,
        stays: impl Fn(&PlanDevice) -> bool,
    ) -> Self {
        let mut room = Room::of(&request.devices, |d| d.excluded.is_none() || stays(d));
        let stages = entry.placement.stages.iter().cloned().zip(entry.memory_bytes.iter().copied());
        let stands = |(stage, bytes): &(Stage, u64)| {
            // Today a stage has one shard.
            let Some(device) = room.position(stage) else { return false };
            let stands = stage.shards.len() == 1 && room.take(device, *bytes);
            if !stands && of != RepairScope::Loss {
                // It serves until what takes its layers is loaded.
                room.take_shared(device, *bytes);
            }
            stands
        };
        let layout = stages.filter(stands).collect();
        let spreads = matches!(entry.request.objective, PlaceObjective::Spread { .. });
        Self { request, reach, spreads, room, layout }
    }

    /// The first layers that no stage has.
    fn gap(&self) -> Option<LayerRange> {
        let layers = self.request.shape.layer_count();
        let mut next = 0;
        for (stage, _) in &self.layout {
            if stage.layers.start > next {
                return Some(LayerRange { start: next, end: stage.layers.start });
            }
            next = stage.layers.end;
        }
        (next < layers).then_some(LayerRange { start: next, end: layers })
    }

    /// Gives the gap, or its beginning, to a device.
    fn fill(&mut self, gap: LayerRange) -> Option<()> {
        let fits = |device: usize, range| self.bytes(device, range) <= self.room.free(device);
        let longest = |device: usize| {
            let ranges = (gap.start + 1..=gap.end).rev().map(|end| LayerRange { start: gap.start, end });
            let mut ranges =
                ranges.filter(|range| self.may_hold(device, *range) && self.talks(device, *range, gap));
            ranges.find(|range| fits(device, *range)).map(|range| (device, range))
        };
        let parts: Vec<(usize, LayerRange)> = (0..self.request.devices.len()).filter_map(longest).collect();
        let end = parts.iter().map(|(_, range)| range.end).max()?;
        let best = parts.into_iter().filter(|(_, range)| range.end == end);
        // Who wants several nodes gets them, and does not wait for minutes until one has fetched its part.
        let key = |&(cost, device, _): &(Cost, usize, LayerRange)| {
            let is_late = self.spreads && cost.fetch_ns > SPREAD_FETCH_NS_MAX;
            (is_late, self.spreads && self.has_stage(device), cost.counted_ns, device)
        };
        let best = best.filter_map(|(device, range)| Some((self.cost(device)?, device, range)));
        let (_, device, range) = best.min_by_key(key)?;
        let bytes = self.bytes(device, range);
        if !self.room.take(device, bytes) {
            return None;
        }
        let stage = self.stage(device, range);
        let at = self.layout.partition_point(|(before, _)| before.layers.start < range.start);
        self.layout.insert(at, (stage, bytes));
        Some(())
    }

    /// What a pinned device holds.
    fn held(&self, pin: &Pin) -> Vec<LayerRange> {
        let shards = self.layout.iter().map(|(stage, _)| (stage.leader(), stage.layers));
        let here = shards.filter(|(shard, _)| shard.node == pin.node && shard.device == pin.device);
        here.map(|(_, layers)| layers).collect()
    }

    /// Whether the device runs these layers, and the pins leave them to it.
    fn may_hold(&self, device: usize, range: LayerRange) -> bool {
        if lacking_kernels(self.request, &self.request.devices[device], range).is_some() {
            return false;
        }
        let PlanDevice { node, device, .. } = &self.request.devices[device];
        self.request.pins.iter().all(|pin| match pin.layers {
            layers if pin.node == *node && pin.device == device.id => {
                let held = self.held(pin).iter().map(|range| range.len()).sum::<u32>();
                layers.allows(range)
                    && !matches!(layers, PinLayers::Count(wanted) if held + range.len() > wanted)
            }
            PinLayers::Range(other) => range.end <= other.start || other.end <= range.start,
            PinLayers::Any | PinLayers::Count(_) => true,
        })
    }

    /// Whether the device's node talks with those that have the layers beside the range, the last layers
    /// being beside the first.
    fn talks(&self, device: usize, range: LayerRange, gap: LayerRange) -> bool {
        let node = self.request.devices[device].node;
        let ends = |stage: &&(Stage, u64)| stage.0.layers.end == range.start;
        let before =
            self.layout.iter().find(ends).or_else(|| self.layout.last().filter(|_| range.start == 0));
        let begins = |stage: &&(Stage, u64)| stage.0.layers.start == range.end;
        let is_last = range.end == self.request.shape.layer_count();
        let after = self.layout.iter().find(begins).or_else(|| self.layout.first().filter(|_| is_last));
        let beside = before.into_iter().chain(after.filter(|_| range.end == gap.end));
        beside.into_iter().all(|(stage, _)| self.reach.talk(node, stage.leader().node))
    }

    /// What a request takes when this device has all that no stage has.
    fn cost(&self, device: usize) -> Option<Cost> {
        let node = self.request.devices[device].node;
        let mut stages: Vec<Stage> = Vec::new();
        let mut next = 0;
        let own = |start, end| (end > start).then(|| self.stage(device, LayerRange { start, end }));
        for (stage, _) in &self.layout {
            stages.extend(own(next, stage.layers.start));
            next = stage.layers.end;
            stages.push(stage.clone());
        }
        stages.extend(own(next, self.request.shape.layer_count()));
        let has_file = self.request.holders.contains(&node);
        let (prediction, objective_ns) = predict(self.request, &stages)?;
        // Answers stand still while a node fetches. One that has the file is there sooner also by what is not
        // measured of a link: another one must be faster by a tenth.
        let until_done_ns = objective_ns.saturating_add(prediction.fetch_ns);
        let counted_ns = until_done_ns.saturating_mul(if has_file { 10 } else { 11 });
        Some(Cost { counted_ns, fetch_ns: prediction.fetch_ns })
    }

    fn has_stage(&self, device: usize) -> bool {
        let PlanDevice { node, device, .. } = &self.request.devices[device];
        self.layout.iter().any(|(stage, _)| {
            let shard = stage.leader();
            (shard.node, &shard.device) == (*node, &device.id)
        })
    }

    fn stage(&self, device: usize, range: LayerRange) -> Stage {
        let PlanDevice { node, device, .. } = &self.request.devices[device];
        Stage::solo(*node, device.id.clone(), Shard::pipeline(range, self.request.shape.layer_count()))
    }

    fn bytes(&self, device: usize, range: LayerRange) -> u64 {
        shard_memory(self.request, device, range).map_or(u64::MAX, |memory| memory.total_bytes())
    }
}

impl<'a> Room<'a> {
    fn of(devices: &'a [PlanDevice], is_usable: impl Fn(&PlanDevice) -> bool) -> Self {
        let free = |d: &PlanDevice| if is_usable(d) { d.device.memory_free_bytes } else { 0 };
        let domains = devices.iter().filter_map(|d| d.device.memory_domain);
        let shared = domains.map(|domain| (domain.id, domain.free_bytes)).collect();
        Self { devices, free: devices.iter().map(free).collect(), shared }
    }

    /// No further stage goes to these.
    fn close(&mut self, is_closed: impl Fn(&PlanDevice) -> bool) {
        for (free, _) in self.free.iter_mut().zip(self.devices).filter(|(_, d)| is_closed(d)) {
            *free = 0;
        }
    }

    /// The device of a stage.
    fn position(&self, stage: &Stage) -> Option<usize> {
        let shard = stage.leader();
        self.devices.iter().position(|d| d.node == shard.node && d.device.id == shard.device)
    }

    fn free(&self, device: usize) -> u64 {
        let domain = self.devices[device].device.memory_domain;
        let shared = domain.and_then(|domain| self.shared.get(&domain.id));
        shared.map_or(u64::MAX, |free| *free).min(self.free[device])
    }

    /// Whether so many bytes were free there; then they are not any more.
    fn take(&mut self, device: usize, bytes: u64) -> bool {
        let is_free = bytes <= self.free(device);
        if is_free {
            self.free[device] -= bytes;
            self.take_shared(device, bytes);
        }
        is_free
    }

    fn take_shared(&mut self, device: usize, bytes: u64) {
        let domain = self.devices[device].device.memory_domain;
        if let Some(free) = domain.and_then(|domain| self.shared.get_mut(&domain.id)) {
            *free = free.saturating_sub(bytes);
        }
    }
}

/// The instance over other stages, under its next id.
pub(super) fn replaced(entry: &StateInstance, id: exo_types::PlacementId, stages: Vec<Stage>) -> Placement {
    Placement { id, stages, ..entry.placement.clone() }
}
