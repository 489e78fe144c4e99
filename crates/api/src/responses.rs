//! The wire types of `/v1/responses`, as OpenAI's clients speak them.
//!
//! [`ResponsesRequest`] becomes a [`crate::GenerateRequest`], and [`ResponseStream`] folds its events into
//! the dialect's.

pub mod answer;
pub mod event;
mod input;
pub mod request;
pub mod stream;

pub use answer::{InputTokenCount, OutputItem, Response, ResponseDeleted, ResponseStatus};
pub use event::{EventBody, ResponseEvent};
pub use request::{ResponsesRequest, part_name};
pub use stream::{DeltaLen, Replay, ResponseStream};
