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
#[allow(missing_docs)] // the messages say what the fields are
pub enum QuantError {
    /// The source is quantised, and no one said that rounding twice is meant.
    #[error("tensor {tensor} of {model} is {dtype} already; rounding it again to {target} loses twice")]
    AlreadyQuantised { model: String, tensor: String, dtype: DType, target: Target },
    #[error("the tokenizer of {model} cannot be written to a GGUF file")]
    Tokenizer { model: String, source: TokenizerError },
    #[error("{model} cannot be written to a GGUF file: {reason}")]
    NotConvertible { model: String, reason: String },
    /// A tensor that its own table of contents lists is not there.
    #[error("cannot read the tensors of {model}")]
    Tensor { model: String, source: TensorError },
    /// An element that is no number.
    #[error("tensor {tensor} has {value} in row {row}: the model is damaged")]
    NotFinite {
        tensor: String,
        /// From 0.
        row: u64,
        value: f32,
    },
    #[error(
        "tensor {tensor} has {value} in row {row}, more than {dtype} can hold: choose another type, for example bf16"
    )]
    TooLarge {
        tensor: String,
        /// From 0.
        row: u64,
        value: f32,
        dtype: DType,
    },
    #[error("{} is already there", path.display())]
    Exists { path: PathBuf },
    /// What has that name is a folder or a device, and not to be replaced.
    #[error("{} is there and is no file", path.display())]
    NotAFile { path: PathBuf },
    #[error("{} is the source itself", path.display())]
    IsSource { path: PathBuf },
    #[error("the file needs {needed_bytes} bytes, {} has {free_bytes} free", folder.display())]
    DiskFull {
        needed_bytes: u64,
        /// Free for this user.
        free_bytes: u64,
        folder: PathBuf,
    },
    #[error("cannot {attempt} {}", path.display())]
    Io {
        /// What was attempted, for example "write".
        attempt: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("the source changed while it was read")]
    Lost(#[from] SourceLost),
    #[error("stopped; no file was written")]
    Cancelled,
}
