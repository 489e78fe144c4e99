//! Submissions: what is queued, what is refused and why, and what a driver that submits again is told.
//!
//! A driver counts its submissions of a sequence. A lower attempt than the one known here is refused by name,
//! an equal one is answered again with what was said, a higher one takes the place of the one before, which
//! ends in silence.

use exo_types::{Attempt, NodeId, PlacementId, SequenceId, Time};

use super::ended::{End, EndedSequence};
use super::pages::Need;
use super::queue::Waiting;
use super::sequence::started;
use super::{Scheduler, SchedulerOutput};
use crate::wire::{Busy, DataMessage, EndReason, Rejection, SequenceTimes, Submission};

/// What is known of a sequence that is submitted.
enum PriorSubmission {
    Nothing,
    /// This very submission.
    Same,
    /// An earlier one, which ends.
    Earlier,
    /// One that this submission does not take the place of.
    Other(Rejection),
}

impl Scheduler {
    pub(super) fn submit(
        &mut self,
        now: Time,
        from: NodeId,
        mut submission: Submission,
        out: &mut Vec<SchedulerOutput>,
    ) {
        // Whose it is follows from who sent it: no member speaks for users of another node.
        submission.spec.principal = submission.spec.principal.at(from);
        let sequence = submission.spec.sequence;
        let refusal = match self.compare(from, &submission) {
            PriorSubmission::Same => return out.extend(self.said_before(sequence)),
            PriorSubmission::Earlier => {
                self.queue.remove(sequence);
                self.release(sequence);
                self.refusal(now, from, &submission)
            }
            PriorSubmission::Nothing => self.refusal(now, from, &submission),
            PriorSubmission::Other(why) => Some(why),
        };
        // One that is refused hears the placement that it named; any other one named this one.
        let (placement, attempt, term) = (submission.placement, submission.attempt, self.term());
        let message = match refusal {
            Some(why) => DataMessage::Rejected { placement, sequence, attempt, why },
            None => {
                let queue_ahead = self.queue.len() as u32;
                let need = self.need(&submission);
                self.queue.push(Waiting { submission, need, generated: 0 });
                DataMessage::Accepted { placement, term, sequence, attempt, queue_ahead }
            }
        };
        out.push(SchedulerOutput::Send { to: from, message });
    }

    /// What is known here of the sequence, or why the submission is none of its.
    fn compare(&self, from: NodeId, submission: &Submission) -> PriorSubmission {
        let (sequence, got) = (submission.spec.sequence, submission.attempt);
        let ended = || self.ended.get(sequence).map(|ended| (ended.driver, ended.attempt));
        let Some((driver, known)) = self.attempt_of(sequence).or_else(ended) else {
            return PriorSubmission::Nothing;
        };
        if submission.placement != self.placement.id {
            return PriorSubmission::Nothing; // refused by its name
        }
        if driver != from {
            return PriorSubmission::Other(Rejection::OtherDriver { sequence, node: from });
        }
        if got < known {
            tracing::trace!(%from, %sequence, %got, %known, "an earlier submission than the last");
            return PriorSubmission::Other(Rejection::Earlier { sequence, got, known });
        }
        if got > known {
            tracing::trace!(%from, %sequence, %got, %known, "a later submission takes the place of the last");
            return PriorSubmission::Earlier;
        }
        PriorSubmission::Same
    }

    /// Driver and attempt of a sequence that is queued or running.
    fn attempt_of(&self, sequence: SequenceId) -> Option<(NodeId, Attempt)> {
        let running = self.running.get(&sequence).map(|r| (r.driver, r.attempt));
        running.or_else(|| self.queue.get(sequence).map(|s| (s.spec.driver, s.attempt)))
    }

    /// What the driver of a known sequence was told last.
    fn said_before(&self, sequence: SequenceId) -> Option<SchedulerOutput> {
        let (placement, term) = self.pipeline();
        if let Some(running) = self.running.get(&sequence) {
            return Some(running.started((placement, term), sequence));
        }
        if let Some(waiting) = self.queue.get(sequence) {
            let (to, attempt) = (waiting.spec.driver, waiting.attempt);
            // Its answer goes on where it made way: to its driver it has not stopped running.
            if self.queue.is_paused(sequence) {
                return Some(started((placement, term), to, (sequence, attempt), 0));
            }
            let queue_ahead = self.queue.len() as u32 - 1; // at most
            let message = DataMessage::Accepted { placement, term, sequence, attempt, queue_ahead };
            return Some(SchedulerOutput::Send { to, message });
        }
        self.ended.get(sequence).map(|ended| ended.output(placement, sequence))
    }

