//! What can go wrong while sampling.

#![allow(missing_docs)] // the messages say what the fields are

/// The logits cannot be sampled from. The sampler is unchanged.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    #[error("there are no logits to sample from")]
    Empty,
    #[error("the logit of token {token} is {value}, the model's result is not to be believed")]
    NotFinite {
        token: u32,
        /// NaN or an infinity.
        value: f32,
    },
    #[error("token {token} is not below the vocabulary's {vocab}")]
    BeyondVocabulary { token: u32, vocab: usize },
    /// The constraint could not be set back to an earlier token.
    #[error("the answer's grammar cannot be followed: {reason}")]
    Constraint { reason: String },
}
