//! The driver of one sequence: from the request to its last token, or to a typed failure within a stated
//! bound.
//!
//! It waits for an instance of its model and for the data links to its first and last stage, submits to the
//! scheduler there, takes tokens in order of position from the last stage, and ends when the scheduler says
//! how many there are and the last of them is here. It keeps the whole history, which is the only truth about
//! the sequence. What ends a submission early (a lost stage, link, term or scheduler, a failed step)
//! *interrupts* it: the driver submits again, with all tokens that it has, to the next term or the next
//! placement ([`interrupt`]). Submissions are counted: what is said of another *attempt* than the last is of
//! the past.
//!
//! | state | ends by |
//! |---|---|
//! | waiting, submitted, queued, without a token so far | `queue_deadline` after the request, or after loading last moved on, but for placements in vain ([`PLACEMENTS_IN_VAIN_MAX`]) |
//! | the same, of an answer that another node began | the longer of `queue_deadline` and `pause_max` |
//! | the same after an interruption, once it has run | `pause_max` after the first interruption since the last token |
//! | running, without a token of the answer | `idle_deadline` and more for its prompt after the last sign of progress |
//! | running, behind a token | the same is an interruption; the third without a token between ends it |
//! | ended, tokens outstanding | [`LAST_TOKENS_WITHIN`] |
//! | any | an instance that was given up; [`interrupt::SETBACKS_MAX`] failures of one kind in a row; `overall_deadline`, in which pauses do not count |
//!
//! Start reading at [`Driver::handle`].

pub(crate) mod interrupt;
mod message;
#[cfg(test)]
mod tests;
mod types;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use exo_types::{Attempt, FailureKind, NodeId, Placement, PlacementId, SequenceId, Term, Time};

use self::interrupt::{Interruption, LostRun, lost_run};
pub use self::types::{
    DraftCounts, DriverConfig, DriverInput, DriverOutput, DriverPhase, DriverStart, InterruptCause, PAUSE_MAX,
};
use crate::failures::PipelineFailure;
use crate::instances::HUB_WAITS_MAX;
use crate::names::by_id;
use crate::wire::{Busy, DataMessage, EndReason, SequenceTimes, Submission};
use crate::{InstanceView, StageView};

/// The scheduler's word that a sequence ended may overtake the last stage's tokens; not by more than this.
pub(crate) const LAST_TOKENS_WITHIN: Duration = Duration::from_secs(10);
/// Added to the first token's deadline per prompt token.
pub(crate) const PREFILL_DEADLINE_PER_TOKEN: Duration = Duration::from_millis(250);
/// Placements in a row that come no further than one before, and in which loading counts as moving on all the
/// same: as many as the coordinator makes before it pauses.
pub(crate) const PLACEMENTS_IN_VAIN_MAX: u32 = 3;
/// After a refusal (the scheduler is not up yet, or the placement is old) and between unanswered submissions.
pub(crate) const SUBMIT_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Follows one sequence from the request to its end.
#[derive(Clone, Debug)]
pub struct Driver {
    config: DriverConfig,
    start: DriverStart,
    started_at: Time,
    /// When loading last moved on, at first the start.
    loading_at: Time,
    /// The same, without what is only waited for.
    came_at: Time,
    /// The newest placement of the model, and how far its shards are: how many steps each, and bytes within
    /// them.
    loading: Option<(PlacementId, u64, u64)>,
    /// The furthest that the shards of any placement were.
    furthest: (u64, u64),
    /// Placements since then.
    in_vain: u32,
    /// Instances of the model, as last heard.
    candidates: Vec<InstanceView>,
    /// Nodes to which a data link is open.
    links: Arc<BTreeSet<NodeId>>,
    /// Not before this time.
    submit_at: Time,
    /// The last submission. It counts those that were made, not those that were sent again unchanged.
    attempt: Option<Attempt>,
    run: Option<SubmittedRun>,
    /// Between an interruption and the next token.
    interruption: Option<Interruption>,
    /// Since when an answer that another node began has waited for its first run here.
    awaited_since: Option<Time>,
    /// All pauses that are over.
    paused: Duration,
    /// Whether any submission of it was computed.
    has_run: bool,
    /// Leading tokens of the first submission that need not be computed.
    cached_tokens: u32,
    drafts: DraftCounts,
    busy: Option<Busy>,
    over: bool,
}

