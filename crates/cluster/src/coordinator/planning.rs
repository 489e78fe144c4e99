//! The handshake with the planner: one plan in flight, the others queued, and what is done with an answer.
//!
//! Planning may take seconds, so it comes out as [`CoordinatorOutput::Plan`] and the answer comes back as an
//! input. By then the cluster may be another one. What counts as a change is what a plan can be wrong about:
//! the devices there are, whether they may be used, and what is placed. Free memory moves with every report,
//! and round trips with every ping: of these only what the plan needs is checked, by [`validate`]. Otherwise
//! a plan that takes longer than the second between two reports would always be asked for again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use exo_planner::{Objective, Plan, PlanError, PlanRequest, validate};
use exo_types::{InstanceId, NodeId, PlacementId, Time};

use super::asks::refused;
use super::dry_run::{needs_room, objective_of};
use super::log::DurableReply;
use super::place::placement;
use super::replan::Due;
use super::survey::LOOK_EVERY;
use super::{Coordinator, CoordinatorOutput, PlanId, ReplyTo};
use crate::wire::{ControlRefusal, InvalidAsk, NoPlan, RequestDifference, Undecided, UnknownTarget, clip};
use crate::{Event, InstanceRequest, ReplaceReason, Unplaced, WaitReason};

/// Plans that may wait for the one in flight; who asks for more is refused.
const PLANS_QUEUED_MAX: usize = 16;
/// Answers to one ask, at most: the third is taken if it fits, however much has changed meanwhile.
const ANSWERS_MAX: u32 = 3;
/// A plan that is not there after this long is given up: an ask is refused, a replacement tried again later.
/// The time in the queue counts, because somebody waits.
pub(crate) const PLAN_DEADLINE: Duration = Duration::from_secs(30);
/// A replacement without a plan is tried again after this long.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Plans that were asked for and not answered yet.
#[derive(Clone, Debug, Default)]
pub(super) struct PlanQueue {
    in_flight: Option<InFlight>,
    queued: VecDeque<PlanAsk>,
    waiting: Vec<LinkWait>,
    last: u64,
}

/// A placement that fits only over two members that have just met, and whose data link is not open yet.
#[derive(Clone, Debug)]
struct LinkWait {
    ask: PlanAsk,
    between: (NodeId, NodeId),
    /// Then it is planned once more, whatever is open.
    until: Time,
}

/// The plan that is being made.
#[derive(Clone, Debug)]
struct InFlight {
    plan: PlanId,
    ask: PlanAsk,
    request: Arc<PlanRequest>,
    /// What was placed when the request was made.
    placed: BTreeMap<InstanceId, PlacementId>,
}

/// One plan that somebody waits for.
#[derive(Clone, Debug)]
pub(super) struct PlanAsk {
    purpose: Purpose,
    asked_at: Time,
    /// Answers that came after the cluster had changed.
    outdated: u32,
    /// Stages that a replacement is planned with, where as many as were asked for are impossible.
    stages_possible: Option<u32>,
    /// What is unloaded for it, as it does not fit otherwise.
    unloaded: Vec<InstanceId>,
    /// Why there is no plan without that.
    as_it_is: Option<PlanError>,
}

/// What a plan is for.
#[derive(Clone, Debug)]
pub(super) enum Purpose {
    /// Members asked for a model that is not placed.
    Placement { request: Box<InstanceRequest>, replies: Vec<ReplyTo> },
    /// An instance lost a stage.
    Replacement { instance: InstanceId, reason: ReplaceReason },
    /// Somebody asks whether an instance that serves should be elsewhere, or members have changed.
    Review { instance: InstanceId, reply: Option<ReplyTo>, carry_out: bool },
}

impl PlanAsk {
    pub(super) fn new(asked_at: Time, purpose: Purpose) -> Self {
        Self { purpose, asked_at, outdated: 0, stages_possible: None, unloaded: Vec::new(), as_it_is: None }
    }

    /// It is planned for another cluster than the last answer was for.
    fn forget_outcome(&mut self) {
        self.stages_possible = None;
        self.unloaded.clear();
        self.as_it_is = None;
    }

