//! What can be wrong with a grammar.

#![allow(missing_docs)] // the messages say what the fields are

/// A grammar that no answer can be held to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    #[error("the grammar has {bytes} bytes, at most {max} are taken")]
    TooLong { bytes: usize, max: usize },
    /// The engine refused it, warned of it, or reached one of its bounds.
    #[error("{reason}")]
    Refused { reason: String },
    /// It was worded for another engine or another vocabulary.
    #[error("the grammar was made for {wanted}, this node has {own}")]
    Differs { wanted: String, own: String },
    /// No token of the vocabulary ends an answer, so that none could be complete.
    #[error("the model has no token that ends an answer")]
    NoEnd,
}

/// A schema that cannot be enforced as it is meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at `{pointer}`: {reason}")]
pub struct SchemaError {
    /// Where in the schema, as a JSON Pointer; `#` is its root.
    pub pointer: String,
    pub reason: String,
}

impl SchemaError {
    /// At the end of a path of names.
    pub(crate) fn at(path: &[String], reason: impl Into<String>) -> Self {
        let escaped = path.iter().map(|part| part.replace('~', "~0").replace('/', "~1"));
        let pointer = escaped.fold("#".to_owned(), |at, part| format!("{at}/{part}"));
        Self { pointer: pointer.chars().take(200).collect(), reason: reason.into() }
    }
}

/// The engine's words without backtraces and the text of the grammar.
pub(crate) fn shorten(reason: &str) -> String {
    let line = reason.split("\n<").next().unwrap_or_default();
    let clean: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect();
    clean.trim().to_owned()
}

/// Whether the engine says that no token can come next: it never gives a mask without any.
pub(crate) fn says_no_token(reason: &str) -> bool {
    reason.trim_start().starts_with("NoExtensionBias")
}
