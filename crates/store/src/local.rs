//! The user's own copies: read where they are, watched for changes, never written.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use exo_formats::Model;
use exo_types::ModelId;

use crate::disk::{Fingerprint, failed};
use crate::registry::{Entry, Local, LocalFile};
use crate::{Manifest, RecordProblem, StoreError};

/// An absolute path without `..`. The last component stays as it is: a link into a cache keeps its name.
pub(crate) fn absolute(path: &Path) -> std::io::Result<PathBuf> {
    let whole = std::path::absolute(path)?;
    match (whole.parent(), whole.file_name()) {
        (Some(parent), Some(name)) => Ok(fs::canonicalize(parent)?.join(name)),
        _ => fs::canonicalize(whole),
    }
}

/// What to open the model by: the folder for a folder, whichever of its files was named.
pub(crate) fn root_of(model: &Model, path: &Path) -> PathBuf {
    let is_folder = model.kind == exo_formats::ModelKind::HuggingFace && !path.is_dir();
    path.parent().filter(|_| is_folder).unwrap_or(path).to_owned()
}

pub(crate) fn fingerprints(model: &Model) -> Result<Vec<LocalFile>, StoreError> {
    let one = |path: &PathBuf| {
        let metadata = fs::metadata(path).map_err(|e| failed("find", path, 0, e))?;
        Ok(LocalFile { path: path.clone(), fingerprint: Fingerprint::of(&metadata) })
    };
    model.files.iter().map(|f| one(&f.path)).collect()
}

/// So many copies of a model are remembered beside the one that is used.
const COPIES_MAX: usize = 8;
/// Of a name.
const NAME_CHARS_MAX: usize = 128;

/// What stood at this path before is not there any more: it is `id` that stands there now. A further copy of
/// what stood there takes its place, the last one that is as it was.
fn vacate(entries: &mut Vec<Entry>, id: ModelId, path: &Path) {
    for entry in entries.iter_mut().filter(|e| e.id != id) {
        entry.copies.retain(|other| other.path != path);
        if entry.local.as_ref().is_none_or(|local| local.path != path) {
            continue;
        }
        // What a check found is of the other.
        entry.checked = None;
        let last = entry.copies.iter().rposition(|copy| problem(copy).is_none());
        entry.local = last.map(|at| entry.copies.remove(at));
        // Named by its file, it is named by that which is left: the name is that of what stands there now.
        if let Some(left) = &entry.local
            && entry.name == file_name(path)
        {
            entry.name = file_name(&left.path);
        }
    }
    entries.retain(|e| e.id == id || e.local.is_some() || e.fetched);
}

/// What a model in one file is called by itself.
fn file_name(path: &Path) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    exo_types::clean_name(name.strip_suffix(".gguf").unwrap_or(&name), NAME_CHARS_MAX)
}

/// Remembers a copy that was hashed, for as long as it is as it was. Each path counts once.
fn remember(copies: &mut Vec<Local>, copy: Local) {
    copies.retain(|other| other.path != copy.path);
    copies.push(copy);
    copies.drain(..copies.len().saturating_sub(COPIES_MAX));
}

/// Notes a copy of a model that goes on being used from another place.
pub(crate) fn insert_copy(entries: &mut Vec<Entry>, id: ModelId, copy: &Local) {
    vacate(entries, id, &copy.path);
    for entry in entries.iter_mut().filter(|e| e.id == id) {
        remember(&mut entry.copies, copy.clone());
    }
}

/// Puts the model in the list. What stood at the same path before is not there any more.
pub(crate) fn insert_local(
    entries: &mut Vec<Entry>,
    id: ModelId,
    manifest: &Manifest,
    local: Local,
) -> Entry {
    vacate(entries, id, &local.path);
    let before = entries.iter().find(|e| e.id == id);
    let fetched = before.is_some_and(|e| e.fetched);
    let (kept, used_unix_s) = before.map_or((false, 0), |e| (e.kept, e.used_unix_s));
    // What a check found is of those files alone.
    let is_same = |e: &&Entry| e.local.as_ref().is_some_and(|other| other.files == local.files);
    let checked = before.filter(is_same).and_then(|e| e.checked);
    let mut copies = before.map_or_else(Vec::new, |e| e.copies.clone());
    // What a check found damaged is not what was hashed.
    let older = before.filter(|e| e.checked != Some(false)).and_then(|e| e.local.clone());
    if let Some(older) = older {
        remember(&mut copies, older);
    }
    copies.retain(|copy| copy.path != local.path);
    entries.retain(|e| e.id != id);
    let of_local = Entry { fetched, kept, used_unix_s, checked, copies, ..Entry::fetched(id, manifest) };
    let entry = Entry { local: Some(local), ..of_local };
    entries.push(entry.clone());
    entry
}

/// The user's own copy, if there is one, or what became of it.
pub(crate) fn usable_local(entry: &Entry) -> Option<Result<&Local, RecordProblem>> {
    let local = entry.local.as_ref()?;
    Some(problem(local).map_or(Ok(local), Err))
}

/// What became of a copy, if it is not as it was.
fn problem(copy: &Local) -> Option<RecordProblem> {
    copy.files.iter().find_map(|file| match fs::metadata(&file.path) {
        Err(_) => Some(RecordProblem::Vanished { path: file.path.clone() }),
        Ok(m) if Fingerprint::of(&m) != file.fingerprint => {
            Some(RecordProblem::Changed { path: file.path.clone() })
        }
        Ok(_) => None,
    })
}

/// Reads from the user's file, which may be another by now: asked of the opened file, not of the path.
pub(crate) fn read_local(file: &LocalFile, id: ModelId, start: u64, len: u64) -> Result<Vec<u8>, StoreError> {
    let at = |e| failed("read", &file.path, len, e);
    let opened = File::open(&file.path).map_err(at)?;
    if Fingerprint::of(&opened.metadata().map_err(at)?) != file.fingerprint {
        let problem = RecordProblem::Changed { path: file.path.clone() };
        return Err(StoreError::Unusable { id, problem });
    }
    let mut bytes = vec![0; len as usize];
    exo_stdx::read_exact_at(&opened, &mut bytes, start).map_err(at)?;
    Ok(bytes)
}
