//! Moves: stages that serve go elsewhere, and nobody waits for their weights.
//!
//! A node that is drained, or about to leave, serves on while its layers are loaded on other devices *ahead*
//! of the placement that they are for. Then the placement is replaced: everything it needs is in memory by
//! then. Where nothing takes the layers, the stages stay, and everybody sees why.

use std::time::Duration;

use exo_types::{InstanceId, NodeId, Placement, PlacementId, ShardPosition, ShardSpec, Time};

use super::asks::refused;
use super::log::DurableReply;
use super::repair::{RepairScope, replaced};
use super::survey::{AVOID_FAILED, AVOID_REFUSED, FAILED_LOADS_MAX, LOAD_DEADLINE, LOOK_EVERY};
use super::{Coordinator, CoordinatorOutput, ReplyTo, not_coordinator};
use crate::instances::HUB_WAITS_MAX;
use crate::wire::{ControlRefusal, ControlReply, DesiredShard, Drain, InvalidAsk, UnknownTarget};
use crate::{Event, InstanceState, Moving, ReplaceReason, StageLoss, StageStatus, StateInstance};

/// How long an announcement that a node leaves stays valid; it repeats it twice a second.
pub const LEAVING_FOR: Duration = Duration::from_secs(3);

/// Layers that are loaded ahead.
#[derive(Clone, Debug)]
pub(super) struct Move {
    /// The placement that serves meanwhile.
    from: PlacementId,
    /// Where the stages will be. It goes into the log under a later id.
    placement: Placement,
    memory_bytes: Vec<u64>,
    reason: ReplaceReason,
    /// The furthest that what is loaded ahead has come, and when.
    best: Vec<(u8, u64)>,
    moved_at: Time,
    /// The same, without what a hub has it wait.
    came_at: Time,
}

impl Move {
    /// Elsewhere with the stages that stand as `from`.
    pub(super) fn new(
        now: Time,
        from: PlacementId,
        placement: Placement,
        memory_bytes: Vec<u64>,
        reason: ReplaceReason,
    ) -> Self {
        let best = vec![(0, 0); placement.shards().count()];
        Self { from, placement, memory_bytes, reason, best, moved_at: now, came_at: now }
    }

    /// It is not for a drained node but for a better plan.
    fn is_better(&self) -> bool {
        matches!(self.reason, ReplaceReason::Better(_))
    }
}

/// A move that is not possible now.
#[derive(Clone, Debug)]
pub(super) struct Stuck {
    /// The drained node.
    node: NodeId,
    /// Of the layers there.
    bytes: u64,
    again_at: Time,
}

/// A shard that is loaded ahead.
pub(super) struct PreparedShard {
    pub(super) node: NodeId,
    pub(super) position: ShardPosition,
    pub(super) spec: ShardSpec,
    pub(super) memory_bytes: u64,
}

/// What becomes of a move.
enum Step {
    Wait,
    Commit,
    /// The device of this stage does not take it.
    Avoid {
        stage: u32,
        reason: ReplaceReason,
        time: Duration,
    },
}

impl Coordinator {
    /// Whether no stage is to be on a node.
    pub(super) fn is_drained(&self, node: NodeId) -> bool {
        self.state.drained().contains(&node)
            || self.reports.get(&node).is_some_and(|report| report.is_leaving)
            || self.leading.as_ref().is_some_and(|l| l.leaving.contains_key(&node))
    }

    /// Whether no further stage is to be on a node. One whose disk does not answer keeps those that it has:
    /// they compute without it.
    pub(super) fn takes_no_more(&self, node: NodeId) -> bool {
        self.is_drained(node) || self.is_disk_hung(node)
    }

    pub(super) fn is_disk_hung(&self, node: NodeId) -> bool {
        self.reports.get(&node).is_some_and(|report| report.is_disk_hung)
    }

