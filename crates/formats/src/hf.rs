//! Hugging Face folders: `config.json`, a tokenizer, and one or many `*.safetensors`.

mod config;
mod contained;
mod folder;
mod json;
mod pooling;
mod safetensors;

pub(crate) use folder::{CONFIG, open_folder};
