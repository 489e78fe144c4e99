//! The way in: a path to a model.

use std::path::Path;

use crate::{Model, OpenError};

/// Opens a `.gguf` file, or a Hugging Face folder (given as the folder, its `config.json` or one of its
/// `.safetensors` files). Reads headers and small JSON files, maps the rest.
pub fn open(path: &Path) -> Result<Model, OpenError> {
    Err(OpenError::NotAModel { path: path.to_owned(), reason: String::new() })
}

/// Opens a GGUF file that is in memory: embedded models, tests, fuzzing.
pub fn open_gguf_bytes(name: &str, bytes: Vec<u8>) -> Result<Model, OpenError> {
    let _ = bytes;
    Err(OpenError::NotAModel { path: name.into(), reason: String::new() })
}
