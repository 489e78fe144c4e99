//! What the planner is asked: which devices there are, and what of their memory is free for this instance.

use std::collections::BTreeMap;
use std::time::Duration;

use exo_planner::{Figure, LinkFacts, Objective, Plan, PlanDevice, PlanRequest};
use exo_types::{
    DeviceFacts, DeviceId, DiskRoom, InstanceId, ModelId, NodeId, Placement, PlacementId, ShardPosition,
    ShardSpec, SupportClass, Time,
};

use super::dry_run::{ClusterFacts, free_memory, links_apart};
use super::hop_cost::hop_seconds;
use super::{Coordinator, CoordinatorOutput, Leading, ReplyTo, not_coordinator};
use crate::wire::limits::{MEMBERS_MAX, PAIRS_MAX};
use crate::wire::{
    Bandwidth, ControlReply, DeviceExclusion, HeldModel, LinkReport, NodeReport, PlannerDevice,
    PlannerInputs, StageReport, Unloadable,
};
use crate::{InstanceRequest, StateInstance};

impl Coordinator {
    /// The request for a plan with this objective. What `replaced` and those `unloaded` hold counts as free.
    pub(super) fn request_for(
        &self,
        now: Time,
        wanted: &InstanceRequest,
        (replaced, unloaded): (Option<InstanceId>, &[InstanceId]),
        objective: Objective,
    ) -> PlanRequest {
        let apart: Vec<(NodeId, NodeId)> = self.reach().apart().collect();
        let links = link_facts(&self.reports, |_| true);
        let hop_s = hop_seconds(&self.reports, &links, &self.state);
        let known = ClusterFacts {
            devices: self.devices(now, replaced, unloaded),
            links: links_apart(links, &apart),
            parts: self.parts(wanted.model),
            disks: self.disk_rooms(now, wanted.model),
        };
        // Nobody reads the reasons of a replacement, and somebody waits for it.
        let explain = replaced.is_none();
        let mut request = PlanRequest { objective, hop_s, explain, ..known.request(wanted) };
        if replaced.is_some() {
            // A pin to a device whose node was removed would keep what was placed down for good.
            request.pins.retain(|pin| self.members.contains_key(&pin.node));
        }
        request
    }

    /// The same for a member that plans without placing.
    pub(super) fn planner_inputs(
        &self,
        now: Time,
        reply: ReplyTo,
        model: ModelId,
        replaced: Option<InstanceId>,
        out: &mut Vec<CoordinatorOutput>,
    ) {
        if self.leading.is_none() {
            return out.push(not_coordinator(reply));
        }
        let free = |unloaded: &[InstanceId]| {
            let freed: Vec<InstanceId> = replaced.into_iter().chain(unloaded.iter().copied()).collect();
            self.devices(now, None, &freed)
        };
        let device = |d: PlanDevice| PlannerDevice {
            excluded: self.exclusion(d.node, &d.device),
            node: d.node,
            node_name: d.node_name,
            facts: d.device,
            thermal_percent: d.thermal_percent,
        };
        let mut unloaded = Vec::new();
        let unloadable = self.unloadable(now).into_iter().filter(|u| replaced != Some(u.instance));
        let unloadable = unloadable.map(|each| {
            unloaded.push(each.instance);
            Unloadable { room: free_memory(&free(&unloaded)), ..each }
        });
        let unloadable = unloadable.collect();
        let devices = free(&[]).into_iter().map(device).collect();
        let (apart, parts) = (self.reach().apart().take(PAIRS_MAX).collect(), self.parts(model));
        let inputs = PlannerInputs { devices, apart, parts, unloadable };
        let reply_now = ControlReply::PlannerInputs(Box::new(inputs));
        out.push(CoordinatorOutput::Reply { to: reply, reply: reply_now });
    }

