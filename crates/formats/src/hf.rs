//! Hugging Face folders: `config.json`, a tokenizer, and one or many `*.safetensors`.

mod config;
mod contained;
mod folder;
mod json;
mod pooling;
mod safetensors;

pub(crate) use folder::{CONFIG, open_folder};

/// For fuzz targets: the header of a safetensors file; how many tensors it lists.
pub(crate) fn tensors_listed(bytes: &[u8]) -> Option<usize> {
    safetensors::parse(bytes).ok().map(|header| header.entries.len())
}
