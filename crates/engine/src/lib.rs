//! One shard at work: its weights, its key-value cache, and the steps it is asked to do.
//!
//! An [`Engine`] is loaded once and then stepped. A step carries any mixture of prompt chunks and single
//! tokens of several sequences; it takes token ids (first stage) or hidden rows (later stages) and gives
//! hidden rows or, on the last stage, sampled tokens. A row's result does not depend on what else is in its
//! step, so every way to cut a prompt, to batch and to split a model gives the same bits (for one size of
//! page, see [`EngineOptions`]).
//!
//! Whatever a step asks for, the answer is a result or a typed error, and the engine stays usable: a step
//! that fails advances no sequence and keeps no page. Where only the tokens of some sequences cannot be
//! drawn, only these fail.
//!
//! **Architecture invariant:** knows no network, no tokenizer and no concrete device. One caller at a time;
//! who may step and when is decided above.
//!
//! Start reading at [`Engine::load`] and [`Engine::step`].

#![forbid(unsafe_code)]

mod drafter;
mod engine;
mod errors;
mod host_batch;
mod load;
mod options;
mod pages;
mod plan;
mod prompt;
mod report;
mod score;
mod sequence;
mod step;
mod verify;
mod weights;

pub use drafter::{DraftLimits, DraftRequest, Drafter};
pub use engine::Engine;
pub use errors::{LoadError, SequenceError, StepError};
pub use exo_models::tensor_shape;
pub use options::{EngineOptions, EngineReport, LoadProgress, PAGE_TOKENS, Sampled, StepInput, StepOutput};
pub use sequence::StartConstraint;
