//! Why a model could not be opened, or a tensor not be found. One enum per thing that was attempted.

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
    /// The file system said no.
    #[error("cannot {attempt} {}", path.display())]
    Io {
        /// What was attempted, for example "map".
        attempt: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Neither a GGUF file nor a Hugging Face folder.
    #[error("{} is not a model: {reason}", path.display())]
    NotAModel {
        /// What was offered.
        path: PathBuf,
        /// What is missing or unexpected.
        reason: String,
    },
    /// A file of a Hugging Face folder is a link to somewhere else.
    #[error(
        "{} leads to {}: a link in a model's folder may lead to a file in that folder, or to a blob of the same cache",
        link.display(), target.display()
    )]
    LinkOut {
        /// The link, or the path through one.
        link: PathBuf,
        /// Where it ends.
        target: PathBuf,
    },
    /// The GGUF header is malformed.
    #[error("{} is not a readable GGUF file", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// Which field, at which byte.
        source: GgufError,
    },
    /// A safetensors header is malformed.
    #[error("{} is not a readable safetensors file", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// Which field, at which byte.
        source: SafetensorsError,
    },
    /// A JSON file of a Hugging Face folder is malformed.
    #[error("{} is not readable", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: JsonError,
    },
    /// The configuration asks for something we cannot do, or contradicts itself.
    #[error("{} describes a model that cannot be run", path.display())]
    Config {
        /// The file with the configuration.
        path: PathBuf,
        /// Which field.
        source: ConfigError,
    },
    /// A model over several files, and one of them is not what it should be.
    #[error("{} cannot be opened with the other files of its model: {reason}", path.display())]
    Part {
        /// The file.
        path: PathBuf,
        /// Which part, and what is wrong with it.
        reason: String,
    },
    /// The tensors do not fit the configuration.
    #[error("the tensors of {} do not fit its configuration", path.display())]
    Layout {
        /// The file or folder.
        path: PathBuf,
        /// Which tensor.
        source: LayoutError,
    },
    /// The file became shorter while its header was read.
    #[error("{} changed while it was opened", path.display())]
    Lost {
        /// The file.
        path: PathBuf,
        /// Which mapping.
        source: SourceLost,
    },
}

/// What is wrong with a JSON file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JsonError {
    /// More bytes than such a file ever needs.
    #[error("it has {found_bytes} bytes, more than the {max_bytes} such a file may have")]
    TooLong {
        /// Its size.
        found_bytes: u64,
        /// The limit.
        max_bytes: u64,
    },
    /// Not JSON, or not the kind of value expected.
    #[error("it is not the JSON it should be")]
    Syntax(#[source] serde_json::Error),
    /// Text that is not UTF-8.
    #[error("it is not UTF-8 from byte {offset} on")]
    NotUtf8 {
        /// First bad byte.
        offset: u64,
    },
    /// A field holds another kind of value.
    #[error("`{field}` is {found}, expected {expected}")]
    Field {
        /// The field, dotted from the root.
        field: String,
        /// What it holds, cut short.
        found: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// A field that must be there is not.
    #[error("`{field}` is missing")]
    Missing {
        /// The field, dotted from the root.
        field: String,
    },
}

/// What is wrong with a safetensors header.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SafetensorsError {
    /// The length at byte 0 does not fit the file or the format's limit.
    #[error(
        "header length at byte 0 is {header_bytes}, the file has {file_bytes} bytes and a header may have {max_bytes}"
    )]
    HeaderLength {
        /// What the first eight bytes say.
        header_bytes: u64,
        /// Size of the file.
        file_bytes: u64,
        /// The format's limit.
        max_bytes: u64,
    },
    /// Fewer than eight bytes.
    #[error("the file has {file_bytes} bytes, too few for a header length")]
    TooShort {
        /// Size of the file.
        file_bytes: u64,
    },
    /// The header is not the JSON it should be.
    #[error("header at byte 8 is not the JSON it should be")]
    Syntax(#[source] serde_json::Error),
    /// A tensor's entry is impossible.
    #[error("tensor `{tensor}` in the header at byte 8: {problem}")]
    Tensor {
        /// The tensor.
        tensor: String,
        /// What is wrong, with numbers.
        problem: String,
    },
    /// The index names a tensor its file does not have.
    #[error("the index places `{tensor}` here, but the header does not list it")]
    NotInFile {
        /// The tensor.
        tensor: String,
    },
}

/// A configuration we cannot run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// An architecture we do not have.
    #[error("`{field}` is `{found}`; supported are {}", supported())]
    UnknownArchitecture {
        /// Where it says so.
        field: &'static str,
        /// What it says, cut short.
        found: String,
    },
    /// A feature we do not have.
    #[error("`{field}` is {found}: {reason}")]
    Unsupported {
        /// The field.
        field: String,
        /// Its value.
        found: String,
        /// Why not, and what to do where something can be done.
        reason: String,
    },
    /// A value outside of what makes sense.
    #[error("`{field}` is {found}, expected {expected}")]
    Value {
        /// The field.
        field: String,
        /// Its value.
        found: String,
        /// The range or relation that was broken.
        expected: String,
    },
    /// A field every model needs is not there.
    #[error("`{field}` is missing")]
    Missing {
        /// The field.
        field: String,
    },
}

fn supported() -> String {
    Architecture::ALL.map(Architecture::key).join(", ")
}

/// A tensor that contradicts the configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// The configuration needs it, the file lacks it.
    #[error("tensor `{tensor}` is missing")]
    Missing {
        /// The checkpoint's name for it.
        tensor: String,
    },
    /// A forward pass that ignored it would be wrong.
    #[error("tensor `{tensor}` is not part of a {architecture} model of {layers} layers")]
    Unexpected {
        /// The checkpoint's name for it.
        tensor: String,
        /// What the configuration says the model is.
        architecture: Architecture,
        /// How many layers it says.
        layers: u32,
    },
    /// Another shape than the configuration says.
    #[error("tensor `{tensor}` has shape {found:?}, expected {expected:?} (outputs first)")]
    Shape {
        /// The checkpoint's name for it.
        tensor: String,
        /// By the configuration.
        expected: Vec<u64>,
        /// In the file.
        found: Vec<u64>,
    },
    /// Norms and biases are stored as floats.
    #[error("tensor `{tensor}` is a vector stored as {found}, expected F32, F16 or BF16")]
    VectorType {
        /// The checkpoint's name for it.
        tensor: String,
        /// How it is stored.
        found: DType,
    },
    /// Two files hold it.
    #[error("tensor `{tensor}` is in `{first}` and again in `{second}`")]
    Twice {
        /// The checkpoint's name for it.
        tensor: String,
        /// One file.
        first: String,
        /// The other.
        second: String,
    },
}

/// Why [`crate::Model::tensor`] gave no view.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// No such tensor in this model.
    #[error("the model has no {name}")]
    Absent {
        /// What was asked for.
        name: TensorName,
    },
}
