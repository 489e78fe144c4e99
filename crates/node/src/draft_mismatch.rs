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
    Differ { draft: String, model: String, difference: Difference },
    /// That of the other model cannot be built.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

/// The first difference between two vocabularies.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Difference {
    #[error("{own} tokens against {other}")]
    Count { own: u32, other: u32 },
    #[error("token {id} is {own:?} against {other:?}")]
    Token { id: u32, own: String, other: String },
}
