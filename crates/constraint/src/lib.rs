//! Which tokens may come next so that an answer keeps to a grammar.
//!
//! A driver words what an answer must look like as a grammar ([`Layout`]), and [`Compiler::constrain`] makes
//! the [`exo_types::Constraint`] that travels with the sequence. Whoever samples folds over the tokens with
//! [`Compiler::start`], and so does the driver, which checks every token. Engine, vocabulary and every bound
//! are the same everywhere and are counted, never timed: all machines decide alike.
//!
//! JSON schemas are walked by [`Schema`] before the engine sees them. It names the place of what cannot be
//! enforced; the engine does not, and takes some things more loosely than they are meant.
//!
//! **Architecture invariant:** no tokenizer and no model. A vocabulary is a list of bytes, a grammar a text.
//! The engine (`llguidance`) is named nowhere else.
//!
//! Start reading at [`Compiler`].

#![forbid(unsafe_code)]

mod closing;
mod compiler;
mod errors;
mod exclusive;
mod fold;
mod formats;
mod lark;
mod layout;
mod literals;
mod lookaround;
mod merge;
mod patterns;
mod schema;
mod scout;
mod search;
mod shape;
mod signs;
mod tagged;
mod texts;
mod vocabulary;

pub use compiler::{Compiler, ENGINE};
pub use errors::{CompileError, SchemaError};
pub use fold::Fold;
pub use lark::check_lark;
pub use layout::{Arguments, Body, CallShape, Calls, Layout, Part, TemplatePiece, Thought};
pub use schema::{Schema, Strictness};
pub use scout::Spelling;
pub use search::ToolSearch;
pub use shape::{Tags, ValueKinds};
pub use tagged::TaggedArguments;
pub use vocabulary::{TokenKind, Vocabulary};
