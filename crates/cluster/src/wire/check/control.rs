//! Bounds of the control channel and of the log's events.

use std::collections::BTreeSet;

use exo_types::{
    Correction, Corrections, DType, DeviceFacts, DiskRoom, LayerRates, Monitor, NodeFacts, NodeId,
    Provenance, TYPES_MAX, TypeRates,
};

use super::super::limits::{BANDWIDTH_MAX, CONTROL_BYTES_MAX, EVENT_BYTES_MAX, MEMBERS_MAX, SHARDS_MAX};
use super::super::{
    ControlAsk, ControlMessage, ControlReply, DesiredShard, DeviceExclusion, DeviceReport, HeldModel,
    LinkReport, LoadReport, LogMessage, NodeMeasurements, NodeReport, PlannerDevice, PlannerInputs,
    StageReport, Unloadable,
};
use super::placement::{device_id, name};
use super::{Check, CheckError, at_most, ensure, text};
use crate::{Event, InstanceView, StageStatus};

/// Bytes of one membership message.
const MEMBERSHIP_BYTES_MAX: usize = 1 << 20;
/// Bytes of one message with entries of the log of trust.
const TRUST_BYTES_MAX: usize = 1 << 20;
/// No memory is larger; sums over a cluster stay below 2^63.
const MEMORY_BYTES_MAX: u64 = 1 << 48;
/// Of a log: a thousand a second for nine thousand years.
const ENTRIES_MAX: u64 = 1 << 48;
/// No device reads or computes faster.
const RATE_MAX: f64 = 1e18;

impl Check for ControlMessage {
    fn check(&self) -> Result<(), CheckError> {
        match self {
            Self::Membership(bytes) => at_most("bytes of membership", bytes.len(), MEMBERSHIP_BYTES_MAX),
            Self::Trust(bytes) => at_most("bytes of trust", bytes.len(), TRUST_BYTES_MAX),
            Self::Report(report) => report.check(),
            Self::Desired(desired) => desired.shards.check(),
            Self::Instances { instances, .. } => instances.check(),
            Self::Request { ask, .. } => ask.check(),
            Self::Reply { reply, .. } => reply.check(),
            Self::Log(log) => log.check(),
            Self::Refused(_) => Ok(()),
            Self::Backup(message) => message.check(),
        }
    }
}

impl Check for NodeReport {
    fn check(&self) -> Result<(), CheckError> {
        self.facts.check()?;
        self.models.check()?;
        self.disk_room.check()?;
        self.stages.check()?;
        self.links.check()?;
        is_once(self.links.iter().map(|link| link.peer), "a path to a member is told of twice")?;
        self.instance_failures.iter().try_for_each(|failure| failure.why.check())?;
        self.devices.check()?;
        is_once(self.devices.iter().map(|report| &report.device), "the state of a device is told twice")?;
        self.card_events.iter().try_for_each(|event| text("bytes of an event", &event.card))?;
        self.measured.check()
    }
}

impl Check for DiskRoom {
    fn check(&self) -> Result<(), CheckError> {
        let most = Self::BYTES_MAX.unsigned_abs();
        let rooms = [self.free_bytes, self.within_quota_bytes];
        let is_bounded =
            rooms.into_iter().flatten().all(|room| room.unsigned_abs() <= most) && self.reserve_bytes <= most;
        ensure(is_bounded, "a disk has room for more than 2^60 bytes, or lacks more")
    }
}

impl Check for NodeMeasurements {
    fn check(&self) -> Result<(), CheckError> {
        let battery_percent = self.vitals.battery_percent;
        ensure(battery_percent.is_none_or(|percent| percent <= 100), "a battery is charged above 100 %")?;
        self.loads.check()?;
        self.pulls.iter().try_for_each(|pull| text("bytes of a download's reference", &pull.reference))?;
        self.requests.iter().try_for_each(|totals| text("bytes of a model's name", &totals.model))
    }
}

impl Check for LoadReport {
    fn check(&self) -> Result<(), CheckError> {
        let rates = [self.prompt_tokens_per_s, self.tokens_per_s];
        let are_numbers = rates.into_iter().flatten().all(|rate| rate.is_finite() && rate >= 0.0);
        ensure(are_numbers, "a rate of tokens is not a number")
    }
}

impl Check for DeviceReport {
    fn check(&self) -> Result<(), CheckError> {
        device_id(&self.device)?;
        text("bytes of a reason", &self.reason)?;
        text("bytes of a driver", self.driver.as_deref().unwrap_or_default())?;
        let Monitor { temperature_c, power_w, clock_mhz, utilisation, limit_c, throttled: _ } = self.monitor;
        let readings = [temperature_c, power_w, clock_mhz, utilisation, limit_c];
        let is_finite = readings.into_iter().flatten().all(f32::is_finite);
        ensure(is_finite, "a sensor reading is not a number")
    }
}

