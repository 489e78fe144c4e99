//! Steps: the numbered units of work that travel from stage to stage.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    Epoch, NodeId, PlacementId, Principal, PromptQuery, SEQUENCES_MAX, SamplingParams, SequenceId, Term, list,
};

/// Guessed tokens one part of a step may carry: far more than pays on any device we know, few enough that a
/// step's logits stay small.
pub const DRAFTS_MAX: u32 = 16;

/// What opening a sequence tells every stage.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SequenceSpec {
    /// The sequence.
    pub sequence: SequenceId,
    /// On whose behalf.
    pub principal: Principal,
    /// The node that streams to the client; the last stage sends tokens there.
    pub driver: NodeId,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Tokens the sampler starts from: the prompt, and after a replay what was generated before.
    /// Penalties are a fold over these.
    pub history: Vec<u32>,
    /// How many of `history` are prompt (penalties on generated tokens start after them).
    pub prompt_tokens: u32,
    /// What is asked of the prompt beside a continuation.
    pub query: PromptQuery,
}

impl SequenceSpec {
    /// What is still asked of the prompt: nothing where something was generated, since the report came with
    /// the first token.
    pub fn open_query(&self) -> PromptQuery {
        match self.history.len() == self.prompt_tokens as usize {
            true => self.query,
            false => PromptQuery::Nothing,
        }
    }
}

/// Names a full page of keys and values that may be read by sequences to come. The scheduler draws it, each
/// stage knows its own page by it; no two pages that are kept have the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct PageKey(pub u64);

impl fmt::Display for PageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {}", self.0)
    }
}

/// One sequence's part of a step.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StepSequence {
    /// The sequence.
    pub sequence: SequenceId,
    /// On whose behalf; must match the opened sequence.
    pub principal: Principal,
    /// Position of the first token of this part in the sequence.
    pub start: u32,
    /// Token ids, at least one. Later stages compute with their number only: hidden rows stand for them.
    pub tokens: Vec<u32>,
    /// Whether the last stage samples after the last of these tokens that is not a draft.
    pub sample: bool,
    /// How many tokens at the end are drafts: guesses at what will be sampled. Where the token sampled is the
    /// draft that stands there, the last stage samples after that one too. Fewer than the tokens, at most
    /// [`DRAFTS_MAX`], 0 where nothing is sampled.
    pub drafts: u32,
    /// Forget positions from here on before the step (rejected drafts, replay); `None` keeps all.
    pub truncate_to: Option<u32>,
}

impl StepSequence {
    /// The part in two: tokens that are the sequence's, and drafts. Panics if there are more drafts than
    /// tokens.
    pub fn split_drafts(&self) -> (&[u32], &[u32]) {
        self.tokens.split_at(self.tokens.len() - self.drafts as usize)
    }

    /// The position behind the last of its tokens.
    pub fn end(&self) -> u32 {
        self.start + self.tokens.len() as u32
    }

    /// Position of the first token sampled. Panics as [`StepSequence::split_drafts`].
    pub fn sample_position(&self) -> u32 {
        self.start + self.split_drafts().0.len() as u32
    }

    /// Whether `sampled`, in order from [`StepSequence::sample_position`], is what this part can give: every
    /// token but the last is the draft at its place, and the last is not, or comes after all drafts.
    pub fn is_answered_by(&self, sampled: impl IntoIterator<Item = u32>) -> bool {
        let mut drafts = self.split_drafts().1.iter();
        let mut open = self.sample;
        for token in sampled {
            if !open {
                return false;
            }
            open = drafts.next() == Some(&token);
        }
        !open
    }
}

/// One forward pass over a batch. The hidden rows, where present, follow in the order of `sequences`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StepFrame {
    /// The placement; a stage refuses another than its own.
    pub placement: PlacementId,
    /// The term of its pipeline: a stage ignores a lower one, and begins a higher one with step 0.
    pub term: Term,
    /// Grows by one per step of a term.
    pub step: u64,
    /// The batch.
    #[serde(deserialize_with = "list::<_, _, SEQUENCES_MAX>")]
    pub sequences: Vec<StepSequence>,
}

impl StepFrame {
    /// A step of no placement, for an engine by itself: measuring, guessing, testing.
    pub fn unplaced(step: u64, sequences: Vec<StepSequence>) -> Self {
        let epoch = Epoch { counter: 0, key: NodeId([0; 32]) };
        Self { placement: PlacementId { epoch, number: 0 }, term: Term::FIRST, step, sequences }
    }

    /// Rows of hidden state this step carries: the tokens of all sequences.
    pub fn token_count(&self) -> usize {
        self.sequences.iter().map(|s| s.tokens.len()).sum()
    }
}

/// How hidden states are encoded between stages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum WireDType {
    /// 4 bytes an element, exact: a split gives the bits of solo.
    F32,
}

/// Why a request ended without its answer. Stable: clients see it as an error code.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum FailureKind {
    /// A stage's node or device went away.
    StageLost,
    /// The instance was placed anew or removed.
    InstanceGone,
    /// The queue in front of the instance is full.
    QueueFull,
    /// No result within the request's deadline.
    Deadline,
    /// The device failed to compute the step.
    Device,
    /// Out of KV pages while running.
    OutOfMemory,
    /// A peer broke the protocol.
    Protocol,
    /// The answer left the grammar it was to keep to, or the grammar could not be followed further.
    Constraint,
}
