//! The GGUF container, versions 2 and 3: metadata keys, a table of tensors, then their bytes.
//!
//! [`Gguf::parse`] reads a header and nothing behind it. Every length is compared with what is left of the
//! file before memory is asked for, so a hostile header costs its own size.
//!
//! Source: ggml's `docs/gguf.md`.

mod header;
mod metadata;
mod model;
mod reader;
mod split;
mod tokenizer;
mod value;

pub(crate) use header::number_of;
pub use header::{Gguf, GgufTensor};
pub use metadata::Metadata;
pub use model::head_bytes_needed;
pub(crate) use model::{open_bytes, open_file};
pub use split::numbers_of;
pub use value::{Array, Value, ValueKind};

pub use crate::errors::GgufError;

/// The first four bytes of every GGUF file.
pub const MAGIC: [u8; 4] = *b"GGUF";
