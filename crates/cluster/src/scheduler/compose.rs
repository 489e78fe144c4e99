//! Filling the pipeline: admission, then one step after the other while there is room.

use std::time::Duration;

use bytes::Bytes;
use exo_types::{PlacementId, SequenceId, StepFrame, StepSequence, Term, Time, WireDType};

use super::drafting::Drafting;
use super::lookup::Lookup;
use super::pace::Pace;
use super::pages::Pages;
use super::preemption::Shares;
use super::queue::Waiting;
use super::sequence::{Guesser, REPORT_BUDGET, Running};
use super::{Flight, Scheduler, SchedulerOutput, Speculation, StepSize};
use crate::wire::{StageCommand, StageSet, StepMessage, Submission, limits};

/// Sequences opened in front of one step. With the next bound it keeps a step's header within its limit.
const OPENS_MAX: usize = 16;
/// Bytes of grammars and biases in front of one step, with what else a header of 8 MiB holds (one sequence
/// may always open).
const OPEN_BYTES_MAX: usize = 4 << 20;
/// Tokens of history in front of one step (one sequence may always open).
const OPEN_TOKENS_MAX: usize = limits::CONTEXT_TOKENS_MAX as usize;

/// Time that prompts may add to the next token of the running sequences, over all steps in flight.
const PROMPT_SHARE: Duration = Duration::from_millis(200);
/// Time of a chunk while nobody decodes: a sequence that comes meanwhile waits for it.
const PROMPT_SHARE_ALONE: Duration = Duration::from_secs(1);
/// A chunk while others decode, before anything was measured.
const CHUNK_TOKENS_UNMEASURED: u32 = 32;
/// A chunk while nobody decodes, before anything was measured.
const CHUNK_TOKENS_UNMEASURED_ALONE: u32 = 128;
/// However slow the device, a prompt moves on by this much: less would read all weights for nothing.
const CHUNK_TOKENS_MIN: u32 = 8;

impl Scheduler {
    /// Admits and sends until the pipeline is full or nobody is ready.
    pub(super) fn pump(&mut self, now: Time, out: &mut Vec<SchedulerOutput>) {
        loop {
            self.admit(now, out);
            // Of who made way: its slot may be the one that the next question needs.
            out.extend(self.drafts_over.drain(..).map(SchedulerOutput::DraftOver));
            self.ask_drafts(now, out);
            // One to a stage.
            let is_full = self.in_flight.len() >= self.placement.stages.len();
            // Guesses come together for all who asked together: a step without them would leave those behind.
            if is_full || self.running.values().any(Running::awaits_drafts) {
                return;
            }
            let (sequences, rebuilds) = self.compose(out);
            // Commands alone can wait for a step on its way: when it comes back there may be more to send.
            let is_worth_it = !self.commands.is_empty() && self.in_flight.is_empty();
            if sequences.is_empty() && !is_worth_it {
                return;
            }
            let message = self.send(now, sequences, rebuilds);
            out.push(SchedulerOutput::Step(message));
        }
    }

    /// Reserves pages for those whose turn it is.
    fn admit(&mut self, now: Time, out: &mut Vec<SchedulerOutput>) {
        while let Some(Waiting { submission, need, generated }) = self.next_admitted() {
            self.tickets += 1;
            if self.running.is_empty() {
                self.queue_rate.begin(now);
            }
            let tokens_max = self.tokens_max(&submission);
            let guesser = self.guesser(&submission, tokens_max);
            let sequence = submission.spec.sequence;
            let claim = self.pages.claim(need);
            let running = Running::new(submission, generated, self.tickets, claim, tokens_max, guesser);
            out.push(running.started(self.pipeline(), sequence));
            self.running.insert(sequence, running);
        }
    }

    /// Takes whose turn it is, if it has room, or else whoever has less than a share and for whom another
    /// makes way.
    fn next_admitted(&mut self) -> Option<Waiting> {
        let shares = Shares::of_all(&self.running);
        if self.running.len() < self.placement.slots as usize {
            let next = self.queue.next(|spec| shares.of(spec))?;
            if self.pages.can_claim(&next.need) {
                let next = next.submission.spec.sequence;
                return self.queue.take(next);
            }
        }
        let (next, paused) = self.preemption(&shares)?;
        let next = self.queue.take(next)?;
        self.pause(paused);
        Some(next)
    }

    fn guesser(&self, submission: &Submission, tokens_max: u32) -> Guesser {
        let spec = &submission.spec;
        match self.config.speculation {
            _ if !submission.speculate => Guesser::Nobody,
            Speculation::Off => Guesser::Nobody,
            Speculation::Lookup => Guesser::Lookup(Lookup::new(&spec.history, tokens_max)),
            Speculation::Model => Guesser::Model(Drafting::new(spec.sampling.clone(), spec.prompt_tokens)),
        }
    }