    /// Brings a move further, begins one, or gives it up. What serves and has lost nothing comes here.
    pub(super) fn move_on(&mut self, now: Time, instance: InstanceId, out: &mut Vec<CoordinatorOutput>) {
        let Some(entry) = self.state.instances().get(&instance) else { return };
        let mut drained: Vec<NodeId> = entry.placement.shards().map(|(_, shard)| shard.node).collect();
        drained.retain(|node| self.is_drained(*node));
        let (from, is_possible) = (entry.placement.id, self.is_possible(now, instance));
        let Some(leading) = &mut self.leading else { return };
        let is_durable = leading.planned.instances().get(&instance).is_some_and(|i| i.placement.id == from);
        let Some(watch) = leading.watches.get_mut(&instance) else { return };
        // On its way to the log: what is loaded ahead is wanted until that is there.
        if !is_durable || now < watch.decide_at {
            return;
        }
        let is_better = |moving: &Move| moving.is_better() && moving.from == from && is_possible;
        let is_worth_it = watch.moving.as_ref().is_some_and(is_better);
        if drained.is_empty() && !is_worth_it {
            if watch.moving.take().is_some_and(|moving| moving.is_better()) {
                tracing::info!(target: "events::move", %instance, "to a better plan is not possible any more");
            }
            watch.stuck = None;
            return;
        }
        // Between two terms what is loaded ahead goes on, and nothing is decided.
        if watch.state != InstanceState::Ready {
            return;
        }
        match &watch.moving {
            Some(moving) if moving.from == from && is_possible => self.carry_on(now, instance, out),
            _ if watch.stuck.as_ref().is_some_and(|stuck| now < stuck.again_at) => {}
            _ => self.begin_move(now, instance, &drained),
        }
    }

    /// All that is on drained nodes goes elsewhere, or what is on one of them where there is no room for all.
    fn begin_move(&mut self, now: Time, instance: InstanceId, drained: &[NodeId]) {
        let (Some(entry), Some(&first)) = (self.state.instances().get(&instance), drained.first()) else {
            return;
        };
        let one = |node: NodeId| Some((self.repaired(now, instance, RepairScope::MoveFrom(node))?, node));
        let all = self.repaired(now, instance, RepairScope::Move).map(|found| (found, first));
        let (found, node) = match all.or_else(|| drained.iter().find_map(|node| one(*node))) {
            Some((found, node)) => (Some(found), node),
            None => (None, first),
        };
        let bytes: u64 = bytes_on(entry, node);
        let called = self.name_of(node);
        let name = move |_: NodeId| called.clone();
        let entry = entry.clone();
        let Some(leading) = &mut self.leading else { return };
        let id = found.is_some().then(|| leading.next_placement());
        let Some(watch) = leading.watches.get_mut(&instance) else { return };
        match found.zip(id) {
            Some(((stages, memory_bytes), id)) => {
                let (from, reason) = (entry.placement.id, ReplaceReason::Drained { node });
                let placement = replaced(&entry, id, stages);
                tracing::info!(target: "events::move", %instance, reason = reason.text(&name), "begins");
                let moving = Move::new(now, from, placement, memory_bytes, reason);
                (watch.moving, watch.stuck) = (Some(moving), None);
            }
            None => {
                let reason = Moving::Stays { node, bytes }.text(&name);
                tracing::info!(target: "events::move", %instance, reason, "is not possible");
                watch.stuck = Some(Stuck { node, bytes, again_at: now + LOOK_EVERY });
            }
        }
    }

    fn carry_on(&mut self, now: Time, instance: InstanceId, out: &mut Vec<CoordinatorOutput>) {
        match self.step_of_move(now, instance) {
            Step::Wait => {}
            Step::Commit => self.commit_move(now, instance, out),
            Step::Avoid { stage, reason, time } => {
                let text = reason.text(&|node| self.name_of(node));
                let Some(leading) = &mut self.leading else { return };
                let Some(moving) = leading.watches.get_mut(&instance).and_then(|w| w.moving.take()) else {
                    return;
                };
                let Some(stage) = moving.placement.stages.get(stage as usize) else { return };
                let shard = stage.leader().clone();
                tracing::info!(target: "events::move", %instance, reason = text, "is given up");
                self.avoid_device(now, instance, shard.node, shard.device, reason, time);
            }
        }
    }

    /// Whether the devices that load ahead are there, may have stages, and talk with those beside them.
    fn is_possible(&self, now: Time, instance: InstanceId) -> bool {
        let Some(leading) = &self.leading else { return false };
        let Some(moving) = leading.watches.get(&instance).and_then(|w| w.moving.as_ref()) else {
            return false;
        };
        let is_there = |ahead: &PreparedShard| {
            let well = self.avoided(now, instance, ahead.node, &ahead.spec.device).is_none();
            well && !self.is_gone(leading, now, ahead.node) && !self.takes_no_more(ahead.node)
        };
        self.ahead(instance).iter().all(is_there) && self.reach().joins(&moving.placement.stages)
    }

