//! What can go wrong, one enum per operation. After any of these the engine stays usable, and every sequence
//! stands where the failed call found it (or where its `truncate_to` put it).

use exo_backend::{AllocError, RunError, WeightError};
use exo_models::ModelError;
use exo_sampler::SampleError;
use exo_types::{DType, PageKey, SequenceId, Shard};

/// A shard could not be loaded. Everything taken on the way is free again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The shard cannot be a stage of this model.
    #[error("a stage of {shard} is not possible for a model of {layer_count} layers: {reason}")]
    Shard {
        /// What was asked.
        shard: Shard,
        /// Layers of the model.
        layer_count: u32,
        /// Why not.
        reason: &'static str,
    },
    /// An option is out of its range.
    #[error("{name} is {value}, it must be between {min} and {max}")]
    Option {
        /// The option.
        name: &'static str,
        /// What was given.
        value: u64,
        /// Least allowed.
        min: u64,
        /// Greatest allowed.
        max: u64,
    },
    /// The model cannot be run as described.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The checkpoint lacks a tensor of the shard.
    #[error("the model has no tensor {name}")]
    MissingTensor {
        /// Its name.
        name: String,
    },
    /// A tensor is not of the shape the configuration says.
    #[error("{name} is [{rows}, {cols}], the configuration says [{expected_rows}, {expected_cols}]")]
    TensorShape {
        /// Its name.
        name: String,
        /// Outputs stored.
        rows: u64,
        /// Inputs stored.
        cols: u64,
        /// Outputs wanted.
        expected_rows: u64,
        /// Inputs wanted.
        expected_cols: u64,
    },
    /// The device cannot compute on a tensor's type.
    #[error("the device cannot run {op:?} on {name}, stored as {dtype}")]
    Unsupported {
        /// The tensor.
        name: String,
        /// How it is stored.
        dtype: DType,
        /// What it is for.
        op: exo_backend::OpKind,
    },
    /// The device did not take a tensor.
    #[error("a weight could not be loaded")]
    Weight(#[from] WeightError),
    /// No memory for cache or workspace.
    #[error("no room for the key-value cache and the working buffers")]
    Alloc(#[from] AllocError),
    /// The device cannot run the model's operations.
    #[error("the device cannot run this model")]
    Compile(#[from] RunError),
}

/// Opening, closing or truncating a sequence failed; nothing changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SequenceError {
    /// The id is in use.
    #[error("sequence {sequence} is open already")]
    AlreadyOpen {
        /// The sequence.
        sequence: SequenceId,
    },
    /// Every slot is taken.
    #[error("all {slots} slots are taken")]
    NoSlot {
        /// Sequences that may be open at once.
        slots: u32,
    },
    /// No such sequence.
    #[error("sequence {sequence} is not open")]
    Unknown {
        /// The sequence.
        sequence: SequenceId,
    },
    /// The history is longer than a sequence may be.
    #[error("a history of {tokens} tokens does not fit a context of {context_tokens}")]
    HistoryTooLong {
        /// Tokens given.
        tokens: usize,
        /// Longest sequence.
        context_tokens: u32,
    },
    /// A token of the history is none of the model's.
    #[error("token {token} is not below the vocabulary's {vocab}")]
    TokenOutOfRange {
        /// The id.
        token: u32,
        /// Tokens of the vocabulary.
        vocab: u32,
    },
    /// More prompt than history.
    #[error("{prompt_tokens} prompt tokens are said to be in a history of {tokens}")]
    PromptBeyondHistory {
        /// What was said.
        prompt_tokens: u32,
        /// Tokens given.
        tokens: usize,
    },
    /// A sequence cannot be truncated to more than it has.
    #[error("sequence {sequence} has {has} positions, it cannot be truncated to {to}")]
    TruncateBeyondEnd {
        /// The sequence.
        sequence: SequenceId,
        /// Positions it has.
        has: u32,
        /// What was asked.
        to: u32,
    },
    /// No page is kept under this name.
    #[error("{key} is not kept here")]
    PageUnknown {
        /// The name.
        key: PageKey,
    },
    /// The kept page belongs to somebody else.
    #[error("{key} holds another principal's keys and values")]
    PageForeign {
        /// The name.
        key: PageKey,
    },
    /// A page is kept under this name already.
    #[error("{key} names another page already")]
    PageTaken {
        /// The name.
        key: PageKey,
    },
    /// Only full pages are kept: what is in them does not change any more.
    #[error("page {index} of sequence {sequence} is not full: it has {has} positions")]
    PageNotFull {
        /// The sequence.
        sequence: SequenceId,
        /// Which of its pages, from 0.
        index: u32,
        /// Positions the sequence has.
        has: u32,
    },
    /// A sequence cannot begin with more positions than it has tokens.
    #[error("{cached_tokens} positions are said to be cached of a history of {tokens} tokens")]
    CachedBeyondHistory {
        /// What was said.
        cached_tokens: usize,
        /// Tokens given.
        tokens: usize,
    },
    /// What is asked of the prompt needs all of its rows, and cached pages leave some out.
    #[error(
        "sequence {sequence} asks for all rows of its prompt and begins with {cached_tokens} cached positions"
    )]
    CachedQuery {
        /// The sequence.
        sequence: SequenceId,
        /// Positions whose keys and values are cached.
        cached_tokens: usize,
    },
    /// The sampling parameters are out of range.
    #[error(transparent)]
    Sampling(#[from] exo_types::SamplingParamsError),
}

