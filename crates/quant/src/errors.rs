//! Why no file was made.

use std::io;
use std::path::PathBuf;

use exo_formats::TensorError;
use exo_tokenizer::TokenizerError;
use exo_types::{DType, SourceLost};

use crate::Target;

impl QuantError {
    /// Stable, for whoever chooses by it.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::AlreadyQuantised { .. } => "already_quantised",
            Self::Exists { .. } => "file_exists",
            Self::IsSource { .. } => "file_is_source",
            Self::NotAFile { .. } => "not_a_file",
            Self::DiskFull { .. } => "disk_full",
            _ => "model_not_converted",
        }
    }
}

/// Why there is no new file. Whatever happened, nothing is left behind and an older file is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantError {
    /// The source is quantised, and nobody said that rounding twice is meant.
    #[error("tensor {tensor} of {model} is {dtype} already; rounding it again to {target} loses twice")]
    AlreadyQuantised {
        /// Model of the tensor.
        model: String,
        /// The first such tensor.
        tensor: String,
        /// Its type.
        dtype: DType,
        /// What was asked for.
        target: Target,
    },
    /// The tokenizer has no counterpart in a GGUF file.
    #[error("the tokenizer of {model} cannot be written to a GGUF file")]
    Tokenizer {
        /// Model of the tokenizer.
        model: String,
        /// What has no counterpart.
        source: TokenizerError,
    },
    /// Something else of the model has no counterpart.
    #[error("{model} cannot be written to a GGUF file: {reason}")]
    NotConvertible {
        /// The model.
        model: String,
        /// Why it cannot be converted.
        reason: String,
    },
    /// A tensor that its own table of contents lists is not there.
    #[error("cannot read the tensors of {model}")]
    Tensor {
        /// Model of the tensor.
        model: String,
        /// The source.
        source: TensorError,
    },
    /// An element that is no number.
    #[error("tensor {tensor} has {value} in row {row}: the model is damaged")]
    NotFinite {
        /// The tensor.
        tensor: String,
        /// From 0.
        row: u64,
        /// The first one.
        value: f32,
    },
    /// An element beyond what the type holds.
    #[error(
        "tensor {tensor} has {value} in row {row}, more than {dtype} can hold: choose another type, for example bf16"
    )]
    TooLarge {
        /// The tensor.
        tensor: String,
        /// From 0.
        row: u64,
        /// The largest of the row.
        value: f32,
        /// The type it was to get.
        dtype: DType,
    },
    /// There is a file of that name.
    #[error("{} is already there", path.display())]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// What has that name is a folder or a device, and not to be replaced.
    #[error("{} is there and is no file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The new file would replace what it is made from.
    #[error("{} is the source itself", path.display())]
    IsSource {
        /// The path.
        path: PathBuf,
    },
    /// Too little space.
    #[error("the file needs {needed_bytes} bytes, {} has {free_bytes} free", folder.display())]
    DiskFull {
        /// Length of the new file.
        needed_bytes: u64,
        /// Free for this user.
        free_bytes: u64,
        /// Where it should be.
        folder: PathBuf,
    },
    /// The file system said no.
    #[error("cannot {attempt} {}", path.display())]
    Io {
        /// What was attempted, for example "write".
        attempt: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The source changed while it was read.
    #[error("the source changed while it was read")]
    Lost(#[from] SourceLost),
    /// The caller said stop.
    #[error("stopped; no file was written")]
    Cancelled,
}
