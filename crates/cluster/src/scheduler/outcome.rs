//! What comes back: tokens, failed steps, silence.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use exo_types::{Attempt, FailureKind, NodeId, SequenceId, Time};

use super::alone::{AloneStep, AloneWork};
use super::ended::End;
use super::pace::StepCost;
use super::sequence::{Running, started};
use super::{BEAT_EVERY, Flight, STEP_PER_TOKEN, Scheduler, SchedulerOutput, Speculation};
use crate::failures::{PipelineFailure, TermEnd};
use crate::wire::{StageCommand, StepFailure, TokenResult, TokensMessage};

/// A step in flight (and at the head of the pipeline) without completion for this long, and for
/// [`STEP_PER_TOKEN`] with each of its tokens, ends the term; earlier where it is known how long such steps
/// take.
pub(crate) const STEP_DEADLINE: Duration = Duration::from_secs(30);
/// Failed steps in a row after which the instance is given up: the device does not recover by itself.
const FAILURES_IN_ROW_MAX: u32 = 3;

impl Scheduler {
    pub(super) fn step_returned(
        &mut self,
        now: Time,
        from: NodeId,
        tokens: &TokensMessage,
        out: &mut Vec<SchedulerOutput>,
    ) {
        let (serving, term) = self.pipeline();
        let is_last = self.placement.stages.last().is_some_and(|s| s.leader().node == from);
        #[cfg(feature = "planted")]
        let is_last = is_last || self.has_bug(super::planted::SchedulerBug::ReturnedByAnyone);
        if !is_last || (tokens.placement, tokens.term) != (serving, term) {
            let (placement, got, step) = (tokens.placement, tokens.term, tokens.step);
            return tracing::trace!(
                %from, is_last, %placement, %serving, %got, %term, step, "tokens that are not of this term's last stage"
            );
        }
        if self.opening.is_some() {
            return self.opened(now, tokens, out);
        }
        match self.in_flight.front() {
            Some(flight) if flight.step == tokens.step => {}
            Some(flight) if tokens.step > flight.step => {
                let why = PipelineFailure::Order { got: tokens.step, expected: flight.step };
                return self.fail_instance(FailureKind::Protocol, None, why, out);
            }
            other => {
                let expected = other.map(|flight| flight.step);
                return tracing::trace!(got = tokens.step, ?expected, "a step that was counted already");
            }
        }
        let Some(flight) = self.in_flight.pop_front() else { return };
        let began = flight.sent_at.max(self.completed_at);
        // What a small model takes to guess is part of the pace, not of the step.
        let guessing = flight.drafts > 0 && self.config.speculation == Speculation::Model;
        let paced_from = if guessing { self.completed_at } else { began };
        self.completed_at = now;
        let is_whole = tokens.failures.is_empty();
        if is_whole && flight.rebuilds {
            // Of those of all stages it says nothing.
            let (took, prompt_tokens) = (now.since(began), flight.prompt_tokens);
            self.rebuild_pace.learn(StepCost { took, prompt_tokens, decodes: 0, generated: 0 });
            self.completed_prompt = true;
        } else if is_whole {
            self.times.learn(flight.size(), now.since(flight.sent_at));
            self.learn(&flight, now.since(began), now.since(paced_from), &tokens.results);
        }
        self.time_alone(&flight, &tokens.computed_us, is_whole);
        self.take_failures(&flight, &tokens.failures, out);
        if !tokens.results.is_empty() {
            self.terms.token_came();
        }
        if self.over.is_none() {
            self.count_times(&flight, &tokens.computed_us, now.since(flight.sent_at));
            self.keep_chunks(&flight);
            self.take_results(&flight, &tokens.results, out);
        }
    }

