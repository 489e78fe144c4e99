//! The wire types of `/api/*`, as Ollama's clients speak them.
//!
//! [`OllamaRequest`] becomes a [`crate::GenerateRequest`], and [`OllamaStream`] folds its events into the
//! lines of the answer.

pub mod answer;
pub mod embed;
mod messages;
pub mod models;
mod options;
pub mod request;

pub use answer::{OllamaAnswer, OllamaStream, OllamaWhole};
pub use embed::{OllamaEmbed, OllamaEmbedding, OllamaEmbeddings, embed_part_name};
pub use models::{OllamaModels, OllamaPull, OllamaShow, OllamaVersion};
pub use request::{NamedModel, OllamaRequest, part_name};

use serde::Serialize;
use utoipa::ToSchema;

/// The name without the tag that stands for none.
pub fn untagged(name: &str) -> Option<&str> {
    name.strip_suffix(":latest")
}

/// The body of an answer that is not a success, and the last line of a stream that failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct OllamaError {
    /// What was attempted, with which numbers.
    pub error: String,
    /// Extension: stable, for programs, the same as in every dialect.
    pub code: String,
    /// Extension: the field to change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub param: Option<String>,
}
