//! The cache of Hugging Face's tools: `models--org--name/snapshots/COMMIT`, files that are links to blobs
//! named by their digest.

use std::fs;
use std::path::{Path, PathBuf};

use super::{
    ALL, CachedModel, Places, entries, entries_told, file_name, gguf, is_gguf, is_later_part, unusable,
};
use crate::disk::read_bounded;

const CACHE: &str = "huggingface";

pub(super) fn find(places: &Places<'_>, found: &mut Vec<CachedModel>) {
    let home = || places.set("HF_HOME").unwrap_or_else(|| places.cache().join("huggingface"));
    let hub = places.set("HF_HUB_CACHE").unwrap_or_else(|| home().join("hub"));
    for repository in entries_told(&hub, ALL, CACHE, found) {
        add_repository(&repository, found);
    }
}

/// The newest snapshot of `models--org--name`: as a folder if it has safetensors, and each GGUF file in it.
fn add_repository(repository: &Path, found: &mut Vec<CachedModel>) {
    let Some(name) = file_name(repository).strip_prefix("models--").map(|n| n.replace("--", "/")) else {
        return;
    };
    let snapshots = entries_told(&repository.join("snapshots"), &name, CACHE, found);
    let Some(snapshot) = snapshot_of(repository, &snapshots) else {
        if snapshots.len() > 1 {
            let problem = format!("it has {} snapshots, and no refs/main names one of them", snapshots.len());
            found.push(unusable(name, repository.to_owned(), CACHE, problem));
        }
        return;
    };
    let files = entries_told(&snapshot, &name, CACHE, found);
    let below = files.iter().filter(|f| f.is_dir()).flat_map(|folder| entries(folder));
    for path in files.iter().cloned().chain(below).filter(|f| is_gguf(f) && !is_later_part(&file_name(f))) {
        let digest = digest_of(&path);
        found.push(gguf(format!("{name}/{}", file_name(&path)), path, CACHE, digest));
    }
    let weights: Vec<&PathBuf> =
        files.iter().filter(|f| f.extension().is_some_and(|e| e == "safetensors")).collect();
    if snapshot.join("config.json").exists() && !weights.is_empty() {
        let missing = weights.iter().find(|w| !w.exists());
        let problem = missing.map(|w| format!("the link {} leads to a file that is not there", w.display()));
        let bytes = weights.iter().filter_map(|w| fs::metadata(w).ok()).map(|m| m.len()).sum();
        let is_read = |f: &&PathBuf| f.extension().is_some_and(|e| e == "safetensors" || e == "json");
        let more = files.iter().filter(is_read).filter_map(|f| Some((f.clone(), digest_of(f)?))).collect();
        found.push(CachedModel { name, path: snapshot, cache: CACHE, bytes, sha256: None, more, problem });
    }
}

/// Large files are links to blobs that have their SHA-256 for a name.
pub(super) fn digest_of(path: &Path) -> Option<String> {
    let target = fs::read_link(path).ok()?;
    let name = file_name(&target);
    (name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit())).then_some(name)
}

/// The snapshot `refs/main` names, or the only one there is.
fn snapshot_of(repository: &Path, snapshots: &[PathBuf]) -> Option<PathBuf> {
    let main = read_bounded(&repository.join("refs/main"), 200).ok().flatten();
    let main = main.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
    let named = snapshots.iter().find(|s| file_name(s) == main.trim());
    named.or(snapshots.first().filter(|_| snapshots.len() == 1)).cloned()
}
