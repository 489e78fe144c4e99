//! Why the small model does not guess for another one.

use exo_tokenizer::TokenizerError;

/// Why the small model does not guess for another one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DraftMismatch {
    /// A token of one means something else in the other.
    #[error(
        "`{draft}` cannot guess ahead for `{model}`, their tokenizers differ: {difference}; start exo without --draft, or \
         with a draft model of the same tokenizer"
    )]
    Differ {
        /// The small model.
        draft: String,
        /// The other one.
        model: String,
        /// The first that was found.
        difference: Difference,
    },
    /// That of the other model cannot be built.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

/// The first difference between two vocabularies.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Difference {
    /// They have not as many tokens.
    #[error("{own} tokens against {other}")]
    Count {
        /// Of the small model.
        own: u32,
        /// Of the other one.
        other: u32,
    },
    /// A token is another text.
    #[error("token {id} is {own:?} against {other:?}")]
    Token {
        /// Id of the token.
        id: u32,
        /// In the small model.
        own: String,
        /// In the other one.
        other: String,
    },
}
