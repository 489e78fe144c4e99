//! What can go wrong while sampling.

/// The logits cannot be sampled from. The sampler is unchanged.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// No logits at all.
    #[error("there are no logits to sample from")]
    Empty,
    /// The model computed something that is not a number, or infinity.
    #[error("the logit of token {token} is {value}, the model's result is not to be believed")]
    NotFinite {
        /// The first such token.
        token: u32,
        /// NaN or an infinity.
        value: f32,
    },
    /// A token that is to be scored is none of the model's.
    #[error("token {token} is not below the vocabulary's {vocab}")]
    BeyondVocabulary {
        /// The id.
        token: u32,
        /// Tokens of the vocabulary.
        vocab: usize,
    },
    /// The constraint could not be set back to an earlier token.
    #[error("the answer's grammar cannot be followed: {reason}")]
    Constraint {
        /// Why not.
        reason: String,
    },
}
