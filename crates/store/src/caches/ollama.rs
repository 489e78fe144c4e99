//! Ollama's models: manifests in folders of host, namespace, model and tag, blobs named by digest.
//!
//! Today's manifests are in `manifests`; newer versions write `manifest-v2`, where a tag is a link to, or a
//! copy of, a blob.

use std::path::{Path, PathBuf};

use super::blobs::{layers, missing, only};
use super::{ALL, CachedModel, Places, entries_told, file_name, gguf, unusable};

pub(super) const CACHE: &str = "ollama";
const LAYOUTS: [&str; 2] = ["manifests", "manifest-v2"];
/// Host, namespace, model, tag.
const DEPTH: usize = 4;
const HOSTS: [&str; 2] = ["registry.ollama.ai", "ollama.com"];
const MODEL: &str = "application/vnd.ollama.image.model";
const TENSOR: &str = "application/vnd.ollama.image.tensor";

pub(super) fn find(places: &Places<'_>, found: &mut Vec<CachedModel>) {
    let roots = match places.set("OLLAMA_MODELS") {
        Some(root) => vec![root],
        // Its service on Linux has a user and a home of its own.
        None => vec![places.home.join(".ollama/models"), PathBuf::from("/usr/share/ollama/.ollama/models")],
    };
    for root in roots {
        for layout in LAYOUTS {
            walk(&root, &root.join(layout), &mut Vec::new(), found);
        }
    }
}

/// `names` are those on the way.
fn walk(root: &Path, folder: &Path, names: &mut Vec<String>, found: &mut Vec<CachedModel>) {
    let name = if names.is_empty() { ALL.to_owned() } else { names.join("/") };
    for path in entries_told(folder, &name, CACHE, found) {
        names.push(file_name(&path));
        if names.len() < DEPTH {
            walk(root, &path, names, found);
        } else {
            found.push(model(root, &path, name_of(names)));
        }
        names.pop();
    }
}

fn name_of(names: &[String]) -> String {
    let [host, namespace, model, tag] = names else { return names.join("/") };
    match (HOSTS.contains(&host.as_str()), namespace.as_str()) {
        (true, "library") => format!("{model}:{tag}"),
        (true, _) => format!("{namespace}/{model}:{tag}"),
        (false, _) => format!("{host}/{namespace}/{model}:{tag}"),
    }
}

fn model(root: &Path, manifest: &Path, name: String) -> CachedModel {
    let refuse = |problem: String| unusable(name.clone(), manifest.to_owned(), CACHE, problem);
    let Some(layers) = layers(manifest) else { return refuse("its manifest cannot be read".to_owned()) };
    let tensors = layers.iter().filter(|l| l.kind.starts_with(TENSOR)).count();
    if tensors > 0 {
        return refuse(format!(
            "Ollama keeps it as {tensors} blobs of a tensor each, a private layout of its own engine; take the same model as GGUF, as in \
             `exo pull hf.co/ORG/REPO`"
        ));
    }
    let layer = match only(&layers, |kind| kind == MODEL) {
        Ok(layer) => layer,
        Err(problem) => return refuse(problem.to_string()),
    };
    let blob = root.join("blobs").join(format!("sha256-{}", layer.digest));
    match missing(&blob) {
        Some(problem) => refuse(problem),
        None => gguf(name.clone(), blob, CACHE, Some(layer.digest.clone())),
    }
}