    /// Asks the small model about every sequence that it should know more of.
    fn ask_drafts(&mut self, now: Time, out: &mut Vec<SchedulerOutput>) {
        if self.config.speculation != Speculation::Model {
            return;
        }
        let decodes = self.running.values().filter(|r| r.is_decoding()).count();
        let mut budget = self.row_cost.budget(decodes);
        // It guesses for all of them at once.
        let cost = self.guess_cost.share(self.row_cost.step_seconds()) / decodes.max(1) as f64;
        for (&sequence, running) in &mut self.running {
            let asked = running.ask_draft(now, sequence, &mut budget, cost);
            out.extend(asked.map(|(spec, count)| SchedulerOutput::Draft { spec, count }));
        }
    }

    /// The small model's answer.
    pub(super) fn drafted(
        &mut self,
        sequence: SequenceId,
        text_len: usize,
        tokens: Vec<u32>,
        each: Option<Duration>,
    ) {
        if let Some(each) = each {
            self.guess_cost.learn(each);
        }
        match self.running.get_mut(&sequence) {
            Some(running) => running.drafted(text_len, tokens),
            None => {
                tracing::trace!(%sequence, tokens = tokens.len(), "guesses for a sequence that does not run")
            }
        }
    }

    /// The small model is gone: a sequence's own text goes on guessing, and what its grammar forces goes
    /// along as before.
    pub(super) fn stop_drafting(&mut self) {
        if self.config.speculation == Speculation::Model {
            self.config.speculation = Speculation::Lookup;
            self.running.values_mut().for_each(Running::stop_drafting);
        }
    }

    /// The parts of the next step: decodes, then prompts. Or, in turn with those, a part of what some stages
    /// alone must rebuild.
    fn compose(&mut self, out: &mut Vec<SchedulerOutput>) -> (Vec<StepSequence>, Option<StageSet>) {
        let anyone_decodes = self.running.values().any(Running::is_decoding);
        if !self.rebuilt_last
            && let Some(part) = self.take_rebuild(anyone_decodes)
        {
            return (vec![part], self.rebuilds);
        }
        let mut order = self.decodes_of_step();
        order.extend(self.prompts_in_order());
        let sequences = self.take(&order, self.chunk_tokens(&self.pace, anyone_decodes), out);
        match sequences.is_empty().then(|| self.take_rebuild(anyone_decodes)).flatten() {
            Some(part) => (vec![part], self.rebuilds),
            None => (sequences, None),
        }
    }

    /// Whole pages of the first sequence that has some to be rebuilt.
    fn take_rebuild(&mut self, anyone_decodes: bool) -> Option<StepSequence> {
        self.rebuilds?;
        let page_tokens = self.pages.page_tokens() as usize;
        let chunk_tokens = self.chunk_tokens(&self.rebuild_pace, anyone_decodes);
        let chunk_tokens = (chunk_tokens / page_tokens).max(1) * page_tokens;
        let rebuilding = self.running.iter().filter(|(_, r)| r.is_rebuilding());
        let first = rebuilding.min_by_key(|(_, r)| r.ticket).map(|(&sequence, _)| sequence)?;
        self.running.get_mut(&first)?.take_rebuild(first, chunk_tokens)
    }

    /// Prompt tokens of the next step: as many as their share of time allows. While anyone decodes, as many
    /// steps as there are stages may be in flight, and a running sequence's token waits for all of them, so
    /// each has its part of the share; several chunks also keep several stages busy. A step that only some
    /// stages compute has a pace of its own.
    fn chunk_tokens(&self, pace: &Pace, anyone_decodes: bool) -> usize {
        let stages = self.placement.stages.len().max(1) as u32;
        let (share, unmeasured) = if anyone_decodes {
            (PROMPT_SHARE, CHUNK_TOKENS_UNMEASURED)
        } else {
            (PROMPT_SHARE_ALONE, CHUNK_TOKENS_UNMEASURED_ALONE)
        };
        let chunk_max = self.config.chunk_tokens_max.max(1);
        let max = exo_planner::chunk_tokens(self.placement.stages.len(), chunk_max);
        let tokens = pace.prompt_tokens_within(share / stages).unwrap_or(unmeasured);
        (tokens.max(CHUNK_TOKENS_MIN).min(max) as usize).min(limits::STEP_TOKENS_MAX - limits::SEQUENCES_MAX)
    }