    fn replaced(&self) -> Option<InstanceId> {
        match &self.purpose {
            Purpose::Replacement { instance, .. } => Some(*instance),
            Purpose::Placement { .. } | Purpose::Review { .. } => None,
        }
    }

    /// The instance whose memory the plan may fill.
    fn instance(&self) -> Option<InstanceId> {
        match &self.purpose {
            Purpose::Replacement { instance, .. } | Purpose::Review { instance, .. } => Some(*instance),
            Purpose::Placement { .. } => None,
        }
    }

    fn replies(&self) -> &[ReplyTo] {
        match &self.purpose {
            Purpose::Placement { replies, .. } => replies,
            Purpose::Review { reply, .. } => reply.as_slice(),
            Purpose::Replacement { .. } => &[],
        }
    }

    fn into_replies(self) -> Vec<ReplyTo> {
        match self.purpose {
            Purpose::Placement { replies, .. } => replies,
            Purpose::Review { reply, .. } => Vec::from_iter(reply),
            Purpose::Replacement { .. } => Vec::new(),
        }
    }
}

impl PlanQueue {
    /// An empty one, whose plans are numbered from behind `last`.
    pub(super) fn behind(last: u64) -> Self {
        Self { last, ..Self::default() }
    }

    /// The number of the last plan.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Adds an ask behind the others, or gives back how many plans wait already.
    pub(super) fn push(&mut self, ask: PlanAsk) -> Result<(), usize> {
        // Without a plan in flight the first in the queue is about to be.
        let room = PLANS_QUEUED_MAX + usize::from(self.in_flight.is_none());
        let queued = self.queued.len() + self.waiting.len();
        if queued >= room {
            tracing::trace!(queued, max = PLANS_QUEUED_MAX, "a plan finds no room in the queue");
            return Err(queued);
        }
        self.queued.push_back(ask);
        Ok(())
    }

    /// Lets `reply` wait with those who asked for the same model, or says in what they asked for another
    /// placement. `None` if nobody has asked.
    pub(super) fn join(
        &mut self,
        wanted: &InstanceRequest,
        reply: ReplyTo,
    ) -> Option<Result<(), RequestDifference>> {
        let waiting = self.waiting.iter_mut().map(|wait| &mut wait.ask);
        let mut asks = self.in_flight.iter_mut().map(|f| &mut f.ask).chain(&mut self.queued).chain(waiting);
        asks.find_map(|ask| match &mut ask.purpose {
            Purpose::Placement { request, replies } if request.model == wanted.model => {
                Some(wanted.differs_from(request).map_or_else(
                    || {
                        request.is_on_demand &= wanted.is_on_demand;
                        replies.push(reply);
                        Ok(())
                    },
                    Err,
                ))
            }
            _ => None,
        })
    }

    /// Whether a plan for a replacement of the instance is on its way.
    pub(super) fn replaces(&self, instance: InstanceId) -> bool {
        let mut asks = self.in_flight.iter().map(|f| &f.ask).chain(&self.queued);
        asks.any(|ask| ask.replaced() == Some(instance))
    }

    /// Whether no plan is being made or waits.
    pub(super) fn is_empty(&self) -> bool {
        self.in_flight.is_none() && self.queued.is_empty() && self.waiting.is_empty()
    }

    /// Takes the review in flight where something waits that must not wait for it: a lost stage for any, and
    /// every other plan for one that nobody asked for.
    fn preempted(&mut self) -> Option<PlanAsk> {
        let is_in_the_way = |asked: bool| {
            self.queued.iter().any(|ask| match &ask.purpose {
                Purpose::Replacement { .. } => true,
                Purpose::Placement { .. } => !asked,
                Purpose::Review { reply, .. } => !asked && reply.is_some(),
            })
        };
        let gives_way = match &self.in_flight.as_ref()?.ask.purpose {
            Purpose::Review { reply, .. } => is_in_the_way(reply.is_some()),
            Purpose::Placement { .. } | Purpose::Replacement { .. } => false,
        };
        gives_way.then(|| self.in_flight.take()).flatten().map(|in_flight| in_flight.ask)
    }

