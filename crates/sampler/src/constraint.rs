//! What a sampler asks of whatever restricts its tokens. Who answers is another crate's business.

use std::fmt::Debug;

/// Which tokens may come next: a fold over the generated tokens, so that whoever replays them stands where it
/// stood.
pub trait TokenConstraint: Debug + Send {
    /// Whether the token may come next. Cheaper than a mask.
    fn allows(&mut self, token: u32) -> Result<bool, ConstraintError>;

    /// One bit for each token of the vocabulary, the lowest bit of the first word first. Tokens beyond it may
    /// not come.
    fn mask(&mut self) -> Result<&[u32], ConstraintError>;

    /// Adds a token to the fold. One that may not come makes every later question an error.
    fn accept(&mut self, token: u32);

    /// The token that ends an answer which cannot go on.
    fn end_token(&self) -> u32;

    /// Tokens that spell the only text that may come next, as far as there is only one. The same text may
    /// come in other tokens.
    fn forced(&mut self) -> Vec<u32> {
        Vec::new()
    }
}

/// The grammar cannot be kept to any further.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConstraintError {
    /// The tokens so far are none that the grammar has.
    #[error("token {token} does not belong to the grammar where it stands")]
    NotAllowed {
        /// The first such token.
        token: u32,
    },
    /// A counted bound of the engine was reached, or it failed.
    #[error("the grammar's engine gave up: {reason}")]
    Engine {
        /// What it said.
        reason: String,
    },
    /// The grammar wants bytes that no token of the vocabulary has.
    #[error("no token of the vocabulary can come next")]
    NoToken,
}
