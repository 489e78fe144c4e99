//! The way in: a path to a model.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use crate::{Model, OpenError, gguf, hf};

/// Folder names that say nothing about the model inside; its name is then that of the folder around.
const PLAIN_FOLDERS: [&str; 4] = ["hf", "model", "checkpoint", "files"];
const NAME_CHARS_MAX: usize = 128;

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

/// A file's name without `.gguf` and the number of a part.
pub(crate) fn name_of_file(path: &Path) -> String {
    let name = path.file_name().map(|n| n.to_string_lossy()).unwrap_or_default();
    let stem = match gguf::numbers_of(&name) {
        Some((base, ..)) => base,
        None => name.strip_suffix(".gguf").unwrap_or(&name),
    };
    clean(stem)
}

/// A folder's name; in Hugging Face's cache, the name of the repository.
pub(crate) fn name_of_folder(path: &Path) -> String {
    let whole = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let names: Vec<_> = whole.iter().rev().map(|n| n.to_string_lossy()).take(3).collect();
    let name_at = |i: usize| names.get(i).map(|n| n.as_ref()).unwrap_or_default();
    // models--Qwen--Qwen3-0.6B/snapshots/<hash>
    if let Some(repository) = name_at(2).strip_prefix("models--").filter(|_| name_at(1) == "snapshots") {
        return clean(repository.rsplit("--").next().unwrap_or(repository));
    }
    let is_plain = PLAIN_FOLDERS.contains(&name_at(0)) && names.len() > 1;
    clean(name_at(usize::from(is_plain)))
}

/// Fit to be shown and to be typed, not endless, not empty.
fn clean(name: &str) -> String {
    let kept = exo_types::clean_name(name, NAME_CHARS_MAX);
    if kept.is_empty() { "model".to_owned() } else { kept }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_what_a_person_would_call_the_model() {
        assert_eq!(name_of_file(Path::new("/a/tiny-llama-Q8_0.gguf")), "tiny-llama-Q8_0");
        assert_eq!(name_of_file(Path::new("/a/big-Q8_0-00001-of-00003.gguf")), "big-Q8_0");
        let folder = |p: &str| name_of_folder(Path::new(p));
        assert_eq!(folder("/nowhere/models--Qwen--Qwen3-0.6B/snapshots/0123abcd"), "Qwen3-0.6B");
        assert_eq!(folder("/nowhere/tiny-llama/hf"), "tiny-llama");
        assert_eq!(folder("/nowhere/Llama-3.2-1B"), "Llama-3.2-1B");
        assert_eq!(clean("a\n\u{202E}\x1bb\u{200B}"), "ab");
    }
}
