//! A whole folder: which files it needs, and what each gives.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use exo_types::ByteSource;
use serde_json::Value;

use super::config::{self, Problem};
use super::contained::Contained;
use super::{json, pooling, safetensors};
use crate::layout::{self, TensorEntry};
use crate::model::model_name;
use crate::names::Dialect;
use crate::{
    EmbeddingInfo, JsonError, MappedFile, Model, ModelConfig, ModelFile, ModelKind, OpenError,
    SafetensorsError, TokenizerSource,
};

/// The file every folder has.
pub(crate) const CONFIG: &str = "config.json";
const GENERATION: &str = "generation_config.json";
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const TEMPLATE: &str = "chat_template.jinja";
const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
/// Folder names that say nothing about the model inside; its name is then that of the folder around.
const PLAIN_FOLDERS: [&str; 4] = ["hf", "model", "checkpoint", "files"];

// Limits far above real files: the largest tokenizers have 35 MB, the largest index some 20 MB.
const CONFIG_BYTES_MAX: u64 = 4 << 20;
const TEMPLATE_BYTES_MAX: u64 = 4 << 20;
const TOKENIZER_CONFIG_BYTES_MAX: u64 = 16 << 20;
const INDEX_BYTES_MAX: u64 = 64 << 20;
const TOKENIZER_BYTES_MAX: u64 = 128 << 20;
const WEIGHT_FILES_MAX: usize = 2000;

/// Opens the folder.
pub(crate) fn open_folder(folder: &Path) -> Result<Model, OpenError> {
    let contained = Contained::new(folder)?;
    let config_path = contained.path(CONFIG)?;
    let config_json = json::read_object(&config_path, CONFIG_BYTES_MAX)?
        .ok_or_else(|| not_a_model(folder, format!("there is no {CONFIG} in it{}", gguf_hint(folder))))?;
    let generation = json::read_object(&contained.path(GENERATION)?, CONFIG_BYTES_MAX)?;
    let mut config = config::read(&config_json, generation.as_ref()).map_err(|problem| match problem {
        Problem::Json(source) => OpenError::Json { path: config_path.clone(), source },
        Problem::Config(source) => OpenError::Config { path: config_path.clone(), source },
    })?;
    let tokenizer_json = json::read_bytes(&contained.path(TOKENIZER)?, TOKENIZER_BYTES_MAX)?
        .ok_or_else(|| not_a_model(folder, format!("there is no {TOKENIZER} in it")))?;
    let tokenizer_config = json::read_object(&contained.path(TOKENIZER_CONFIG)?, TOKENIZER_CONFIG_BYTES_MAX)?;
    add_named_end(&mut config, tokenizer_config.as_ref());
    let chat_template = read_template(&contained, tokenizer_config.as_ref())?;
    let pooling = pooling::read(&contained)?;
    let embedding = EmbeddingInfo { pooling: pooling.pooling, ..config::read_embedding(&config_json) };
    let weights = Weights::open(folder, &contained)?;
    let small = [CONFIG, GENERATION, TOKENIZER, TOKENIZER_CONFIG, TEMPLATE, INDEX];
    let small = small.iter().map(|name| Ok(small_file(contained.path(name)?, name)));
    let small = small.filter_map(Result::transpose).collect::<Result<Vec<_>, OpenError>>()?;
    let model = weights.into_model(folder, config, small, |config, files, sources, tensors| Model {
        name: name_of_folder(folder),
        kind: ModelKind::HuggingFace,
        config,
        tokenizer: TokenizerSource::Json { tokenizer_json, tokenizer_config },
        chat_template,
        embedding,
        files,
        sources,
        tensors,
    });
    Ok(with_files(model?, pooling.files))
}

/// More small files, behind the others: theirs keep their numbers.
fn with_files(mut model: Model, more: Vec<(String, PathBuf)>) -> Model {
    model.files.extend(more.into_iter().filter_map(|(name, path)| small_file(path, &name)));
    model.sources.resize(model.files.len(), None);
    model
}

fn not_a_model(folder: &Path, reason: String) -> OpenError {
    OpenError::NotAModel { path: folder.to_owned(), reason }
}

/// A person who names the folder of a GGUF file gets told its name.
fn gguf_hint(folder: &Path) -> String {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(1000);
    let mut names: Vec<_> = entries.map(|e| e.file_name()).collect();
    names.retain(|n| Path::new(n).extension().is_some_and(|e| e == "gguf"));
    names.sort();
    names.first().map_or_else(String::new, |n| format!("; perhaps you mean the file {}", n.to_string_lossy()))
}

fn small_file(path: PathBuf, name: &str) -> Option<ModelFile> {
    let metadata = fs::metadata(&path).ok().filter(|m| m.is_file())?;
    let len = metadata.len();
    Some(ModelFile { path, name: name.to_owned(), len, head_bytes: len, shared: Vec::new() })
}