    /// The same, while they wait.
    pub(super) fn replies(&self) -> impl Iterator<Item = &ReplyTo> {
        let waiting = self.waiting.iter().map(|wait| &wait.ask);
        let asks = self.in_flight.iter().map(|f| &f.ask).chain(&self.queued).chain(waiting);
        asks.flat_map(PlanAsk::replies)
    }

    /// Everyone who waits for a plan.
    pub(super) fn into_replies(self) -> impl Iterator<Item = ReplyTo> {
        let waiting = self.waiting.into_iter().map(|wait| wait.ask);
        let asks = self.in_flight.map(|f| f.ask).into_iter().chain(self.queued).chain(waiting);
        asks.flat_map(PlanAsk::into_replies)
    }

    /// Takes out what `is_over` says, in flight, queued, or waiting for a link.
    fn take(&mut self, is_over: impl Fn(&PlanAsk) -> bool) -> Vec<PlanAsk> {
        let in_flight = self.in_flight.take_if(|f| is_over(&f.ask)).map(|f| f.ask);
        let (over, queued) = std::mem::take(&mut self.queued).into_iter().partition::<Vec<_>, _>(&is_over);
        self.queued = queued.into();
        let waiting = self.waiting.extract_if(.., |wait| is_over(&wait.ask)).map(|wait| wait.ask);
        in_flight.into_iter().chain(over).chain(waiting).collect()
    }
}

impl Coordinator {
    /// Hands out the next plan when none is in flight. Replacements of instances that are gone are forgotten.
    pub(super) fn ask_planner(&mut self, now: Time, out: &mut Vec<CoordinatorOutput>) {
        self.end_link_waits(now);
        let Some(leading) = &mut self.leading else { return };
        let planned = &leading.planned;
        let is_gone = |instance| !planned.instances().contains_key(&instance);
        drop(leading.plans.take(|ask| ask.replaced().is_some_and(is_gone)));
        if let Some(ask) = leading.plans.preempted() {
            match &ask.purpose {
                Purpose::Review { instance, reply: None, .. } => {
                    if let Some(watch) = leading.watches.get_mut(instance) {
                        watch.review.due = Some(Due::Changed);
                    }
                }
                _ => leading.plans.queued.push_back(ask),
            }
        }
        if leading.plans.in_flight.is_some() {
            return;
        }
        let Some(ask) = leading.plans.queued.pop_front() else { return };
        let Some(request) = self.plan_request(now, &ask) else { return self.refuse_as_unloaded(ask, out) };
        let (request, placed) = (Arc::new(request), self.placed());
        let Some(leading) = &mut self.leading else { return };
        leading.plans.last += 1;
        let plan = PlanId { epoch: leading.epoch, number: leading.plans.last };
        out.push(CoordinatorOutput::Plan { plan, request: request.clone() });
        leading.plans.in_flight = Some(InFlight { plan, ask, request, placed });
    }

    /// An answer of the planner: taken if it still fits, else asked for again.
    pub(super) fn planned(
        &mut self,
        now: Time,
        plan: PlanId,
        result: Result<Plan, PlanError>,
        out: &mut Vec<CoordinatorOutput>,
    ) {
        let in_flight = self.leading.as_mut().and_then(|r| r.plans.in_flight.take_if(|f| f.plan == plan));
        let Some(InFlight { mut ask, request, placed, .. }) = in_flight else {
            return self.trace_unwanted(plan);
        };
        let Some(current) = self.plan_request(now, &ask) else { return self.refuse_as_unloaded(ask, out) };
        let fits = result.as_ref().map_or(Ok(()), |plan| validate(&current, plan));
        if !same_devices(&request, &current) || placed != self.placed() || fits.is_err() {
            ask.outdated += 1;
            tracing::trace!(
                plan = plan.number,
                outdated = ask.outdated,
                max = ANSWERS_MAX,
                devices_then = request.devices.len(),
                devices_now = current.devices.len(),
                invalid = fits.as_ref().err().map(tracing::field::display),
                "the cluster changed while it was planned"
            );
            if ask.outdated < ANSWERS_MAX {
                ask.forget_outcome();
                return self.ask_again(ask);
            }
        }
        match (result, fits) {
            (Ok(plan), Ok(())) => self.plan_made(now, ask, &current, plan, out),
            (Ok(_), Err(invalid)) => {
                let at_last = clip(&invalid.to_string());
                self.no_plan(now, ask, Undecided::Changed { times: ANSWERS_MAX, at_last }, out);
            }
            (Err(error), _) => self.plan_failed(now, ask, &error, out),
        }
    }

