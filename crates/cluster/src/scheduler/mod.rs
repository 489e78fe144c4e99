//! The instance scheduler: who runs, and what each step computes.
//!
//! It begins with step 0, which proves the pipeline and collects its pages ([`opening`]), and serves once that is back.
//! Drivers submit sequences; they wait in a bounded [`queue`], one principal after the other. A sequence is
//! admitted when every stage has pages for the longest it can become, so a running sequence never runs out of
//! them ([`pages`]). It begins with what is kept of earlier sequences with the same tokens and principal; while one
//! that runs computes the same, it waits for that. Steps are numbered and composed from decodes first, then prompt chunks; at most
//! one micro-batch per stage is in flight, on a single stage a prompt's next chunk besides, and a sequence whose token is in
//! flight waits for it. Prompts get a share of time beside decodes,
//! not of tokens: the scheduler learns what they cost from its own steps ([`pace`]). Freed pages may be given away at once,
//! because the `Close` that frees them travels in front of the `Open` that takes them.
//!
//! A decode may carry drafts, guessed from the sequence's own text ([`lookup`]), as many as raise the rate at which
//! tokens come ([`row_cost`]); none where they do not. A small model may guess instead ([`drafting`]); the scheduler
//! asks it and is told what it says.
//!
//! Start reading at [`Scheduler::handle`].

mod chain;
mod compose;
mod deadline;
mod drafting;
mod kept;
mod lookup;
mod opening;
mod outcome;
mod pace;
mod pages;
mod queue;
mod row_cost;
mod sequence;
#[cfg(test)]
mod speculation;
#[cfg(test)]
mod tests;
mod turnover;
mod words;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use exo_types::{FailureKind, NodeId, Placement, SequenceId, StepSequence, Time};

use self::deadline::{StepSize, StepTimes};
use self::drafting::GuessCost;
use self::opening::Opening;
use self::pace::Pace;
use self::pages::{Need, Pages};
use self::queue::{Queue, Waiting};
use self::row_cost::RowCost;
use self::sequence::Running;
use self::turnover::Turnover;
pub use self::words::{
    SchedulerConfig, SchedulerInput, SchedulerOutput, SchedulerStats, Speculation, UnknownSpeculation,
};
use crate::wire::{Busy, EndReason, StageCommand, Submission};

/// How often a driver without a token hears that its sequence is on its way.
const BEAT_EVERY: Duration = Duration::from_secs(5);

/// Decides what each step of one instance generation computes.
#[derive(Clone, Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    placement: Placement,
    /// Until step 0 is back.
    opening: Option<Opening>,
    pages: Pages,
    queue: Queue,
    running: BTreeMap<SequenceId, Running>,
    /// Grows with every admission: the order of prompts, and what tells two lives of one id apart.
    tickets: u64,
    /// Commands for the next step.
    commands: Vec<StageCommand>,
    in_flight: VecDeque<Flight>,
    pace: Pace,
    times: StepTimes,
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
    turnover: Turnover,
    guess_cost: GuessCost,
    /// Sequences that the small model may forget.
    drafts_over: Vec<SequenceId>,
    /// When those waiting for their first token were last told that the pipeline moves.
    beat_at: Time,
    failures_in_row: u32,
    /// Why nothing is served any more.
    over: Option<String>,
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
    /// Parts that sample in it, with the tickets of their sequences.
    sampled: Vec<(u64, StepSequence)>,
    /// Chunks of prompts that do not: ticket, sequence, end.
    chunks: Vec<(u64, SequenceId, u32)>,
}

impl Scheduler {
    /// A scheduler for an instance whose stages are loaded. Feed it a tick next: it sends step 0.
    pub fn new(config: SchedulerConfig, now: Time, placement: Placement) -> Self {
        Self {
            opening: Some(Opening::new(now)),
            pages: Pages::new(0, 1),
            queue: Queue::new(config.queue_len_max),
            config,
            placement,
            running: BTreeMap::new(),
            tickets: 0,
            commands: Vec::new(),
            in_flight: VecDeque::new(),
            pace: Pace::default(),
            times: StepTimes::default(),
            steps: 0,
            prompt_tokens: 0,
            cached_tokens: 0,
            drafts: [0; 2],
            completed_at: Time::ZERO,
            completed_prompt: false,
            row_cost: RowCost::new(),
            turnover: Turnover::default(),
            guess_cost: GuessCost::default(),
            drafts_over: Vec::new(),
            beat_at: Time::ZERO,
            failures_in_row: 0,
            over: None,
        }
    }

