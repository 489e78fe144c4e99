//! The survey after each input: how every instance does, and what has to be decided about it now.

use std::time::Duration;

use exo_types::{DeviceId, InstanceId, NodeId, PlacedShard, ShardPosition, SupportClass, Time};

use super::moving::{Move, Stuck};
use super::planning::{PlanAsk, Purpose};
use super::repair::{RepairScope, replaced};
use super::replan::Review;
use super::unblamed::{TROUBLES_MAX, UnattributedFailures};
use super::unloading::IDLE_AFTER;
use super::{Coordinator, CoordinatorOutput, Leading};
use crate::instances::HUB_WAITS_MAX;
use crate::wire::{InstanceFailure, clip};
use crate::{
    Event, InstanceState, InstanceView, RemoveReason, ReplaceReason, StageLoss, StageStatus, StageView,
    StateInstance, Unplaced, WaitReason,
};

/// What is remembered of an instance between reports.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    pub(super) state: InstanceState,
    /// It was ready once, or may have been: then no loss removes it.
    pub(super) has_served: bool,
    /// Replacements since it was last ready.
    pub(super) replacements: u32,
    /// No decision before this time: the log has just failed, or nothing fitted.
    pub(super) decide_at: Time,
    /// Looks in a row that found nothing.
    looks: u32,
    /// What it lost, until it is placed again.
    lost: Option<ReplaceReason>,
    /// Its stages are being loaded elsewhere.
    pub(super) moving: Option<Move>,
    /// They should be elsewhere, and cannot.
    pub(super) stuck: Option<Stuck>,
    /// Whether the planner knows something better.
    pub(super) review: Review,
    /// The furthest each shard has come.
    best: Vec<(u8, u64)>,
    moved_at: Time,
    /// When bytes came last: a member's word that a hub makes it wait counts for so long only.
    came_at: Time,
    /// When it last had requests, or was coming.
    pub(super) used_at: Time,
    /// It had requests when it lost a stage: their answers stand still, and no scheduler counts them.
    pub(super) has_paused: bool,
    /// How long its stages had computed, by their last reports.
    pub(super) busy_us: u64,
    /// A failure of its stages that blamed none of them.
    pub(super) unblamed: UnattributedFailures,
}

/// A device that failed a stage, and until when no lost stage goes there.
#[derive(Clone, Debug)]
pub(super) struct Avoided {
    until: Time,
    reason: ReplaceReason,
}

/// A loading stage without progress for this long fails the instance.
pub(crate) const LOAD_DEADLINE: Duration = Duration::from_secs(120);
/// A stage whose load failed so often in a row fails the instance: the same memory gives the same answer, and
/// who asked is better told now.
pub(crate) const FAILED_LOADS_MAX: u32 = 3;
/// A new coordinator waits this long for its members' reports before it calls their stages lost.
pub(crate) const SETTLE: Duration = Duration::from_secs(5);
/// Replacements of one instance without becoming ready in between; then it waits for [`LOOK_LATER`].
pub(crate) const REPLACEMENTS_MAX: u32 = 3;
/// After a device refused to load a shard: the same memory gives the same answer.
pub(crate) const AVOID_REFUSED: Duration = Duration::from_secs(300);
/// After steps failed on it, or a load made no progress.
pub(crate) const AVOID_FAILED: Duration = Duration::from_secs(60);
/// An instance that waits looks again after this long, each time twice as long, and when a node comes.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A disk that answers again within this time after it last did is no news for what waits.
const DISK_BACK_AFTER: Duration = Duration::from_secs(10);
/// The longest pause between two looks of an instance that waits.
pub(crate) const LOOK_MAX: Duration = Duration::from_secs(30);
/// One that was placed again and again without serving waits so long.
pub(crate) const LOOK_LATER: Duration = Duration::from_secs(10);

/// What a survey finds wrong with an instance.
enum Verdict {
    /// Place it anew.
    Replace(ReplaceReason),
    /// The same, and not on the device of this stage, for a while.
    Avoid { stage: u32, reason: ReplaceReason, time: Duration },
}

impl Avoided {
    pub(super) fn new(until: Time, reason: ReplaceReason) -> Self {
        Self { until, reason }
    }
}