/// A step was refused or did not finish. No sequence advanced.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// Not enough free pages; nothing was taken.
    #[error("the step needs {needed} more pages of the key-value cache, {free} are free")]
    OutOfPages {
        /// Pages the step needs in addition.
        needed: usize,
        /// Pages free.
        free: usize,
    },
    /// A sequence was never opened, or has been closed.
    #[error("sequence {sequence} is not open")]
    UnknownSequence {
        /// The sequence.
        sequence: SequenceId,
    },
    /// A sequence occurs twice in the step.
    #[error("sequence {sequence} occurs twice in one step")]
    DuplicateSequence {
        /// The sequence.
        sequence: SequenceId,
    },
    /// The step would leave a hole, or repeat a position.
    #[error("sequence {sequence} continues at position {expected}, the step starts at {got}")]
    PositionGap {
        /// The sequence.
        sequence: SequenceId,
        /// Where it stands.
        expected: u32,
        /// Where the step starts.
        got: u32,
    },
    /// A sequence cannot be truncated to more than it has.
    #[error("sequence {sequence} has {has} positions, it cannot be truncated to {to}")]
    TruncateBeyondEnd {
        /// The sequence.
        sequence: SequenceId,
        /// Positions it has.
        has: u32,
        /// What was asked.
        to: u32,
    },
    /// The step would overwrite a page that is kept, or that another sequence reads.
    #[error("sequence {sequence} may not write at position {position}: its page is kept or shared")]
    SharedPage {
        /// The sequence.
        sequence: SequenceId,
        /// The first position of the step.
        position: u32,
    },
    /// The sequence was opened by somebody else.
    #[error("sequence {sequence} belongs to another principal")]
    PrincipalMismatch {
        /// The sequence.
        sequence: SequenceId,
    },
    /// A token is none of the model's.
    #[error("token {token} is not below the vocabulary's {vocab}")]
    TokenOutOfRange {
        /// The id.
        token: u32,
        /// Tokens of the vocabulary.
        vocab: u32,
    },
    /// The sequence would grow longer than a sequence may be.
    #[error("sequence {sequence} would reach {tokens} tokens, the context is {context_tokens}")]
    ContextExceeded {
        /// The sequence.
        sequence: SequenceId,
        /// Length it would reach.
        tokens: u64,
        /// Longest sequence.
        context_tokens: u32,
    },
    /// A step without sequences, or a sequence without tokens.
    #[error("the step has no tokens{}", .sequence.map(|s| format!(" for sequence {s}")).unwrap_or_default())]
    Empty {
        /// The sequence, if one of several is empty.
        sequence: Option<SequenceId>,
    },
    /// More tokens than the working buffers hold.
    #[error("the step has {tokens} tokens, at most {max} fit")]
    TooManyTokens {
        /// Tokens of the step.
        tokens: usize,
        /// Tokens that fit.
        max: usize,
    },
    /// Token ids came where hidden rows belong, or the reverse.
    #[error("this stage starts from {expected}")]
    WrongInput {
        /// What it takes.
        expected: &'static str,
    },
    /// The hidden rows do not match the step.
    #[error("{got} hidden values came, {tokens} tokens of width {hidden} need {expected}")]
    HiddenLength {
        /// Values that came.
        got: usize,
        /// Values needed.
        expected: usize,
        /// Rows of the batch.
        tokens: usize,
        /// C
        hidden: usize,
    },
    /// A sampler must know every token before the one it draws; some were neither opened with nor sampled
    /// here.
    #[error(
        "sequence {sequence}: {known} tokens are known, sampling at position {position} needs all before it"
    )]
    HistoryIncomplete {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens known.
        known: usize,
        /// Where a token is wanted.
        position: u32,
    },
    /// Drafts without a token in front of them, or where nothing is sampled.
    #[error("sequence {sequence}: {drafts} of {tokens} tokens are drafts, sampling is {}", if *.sample { "on" } else { "off" })]
    Drafts {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens that are drafts.
        drafts: u32,
        /// Tokens, drafts included.
        tokens: usize,
        /// Whether the part samples.
        sample: bool,
    },
    /// Logits were asked of a stage without the output head.
    #[error("this stage has no output head")]
    NoHead,
    /// The device did not finish.
    #[error("the device did not finish the step")]
    Run(#[from] RunError),
    /// The logits gave no token.
    #[error("no token could be drawn for sequence {sequence}")]
    Sample {
        /// The sequence.
        sequence: SequenceId,
        /// What the sampler refused.
        #[source]
        source: SampleError,
    },
}
