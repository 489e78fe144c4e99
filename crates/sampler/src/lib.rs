//! Logits to token: greedy, temperature, top-k, typical-p, top-p, min-p, penalties, from a seed.
//!
//! A [`Sampler`] is a pure fold over the tokens of one sequence. Nothing else decides: the draw at a position
//! comes from (seed, position) alone, so a fresh sampler given the same tokens continues exactly where
//! another left off. That is what lets any worker take over the last stage.
//!
//! The order of the steps is part of the contract (two stages must agree to the bit):
//!
//! 1. log-probabilities, where asked for, from the raw logits;
//! 2. logit bias, repetition penalty (prompt and generated), then presence and frequency penalty (generated),
//!    each over the last tokens only where a window is given;
//! 3. where there is a [`TokenConstraint`], only the tokens that it allows;
//! 4. at temperature 0 the greatest logit, the lowest id among equals;
//! 5. otherwise top-k, typical-p, top-p, min-p, each over what the one before kept, then temperature, then
//!    one draw.
//!
//! Step 5 is llama.cpp's default chain: the filters look at the model's own distribution, the temperature
//! comes last. So a token that top-p dropped stays dropped however hot the sampling.
//!
//! A constraint that has no token left, or gave up, ends the answer with an end token: other sequences of the
//! step go on, and the driver, which folds over the same tokens, sees an end where none may be and says why.
//!
//! **Architecture invariant:** no clock, no global randomness, no memory of anything but the tokens it was
//! given.
//!
//! Start reading at [`Sampler::sample`].

#![forbid(unsafe_code)]

mod constraint;
mod draw;
mod errors;
mod filter;
mod logprobs;
mod passes;
mod penalties;
mod sampler;

pub use constraint::{ConstraintError, TokenConstraint};
pub use errors::SampleError;
pub use sampler::{Sampler, score};