    /// Takes in what happened and says what to do. Outputs are in order.
    pub fn handle(&mut self, now: Time, input: SchedulerInput) -> Vec<SchedulerOutput> {
        let mut out = Vec::new();
        self.running.values_mut().for_each(|r| r.check_draft_wait(now));
        match input {
            SchedulerInput::Tick => {
                self.check_deadline(now, &mut out);
                self.beat(now, &mut out);
            }
            SchedulerInput::Submit { from, submission } => self.submit(now, from, submission, &mut out),
            SchedulerInput::Cancel { from, generation, sequence } => {
                self.cancel(from, generation, sequence, &mut out);
            }
            SchedulerInput::Tokens { from, tokens } => self.tokens(now, from, tokens, &mut out),
            SchedulerInput::PipelineBroken { from, generation, kind, message } => {
                if self.is_of_stage(from, generation, "a broken pipeline") {
                    self.fail_instance(kind, message, &mut out);
                }
            }
            SchedulerInput::NotWired { from, generation, step, missing } => {
                if self.is_of_stage(from, generation, "a missing stage") {
                    self.not_wired(now, from, step, missing, &mut out);
                }
            }
            SchedulerInput::Undelivered { from, generation, sequences, message } => {
                if self.is_of_stage(from, generation, "undelivered tokens") {
                    for sequence in sequences {
                        self.fail(sequence, FailureKind::StageLost, &message, &mut out);
                    }
                }
            }
            SchedulerInput::Drafted { sequence, text_len, tokens, each } => {
                self.drafted(sequence, text_len, tokens, each);
            }
            SchedulerInput::DraftRefused(sequence) => {
                if let Some(running) = self.running.get_mut(&sequence) {
                    running.stop_drafting();
                }
            }
            SchedulerInput::DraftsOver => self.stop_drafting(),
            SchedulerInput::NodeLost(node) => self.node_lost(node, &mut out),
            SchedulerInput::Stop { reason } => self.stop(FailureKind::InstanceGone, &reason, &mut out),
        }
        // Before anything is asked about others: a slot that is free again may be the one they need.
        out.extend(self.drafts_over.drain(..).map(SchedulerOutput::DraftOver));
        match (&self.over, &self.opening) {
            (Some(_), _) => {}
            (None, Some(_)) => self.open(now, &mut out),
            (None, None) => self.pump(now, &mut out),
        }
        out.extend(self.drafts_over.drain(..).map(SchedulerOutput::DraftOver));
        out
    }

    /// Whether step 0 has come back, and nothing ended it since.
    pub fn is_serving(&self) -> bool {
        self.opening.is_none() && self.over.is_none()
    }

    /// Whether a message comes from a stage's node and means this generation.
    fn is_of_stage(&self, from: NodeId, generation: u32, what: &str) -> bool {
        let serving = self.placement.generation;
        let is = self.placement.stage_of(from).is_some() && generation == serving;
        if !is {
            tracing::trace!(%from, got = generation, serving, what, "not of a stage of this generation");
        }
        is
    }

    /// Numbers to show.
    pub fn stats(&self) -> SchedulerStats {
        SchedulerStats {
            queued: self.queue.len(),
            running: self.running.len(),
            steps_in_flight: self.in_flight.len(),
            steps: self.steps,
            queue_len_max: self.queue.len_max(),
            pages: self.pages.total(),
            pages_used: self.pages.used(),
            pages_claimed: self.pages.claimed(),
            pages_cached: self.pages.cached(),
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            drafts: self.drafts[0],
            drafts_accepted: self.drafts[1],
            prompt_tokens_per_s: self.pace.prompt_tokens_per_s(),
            decode_tokens_per_s: self.pace.decode_tokens_per_s(),
        }
    }

    fn submit(&mut self, now: Time, from: NodeId, submission: Submission, out: &mut Vec<SchedulerOutput>) {
        let sequence = submission.spec.sequence;
        if self.driver_of(sequence) == Some(from) {
            // Sent again after a reconnect: it has its place already.
            out.push(SchedulerOutput::Accepted { to: from, sequence, queue_ahead: 0 });
            return;
        }
        match self.refusal(from, &submission) {
            Some((kind, message)) => {
                let generation = submission.generation;
                let busy = (kind == FailureKind::QueueFull).then(|| self.busy(now));
                let to = from;
                out.push(SchedulerOutput::Rejected { to, sequence, generation, kind, message, busy });
            }
            None => {
                let queue_ahead = self.queue.len() as u32;
                let need = self.need(&submission);
                self.queue.push(Waiting { submission, need });
                out.push(SchedulerOutput::Accepted { to: from, sequence, queue_ahead });
            }
        }
    }

