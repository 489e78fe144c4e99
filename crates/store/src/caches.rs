//! Models other programs already downloaded: the caches of Hugging Face and Ollama.

use std::path::{Path, PathBuf};

/// A model found in another program's cache. It is not added; [`crate::Store::add_path`] does that.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CachedModel {
    /// Its name there, for example `Qwen/Qwen3-0.6B` or `llama3.2:1b`.
    pub name: String,
    /// A path that `add_path` takes.
    pub path: PathBuf,
    /// Whose cache it is: `huggingface` or `ollama`.
    pub cache: &'static str,
}

/// Models in the caches of Hugging Face and Ollama, sorted by name. `env` answers for environment variables
/// (`HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`, `OLLAMA_MODELS`), `home` is the user's home folder.
/// What cannot be read is left out.
pub fn local_caches(home: &Path, env: &dyn Fn(&str) -> Option<String>) -> Vec<CachedModel> {
    let _ = (home, env);
    Vec::new()
}
