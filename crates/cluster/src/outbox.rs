//! Messages for peers whose data link is not open: they wait a bounded time, in order, and fail with numbers.
//!
//! A link to a member may open some milliseconds after the first message for it, or come back after it ended. What waits here
//! was never in a link, so it is sent once. What was in a link that ended is not here: whoever sent it hears of the link.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

use exo_types::{Attempt, NodeId, PlacementId, SequenceId, Term, Time};

use crate::wire::DataMessage;

/// Longer than two nodes that just met need to open their links, and short enough for whoever waits for an answer.
pub const OUTBOX_WAIT_MAX: Duration = Duration::from_secs(2);
/// Bytes that wait for all peers together.
pub const OUTBOX_BYTES_MAX: usize = 8 << 20;
/// Messages that wait for one peer.
pub const OUTBOX_MESSAGES_MAX: usize = 64;

/// What waits for data links to open.
#[derive(Clone, Debug, Default)]
pub struct Outbox {
    peers: BTreeMap<NodeId, VecDeque<Waiting>>,
    bytes: usize,
}

#[derive(Clone, Debug)]
struct Waiting {
    since: Time,
    kind: MessageKind,
    bytes: Vec<u8>,
}

/// What a message that did not go out was: enough to tell those whom it concerns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MessageKind {
    /// A step for the next stage.
    Step {
        /// The placement.
        placement: PlacementId,
        /// The term of its pipeline.
        term: Term,
        /// The stage that it was for.
        stage: u32,
        /// Its number.
        step: u64,
    },
    /// Tokens of the last stage.
    Tokens {
        /// The placement.
        placement: PlacementId,
        /// The term of its pipeline.
        term: Term,
        /// The step that sampled them.
        step: u64,
        /// Their sequences, and which submission of each.
        sequences: Vec<(SequenceId, Attempt)>,
    },
    /// Anything else: whoever expects an answer has a deadline of its own.
    Other,
}

impl MessageKind {
    /// The kind of `message`.
    pub fn of(message: &DataMessage) -> Self {
        match message {
            DataMessage::Step(m) => {
                let (placement, term, step) = (m.frame.placement, m.frame.term, m.frame.step);
                Self::Step { placement, term, stage: m.stage, step }
            }
            DataMessage::Tokens(m) => {
                let sequences = m.results.iter().map(|r| (r.sequence, r.attempt)).collect();
                let (placement, term, step) = (m.placement, m.term, m.step);
                Self::Tokens { placement, term, step, sequences }
            }
            _ => Self::Other,
        }
    }

    /// Its step, if it has one.
    pub fn step(&self) -> Option<u64> {
        match self {
            Self::Step { step, .. } | Self::Tokens { step, .. } => Some(*step),
            Self::Other => None,
        }
    }

    /// Placement and term, if it is part of a pipeline.
    pub fn pipeline(&self) -> Option<(PlacementId, Term)> {
        match self {
            Self::Step { placement, term, .. } | Self::Tokens { placement, term, .. } => {
                Some((*placement, *term))
            }
            Self::Other => None,
        }
    }
}

/// A message that did not go out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Undeliverable {
    /// For whom it was.
    pub to: NodeId,
    /// What it was.
    pub kind: MessageKind,
    /// How long it waited.
    pub waited_ms: u64,
    /// Why it did not wait (any longer).
    pub reason: UndeliverableReason,
}

/// Why a message does not wait for its link (any longer).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UndeliverableReason {
    /// Its time is over.
    NotOpen,
    /// Too many messages wait for this peer.
    TooMany {
        /// Messages that wait.
        waiting: usize,
    },
    /// Too many bytes wait for all peers.
    TooLarge {
        /// Bytes that wait.
        waiting_bytes: usize,
        /// Bytes of this message.
        got_bytes: usize,
    },
}

impl fmt::Display for Undeliverable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (to, waited_ms) = (self.to, self.waited_ms);
        write!(f, "the data link to node {to} was not open for {waited_ms} ms")?;
        match self.reason {
            UndeliverableReason::NotOpen => Ok(()),
            UndeliverableReason::TooMany { waiting } => {
                write!(f, ", and {waiting} messages wait for it already")
            }
            UndeliverableReason::TooLarge { waiting_bytes, got_bytes } => {
                write!(f, ", and {waiting_bytes} bytes wait for links already, {got_bytes} more do not fit")
            }
        }
    }
}

