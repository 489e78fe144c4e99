//! A model to a GGUF file of another type: floats to blocks, with the mixes of types that llama.cpp makes.
//!
//! The quantisers search for their scales (weighted least squares); the files they make load wherever such
//! files load. A model is read tensor by tensor from its mapped files, rows are quantised on all threads, and
//! the new file takes its name only when it is complete and on the disk.
//!
//! **Memory.** Besides the new file's header (tokens and merges included): [`BATCH_BYTES`] of finished blocks
//! and, for each thread, two rows of f32. The source's pages belong to the system and are given back batch by
//! batch.
//!
//! **Architecture invariant:** no terminal and no clock; who asks shows progress and decides when to stop. A
//! row's blocks depend on its elements alone, so the file does not depend on the number of threads.
//!
//! Start reading at [`Conversion::new`] and [`Conversion::run`].

#![forbid(unsafe_code)]

mod blocks;
mod conversion;
mod errors;
mod fit;
mod keys;
mod mix;
mod output;
mod report;
mod rope;
mod rows;
mod source;
mod target;

pub use blocks::{TYPES, quantise_row};
pub use conversion::{Conversion, Options, Progress};
pub use errors::QuantError;
pub use mix::matrix_type;
pub use report::{Report, TypeReport};
pub use rows::BATCH_BYTES;
pub use target::{Target, UnknownTarget};