    /// Gives up plans that nobody should wait for any longer.
    pub(super) fn expire_plans(&mut self, now: Time, out: &mut Vec<CoordinatorOutput>) {
        let Some(leading) = &mut self.leading else { return };
        for ask in leading.plans.take(|ask| now.since(ask.asked_at) >= PLAN_DEADLINE) {
            let waited_ms = now.since(ask.asked_at).as_millis();
            tracing::trace!(waited_ms, max_ms = PLAN_DEADLINE.as_millis(), "a plan did not come in time");
            self.no_plan(now, ask, Undecided::Late { seconds: PLAN_DEADLINE.as_secs() }, out);
        }
    }

    /// Placements whose link has opened are planned again, and so are those that have waited long enough or
    /// for a member that is gone.
    fn end_link_waits(&mut self, now: Time) {
        if self.leading.as_ref().is_none_or(|leading| leading.plans.waiting.is_empty()) {
            return;
        }
        let reach = self.reach();
        let is_over = |wait: &mut LinkWait| {
            let (a, b) = wait.between;
            now >= wait.until
                || reach.talk(a, b)
                || ![a, b].iter().all(|node| self.reports.contains_key(node))
        };
        let Some(leading) = &mut self.leading else { return };
        let over = leading.plans.waiting.extract_if(.., is_over);
        leading.plans.queued.extend(over.map(|wait| wait.ask));
    }

    /// The ask goes on where it was: before those that came later.
    fn ask_again(&mut self, ask: PlanAsk) {
        if let Some(leading) = &mut self.leading {
            leading.plans.queued.push_front(ask);
        }
    }

    /// There is nothing left to plan for: whoever asked is told.
    fn refuse_as_unloaded(&self, ask: PlanAsk, out: &mut Vec<CoordinatorOutput>) {
        let unloaded = ControlRefusal::Unknown(UnknownTarget::Unloaded);
        out.extend(ask.into_replies().into_iter().map(|to| refused(to, unloaded.clone())));
    }

    fn plan_made(
        &mut self,
        now: Time,
        ask: PlanAsk,
        request: &PlanRequest,
        plan: Plan,
        out: &mut Vec<CoordinatorOutput>,
    ) {
        if let Some(apart) = self.reach().torn(&plan.stages) {
            return self.retry_for_unlinked_stages(now, ask, plan.stages.len(), apart, out);
        }
        if let Purpose::Review { instance, reply, carry_out } = ask.purpose {
            return self.reviewed(now, (instance, reply, carry_out), request, plan, out);
        }
        let Some(leading) = &mut self.leading else { return };
        let id = leading.next_placement();
        match ask.purpose {
            Purpose::Review { .. } => {}
            Purpose::Placement { request, replies } => {
                let instance = leading.planned.instance_next(leading.epoch);
                let reason = |r: &exo_planner::DeviceReason| format!("{}: {}", self.name_of(r.node), r.text);
                let reasons = plan.reasons.iter().map(reason);
                let reasons: Vec<String> = std::iter::once(plan.verdict()).chain(reasons).collect();
                let (mut events, unloads) =
                    match self.make_room(now, &ask.unloaded, &plan, &request.model_name) {
                        Ok(room) => room,
                        Err(model_names) => {
                            let in_use = ControlRefusal::InUse { model_names };
                            return out.extend(replies.into_iter().map(|to| refused(to, in_use.clone())));
                        }
                    };
                let reasons: Vec<String> = reasons.into_iter().chain(unloads).collect();
                let (placement, memory_bytes) = placement(plan, &request, instance, id);
                events.push(Event::InstancePlaced { request: *request, placement, memory_bytes });
                let answer = |to| (to, DurableReply::Placed { instance, reasons: reasons.clone() });
                self.ask(replies.into_iter().map(answer).collect(), events, out);
            }
            Purpose::Replacement { instance, reason } => {
                let Some(entry) = leading.planned.instances().get(&instance) else { return };
                let (placement, memory_bytes) = placement(plan, &entry.request, instance, id);
                if let Some(watch) = leading.watches.get_mut(&instance) {
                    watch.replacements += 1;
                }
                let event = Event::InstanceReplaced { placement, memory_bytes, reason };
                self.decide(now, instance, event, out);
            }
        }
    }