/// The tokenizer's own end token, which chat models sometimes name there only. It is given as text;
/// `added_tokens_decoder` knows its id.
fn add_named_end(config: &mut ModelConfig, tokenizer_config: Option<&Value>) {
    let Some(tokenizer) = tokenizer_config else { return };
    let text = |v: &Value| v.as_str().or_else(|| v.get("content")?.as_str()).map(str::to_owned);
    let Some(end) = tokenizer.get("eos_token").and_then(text) else { return };
    let Some(added) = tokenizer.get("added_tokens_decoder").and_then(Value::as_object) else { return };
    let named = added.iter().find(|(_, token)| text(token).as_deref() == Some(end.as_str()));
    if let Some(id) = named.and_then(|(id, _)| id.parse().ok()).filter(|id| *id < config.vocab) {
        config.eos.push(id);
        config.eos.sort_unstable();
        config.eos.dedup();
    }
}

/// The template: a file of its own wins over the one in `tokenizer_config.json`, as in transformers.
fn read_template(
    contained: &Contained<'_>,
    tokenizer_config: Option<&Value>,
) -> Result<Option<String>, OpenError> {
    if let Some(text) = json::read_text(&contained.path(TEMPLATE)?, TEMPLATE_BYTES_MAX)? {
        return Ok(Some(text));
    }
    let Some(value) = tokenizer_config.and_then(|t| json::get(t, "chat_template")) else { return Ok(None) };
    if let Some(text) = value.as_str() {
        return Ok(Some(text.to_owned()));
    }
    let wrong =
        || json::wrong("chat_template", value, "a string, or a list of objects with name and template");
    let list = value.as_array().ok_or_else(wrong).map_err(json::at(&contained.path(TOKENIZER_CONFIG)?))?;
    let named = |name: &str| {
        let found = list.iter().find(|t| t.get("name").and_then(Value::as_str) == Some(name))?;
        found.get("template")?.as_str().map(str::to_owned)
    };
    Ok(named("default"))
}

/// The safetensors files of a folder, mapped, with their headers read.
struct Weights {
    names: Vec<String>,
    maps: Vec<Arc<dyn ByteSource>>,
    headers: Vec<safetensors::Header>,
}

impl Weights {
    fn open(folder: &Path, contained: &Contained<'_>) -> Result<Self, OpenError> {
        // As in transformers: the single file wins over an index.
        let index = if folder.join(SINGLE).exists() { None } else { read_index(contained)? };
        let names: Vec<String> = match &index {
            Some(index) => index.values().cloned().collect::<BTreeSet<_>>().into_iter().collect(),
            None => vec![single_file(folder)?],
        };
        if names.len() > WEIGHT_FILES_MAX {
            let reason =
                format!("its index names {} files, at most {WEIGHT_FILES_MAX} are allowed", names.len());
            return Err(not_a_model(folder, reason));
        }
        let mut weights = Self { names, maps: Vec::new(), headers: Vec::new() };
        for name in &weights.names {
            let (map, header) = open_weights(&contained.path(name)?)?;
            weights.maps.push(map);
            weights.headers.push(header);
        }
        weights.check_index(folder, index.unwrap_or_default())?;
        Ok(weights)
    }

    fn check_index(&self, folder: &Path, index: BTreeMap<String, String>) -> Result<(), OpenError> {
        let held: Vec<BTreeSet<&str>> =
            self.headers.iter().map(|h| h.entries.iter().map(|e| e.name.as_str()).collect()).collect();
        for (tensor, file) in index {
            let holds =
                self.names.iter().position(|n| *n == file).is_some_and(|i| held[i].contains(tensor.as_str()));
            if !holds {
                let source = SafetensorsError::NotInFile { tensor };
                return Err(OpenError::Safetensors { path: folder.join(file), source });
            }
        }
        Ok(())
    }

    /// Joins the weights with everything else. Small files come first, so a weight file's index moves.
    fn into_model(
        self,
        folder: &Path,
        mut config: ModelConfig,
        mut files: Vec<ModelFile>,
        build: impl FnOnce(
            ModelConfig,
            Vec<ModelFile>,
            Vec<Option<Arc<dyn ByteSource>>>,
            BTreeMap<crate::TensorName, crate::model::TensorLocation>,
        ) -> Model,
    ) -> Result<Model, OpenError> {
        let mut sources: Vec<Option<Arc<dyn ByteSource>>> = vec![None; files.len()];
        let mut found = Vec::new();
        for ((name, map), header) in self.names.into_iter().zip(self.maps).zip(self.headers) {
            let file = files.len();
            let (path, len) = (folder.join(&name), map.bytes().len() as u64);
            map.check().map_err(|source| OpenError::Lost { path: path.clone(), source })?;
            files.push(ModelFile { path, name, len, head_bytes: header.head_bytes, shared: Vec::new() });
            sources.push(Some(map));
            found.extend(header.entries.into_iter().map(|e| TensorEntry {
                checkpoint_name: e.name,
                file,
                dtype: e.dtype,
                shape: e.shape,
                range: e.range,
            }));
        }
        let names: Vec<String> = files.iter().map(|f| f.name.clone()).collect();
        let tensors = layout::arrange(&mut config, Dialect::HuggingFace, found, &names)
            .map_err(|source| OpenError::Layout { path: folder.to_owned(), source })?;
        Ok(build(config, files, sources, tensors))
    }
}

