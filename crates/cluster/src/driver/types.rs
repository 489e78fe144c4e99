//! What a driver is told, what it answers, and its deadlines.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use exo_types::{
    FailureKind, InstanceId, ModelId, NodeId, PlacementId, SampledToken, SequenceSpec, Term, Time,
};

use crate::failures::PipelineFailure;
use crate::instances::InstanceView;
use crate::reasons::{ReplaceReason, StageLoss};
use crate::wire::{DataMessage, EndReason, TokenResult};

/// How long an interrupted answer may stand still where nobody set it: a laptop that restarts is back.
pub const PAUSE_MAX: Duration = Duration::from_secs(120);

/// Deadlines of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DriverConfig {
    /// From the start, or from when loading last moved on, until the sequence runs: placing, loading and
    /// queueing.
    pub queue_deadline: Duration,
    /// Between two tokens. Longer than the scheduler's deadline for a full step, so that the cause is told.
    pub idle_deadline: Duration,
    /// From an interruption (a lost stage, a failed step) to the next token: placing anew, loading and
    /// queueing. No other deadline ends an answer meanwhile.
    pub pause_max: Duration,
    /// From start to end, without the pauses.
    pub overall_deadline: Duration,
}

impl Default for DriverConfig {
    fn default() -> Self {
        Self {
            queue_deadline: Duration::from_secs(120),
            idle_deadline: Duration::from_secs(65),
            pause_max: PAUSE_MAX,
            overall_deadline: Duration::from_secs(3600),
        }
    }
}

/// What a driver is made for.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct DriverStart {
    /// The model to answer with. Any ready instance of it will do.
    pub model: ModelId,
    /// Sampling and prompt; `spec.driver` is this node.
    pub spec: SequenceSpec,
    pub max_tokens: u32,
    pub vocab: u32,
    pub stop_tokens: Vec<u32>,
    /// Go on behind stop tokens.
    pub ignore_eos: bool,
    pub speculate: bool,
}

/// Guesses at the tokens of one answer.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DraftCounts {
    /// Those that were right: tokens of the answer that took no step of their own.
    pub accepted: u32,
    /// Those that were wrong: computed for nothing.
    pub rejected: u32,
}

/// What happens to a driver.
#[allow(clippy::large_enum_variant)] // one at a time, handed on at once
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum DriverInput {
    /// Time passed. At least once a second.
    Tick,
    /// The instances as now known. Feed it at the start and on every change.
    Instances(Vec<InstanceView>),
    /// Nodes to which this one has an open data link. Feed it at the start, before the instances, and on
    /// every change.
    Links(Arc<BTreeSet<NodeId>>),
    /// No instance can serve the model: the coordinator refused to place it. Counts only while waiting for
    /// one.
    PlaceRefused { message: String },
    /// A message about this sequence; others are ignored, and so are tokens, which come as
    /// [`DriverInput::Tokens`]. `from` is the authenticated sender.
    Message { from: NodeId, message: DataMessage },
    /// A result of one step for this sequence, moved out of what the last stage sent.
    Tokens {
        /// The last stage's node, also where the scheduler's node handed it on.
        from: NodeId,
        placement: PlacementId,
        term: Term,
        step: u64,
        result: TokenResult,
    },
    /// Membership says the node is gone.
    NodeLost(NodeId),
    /// The data link to a node ended: what was in it is lost. It may be up again.
    LinkLost(NodeId),
    /// Nobody listens any more, or a stop string was found: end with [`EndReason::Cancelled`].
    Cancel,
}

/// What a driver wants done.
#[allow(clippy::large_enum_variant)] // one at a time, handed on at once
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum DriverOutput {
    /// Send to the scheduler, at the first stage's node (possibly this one): `Submit` or `Cancel`.
    Send { to: NodeId, message: DataMessage },
    /// Show a token to the client. Positions come in order, each once.
    Token {
        /// Where it stands in the sequence, prompt included.
        position: u32,
        token: SampledToken,
    },
    /// The answer is complete. Last output.
    Ended(EndReason),
    /// There will be no (more) answer. Clients see the kind as an error code. Last output.
    Failed { kind: FailureKind, message: String },
}

/// How far a request is, to show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DriverPhase {
    /// No instance serves the model yet.
    WaitingForInstance,
    /// An instance is ready; the data link to this node of its first or last stage is not open.
    WaitingForLink(NodeId),
    /// Submitted, no answer of the scheduler yet.
    Submitted(InstanceId),
    /// In the scheduler's queue.
    Queued(InstanceId),
    /// Computing on this instance.
    Running(InstanceId),
    /// It ran, and what computed it is lost: it goes on when it can, or is told why not.
    Interrupted {
        /// The first interruption since the last token.
        since: Time,
        /// When the request ends if it has not gone on by then.
        until: Time,
    },
    /// The request is over.
    Over,
}

/// What ended a submission whose request goes on.
#[derive(Clone, PartialEq, Debug)]
pub enum InterruptCause {
    /// Something was lost. Who tells how the instance does gives the same reason.
    Lost(ReplaceReason),
    /// Anything else, in the words of who noticed.
    Said(String),
}

impl InterruptCause {
    /// What was lost, if something was.
    pub fn lost(&self) -> Option<&ReplaceReason> {
        match self {
            Self::Lost(reason) => Some(reason),
            Self::Said(_) => None,
        }
    }
}

impl From<PipelineFailure> for InterruptCause {
    fn from(why: PipelineFailure) -> Self {
        Self::Lost(match why {
            PipelineFailure::NodeGone { stage, node } => {
                ReplaceReason::Stage { stage, node, loss: StageLoss::NodeGone }
            }
            why => ReplaceReason::Failed { times: 1, why },
        })
    }
}

/// Where no names are known.
impl fmt::Display for InterruptCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(reason) => reason.fmt(f),
            Self::Said(words) => f.write_str(words),
        }
    }
}