impl Outbox {
    /// Keeps a message until the link to `to` opens.
    #[expect(clippy::result_large_err)] // rare, and handed on at once
    pub fn push(&mut self, now: Time, to: NodeId, message: &DataMessage) -> Result<(), Undeliverable> {
        let (kind, bytes) = (MessageKind::of(message), message.encode());
        let waiting = self.peers.get(&to).map_or(0, VecDeque::len);
        let (waiting_bytes, got_bytes) = (self.bytes, bytes.len());
        let reason = if waiting >= OUTBOX_MESSAGES_MAX {
            UndeliverableReason::TooMany { waiting }
        } else if waiting_bytes + got_bytes > OUTBOX_BYTES_MAX {
            UndeliverableReason::TooLarge { waiting_bytes, got_bytes }
        } else {
            self.bytes += got_bytes;
            self.peers.entry(to).or_default().push_back(Waiting { since: now, kind, bytes });
            return Ok(());
        };
        Err(Undeliverable { to, kind, waited_ms: 0, reason })
    }

    /// The link to `to` is open: the encoded messages that waited for it, in order.
    pub fn take(&mut self, to: NodeId) -> Vec<Vec<u8>> {
        let waiting = self.peers.remove(&to).unwrap_or_default();
        let messages: Vec<_> = waiting.into_iter().map(|w| w.bytes).collect();
        self.bytes -= messages.iter().map(Vec::len).sum::<usize>();
        messages
    }

    /// What has waited too long. Call it on every tick.
    pub fn expire(&mut self, now: Time) -> Vec<Undeliverable> {
        let mut expired = Vec::new();
        for (&to, waiting) in &mut self.peers {
            while let Some(front) = waiting.pop_front_if(|w| now.since(w.since) >= OUTBOX_WAIT_MAX) {
                self.bytes -= front.bytes.len();
                let waited_ms = u64::try_from(now.since(front.since).as_millis()).unwrap_or(u64::MAX);
                let reason = UndeliverableReason::NotOpen;
                expired.push(Undeliverable { to, kind: front.kind, waited_ms, reason });
            }
        }
        self.peers.retain(|_, waiting| !waiting.is_empty());
        expired
    }
}

#[cfg(test)]
mod tests {
    use exo_types::{StepFrame, WireDType};

    use super::*;
    use crate::testing::{node, placement_id};
    use crate::wire::StepMessage;

    fn step(step: u64, bytes: usize) -> DataMessage {
        let frame = StepFrame { placement: placement_id(1, 3), term: Term::FIRST, step, sequences: vec![] };
        let (commands, failures, pages, rows_dtype) = (vec![], vec![], vec![], WireDType::F32);
        DataMessage::Step(StepMessage {
            stage: 2,
            commands,
            frame,
            failures,
            pages,
            rows_dtype,
            rows: vec![0; bytes].into(),
        })
    }

    fn at(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    #[test]
    fn what_waited_goes_out_once_and_in_order_when_the_link_opens() {
        let mut outbox = Outbox::default();
        for number in 1..=3 {
            outbox.push(at(number), node(2), &step(number, 0)).unwrap();
        }
        outbox.push(at(4), node(3), &step(9, 0)).unwrap();
        let steps: Vec<_> = (1..=3).map(|number| step(number, 0).encode()).collect();
        assert_eq!(outbox.take(node(2)), steps);
        assert!(outbox.take(node(2)).is_empty(), "sent once");
        assert_eq!(outbox.take(node(3)).len(), 1);
        assert_eq!(outbox.bytes, 0);
    }

    #[test]
    fn a_message_fails_with_its_numbers_after_two_seconds() {
        let mut outbox = Outbox::default();
        outbox.push(at(0), node(2), &step(7, 0)).unwrap();
        outbox.push(at(1500), node(2), &step(8, 0)).unwrap();
        assert!(outbox.expire(at(1999)).is_empty());
        let late = outbox.expire(at(2040));
        let kind = MessageKind::Step { placement: placement_id(1, 3), term: Term::FIRST, stage: 2, step: 7 };
        assert_eq!((late.len(), late[0].to, &late[0].kind, late[0].waited_ms), (1, node(2), &kind, 2040));
        assert!(late[0].to_string().ends_with("was not open for 2040 ms"));
        assert_eq!(outbox.take(node(2)), [step(8, 0).encode()], "the other one still waits");
    }

    #[test]
    fn more_messages_or_bytes_than_may_wait_are_refused_with_numbers() {
        let mut outbox = Outbox::default();
        for number in 0..OUTBOX_MESSAGES_MAX as u64 {
            outbox.push(at(0), node(2), &step(number, 0)).unwrap();
        }
        let refused = outbox.push(at(0), node(2), &step(64, 0)).unwrap_err();
        assert_eq!(refused.reason, UndeliverableReason::TooMany { waiting: 64 });
        outbox.push(at(0), node(3), &step(1, 4 << 20)).unwrap();
        let refused = outbox.push(at(0), node(4), &step(1, 4 << 20)).unwrap_err();
        assert!(matches!(refused.reason, UndeliverableReason::TooLarge { .. }), "of all peers together");
        outbox.take(node(3));
        outbox.push(at(0), node(4), &step(1, 4 << 20)).unwrap();
    }
}