/// Where the sequence was submitted.
#[derive(Clone, Debug)]
struct SubmittedRun {
    placement: Placement,
    /// The highest term of its pipeline that was heard of: messages of a lower one are of the past.
    term: Option<Term>,
    state: RunState,
    /// Since when it is computed.
    running_since: Option<Time>,
    /// The last sign of progress.
    moved_at: Time,
    /// Tokens received of this submission.
    received: u32,
    /// The scheduler said it ended: why, after how many tokens, when.
    ended: Option<(EndReason, u32, Time)>,
    /// Where its time went, once it ended.
    times: SequenceTimes,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RunState {
    Submitted,
    Queued,
    Running,
}

impl Driver {
    /// A driver that waits for an instance. Feed it [`DriverInput::Instances`] next.
    pub fn new(config: DriverConfig, now: Time, start: DriverStart) -> Self {
        let has_run = start.spec.history.len() > start.spec.prompt_tokens as usize; // elsewhere
        Self {
            config,
            start,
            started_at: now,
            loading_at: now,
            came_at: now,
            loading: None,
            furthest: (0, 0),
            in_vain: 0,
            candidates: Vec::new(),
            links: Arc::default(),
            submit_at: now,
            attempt: None,
            run: None,
            interruption: None,
            awaited_since: has_run.then_some(now),
            paused: Duration::ZERO,
            has_run,
            cached_tokens: 0,
            drafts: DraftCounts::default(),
            busy: None,
            over: false,
        }
    }

    /// Takes in what happened and says what to do. Outputs are in order.
    pub fn handle(&mut self, now: Time, input: DriverInput) -> Vec<DriverOutput> {
        let mut out = Vec::new();
        if self.over {
            tracing::trace!(sequence = %self.sequence(), "news for a driver that is over");
            return out;
        }
        match input {
            DriverInput::Tick => self.tick(now, &mut out),
            DriverInput::Instances(views) => self.instances(now, views, &mut out),
            DriverInput::Links(links) => {
                self.links = links;
                if self.run.is_none() && now >= self.submit_at {
                    self.submit(now, &mut out);
                }
            }
            DriverInput::PlaceRefused { message } if self.run.is_none() => {
                self.fail(FailureKind::InstanceGone, self.with_interruption(message), &mut out);
            }
            DriverInput::PlaceRefused { message } => {
                tracing::trace!(sequence = %self.sequence(), message, "not placed once more, and it runs");
            }
            DriverInput::Message { from, message } => self.message(now, from, message, &mut out),
            DriverInput::Tokens { from, placement, term, step, result } => {
                if self.is_of_last_stage(from, placement, term, step) {
                    self.tokens(now, result, &mut out);
                }
            }
            DriverInput::NodeLost(node) => {
                let stage = self.run.as_ref().and_then(|run| run.placement.stage_of(node));
                if let Some(stage) = stage {
                    let gone = PipelineFailure::NodeGone { stage: stage as u32, node };
                    self.leave(&mut out);
                    self.interrupt(now, FailureKind::StageLost, gone.into(), &mut out);
                }
            }
            DriverInput::LinkLost(node) => {
                let is_end = |run: &SubmittedRun| ends_of(&run.placement).any(|end| end == node);
                if self.run.as_ref().is_some_and(is_end) {
                    let ended = InterruptCause::Said(format!("the data link to node {node} ended"));
                    self.leave(&mut out);
                    self.interrupt(now, FailureKind::StageLost, ended, &mut out);
                }
            }
            DriverInput::Cancel => {
                self.leave(&mut out);
                self.end(EndReason::Cancelled, &mut out);
            }
        }
        out
    }

    /// The sequence.
    pub fn sequence(&self) -> SequenceId {
        self.start.spec.sequence
    }

    /// Leading tokens of its prompt that need not be computed, as far as the scheduler has said. What was
    /// computed again after an interruption, or was not, says nothing of the request.
    pub fn cached_tokens(&self) -> u32 {
        self.cached_tokens
    }

