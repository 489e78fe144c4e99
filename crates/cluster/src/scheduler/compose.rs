//! Filling the pipeline: admission, then one step after the other while there is room.

use exo_types::{SequenceId, StepFrame, StepSequence, Time, WireDType};

use super::sequence::Running;
use super::{Flight, Scheduler, SchedulerOutput};
use crate::wire::{StageCommand, StepMessage, limits};

/// Sequences opened in front of one step. With the next bound it keeps a step's header within its limit.
const OPENS_MAX: usize = 16;
/// Tokens of history in front of one step (one sequence may always open).
const OPEN_TOKENS_MAX: usize = limits::CONTEXT_TOKENS_MAX as usize;

/// A chunk while others decode, before anything was measured.
const CHUNK_TOKENS_UNMEASURED: u32 = 32;
/// A chunk while nobody decodes, before anything was measured.
const CHUNK_TOKENS_UNMEASURED_ALONE: u32 = 128;
/// However slow the device, a prompt moves on by this much: less would read all weights for nothing.
const CHUNK_TOKENS_MIN: u32 = 8;
/// Where stages share a chunk's time, it is not cut smaller than this: below, reading the weights dominates.
const CHUNK_TOKENS_PIPELINED_MIN: u32 = 64;

impl Scheduler {
    /// Admits and sends until the pipeline is full or nobody is ready.
    pub(super) fn pump(&mut self, now: Time, out: &mut Vec<SchedulerOutput>) {
        loop {
            self.admit(out);
            if self.in_flight.len() >= self.placement.stages.len() {
                return;
            }
            let sequences = self.compose();
            if sequences.is_empty() && self.commands.is_empty() {
                return;
            }
            let message = self.send(now, sequences);
            out.push(SchedulerOutput::Step(message));
        }
    }

    /// Reserves pages for those whose turn it is.
    fn admit(&mut self, out: &mut Vec<SchedulerOutput>) {
        while self.running.len() < self.placement.slots as usize {
            let Some(head) = self.queue.head() else { return };
            let tokens = self.tokens_max(head);
            if !self.may_open(head.spec.history.len()) || !self.budget.reserve(tokens) {
                return;
            }
            let Some(submission) = self.queue.pop() else { return };
            self.tickets += 1;
            let running = Running::new(&submission, self.tickets, tokens);
            let (to, sequence) = (submission.spec.driver, submission.spec.sequence);
            self.running.insert(sequence, running);
            self.commands.push(StageCommand::Open { spec: submission.spec, cached: Vec::new() });
            out.push(SchedulerOutput::Started { to, sequence, cached_tokens: 0 });
        }
    }

    fn may_open(&self, history_tokens: usize) -> bool {
        let waiting = self.commands.iter().filter_map(|c| match c {
            StageCommand::Open { spec, .. } => Some(spec.history.len()),
            _ => None,
        });
        let (count, tokens) = waiting.fold((0, 0), |(count, sum), tokens| (count + 1, sum + tokens));
        count == 0 || (count < OPENS_MAX && tokens + history_tokens <= OPEN_TOKENS_MAX)
    }

    /// The parts of the next step: the longest waiting decodes, then prompts in order of admission. Decodes are
    /// spread over as many micro-batches as there are stages, so that no stage idles while another computes.
    fn compose(&mut self) -> Vec<StepSequence> {
        let decoding = self.running.values().filter(|r| r.is_decoding()).count();
        let share = decoding.div_ceil(self.placement.stages.len());
        let ready =
            self.running.iter().filter_map(|(&id, r)| r.decode_since().map(|since| (since, r.ticket, id)));
        let mut ready: Vec<(u64, u64, SequenceId)> = ready.collect();
        ready.sort_unstable();
        let decodes = ready.into_iter().take(share).map(|(_, _, id)| id);

        let prompts = self.running.iter().filter(|(_, r)| !r.is_decoding()).map(|(&id, r)| (r.ticket, id));
        let mut prompts: Vec<(u64, SequenceId)> = prompts.collect();
        prompts.sort_unstable();

        let order: Vec<SequenceId> = decodes.chain(prompts.into_iter().map(|(_, id)| id)).collect();
        self.take(&order, self.chunk_tokens(decoding > 0))
    }

    /// Prompt tokens of the next step: as many as their share of time allows. As many steps as there are stages may
    /// be in flight, and a running sequence's token waits for all of them, so each has its part of the share; several
    /// chunks also keep several stages busy.
    fn chunk_tokens(&self, anyone_decodes: bool) -> usize {
        let stages = self.placement.stages.len().max(1) as u32;
        let (share, unmeasured) = if anyone_decodes {
            (self.config.prompt_share, CHUNK_TOKENS_UNMEASURED)
        } else {
            (self.config.prompt_share_alone, CHUNK_TOKENS_UNMEASURED_ALONE)
        };
        let chunk_max = self.config.chunk_tokens_max.max(1);
        let max = (chunk_max / stages).max(CHUNK_TOKENS_PIPELINED_MIN).min(chunk_max);
        let tokens = self.pace.prompt_tokens_within(share / stages).unwrap_or(unmeasured);
        (tokens.max(CHUNK_TOKENS_MIN).min(max) as usize).min(limits::STEP_TOKENS_MAX - limits::SEQUENCES_MAX)
    }

    /// Takes a part of each sequence in `order` while prompt tokens are left to give.
    fn take(&mut self, order: &[SequenceId], mut chunk_left: usize) -> Vec<StepSequence> {
        let mut sequences = Vec::new();
        for &id in order {
            let Some(running) = self.running.get_mut(&id) else { continue };
            let is_prompt = !running.is_decoding();
            if is_prompt && chunk_left == 0 {
                break;
            }
            let Some(part) = running.take(id, chunk_left) else { continue };
            if is_prompt {
                chunk_left -= part.tokens.len();
            }
            sequences.push(part);
        }
        sequences
    }

    fn send(&mut self, now: Time, sequences: Vec<StepSequence>) -> StepMessage {
        self.steps += 1;
        let sampled = sequences.iter().filter(|s| s.sample).filter_map(|s| {
            let running = self.running.get(&s.sequence)?;
            Some((running.ticket, s.clone()))
        });
        let sampled = sampled.collect();
        let (mut tokens, mut prompt_tokens, mut decodes) = (0, 0, 0);
        for part in &sequences {
            tokens += part.tokens.len() as u32;
            match self.running.get(&part.sequence) {
                Some(running) if running.generated == 0 => prompt_tokens += part.tokens.len() as u32,
                _ => decodes += 1,
            }
        }
        let (step, sent_at) = (self.steps, now);
        self.in_flight.push_back(Flight { step, sent_at, tokens, prompt_tokens, decodes, sampled });
        let (instance, generation) = (self.placement.instance, self.placement.generation);
        StepMessage {
            stage: 0,
            commands: std::mem::take(&mut self.commands),
            frame: StepFrame { instance, generation, step: self.steps, sequences },
            failures: Vec::new(),
            rows_dtype: WireDType::F32,
            rows: Vec::new(),
        }
    }
}
