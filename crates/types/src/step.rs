//! Steps: the numbered units of work that travel from stage to stage.

use serde::{Deserialize, Serialize};

use crate::{InstanceId, NodeId, Principal, SamplingParams, SequenceId};

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
    /// Token ids, at least one. Later stages use their number only: hidden rows stand for them.
    pub tokens: Vec<u32>,
    /// Whether the last stage samples after the last of these tokens.
    pub sample: bool,
    /// Forget positions from here on before the step (speculation, replay); `None` keeps all.
    pub truncate_to: Option<u32>,
}

/// One forward pass over a batch. The hidden rows, where present, follow in the order of `sequences`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StepFrame {
    /// The instance.
    pub instance: InstanceId,
    /// Placement generation; a stage refuses another than its own.
    pub generation: u32,
    /// Grows by one per step of a generation.
    pub step: u64,
    /// The batch.
    pub sequences: Vec<StepSequence>,
}

impl StepFrame {
    /// Rows of hidden state this step carries: the tokens of all sequences.
    pub fn token_count(&self) -> usize {
        self.sequences.iter().map(|s| s.tokens.len()).sum()
    }
}

/// How hidden states are encoded between stages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum WireDType {
    /// 4 bytes an element, exact: a split gives the bits of solo.
    F32,
}

/// Why a request ended without its answer. Stable: clients see it as an error code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[non_exhaustive]
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
}