    /// Tokens that were guessed ahead, so far.
    pub fn drafts(&self) -> DraftCounts {
        self.drafts
    }

    /// Where the time of the submission went that ended it, and in which placement.
    pub fn times(&self) -> Option<(&Placement, &SequenceTimes)> {
        self.run.as_ref().filter(|run| run.ended.is_some()).map(|run| (&run.placement, &run.times))
    }

    /// What it was told by a queue that is full.
    pub fn busy(&self) -> Option<Busy> {
        self.busy
    }

    /// How far it is.
    pub fn phase(&self) -> DriverPhase {
        let is_running = self.run.as_ref().is_some_and(|run| run.state == RunState::Running);
        if let Some(interruption) = self.interruption.as_ref().filter(|_| !self.over && !is_running) {
            return DriverPhase::Interrupted { since: interruption.since, until: self.ends_at(interruption) };
        }
        match &self.run {
            _ if self.over => DriverPhase::Over,
            None => self.link_missing().map_or(DriverPhase::WaitingForInstance, DriverPhase::WaitingForLink),
            Some(run) => match run.state {
                RunState::Submitted => DriverPhase::Submitted(run.placement.instance),
                RunState::Queued => DriverPhase::Queued(run.placement.instance),
                RunState::Running => DriverPhase::Running(run.placement.instance),
            },
        }
    }

    /// Why the answer does not go on, between an interruption and the next token.
    pub fn interrupted_by(&self) -> Option<&InterruptCause> {
        self.interruption.as_ref().map(|interruption| &interruption.cause)
    }

    /// Prompt and everything generated so far: what the next submission begins with.
    pub fn history(&self) -> &[u32] {
        &self.start.spec.history
    }

    fn tick(&mut self, now: Time, out: &mut Vec<DriverOutput>) {
        if let Some((kind, message)) = self.overdue(now) {
            self.fail(kind, message, out);
            return;
        }
        if self.generated() > 0
            && let Some(message) = self.silent(now)
        {
            // What computes it may hang, and be slower to say so.
            self.leave(out);
            self.interrupt(now, FailureKind::Deadline, InterruptCause::Said(message), out);
            if self.over {
                return;
            }
        }
        let unanswered = |run: &SubmittedRun| run.state == RunState::Submitted;
        if now >= self.submit_at && self.run.as_ref().is_none_or(unanswered) {
            self.submit(now, out);
        }
    }

    /// Which deadline has passed, in words.
    fn overdue(&self, now: Time) -> Option<(FailureKind, String)> {
        let (age, config) = (now.since(self.started_at).saturating_sub(self.paused_for(now)), &self.config);
        let late = |message| Some((FailureKind::Deadline, message));
        if age > config.overall_deadline {
            return late(format!("the request took more than {} s", config.overall_deadline.as_secs()));
        }
        let Some(run) = self.run.as_ref().filter(|run| run.state == RunState::Running) else {
            return match &self.interruption {
                Some(interruption) if self.has_run => {
                    self.gone_too_long(now, interruption).or_else(|| self.paused_too_long(now, interruption))
                }
                interruption => {
                    let gone = interruption.as_ref().and_then(|i| self.gone_too_long(now, i));
                    let is_late = now.since(self.loading_at) > self.start_max();
                    gone.or_else(|| is_late.then(|| self.not_started(now)).and_then(late))
                }
            };
        };
        if let Some((_, generated, at)) = run.ended {
            let is_late = now.since(at) > LAST_TOKENS_WITHIN;
            return is_late.then(|| format!("{} of {generated} tokens arrived", run.received)).and_then(late);
        }
        self.silent(now).filter(|_| self.generated() == 0).and_then(late)
    }

    /// For how long it may wait until it runs. Of an answer that another node began that is a pause, too.
    fn start_max(&self) -> Duration {
        match self.has_run {
            true => self.config.queue_deadline.max(self.config.pause_max),
            false => self.config.queue_deadline,
        }
    }

    fn not_started(&self, now: Time) -> String {
        let age = now.since(self.started_at);
        self.with_interruption(format!("not started after {} s: {}", age.as_secs(), self.standing()))
    }