    fn driver_of(&self, sequence: SequenceId) -> Option<NodeId> {
        let running = self.running.get(&sequence).map(|r| r.driver);
        running.or_else(|| self.queue.get(sequence).map(|s| s.spec.driver))
    }

    fn refusal(&self, from: NodeId, submission: &Submission) -> Option<(FailureKind, String)> {
        let Submission { instance, generation, spec, max_tokens, .. } = submission;
        let (context, history) = (self.placement.context_tokens, spec.history.len());
        if let Some(reason) = &self.over {
            return Some((FailureKind::InstanceGone, reason.clone()));
        }
        if (*instance, *generation) != (self.placement.instance, self.placement.generation) {
            let serving = self.placement.generation;
            let message =
                format!("{instance} generation {generation} was asked for, {serving} is served here");
            return Some((FailureKind::InstanceGone, message));
        }
        if let Some(opening) = &self.opening {
            let message = format!("{instance} is being wired: {}", opening.waits_for());
            return Some((FailureKind::InstanceGone, message));
        }
        if spec.driver != from || self.driver_of(spec.sequence).is_some() {
            let message = format!("sequence {} belongs to another driver than {from}", spec.sequence);
            return Some((FailureKind::Protocol, message));
        }
        if history == 0 || history >= context as usize || *max_tokens == 0 {
            let message = format!(
                "{history} tokens of prompt and {max_tokens} more were asked of a context of {context}"
            );
            return Some((FailureKind::Protocol, message));
        }
        let tokens = self.tokens_max(submission);
        let (needed, total) = (self.pages.needed(tokens), self.pages.total());
        if needed > total {
            let message = format!(
                "{history} tokens of prompt and up to {} of answer need {needed} pages of keys and values, the \
                 cache has {total}; ask for fewer tokens, or place the model with a larger cache",
                tokens as usize - history
            );
            return Some((FailureKind::OutOfMemory, message));
        }
        self.queue.is_full().then(|| {
            let (waiting, instance) = (self.queue.len(), self.placement.instance);
            let message =
                format!("{waiting} sequences wait for instance {instance}, its queue holds no more");
            (FailureKind::QueueFull, message)
        })
    }

    /// How full the queue is, and when half of it should have gone.
    fn busy(&self, now: Time) -> Busy {
        let waiting = self.queue.len() as u32;
        Busy { waiting, retry_after_s: self.turnover.retry_after_s(now, waiting) }
    }

    fn need(&self, submission: &Submission) -> Need {
        let (spec, tokens_max) = (&submission.spec, self.tokens_max(submission));
        self.pages.need(&self.placement, spec.principal, &spec.history, tokens_max)
    }

    /// The longest the sequence can become.
    fn tokens_max(&self, submission: &Submission) -> u32 {
        let history = submission.spec.history.len() as u32;
        history.saturating_add(submission.max_tokens).min(self.placement.context_tokens)
    }

    fn cancel(
        &mut self,
        from: NodeId,
        generation: u32,
        sequence: SequenceId,
        out: &mut Vec<SchedulerOutput>,
    ) {
        let serving = self.placement.generation;
        if generation != serving || self.driver_of(sequence) != Some(from) {
            return tracing::trace!(%from, %sequence, got = generation, serving, "cancels what does not run for it");
        }
        let (to, reason) = (from, EndReason::Cancelled);
        if self.queue.remove(sequence) {
            out.push(SchedulerOutput::Ended { to, sequence, reason, generated: 0 });
        } else if let Some(gone) = self.release(sequence) {
            out.push(SchedulerOutput::Ended { to, sequence, reason, generated: gone.generated });
        }
    }

    fn node_lost(&mut self, node: NodeId, out: &mut Vec<SchedulerOutput>) {
        if let Some(stage) = self.placement.stage_of(node) {
            if self.opening.is_some() {
                // Nothing but step 0 can have been in the link, and that comes again.
                return tracing::trace!(%node, stage, step = 0, "a stage's link ended before step 0 came back");
            }
            let message = format!("stage {stage} on node {node} is lost");
            self.fail_instance(FailureKind::StageLost, message, out);
            return;
        }
        self.queue.remove_driver(node);
        let orphans = self.running.iter().filter(|(_, r)| r.driver == node);
        let orphans: Vec<SequenceId> = orphans.map(|(&sequence, _)| sequence).collect();
        for sequence in orphans {
            self.release(sequence);
        }
    }
}