    /// What a step that came back whole tells of steps to come.
    fn learn(&mut self, flight: &Flight, took: Duration, paced: Duration, results: &[TokenResult]) {
        let generated = results.iter().map(|r| r.tokens.len() as u32).sum();
        let Flight { prompt_tokens, decodes, .. } = *flight;
        self.guess_cost.grow_old(generated);
        self.pace.learn(StepCost { took: paced, prompt_tokens, decodes, generated });
        // In a pipeline a step behind a prompt's comes back when that one lets it.
        let behind_prompt = std::mem::replace(&mut self.completed_prompt, prompt_tokens > 0);
        if prompt_tokens == 0 && decodes > 0 && !behind_prompt {
            self.row_cost.learn(flight.tokens, flight.drafts, took);
        }
    }

    /// Takes in what a step took if it was of a sequence that has the pipeline to itself.
    fn time_alone(&mut self, flight: &Flight, computed_us: &[u32], is_whole: bool) {
        if flight.rebuilds {
            return self.alone.crowded(self.completed_at);
        }
        let mut tickets = flight.tickets();
        let only = match (tickets.next(), tickets.next()) {
            (Some((ticket, sequence)), None) if is_whole && self.running.len() == 1 => {
                self.running.get(&sequence).filter(|running| running.ticket == ticket)
            }
            // A step of nobody passes on what stages are told.
            (None, _) => return,
            _ => None,
        };
        let Some(running) = only else { return self.alone.crowded(self.completed_at) };
        let is_prompt = !running.has_sampled;
        let work = match (is_prompt, flight.sampled.is_empty()) {
            (true, true) => AloneWork::Prompt,
            (true, false) => AloneWork::FirstToken { prompt_tokens: running.tokens().len() as u32 },
            (false, _) if flight.drafts > 0 => AloneWork::Drafts,
            (false, _) => AloneWork::Token,
        };
        let step = AloneStep {
            ticket: running.ticket,
            sent_at: flight.sent_at,
            took: self.completed_at.since(flight.sent_at),
            computed_us: &computed_us[..computed_us.len().min(self.placement.stages.len())],
            begins: is_prompt && flight.depth == flight.tokens,
            work,
        };
        self.alone.learn(self.completed_at, step);
    }

    /// Ends the sequences that a step failed with, and counts what it says of the devices. It goes by the
    /// submissions that were in the step: their drivers may have heard before, and submitted again.
    fn take_failures(&mut self, flight: &Flight, failures: &[StepFailure], out: &mut Vec<SchedulerOutput>) {
        if failures.is_empty() && self.tickets_lost.is_empty() {
            if flight.tokens > 0 {
                self.failures_in_row = 0;
            }
            return;
        }
        let lost_before = std::mem::take(&mut self.tickets_lost);
        let in_step: BTreeMap<SequenceId, u64> = flight.tickets().map(|(ticket, id)| (id, ticket)).collect();
        let tickets = |f: &StepFailure| -> Vec<u64> {
            f.sequences.iter().filter_map(|(id, _)| in_step.get(id).copied()).collect()
        };
        let mut of_device = failures.iter().filter(|f| is_of_device(f.kind)).peekable();
        // A step of sequences that are lost failed with the one in front of it, which was counted; what is
        // left of it is empty.
        let is_fine = of_device.peek().is_none() && in_step.values().any(|t| !lost_before.contains(t));
        let news = of_device.find(|f| tickets(f).iter().any(|t| !lost_before.contains(t)));
        let lost: BTreeSet<u64> =
            failures.iter().flat_map(tickets).chain(lost_before.iter().copied()).collect();
        // Only what is behind it may hold them as well.
        let behind: BTreeSet<u64> = self.in_flight.iter().flat_map(Flight::tickets).map(|(t, _)| t).collect();
        self.tickets_lost = &lost & &behind;
        for failure in failures {
            let why = PipelineFailure::Step(failure.why.clone());
            for &(sequence, attempt) in &failure.sequences {
                self.fail_attempt(sequence, attempt, failure.kind, &why, out);
            }
        }
        self.failures_in_row = match (news, is_fine) {
            (Some(_), _) => self.failures_in_row + 1,
            (None, true) => 0,
            (None, false) => self.failures_in_row, // only commands or what is known: says nothing new of the device
        };
        if let Some(failure) = news.filter(|_| self.failures_in_row >= FAILURES_IN_ROW_MAX) {
            let why = PipelineFailure::Steps { count: FAILURES_IN_ROW_MAX, why: failure.why.clone() };
            self.fail_instance(failure.kind, Some(failure.stage), why, out);
        }
    }

