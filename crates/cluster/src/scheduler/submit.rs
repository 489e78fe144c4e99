//! Submissions: what is queued, what is refused and why, and what a driver that submits again is told.
//!
//! A driver counts its submissions of a sequence. A lower attempt than the one known here is refused by name,
//! an equal one is answered again with what was said, a higher one takes the place of the one before, which
//! ends in silence.

use exo_types::{Attempt, FailureKind, NodeId, PlacementId, SequenceId, Time};

use super::ended::{End, EndedSequence};
use super::pages::Need;
use super::queue::Waiting;
use super::{Scheduler, SchedulerOutput};
use crate::wire::{Busy, EndReason, SequenceTimes, Submission};

/// What is known of a sequence that is submitted.
enum PriorSubmission {
    Nothing,
    /// This very submission.
    Same,
    /// An earlier one, which ends.
    Earlier,
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
            Ok(PriorSubmission::Same) => return out.extend(self.said_before(sequence)),
            Ok(PriorSubmission::Earlier) => {
                self.queue.remove(sequence);
                self.release(sequence);
                self.refusal(from, &submission)
            }
            Ok(PriorSubmission::Nothing) => self.refusal(from, &submission),
            Err(message) => Some((FailureKind::Protocol, message)),
        };
        let (to, attempt, term) = (from, submission.attempt, self.term());
        match refusal {
            Some((kind, message)) => {
                let placement = submission.placement;
                let busy = (kind == FailureKind::QueueFull).then(|| self.busy(now));
                let rejected =
                    SchedulerOutput::Rejected { to, placement, sequence, attempt, kind, message, busy };
                out.push(rejected);
            }
            None => {
                let queue_ahead = self.queue.len() as u32;
                let need = self.need(&submission);
                self.queue.push(Waiting { submission, need, generated: 0 });
                out.push(SchedulerOutput::Accepted { to, term, sequence, attempt, queue_ahead });
            }
        }
    }

    /// What is known here of the sequence, or why the submission is none of its.
    fn compare(&self, from: NodeId, submission: &Submission) -> Result<PriorSubmission, String> {
        let (sequence, got) = (submission.spec.sequence, submission.attempt);
        let ended = || self.ended.get(sequence).map(|ended| (ended.driver, ended.attempt));
        let Some((driver, known)) = self.attempt_of(sequence).or_else(ended) else {
            return Ok(PriorSubmission::Nothing);
        };
        if submission.placement != self.placement.id {
            return Ok(PriorSubmission::Nothing); // refused by its name
        }
        if driver != from {
            return Err(format!("sequence {sequence} belongs to another driver than {from}"));
        }
        if got < known {
            tracing::trace!(%from, %sequence, %got, %known, "an earlier submission than the last");
            return Err(format!("attempt {got} of sequence {sequence} was submitted after attempt {known}"));
        }
        if got > known {
            tracing::trace!(%from, %sequence, %got, %known, "a later submission takes the place of the last");
            return Ok(PriorSubmission::Earlier);
        }
        Ok(PriorSubmission::Same)
    }

    /// Driver and attempt of a sequence that is queued or running.
    fn attempt_of(&self, sequence: SequenceId) -> Option<(NodeId, Attempt)> {
        let running = self.running.get(&sequence).map(|r| (r.driver, r.attempt));
        running.or_else(|| self.queue.get(sequence).map(|s| (s.spec.driver, s.attempt)))
    }

    /// What the driver of a known sequence was told last.
    fn said_before(&self, sequence: SequenceId) -> Option<SchedulerOutput> {
        let term = self.term();
        if let Some(running) = self.running.get(&sequence) {
            let (to, attempt, cached_tokens) =
                (running.driver, running.attempt, running.claim.cached_tokens());
            return Some(SchedulerOutput::Started { to, term, sequence, attempt, cached_tokens });
        }
        if let Some(waiting) = self.queue.get(sequence) {
            let (to, attempt) = (waiting.spec.driver, waiting.attempt);
            // Its answer goes on where it made way: to its driver it has not stopped running.
            if self.queue.is_paused(sequence) {
                return Some(SchedulerOutput::Started { to, term, sequence, attempt, cached_tokens: 0 });
            }
            let queue_ahead = self.queue.len() as u32 - 1; // at most
            return Some(SchedulerOutput::Accepted { to, term, sequence, attempt, queue_ahead });
        }
        self.ended.get(sequence).map(|ended| ended.output(sequence))
    }

    fn refusal(&self, from: NodeId, submission: &Submission) -> Option<(FailureKind, String)> {
        let Submission { placement, spec, max_tokens, .. } = submission;
        let (context, history) = (self.placement.context_tokens, spec.history.len());
        if let Some(why) = &self.over {
            return Some((FailureKind::InstanceGone, why.to_string()));
        }
        let (instance, serving) = (self.placement.instance, self.placement.id);
        if *placement != serving {
            tracing::trace!(%from, got = %placement, %serving, "a submission to another placement");
            let message = format!("placement {placement} was asked for, {serving} is served here");
            return Some((FailureKind::InstanceGone, message));
        }
        // Between two terms sequences wait; before the first it is not known what has room.
        if let Some(opening) = self.opening.as_ref().filter(|_| self.cache.is_none()) {
            let message = format!("{instance} is being wired: {}", opening.waits_for());
            return Some((FailureKind::InstanceGone, message));
        }
        if spec.driver != from {
            let message = format!("sequence {} belongs to another driver than {from}", spec.sequence);
            return Some((FailureKind::Protocol, message));
        }
        if history == 0 || history >= context as usize || *max_tokens == 0 {
            let message = format!(
                "{history} tokens of prompt and {max_tokens} more were asked of a context of {context}"
            );
            return Some((FailureKind::Protocol, message));
        }
        let vocab = self.config.vocab;
        #[cfg(feature = "planted")]
        let vocab = if self.has_bug(super::planted::SchedulerBug::AnyToken) { u32::MAX } else { vocab };
        if let Some(token) = spec.history.iter().find(|token| **token >= vocab) {
            let message = format!("token {token} is not below the vocabulary's {vocab}");
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
        self.queue.is_full_for(submission).then(|| {
            let waiting = self.queue.len();
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
        out.push(ended.output(sequence));
        self.ended.insert(self.now, sequence, ended);
    }
}
