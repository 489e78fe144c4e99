//! Whether an instance is worth moving: the planner is asked again, and what a better plan gains stands
//! beside what it costs.
//!
//! The better plan is loaded ahead while the stages that stand serve on, so it needs room beside them. What
//! cannot be loaded so, or gains too little for the ranges of the predictions, is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use exo_planner::{Objective, Plan, PlanRequest, oversubscribed, predict};
use exo_types::{DeviceId, InstanceId, NodeId, Placement, SupportClass, Time};

use super::asks::refused;
use super::moving::Move;
use super::place::placement;
use super::planning::{PlanAsk, Purpose};
use super::survey::Watch;
use super::{Coordinator, CoordinatorOutput, ReplyTo, not_coordinator};
use crate::wire::{
    Busyness, ControlRefusal, ControlReply, InvalidAsk, ReplanReport, Undecided, UnknownTarget,
};
use crate::{Advice, Gain, GainOf, InstanceState, LinkChange, ReplaceReason, ReplanReason, StateInstance};

/// A plan that gains less is not worth a move: predictions from fresh measurements are good to a tenth.
const GAIN_MIN_PERCENT: u64 = 10;

/// Devices are the same for this long before anybody plans with them.
const SETTLED_AFTER: Duration = Duration::from_secs(5);
/// Between two reviews of an instance that nobody asked for.
const REVIEW_EVERY: Duration = Duration::from_secs(60);

/// What the planner says of an instance that serves.
#[derive(Clone, Debug, Default)]
pub(super) struct Review {
    /// The planner is to look at the instance when it has nothing else to do.
    pub(super) due: Option<Due>,
    /// When the last one that a change had made due was asked for.
    asked_at: Option<Time>,
    /// The link whose change is why it looks.
    pub(super) link: Option<LinkChange>,
    /// A better plan.
    pub(super) advice: Option<Advice>,
}

/// Why the planner is to look at an instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Due {
    /// It was placed, or placed again: a repair moves what was lost only, and whoever waits for a model gets
    /// the plan that is there soon.
    Placed,
    /// The devices, or the links, have changed since the last look.
    Changed,
}

/// The devices that stages may be on.
#[derive(Clone, Debug)]
pub(super) struct Usable {
    devices: BTreeSet<(NodeId, DeviceId)>,
    /// When they became these, until that has been looked at.
    changed_at: Option<Time>,
}

/// What a better plan needs beside what serves.
struct Cost {
    load_bytes: u64,
    fetch_bytes: u64,
    fetch_ns: u64,
    /// [`ReplanReason::NoRoom`], where there is none for it.
    no_room: Option<ReplanReason>,
}

impl Coordinator {
    /// Has the planner look at what serves when devices have come, gone, or may be used no more, and when
    /// links have become much slower or faster. What it finds is told, and carried out when somebody asks
    /// for it.
    pub(super) fn review(&mut self, now: Time) {
        let devices = self.usable(now);
        let Some(leading) = &mut self.leading else { return };
        match &mut leading.usable {
            Some(usable) if usable.devices == devices => {
                if usable.changed_at.take_if(|at| now.since(*at) >= SETTLED_AFTER).is_some() {
                    leading.watches.values_mut().for_each(|watch| watch.review.due = Some(Due::Changed));
                }
            }
            usable => {
                let changed_at = usable.is_some().then_some(now);
                *usable = Some(Usable { devices, changed_at });
                let members = self.members.keys().copied().collect();
                leading.links.keep_only(&members);
                leading.watches.values_mut().for_each(|watch| watch.review.advice = None);
            }
        }
        if !leading.plans.is_empty() {
            return;
        }
        let is_due = |watch: &Watch| {
            let is_rested = match watch.review.due {
                Some(Due::Placed) => true,
                Some(Due::Changed) => watch.review.asked_at.is_none_or(|at| now.since(at) >= REVIEW_EVERY),
                None => false,
            };
            is_rested && watch.state == InstanceState::Ready && watch.moving.is_none()
        };
        if let Some((&instance, watch)) = leading.watches.iter_mut().find(|(_, watch)| is_due(watch)) {
            if watch.review.due.take() == Some(Due::Changed) {
                watch.review.asked_at = Some(now);
            }
            // The queue is empty.
            let _ = leading
                .plans
                .push(PlanAsk::new(now, Purpose::Review { instance, reply: None, carry_out: false }));
        }
    }