    /// Members that have some of the model's file and not all.
    fn parts(&self, model: ModelId) -> Vec<(NodeId, u64)> {
        let held =
            self.reports.iter().flat_map(|(node, report)| report.models.iter().map(move |m| (*node, m)));
        let parts = held.filter(|(_, held)| held.model == model && !held.complete && held.held_bytes > 0);
        parts.map(|(node, held)| (node, held.held_bytes)).take(MEMBERS_MAX).collect()
    }

    fn disk_rooms(&self, now: Time, model: ModelId) -> Vec<(NodeId, DiskRoom)> {
        let is_placed = |model: ModelId| self.state.instances().values().any(|i| i.placement.model == model);
        let is_there = |node| self.leading.as_ref().is_some_and(|leading| !self.is_gone(leading, now, node));
        disk_rooms(&self.reports, model, is_placed, |node| is_there(node) && !self.takes_no_more(node))
    }

    /// Every device of the members alive, with the memory that `replaced` may fill.
    pub(super) fn devices(
        &self,
        now: Time,
        replaced: Option<InstanceId>,
        unloaded: &[InstanceId],
    ) -> Vec<PlanDevice> {
        let Some(leading) = &self.leading else { return Vec::new() };
        let freed: Vec<InstanceId> = replaced.into_iter().chain(unloaded.iter().copied()).collect();
        let mut devices = Vec::new();
        let mut changes: BTreeMap<u64, Change> = BTreeMap::new();
        for (&node, report) in self.reports.iter().filter(|(node, _)| !self.is_gone(leading, now, **node)) {
            for facts in &report.facts.devices {
                let mut device = facts.clone();
                let change = self.change_on(leading, node, report, facts, &freed);
                device.memory_free_bytes = change.free_of(facts);
                if let Some(domain) = facts.memory_domain {
                    let all = changes.entry(domain.id).or_default();
                    all.leaving_bytes = all.leaving_bytes.saturating_add(change.leaving_bytes);
                    all.promised_bytes = all.promised_bytes.saturating_add(change.promised_bytes);
                    all.loading_bytes = all.loading_bytes.saturating_add(change.loading_bytes);
                }
                let avoided = replaced.and_then(|instance| self.avoided(now, instance, node, &facts.id));
                let excluded = match self.exclusion(node, facts) {
                    Some(DeviceExclusion::Drained | DeviceExclusion::DiskHung) if avoided.is_some() => {
                        avoided
                    }
                    Some(excluded) => Some(excluded.to_string()),
                    None => avoided,
                };
                let thermal_percent = self.throttling.thermal_percent(now, node, facts);
                let reported = PlanDevice::reported(node, report.facts.name.clone(), device, excluded);
                devices.push(PlanDevice { thermal_percent, ..reported });
            }
        }
        share(&mut devices, &changes);
        devices
    }

    /// Why no placement may use a device.
    fn exclusion(&self, node: NodeId, facts: &DeviceFacts) -> Option<DeviceExclusion> {
        match facts.support {
            SupportClass::Unsupported => Some(DeviceExclusion::Unsupported(facts.support_reason.clone())),
            _ if self.is_drained(node) => Some(DeviceExclusion::Drained),
            _ => self.is_disk_hung(node).then_some(DeviceExclusion::DiskHung),
        }
    }

