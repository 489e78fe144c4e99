//! What goes into an engine and what comes out: plain values.

use exo_backend::KvDType;
use exo_sampler::SampleError;
use exo_types::{SampledToken, SequenceId};
use serde::{Deserialize, Serialize};

use crate::StepError;

/// Tokens of a page, the same in the whole cluster (decision 0007).
pub const PAGE_TOKENS: u32 = 32;

/// How large an engine is made. Decides the memory it takes, never the values it computes, but for
/// `kv_dtype` and, in the last bits, `page_tokens`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EngineOptions {
    /// Longest sequence (prompt and answer) in tokens.
    pub context_tokens: u32,
    /// Sequences that may be open at once.
    pub slots: u32,
    /// Tokens whose keys and values there is room for, in whole pages; `None` for every slot at full context.
    pub cache_tokens: Option<u32>,
    /// Tokens of one step, over all its sequences.
    pub chunk_tokens_max: u32,
    /// Tokens of one page of the key-value cache. Attention is summed page by page: engines that must give
    /// the same bits need the same value.
    pub page_tokens: u32,
    /// How keys and values are stored.
    pub kv_dtype: KvDType,
}

impl EngineOptions {
    /// The usual chunk and page size, the usual keys and values.
    pub fn new(context_tokens: u32, slots: u32) -> Self {
        let kv_dtype = KvDType::default();
        let page_tokens = PAGE_TOKENS;
        Self { context_tokens, slots, cache_tokens: None, chunk_tokens_max: 256, page_tokens, kv_dtype }
    }

    /// Pages a sequence of full length occupies.
    pub(crate) fn pages_per_sequence(&self) -> u32 {
        self.context_tokens.div_ceil(self.page_tokens)
    }

    pub(crate) fn pages(&self) -> u64 {
        match self.cache_tokens {
            Some(tokens) => u64::from(tokens / self.page_tokens),
            None => u64::from(self.slots) * u64::from(self.pages_per_sequence()),
        }
    }
}

/// How far loading is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoadProgress {
    /// Stored bytes of the tensors taken in.
    pub bytes_done: u64,
    /// Stored bytes of the shard.
    pub bytes_total: u64,
}

/// What a step starts from.
#[derive(Clone, Copy, Debug)]
pub enum StepInput<'a> {
    /// The token ids of the frame: the first stage.
    Tokens,
    /// `[T, C]` hidden rows in the frame's order: every later stage.
    Hidden(&'a [f32]),
}

/// What a step gives.
#[derive(Clone, PartialEq, Debug)]
pub enum StepOutput {
    /// `[T, C]` hidden rows for the next stage.
    Hidden(Vec<f32>),
    /// From the last stage.
    Sampled(Sampled),
}

/// What the last stage drew in a step.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Sampled {
    /// Tokens for each sequence of the frame that wanted some and got them, in its order. One, and one more
    /// for each draft that was right.
    pub runs: Vec<(SequenceId, Vec<SampledToken>)>,
    /// Sequences that cannot go on, and why: no token could be drawn, or nothing be said of the prompt. They
    /// have advanced like the others.
    pub failed: Vec<(SequenceId, SampleError)>,
}

impl Sampled {
    /// The runs, where a sequence that failed fails the step.
    pub fn all(self) -> Result<Vec<(SequenceId, Vec<SampledToken>)>, StepError> {
        match self.failed.into_iter().next() {
            Some((sequence, source)) => Err(StepError::Sample { sequence, source }),
            None => Ok(self.runs),
        }
    }
}

/// What an engine holds and has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EngineReport {
    /// Device memory of the weights, mapped pages included; a tied table counts once.
    pub weight_bytes: u64,
    /// Device memory of the key-value cache.
    pub kv_bytes: u64,
    /// Device memory of the working buffers.
    pub workspace_bytes: u64,
    /// Pages no one holds.
    pub pages_free: u32,
    /// Pages kept for sequences to come, those that open sequences read included.
    pub pages_kept: u32,
    /// Pages in all.
    pub pages_total: u32,
    /// Open sequences.
    pub sequences: u32,
    /// Steps finished.
    pub steps: u64,
    /// Tokens of those steps.
    pub tokens: u64,
}