    /// The devices of members that are there, supported, and may have more stages.
    fn usable(&self, now: Time) -> BTreeSet<(NodeId, DeviceId)> {
        let Some(leading) = &self.leading else { return BTreeSet::new() };
        let is_there = |node: NodeId| !self.is_gone(leading, now, node) && !self.takes_no_more(node);
        let there = self.reports.iter().filter(|(node, _)| is_there(**node));
        let devices = there.flat_map(|(&node, report)| report.facts.devices.iter().map(move |d| (node, d)));
        let supported = devices.filter(|(_, device)| device.support != SupportClass::Unsupported);
        supported.map(|(node, device)| (node, device.id.clone())).collect()
    }

    /// Somebody asks whether an instance should be elsewhere, and wants it moved there if `carry_out`.
    pub(super) fn replan(
        &mut self,
        now: Time,
        reply: ReplyTo,
        instance: InstanceId,
        carry_out: bool,
        out: &mut Vec<CoordinatorOutput>,
    ) {
        let state = self.leading.as_ref().and_then(|l| l.watches.get(&instance)).map(|w| w.state.clone());
        let Some(leading) = &mut self.leading else { return out.push(not_coordinator(reply)) };
        match state {
            Some(InstanceState::Ready) => {}
            Some(_) => {
                return out.push(refused(reply, ControlRefusal::Invalid(InvalidAsk::NotServing(instance))));
            }
            None => {
                return out.push(refused(reply, ControlRefusal::Unknown(UnknownTarget::Instance(instance))));
            }
        }
        let review = Purpose::Review { instance, reply: Some(reply), carry_out };
        if let Err(queued) = leading.plans.push(PlanAsk::new(now, review)) {
            out.push(refused(reply, ControlRefusal::Busy(Busyness::Plans(queued as u32))));
        }
    }

    /// The plan for an instance that serves is there.
    pub(super) fn reviewed(
        &mut self,
        now: Time,
        (instance, reply, carry_out): (InstanceId, Option<ReplyTo>, bool),
        request: &PlanRequest,
        plan: Plan,
        out: &mut Vec<CoordinatorOutput>,
    ) {
        let refuse = |why| reply.map(|to| refused(to, ControlRefusal::NoPlan { model_name: None, why }));
        let Some(entry) = self.state.instances().get(&instance).cloned() else {
            return out.extend(refuse(Undecided::Unloaded));
        };
        let Some((_, now_ns)) = predict(request, &entry.placement.stages) else {
            return out.extend(refuse(Undecided::Unpredictable));
        };
        let then_ns = plan.proof.objective_ns;
        let (next, memory_bytes) = placement(plan, &entry.request, instance, entry.placement.id);
        let gain_percent = now_ns.saturating_sub(then_ns).saturating_mul(100) / now_ns.max(1);
        let cost = self.cost_of_move(now, &entry, &next, &memory_bytes, request, gain_percent);
        let of = match request.objective {
            Objective::Throughput => GainOf::Streams,
            Objective::Latency | Objective::Spread { .. } => GainOf::Request,
        };
        let gain = Gain { percent: gain_percent, of };
        let keep = self.keep_reason(instance, &entry, &next, gain_percent, &cost);
        let (is_better, is_moved) = (keep.is_none(), keep.is_none() && carry_out);
        let reason = keep.unwrap_or(ReplanReason::Better(gain));
        let link = self.changed_link(instance, reply.is_none());
        let name = |node| self.name_of(node);
        let link_text = link.map(|link| link.text(&name));
        tracing::info!(
            target: "events::replan", %instance, now_ns, then_ns, load_bytes = cost.load_bytes,
            fetch_bytes = cost.fetch_bytes, is_better, is_moved, reason = reason.text(&name), link = link_text
        );
        let report = ReplanReport {
            instance,
            is_moved,
            reason,
            now_ns,
            then_ns,
            load_bytes: cost.load_bytes,
            fetch_bytes: cost.fetch_bytes,
            fetch_ns: cost.fetch_ns,
            stages: next.stages.clone(),
        };
        if let Some(watch) = self.leading.as_mut().and_then(|l| l.watches.get_mut(&instance)) {
            watch.review.advice = (is_better && !is_moved).then_some(Advice { gain, link });
        }
        if is_moved && let Some(leading) = &mut self.leading {
            let id = leading.next_placement();
            let next = Placement { id, ..next };
            if let Some(watch) = leading.watches.get_mut(&instance) {
                let reason = ReplaceReason::Better(gain);
                let moving = Move::new(now, entry.placement.id, next, memory_bytes, reason);
                (watch.moving, watch.stuck) = (Some(moving), None);
            }
        }
        let answer = |to| CoordinatorOutput::Reply { to, reply: ControlReply::Replanned(report) };
        out.extend(reply.map(answer));
    }

