//! Who a node is to others: signatures, and the words that people compare.
//!
//! A node is its Ed25519 key, and its [`NodeId`](exo_types::NodeId) is the public half.
//!
//! **Architecture invariant:** no secret key is ever here.

#![forbid(unsafe_code)]

mod check_words;
mod signature;

pub use check_words::check_words;
pub use signature::{SIGNATURE_BYTES, is_sound_key, verify_signature};