    /// Two that a plan puts beside each other do not talk, and the planner found no other way. A replacement
    /// makes do with fewer stages.
    fn retry_for_unlinked_stages(
        &mut self,
        now: Time,
        mut ask: PlanAsk,
        stages: usize,
        (a, b): (NodeId, NodeId),
        out: &mut Vec<CoordinatorOutput>,
    ) {
        if matches!(ask.purpose, Purpose::Placement { .. })
            && let Some(until) = self.may_open_until(a, b).filter(|until| now < *until)
            && let Some(leading) = &mut self.leading
        {
            tracing::debug!(%a, %b, "a placement waits for a data link that may be about to open");
            ask.forget_outcome();
            return leading.plans.waiting.push(LinkWait { ask, between: (a, b), until });
        }
        match ask.purpose {
            Purpose::Placement { .. } | Purpose::Review { .. } => {
                self.no_plan(now, ask, Undecided::Apart { a, b }, out);
            }
            // Fewer stages than were wanted, once for each number.
            Purpose::Replacement { .. }
                if stages > 1 && ask.stages_possible.is_none_or(|before| (stages as u32) < before + 1) =>
            {
                ask.stages_possible = Some(stages as u32 - 1);
                self.ask_again(ask);
            }
            Purpose::Replacement { instance, reason: lost } => {
                let why = Unplaced::Apart { a, b };
                self.wait(now, instance, WaitReason { lost, why }, LOOK_EVERY, out);
            }
        }
    }

    /// There is no placement. A replacement makes do with fewer stages than were asked for: these are better
    /// than no instance, and the wish was for the cluster as it was.
    fn plan_failed(
        &mut self,
        now: Time,
        mut ask: PlanAsk,
        error: &PlanError,
        out: &mut Vec<CoordinatorOutput>,
    ) {
        if let (Purpose::Replacement { .. }, &PlanError::TooFewStages { possible, .. }) =
            (&ask.purpose, error)
            && possible > 0
            && ask.stages_possible.is_none_or(|before| possible < before)
        {
            ask.stages_possible = Some(possible);
            return self.ask_again(ask);
        }
        if matches!(ask.purpose, Purpose::Placement { .. })
            && needs_room(error)
            && let Some(next) = self.next_to_unload(now, &ask.unloaded)
        {
            ask.unloaded.push(next);
            ask.as_it_is.get_or_insert_with(|| error.clone());
            return self.ask_again(ask);
        }
        match ask.purpose {
            Purpose::Placement { replies, .. } => {
                // Said of the cluster as it is: what is in use and could not be unloaded counts as taken.
                let error = ask.as_it_is.as_ref().unwrap_or(error);
                let planned = self.leading.iter().map(|leading| leading.planned.instances());
                let unloaded = planned.flat_map(|all| ask.unloaded.iter().filter_map(|id| all.get(id)));
                let unloaded = unloaded.map(|entry| entry.request.model_name.clone()).collect();
                let plan = NoPlan { explanation: clip(&error.to_string()), unloaded };
                let refusal = match error {
                    PlanError::DoesNotFit { .. } => ControlRefusal::DoesNotFit(plan),
                    _ => ControlRefusal::Invalid(InvalidAsk::NoPlan(plan)),
                };
                out.extend(replies.into_iter().map(|to| refused(to, refusal.clone())));
            }
            Purpose::Review { reply, .. } => {
                let plan = NoPlan { explanation: clip(&error.to_string()), unloaded: Vec::new() };
                out.extend(reply.map(|to| refused(to, ControlRefusal::DoesNotFit(plan))));
            }
            Purpose::Replacement { instance, reason: lost } => {
                let why = Unplaced::NoPlan(clip(&error.to_string()));
                self.wait(now, instance, WaitReason { lost, why }, LOOK_EVERY, out);
            }
        }
    }