impl Watch {
    pub(super) fn new(now: Time, entry: &StateInstance, has_served: bool, replacements: u32) -> Self {
        let best = vec![(0, 0); entry.placement.shards().count()];
        let state = InstanceState::Placing;
        let looks = 0;
        let (lost, moving, stuck, review) = (None, None, None, Review::default());
        Self {
            state,
            has_served,
            replacements,
            decide_at: now,
            looks,
            lost,
            moving,
            stuck,
            review,
            best,
            moved_at: now,
            came_at: now,
            used_at: now,
            has_paused: false,
            busy_us: 0,
            unblamed: UnattributedFailures::default(),
        }
    }
}

impl Leading {
    /// Instances that wait are looked at now: something is there that was not.
    pub(super) fn look_again(&mut self, now: Time) {
        let waits = |watch: &&mut Watch| matches!(watch.state, InstanceState::Waiting { .. });
        for watch in self.watches.values_mut().filter(waits) {
            (watch.decide_at, watch.looks) = (now, 0);
        }
    }

    /// The disk of a member answers again. Whether that is news: one that wavers would have what waits look
    /// all the time.
    pub(super) fn note_disk_back(&mut self, now: Time, node: NodeId) -> bool {
        let before = self.disks_back.get(&node);
        let counts = before.is_none_or(|before| now.since(*before) >= DISK_BACK_AFTER);
        if counts {
            self.disks_back.insert(node, now);
        }
        counts
    }
}

impl Coordinator {
    pub(super) fn survey(&mut self, now: Time, out: &mut Vec<CoordinatorOutput>) {
        let instances: Vec<InstanceId> = self.state.instances().keys().copied().collect();
        for instance in instances {
            self.note_use(now, instance);
            let verdict = self.verdict(now, instance);
            match verdict {
                Some(Verdict::Replace(reason)) => self.replace(now, instance, reason, out),
                Some(Verdict::Avoid { stage, reason, time }) => {
                    self.avoid(now, instance, stage, reason.clone(), time);
                    self.replace(now, instance, reason, out);
                }
                None => self.move_on(now, instance, out),
            }
        }
    }

    /// Brings the watch up to date and says what is to be done. An instance whose next placement is being
    /// planned, or is on its way to the log like a removal, is left alone until it is durable.
    fn verdict(&mut self, now: Time, instance: InstanceId) -> Option<Verdict> {
        let statuses = self.statuses(instance)?;
        let entry = self.state.instances().get(&instance)?;
        let leading = self.leading.as_ref()?;
        let planned = leading.planned.instances().get(&instance)?;
        let watch = leading.watches.get(&instance)?;
        if planned.placement.id != entry.placement.id || now < watch.decide_at {
            return None;
        }
        if leading.plans.replaces(instance) {
            return None;
        }
        // What was lost stays lost: stages that are back belong to a pipeline that has ended.
        if let Some(reason) = &watch.lost {
            return Some(Verdict::Replace(reason.clone()));
        }
        let lost = entry.placement.shards().find(|(_, shard)| self.is_gone(leading, now, shard.node));
        if let Some((at, shard)) = lost {
            let (stage, node, loss) = (at.stage, shard.node, StageLoss::NodeGone);
            return Some(Verdict::Replace(ReplaceReason::Stage { stage, node, loss }));
        }
        if let Some(InstanceFailure { stage, why, .. }) = self.trouble(entry).cloned() {
            let time = AVOID_FAILED;
            let failed = |times| ReplaceReason::Failed { times, why };
            if let Some(stage) = stage {
                return Some(Verdict::Avoid { stage, reason: failed(1), time });
            }
            return Some(match self.unblamed(now, instance) {
                Some(stage) => Verdict::Avoid { stage, reason: failed(TROUBLES_MAX), time },
                None => Verdict::Replace(failed(1)),
            });
        }
        if let Some(reason) = self.device_given_up(entry) {
            return Some(Verdict::Replace(reason));
        }
        // A pipeline between two terms has all that it needs but its links: its scheduler opens them again,
        // or gives up.
        let is_over = watch.state == InstanceState::Ready && !statuses.iter().all(StageStatus::is_loaded);
        if let Some((stage, node, status)) = unready(entry, &statuses).filter(|_| is_over) {
            let loss = StageLoss::NotReady { status: status.clone() };
            return Some(Verdict::Replace(ReplaceReason::Stage { stage, node, loss }));
        }
        self.observe(now, instance, &statuses)
    }

