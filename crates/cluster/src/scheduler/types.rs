//! What a scheduler is told, what it answers, and its bounds.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use exo_types::{Attempt, FailureKind, NodeId, PlacementId, SequenceId, SequenceSpec};

use crate::failures::PipelineFailure;
use crate::wire::{DataMessage, StepMessage, Submission};

/// Where guesses at the next tokens come from. Changes how fast answers come, never what they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Speculation {
    /// There are none.
    Off,
    /// A sequence's own earlier tokens (prompt lookup).
    Lookup,
    /// A small model beside this scheduler.
    Model,
}

impl Speculation {
    /// All of them, the usual one first.
    pub const ALL: [Self; 3] = [Self::Lookup, Self::Model, Self::Off];

    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Lookup => "ngram",
            Self::Model => "draft",
        }
    }
}

impl fmt::Display for Speculation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no kind of guesses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown way to guess tokens ahead `{0}`: use ngram, draft or off")]
pub struct UnknownSpeculation(String);

impl FromStr for Speculation {
    type Err = UnknownSpeculation;

    fn from_str(word: &str) -> Result<Self, UnknownSpeculation> {
        Self::ALL.into_iter().find(|s| s.name() == word).ok_or_else(|| UnknownSpeculation(word.to_owned()))
    }
}

/// More time for a step for each token of it: whoever watches a step gives as much.
pub const STEP_PER_TOKEN: Duration = Duration::from_millis(250);

/// Bounds of one instance's scheduler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SchedulerConfig {
    /// Tokens of the vocabulary: a stage that is given another ends the pipeline for everybody.
    pub vocab: u32,
    /// Sequences that may wait; one more is rejected.
    pub queue_len_max: usize,
    /// Prompt tokens of one step at most, over all stages in flight.
    pub chunk_tokens_max: u32,
    /// Whether and how tokens are guessed ahead.
    pub speculation: Speculation,
    /// What it does wrong.
    #[cfg(feature = "planted")]
    pub planted: Option<super::planted::SchedulerBug>,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            vocab: u32::MAX,
            queue_len_max: 64,
            chunk_tokens_max: exo_planner::CHUNK_TOKENS,
            speculation: Speculation::Lookup,
            #[cfg(feature = "planted")]
            planted: None,
        }
    }
}

/// What happens to a scheduler, but for the outcomes of its steps: those are in [`crate::Scheduler::tokens`].
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum SchedulerInput {
    /// Time passed. At least once a second.
    Tick,
    /// A driver's sequence. `from` is the authenticated sender.
    Submit { from: NodeId, submission: Submission },
    /// A driver lost interest.
    Cancel { from: NodeId, placement: PlacementId, sequence: SequenceId, attempt: Attempt },
    /// A stage's word: `NotWired`, `Undelivered` or `PipelineBroken`. A link that ended ends the term,
    /// anything else that broke the pipeline the placement. `from` is the authenticated sender, which passed
    /// the word on.
    Report { from: NodeId, message: DataMessage },
    /// The small model's answer to [`SchedulerOutput::Draft`].
    Drafted {
        sequence: SequenceId,
        /// Tokens of the text it was asked about.
        text_len: usize,
        /// Its guesses at what follows, in order; none is outside the large model's vocabulary.
        tokens: Vec<u32>,
        /// What one guess took, if that was measured.
        each: Option<Duration>,
    },
    /// The small model cannot hold the sequence: it is not asked about it again.
    DraftRefused(SequenceId),
    /// The small model is gone: there are no guesses from now on.
    DraftsOver,
    /// The data link to a node ended, which may be up again: what was in it is lost. Drivers' nodes count
    /// too: their sequences stop.
    LinkLost(NodeId),
    /// Membership says the node is gone. Sequences of its drivers stop with its link: by now another run of
    /// it may be there.
    NodeLost(NodeId),
    /// The instance is removed or placed anew: everything ends.
    Stop,
}

/// What a scheduler wants done.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum SchedulerOutput {
    /// Tell a driver.
    Send { to: NodeId, message: DataMessage },
    /// Step 0 of the term is back: every stage is there, and steps get through. Report it.
    Serving,
    /// Feed the first stage, which runs on this node.
    Step(StepMessage),
    /// Ask the small model, which runs on this node.
    Draft {
        /// The sequence; its history is prompt and answer so far.
        spec: SequenceSpec,
        /// Guesses wanted at most; 0 has it read the sequence and no more.
        count: u32,
    },
    /// The small model may forget a sequence.
    DraftOver(SequenceId),
    /// The instance cannot go on: report it as [`crate::wire::InstanceFailure`] and throw this scheduler
    /// away.
    InstanceFailed {
        kind: FailureKind,
        /// The stage whose device failed, where it was one.
        stage: Option<u32>,
        why: PipelineFailure,
    },
}