    /// Where the time of the step went is told at the end of each of its sequences.
    fn count_times(&mut self, flight: &Flight, computed_us: &[u32], total: Duration) {
        let computed_us = &computed_us[..computed_us.len().min(self.placement.stages.len())];
        let total_us = u64::try_from(total.as_micros()).unwrap_or(u64::MAX);
        for (ticket, sequence) in flight.tickets() {
            let Some(running) = self.running.get_mut(&sequence).filter(|r| r.ticket == ticket) else {
                continue;
            };
            let times = match running.has_sampled {
                true => &mut running.times.answer,
                false => &mut running.times.prompt,
            };
            times.add(computed_us, total_us);
        }
    }

    /// Prompts went on by a chunk: their full pages may be read by others from now on.
    fn keep_chunks(&mut self, flight: &Flight) {
        for &(ticket, sequence, end) in &flight.chunks {
            self.keep(sequence, ticket, end, flight.rebuilds);
        }
    }

    /// The first `computed` positions of a sequence are in the cache of every stage, or the pages of them
    /// where they were lacking.
    fn keep(&mut self, sequence: SequenceId, ticket: u64, computed: u32, is_rebuilt: bool) {
        let Some(running) = self.running.get_mut(&sequence).filter(|r| r.ticket == ticket) else { return };
        let pages = match is_rebuilt {
            true => running.rebuilt(&mut self.pages, computed),
            false => running.keep(&mut self.pages, computed),
        };
        if !pages.is_empty() {
            self.commands.push(StageCommand::Keep { sequence, pages });
        }
    }

    fn take_results(&mut self, flight: &Flight, results: &[TokenResult], out: &mut Vec<SchedulerOutput>) {
        let by_sequence: BTreeMap<SequenceId, &TokenResult> =
            results.iter().map(|result| (result.sequence, result)).collect();
        for (ticket, part) in &flight.sampled {
            let sequence = part.sequence;
            let Some(running) = self.running.get_mut(&sequence).filter(|r| r.ticket == *ticket) else {
                tracing::trace!(%sequence, step = flight.step, "tokens of a sequence that was cancelled or failed meanwhile");
                continue;
            };
            let Some(result) = by_sequence.get(&sequence).filter(|r| r.answers(part, self.config.vocab))
            else {
                let (step, position) = (flight.step, part.sample_position());
                let why = PipelineFailure::NoTokens { step, position };
                self.fail(sequence, FailureKind::Protocol, &why, out);
                continue;
            };
            self.drafts[0] += u64::from(result.drafts);
            self.drafts[1] += u64::from(result.drafts_accepted());
            let end = running.sampled(result, self.placement.context_tokens);
            // Every token but the last sampled one went through the stages, and none that was rejected
            // counts.
            let computed = running.tokens().len() as u32 - 1;
            self.keep(sequence, *ticket, computed, false);
            let Some(reason) = end else { continue };
            if let Some(gone) = self.release(sequence) {
                self.queue_rate.ended(self.completed_at);
                let how = End::Done { reason, generated: gone.generated, times: gone.times };
                self.end(sequence, gone.driver, gone.attempt, how, out);
            }
        }
    }

    pub(super) fn check_deadline(&mut self, now: Time, out: &mut Vec<SchedulerOutput>) {
        let Some(flight) = self.in_flight.front() else { return };
        // The pipeline works on one step after the other: this one had its turn when the last one came back.
        let waited = now.since(flight.sent_at.max(self.completed_at));
        let at_most = STEP_DEADLINE + STEP_PER_TOKEN * flight.tokens;
        if waited > self.times.deadline(flight.size(), flight.pause, at_most) {
            let (step, waited_ms) = (flight.step, u64::try_from(waited.as_millis()).unwrap_or(u64::MAX));
            self.end_term(now, TermEnd::Late { step, waited_ms }, out);
        }
    }

