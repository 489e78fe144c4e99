//! Why a stage cannot take a step: its pipeline breaks.

use exo_types::{FailureKind, NodeId, PageKey, SequenceId, Term};
use serde::{Deserialize, Serialize};

use crate::names::NodeName;

/// Why a step cannot be: the placement ends, or the term.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[allow(missing_docs)] // the messages say what the fields are
pub enum PipelineBreak {
    #[error("step {got} arrived, {expected} was next")]
    Order { got: u64, expected: u64 },
    #[error("it is in term {own} already")]
    LaterTerm { own: Term },
    #[error("{waiting} steps are waiting, in a pipeline of {stages} stages no more may")]
    TooMany { waiting: u64, stages: u64 },
    #[error("the data link to node {peer} ended behind step {step}")]
    Link { peer: NodeId, step: u64 },
    #[error("step 0 comes with the pages of {got} stages, {expected} are in front")]
    Pages { got: u64, expected: u64 },
    /// A command or a part does not fit what is open.
    #[error("step {step} {fault} {sequence}")]
    Sequence { step: u64, fault: SequenceFault, sequence: SequenceId },
    /// A command does not fit what is kept.
    #[error("step {step} {fault} {key}")]
    Page { step: u64, fault: PageFault, key: PageKey },
    /// A part does not go on where its sequence ends.
    #[error("step {step} puts sequence {sequence} at {start}..{end}, this stage holds {length} of {context}")]
    Position { step: u64, sequence: SequenceId, start: u32, end: u64, length: u32, context: u32 },
    #[error("step {step} has token {token}, the vocabulary has {vocab}")]
    Token { step: u64, token: u32, vocab: u32 },
    #[error("step {step} carries {got_bytes} bytes of rows, {expected_bytes} belong to it")]
    Rows { step: u64, got_bytes: u64, expected_bytes: u64 },
    #[error("step {step} rebuilds pages of other stages than step 0 found without")]
    Rebuilds { step: u64 },
}

/// What a step does to a sequence that it cannot do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[allow(missing_docs)] // the messages say what they are
pub enum SequenceFault {
    #[error("opens again sequence")]
    OpensAgain,
    #[error("finds no slot for sequence")]
    NoSlot,
    #[error("closes unknown sequence")]
    ClosesUnknown,
    /// Its pages hold more than its history.
    #[error("begins behind the history of sequence")]
    BeginsBehindHistory,
    #[error("keeps pages of unopened sequence")]
    KeepsUnopened,
    #[error("computes unopened sequence")]
    ComputesUnopened,
    #[error("names a wrong principal for sequence")]
    WrongPrincipal,
}

/// What a step does with a page that it cannot do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[allow(missing_docs)] // the messages say what they are
pub enum PageFault {
    #[error("forgets unkept")]
    ForgetsUnkept,
    /// It holds other tokens, or another principal's.
    #[error("opens a sequence of other content with")]
    OpensOther,
    #[error("opens a sequence with unkept")]
    OpensUnkept,
    #[error("keeps an unfinished page as")]
    KeepsUnfinished,
    #[error("keeps more pages than there are, the last as")]
    KeepsTooMany,
    #[error("keeps another page as")]
    KeepsAnother,
    #[error("asks for rows that are not kept of")]
    WithoutRows,
}

impl PipelineBreak {
    /// The sentence.
    pub fn text(&self, name: NodeName<'_>) -> String {
        match self {
            Self::Link { peer, step } => format!("the data link to {} ended behind step {step}", name(*peer)),
            names_no_node => names_no_node.to_string(),
        }
    }

    /// What it is to the scheduler. Step 0 behind step 1 is that of a new scheduler, which knows nothing of
    /// the term that it meets. One that adopted pages knows them by name, and two contents may have the same.
    pub fn kind(&self) -> FailureKind {
        match self {
            Self::Link { .. } | Self::LaterTerm { .. } | Self::Order { got: 0, .. } => FailureKind::StageLost,
            Self::Page { fault: PageFault::OpensOther, .. } => FailureKind::StageLost,
            _ => FailureKind::Protocol,
        }
    }
}
