//! Models that other programs have already downloaded: Hugging Face, Ollama, LM Studio, llama.cpp, Jan and
//! Docker.
//!
//! Folders are read and never written, files are used where they are. What is there and cannot be used is
//! listed with the reason.

mod blobs;
mod docker;
mod folders;
mod huggingface;
mod ollama;
mod verify;

use std::fs;
use std::path::{Path, PathBuf};

use exo_formats::gguf::numbers_of;

pub use verify::CacheError;

/// A cache larger than this is not ours to walk.
const ENTRIES_MAX: usize = 10_000;
const NAME_CHARS_MAX: usize = 128;
const SETTINGS_BYTES_MAX: u64 = 1 << 20;
/// What a whole cache is called that cannot be looked into.
const ALL: &str = "(all)";

/// A model found in another program's cache. It is not added; [`crate::Store::add_path_as`] does that.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CachedModel {
    /// Its name there, for example `Qwen/Qwen3-0.6B`, `org/repo/file.gguf` or `llama3.2:1b`.
    pub name: String,
    /// A path that `add_path_as` takes, if there is no problem.
    pub path: PathBuf,
    /// Whose cache it is.
    pub cache: &'static str,
    /// Bytes of its files.
    pub bytes: u64,
    /// SHA-256 of the file in hex, where the program keeps it.
    pub sha256: Option<String>,
    /// Its other files of which the program keeps the SHA-256, with that.
    pub more: Vec<(PathBuf, String)>,
    /// Why it cannot be used.
    pub problem: Option<String>,
}

/// For fuzz targets: a manifest of another program.
pub(crate) fn parse_layers(manifest: &[u8]) {
    blobs::parse(manifest);
}

/// Where to look: the user's home folder, and environment variables.
struct Places<'a> {
    home: &'a Path,
    env: &'a dyn Fn(&str) -> Option<String>,
}

impl Places<'_> {
    fn set(&self, name: &str) -> Option<PathBuf> {
        (self.env)(name).filter(|value| !value.is_empty()).map(PathBuf::from)
    }

    fn cache(&self) -> PathBuf {
        self.set("XDG_CACHE_HOME").unwrap_or_else(|| self.home.join(".cache"))
    }

    fn data(&self) -> PathBuf {
        self.set("XDG_DATA_HOME").unwrap_or_else(|| self.home.join(".local/share"))
    }
}

/// Models of other programs at their default and configured places, sorted by name. `env` answers for
/// environment variables, `home` is the user's home folder.
pub fn local_caches(home: &Path, env: &dyn Fn(&str) -> Option<String>) -> Vec<CachedModel> {
    let places = Places { home, env };
    let mut found = Vec::new();
    huggingface::find(&places, &mut found);
    ollama::find(&places, &mut found);
    folders::find(&places, &mut found);
    docker::find(&places, &mut found);
    for model in &mut found {
        model.name = exo_types::printable(&model.name, NAME_CHARS_MAX);
    }
    found.sort();
    // A folder that a setting names may be the default one.
    found.dedup();
    found.dedup_by(|a, b| a.path == b.path && a.name == b.name && a.problem.is_none() && b.problem.is_none());
    found
}

/// The model that `name` means among those found: by its whole name, by its repository where that has one
/// file, or by repository and quantisation as in `org/repo:Q4_K_M`. What is usable goes first; an error if
/// several are.
pub fn find_cached<'a>(found: &'a [CachedModel], name: &str) -> Result<Option<&'a CachedModel>, CacheError> {
    let lower = name.to_lowercase();
    let latest = format!("{lower}:latest");
    let is_named = |m: &CachedModel| {
        let its = m.name.to_lowercase();
        // A bare word is a model of Ollama's; elsewhere a tag is needed to tell it from other words.
        its == lower || (m.cache == ollama::CACHE && its == latest && lower.contains('/'))
    };
    let (repo, label) = lower.split_once(':').unwrap_or((&lower, ""));
    let is_of_repo = |m: &CachedModel| {
        let its = m.name.to_lowercase();
        let file = its.strip_prefix(repo).and_then(|rest| rest.strip_prefix('/'));
        repo.contains('/') && file.is_some_and(|file| !file.contains("mmproj") && has_label(file, label))
    };
    let rules: [&dyn Fn(&CachedModel) -> bool; 2] = [&is_named, &is_of_repo];
    for rule in rules {
        let all: Vec<&CachedModel> = found.iter().filter(|m| rule(m)).collect();
        let usable: Vec<&CachedModel> = all.iter().copied().filter(|m| m.problem.is_none()).collect();
        match (usable.as_slice(), all.first()) {
            ([only], _) => return Ok(Some(only)),
            ([], Some(first)) => return Ok(Some(first)),
            ([], None) => {}
            ([first, rest @ ..], _)
                if rest.iter().all(|m| m.sha256.is_some() && m.sha256 == first.sha256) =>
            {
                return Ok(Some(first));
            }
            (several, _) => {
                let names = several.iter().map(|m| format!("{} of {}", m.name, m.cache)).collect();
                return Err(CacheError::Ambiguous { name: name.to_owned(), names });
            }
        }
    }
    Ok(None)
}

