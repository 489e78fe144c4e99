//! Programs that keep GGUF files under plain names: LM Studio, llama.cpp and Jan.

use std::path::{Path, PathBuf};

use super::{ALL, CachedModel, Places, entries_told, file_name, gguf, is_gguf, is_later_part, setting};
use crate::disk::read_bounded;

/// Publisher, repository, and a folder more.
const DEPTH_MAX: usize = 4;

pub(super) fn find(places: &Places<'_>, found: &mut Vec<CachedModel>) {
    for root in lm_studio(places) {
        walk(&root, &root, "lmstudio", 0, found);
    }
    for root in llama_cpp(places) {
        walk(&root, &root, "llama.cpp", 0, found);
    }
    for root in jan(places) {
        walk(&root, &root, "jan", 0, found);
    }
}

/// Its home moved twice, a file says where a person has put it, and its settings where its models are.
fn lm_studio(places: &Places<'_>) -> Vec<PathBuf> {
    let pointer = read_bounded(&places.home.join(".lmstudio-home-pointer"), 4096).ok().flatten();
    let pointed =
        pointer.and_then(|bytes| String::from_utf8(bytes).ok()).map(|text| PathBuf::from(text.trim()));
    let home = pointed.filter(|p| p.is_absolute()).unwrap_or_else(|| places.home.join(".lmstudio"));
    let moved = setting(&home.join("settings.json"), "downloadsFolder");
    moved.into_iter().chain([home.join("models"), places.home.join(".cache/lm-studio/models")]).collect()
}

fn llama_cpp(places: &Places<'_>) -> Vec<PathBuf> {
    match places.set("LLAMA_CACHE") {
        Some(root) => vec![root],
        None => {
            let local = places.set("LOCALAPPDATA").map(|l| l.join("llama.cpp"));
            let mac = places.home.join("Library/Caches/llama.cpp");
            [places.cache().join("llama.cpp"), mac].into_iter().chain(local).collect()
        }
    }
}

fn jan(places: &Places<'_>) -> Vec<PathBuf> {
    let data = match places.set("JAN_DATA_FOLDER") {
        Some(data) => vec![data],
        None => {
            let roaming = places.set("APPDATA").map(|a| a.join("Jan"));
            let mac = places.home.join("Library/Application Support/Jan");
            let own = [places.data().join("Jan"), mac].into_iter().chain(roaming);
            let data = own
                .flat_map(|own| [setting(&own.join("settings.json"), "data_folder"), Some(own.join("data"))]);
            data.flatten().chain([places.home.join("jan")]).collect()
        }
    };
    data.into_iter().flat_map(|d| [d.join("llamacpp/models"), d.join("models")]).collect()
}

fn walk(root: &Path, folder: &Path, cache: &'static str, depth: usize, found: &mut Vec<CachedModel>) {
    let name = folder.strip_prefix(root).ok().filter(|below| !below.as_os_str().is_empty());
    let name = name.map_or(ALL.to_owned(), |below| below.display().to_string());
    for path in entries_told(folder, &name, cache, found) {
        if path.is_dir() && depth < DEPTH_MAX {
            walk(root, &path, cache, depth + 1, found);
        } else if is_gguf(&path)
            && !is_later_part(&file_name(&path))
            && !file_name(&path).starts_with("mmproj")
        {
            found.push(gguf(name_of(root, &path), path, cache, None));
        }
    }
}

/// Below its root; `model.gguf` says nothing, so there the folder is the name.
fn name_of(root: &Path, path: &Path) -> String {
    let below = path.strip_prefix(root).unwrap_or(path);
    let named = match (file_name(path).as_str(), below.parent()) {
        ("model.gguf", Some(parent)) if !parent.as_os_str().is_empty() => parent,
        _ => below,
    };
    let parts: Vec<_> = named.iter().map(|p| p.to_string_lossy()).collect();
    parts.join("/")
}
