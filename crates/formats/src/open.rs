//! The way in: a path to a model.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use crate::{Model, OpenError, gguf, hf};

/// Opens a `.gguf` file, or a Hugging Face folder (given as the folder, its `config.json` or one of its
/// `.safetensors` files). Reads headers and small JSON files, maps the rest.
pub fn open(path: &Path) -> Result<Model, OpenError> {
    let io_error = |attempt, source| OpenError::Io { attempt, path: path.to_owned(), source };
    let not_a_model = |reason: String| OpenError::NotAModel { path: path.to_owned(), reason };
    let metadata = fs::metadata(path).map_err(|e| io_error("find", e))?;
    if metadata.is_dir() {
        return hf::open_folder(path);
    }
    if !metadata.is_file() {
        return Err(not_a_model("it is neither a file nor a folder".to_owned()));
    }
    if starts_with_magic(path).map_err(|e| io_error("read", e))? {
        return gguf::open_file(path);
    }
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    if extension == "gguf" {
        return Err(not_a_model("it does not start with the letters GGUF".to_owned()));
    }
    if extension == "safetensors" || path.file_name().is_some_and(|n| n == hf::CONFIG) {
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
        return hf::open_folder(parent.unwrap_or(Path::new(".")));
    }
    Err(not_a_model("expected a GGUF file, or a folder with config.json and *.safetensors".to_owned()))
}

/// Opens a GGUF file that is in memory: embedded models, tests, fuzzing.
pub fn open_gguf_bytes(name: &str, bytes: Vec<u8>) -> Result<Model, OpenError> {
    gguf::open_bytes(name, bytes)
}

fn starts_with_magic(path: &Path) -> io::Result<bool> {
    let mut start = Vec::new();
    fs::File::open(path)?.take(gguf::MAGIC.len() as u64).read_to_end(&mut start)?;
    Ok(start == gguf::MAGIC)
}
