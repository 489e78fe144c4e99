//! Why a stage could not compute a step.

use serde::{Deserialize, Serialize};

/// Why a step could not be computed, or a sequence of it: a closed set with its numbers, and what an engine
/// says itself.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, thiserror::Error)]
#[allow(missing_docs)] // the messages say what the fields are
pub enum ComputeFault {
    /// The engine, a driver or a worker process failed. In its own words, which are free.
    #[error("{0}")]
    Engine(String),
    #[error("the device gave what is no number or beyond 10^8 in row {row} of {hidden} elements")]
    NotFinite { row: u64, hidden: u32 },
    #[error("stage {stage} sent what is no number or beyond 10^8 in row {row}")]
    SentNotFinite { stage: u32, row: u64 },
    #[error("the engine returned {got_bytes} bytes of rows instead of {expected_bytes}")]
    Rows { got_bytes: u64, expected_bytes: u64 },
    /// The engine gave tokens of another step, or none of the vocabulary.
    #[error("the engine returned {tokens} tokens that are not this step's")]
    Tokens { tokens: u64 },
    #[error("the engine returned {tokens} tokens and {failed} failures that are not this step's")]
    Partial { tokens: u64, failed: u64 },
    /// Several sequences failed, and no driver is told why those of another did.
    #[error("its sequences failed, each for a reason of its own")]
    Several,
}

impl ComputeFault {
    /// Bytes of what the engine says.
    pub(crate) fn text_bytes(&self) -> usize {
        if let Self::Engine(words) = self { words.len() } else { 0 }
    }
}
