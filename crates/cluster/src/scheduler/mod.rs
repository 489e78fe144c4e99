//! The instance scheduler: who runs, and what each step computes.
//!
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
mod drafting;
mod kept;
mod lookup;
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

use self::drafting::GuessCost;
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
    pages: Pages,
    queue: Queue,
    running: BTreeMap<SequenceId, Running>,
    /// Grows with every admission: the order of prompts, and what tells two lives of one id apart.
    tickets: u64,
    /// Commands for the next step.
    commands: Vec<StageCommand>,
    in_flight: VecDeque<Flight>,
    pace: Pace,
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

/// Stages whose pages hold different numbers of tokens cannot agree on what is kept, nor give equal bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stage {stage} has pages of {page_tokens} tokens, the first stage of {first_page_tokens}")]
pub struct PagesDiffer {
    /// The first stage that differs.
    pub stage: usize,
    /// Tokens of its pages.
    pub page_tokens: u32,
    /// Tokens of the first stage's pages.
    pub first_page_tokens: u32,
}

/// A step on its way.
#[derive(Clone, Debug, Default)]
struct Flight {
    step: u64,
    sent_at: Time,
    tokens: u32,
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
    /// A scheduler for a ready instance. `pages` holds (pages, tokens per page) of every stage, in order; the
    /// stage with the fewest decides. Panics if their number differs from the placement's stages.
    pub fn new(
        config: SchedulerConfig,
        placement: Placement,
        pages: &[(u32, u32)],
    ) -> Result<Self, PagesDiffer> {
        assert_eq!(placement.stages.len(), pages.len(), "pages of every stage are needed");
        let page_tokens = pages.first().map_or(1, |&(_, page_tokens)| page_tokens);
        if let Some(stage) = pages.iter().position(|&(_, other)| other != page_tokens) {
            return Err(PagesDiffer { stage, page_tokens: pages[stage].1, first_page_tokens: page_tokens });
        }
        let total = pages.iter().map(|&(count, _)| count).min().unwrap_or(0);
        Ok(Self {
            pages: Pages::new(total, page_tokens),
            queue: Queue::new(config.queue_len_max),
            config,
            placement,
            running: BTreeMap::new(),
            tickets: 0,
            commands: Vec::new(),
            in_flight: VecDeque::new(),
            pace: Pace::default(),
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
        })
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
                let is_stage = self.placement.stage_of(from).is_some();
                if is_stage && generation == self.placement.generation {
                    self.fail_instance(kind, message, &mut out);
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
        if self.over.is_none() {
            self.pump(now, &mut out);
        }
        out.extend(self.drafts_over.drain(..).map(SchedulerOutput::DraftOver));
        out
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
        if generation != self.placement.generation || self.driver_of(sequence) != Some(from) {
            return;
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