    /// The link whose change is why the planner has looked, if it has looked by itself.
    fn changed_link(&mut self, instance: InstanceId, is_by_itself: bool) -> Option<LinkChange> {
        let watch = self.leading.as_mut()?.watches.get_mut(&instance).filter(|_| is_by_itself)?;
        watch.review.link.take()
    }

    /// Why what stands is kept, if it is.
    fn keep_reason(
        &self,
        instance: InstanceId,
        entry: &StateInstance,
        next: &Placement,
        gain_percent: u64,
        cost: &Cost,
    ) -> Option<ReplanReason> {
        let leading = self.leading.as_ref();
        let watch = leading.and_then(|leading| leading.watches.get(&instance));
        let planned = leading.and_then(|leading| leading.planned.instances().get(&instance));
        let Some((watch, planned)) = watch.zip(planned) else {
            return Some(ReplanReason::BeingUnloaded);
        };
        let is_same = planned.placement == entry.placement;
        if next.stages == entry.placement.stages {
            return Some(ReplanReason::Same);
        }
        if watch.state != InstanceState::Ready || watch.moving.is_some() || !is_same {
            return Some(ReplanReason::BeingMoved);
        }
        if gain_percent < GAIN_MIN_PERCENT {
            return Some(ReplanReason::GainsLittle { percent: gain_percent, percent_min: GAIN_MIN_PERCENT });
        }
        cost.no_room.clone()
    }

    /// What has to be loaded for the next placement, and whether there is room for it beside what serves.
    fn cost_of_move(
        &self,
        now: Time,
        entry: &StateInstance,
        next: &Placement,
        memory_bytes: &[u64],
        request: &PlanRequest,
        percent: u64,
    ) -> Cost {
        let mut cost = Cost { load_bytes: 0, fetch_bytes: 0, fetch_ns: 0, no_room: None };
        let stands = |node: NodeId, spec: &exo_types::ShardSpec| {
            let mut all = entry.placement.shards();
            all.any(|(at, shard)| shard.node == node && entry.placement.spec(at.stage, at.rank) == *spec)
        };
        let mut needed: BTreeMap<(NodeId, DeviceId), u64> = BTreeMap::new();
        // Nodes with nothing to load fetch nothing.
        let mut holders: Vec<NodeId> = next.shards().map(|(_, shard)| shard.node).collect();
        for ((at, shard), bytes) in next.shards().zip(memory_bytes) {
            if stands(shard.node, &next.spec(at.stage, at.rank)) {
                continue;
            }
            let weights = entry.request.shape.shard_weight_bytes(&shard.shard);
            cost.load_bytes = cost.load_bytes.saturating_add(weights);
            if !request.holders.contains(&shard.node) {
                cost.fetch_bytes = cost.fetch_bytes.saturating_add(weights);
                holders.retain(|node| *node != shard.node);
            }
            let here = needed.entry((shard.node, shard.device.clone())).or_default();
            *here = here.saturating_add(*bytes);
        }
        holders.retain(|node| !request.holders.contains(node));
        let has_rest = PlanRequest { holders: [&request.holders[..], &holders].concat(), ..request.clone() };
        let (fetch_bytes, fetch_ns) = predict(&has_rest, &next.stages)
            .map_or((cost.fetch_bytes, 0), |(predicted, _)| (predicted.fetch_bytes, predicted.fetch_ns));
        // Of what is not there yet, parts of the file may be.
        (cost.fetch_bytes, cost.fetch_ns) = (cost.fetch_bytes.min(fetch_bytes), fetch_ns);
        cost.no_room = self.no_room_beside(now, &needed, percent);
        cost
    }

    /// Where these bytes are not free beside all that is placed.
    fn no_room_beside(
        &self,
        now: Time,
        needed: &BTreeMap<(NodeId, DeviceId), u64>,
        percent: u64,
    ) -> Option<ReplanReason> {
        let devices = self.devices(now, None, &[]);
        let mut found = Vec::new();
        for ((node, device), &bytes) in needed {
            let here = devices.iter().find(|d| d.node == *node && d.device.id == *device);
            let free_bytes = here.map_or(0, |d| d.device.memory_free_bytes);
            match here {
                Some(here) if bytes <= free_bytes => found.push((here, bytes)),
                _ => {
                    let (node, device) = (*node, Some(device.clone()));
                    return Some(ReplanReason::NoRoom {
                        percent,
                        node,
                        device,
                        needed_bytes: bytes,
                        free_bytes,
                    });
                }
            }
        }
        let (device, needed_bytes, free_bytes) = oversubscribed(found)?;
        Some(ReplanReason::NoRoom { percent, node: device.node, device: None, needed_bytes, free_bytes })
    }
}
