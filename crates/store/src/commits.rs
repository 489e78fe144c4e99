//! Models of a hub of which several commits may be here: the folder of each, and their names. The name means what was fetched last, and
//! the others bear their commit.

use std::fs;
use std::path::{Path, PathBuf};

use exo_types::ModelId;

use crate::registry::{self, Entry, Layout};

/// So much of a commit tells it from others, for people.
const COMMIT_CHARS: usize = 7;

/// Gives other commits of the model that has come the name that says which they are.
pub(crate) fn name_others(layout: &Layout, entries: &mut [Entry], came: ModelId) {
    let Some(newest) = entries.iter().find(|entry| entry.id == came) else { return };
    let Some((repo, commit)) = commit_of(layout, newest) else { return };
    let name = newest.name.clone();
    for entry in entries.iter_mut().filter(|entry| entry.id != came && entry.name == name) {
        if let Some((_, other)) = commit_of(layout, entry).filter(|(r, c)| *r == repo && *c != commit) {
            entry.name = format!("{name}@{}", other.get(..COMMIT_CHARS).unwrap_or(&other));
        }
    }
}

/// A name without the commit behind it.
pub(crate) fn plain_name(name: &str) -> &str {
    let is_commit = |text: &str| text.len() == COMMIT_CHARS && text.bytes().all(|b| b.is_ascii_hexdigit());
    name.rsplit_once('@').filter(|(_, commit)| is_commit(commit)).map_or(name, |(plain, _)| plain)
}

/// Repository and commit, of what came from a hub.
fn commit_of(layout: &Layout, entry: &Entry) -> Option<(String, String)> {
    let Some(local) = &entry.local else {
        let hub = registry::read_manifest(layout, entry.id).ok()?.hub?;
        return Some((hub.repo, hub.commit));
    };
    let folder = hub_folder(&layout.hub(), &local.path)?;
    let part = |level: usize| folder.ancestors().nth(level)?.file_name()?.to_str();
    Some((format!("{}/{}", part(3)?, part(2)?), part(1)?.to_owned()))
}

/// Parts of a path below the folder of models of a hub: organisation, repository, commit, label.
const HUB_DEPTH: usize = 4;

/// The folder of a model that came from a hub; `None` for a path that lies elsewhere.
pub(crate) fn hub_folder(hub: &Path, path: &Path) -> Option<PathBuf> {
    let hub = hub.canonicalize().ok()?;
    let below: Vec<_> = path.strip_prefix(&hub).ok()?.components().collect();
    let is_plain = below.iter().all(|c| matches!(c, std::path::Component::Normal(_)));
    (is_plain && below.len() >= HUB_DEPTH).then(|| hub.join(below[..HUB_DEPTH].iter().collect::<PathBuf>()))
}

/// Deletes the folder of a model with the record of its origin.
pub(crate) fn delete_hub_folder(folder: &Path) -> std::io::Result<()> {
    fs::remove_dir_all(folder)?;
    // Without its folder the record of its origin says nothing.
    let _ = fs::remove_file(folder.with_file_name(origin_name(folder)));
    Ok(())
}

fn origin_name(folder: &Path) -> std::ffi::OsString {
    let mut name = folder.file_name().unwrap_or_default().to_owned();
    name.push(".origin.json");
    name
}

#[cfg(test)]
mod tests {
    use super::plain_name;

    #[test]
    fn only_a_commit_behind_a_name_is_taken_from_it() {
        for (name, plain) in [("m@0123abc", "m"), ("m@0123abz", "m@0123abz"), ("m@1", "m@1"), ("m", "m")] {
            assert_eq!(plain_name(name), plain);
        }
    }
}
