//! Data messages that found no link: what they were, for those whom it concerns.

use exo_types::{Attempt, NodeId, PlacementId, SequenceId, Term};

use crate::wire::{DataMessage, Missing, MissingPart};

/// What a message that did not go out was: enough to tell those whom it concerns.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum MessageKind {
    /// A step for the next stage.
    Step { placement: PlacementId, term: Term, stage: u32, step: u64 },
    /// Tokens of the last stage.
    Tokens { placement: PlacementId, term: Term, step: u64, sequences: Vec<(SequenceId, Attempt)> },
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
    /// How long it waited; 0 if there was no room to wait.
    pub waited_ms: u64,
}

impl Undeliverable {
    /// The link that was not open, from where `stage` is.
    pub fn missing(&self, stage: u32) -> Missing {
        Missing { stage, what: MissingPart::Link { to: self.to }, waited_ms: self.waited_ms }
    }
}
