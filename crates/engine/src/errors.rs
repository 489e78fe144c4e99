//! What can go wrong, one enum per operation. After any of these the engine stays usable, and every sequence
//! stands where the failed call found it (or where its `truncate_to` put it).

#![allow(missing_docs)] // the messages say what the fields are

use exo_backend::{AllocError, RunError, WeightError};
use exo_models::ModelError;
use exo_sampler::SampleError;
use exo_types::{DType, PageKey, SequenceId, Shard};

/// A shard could not be loaded. Everything taken on the way is free again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    #[error("a stage of {shard} is not possible for a model of {layer_count} layers: {reason}")]
    Shard { shard: Shard, layer_count: u32, reason: &'static str },
    #[error("{name} is {value}, it must be between {min} and {max}")]
    Option { name: &'static str, value: u64, min: u64, max: u64 },
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("the model has no tensor {name}")]
    MissingTensor { name: String },
    #[error("{name} is [{rows}, {cols}], the configuration says [{expected_rows}, {expected_cols}]")]
    TensorShape { name: String, rows: u64, cols: u64, expected_rows: u64, expected_cols: u64 },
    #[error("the device cannot run {op:?} on {name}, stored as {dtype}")]
    Unsupported { name: String, dtype: DType, op: exo_backend::OpKind },
    #[error("a weight could not be loaded")]
    Weight(#[from] WeightError),
    #[error("no room for the key-value cache and the working buffers")]
    Alloc(#[from] AllocError),
    #[error("the device cannot run this model")]
    Compile(#[from] RunError),
}

/// Opening, closing or truncating a sequence failed; nothing changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SequenceError {
    #[error("sequence {sequence} is open already")]
    AlreadyOpen { sequence: SequenceId },
    #[error("all {slots} slots are taken")]
    NoSlot { slots: u32 },
    #[error("sequence {sequence} is not open")]
    Unknown { sequence: SequenceId },
    #[error("a history of {tokens} tokens does not fit a context of {context_tokens}")]
    HistoryTooLong { tokens: usize, context_tokens: u32 },
    #[error("token {token} is not below the vocabulary's {vocab}")]
    TokenOutOfRange { token: u32, vocab: u32 },
    #[error("{prompt_tokens} prompt tokens are said to be in a history of {tokens}")]
    PromptBeyondHistory { prompt_tokens: u32, tokens: usize },
    #[error("sequence {sequence} has {has} positions, it cannot be truncated to {to}")]
    TruncateBeyondEnd { sequence: SequenceId, has: u32, to: u32 },
    #[error("{key} is not kept here")]
    PageUnknown { key: PageKey },
    #[error("{key} holds another principal's keys and values")]
    PageForeign { key: PageKey },
    #[error("{key} names another page already")]
    PageTaken { key: PageKey },
    /// Only full pages are kept: what is in them does not change any more.
    #[error("page {index} of sequence {sequence} is not full: it has {has} positions")]
    PageNotFull {
        sequence: SequenceId,
        /// Which of its pages, from 0.
        index: u32,
        has: u32,
    },
    #[error("{cached_tokens} positions are said to be cached of a history of {tokens} tokens")]
    CachedBeyondHistory { cached_tokens: usize, tokens: usize },
    /// What is asked of the prompt needs all of its rows, and cached pages leave some out.
    #[error(
        "sequence {sequence} asks for all rows of its prompt and begins with {cached_tokens} cached positions"
    )]
    CachedQuery { sequence: SequenceId, cached_tokens: usize },
    #[error(transparent)]
    Sampling(#[from] exo_types::SamplingParamsError),
}

/// A step was refused or did not finish. No sequence advanced.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// Not enough free pages; nothing was taken.
    #[error("the step needs {needed} more pages of the key-value cache, {free} are free")]
    OutOfPages { needed: usize, free: usize },
    #[error("sequence {sequence} is not open")]
    UnknownSequence { sequence: SequenceId },
    #[error("sequence {sequence} occurs twice in one step")]
    DuplicateSequence { sequence: SequenceId },
    /// The step would leave a hole, or repeat a position.
    #[error("sequence {sequence} continues at position {expected}, the step starts at {got}")]
    PositionGap { sequence: SequenceId, expected: u32, got: u32 },
    #[error("sequence {sequence} has {has} positions, it cannot be truncated to {to}")]
    TruncateBeyondEnd { sequence: SequenceId, has: u32, to: u32 },
    #[error("sequence {sequence} may not write at position {position}: its page is kept or shared")]
    SharedPage { sequence: SequenceId, position: u32 },
    #[error("sequence {sequence} belongs to another principal")]
    PrincipalMismatch { sequence: SequenceId },
    #[error("token {token} is not below the vocabulary's {vocab}")]
    TokenOutOfRange { token: u32, vocab: u32 },
    #[error("sequence {sequence} would reach {tokens} tokens, the context is {context_tokens}")]
    ContextExceeded { sequence: SequenceId, tokens: u64, context_tokens: u32 },
    /// A step without sequences, or a sequence without tokens.
    #[error("the step has no tokens{}", .sequence.map(|s| format!(" for sequence {s}")).unwrap_or_default())]
    Empty {
        /// The sequence, if one of several is empty.
        sequence: Option<SequenceId>,
    },
    #[error("the step has {tokens} tokens, at most {max} fit")]
    TooManyTokens { tokens: usize, max: usize },
    /// Token ids came where hidden rows belong, or the reverse.
    #[error("this stage starts from {expected}")]
    WrongInput { expected: &'static str },
    #[error("{got} hidden values came, {tokens} tokens of width {hidden} need {expected}")]
    HiddenLength {
        got: usize,
        expected: usize,
        tokens: usize,
        /// C
        hidden: usize,
    },
    /// A sampler must know every token before the one it draws; some were neither opened with nor sampled
    /// here.
    #[error(
        "sequence {sequence}: {known} tokens are known, sampling at position {position} needs all before it"
    )]
    HistoryIncomplete { sequence: SequenceId, known: usize, position: u32 },
    /// Drafts without a token in front of them, or where nothing is sampled.
    #[error("sequence {sequence}: {drafts} of {tokens} tokens are drafts, sampling is {}", if *.sample { "on" } else { "off" })]
    Drafts {
        sequence: SequenceId,
        drafts: u32,
        /// Tokens, drafts included.
        tokens: usize,
        sample: bool,
    },
    #[error("this stage has no output head")]
    NoHead,
    #[error("the device did not finish the step")]
    Run(#[from] RunError),
    #[error("no token could be drawn for sequence {sequence}")]
    Sample { sequence: SequenceId, source: SampleError },
}
