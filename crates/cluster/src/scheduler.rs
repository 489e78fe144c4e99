//! The instance scheduler: who runs, and what each step computes.
//!
//! It begins with step 0, which proves the pipeline and collects its pages ([`opening`]), and serves once
//! that is back. Drivers submit sequences; they wait in a bounded [`queue`], one principal after the other. A
//! sequence is admitted when every stage has pages for the longest it can become, so a running sequence never
//! runs out of them ([`pages`]). It begins with what is kept of earlier sequences with the same tokens and
//! principal; while one that runs computes the same, it waits for that. Steps are numbered and composed from
//! decodes first, then prompt chunks, each with regard to whose they are ([`step_shares`]); at most one
//! micro-batch per stage is in flight, and a sequence whose token is in flight waits for it. Prompts get a
//! share of time beside decodes, not of tokens: the scheduler learns what they cost from its own steps
//! ([`pace`]). Freed pages may be given away at once, because the `Close` that frees them travels in front of
//! the `Open` that takes them. When a link takes steps with it, the next term begins in place ([`terms`]).
//! Pages that stages keep outlive a placement as well: those that were loaded anew rebuild what running
//! sequences need of them, in steps of their own.
//!
//! A decode may carry drafts, guessed from the sequence's own text ([`lookup`]), as many as raise the rate at
//! which tokens come ([`row_cost`]); none where they do not. A small model may guess instead ([`drafting`]);
//! the scheduler asks it and is told what it says. Where the answer's grammar leaves no choice, the last
//! stage says how it goes on ([`forced`]).
//!
//! Start reading at [`Scheduler::handle`].

mod alone;
mod compose;
mod deadline;
mod drafting;
mod ended;
mod forced;
mod kept_pages;
mod lookup;
pub(crate) mod opening;
pub(crate) mod outcome;
mod pace;
mod pages;
#[cfg(feature = "planted")]
pub(crate) mod planted;
mod preemption;
mod queue;
mod queue_rate;
mod row_cost;
mod sequence;
mod step_shares;
mod submit;
pub(crate) mod terms;
#[cfg(test)]
mod tests;
mod types;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use exo_types::{
    FailureKind, NodeId, Placement, PlacementId, Principal, SequenceId, StepSequence, Term, Time,
};

use self::alone::Alone;
use self::deadline::{StepSize, StepTimes};
use self::drafting::GuessCost;
use self::ended::EndedSequences;
use self::opening::Opening;
use self::pace::Pace;
use self::pages::Pages;
use self::queue::Queue;
use self::queue_rate::QueueRate;
use self::row_cost::RowCost;
use self::sequence::Running;
use self::terms::PipelineTerms;
pub use self::types::{
    STEP_PER_TOKEN, SchedulerConfig, SchedulerInput, SchedulerOutput, Speculation, UnknownSpeculation,
};
use crate::failures::{PipelineFailure, TermEnd};
use crate::wire::{DataMessage, LoadReport, StageCommand, StagePages, StageSet, TokensMessage, limits};

/// How often a driver without a token hears that its sequence is on its way.
const BEAT_EVERY: Duration = Duration::from_secs(5);

/// Decides what each step of one placement computes.
#[derive(Clone, Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    placement: Placement,
    /// Of the input that is taken in.
    now: Time,
    terms: PipelineTerms,
    /// Until step 0 of the term is back.
    opening: Option<Opening>,
    /// The cache of the pipeline, once step 0 was back for the first time.
    cache: Option<StagePages>,
    pages: Pages,
    queue: Queue,
    running: BTreeMap<SequenceId, Running>,
    ended: EndedSequences,
    /// Grows with every admission: the order of prompts, and what tells two lives of one id apart.
    tickets: u64,
    /// Stages that lack the pages that the others kept when the term began.
    rebuilds: Option<StageSet>,
    /// Whether the last step was for these alone.
    rebuilt_last: bool,
    /// Parts of sequences in steps of all terms.
    parts: u64,
    /// Since which step each principal that runs waits for a chunk of a prompt.
    prompt_turns: BTreeMap<Principal, u64>,
    /// Commands for the next step.
    commands: Vec<StageCommand>,
    in_flight: VecDeque<Flight>,
    pace: Pace,
    /// Of steps that only the stages compute that lack pages.
    rebuild_pace: Pace,
    alone: Alone,
    times: StepTimes,
    /// The last step of the term.
    step_last: u64,
    /// Steps of all terms.
    steps: u64,
    /// Of all prompts that were opened.
    prompt_tokens: u64,
    /// Of those, tokens that were cached.
    cached_tokens: u64,
    /// Of all sequences: drafts that were checked, and those of them that were right.
    drafts: [u64; 2],
    /// When the pipeline last gave a step back.
    completed_at: Time,
    /// Whether that step had prompt tokens.
    completed_prompt: bool,
    row_cost: RowCost,
    queue_rate: QueueRate,
    guess_cost: GuessCost,
    /// Sequences that the small model may forget.
    drafts_over: Vec<SequenceId>,
    /// When those waiting for their first token were last told that the pipeline moves.
    beat_at: Time,
    failures_in_row: u32,
    /// Submissions that a step failed with and that are in steps behind it.
    tickets_lost: BTreeSet<u64>,
    /// Why nothing is served any more.
    over: Option<PipelineFailure>,
}