    /// What is about to be freed there, and what is promised but not taken yet. What a node holds is matched
    /// with what is wanted of it by content, as its worker does: a shard that a later placement takes over is
    /// neither freed nor taken once more.
    fn change_on(
        &self,
        leading: &Leading,
        node: NodeId,
        report: &NodeReport,
        facts: &DeviceFacts,
        freed: &[InstanceId],
    ) -> Change {
        let mut held: Vec<&StageReport> =
            report.stages.iter().filter(|s| s.spec.device == facts.id).collect();
        let others = leading.planned.instances().iter().filter(|(id, _)| !freed.contains(id));
        // What is on its way to the log is counted there.
        let is_durable = |id: &InstanceId, planned: &StateInstance| {
            self.state.instances().get(id).is_some_and(|i| i.placement.id == planned.placement.id)
        };
        let durable = others.clone().filter(|(id, planned)| is_durable(id, planned));
        let ahead = durable.flat_map(|(id, _)| self.ahead(*id));
        let ahead = ahead.filter(|ahead| ahead.node == node && ahead.spec.device == facts.id);
        let ahead = ahead.map(|ahead| (ahead.position, ahead.spec, ahead.memory_bytes));
        let wanted = others.flat_map(|(_, instance)| wanted_of(instance, node, &facts.id)).chain(ahead);
        let (served, new): (Vec<_>, Vec<_>) =
            wanted.partition(|(position, ..)| held.iter().any(|s| s.serves == Some(*position)));
        let (mut promised, mut kept) = (0u64, 0u64);
        // First what is served already: of two shards with the same content each keeps its own.
        for (position, spec, memory_bytes) in served.into_iter().chain(new) {
            let same = held.iter().enumerate().filter(|(_, s)| s.spec == spec);
            let best = same.max_by_key(|(_, s)| (s.serves == Some(position), s.held_bytes));
            let taken = best.map(|(index, _)| index).map_or(0, |index| held.swap_remove(index).held_bytes);
            promised = promised.saturating_add(memory_bytes.saturating_sub(taken));
            kept = kept.saturating_add(taken);
        }
        let leaving = held.iter().fold(0u64, |sum, stage| sum.saturating_add(stage.held_bytes));
        let here = report.stages.iter().filter(|s| s.spec.device == facts.id);
        let loading = here.fold(0u64, |sum, stage| sum.saturating_add(stage.loading_bytes()));
        Change { kept_bytes: kept, leaving_bytes: leaving, promised_bytes: promised, loading_bytes: loading }
    }
}

/// What becomes of the memory that is reported as free.
#[derive(Clone, Copy, Default)]
struct Change {
    kept_bytes: u64,
    leaving_bytes: u64,
    promised_bytes: u64,
    /// Of what is held, what the system still counts as free.
    loading_bytes: u64,
}

impl Change {
    fn free_of(self, facts: &DeviceFacts) -> u64 {
        // What a shard may yet take for its workspace is not free, though nothing holds it now.
        let unkept_bytes = facts.memory_total_bytes.saturating_sub(self.kept_bytes);
        let free_bytes = facts.memory_free_bytes.saturating_add(self.leaving_bytes).min(unkept_bytes);
        free_bytes.saturating_sub(self.promised_bytes)
    }
}

/// Writes into every device of a memory domain what is free of that for all of them: the most that one of
/// them reports, so that none can make the memory of others look taken.
fn share(devices: &mut [PlanDevice], changes: &BTreeMap<u64, Change>) {
    let mut free: BTreeMap<u64, u64> = BTreeMap::new();
    for domain in devices.iter().filter_map(|d| d.device.memory_domain) {
        let most = free.entry(domain.id).or_default();
        *most = domain.free_bytes.max(*most);
    }
    for (id, Change { leaving_bytes, promised_bytes, loading_bytes, .. }) in changes {
        if let Some(free) = free.get_mut(id) {
            let taken_bytes = promised_bytes.saturating_add(*loading_bytes);
            *free = free.saturating_add(*leaving_bytes).saturating_sub(taken_bytes);
        }
    }
    for domain in devices.iter_mut().filter_map(|d| d.device.memory_domain.as_mut()) {
        domain.free_bytes = free.get(&domain.id).copied().unwrap_or(domain.free_bytes);
    }
}

