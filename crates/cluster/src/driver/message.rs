//! Messages to a driver: from its scheduler, from the last stage, from a stage that failed.

use exo_types::{Attempt, FailureKind, NodeId, PlacementId, SequenceId, Term, Time};

use super::{Driver, DriverOutput, InterruptCause, RunState, SUBMIT_AGAIN_AFTER};
use crate::failures::PipelineFailure;
use crate::wire::{DataMessage, Rejection, TokenResult};

impl Driver {
    pub(super) fn message(
        &mut self,
        now: Time,
        from: NodeId,
        message: DataMessage,
        out: &mut Vec<DriverOutput>,
    ) {
        match message {
            DataMessage::Accepted { placement, term, sequence, attempt, .. } => {
                if self.is_from_scheduler(from, placement, sequence, attempt) && self.is_in_term(from, term) {
                    self.set_state(now, RunState::Queued);
                }
            }
            DataMessage::Started { placement, term, sequence, attempt, cached_tokens } => {
                if self.is_from_scheduler(from, placement, sequence, attempt) && self.is_in_term(from, term) {
                    self.set_state(now, RunState::Running);
                    if self.generated() == 0 && self.interruption.is_none() {
                        self.cached_tokens = cached_tokens.min(self.start.spec.prompt_tokens);
                    }
                }
            }
            DataMessage::Rejected { placement, sequence, attempt, why } => {
                if self.is_from_scheduler(from, placement, sequence, attempt) {
                    self.busy = why.busy();
                    self.rejected(now, &why, out);
                }
            }
            DataMessage::SequenceEnded { placement, term, sequence, attempt, reason, generated, times } => {
                if self.is_from_scheduler(from, placement, sequence, attempt) && self.is_in_term(from, term) {
                    if let Some(run) = &mut self.run {
                        run.ended = Some((reason, generated, now));
                        run.times = times;
                        run.state = RunState::Running;
                        self.has_run = true;
                    }
                    self.end_if_complete(out);
                }
            }
            DataMessage::SequenceFailed { placement, term, sequence, attempt, kind, why } => {
                if self.is_from_scheduler(from, placement, sequence, attempt) && self.is_in_term(from, term) {
                    self.setback(now, kind, why.into(), out);
                }
            }
            DataMessage::StepFailed(failure) => {
                let is_stage = self.serves(failure.placement).is_some_and(|p| p.stage_of(from).is_some());
                let own = self.sequence();
                let attempt =
                    failure.sequences.iter().find(|(sequence, _)| *sequence == own).map(|(_, a)| *a);
                if let Some(attempt) = attempt.filter(|_| is_stage)
                    && self.is_own_attempt(from, attempt)
                    && self.is_in_term(from, failure.term)
                {
                    self.setback(now, failure.kind, PipelineFailure::Step(failure.why).into(), out);
                }
            }
            other => {
                tracing::trace!(%from, sequence = %self.sequence(), ?other, "a message that is not for this driver's submission")
            }
        }
    }

    /// Whether the scheduler that the sequence was submitted to means its last submission.
    fn is_from_scheduler(
        &self,
        from: NodeId,
        placement: PlacementId,
        sequence: SequenceId,
        attempt: Attempt,
    ) -> bool {
        if !self.is_scheduler_of(from, placement) {
            let serving = self.run.as_ref().map(|run| tracing::field::display(run.placement.id));
            tracing::trace!(%from, got = %placement, serving, "a scheduler that this sequence was not submitted to");
            return false;
        }
        sequence == self.sequence() && self.is_own_attempt(from, attempt)
    }

    fn is_own_attempt(&self, from: NodeId, attempt: Attempt) -> bool {
        let is = self.attempt == Some(attempt);
        if !is {
            let own = self.attempt.map(tracing::field::display);
            tracing::trace!(%from, got = %attempt, own, "a message about another submission");
        }
        is
    }

    /// Whether a message is not of a term that is over. Of a later one it says that the earlier are.
    fn is_in_term(&mut self, from: NodeId, got: Term) -> bool {
        let Some(run) = &mut self.run else {
            tracing::trace!(%from, %got, "a message about a submission that has ended");
            return false;
        };
        if let Some(term) = run.term.filter(|term| got < *term) {
            tracing::trace!(%from, %got, %term, "a message of a term that is over");
            return false;
        }
        run.term = Some(got);
        true
    }

