//! The GGUF container, versions 2 and 3.

/// A GGUF header that cannot be: which field, at which byte, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} at byte {offset}: {problem}")]
pub struct GgufError {
    /// The field, for example "length of the key of metadata entry 3".
    pub field: String,
    /// Where the field starts.
    pub offset: u64,
    /// What is wrong, with numbers.
    pub problem: String,
}