    /// Takes a part of each sequence in `order` while prompt tokens are left to give.
    fn take(
        &mut self,
        order: &[SequenceId],
        mut chunk_left: usize,
        out: &mut Vec<SchedulerOutput>,
    ) -> Vec<StepSequence> {
        let (mut sequences, mut opens, pipeline) = (Vec::new(), Opens::default(), self.pipeline());
        let decodes = order.iter().filter_map(|id| self.running.get(id)).filter(|r| r.is_decoding()).count();
        let (mut drafts, mut reports_left) = (self.row_cost.budget(decodes), REPORT_BUDGET);
        for &id in order {
            let Some(running) = self.running.get_mut(&id) else { continue };
            let is_prompt = !running.is_decoding();
            if is_prompt && chunk_left == 0 {
                break;
            }
            let report_cost = running.report_cost();
            if report_cost > reports_left {
                continue;
            }
            if !running.is_open() {
                if !opens.open(pipeline, id, running, &mut self.pages, out) {
                    continue;
                }
                self.prompt_tokens += running.tokens().len() as u64;
                self.cached_tokens += u64::from(running.claim.cached_tokens());
            }
            if running.is_rebuilding() {
                continue;
            }
            let Some(part) = running.take(id, chunk_left, &mut drafts) else { continue };
            self.parts += 1;
            running.part_last = self.parts;
            if is_prompt {
                // Behind who is new in the next step, and before who is new in a later one.
                self.prompt_turns.insert(running.principal, self.steps + 2);
            }
            reports_left -= if part.sample { report_cost } else { 0 };
            chunk_left -= if is_prompt { part.tokens.len() } else { part.drafts as usize };
            self.pages.reach(&mut running.claim, part.end());
            sequences.push(part);
        }
        // What is opened holds its pages already, so they are not among those that go.
        let gone = self.pages.evict();
        if !gone.is_empty() {
            self.commands.push(StageCommand::Forget(gone));
        }
        self.commands.append(&mut opens.commands);
        sequences
    }

    fn send(&mut self, now: Time, sequences: Vec<StepSequence>, rebuilds: Option<StageSet>) -> StepMessage {
        self.rebuilt_last = rebuilds.is_some();
        self.steps += 1;
        self.step_last += 1;
        let pause = now.since(self.completed_at);
        let (step, rebuilds_pages) = (self.step_last, rebuilds.is_some());
        let mut flight = Flight { step, sent_at: now, pause, rebuilds: rebuilds_pages, ..Flight::default() };
        for part in &sequences {
            let Some(running) = self.running.get(&part.sequence) else { continue };
            flight.add(running, part);
        }
        self.in_flight.push_back(flight);
        let (placement, term) = self.pipeline();
        StepMessage {
            stage: 0,
            commands: std::mem::take(&mut self.commands),
            frame: StepFrame { placement, term, step: self.step_last, sequences },
            failures: Vec::new(),
            pages: Vec::new(),
            kept: Vec::new(),
            rebuilds,
            computed_us: Vec::new(),
            rows_dtype: WireDType::F32,
            rows: Bytes::new(),
        }
    }
}

/// Sequences opened in front of one step: a bounded number of them.
#[derive(Default)]
struct Opens {
    commands: Vec<StageCommand>,
    history_tokens: usize,
    sampling_bytes: usize,
}

impl Opens {
    /// Opens a sequence in front of this step, unless there are enough or another one is computing what it
    /// begins with. Says whether it is open.
    fn open(
        &mut self,
        pipeline: (PlacementId, Term),
        sequence: SequenceId,
        running: &mut Running,
        pages: &mut Pages,
        out: &mut Vec<SchedulerOutput>,
    ) -> bool {
        let told = running.claim.cached_tokens();
        pages.find_more(&mut running.claim);
        if pages.is_coming(&running.claim) {
            return false;
        }
        let tokens = self.history_tokens + running.tokens().len();
        let bytes = self.sampling_bytes + running.sampling_bytes();
        let is_room = self.commands.len() < OPENS_MAX && tokens <= OPEN_TOKENS_MAX && bytes <= OPEN_BYTES_MAX;
        if !self.commands.is_empty() && !is_room {
            return false;
        }
        (self.history_tokens, self.sampling_bytes) = (tokens, bytes);
        pages.open(&mut running.claim);
        self.commands.extend(running.open());
        if running.claim.cached_tokens() > told {
            out.push(running.started(pipeline, sequence));
        }
        true
    }
}

impl Flight {
    /// What the time it takes depends on.
    pub(super) fn size(&self) -> StepSize {
        StepSize::new(self.tokens, self.depth)
    }

    /// The submissions that are in it, and their sequences.
    pub(super) fn tickets(&self) -> impl Iterator<Item = (u64, SequenceId)> {
        let sampled = self.sampled.iter().map(|(ticket, part)| (*ticket, part.sequence));
        sampled.chain(self.chunks.iter().map(|&(ticket, sequence, _)| (ticket, sequence)))
    }

    fn add(&mut self, running: &Running, part: &StepSequence) {
        let tokens = part.tokens.len() as u32;
        self.tokens += tokens;
        self.depth = self.depth.max(part.end());
        self.drafts += part.drafts;
        if !running.has_sampled {
            self.prompt_tokens += tokens;
        } else {
            self.decodes += 1;
        }
        if part.sample {
            self.sampled.push((running.ticket, part.clone()));
        } else {
            self.chunks.push((running.ticket, part.sequence, part.end()));
        }
    }
}