    /// How far what is loaded ahead is.
    fn step_of_move(&mut self, now: Time, instance: InstanceId) -> Step {
        let statuses = self.statuses_ahead(instance);
        let Some(leading) = &mut self.leading else { return Step::Wait };
        let Some(moving) = leading.watches.get_mut(&instance).and_then(|w| w.moving.as_mut()) else {
            return Step::Wait;
        };
        for (best, (_, status)) in moving.best.iter_mut().zip(&statuses) {
            if status.progress() > *best {
                *best = status.progress();
                (moving.moved_at, moving.came_at) = (now, now);
            }
        }
        let is_believed = now.since(moving.came_at) < HUB_WAITS_MAX;
        if is_believed && statuses.iter().any(|(_, status)| status.waits_for_hub()) {
            moving.moved_at = now;
        }
        let stages = &moving.placement.stages;
        let avoid = |at: &ShardPosition, loss, time| {
            let (stage, node) = (at.stage, stages.get(at.stage as usize)?.leader().node);
            Some(Step::Avoid { stage, reason: ReplaceReason::Stage { stage, node, loss }, time })
        };
        let refused = statuses.iter().find_map(|(at, status)| match status {
            StageStatus::Failed { why, failed_loads } if *failed_loads >= FAILED_LOADS_MAX => {
                let loss = StageLoss::LoadRefused { failed_loads: *failed_loads, why: why.clone() };
                avoid(at, loss, AVOID_REFUSED)
            }
            _ => None,
        });
        let late = || {
            let (at, status) = statuses.iter().find(|(_, status)| !status.is_loaded())?;
            let loss = StageLoss::NoProgress { seconds: LOAD_DEADLINE.as_secs(), status: status.clone() };
            avoid(at, loss, AVOID_FAILED)
        };
        match refused {
            Some(step) => step,
            None if statuses.iter().all(|(_, status)| status.is_loaded()) => Step::Commit,
            None if now.since(moving.moved_at) > LOAD_DEADLINE => late().unwrap_or(Step::Wait),
            None => Step::Wait,
        }
    }

    fn commit_move(&mut self, now: Time, instance: InstanceId, out: &mut Vec<CoordinatorOutput>) {
        let Some(leading) = &mut self.leading else { return };
        let id = leading.next_placement();
        let Some(moving) = leading.watches.get(&instance).and_then(|w| w.moving.as_ref()) else { return };
        let placement = Placement { id, ..moving.placement.clone() };
        let (memory_bytes, reason) = (moving.memory_bytes.clone(), moving.reason.clone());
        self.decide(now, instance, Event::InstanceReplaced { placement, memory_bytes, reason }, out);
    }

    /// The shards of an instance that are loaded ahead, each with how far it is.
    fn statuses_ahead(&self, instance: InstanceId) -> Vec<(ShardPosition, StageStatus)> {
        let status = |shard: PreparedShard| {
            let reports = self.reports.get(&shard.node).map_or(&[][..], |r| &r.stages);
            let report = reports.iter().find(|r| r.serves == Some(shard.position));
            (shard.position, report.map_or(StageStatus::Unknown, |r| r.status.clone()))
        };
        self.ahead(instance).into_iter().map(status).collect()
    }

    /// The shards that an instance's next placement needs beside what serves.
    pub(super) fn ahead(&self, instance: InstanceId) -> Vec<PreparedShard> {
        let entry = self.state.instances().get(&instance);
        let moving = self.leading.as_ref().and_then(|l| l.watches.get(&instance)?.moving.as_ref());
        let Some((entry, moving)) = entry.zip(moving) else { return Vec::new() };
        let serves = |node: NodeId, spec: &ShardSpec| {
            let mut all = entry.placement.shards();
            all.any(|(at, shard)| shard.node == node && entry.placement.spec(at.stage, at.rank) == *spec)
        };
        let all = moving.placement.shards().zip(&moving.memory_bytes);
        let ahead = all.map(|((position, shard), &memory_bytes)| {
            let spec = moving.placement.spec(position.stage, position.rank);
            PreparedShard { node: shard.node, position, spec, memory_bytes }
        });
        ahead.filter(|ahead| !serves(ahead.node, &ahead.spec)).collect()
    }

    /// What a node is to load ahead.
    pub(super) fn desired_ahead(&self, node: NodeId) -> Vec<DesiredShard> {
        let mut shards = Vec::new();
        for (&instance, entry) in self.state.instances() {
            let moving = self.leading.as_ref().and_then(|l| l.watches.get(&instance)?.moving.as_ref());
            let Some(moving) = moving else { continue };
            for ahead in self.ahead(instance).into_iter().filter(|ahead| ahead.node == node) {
                shards.push(DesiredShard {
                    placement: moving.placement.clone(),
                    stage: ahead.position.stage,
                    rank: ahead.position.rank,
                    model_name: entry.request.model_name.clone(),
                    holders: self.holders(entry.request.model, &entry.request.holders),
                    memory_bytes: ahead.memory_bytes,
                    is_ahead: true,
                });
            }
        }
        shards
    }