fn open_weights(path: &Path) -> Result<(Arc<dyn ByteSource>, safetensors::Header), OpenError> {
    let io_error = |source| OpenError::Io { attempt: "map", path: path.to_owned(), source };
    if !fs::metadata(path).map_err(io_error)?.is_file() {
        return Err(not_a_model(path, "it is not a regular file".to_owned()));
    }
    let map = MappedFile::open(path).map_err(io_error)?;
    let header = safetensors::parse(map.bytes());
    map.check().map_err(|source| OpenError::Lost { path: path.to_owned(), source })?;
    let header = header.map_err(|source| OpenError::Safetensors { path: path.to_owned(), source })?;
    Ok((Arc::new(map), header))
}

/// Tensor name to file name, if the folder has an index.
fn read_index(contained: &Contained<'_>) -> Result<Option<BTreeMap<String, String>>, OpenError> {
    let path = contained.path(INDEX)?;
    let Some(index) = json::read_object(&path, INDEX_BYTES_MAX)? else { return Ok(None) };
    let missing = || JsonError::Missing { field: "weight_map".to_owned() };
    let map = json::get(&index, "weight_map").ok_or_else(missing).map_err(json::at(&path))?;
    let wrong = |value: &Value| json::wrong("weight_map", value, "an object from tensor to file name");
    let map = map.as_object().ok_or_else(|| wrong(map)).map_err(json::at(&path))?;
    let one = |(tensor, file): (&String, &Value)| {
        let name = file.as_str().filter(|name| is_plain_file_name(name)).ok_or_else(|| wrong(file))?;
        Ok((tensor.clone(), name.to_owned()))
    };
    map.iter().map(one).collect::<Result<_, _>>().map(Some).map_err(json::at(&path))
}

/// A file of this folder, not one elsewhere.
fn is_plain_file_name(name: &str) -> bool {
    name.ends_with(".safetensors") && !name.starts_with('.') && !name.contains(['/', '\\', ':', '\0'])
}

/// `model.safetensors`, or the only such file there is.
fn single_file(folder: &Path) -> Result<String, OpenError> {
    if folder.join(SINGLE).exists() {
        return Ok(SINGLE.to_owned());
    }
    let entries = fs::read_dir(folder).map_err(|source| OpenError::Io {
        attempt: "list",
        path: folder.to_owned(),
        source,
    })?;
    let names = entries.flatten().filter_map(|e| e.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|n| is_plain_file_name(n)).take(3).collect();
    match (names.pop(), names.is_empty()) {
        (Some(only), true) => Ok(only),
        (None, _) => Err(not_a_model(folder, "there is no *.safetensors file in it".to_owned())),
        _ => Err(not_a_model(folder, format!("it has several *.safetensors files and no {INDEX}"))),
    }
}

/// A folder's name; in Hugging Face's cache, the name of the repository.
fn name_of_folder(path: &Path) -> String {
    let whole = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let names: Vec<_> = whole.iter().rev().map(|n| n.to_string_lossy()).take(3).collect();
    let name_at = |i: usize| names.get(i).map(|n| n.as_ref()).unwrap_or_default();
    // models--Qwen--Qwen3-0.6B/snapshots/<hash>
    if let Some(repository) = name_at(2).strip_prefix("models--").filter(|_| name_at(1) == "snapshots") {
        return model_name(repository.rsplit("--").next().unwrap_or(repository));
    }
    let is_plain = PLAIN_FOLDERS.contains(&name_at(0)) && names.len() > 1;
    model_name(name_at(usize::from(is_plain)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_called_what_a_person_would_call_the_model() {
        let folder = |p: &str| name_of_folder(Path::new(p));
        assert_eq!(folder("/nowhere/models--Qwen--Qwen3-0.6B/snapshots/0123abcd"), "Qwen3-0.6B");
        assert_eq!(folder("/nowhere/tiny-llama/hf"), "tiny-llama");
        assert_eq!(folder("/nowhere/Llama-3.2-1B"), "Llama-3.2-1B");
    }
}