    /// For how long it runs without a sign of progress, if that is too long.
    fn silent(&self, now: Time) -> Option<String> {
        let run = self.run.as_ref().filter(|run| run.state == RunState::Running && run.ended.is_none())?;
        let waited = now.since(run.moved_at);
        let prompt = self.start.spec.history.len() as u32;
        let prefill = if run.received == 0 { PREFILL_DEADLINE_PER_TOKEN * prompt } else { Duration::ZERO };
        let is_late = waited > self.config.idle_deadline + prefill;
        is_late.then(|| format!("no token for {} s", waited.as_secs()))
    }

    /// What the request waits for, to be displayed.
    fn standing(&self) -> String {
        if let (None, Some(node)) = (&self.run, self.link_missing()) {
            return format!("the data link to node {node} is not open");
        }
        match (&self.run, self.candidates.first()) {
            (Some(run), _) => {
                format!("{:?} at instance {}", run.state, run.placement.instance).to_lowercase()
            }
            (None, Some(view)) => {
                format!("instance {} is {}", view.instance(), view.state.text_behind(self.lost(), &by_id))
            }
            (None, None) => "the model is not placed".to_owned(),
        }
    }

    fn instances(&mut self, now: Time, views: Vec<InstanceView>, out: &mut Vec<DriverOutput>) {
        let views = views.into_iter().filter(|v| v.model() == self.start.model).collect();
        let before = std::mem::replace(&mut self.candidates, views);
        self.note_gone(now);
        self.note_loading(now);
        // Whoever refused knew of a later placement than the driver: that one is not to wait.
        let was_ready =
            |view: &InstanceView| before.iter().any(|b| b.placement.id == view.placement.id && b.is_ready());
        if self.candidates.iter().any(|view| view.is_ready() && !was_ready(view)) {
            self.submit_at = self.submit_at.min(now);
        }
        match &self.run {
            Some(run) => match lost_run(&run.placement, &self.candidates) {
                Some(LostRun::GivenUp(reason)) => {
                    self.fail(FailureKind::InstanceGone, self.with_removal(&reason), out);
                }
                Some(LostRun::Elsewhere(cause)) => {
                    self.leave(out);
                    self.interrupt(now, FailureKind::StageLost, cause, out);
                }
                None => {}
            },
            None if let Some(reason) = self.given_up() => self.fail(FailureKind::InstanceGone, reason, out),
            None if now >= self.submit_at => self.submit(now, out),
            None => {}
        }
    }

    /// Bytes that come put the deadline off: a model may take an hour to arrive. So does a wait that the hub
    /// asks for.
    fn note_loading(&mut self, now: Time) {
        let progress = |view: &InstanceView| {
            let add = |(steps, bytes): (u64, u64), stage: &StageView| {
                let (step, more) = stage.status.progress();
                (steps + u64::from(step), bytes.saturating_add(more))
            };
            let (steps, bytes) = view.stages.iter().fold((0, 0), add);
            (view.placement.id, steps, bytes)
        };
        let loading = self.candidates.iter().filter(|view| !view.is_ready()).map(progress).max();
        let mut stages = self.candidates.iter().flat_map(|view| &view.stages);
        let is_held_up = stages.any(|stage| stage.status.waits_for_hub());
        if let Some(further) = loading.filter(|_| loading > self.loading) {
            if self.counts(further) {
                (self.loading_at, self.came_at) = (now, now);
            }
            self.loading = loading;
        } else if now.since(self.came_at) < HUB_WAITS_MAX && is_held_up {
            self.loading_at = now;
        }
    }

    /// Whether loading moves on by this. What is placed anew again and again, and comes no further, does not.
    fn counts(&mut self, (placement, steps, bytes): (PlacementId, u64, u64)) -> bool {
        if (steps, bytes) > self.furthest {
            (self.furthest, self.in_vain) = ((steps, bytes), 0);
        } else if self.loading.is_none_or(|(before, ..)| before != placement) {
            self.in_vain = self.in_vain.saturating_add(1);
        }
        self.in_vain <= PLACEMENTS_IN_VAIN_MAX
    }

