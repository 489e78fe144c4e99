//! What a stage is told and what it wants done.

use bytes::Bytes;
use exo_types::{FailureKind, NodeId, PageKey, RequestId, SequenceId, StepFrame, Term};
use serde::{Deserialize, Serialize};

use crate::Undeliverable;
use crate::wire::{DataMessage, StageCommand, StepMessage, TokenResult};

/// Numbers of the loaded model a stage checks frames against.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StageGeometry {
    /// Width of a hidden row in elements.
    pub hidden: u32,
    /// Tokens in the vocabulary.
    pub vocab: u32,
    /// Pages of keys and values.
    pub pages: u32,
    /// Tokens of one page of keys and values.
    pub page_tokens: u32,
}

/// What the engine made of a step.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum ComputeResult {
    /// Hidden rows in the wire's encoding: any stage but the last. Between processes they travel beside it.
    Rows(#[serde(skip)] Bytes),
    /// Sampled tokens: the last stage. One per sequence with `sample`, in the frame's order. Their `attempt`
    /// does not count: the stage knows it.
    Tokens(Vec<TokenResult>),
    /// The same without some sequences of the frame, which cannot go on: only they are lost.
    Partial { results: Vec<TokenResult>, failed: Vec<FailedSequence> },
    /// It failed; the sequences of the step are lost.
    Failed { kind: FailureKind, message: String },
}

/// A sequence that was computed and cannot go on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct FailedSequence {
    pub sequence: SequenceId,
    pub kind: FailureKind,
    pub message: String,
    /// The device gave what is no number for it.
    pub is_not_finite: bool,
}

/// What happens to a stage.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum StageInput {
    /// A step arrived: from the previous stage, or on the first stage from the scheduler of this node. `from`
    /// is the authenticated sender.
    Step { from: NodeId, message: StepMessage },
    /// A message of this stage did not go out.
    Undeliverable(Undeliverable),
    /// The data link to a node ended: what was in it is lost.
    LinkLost(NodeId),
    /// A later stage's word for the scheduler: `NotWired`, `Undelivered` or `PipelineBroken`. It goes from
    /// stage to stage against the direction of the steps, so that it needs no link that they did not prove.
    /// `from` is the authenticated sender.
    Report { from: NodeId, message: DataMessage },
    /// The engine is done with the step last put out, in that term.
    ComputeDone { term: Term, step: u64, result: ComputeResult },
    /// The engine has no sequence: the answer to [`StageOutput::Rewire`].
    Rewired { term: Term },
}

/// What a stage wants done.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum StageOutput {
    /// Run this on the engine: the commands (which cannot fail: they were checked, and memory is only taken
    /// by batches), then the batch, if it has sequences. Answer with `ComputeDone`, in order. One is out at a
    /// time, or a second behind a chunk of a prompt on the only stage; that one may come again, once, without
    /// sequences that were lost with the chunk. For a frame without sequences the answer is `Rows` without
    /// bytes or `Tokens(vec![])`.
    Compute {
        /// Carried out first, in order: what of the step's is for this engine.
        commands: Vec<StageCommand>,
        /// The batch; without sequences where only other stages compute them.
        frame: StepFrame,
        /// Hidden rows of the batch; empty on the first stage.
        rows: Bytes,
    },
    /// A term begins: drop all sequences on the engine and all kept pages but some, after the steps that it
    /// was given before. Answer with `Rewired`; nothing of the term is computed before. What comes back of
    /// earlier steps is ignored.
    Rewire {
        term: Term,
        /// The pages that stay, in order. The engine has them.
        keep: Vec<PageKey>,
    },
    /// The device made of numbers what is none, in a step that failed for that.
    NotFinite {
        /// One of the requests in that step.
        request: RequestId,
        /// Hash of its prompt: the same for the same one.
        prompt: [u8; 32],
    },
    /// Send to a node (possibly this one): `Step`, `Tokens`, `StepFailed`, or a report to the scheduler.
    Send { to: NodeId, message: DataMessage },
}