/// A step on its way.
#[derive(Clone, Debug, Default)]
struct Flight {
    step: u64,
    sent_at: Time,
    /// How long no step had come back when it was sent.
    pause: Duration,
    tokens: u32,
    /// The end of the part that ends deepest in its sequence.
    depth: u32,
    /// Of those, prompt.
    prompt_tokens: u32,
    /// Parts that are no prompt.
    decodes: u32,
    /// Drafts among the tokens.
    drafts: u32,
    /// Whether only the stages compute it that lack pages.
    rebuilds: bool,
    /// Parts that sample in it, with the tickets of their sequences.
    sampled: Vec<(u64, StepSequence)>,
    /// Chunks of prompts that do not: ticket, sequence, end.
    chunks: Vec<(u64, SequenceId, u32)>,
}

/// What the stages of a placement kept, for the next placement of its instance.
#[derive(Clone, Debug)]
pub struct PagesLeft(Pages);

impl Scheduler {
    /// A scheduler for a placement whose stages are loaded. Feed it a tick next: it sends step 0 of the first
    /// term.
    pub fn new(config: SchedulerConfig, now: Time, placement: Placement) -> Self {
        Self {
            now,
            terms: PipelineTerms::new(now),
            opening: Some(Opening::new(now)),
            cache: None,
            pages: Pages::new(0, 1),
            queue: Queue::new(config.queue_len_max),
            config,
            placement,
            running: BTreeMap::new(),
            ended: EndedSequences::default(),
            tickets: 0,
            rebuilds: None,
            rebuilt_last: false,
            parts: 0,
            prompt_turns: BTreeMap::new(),
            commands: Vec::new(),
            in_flight: VecDeque::new(),
            pace: Pace::default(),
            rebuild_pace: Pace::default(),
            alone: Alone::default(),
            times: StepTimes::default(),
            step_last: 0,
            steps: 0,
            prompt_tokens: 0,
            cached_tokens: 0,
            drafts: [0; 2],
            completed_at: Time::ZERO,
            completed_prompt: false,
            row_cost: RowCost::new(),
            queue_rate: QueueRate::default(),
            guess_cost: GuessCost::default(),
            drafts_over: Vec::new(),
            beat_at: Time::ZERO,
            failures_in_row: 0,
            tickets_lost: BTreeSet::new(),
            over: None,
        }
    }

    /// The same, where the scheduler of the placement before left this. Its first step 0 names these pages.
    pub fn inheriting(mut self, left: PagesLeft) -> Self {
        self.pages = left.0;
        let kept = self.pages.outlive_term(limits::PAGES_OF_TERM_MAX);
        self.opening = self.opening.map(|opening| opening.naming(kept));
        self
    }

    /// What the stages keep, once nothing is served any more.
    pub fn into_left(self) -> Option<PagesLeft> {
        (self.over.is_some() && self.pages.cached() > 0).then_some(PagesLeft(self.pages))
    }

    /// Takes in what happened and says what to do. Outputs are in order.
    pub fn handle(&mut self, now: Time, input: SchedulerInput) -> Vec<SchedulerOutput> {
        let mut out = Vec::new();
        self.begin(now);
        self.take_in(now, input, &mut out);
        self.go_on(now, &mut out);
        out
    }

    /// Takes in the outcome of a step, as the last stage sent it: the results are the drivers' and stay with
    /// the caller. `from` is the authenticated sender. Outputs are in order.
    pub fn tokens(&mut self, now: Time, from: NodeId, tokens: &TokensMessage) -> Vec<SchedulerOutput> {
        let mut out = Vec::new();
        self.begin(now);
        self.step_returned(now, from, tokens, &mut out);
        self.go_on(now, &mut out);
        out
    }

    fn take_in(&mut self, now: Time, input: SchedulerInput, out: &mut Vec<SchedulerOutput>) {
        match input {
            SchedulerInput::Tick => {
                self.ended.expire(now);
                self.check_deadline(now, out);
                self.beat(now, out);
            }
            SchedulerInput::Submit { from, submission } => self.submit(now, from, submission, out),
            SchedulerInput::Cancel { from, placement, sequence, attempt } => {
                self.cancel(from, placement, sequence, attempt, out);
            }
            SchedulerInput::Report { from, message } => self.reported(now, from, message, out),
            SchedulerInput::Drafted { sequence, text_len, tokens, each } => {
                self.drafted(sequence, text_len, tokens, each);
            }
            SchedulerInput::DraftRefused(sequence) => {
                if let Some(running) = self.running.get_mut(&sequence) {
                    running.stop_drafting();
                }
            }
            SchedulerInput::DraftsOver => self.stop_drafting(),
            SchedulerInput::LinkLost(node) => self.link_lost(now, node, out),
            SchedulerInput::NodeLost(node) => self.node_lost(node, out),
            SchedulerInput::Stop => self.stop(FailureKind::InstanceGone, &PipelineFailure::Stopped, out),
        }
    }

