//! Models of a hub of which several commits may be here: the folder of each, and their names. The name means
//! what a person asked for last, once it was opened; the others bear their commit.

use std::fs;
use std::path::{Path, PathBuf};

use exo_types::ModelId;

use crate::disk::deleted;
use crate::registry::{self, Entry, Layout, Local};

/// So much of a commit tells it from others, to be displayed.
const COMMIT_CHARS: usize = 7;

/// Names a model that has come. Where another commit has the name that somebody of this machine asked for, it
/// keeps it until the new one [takes](take_name) it.
pub(crate) fn name_new(layout: &Layout, entries: &mut [Entry], came: ModelId) {
    let Some(new) = entries.iter().find(|entry| entry.id == came) else { return };
    let Some((_, commit)) = commit_of(layout, new) else { return };
    let others = other_commits(layout, entries, came, &new.name);
    let is_taken =
        others.iter().any(|(at, _)| entries[*at].local.is_some() || entries[*at].reference.is_some());
    match entries.iter_mut().find(|entry| entry.id == came) {
        Some(new) if is_taken => new.name = with_commit(&new.name, &commit),
        _ => others.into_iter().for_each(|(at, commit)| {
            entries[at].name = with_commit(&entries[at].name, &commit);
        }),
    }
}

/// Gives a model the name without a commit, and other commits of it the one that says which they are.
pub(crate) fn take_name(layout: &Layout, entries: &mut [Entry], id: ModelId) {
    let Some(entry) = entries.iter().find(|entry| entry.id == id) else { return };
    let Some((_, commit)) = commit_of(layout, entry) else { return };
    let behind = with_commit("", &commit);
    let name = entry.name.strip_suffix(&behind).unwrap_or(&entry.name).to_owned();
    for (at, commit) in other_commits(layout, entries, id, &name) {
        entries[at].name = with_commit(&name, &commit);
    }
    entries.iter_mut().filter(|entry| entry.id == id).for_each(|entry| entry.name.clone_from(&name));
}

/// Where in the list other commits of a model have this name, and which.
fn other_commits(layout: &Layout, entries: &[Entry], of: ModelId, name: &str) -> Vec<(usize, String)> {
    let known = entries.iter().find(|entry| entry.id == of).and_then(|entry| commit_of(layout, entry));
    let Some((repo, commit)) = known else { return Vec::new() };
    let named = entries.iter().enumerate().filter(|(_, entry)| entry.id != of && entry.name == name);
    let others = named.filter_map(|(at, entry)| Some((at, commit_of(layout, entry)?)));
    others.filter(|(_, (r, c))| *r == repo && *c != commit).map(|(at, (_, commit))| (at, commit)).collect()
}

fn with_commit(name: &str, commit: &str) -> String {
    format!("{name}@{}", commit.get(..COMMIT_CHARS).unwrap_or(commit))
}

/// A name without the commit behind it, as other commits of a model bear it.
pub fn plain_name(name: &str) -> &str {
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

/// Deletes a copy in this folder of a hub's models: of a folder in which others of the list lie, too, only
/// its own files. Returns the bytes that this freed.
pub(crate) fn delete_copy(
    hub: &Path,
    folder: &Path,
    copy: &Local,
    entries: &[Entry],
) -> std::io::Result<u64> {
    let others =
        entries.iter().filter_map(|entry| entry.local.as_ref()).filter(|other| other.path != copy.path);
    let beside: Vec<&Local> =
        others.filter(|other| hub_folder(hub, &other.path).is_some_and(|its| its == folder)).collect();
    let frees = |path: &Path| {
        let about = fs::metadata(path).ok().filter(exo_stdx::is_only_name);
        about.map_or(0, |about| about.len())
    };
    if beside.is_empty() {
        let bytes = copy.files.iter().map(|file| frees(&file.path)).sum();
        return delete_hub_folder(folder).map(|()| bytes);
    }
    let is_shared = |path: &Path| beside.iter().any(|other| other.files.iter().any(|file| file.path == path));
    let mut bytes = 0;
    for file in copy.files.iter().filter(|file| !is_shared(&file.path)) {
        bytes += frees(&file.path);
        deleted(fs::remove_file(&file.path))?;
    }
    Ok(bytes)
}

/// Whether other models of the list lie in this folder of a hub's models, too.
pub(crate) fn is_shared(hub: &Path, folder: &Path, copy: &Local, entries: &[Entry]) -> bool {
    let mut others =
        entries.iter().filter_map(|entry| entry.local.as_ref()).filter(|other| other.path != copy.path);
    others.any(|other| hub_folder(hub, &other.path).is_some_and(|its| its == folder))
}

/// Where the origin of the model in a folder is recorded.
pub(crate) fn record_of(folder: &Path) -> PathBuf {
    folder.with_file_name(origin_name(folder))
}

/// Deletes the folder of a model with the record of its origin.
fn delete_hub_folder(folder: &Path) -> std::io::Result<()> {
    deleted(fs::remove_dir_all(folder))?;
    // Without its folder the record of its origin says nothing.
    let _ = fs::remove_file(record_of(folder));
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
