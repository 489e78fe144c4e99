//! Models other programs already downloaded: the caches of Hugging Face and Ollama.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::disk::read_bounded;

/// Folders this deep hold Ollama's manifests: registry, namespace, model, tag.
const OLLAMA_DEPTH: usize = 4;
/// A cache larger than this is not ours to walk.
const ENTRIES_MAX: usize = 10_000;
const OLLAMA_MANIFEST_BYTES_MAX: u64 = 1 << 20;
const OLLAMA_MODEL: &str = "application/vnd.ollama.image.model";

/// A model found in another program's cache. It is not added; [`crate::Store::add_path_as`] does that.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CachedModel {
    /// Its name there, for example `Qwen/Qwen3-0.6B`, `org/repo/file.gguf` or `llama3.2:1b`.
    pub name: String,
    /// A path that `add_path_as` takes.
    pub path: PathBuf,
    /// Whose cache it is: `huggingface` or `ollama`.
    pub cache: &'static str,
}

/// Models in the caches of Hugging Face and Ollama, sorted by name. `env` answers for environment variables
/// (`HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`, `OLLAMA_MODELS`), `home` is the user's home folder.
/// What cannot be read is left out.
pub fn local_caches(home: &Path, env: &dyn Fn(&str) -> Option<String>) -> Vec<CachedModel> {
    let path_of = |name: &str| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let hub = path_of("HF_HUB_CACHE").unwrap_or_else(|| {
        let cache = || path_of("XDG_CACHE_HOME").unwrap_or_else(|| home.join(".cache"));
        path_of("HF_HOME").unwrap_or_else(|| cache().join("huggingface")).join("hub")
    });
    let ollama = path_of("OLLAMA_MODELS").unwrap_or_else(|| home.join(".ollama/models"));
    let mut found = Vec::new();
    for repository in entries(&hub) {
        add_repository(&repository, &mut found);
    }
    add_ollama(&ollama, &ollama.join("manifests"), &mut Vec::new(), &mut found);
    found.sort();
    found
}

/// The newest snapshot of `models--org--name`: as a folder if it has safetensors, and each GGUF file in it.
fn add_repository(repository: &Path, found: &mut Vec<CachedModel>) {
    let Some(name) = file_name(repository).strip_prefix("models--").map(|n| n.replace("--", "/")) else {
        return;
    };
    let Some(snapshot) = snapshot_of(repository) else { return };
    let files = entries(&snapshot);
    let with = |extension: &str| -> Vec<PathBuf> {
        files.iter().filter(|f| f.extension().is_some_and(|e| e == extension)).cloned().collect()
    };
    for path in with("gguf") {
        found.push(CachedModel { name: format!("{name}/{}", file_name(&path)), path, cache: "huggingface" });
    }
    if snapshot.join("config.json").exists() && !with("safetensors").is_empty() {
        found.push(CachedModel { name, path: snapshot, cache: "huggingface" });
    }
}

/// The snapshot `refs/main` names, or the only one there is.
fn snapshot_of(repository: &Path) -> Option<PathBuf> {
    let snapshots = entries(&repository.join("snapshots"));
    let main = read_bounded(&repository.join("refs/main"), 200).ok().flatten();
    let main = main.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
    let named = snapshots.iter().find(|s| file_name(s) == main.trim());
    named.or(snapshots.first().filter(|_| snapshots.len() == 1)).cloned()
}

/// Walks registry, namespace, model and tag; `names` are those on the way.
fn add_ollama(root: &Path, folder: &Path, names: &mut Vec<String>, found: &mut Vec<CachedModel>) {
    for path in entries(folder) {
        names.push(file_name(&path));
        if names.len() < OLLAMA_DEPTH {
            add_ollama(root, &path, names, found);
        } else if let Some(blob) = ollama_blob(root, &path) {
            let model = match names[1].as_str() {
                "library" => format!("{}:{}", names[2], names[3]),
                namespace => format!("{namespace}/{}:{}", names[2], names[3]),
            };
            found.push(CachedModel { name: model, path: blob, cache: "ollama" });
        }
        names.pop();
    }
}

