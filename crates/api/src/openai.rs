//! The wire types of `/v1/*`, as OpenAI's clients speak them.
//!
//! **A parameter is honoured or refused, never accepted and ignored.** Requests are read field by field
//! ([`crate::fields`]): a wrong type names the field, an unknown field is named, and of the fields that
//! OpenAI has and we do not, only the values that ask for nothing pass. What becomes of which field is one
//! [`crate::table`].

pub mod chat;
pub mod chat_response;
pub mod common;
pub mod completion;
pub mod completion_response;
pub mod embeddings;
pub mod error;
pub mod format;
pub mod models;
pub mod tokens;
pub mod tools;
pub mod usage;

pub use chat::ChatRequest;
pub use chat_response::{ChatChunk, ChatCompletion};
pub use common::{CommonFields, StreamOptions};
pub use completion::CompletionRequest;
pub use completion_response::Completion;
pub use embeddings::{EmbeddingList, EmbeddingsRequest, Encoding};
pub use error::{ErrorBody, ErrorDetail};
pub use models::{ModelList, ModelObject};
pub use tokens::{Detokenized, RenderedPrompt, Tokenized, TokensBody};
pub use usage::UsageBody;