    /// Tells drivers without a token that the pipeline moves, if it does.
    pub(super) fn beat(&mut self, now: Time, out: &mut Vec<SchedulerOutput>) {
        if self.completed_at <= self.beat_at || now.since(self.beat_at) < BEAT_EVERY {
            return;
        }
        self.beat_at = now;
        let silent = self.running.iter().filter(|(_, r)| !r.has_sampled);
        out.extend(silent.map(|(&sequence, r)| r.started(self.pipeline(), sequence)));
        let paused = self.queue.paused();
        out.extend(paused.map(|s| started(self.pipeline(), s.spec.driver, (s.spec.sequence, s.attempt), 0)));
    }

    /// Gives a running sequence's pages back and sees to it that the stages forget it.
    pub(super) fn release(&mut self, sequence: SequenceId) -> Option<Running> {
        let running = self.running.remove(&sequence)?;
        self.pages.release(&running.claim);
        if running.has_drafter() {
            self.drafts_over.push(sequence);
        }
        if running.is_open() {
            self.commands.push(StageCommand::Close(sequence));
        }
        Some(running)
    }

    pub(super) fn fail(
        &mut self,
        sequence: SequenceId,
        kind: FailureKind,
        why: &PipelineFailure,
        out: &mut Vec<SchedulerOutput>,
    ) {
        if let Some(running) = self.running.get(&sequence).filter(|_| kind == FailureKind::Device) {
            self.pages.suspect(&running.claim);
        }
        if let Some(gone) = self.release(sequence) {
            let how = End::Failed { kind, why: why.clone() };
            self.end(sequence, gone.driver, gone.attempt, how, out);
        }
    }

    /// Fails a sequence if it is this submission of it that runs.
    pub(super) fn fail_attempt(
        &mut self,
        sequence: SequenceId,
        got: Attempt,
        kind: FailureKind,
        why: &PipelineFailure,
        out: &mut Vec<SchedulerOutput>,
    ) {
        match self.running.get(&sequence).map(|r| r.attempt) {
            Some(running) if running != got => {
                tracing::trace!(%sequence, %got, %running, "a failure of another submission");
            }
            _ => self.fail(sequence, kind, why, out),
        }
    }

    /// Every sequence is interrupted and the instance is reported, with the stage whose device failed, if it
    /// is one.
    pub(super) fn fail_instance(
        &mut self,
        kind: FailureKind,
        stage: Option<u32>,
        why: PipelineFailure,
        out: &mut Vec<SchedulerOutput>,
    ) {
        if self.over.is_some() {
            return;
        }
        self.stop(kind, &why, out);
        out.push(SchedulerOutput::InstanceFailed { kind, stage, why });
    }

    /// Every sequence fails; nothing is taken any more.
    pub(super) fn stop(&mut self, kind: FailureKind, why: &PipelineFailure, out: &mut Vec<SchedulerOutput>) {
        let running: Vec<SequenceId> = self.running.keys().copied().collect();
        for sequence in running {
            self.fail(sequence, kind, why, out);
        }
        while let Some(waiting) = self.queue.pop() {
            let (spec, attempt) = (waiting.submission.spec, waiting.submission.attempt);
            let how = End::Failed { kind, why: why.clone() };
            self.end(spec.sequence, spec.driver, attempt, how, out);
        }
        self.in_flight.clear();
        self.commands.clear();
        self.over = Some(why.clone());
    }
}

/// Whether a failure says something of the device: neither a lack of pages nor a grammar does.
fn is_of_device(kind: FailureKind) -> bool {
    !matches!(kind, FailureKind::OutOfMemory | FailureKind::Constraint)
}