/// The file with the weights that an Ollama manifest names, if it is there.
fn ollama_blob(root: &Path, manifest: &Path) -> Option<PathBuf> {
    let bytes = read_bounded(manifest, OLLAMA_MANIFEST_BYTES_MAX).ok()??;
    let manifest: Value = serde_json::from_slice(&bytes).ok()?;
    let layers = manifest.get("layers")?.as_array()?;
    let is_model = |layer: &&Value| layer.get("mediaType").and_then(Value::as_str) == Some(OLLAMA_MODEL);
    let digest = layers.iter().find(is_model)?.get("digest")?.as_str()?;
    let hash = digest.strip_prefix("sha256:").filter(|h| h.bytes().all(|b| b.is_ascii_hexdigit()))?;
    let blob = root.join("blobs").join(format!("sha256-{hash}"));
    blob.is_file().then_some(blob)
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = all.map(|e| e.path()).take(ENTRIES_MAX).collect();
    paths.sort();
    paths
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Both caches as they look on a real disk, with the leftovers they have.
    fn fixture(hub: &Path, ollama: &Path) {
        let qwen = hub.join("models--Qwen--Qwen3-0.6B");
        put(&qwen.join("refs/main"), "bbb\n");
        for revision in ["aaa", "bbb"] {
            put(&qwen.join("snapshots").join(revision).join("config.json"), "{}");
            put(&qwen.join("snapshots").join(revision).join("model.safetensors"), "");
        }
        put(&hub.join("models--a--b-GGUF/snapshots/ccc/b-Q4_0.gguf"), "GGUF");
        put(&hub.join("models--no--snapshot/refs/main"), "ddd");
        put(&hub.join("datasets--x--y/snapshots/eee/model.safetensors"), "");
        let manifest =
            |digest: &str| format!(r#"{{"layers":[{{"mediaType":"{OLLAMA_MODEL}","digest":"{digest}"}}]}}"#);
        let registry = ollama.join("manifests/registry.ollama.ai");
        put(&registry.join("library/llama3.2/1b"), &manifest("sha256:0123abcd"));
        put(&registry.join("someone/model/latest"), &manifest("sha256:0123abcd"));
        put(&registry.join("library/gone/latest"), &manifest("sha256:ffff"));
        put(&registry.join("library/evil/latest"), &manifest("sha256:../../x"));
        put(&registry.join("library/bad/latest"), "{");
        put(&ollama.join("blobs/sha256-0123abcd"), "GGUF");
    }

    fn check(home: &Path, env: &dyn Fn(&str) -> Option<String>) -> Vec<(String, &'static str)> {
        let found = local_caches(home, env);
        assert!(found.iter().all(|m| m.path.exists()));
        found.into_iter().map(|m| (m.name, m.cache)).collect()
    }

    #[test]
    fn caches_are_found_at_home_and_where_the_environment_says() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("home");
        fixture(&home.join(".cache/huggingface/hub"), &home.join(".ollama/models"));
        let expected = [
            ("Qwen/Qwen3-0.6B", "huggingface"),
            ("a/b-GGUF/b-Q4_0.gguf", "huggingface"),
            ("llama3.2:1b", "ollama"),
            ("someone/model:latest", "ollama"),
        ]
        .map(|(name, cache)| (name.to_owned(), cache));
        assert_eq!(check(&home, &|_| None), expected);
        let newest = local_caches(&home, &|_| None).remove(0).path;
        assert!(newest.ends_with("snapshots/bbb"), "{newest:?}");
        let elsewhere = folder.path().join("elsewhere");
        fixture(&elsewhere.join("hf/hub"), &elsewhere.join("o"));
        let env = |name: &str| match name {
            "HF_HOME" => Some(elsewhere.join("hf").display().to_string()),
            "OLLAMA_MODELS" => Some(elsewhere.join("o").display().to_string()),
            _ => None,
        };
        assert_eq!(check(Path::new("/nowhere"), &env), expected);
        assert_eq!(check(Path::new("/nowhere"), &|_| None), []);
    }
}
