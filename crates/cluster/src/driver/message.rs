//! Messages to a driver: from its scheduler, from the last stage, from a stage that failed.

use exo_types::{FailureKind, InstanceId, NodeId, Time};

use super::{Driver, DriverOutput, SUBMIT_AGAIN_AFTER, Stand};
use crate::wire::{DataMessage, TokenResult};

impl Driver {
    pub(super) fn message(
        &mut self,
        now: Time,
        from: NodeId,
        message: DataMessage,
        out: &mut Vec<DriverOutput>,
    ) {
        let own = self.sequence();
        match message {
            DataMessage::Accepted { instance, generation, sequence, .. } if sequence == own => {
                self.stands(now, from, (instance, generation), Stand::Queued);
            }
            DataMessage::Started { instance, generation, sequence, cached_tokens } if sequence == own => {
                self.stands(now, from, (instance, generation), Stand::Running);
                if self.is_scheduler_of(from, instance, generation)
                    && let Some(seat) = &mut self.seat
                {
                    seat.cached_tokens = cached_tokens.min(self.start.spec.prompt_tokens);
                }
            }
            DataMessage::Rejected { instance, generation, sequence, kind, message, busy }
                if sequence == own && self.is_scheduler_of(from, instance, generation) =>
            {
                self.busy = busy;
                self.rejected(now, kind, message, out);
            }
            DataMessage::Tokens(tokens) => {
                let last = self.serves(tokens.instance, tokens.generation).and_then(|p| p.stages.last());
                if last.is_some_and(|s| s.node == from) {
                    tokens.results.into_iter().for_each(|r| self.tokens(now, r, out));
                } else {
                    let serving = self.seat.as_ref().map(|seat| seat.placement.generation);
                    tracing::trace!(%from, got = tokens.generation, ?serving, step = tokens.step, "tokens of another pipeline");
                }
            }
            DataMessage::SequenceEnded { instance, generation, sequence, reason, generated }
                if sequence == own && self.is_scheduler_of(from, instance, generation) =>
            {
                if let Some(seat) = &mut self.seat {
                    seat.ended = Some((reason, generated, now));
                    seat.stand = Stand::Running;
                }
                self.end_if_complete(out);
            }
            DataMessage::SequenceFailed { instance, generation, sequence, kind, message }
                if sequence == own && self.is_scheduler_of(from, instance, generation) =>
            {
                self.fail(kind, message, out);
            }
            DataMessage::StepFailed(failure) => {
                let serving = self.serves(failure.instance, failure.generation);
                let is_stage = serving.is_some_and(|p| p.stage_of(from).is_some());
                if is_stage && failure.sequences.contains(&own) {
                    self.fail(failure.kind, failure.message, out);
                }
            }
            // `StaleGeneration` names no sequence: it may be about another one's submission. Submitting again covers it.
            other => {
                tracing::trace!(%from, sequence = %own, ?other, "a message that is not for this driver's submission")
            }
        }
    }

    /// The scheduler says where the sequence stands. It never goes back: messages may be repeated.
    fn stands(&mut self, now: Time, from: NodeId, at: (InstanceId, u32), stand: Stand) {
        if !self.is_scheduler_of(from, at.0, at.1) {
            let serving = self.seat.as_ref().map(|seat| seat.placement.generation);
            return tracing::trace!(%from, got = at.1, ?serving, "a scheduler that this sequence was not submitted to");
        }
        if let Some(seat) = &mut self.seat {
            if seat.stand != Stand::Running {
                seat.stand = stand;
            }
            seat.moved_at = now;
        }
    }

    /// A scheduler that is not there (yet, or any more) is asked again later; any other refusal is final.
    fn rejected(&mut self, now: Time, kind: FailureKind, message: String, out: &mut Vec<DriverOutput>) {
        match (kind, self.seat.as_ref().map(|seat| seat.received)) {
            (FailureKind::InstanceGone, Some(0)) => {
                self.seat = None;
                self.submit_at = now + SUBMIT_AGAIN_AFTER;
            }
            _ => self.fail(kind, message, out),
        }
    }

    fn tokens(&mut self, now: Time, result: TokenResult, out: &mut Vec<DriverOutput>) {
        if result.sequence != self.sequence() || self.over {
            return;
        }
        let expected = self.start.spec.history.len() as u32;
        if result.position > expected {
            let message = format!("the token at {} arrived, {expected} was next", result.position);
            self.fail(FailureKind::Protocol, message, out);
            return;
        }
        if result.position < expected {
            return tracing::trace!(got = result.position, expected, "a token that came again");
        }
        let Some(seat) = &mut self.seat else { return };
        let accepted = result.drafts_accepted();
        self.drafts.accepted += accepted;
        self.drafts.rejected += result.drafts - accepted;
        seat.received += result.tokens.len() as u32;
        seat.moved_at = now;
        seat.stand = Stand::Running;
        for (position, token) in (result.position..).zip(result.tokens) {
            self.start.spec.history.push(token.token);
            out.push(DriverOutput::Token { position, token });
        }
        self.end_if_complete(out);
    }

    fn end_if_complete(&mut self, out: &mut Vec<DriverOutput>) {
        let Some(seat) = &self.seat else { return };
        if let Some((reason, _, _)) = seat.ended.filter(|&(_, generated, _)| seat.received >= generated) {
            self.end(reason, out);
        }
    }
}
