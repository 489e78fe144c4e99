//! Why a stage cannot take a step: its pipeline breaks.

use exo_types::{FailureKind, NodeId, PageKey, SequenceId, Term};
use serde::{Deserialize, Serialize};

use crate::names::NodeName;

/// Why a step cannot be: the placement ends, or the term.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum PipelineBreak {
    /// A step is missing.
    #[error("step {got} arrived, {expected} was next")]
    Order {
        /// The one that came.
        got: u64,
        /// The one that was to come.
        expected: u64,
    },
    /// The stage is further than the scheduler.
    #[error("it is in term {own} already")]
    LaterTerm {
        /// The stage's term.
        own: Term,
    },
    /// The scheduler keeps fewer steps in flight.
    #[error("{waiting} steps are waiting, in a pipeline of {stages} stages no more may")]
    TooMany {
        /// Steps that wait.
        waiting: u64,
        /// Stages, and steps at most.
        stages: u64,
    },
    /// A link that steps or tokens take ended.
    #[error("the data link to node {peer} ended behind step {step}")]
    Link {
        /// Where it led.
        peer: NodeId,
        /// The last step that came.
        step: u64,
    },
    /// Step 0 has not passed the stages in front.
    #[error("step 0 comes with the pages of {got} stages, {expected} are in front")]
    Pages {
        /// Stages that it has passed.
        got: u64,
        /// Stages in front.
        expected: u64,
    },
    /// A command or a part does not fit what is open.
    #[error("step {step} {fault} {sequence}")]
    Sequence {
        /// The step.
        step: u64,
        /// What it does.
        fault: SequenceFault,
        /// To which.
        sequence: SequenceId,
    },
    /// A command does not fit what is kept.
    #[error("step {step} {fault} {key}")]
    Page {
        /// The step.
        step: u64,
        /// What it does.
        fault: PageFault,
        /// With which.
        key: PageKey,
    },
    /// A part does not go on where its sequence ends.
    #[error("step {step} puts sequence {sequence} at {start}..{end}, this stage holds {length} of {context}")]
    Position {
        /// The step.
        step: u64,
        /// The sequence.
        sequence: SequenceId,
        /// Where the part begins.
        start: u32,
        /// Where it ends.
        end: u64,
        /// What the stage holds.
        length: u32,
        /// What it may hold.
        context: u32,
    },
    /// A token is none of the model's.
    #[error("step {step} has token {token}, the vocabulary has {vocab}")]
    Token {
        /// The step.
        step: u64,
        /// The token.
        token: u32,
        /// Tokens that there are.
        vocab: u32,
    },
    /// The rows are not those of the batch.
    #[error("step {step} carries {got_bytes} bytes of rows, {expected_bytes} belong to it")]
    Rows {
        /// The step.
        step: u64,
        /// Bytes that came.
        got_bytes: u64,
        /// Bytes that belong to it.
        expected_bytes: u64,
    },
    /// It is for other stages than lack pages since step 0.
    #[error("step {step} rebuilds pages of other stages than step 0 found without")]
    Rebuilds {
        /// The step.
        step: u64,
    },
}

/// What a step does to a sequence that it cannot do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum SequenceFault {
    /// It is open.
    #[error("opens again sequence")]
    OpensAgain,
    /// All slots are taken.
    #[error("finds no slot for sequence")]
    NoSlot,
    /// It is not open.
    #[error("closes unknown sequence")]
    ClosesUnknown,
    /// Its pages hold more than its history.
    #[error("begins behind the history of sequence")]
    BeginsBehindHistory,
    /// It is not open.
    #[error("keeps pages of unopened sequence")]
    KeepsUnopened,
    /// It is not open.
    #[error("computes unopened sequence")]
    ComputesUnopened,
    /// It is another one's.
    #[error("names a wrong principal for sequence")]
    WrongPrincipal,
}

/// What a step does with a page that it cannot do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum PageFault {
    /// It is not kept.
    #[error("forgets unkept")]
    ForgetsUnkept,
    /// It holds other tokens, or another principal's.
    #[error("opens a sequence of other content with")]
    OpensOther,
    /// It is not kept.
    #[error("opens a sequence with unkept")]
    OpensUnkept,
    /// It is not full.
    #[error("keeps an unfinished page as")]
    KeepsUnfinished,
    /// All pages are kept.
    #[error("keeps more pages than there are, the last as")]
    KeepsTooMany,
    /// The name is taken.
    #[error("keeps another page as")]
    KeepsAnother,
    /// Its rows are not here.
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
