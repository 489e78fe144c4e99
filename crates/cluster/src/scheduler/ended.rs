//! Sequences that are over, for a while: a submission that comes again is answered with what was said, not
//! computed again.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use exo_types::{Attempt, FailureKind, NodeId, PlacementId, SequenceId, Term, Time};

use super::SchedulerOutput;
use crate::failures::PipelineFailure;
use crate::wire::{DataMessage, EndReason, SequenceTimes};

/// A driver that has not heard the end submits again within this time, or has given up.
const REMEMBER_FOR: Duration = Duration::from_secs(120);
/// Sequences remembered at once; the oldest go first.
const ENDED_MAX: usize = 4096;

/// The ends of sequences.
#[derive(Clone, Debug, Default)]
pub(super) struct EndedSequences {
    by_sequence: BTreeMap<SequenceId, EndedSequence>,
    /// In order of time. A sequence that ended again since is in there twice; its later end counts.
    order: VecDeque<(Time, SequenceId)>,
}

/// How a sequence ended.
#[derive(Clone, Debug)]
pub(super) struct EndedSequence {
    pub(super) driver: NodeId,
    pub(super) attempt: Attempt,
    /// In which it ended.
    term: Term,
    how: End,
    at: Time,
}

/// What its driver was told.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum End {
    Done { reason: EndReason, generated: u32, times: SequenceTimes },
    Failed { kind: FailureKind, why: PipelineFailure },
}

impl EndedSequence {
    pub(super) fn new(driver: NodeId, attempt: Attempt, term: Term, how: End) -> Self {
        Self { driver, attempt, term, how, at: Time::ZERO }
    }

    /// What to tell the driver.
    pub(super) fn output(&self, placement: PlacementId, sequence: SequenceId) -> SchedulerOutput {
        let Self { driver: to, attempt, term, .. } = *self;
        let message = match self.how.clone() {
            End::Done { reason, generated, times } => {
                DataMessage::SequenceEnded { placement, term, sequence, attempt, reason, generated, times }
            }
            End::Failed { kind, why } => {
                DataMessage::SequenceFailed { placement, term, sequence, attempt, kind, why }
            }
        };
        SchedulerOutput::Send { to, message }
    }
}

impl EndedSequences {
    /// Remembers an end.
    pub(super) fn insert(&mut self, now: Time, sequence: SequenceId, ended: EndedSequence) {
        self.by_sequence.insert(sequence, EndedSequence { at: now, ..ended });
        self.order.push_back((now, sequence));
        self.expire(now);
    }

    pub(super) fn get(&self, sequence: SequenceId) -> Option<&EndedSequence> {
        self.by_sequence.get(&sequence)
    }

    /// Forgets what is too old or too much.
    pub(super) fn expire(&mut self, now: Time) {
        while let Some(&(at, sequence)) = self.order.front() {
            if now.since(at) < REMEMBER_FOR && self.order.len() <= ENDED_MAX {
                return;
            }
            self.order.pop_front();
            if self.by_sequence.get(&sequence).is_some_and(|ended| ended.at == at) {
                self.by_sequence.remove(&sequence);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{node, seq};

    fn end(attempt: u16) -> EndedSequence {
        let how = End::Done { reason: EndReason::StopToken, generated: 3, times: SequenceTimes::default() };
        EndedSequence::new(node(9), Attempt(attempt), Term::FIRST, how)
    }

    #[test]
    fn an_end_is_remembered_for_two_minutes() {
        let mut ended = EndedSequences::default();
        ended.insert(Time::ZERO, seq(1), end(1));
        ended.insert(Time::from_millis(60_000), seq(1), end(2));
        ended.expire(Time::from_millis(120_000));
        assert_eq!(ended.get(seq(1)).map(|e| e.attempt), Some(Attempt(2)), "the later end counts");
        ended.expire(Time::from_millis(180_000));
        assert!(ended.get(seq(1)).is_none());
    }

    #[test]
    fn the_oldest_ends_go_when_there_are_too_many() {
        let mut ended = EndedSequences::default();
        for n in 0..=ENDED_MAX as u128 {
            ended.insert(Time::from_millis(n as u64), seq(n), end(1));
        }
        assert!(ended.get(seq(0)).is_none() && ended.get(seq(1)).is_some());
        assert_eq!(ended.by_sequence.len(), ENDED_MAX);
    }
}
