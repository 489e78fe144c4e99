//! Why a stage could not compute a step.

use serde::{Deserialize, Serialize};

/// Why a step could not be computed, or a sequence of it: a closed set with its numbers, and what an engine
/// says itself.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum ComputeFault {
    /// The engine, a driver or a worker process failed. In its own words, which are free.
    #[error("{0}")]
    Engine(String),
    /// The device made of numbers what is none.
    #[error("the device gave what is no number or beyond 10^8 in row {row} of {hidden} elements")]
    NotFinite {
        /// The first such row.
        row: u64,
        /// Elements of a row.
        hidden: u32,
    },
    /// That came from the stage in front.
    #[error("stage {stage} sent what is no number or beyond 10^8 in row {row}")]
    SentNotFinite {
        /// Index of that stage.
        stage: u32,
        /// The first such row.
        row: u64,
    },
    /// The engine gave rows of another length.
    #[error("the engine returned {got_bytes} bytes of rows instead of {expected_bytes}")]
    Rows {
        /// Bytes that it gave.
        got_bytes: u64,
        /// Bytes of the step's rows.
        expected_bytes: u64,
    },
    /// The engine gave tokens of another step, or none of the vocabulary.
    #[error("the engine returned {tokens} tokens that are not this step's")]
    Tokens {
        /// Results that it gave.
        tokens: u64,
    },
    /// The same with failures of single sequences.
    #[error("the engine returned {tokens} tokens and {failed} failures that are not this step's")]
    Partial {
        /// Results that it gave.
        tokens: u64,
        /// Sequences that it named as failed.
        failed: u64,
    },
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