    /// Nothing is known of what fits: who asked is told, a replacement is tried again later.
    fn no_plan(&mut self, now: Time, ask: PlanAsk, why: Undecided, out: &mut Vec<CoordinatorOutput>) {
        match ask.purpose {
            Purpose::Placement { request, replies } => {
                let refusal = ControlRefusal::NoPlan { model_name: Some(request.model_name), why };
                out.extend(replies.into_iter().map(|to| refused(to, refusal.clone())));
            }
            Purpose::Review { reply, .. } => {
                let refusal = ControlRefusal::NoPlan { model_name: None, why };
                out.extend(reply.map(|to| refused(to, refusal)));
            }
            Purpose::Replacement { instance, .. } => {
                tracing::debug!(%instance, ?why, "an instance is not placed again yet");
                if let Some(watch) = self.leading.as_mut().and_then(|r| r.watches.get_mut(&instance)) {
                    watch.decide_at = now + RETRY_AFTER;
                }
            }
        }
    }

    /// The request as the cluster is now; `None` where there is nothing left to plan.
    fn plan_request(&self, now: Time, ask: &PlanAsk) -> Option<PlanRequest> {
        let wanted = match &ask.purpose {
            Purpose::Placement { request, .. } => &**request,
            Purpose::Replacement { instance, .. } | Purpose::Review { instance, .. } => {
                &self.leading.as_ref()?.planned.instances().get(instance)?.request
            }
        };
        let objective = match ask.stages_possible {
            Some(stages_min) => Objective::Spread { stages_min },
            None => objective_of(wanted),
        };
        let request = self.request_for(now, wanted, (ask.instance(), &ask.unloaded), objective);
        let fetch_answers = match &ask.purpose {
            Purpose::Placement { .. } => request.fetch_answers,
            // Its answers stand still meanwhile.
            Purpose::Replacement { .. } => Some(1),
            // What stands serves meanwhile.
            Purpose::Review { .. } => None,
        };
        Some(PlanRequest { fetch_answers, ..request })
    }

    /// What is placed, with what is on its way to the log.
    fn placed(&self) -> BTreeMap<InstanceId, PlacementId> {
        let instances = self.leading.iter().flat_map(|r| r.planned.instances());
        instances.map(|(&id, i)| (id, i.placement.id)).collect()
    }

    fn trace_unwanted(&self, plan: PlanId) {
        let leading = self.leading.as_ref();
        let in_flight = leading.and_then(|r| r.plans.in_flight.as_ref());
        tracing::trace!(
            epoch = %plan.epoch,
            epoch_now = leading.map(|r| tracing::field::display(r.epoch)),
            plan = plan.number,
            in_flight = in_flight.map(|f| f.plan.number),
            "a plan that nobody waits for"
        );
    }
}

/// Whether both requests are about the same devices, and the same of them may be used.
fn same_devices(a: &PlanRequest, b: &PlanRequest) -> bool {
    let same = |a: &exo_planner::PlanDevice, b: &exo_planner::PlanDevice| {
        (a.node, &a.device.id, a.device.kind, &a.excluded)
            == (b.node, &b.device.id, b.device.kind, &b.excluded)
    };
    a.devices.len() == b.devices.len() && a.devices.iter().zip(&b.devices).all(|(a, b)| same(a, b))
}
