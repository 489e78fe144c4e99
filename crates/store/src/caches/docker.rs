//! Docker Model Runner's store: an index of models, manifests and blobs by digest.

use std::error::Error;
use std::path::Path;

use serde_json::Value;

use super::blobs::{digest, layers, missing, only};
use super::{ALL, CachedModel, Places, gguf, unusable};
use crate::StoreError;
use crate::disk::read_bounded;

const CACHE: &str = "docker";
const INDEX_BYTES_MAX: u64 = 16 << 20;
const GGUF: &str = "application/vnd.docker.ai.gguf";

pub(super) fn find(places: &Places<'_>, found: &mut Vec<CachedModel>) {
    let root = places.set("MODELS_PATH").unwrap_or_else(|| places.home.join(".docker/models"));
    let path = root.join("models.json");
    let index = match index_of(&path) {
        Ok(None) => return,
        Ok(Some(index)) => index,
        Err(problem) => return found.push(unusable(ALL.to_owned(), path, CACHE, problem)),
    };
    let models = index.get("models").and_then(Value::as_array);
    for model in models.into_iter().flatten().take(super::ENTRIES_MAX) {
        let Some(id) = model.get("id").and_then(Value::as_str).and_then(digest) else { continue };
        let manifest = root.join("manifests/sha256").join(&id);
        let tags =
            model.get("tags").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        for tag in tags {
            let refuse = |problem: String| unusable(tag.to_owned(), manifest.clone(), CACHE, problem);
            let Some(layers) = layers(&manifest) else {
                found.push(refuse("its manifest cannot be read".to_owned()));
                continue;
            };
            found.push(match only(&layers, |kind| kind.starts_with(GGUF)) {
                Err(problem) => refuse(problem.to_string()),
                Ok(layer) => {
                    let blob = root.join("blobs/sha256").join(&layer.digest);
                    match missing(&blob) {
                        Some(problem) => refuse(problem),
                        None => gguf(tag.to_owned(), blob, CACHE, Some(layer.digest.clone())),
                    }
                }
            });
        }
    }
}

/// The index of a store, if there is one; why it cannot be read.
fn index_of(path: &Path) -> Result<Option<Value>, String> {
    let cause = |error: StoreError| error.source().map_or_else(|| error.to_string(), ToString::to_string);
    let bytes =
        read_bounded(path, INDEX_BYTES_MAX).map_err(|e| format!("it cannot be read: {}", cause(e)))?;
    bytes.map(|bytes| serde_json::from_slice(&bytes).map_err(|e| format!("it is damaged: {e}"))).transpose()
}
