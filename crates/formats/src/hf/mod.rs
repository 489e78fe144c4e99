//! hf