/// Every path that some member has measured, in its direction. Whoever receives has measured the rate; where
/// that is missing, the rate of the other direction stands in for it. Both ends measure the round trip, and
/// the longer one counts: a member that lies makes none of its links shorter than the other end has found
/// them.
pub fn link_facts(reports: &BTreeMap<NodeId, NodeReport>, among: impl Fn(NodeId) -> bool) -> Vec<LinkFacts> {
    let mut links: BTreeMap<(NodeId, NodeId), &LinkReport> = BTreeMap::new();
    for (&at, report) in reports.iter().filter(|(node, _)| among(**node)) {
        let known = report.links.iter().filter(|link| among(link.peer));
        links.extend(known.map(|link| ((at, link.peer), link)));
    }
    let round_trip = |at: NodeId, other: NodeId| {
        let link = links.get(&(at, other))?;
        let age = Duration::from_millis(link.rtt_age_ms.into());
        let seconds = Duration::from_micros(link.rtt_us.into()).as_secs_f64();
        Some((link.rtt_us, Figure::measured_at(seconds, age, link.rtt_count)))
    };
    let inbound = |at: NodeId, from: NodeId| {
        let Bandwidth { bytes_per_s, count, age_s } = links.get(&(at, from))?.inbound?;
        Some(Figure::measured_at(bytes_per_s as f64, Duration::from_secs(age_s.into()), count))
    };
    let link = |&(from, to): &(NodeId, NodeId)| {
        let round_trips = [round_trip(from, to), round_trip(to, from)].into_iter().flatten();
        LinkFacts {
            from,
            to,
            rtt_s: round_trips.max_by_key(|(rtt_us, _)| *rtt_us).map(|(_, figure)| figure),
            bytes_per_s: inbound(to, from).or_else(|| inbound(from, to)),
        }
    };
    links.keys().map(link).collect()
}

/// Bytes of a model's file that the disk of each node has room for: what the node may still fetch, what it
/// has of the model or has taken room for, and other models that it deletes for it, as they are whole on
/// another member that `stays`.
pub fn disk_rooms(
    reports: &BTreeMap<NodeId, NodeReport>,
    model: ModelId,
    is_placed: impl Fn(ModelId) -> bool,
    stays: impl Fn(NodeId) -> bool,
) -> Vec<(NodeId, DiskRoom)> {
    let mut whole: BTreeMap<ModelId, Vec<NodeId>> = BTreeMap::new();
    for (&node, report) in reports.iter().filter(|(node, _)| stays(**node)) {
        let complete = report.models.iter().filter(|held| held.complete);
        complete.for_each(|held| whole.entry(held.model).or_default().push(node));
    }
    let room = |(&node, report): (&NodeId, &NodeReport)| {
        let is_elsewhere = |held: &HeldModel| {
            whole.get(&held.model).is_some_and(|nodes| nodes.iter().any(|other| *other != node))
        };
        let counted = |held: &HeldModel| match held.model == model {
            true => held.held_bytes.saturating_add(held.expected_bytes),
            false if held.may_go && is_elsewhere(held) && !is_placed(held.model) => held.held_bytes,
            false => 0,
        };
        (node, report.models.iter().map(counted).fold(report.disk_room, DiskRoom::plus))
    };
    reports.iter().map(room).filter(|(_, room)| room.bytes().is_some()).collect()
}

/// The instance's shards on this device, with the bytes that each needs.
fn wanted_of(
    instance: &StateInstance,
    node: NodeId,
    device: &DeviceId,
) -> impl Iterator<Item = (ShardPosition, ShardSpec, u64)> {
    let StateInstance { placement, memory_bytes, .. } = instance;
    let here =
        placement.shards().zip(memory_bytes).filter(move |((_, s), _)| s.node == node && s.device == *device);
    here.map(|((at, _), &memory_bytes)| (at, placement.spec(at.stage, at.rank), memory_bytes))
}

/// The placement of a plan, and the bytes of each stage.
pub(super) fn placement(
    plan: Plan,
    request: &InstanceRequest,
    instance: InstanceId,
    id: PlacementId,
) -> (Placement, Vec<u64>) {
    let memory_bytes = plan.memory.iter().map(|m| m.total_bytes()).collect();
    let InstanceRequest { model, context_tokens, slots, cache_tokens, kv, .. } = *request;
    let stages = plan.stages;
    let placement = Placement { id, instance, model, stages, context_tokens, slots, cache_tokens, kv };
    (placement, memory_bytes)
}
