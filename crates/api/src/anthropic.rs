//! The wire types of `/v1/messages`, as Anthropic's clients speak them, and of `/v1/models` in their shape.
//!
//! [`MessagesRequest`] becomes a [`crate::GenerateRequest`], and [`MessageStream`] folds its events into the
//! dialect's.

pub mod answer;
mod blocks;
pub mod error;
pub mod models;
pub mod request;
pub mod stream;

pub use answer::{ContentBlock, Message, MessageEvent, MessageUsage, StopReason, TokenCount};
pub use error::{MessagesError, MessagesErrorCause, MessagesErrorDetail};
pub use models::{ModelInfo, ModelPage, PageQuery};
pub use request::{MessagesRequest, Thoughts, part_name};
pub use stream::MessageStream;
