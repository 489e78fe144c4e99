//! Why a model could not be opened, or a tensor not be found. One enum per thing that was attempted.

#![allow(missing_docs)] // the messages say what the fields are

use std::io;
use std::path::PathBuf;

use exo_types::{DType, SourceLost};

use crate::{Architecture, TensorName};

/// A GGUF header that cannot be: which field, at which byte, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} at byte {offset}: {problem}")]
pub struct GgufError {
    /// The field, for example "length of the key of metadata entry 3".
    pub field: String,
    /// Where the field starts.
    pub offset: u64,
    /// What is wrong, with numbers.
    pub problem: String,
}

/// Why [`crate::open`] gave no model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    #[error("cannot {attempt} {}", path.display())]
    Io { attempt: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is not a model: {reason}", path.display())]
    NotAModel { path: PathBuf, reason: String },
    /// A file of a Hugging Face folder is a link to somewhere else.
    #[error(
        "{} leads to {}: a link in a model's folder may lead to a file in that folder, or to a blob of the same cache",
        link.display(), target.display()
    )]
    LinkOut { link: PathBuf, target: PathBuf },
    #[error("{} is not a readable GGUF file", path.display())]
    Gguf { path: PathBuf, source: GgufError },
    #[error("{} is not a readable safetensors file", path.display())]
    Safetensors { path: PathBuf, source: SafetensorsError },
    #[error("{} is not readable", path.display())]
    Json { path: PathBuf, source: JsonError },
    #[error("{} describes a model that cannot be run", path.display())]
    Config { path: PathBuf, source: ConfigError },
    /// A model over several files, and one of them is not what it should be.
    #[error("{} cannot be opened with the other files of its model: {reason}", path.display())]
    Part { path: PathBuf, reason: String },
    #[error("the tensors of {} do not fit its configuration", path.display())]
    Layout { path: PathBuf, source: LayoutError },
    #[error("{} changed while it was opened", path.display())]
    Lost { path: PathBuf, source: SourceLost },
}

/// What is wrong with a JSON file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JsonError {
    #[error("it has {found_bytes} bytes, more than the {max_bytes} such a file may have")]
    TooLong { found_bytes: u64, max_bytes: u64 },
    #[error("it is not the JSON it should be")]
    Syntax(#[source] serde_json::Error),
    #[error("it is not UTF-8 from byte {offset} on")]
    NotUtf8 { offset: u64 },
    #[error("`{field}` is {found}, expected {expected}")]
    Field { field: String, found: String, expected: &'static str },
    #[error("`{field}` is missing")]
    Missing { field: String },
}

/// What is wrong with a safetensors header.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SafetensorsError {
    #[error(
        "header length at byte 0 is {header_bytes}, the file has {file_bytes} bytes and a header may have {max_bytes}"
    )]
    HeaderLength { header_bytes: u64, file_bytes: u64, max_bytes: u64 },
    #[error("the file has {file_bytes} bytes, too few for a header length")]
    TooShort { file_bytes: u64 },
    #[error("header at byte 8 is not the JSON it should be")]
    Syntax(#[source] serde_json::Error),
    #[error("tensor `{tensor}` in the header at byte 8: {problem}")]
    Tensor { tensor: String, problem: String },
    #[error("the index places `{tensor}` here, but the header does not list it")]
    NotInFile { tensor: String },
}

/// A configuration we cannot run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    #[error("`{field}` is `{found}`; supported are {}", supported())]
    UnknownArchitecture { field: &'static str, found: String },
    #[error("`{field}` is {found}: {reason}")]
    Unsupported { field: String, found: String, reason: String },
    #[error("`{field}` is {found}, expected {expected}")]
    Value { field: String, found: String, expected: String },
    #[error("`{field}` is missing")]
    Missing { field: String },
}

fn supported() -> String {
    Architecture::ALL.map(Architecture::key).join(", ")
}

/// A tensor that contradicts the configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    #[error("tensor `{tensor}` is missing")]
    Missing { tensor: String },
    /// A forward pass that ignored it would be wrong.
    #[error("tensor `{tensor}` is not part of a {architecture} model of {layers} layers")]
    Unexpected { tensor: String, architecture: Architecture, layers: u32 },
    #[error("tensor `{tensor}` has shape {found:?}, expected {expected:?} (outputs first)")]
    Shape { tensor: String, expected: Vec<u64>, found: Vec<u64> },
    #[error("tensor `{tensor}` is a vector stored as {found}, expected F32, F16 or BF16")]
    VectorType { tensor: String, found: DType },
    #[error("tensor `{tensor}` is in `{first}` and again in `{second}`")]
    Twice { tensor: String, first: String, second: String },
}

/// Why [`crate::Model::tensor`] gave no view.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    #[error("the model has no {name}")]
    Absent { name: TensorName },
}