/// Whether a label stands in a file's name by itself: `q4_k` is not that of `m-q4_k_m.gguf`.
fn has_label(file: &str, label: &str) -> bool {
    let is_edge = |c: Option<char>| c.is_none_or(|c| !c.is_ascii_alphanumeric() && c != '_');
    label.is_empty()
        || file.match_indices(label).any(|(at, _)| {
            is_edge(file[..at].chars().next_back()) && is_edge(file[at + label.len()..].chars().next())
        })
}

/// A GGUF file, with what stands in the way of using it. `sha256` is what its program says of it.
fn gguf(name: String, path: PathBuf, cache: &'static str, sha256: Option<String>) -> CachedModel {
    let mut more = Vec::new();
    let (bytes, problem) = match fs::metadata(&path) {
        Err(_) if fs::symlink_metadata(&path).is_ok_and(|m| m.is_symlink()) => {
            (0, Some("its link leads to a file that is not there".to_owned()))
        }
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            (0, Some("no permission to read it".to_owned()))
        }
        Err(e) => (0, Some(format!("it cannot be found: {e}"))),
        Ok(m) if !m.is_file() => (0, Some("it is not a file".to_owned())),
        Ok(m) => with_other_parts(&path, m.len(), &mut more),
    };
    CachedModel { name, path, cache, bytes, sha256, more, problem }
}

/// Bytes of a file and of the other parts of its model, and what is wrong with one of them. Digests of the
/// others go to `more`.
fn with_other_parts(first: &Path, bytes: u64, more: &mut Vec<(PathBuf, String)>) -> (u64, Option<String>) {
    let mut bytes = bytes;
    let name = file_name(first);
    let Some((base, _, count)) = numbers_of(&name) else { return (bytes, unreadable(first)) };
    for part in 2..=count {
        let path = first.with_file_name(format!("{base}-{part:05}-of-{count:05}.gguf"));
        match fs::metadata(&path) {
            Ok(m) if m.is_file() => {
                bytes = bytes.saturating_add(m.len());
                more.extend(huggingface::digest_of(&path).map(|digest| (path, digest)));
            }
            _ => return (bytes, Some(format!("part {part} of {count} is not there"))),
        }
    }
    (bytes, unreadable(first))
}

/// Why a file is not one that can be read as GGUF.
fn unreadable(path: &Path) -> Option<String> {
    match crate::disk::read_start(path, 4) {
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            Some("no permission to read it".to_owned())
        }
        Err(e) => Some(format!("it cannot be read: {e}")),
        Ok(start) if start != exo_formats::gguf::MAGIC => {
            Some("it does not start with the letters GGUF".to_owned())
        }
        Ok(_) => None,
    }
}

/// A model that is there and that nothing can be done about.
fn unusable(name: String, path: PathBuf, cache: &'static str, problem: String) -> CachedModel {
    CachedModel { name, path, cache, bytes: 0, sha256: None, more: Vec::new(), problem: Some(problem) }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = all.map(|e| e.path()).take(ENTRIES_MAX).collect();
    paths.sort();
    paths
}

/// What is in a folder. One that is there and cannot be looked into is listed under `name`, with the reason;
/// what is not there is no news.
fn entries_told(
    folder: &Path,
    name: &str,
    cache: &'static str,
    found: &mut Vec<CachedModel>,
) -> Vec<PathBuf> {
    use std::io::ErrorKind;
    if let Err(error) = fs::read_dir(folder) {
        let problem = match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => return Vec::new(),
            ErrorKind::PermissionDenied => "no permission to look into it".to_owned(),
            _ => format!("it cannot be looked into: {error}"),
        };
        found.push(unusable(name.to_owned(), folder.to_owned(), cache, problem));
        return Vec::new();
    }
    entries(folder)
}

/// The folder that a program's own settings name.
fn setting(file: &Path, key: &str) -> Option<PathBuf> {
    let bytes = crate::disk::read_bounded(file, SETTINGS_BYTES_MAX).ok()??;
    let settings: serde_json::Value = serde_json::from_slice(&bytes).ok()?;
    Some(PathBuf::from(settings.get(key)?.as_str()?)).filter(|folder| folder.is_absolute())
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"))
}

/// Whether a name is that of a later part of a split file, which is no model by itself.
fn is_later_part(name: &str) -> bool {
    numbers_of(name).is_some_and(|(_, part, _)| part != 1)
}

#[cfg(test)]
mod tests;