    /// Submits to a ready instance, or again to the one that has not answered. The scheduler counts it once.
    fn submit(&mut self, now: Time, out: &mut Vec<DriverOutput>) {
        let reached = |v: &&InstanceView| v.is_ready() && self.link_missing_to(&v.placement).is_none();
        let ready: Vec<&InstanceView> = self.candidates.iter().filter(reached).collect();
        let replica = self.start.spec.sequence.request.0.checked_rem(ready.len() as u128);
        let chosen = replica.map(|index| ready[index as usize].placement.clone());
        let is_new = self.run.is_none();
        let Some(placement) = self.run.take().map(|run| run.placement).or(chosen) else { return };
        // It may have begun elsewhere, and be whole.
        if let Some(reason) = self.end_reached(&placement) {
            return self.end(reason, out);
        }
        let next = self.attempt.map_or(Some(Attempt::FIRST), Attempt::next);
        let attempt = if is_new { next } else { self.attempt };
        let Some(attempt) = attempt else {
            let message = format!("the sequence was submitted {} times", u16::MAX);
            return self.fail(FailureKind::Deadline, message, out);
        };
        self.attempt = Some(attempt);
        self.submit_at = now + SUBMIT_AGAIN_AFTER;
        let DriverStart { spec, stop_tokens, ignore_eos, speculate, .. } = self.start.clone();
        let (id, max_tokens) = (placement.id, self.tokens_left());
        let submission =
            Submission { placement: id, attempt, spec, max_tokens, stop_tokens, ignore_eos, speculate };
        out.push(DriverOutput::Send {
            to: placement.stages[0].leader().node,
            message: DataMessage::Submit(submission),
        });
        self.run = Some(SubmittedRun {
            placement,
            term: None,
            state: RunState::Submitted,
            running_since: None,
            moved_at: now,
            received: 0,
            ended: None,
            times: SequenceTimes::default(),
        });
    }

    /// The first or last stage's node, if there is no open link to it: a submission or its tokens would not
    /// get through.
    fn link_missing_to(&self, placement: &Placement) -> Option<NodeId> {
        ends_of(placement).find(|node| *node != self.start.spec.driver && !self.links.contains(node))
    }

    /// The node whose link a ready instance waits for, if none can be reached.
    fn link_missing(&self) -> Option<NodeId> {
        let mut ready = self.candidates.iter().filter(|v| v.is_ready()).peekable();
        let first = ready.peek().and_then(|v| self.link_missing_to(&v.placement))?;
        ready.all(|v| self.link_missing_to(&v.placement).is_some()).then_some(first)
    }

    /// Tells the scheduler, if there is one, that nobody listens any more.
    fn leave(&self, out: &mut Vec<DriverOutput>) {
        let (Some(SubmittedRun { placement, .. }), Some(attempt)) = (&self.run, self.attempt) else { return };
        let (id, sequence) = (placement.id, self.sequence());
        let message = DataMessage::Cancel { placement: id, sequence, attempt };
        out.push(DriverOutput::Send { to: placement.stages[0].leader().node, message });
    }

    fn end(&mut self, reason: EndReason, out: &mut Vec<DriverOutput>) {
        self.over = true;
        out.push(DriverOutput::Ended(reason));
    }

    fn fail(&mut self, kind: FailureKind, message: String, out: &mut Vec<DriverOutput>) {
        self.leave(out);
        self.over = true;
        out.push(DriverOutput::Failed { kind, message });
    }

    /// The placement that the sequence was submitted to, if it is this one.
    fn serves(&self, placement: PlacementId) -> Option<&Placement> {
        self.run.as_ref().map(|run| &run.placement).filter(|own| own.id == placement)
    }

    fn is_scheduler_of(&self, node: NodeId, placement: PlacementId) -> bool {
        self.serves(placement).is_some_and(|own| own.stages[0].leader().node == node)
    }
}

/// The nodes of its first and its last stage.
fn ends_of(placement: &Placement) -> impl Iterator<Item = NodeId> {
    let ends = [placement.stages.first(), placement.stages.last()];
    ends.into_iter().flatten().map(|stage| stage.leader().node)
}