    /// What a scheduler reported of this placement.
    fn trouble(&self, entry: &StateInstance) -> Option<&InstanceFailure> {
        let placement = entry.placement.id;
        let scheduler = self.reports.get(&entry.placement.stages.first()?.leader().node)?;
        scheduler.instance_failures.iter().find(|t| t.placement == placement)
    }

    /// A shard's device that its node does not use any more, and why: it was given up, or the node was
    /// started on another.
    fn device_given_up(&self, entry: &StateInstance) -> Option<ReplaceReason> {
        entry.placement.shards().find_map(|(at, shard)| {
            let devices = &self.reports.get(&shard.node)?.facts.devices;
            let loss = match devices.iter().find(|device| device.id == shard.device) {
                Some(device) if device.support == SupportClass::Unsupported => {
                    StageLoss::Unsupported(clip(&device.support_reason))
                }
                None if !devices.is_empty() => StageLoss::Unused { device: shard.device.clone() },
                Some(_) | None => return None,
            };
            Some(ReplaceReason::Stage { stage: at.stage, node: shard.node, loss })
        })
    }

    /// Notes progress; an instance that makes none for too long is given up.
    fn observe(&mut self, now: Time, instance: InstanceId, statuses: &[StageStatus]) -> Option<Verdict> {
        let watch = self.leading.as_mut()?.watches.get_mut(&instance)?;
        if watch.state == InstanceState::Ready && first_unready(statuses).is_some() {
            watch.best = statuses.iter().map(StageStatus::progress).collect();
            (watch.moved_at, watch.came_at) = (now, now);
        }
        for (best, status) in watch.best.iter_mut().zip(statuses) {
            if status.progress() > *best {
                *best = status.progress();
                (watch.moved_at, watch.came_at) = (now, now);
            }
        }
        let is_believed = now.since(watch.came_at) < HUB_WAITS_MAX;
        if is_believed && statuses.iter().any(StageStatus::waits_for_hub) {
            watch.moved_at = now;
        }
        if first_unready(statuses).is_none() {
            watch.state = InstanceState::Ready;
            (watch.replacements, watch.has_served) = (0, true);
            return None;
        }
        let is_unheard = statuses.iter().any(|s| matches!(s, StageStatus::Unknown));
        watch.state = match statuses.iter().all(StageStatus::is_loaded) {
            true => InstanceState::Wiring,
            false if is_unheard => InstanceState::Placing,
            false => InstanceState::Loading,
        };
        let is_late = now.since(watch.moved_at) > LOAD_DEADLINE;
        if let Some((stage, reason)) = self.given_up_loading(instance, statuses) {
            return Some(Verdict::Avoid { stage, reason, time: AVOID_REFUSED });
        }
        if !is_late {
            return None;
        }
        let entry = self.state.instances().get(&instance)?;
        let (stage, node, status) = unready(entry, statuses)?;
        let loss = StageLoss::NoProgress { seconds: LOAD_DEADLINE.as_secs(), status: status.clone() };
        let reason = ReplaceReason::Stage { stage, node, loss };
        Some(Verdict::Avoid { stage, reason, time: AVOID_FAILED })
    }

    /// A shard that could not be loaded, however often its worker tried: its stage, and why.
    fn given_up_loading(
        &self,
        instance: InstanceId,
        statuses: &[StageStatus],
    ) -> Option<(u32, ReplaceReason)> {
        let placement = &self.state.instances().get(&instance)?.placement;
        statuses.iter().zip(placement.shards()).find_map(|(status, (at, shard))| match status {
            StageStatus::Failed { why, failed_loads } if *failed_loads >= FAILED_LOADS_MAX => {
                let loss = StageLoss::LoadRefused { failed_loads: *failed_loads, why: why.clone() };
                Some((at.stage, ReplaceReason::Stage { stage: at.stage, node: shard.node, loss }))
            }
            _ => None,
        })
    }

    /// Each shard as its worker last reported it, in the order of
    /// [`Placement::shards`](exo_types::Placement::shards).
    fn statuses(&self, instance: InstanceId) -> Option<Vec<StageStatus>> {
        let placement = &self.state.instances().get(&instance)?.placement;
        let status = |(position, shard): (ShardPosition, &PlacedShard)| {
            let reports = self.reports.get(&shard.node).map_or(&[][..], |r| &r.stages);
            let serving = reports.iter().find(|r| r.serves == Some(position));
            serving.map_or(StageStatus::Unknown, |r| r.status.clone())
        };
        Some(placement.shards().map(status).collect())
    }

