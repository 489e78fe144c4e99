//! Calls of tools and thoughts in the text of an answer: how a template prints them, and how they are read
//! back.

mod arguments;
mod bare;
mod format;
mod parse;
mod python;
mod tagged;
mod thoughts;

pub use arguments::{ToolParameters, ValueKinds};
pub use format::{CallFormat, CallOpening, CallPart};
pub use parse::{AnswerFormat, AnswerParser, AnswerPart};
pub use tagged::ParameterFormat;
pub use thoughts::{ThoughtFormat, effort_var};