    /// Where the stages of an instance are to be elsewhere: how far that is.
    pub(super) fn moving_view(&self, instance: InstanceId) -> Option<Moving> {
        let watch = self.leading.as_ref()?.watches.get(&instance)?;
        if let Some(stuck) = &watch.stuck {
            return Some(Moving::Stays { node: stuck.node, bytes: stuck.bytes });
        }
        let reason = watch.moving.as_ref()?.reason.clone();
        let (mut done_bytes, mut total_bytes) = (0u64, 0u64);
        let statuses = self.statuses_ahead(instance);
        for ((_, status), PreparedShard { memory_bytes: bytes, .. }) in
            statuses.iter().zip(self.ahead(instance))
        {
            total_bytes = total_bytes.saturating_add(bytes);
            let done = match status {
                // Fetching is most of the way, where it is needed.
                StageStatus::Fetching { done_bytes, total_bytes, .. } if *total_bytes > 0 => {
                    (u128::from(bytes) * u128::from(*done_bytes) / u128::from(*total_bytes) * 9 / 10) as u64
                }
                StageStatus::Loading { done_bytes, total_bytes } if *total_bytes > 0 => {
                    let part = u128::from(bytes) * u128::from(*done_bytes) / u128::from(*total_bytes);
                    ((u128::from(bytes) * 9 + part) / 10) as u64
                }
                status if status.is_loaded() => bytes,
                _ => 0,
            };
            done_bytes = done_bytes.saturating_add(done.min(bytes));
        }
        Some(Moving::Loading { reason, done_bytes, total_bytes })
    }

    /// Somebody wants a node to have no stages, or to have some again.
    pub(super) fn drain(
        &mut self,
        now: Time,
        reply: ReplyTo,
        node: NodeId,
        drain: Drain,
        out: &mut Vec<CoordinatorOutput>,
    ) {
        let (is_member, durable) = (self.members.contains_key(&node), self.state.drained().contains(&node));
        let Some(leading) = &mut self.leading else { return out.push(not_coordinator(reply)) };
        let is_drained = drain == Drain::Lasting;
        match drain {
            _ if !is_member && drain != Drain::Over => {
                return out.push(refused(reply, ControlRefusal::Unknown(UnknownTarget::Member(node))));
            }
            Drain::Leaving if reply.node != node => {
                return out.push(refused(reply, ControlRefusal::Invalid(InvalidAsk::LeavesForOther(node))));
            }
            Drain::Leaving => drop(leading.leaving.insert(node, now)),
            Drain::Lasting => {}
            Drain::Over => drop(leading.leaving.remove(&node)),
        }
        // One that is on its way to the log is written once more: the first may fail.
        let is_known = durable == is_drained && leading.planned.drained().contains(&node) == is_drained;
        if drain == Drain::Leaving || is_known {
            return out
                .push(CoordinatorOutput::Reply { to: reply, reply: ControlReply::Done { holders: 1 } });
        }
        self.ask(vec![(reply, DurableReply::Done)], vec![Event::NodeDrained { node, is_drained }], out);
    }

    /// Who said long ago that it leaves has changed its mind, and who was removed is drained no more: it may
    /// come again.
    pub(super) fn forget_drained(&mut self, now: Time, out: &mut Vec<CoordinatorOutput>) {
        let knows_members = self.members.contains_key(&self.me);
        let Some(leading) = &mut self.leading else { return };
        leading.leaving.retain(|_, said_at| now.since(*said_at) <= LEAVING_FOR);
        if now < leading.forget_at {
            return;
        }
        let gone = leading.planned.drained().iter().find(|node| !self.members.contains_key(node)).copied();
        if let Some(node) = gone.filter(|_| knows_members) {
            let event = Event::NodeDrained { node, is_drained: false };
            if let Err(error) = leading.append(vec![event], Vec::new(), out) {
                tracing::error!(%node, %error, "a removed node stays drained");
            }
        }
    }
}

/// Bytes of an instance's shards on a node.
fn bytes_on(entry: &StateInstance, node: NodeId) -> u64 {
    let shards = entry.placement.shards().zip(&entry.memory_bytes);
    shards.filter(|((_, shard), _)| shard.node == node).map(|(_, bytes)| bytes).sum()
}