    /// No lost stage goes to the device of this one for a while.
    fn avoid(&mut self, now: Time, instance: InstanceId, stage: u32, reason: ReplaceReason, time: Duration) {
        let Some(entry) = self.state.instances().get(&instance) else { return };
        let Some(stage) = entry.placement.stages.get(stage as usize) else { return };
        let (node, device) = (stage.leader().node, stage.leader().device.clone());
        self.avoid_device(now, instance, node, device, reason, time);
    }

    pub(super) fn avoid_device(
        &mut self,
        now: Time,
        instance: InstanceId,
        node: NodeId,
        device: DeviceId,
        reason: ReplaceReason,
        time: Duration,
    ) {
        let text = reason.text(&|node| self.name_of(node));
        if let Some(leading) = &mut self.leading {
            tracing::info!(target: "events::avoided", %node, %device, reason = text, seconds = time.as_secs());
            leading.avoided.retain(|_, avoided| avoided.until > now);
            leading.avoided.insert((instance, node, device), Avoided::new(now + time, reason));
        }
    }

    /// Why no lost stage of this instance goes to a device.
    pub(super) fn avoided(
        &self,
        now: Time,
        instance: InstanceId,
        node: NodeId,
        device: &DeviceId,
    ) -> Option<String> {
        let avoided = self.leading.as_ref()?.avoided.get(&(instance, node, device.clone()))?;
        let reason = || avoided.reason.text(&|node| self.name_of(node));
        (avoided.until > now).then(|| format!("it failed a stage: {}", reason()))
    }

    /// Moves what is lost, or asks for the next placement on what is left.
    fn replace(
        &mut self,
        now: Time,
        instance: InstanceId,
        reason: ReplaceReason,
        out: &mut Vec<CoordinatorOutput>,
    ) {
        let Some(leading) = &mut self.leading else { return };
        let Some(watch) = leading.watches.get_mut(&instance) else { return };
        // What is loaded ahead may be what repair needs: it is wanted until the next placement is in the log.
        (watch.lost, watch.stuck) = (Some(reason.clone()), None);
        if !matches!(watch.state, InstanceState::Degraded { .. } | InstanceState::Waiting { .. }) {
            watch.has_paused = now.since(watch.used_at) < IDLE_AFTER;
        }
        if watch.replacements >= REPLACEMENTS_MAX {
            watch.replacements = 0;
            let why = WaitReason { lost: reason, why: Unplaced::InVain { times: REPLACEMENTS_MAX } };
            return self.wait(now, instance, why, LOOK_LATER, out);
        }
        if !matches!(watch.state, InstanceState::Waiting { .. }) {
            watch.state = InstanceState::Degraded { reason: reason.clone() };
        }
        // A stage whose node has not reported to this coordinator may stand: nobody is moved before it could
        // say so.
        if self.is_unheard(now, instance) {
            return;
        }
        if let Some((stages, memory_bytes)) = self.repaired(now, instance, RepairScope::Loss) {
            return self.repair(now, instance, stages, memory_bytes, reason, out);
        }
        // Without room in the queue the next survey asks again.
        let Some(leading) = &mut self.leading else { return };
        if leading.plans.push(PlanAsk::new(now, Purpose::Replacement { instance, reason })).is_err()
            && let Some(watch) = leading.watches.get_mut(&instance)
        {
            watch.decide_at = now + Duration::from_millis(100);
        }
    }

    /// Whether a node of the instance that is not gone has yet to report. A new coordinator waits for that as
    /// long as for members.
    fn is_unheard(&self, now: Time, instance: InstanceId) -> bool {
        if self.leading.as_ref().is_none_or(|leading| now.since(leading.since) >= SETTLE) {
            return false;
        }
        let nodes = self.state.instances().get(&instance).into_iter().flat_map(|i| i.placement.shards());
        let is_there = |node| {
            !self.lost.contains(&node) && self.members.contains_key(&node) && self.alive.contains(&node)
        };
        nodes.map(|(_, shard)| shard.node).any(|node| is_there(node) && !self.reports.contains_key(&node))
    }