impl Check for NodeFacts {
    fn check(&self) -> Result<(), CheckError> {
        text("bytes of a node's name", &self.name)?;
        text("bytes of a version", &self.version)?;
        text("bytes of a platform", &self.platform)?;
        self.devices.check()?;
        is_once(self.devices.iter().map(|device| &device.id), "a node has two devices of one id")
    }
}

/// What is placed, planned and shown by its key has it alone.
fn is_once<K: Ord>(keys: impl ExactSizeIterator<Item = K>, what: &'static str) -> Result<(), CheckError> {
    let count = keys.len();
    ensure(keys.collect::<BTreeSet<K>>().len() == count, what)
}

impl Check for DeviceFacts {
    fn check(&self) -> Result<(), CheckError> {
        device_id(&self.id)?;
        text("bytes of a device's model", &self.name)?;
        text("bytes of a backend", &self.backend)?;
        text("bytes of a reason", &self.support_reason)?;
        let shared = self.memory_domain.map_or(0, |domain| domain.free_bytes);
        let memory = self.memory_total_bytes.max(self.memory_free_bytes).max(shared);
        ensure(memory <= MEMORY_BYTES_MAX, "a device claims more than 2^48 bytes of memory")?;
        rate(self.read_bytes_per_s)?;
        rate(self.flops_per_s)?;
        rates_by_type(&self.rates_by_type)?;
        at_most("types of weights that a device cannot run", self.unsupported_types.len(), TYPES_MAX)?;
        let is_plausible = self.layer_rates.as_ref().is_none_or(LayerRates::is_plausible);
        ensure(is_plausible, "what a layer takes is not positive numbers up to 10^18 and a second")?;
        measured(self.rates_measured)?;
        let Corrections { decode, prefill } = self.corrections;
        let is_bounded = |learned: Correction| Correction::PERCENT.contains(&learned.percent);
        ensure(
            [decode, prefill].into_iter().flatten().all(is_bounded),
            "a rate is corrected to less than 50 or more than 200 per cent",
        )
    }
}

/// Each type once, and Q8_0 not at all: its rates stand beside the list.
fn rates_by_type(rates: &[TypeRates]) -> Result<(), CheckError> {
    at_most("types of weights with rates", rates.len(), TYPES_MAX)?;
    for (at, of_type) in rates.iter().enumerate() {
        let TypeRates { dtype, read_bytes_per_s, flops_per_s, read_16_rows_bytes_per_s, measured: times } =
            *of_type;
        let is_twice = dtype == DType::Q8_0 || rates[..at].iter().any(|other| other.dtype == dtype);
        ensure(!is_twice, "a type of weights has two rates")?;
        rate(Some(read_bytes_per_s))?;
        rate(Some(flops_per_s))?;
        rate(read_16_rows_bytes_per_s)?;
        measured(Some(times))?;
    }
    Ok(())
}

fn measured(times: Option<Provenance>) -> Result<(), CheckError> {
    let is_plausible = times.is_none_or(Provenance::is_plausible);
    ensure(is_plausible, "a rate was measured not once, or more than ten years ago")
}

/// Rates feed the planner's divisions: positive and finite, or not there.
fn rate(per_s: Option<f64>) -> Result<(), CheckError> {
    let is_plausible = |r: f64| r.is_finite() && r > 0.0 && r <= RATE_MAX;
    ensure(per_s.is_none_or(is_plausible), "a rate is not a positive number up to 10^18")
}

impl Check for HeldModel {
    fn check(&self) -> Result<(), CheckError> {
        name(&self.name)?;
        let here = self.held_bytes.checked_add(self.expected_bytes);
        ensure(here.is_some_and(|here| here <= self.bytes), "more of a model is on a disk than it has")
    }
}

impl Check for StageReport {
    fn check(&self) -> Result<(), CheckError> {
        ensure(self.held_bytes <= MEMORY_BYTES_MAX, "a shard claims more than 2^48 bytes of memory")?;
        device_id(&self.spec.device)?;
        self.status.check()
    }
}

impl Check for StageStatus {
    fn check(&self) -> Result<(), CheckError> {
        match self {
            Self::Failed { why, .. } => why.check(),
            _ => Ok(()),
        }
    }
}

impl Check for LinkReport {
    fn check(&self) -> Result<(), CheckError> {
        let plausible = 1..=BANDWIDTH_MAX;
        ensure(
            self.inbound.is_none_or(|inbound| plausible.contains(&inbound.bytes_per_s)),
            "a bandwidth is zero, or above 10^11 bytes per second",
        )?;
        let Some(traffic) = &self.traffic else { return Ok(()) };
        let recent = traffic.recent_packets.map(|recent| recent.counts);
        let mut all = traffic.packets.into_iter().chain(recent);
        ensure(all.all(|packets| packets.lost <= packets.sent), "more packets are lost than were sent")?;
        ensure(recent.is_none_or(|recent| recent.sent > 0), "a part of no packets is lost")
    }
}

