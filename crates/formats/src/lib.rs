//! Model files to a description and a table of tensors: GGUF files and Hugging Face folders.
//!
//! [`open`] reads headers only. Tensor bytes stay in the mapped file until somebody looks at them through
//! [`Model::tensor`], so a node that holds layers 8..16 never touches the pages of the others, and a partial
//! (sparse) copy opens as long as its headers are there.
//!
//! Model files come from strangers. Whatever they contain, the answer is a [`Model`] or an error that names
//! the field (and the byte offset where there is one); never a panic, and never memory beyond a small
//! multiple of what the file itself occupies.
//!
//! **Architecture invariant:** nothing here computes with weights: no dequantisation, no tensor arithmetic.
//! Checkpoint names (`q_proj`, `blk.3.attn_q`) end at this border; above it a tensor is a [`TensorName`].
//!
//! Start reading at [`open`] and [`Model`].

#![deny(unsafe_code)] // only `mapped` may, and says why

mod config;
mod embedding;
mod errors;
pub mod gguf;
mod hf;
mod layout;
mod mapped;
mod model;
mod names;
mod open;
mod rope;
mod texts;
mod tokenizer;
pub mod write;

pub use config::{Architecture, ModelConfig, RopeConfig, RopeStyle};
pub use embedding::{EmbeddingInfo, EmbeddingLengths};
pub use errors::{ConfigError, JsonError, LayoutError, OpenError, SafetensorsError, TensorError};
pub use mapped::MappedFile;
pub use model::{FileRange, Model, ModelFile, ModelKind, Packed};
pub use names::{LayerTensor, TensorName};
pub use open::{open, open_gguf_bytes};
pub use texts::Texts;
pub use tokenizer::{GgufTokenizer, TokenizerSource};

/// For fuzz targets: parsers that no other function reaches with bytes alone.
#[doc(hidden)]
pub mod fuzzing {
    /// Reads bytes as a safetensors file; a header must not make it panic.
    pub fn safetensors(bytes: &[u8]) {
        let _ = crate::hf::tensors_listed(bytes);
    }
}