    /// The lost stages have other devices from now on.
    fn repair(
        &mut self,
        now: Time,
        instance: InstanceId,
        stages: Vec<exo_types::Stage>,
        memory_bytes: Vec<u64>,
        reason: ReplaceReason,
        out: &mut Vec<CoordinatorOutput>,
    ) {
        let Some(leading) = &mut self.leading else { return };
        let id = leading.next_placement();
        let Some(entry) = leading.planned.instances().get(&instance) else { return };
        let placement = replaced(entry, id, stages);
        if let Some(watch) = leading.watches.get_mut(&instance) {
            watch.replacements += 1;
        }
        self.decide(now, instance, Event::InstanceReplaced { placement, memory_bytes, reason }, out);
    }

    /// Nothing takes what is lost. What has served stays placed until something does, what never has is given
    /// up.
    pub(super) fn wait(
        &mut self,
        now: Time,
        instance: InstanceId,
        reason: WaitReason,
        look_after: Duration,
        out: &mut Vec<CoordinatorOutput>,
    ) {
        let is_member = self.members.contains_key(&self.me);
        let Some(leading) = self.leading.as_mut() else { return };
        let Some(watch) = leading.watches.get_mut(&instance) else { return };
        // A node that was removed waits for nobody: it has no cluster.
        if !watch.has_served || !is_member {
            return self.give_up(now, instance, RemoveReason::GivenUp(reason), out);
        }
        watch.state = InstanceState::Waiting { reason };
        watch.moving = None;
        // Without another device the one that failed is better than none.
        leading.avoided.retain(|(of, ..), _| *of != instance);
        watch.looks = watch.looks.saturating_add(1).min(5);
        watch.decide_at =
            now + look_after.saturating_mul(1 << (watch.looks - 1)).min(LOOK_MAX).max(look_after);
    }

    pub(super) fn give_up(
        &mut self,
        now: Time,
        instance: InstanceId,
        reason: RemoveReason,
        out: &mut Vec<CoordinatorOutput>,
    ) {
        self.decide(now, instance, Event::InstanceRemoved { instance, reason }, out);
    }

    /// Appends a decision of the coordinator's own. One that the state refuses would be a bug of the planner;
    /// it is said aloud and taken again later instead of in a loop.
    pub(super) fn decide(
        &mut self,
        now: Time,
        instance: InstanceId,
        event: Event,
        out: &mut Vec<CoordinatorOutput>,
    ) {
        let Some(leading) = &mut self.leading else { return };
        if let Err(error) = leading.append(vec![event], Vec::new(), out) {
            tracing::error!(%instance, %error, "a decision does not apply");
            if let Some(watch) = leading.watches.get_mut(&instance) {
                watch.decide_at = now + Duration::from_secs(1);
            }
        }
    }

    /// The instance as shown: its durable placement, and how it does.
    pub(super) fn view(&self, instance: InstanceId) -> Option<InstanceView> {
        let entry = self.state.instances().get(&instance)?;
        let mut shards = self.statuses(instance)?.into_iter().zip(entry.memory_bytes.iter().copied());
        let stages =
            entry.placement.stages.iter().map(|s| StageView::of(shards.by_ref().take(s.shards.len())));
        let stages = stages.collect();
        let watch = self.leading.as_ref().and_then(|r| r.watches.get(&instance));
        Some(InstanceView {
            model_name: entry.request.model_name.clone(),
            placement: entry.placement.clone(),
            state: watch.map_or(InstanceState::Placing, |w| w.state.clone()),
            stages,
            moving: self.moving_view(instance),
            advice: watch.and_then(|w| w.review.advice),
        })
    }
}

/// The first shard that cannot compute: its stage, its node, and how far it is.
fn unready<'a>(entry: &StateInstance, statuses: &'a [StageStatus]) -> Option<(u32, NodeId, &'a StageStatus)> {
    let index = first_unready(statuses)?;
    let ((at, shard), status) = entry.placement.shards().zip(statuses).nth(index)?;
    Some((at.stage, shard.node, status))
}

/// The stage that keeps an instance from serving: one that is not loaded, or the first, whose scheduler has
/// not seen step 0 again.
fn first_unready(statuses: &[StageStatus]) -> Option<usize> {
    let unloaded = statuses.iter().position(|s| !s.is_loaded());
    unloaded.or_else(|| (statuses.first() != Some(&StageStatus::Serving)).then_some(0))
}
