//! Calls of tools and thoughts in the text of an answer: how a template prints them, and how they are read back.

mod format;
mod parse;

pub use format::{CallFormat, CallPart, ThoughtFormat};
pub use parse::{AnswerFormat, AnswerParser, AnswerPart};