    fn refusal(&self, now: Time, from: NodeId, submission: &Submission) -> Option<Rejection> {
        let Submission { placement, spec, max_tokens, .. } = submission;
        let (context_tokens, max_tokens) = (self.placement.context_tokens, *max_tokens);
        let history_tokens = spec.history.len() as u64;
        if let Some(why) = &self.over {
            return Some(Rejection::Over(why.clone()));
        }
        let (instance, serving) = (self.placement.instance, self.placement.id);
        if *placement != serving {
            tracing::trace!(%from, got = %placement, %serving, "a submission to another placement");
            return Some(Rejection::Placement { got: *placement, serving });
        }
        // Between two terms sequences wait; before the first it is not known what has room.
        if let Some(opening) = self.opening.as_ref().filter(|_| self.cache.is_none()) {
            return Some(Rejection::Opening { instance, missing: opening.missing().cloned() });
        }
        if spec.driver != from {
            return Some(Rejection::OtherDriver { sequence: spec.sequence, node: from });
        }
        if history_tokens == 0 || history_tokens >= u64::from(context_tokens) || max_tokens == 0 {
            return Some(Rejection::Context { history_tokens, max_tokens, context_tokens });
        }
        let vocab = self.config.vocab;
        #[cfg(feature = "planted")]
        let vocab = if self.has_bug(super::planted::SchedulerBug::AnyToken) { u32::MAX } else { vocab };
        if let Some(&token) = spec.history.iter().find(|token| **token >= vocab) {
            return Some(Rejection::Token { token, vocab });
        }
        let tokens = self.tokens_max(submission);
        let (needed_pages, pages) = (self.pages.needed(tokens), self.pages.total());
        if needed_pages > pages {
            let answer_tokens = u64::from(tokens) - history_tokens;
            return Some(Rejection::Cache { history_tokens, answer_tokens, needed_pages, pages });
        }
        let is_full = self.queue.is_full_for(submission);
        is_full.then(|| Rejection::QueueFull { instance, busy: self.busy(now) })
    }

    /// How full the queue is, and when half of it should have gone.
    fn busy(&self, now: Time) -> Busy {
        let waiting = self.queue.len() as u32;
        Busy { waiting, retry_after_s: self.queue_rate.retry_after_s(now, waiting) }
    }

    pub(super) fn need(&self, submission: &Submission) -> Need {
        let (spec, tokens_max) = (&submission.spec, self.tokens_max(submission));
        let need = self.pages.need(&self.placement, spec.principal, &spec.history, tokens_max);
        if spec.open_query().needs_all_rows() { need.without_kept() } else { need }
    }

    /// The longest the sequence can become.
    pub(super) fn tokens_max(&self, submission: &Submission) -> u32 {
        let history = submission.spec.history.len() as u32;
        history.saturating_add(submission.max_tokens).min(self.placement.context_tokens)
    }

    pub(super) fn cancel(
        &mut self,
        from: NodeId,
        placement: PlacementId,
        sequence: SequenceId,
        attempt: Attempt,
        out: &mut Vec<SchedulerOutput>,
    ) {
        let (serving, known) = (self.placement.id, self.attempt_of(sequence));
        let is_its = known == Some((from, attempt));
        #[cfg(feature = "planted")]
        let is_its = is_its
            || self.has_bug(super::planted::SchedulerBug::CancelledByAnyone)
                && known.is_some_and(|(_, known)| known == attempt);
        if placement != serving || !is_its {
            let known = known.map(|(_, known)| tracing::field::display(known));
            return tracing::trace!(
                %from, %sequence, got = %placement, %serving, %attempt, known, "cancels what does not run for it"
            );
        }
        let (generated, times) = match self.queue.remove(sequence) {
            Some(waiting) => (waiting.generated, SequenceTimes::default()),
            None => self.release(sequence).map(|gone| (gone.generated, gone.times)).unwrap_or_default(),
        };
        let how = End::Done { reason: EndReason::Cancelled, generated, times };
        self.end(sequence, from, attempt, how, out);
    }

    /// Tells the driver how its sequence ended, and remembers it.
    pub(super) fn end(
        &mut self,
        sequence: SequenceId,
        driver: NodeId,
        attempt: Attempt,
        how: End,
        out: &mut Vec<SchedulerOutput>,
    ) {
        let ended = EndedSequence::new(driver, attempt, self.term(), how);
        out.push(ended.output(self.placement.id, sequence));
        self.ended.insert(self.now, sequence, ended);
    }
}