impl Check for DesiredShard {
    fn check(&self) -> Result<(), CheckError> {
        name(&self.model_name)?;
        self.placement.check()?;
        let inside = self.placement.shard(self.stage, self.rank).is_some();
        ensure(inside, "a desired shard is not in its placement")
    }
}

impl Check for InstanceView {
    fn check(&self) -> Result<(), CheckError> {
        name(&self.model_name)?;
        self.placement.check()?;
        let same = self.stages.len() == self.placement.stages.len();
        ensure(same, "a view has another number of stages than its placement")?;
        self.state.check()?;
        self.moving.as_ref().map_or(Ok(()), Check::check)?;
        self.stages.iter().try_for_each(|s| s.status.check())
    }
}

impl Check for ControlAsk {
    fn check(&self) -> Result<(), CheckError> {
        match self {
            Self::Place(request) => request.check(),
            Self::RemoveInstance { .. }
            | Self::Drain { .. }
            | Self::Replan { .. }
            | Self::PlannerInputs { .. } => Ok(()),
        }
    }
}

impl Check for ControlReply {
    fn check(&self) -> Result<(), CheckError> {
        match self {
            Self::Placed { view, reasons, .. } => {
                reasons.iter().try_for_each(|r| text("bytes of a reason", r))?;
                view.check()
            }
            Self::Replanned(report) => {
                report.reason.check()?;
                let shards = report.stages.iter().map(|stage| stage.shards.len()).sum();
                at_most("shards of a placement", shards, SHARDS_MAX)?;
                let mut shards = report.stages.iter().flat_map(|stage| &stage.shards);
                shards.try_for_each(|shard| device_id(&shard.device))
            }
            Self::PlannerInputs(inputs) => inputs.check(),
            Self::Refused(refusal) => refusal.check(),
            Self::Done { .. } => Ok(()),
        }
    }
}

impl Check for PlannerInputs {
    fn check(&self) -> Result<(), CheckError> {
        // The planner makes tables of all pairs.
        let nodes: BTreeSet<NodeId> = self.devices.iter().map(|device| device.node).collect();
        at_most("nodes", nodes.len(), MEMBERS_MAX)?;
        for PlannerDevice { node_name, facts, thermal_percent, excluded, .. } in &self.devices {
            text("bytes of a node's name", node_name)?;
            ensure((1..=100).contains(thermal_percent), "a part of a speed is not from 1 to 100 %")?;
            if let Some(DeviceExclusion::Unsupported(reason)) = excluded {
                text("bytes of a reason", reason)?;
            }
            facts.check()?;
        }
        for Unloadable { model_name, shards, room, .. } in &self.unloadable {
            name(model_name)?;
            shards.iter().try_for_each(|(_, device)| device_id(device))?;
            ensure(room.len() == self.devices.len(), "free memory is not that of every device")?;
            let bytes = room.iter().map(|room| room.free_bytes.max(room.shared_free_bytes.unwrap_or(0)));
            let largest = bytes.max().unwrap_or(0);
            ensure(largest <= MEMORY_BYTES_MAX, "a device claims more than 2^48 bytes of memory")?;
        }
        Ok(())
    }
}

impl Check for LogMessage {
    fn check(&self) -> Result<(), CheckError> {
        match self {
            Self::Entries { entries, .. } | Self::Tail { entries, .. } => {
                entries.iter().try_for_each(|e| at_most("bytes of an event", e.len(), EVENT_BYTES_MAX))
            }
            Self::Snapshot { index, ancestors, state, .. }
            | Self::TailSnapshot { index, ancestors, state, .. } => {
                ensure(*index <= ENTRIES_MAX, "a log claims more than 2^48 entries")?;
                ensure(ancestors.len() as u64 <= *index, "a log had more ends than it has entries")?;
                at_most("bytes of a snapshot", state.len(), CONTROL_BYTES_MAX)
            }
            Self::Pull { .. } | Self::CatchUp { .. } => Ok(()),
        }
    }
}

impl Check for Event {
    fn check(&self) -> Result<(), CheckError> {
        match self {
            Self::Opened | Self::NodeDrained { .. } | Self::InstanceKept { .. } => Ok(()),
            Self::InstanceRemoved { reason, .. } => reason.check(),
            Self::InstancePlaced { request, placement, memory_bytes } => {
                request.check()?;
                shard_bytes(memory_bytes)?;
                placement.check()
            }
            Self::InstanceReplaced { placement, memory_bytes, reason } => {
                reason.check()?;
                shard_bytes(memory_bytes)?;
                placement.check()
            }
        }
    }
}

fn shard_bytes(memory_bytes: &[u64]) -> Result<(), CheckError> {
    at_most("shards of a placement", memory_bytes.len(), SHARDS_MAX)
}