    /// A stage says what does not go on.
    fn reported(&mut self, now: Time, from: NodeId, message: DataMessage, out: &mut Vec<SchedulerOutput>) {
        match message {
            DataMessage::PipelineBroken { placement, term, stage, kind, why }
                if self.is_of_stage(from, placement, term, "a broken pipeline") =>
            {
                let end = TermEnd::Stage { stage, why };
                match kind {
                    FailureKind::StageLost => self.end_term(now, end, out),
                    _ => self.fail_instance(kind, None, PipelineFailure::Ended(end), out),
                }
            }
            DataMessage::NotWired { placement, term, step, missing, .. }
                if self.is_of_stage(from, placement, term, "a missing stage") =>
            {
                self.not_wired(now, (from, step), missing, out);
            }
            DataMessage::Undelivered { placement, term, sequences, missing, .. }
                if self.is_of_stage(from, placement, term, "undelivered tokens") =>
            {
                let why = PipelineFailure::Undelivered(missing);
                for (sequence, attempt) in sequences {
                    self.fail_attempt(sequence, attempt, FailureKind::StageLost, &why, out);
                }
            }
            _ => {}
        }
    }

    fn begin(&mut self, now: Time) {
        self.now = now;
        self.running.values_mut().for_each(|r| r.check_draft_wait(now));
    }

    /// Sends what can be sent now.
    fn go_on(&mut self, now: Time, out: &mut Vec<SchedulerOutput>) {
        // Before anything is asked about others: a slot that is free again may be the one they need.
        out.extend(self.drafts_over.drain(..).map(SchedulerOutput::DraftOver));
        match (&self.over, &self.opening) {
            (Some(_), _) => {}
            (None, Some(_)) => self.open(now, out),
            (None, None) => self.pump(now, out),
        }
        out.extend(self.drafts_over.drain(..).map(SchedulerOutput::DraftOver));
    }

    /// Whether step 0 of its term has come back, and nothing ended it since.
    pub fn is_serving(&self) -> bool {
        self.opening.is_none() && self.over.is_none()
    }

    /// Whether a message comes from a stage's node and means this term of this placement.
    fn is_of_stage(&self, from: NodeId, placement: PlacementId, got: Term, what: &str) -> bool {
        let term = self.terms.current;
        let is = self.placement.stage_of(from).is_some() && (placement, got) == (self.placement.id, term);
        if !is {
            let serving = self.placement.id;
            tracing::trace!(%from, %placement, %serving, %got, %term, what, "not of a stage in this term");
        }
        is
    }

    /// Whether nothing waits, runs or is on its way.
    pub fn is_idle(&self) -> bool {
        self.queue.len() == 0 && self.running.is_empty() && self.in_flight.is_empty()
    }

    /// What it counts, to show.
    pub fn load_report(&self) -> LoadReport {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        LoadReport {
            placement: self.placement.id,
            running: count(self.running.len()),
            waiting: count(self.queue.len()),
            waiting_max: count(self.queue.len_max()),
            pages: self.pages.total(),
            pages_used: self.pages.used(),
            pages_cached: self.pages.cached(),
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            drafts: self.drafts[0],
            drafts_accepted: self.drafts[1],
            steps: self.steps,
            prompt_tokens_per_s: self.pace.prompt_tokens_per_s(),
            tokens_per_s: self.pace.decode_tokens_per_s(),
            alone: self.alone.times().cloned(),
        }
    }

    fn node_lost(&mut self, node: NodeId, out: &mut Vec<SchedulerOutput>) {
        if let Some(stage) = self.placement.stage_of(node) {
            let why = PipelineFailure::NodeGone { stage: stage as u32, node };
            self.fail_instance(FailureKind::StageLost, None, why, out);
        }
    }

    /// Sequences of a driver that cannot be told anything end, and only the log says so.
    fn forget_driver(&mut self, node: NodeId) {
        let queued = self.queue.len();
        self.queue.remove_driver(node);
        let queued = queued - self.queue.len();
        let orphans = self.running.iter().filter(|(_, r)| r.driver == node);
        let orphans: Vec<SequenceId> = orphans.map(|(&sequence, _)| sequence).collect();
        if queued + orphans.len() > 0 {
            tracing::trace!(driver = %node, queued, running = orphans.len(), "sequences of a driver that is gone end");
        }
        for sequence in orphans {
            self.release(sequence);
        }
    }
}