    /// Where the sequence stands. It never goes back: messages may be repeated.
    fn set_state(&mut self, now: Time, state: RunState) {
        if let Some(run) = &mut self.run {
            if run.state != RunState::Running {
                run.state = state;
            }
            if state == RunState::Running {
                run.running_since.get_or_insert(now);
                self.has_run = true;
            }
            run.moved_at = now;
        }
    }

    /// What was computed of this submission is lost. The next one goes out at once: a scheduler between two
    /// terms takes it.
    fn setback(&mut self, now: Time, kind: FailureKind, cause: InterruptCause, out: &mut Vec<DriverOutput>) {
        // That its scheduler is gone says that it was placed anew or unloaded: the news of the instances say
        // which.
        let kind = if kind == FailureKind::InstanceGone { FailureKind::StageLost } else { kind };
        self.interrupt(now, kind, cause, out);
        if !self.over && self.run.is_none() && now >= self.submit_at {
            self.submit(now, out);
        }
    }

    /// A scheduler that is not there (yet, or any more) is asked again later, and so is one whose queue has
    /// no room for what was accepted before; any other refusal is final.
    fn rejected(&mut self, now: Time, why: &Rejection, out: &mut Vec<DriverOutput>) {
        let kind = why.kind();
        match (kind, self.run.as_ref().map(|run| run.received)) {
            (FailureKind::InstanceGone, Some(0)) => {
                self.run = None;
                self.submit_at = now + SUBMIT_AGAIN_AFTER;
            }
            (FailureKind::InstanceGone, _) => {
                self.setback(now, kind, InterruptCause::Said(why.to_string()), out);
            }
            (FailureKind::QueueFull, _) if self.was_accepted() => {
                tracing::debug!(sequence = %self.sequence(), %why, "a full queue is asked again");
                self.run = None;
                self.submit_at = now + SUBMIT_AGAIN_AFTER;
            }
            _ => self.fail(kind, self.with_interruption(why.to_string()), out),
        }
    }

    /// Whether tokens come from the last stage of the pipeline that the sequence was submitted to.
    pub(super) fn is_of_last_stage(
        &mut self,
        from: NodeId,
        placement: PlacementId,
        term: Term,
        step: u64,
    ) -> bool {
        let last = self.serves(placement).and_then(|p| p.stages.last());
        if last.is_none_or(|stage| stage.leader().node != from) {
            let serving = self.run.as_ref().map(|run| tracing::field::display(run.placement.id));
            tracing::trace!(%from, got = %placement, serving, step, "tokens of another pipeline");
            return false;
        }
        self.is_in_term(from, term)
    }

    pub(super) fn tokens(&mut self, now: Time, result: TokenResult, out: &mut Vec<DriverOutput>) {
        if result.sequence != self.sequence() || self.over {
            return;
        }
        if self.attempt != Some(result.attempt) {
            let own = self.attempt.map(tracing::field::display);
            return tracing::trace!(got = %result.attempt, own, "a token of another submission");
        }
        let expected = self.start.spec.history.len() as u32;
        if result.position > expected {
            let message = format!("the token at {} arrived, {expected} was next", result.position);
            return self.setback(now, FailureKind::Protocol, InterruptCause::Said(message), out);
        }
        if result.position < expected {
            return tracing::trace!(got = result.position, expected, "a token that came again");
        }
        let vocab = self.start.vocab;
        if let Some(token) = result.tokens.iter().map(|t| t.token).find(|token| *token >= vocab) {
            let message = format!("token {token} arrived, the vocabulary has {vocab}");
            return self.setback(now, FailureKind::Protocol, InterruptCause::Said(message), out);
        }
        let paused = self.paused_for(now);
        let Some(run) = &mut self.run else { return };
        let accepted = result.drafts_accepted();
        self.drafts.accepted += accepted;
        self.drafts.rejected += result.drafts - accepted;
        run.received += result.tokens.len() as u32;
        run.moved_at = now;
        run.state = RunState::Running;
        run.running_since.get_or_insert(now);
        self.has_run = true;
        (self.interruption, self.awaited_since, self.paused) = (None, None, paused);
        for (position, token) in (result.position..).zip(result.tokens) {
            self.start.spec.history.push(token.token);
            out.push(DriverOutput::Token { position, token });
        }
        self.end_if_complete(out);
    }

    fn end_if_complete(&mut self, out: &mut Vec<DriverOutput>) {
        let Some(run) = &self.run else { return };
        if let Some((reason, _, _)) = run.ended.filter(|&(_, generated, _)| run.received >= generated) {
            self.end(reason, out);
        }
    }
}
