//! Manifests that name blobs by digest: what Ollama and Docker have in common.

use std::path::Path;

use serde_json::Value;

use crate::disk::read_bounded;

const MANIFEST_BYTES_MAX: u64 = 4 << 20;

/// One layer of a manifest.
pub(super) struct Layer {
    pub(super) kind: String,
    /// SHA-256 in hex.
    pub(super) digest: String,
}

/// The layers of a manifest; `None` if it is not one.
pub(super) fn layers(manifest: &Path) -> Option<Vec<Layer>> {
    parse(&read_bounded(manifest, MANIFEST_BYTES_MAX).ok()??)
}

pub(super) fn parse(manifest: &[u8]) -> Option<Vec<Layer>> {
    let manifest: Value = serde_json::from_slice(manifest).ok()?;
    let layers = manifest.get("layers")?.as_array()?;
    Some(layers.iter().filter_map(layer).collect())
}

fn layer(value: &Value) -> Option<Layer> {
    let kind = value.get("mediaType")?.as_str()?.to_owned();
    Some(Layer { kind, digest: digest(value.get("digest")?.as_str()?)? })
}

/// The hex of `sha256:…`; it becomes part of a path, so it is nothing else.
pub(super) fn digest(text: &str) -> Option<String> {
    let hex = text.strip_prefix("sha256:")?;
    (hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit())).then(|| hex.to_ascii_lowercase())
}

/// Why a manifest names no file that can be opened.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum LayerProblem {
    #[error("its manifest names no GGUF file")]
    NoFile,
    #[error("it is split over {files} GGUF files, named by digest, which exo does not open")]
    Split { files: usize },
}

/// The only layer of a kind, or why there is not one.
pub(super) fn only(layers: &[Layer], is_kind: impl Fn(&str) -> bool) -> Result<&Layer, LayerProblem> {
    let all: Vec<&Layer> = layers.iter().filter(|l| is_kind(&l.kind)).collect();
    match all.as_slice() {
        [only] => Ok(only),
        [] => Err(LayerProblem::NoFile),
        several => Err(LayerProblem::Split { files: several.len() }),
    }
}

/// A blob that is missing is said by its path.
pub(super) fn missing(blob: &Path) -> Option<String> {
    (!blob.exists()).then(|| format!("its manifest names {}, which is not there", blob.display()))
}
