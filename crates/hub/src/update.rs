//! What a model that was fetched would be if it were fetched now: the same reference is asked again, and what
//! differs is said file by file. Files that have not changed are not fetched again.

use std::fs;
use std::path::{Path, PathBuf};

use crate::chunk_map::CHUNK_BYTES;
use crate::fetch_plan::PlannedFile;
use crate::origin::sha256_of;
use crate::pull::plan_of;
use crate::{Cancel, Client, FetchPlan, HubError, HubReference, Origin, OriginFile, Reference, names};

/// How a file differs between two commits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum ChangeKind {
    Added,
    Changed,
    Removed,
}

/// A file that differs between two commits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileChange {
    /// Its path in the repository.
    pub path: String,
    /// How the file differs.
    pub kind: ChangeKind,
    /// Its length now, or before if it is gone.
    pub size: u64,
}

/// How much of a plan is on this disk.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct HaveSize {
    /// Bytes that are to be fetched.
    pub missing_bytes: u64,
    /// Bytes by which the files will grow on the disk: less where an attempt was broken off within chunks.
    pub room_bytes: u64,
    /// Chunks in all.
    pub chunks: u64,
    /// Chunks of them that are here.
    pub chunks_here: u64,
}

impl HaveSize {
    /// Bytes that are to be fetched and by which no file will grow.
    pub fn rewritten_bytes(&self) -> u64 {
        self.missing_bytes.saturating_sub(self.room_bytes)
    }
}

/// What the reference of a model means now, in the quantisation that was fetched; at `commit`, if that is
/// named.
pub fn resolve_again(
    client: &Client,
    origin: &Origin,
    commit: Option<&str>,
    cancel: &Cancel,
) -> Result<FetchPlan, HubError> {
    let mut plan = match origin.reference.parse()? {
        Reference::Hub(hub) => newest(client, origin, hub, commit, cancel)?,
        Reference::Registry(registry) => crate::registry::resolve(client, &registry, cancel)?,
        Reference::Url(_) | Reference::Path(_) => {
            return Err(HubError::NoRevisions { reference: origin.reference.clone() });
        }
    };
    if let Some(commit) = commit.filter(|commit| !plan.revision().eq_ignore_ascii_case(commit)) {
        let (reference, found) = (origin.reference.clone(), plan.revision());
        return Err(HubError::Moved { reference, commit: commit.to_owned(), found });
    }
    plan.reference.clone_from(&origin.reference);
    plan.choice.reason = "what was fetched of it before".to_owned();
    Ok(plan)
}

fn newest(
    client: &Client,
    origin: &Origin,
    mut hub: HubReference,
    commit: Option<&str>,
    cancel: &Cancel,
) -> Result<FetchPlan, HubError> {
    if let Some(commit) = commit {
        hub.revision = Some(commit.to_owned());
    }
    let snapshot = client.snapshot(&hub, cancel)?;
    if let Some(to) = snapshot.moved_to {
        return Err(HubError::Renamed { repo: hub.repo, to });
    }
    // The very file, or after another naming of files the same type.
    let first = origin.files.first().map(|file| &file.path).filter(|path| path.ends_with(".gguf"));
    hub.file = first.filter(|path| snapshot.files.iter().any(|file| file.path == **path)).cloned();
    hub.quantisation = Some(origin.label.clone());
    plan_of(client, &hub, &snapshot, None, cancel).map_err(|error| match error {
        HubError::NoModel { repo, reason } => {
            HubError::VariantGone { repo, commit: snapshot.commit.clone(), reason }
        }
        other => other,
    })
}

impl Origin {
    /// Whether something can say that there is a newer one: not of an address.
    pub fn has_revisions(&self) -> bool {
        !matches!(self.reference.parse(), Ok(Reference::Url(_) | Reference::Path(_)))
    }

    /// Whether a person named the very commit, or digest: then it means nothing newer, ever.
    pub fn is_pinned(&self) -> bool {
        match self.reference.parse() {
            Ok(Reference::Hub(HubReference { revision: Some(revision), .. })) => {
                let is_commit = self.commit.as_ref().is_some_and(|commit| commit.starts_with(&revision));
                is_commit && revision.len() >= names::COMMIT_CHARS_MIN
            }
            Ok(Reference::Registry(registry)) => registry.tag.starts_with("sha256:"),
            _ => false,
        }
    }

    /// What differs in a plan of the same model.
    pub fn changes(&self, plan: &FetchPlan) -> Vec<FileChange> {
        let change = |path: &str, kind, size| FileChange { path: path.to_owned(), kind, size };
        let mut changes: Vec<FileChange> = Vec::new();
        for file in &plan.files {
            match self.files.iter().find(|before| before.path == file.name) {
                None => changes.push(change(&file.name, ChangeKind::Added, file.size)),
                Some(before) if differs(before, file) => {
                    changes.push(change(&file.name, ChangeKind::Changed, file.size));
                }
                Some(_) => {}
            }
        }
        let is_gone = |before: &&OriginFile| !plan.files.iter().any(|file| file.name == before.path);
        let gone = self.files.iter().filter(is_gone);
        changes.extend(gone.map(|before| change(&before.path, ChangeKind::Removed, before.size)));
        changes
    }
}

/// Two of one name without anything that tells their bytes apart count as one.
fn differs(before: &OriginFile, now: &PlannedFile) -> bool {
    let pairs = [(&before.sha256, &now.sha256), (&before.git_id, &now.git_id)];
    let known = pairs.into_iter().find_map(|pair| Some(pair.0.as_ref()? != pair.1.as_ref()?));
    before.size != now.size || known.unwrap_or(false)
}

impl FetchPlan {
    /// Which revision its files are of, as a name of a folder: a commit, or what stands for one at a
    /// registry.
    pub fn revision(&self) -> String {
        let folder = self.folder.parent().and_then(Path::file_name).unwrap_or_default();
        self.commit.clone().unwrap_or_else(|| folder.to_string_lossy().into_owned())
    }

    /// Models of the same repository on this disk, each with its folder: what has not changed since is there.
    pub fn copies(&self, root: &Path) -> Vec<(Origin, PathBuf)> {
        if self.commit.is_none() {
            return Vec::new();
        }
        let found = Origin::on_disk(root, &self.repo);
        found.into_iter().filter_map(|(_, path)| Origin::with_folder(&path)).collect()
    }

    /// How much of it is below `root`, or in the folders of other commits.
    pub fn have(&self, root: &Path, copies: &[(Origin, PathBuf)]) -> HaveSize {
        let folder = self.folder(root);
        let mut have = HaveSize::default();
        for file in &self.files {
            let is_same = copies.iter().any(|copy| same_file(file, copy).is_some());
            let held = if is_same { file.size } else { self.held_bytes(file, &folder) };
            let there = held.max(crate::download::disk_bytes(file, &folder.join(&file.below)));
            have.missing_bytes = have.missing_bytes.saturating_add(file.size.saturating_sub(held));
            have.room_bytes = have.room_bytes.saturating_add(file.size.saturating_sub(there));
            have.chunks += file.size.div_ceil(CHUNK_BYTES);
            have.chunks_here +=
                if held == file.size { held.div_ceil(CHUNK_BYTES) } else { held / CHUNK_BYTES };
        }
        have
    }

    /// Gives files that have not changed a second name in the folder of this plan, once they were read and
    /// are what the hub says. On a disk without hard links they are fetched again. Returns these names.
    pub fn link_unchanged(
        &self,
        root: &Path,
        copies: &[(Origin, PathBuf)],
        cancel: &Cancel,
    ) -> Result<Vec<PathBuf>, HubError> {
        let (folder, mut linked) = (self.folder(root), Vec::new());
        for file in &self.files {
            let to = folder.join(&file.below);
            if to.exists() {
                continue;
            }
            let mut same = copies.iter().filter_map(|copy| same_file(file, copy));
            let Some(from) = same.find(|path| is_undamaged(file, path, cancel)) else { continue };
            let made = to.parent().map_or(Ok(()), fs::create_dir_all);
            match made.and_then(|()| fs::hard_link(&from, &to)) {
                Ok(()) => linked.push(to),
                Err(error) => tracing::info!(
                    path = %to.display(), %error, "this disk has no hard links: the file is fetched again"
                ),
            }
        }
        // What is linked by then stays: the next attempt does not read it again.
        if cancel.is_cancelled() { Err(HubError::Cancelled) } else { Ok(linked) }
    }
}

/// Whether a file of an older commit is still what the hub says: a second name would have its damage, too.
fn is_undamaged(file: &PlannedFile, path: &Path, cancel: &Cancel) -> bool {
    let Some(expected) = &file.sha256 else { return false };
    let reason = match sha256_of(path, &|| !cancel.is_cancelled()) {
        Ok((found, _)) if found.eq_ignore_ascii_case(expected) => return true,
        Ok((found, _)) => format!("its SHA-256 is {found}, expected {expected}"),
        Err(_) if cancel.is_cancelled() => return false,
        Err(error) => error.to_string(),
    };
    tracing::warn!(path = %path.display(), reason, "the file of an older commit is damaged: it is fetched again");
    false
}

/// Where the same bytes lie in the folder of an older commit.
fn same_file(file: &PlannedFile, (origin, folder): &(Origin, PathBuf)) -> Option<PathBuf> {
    let is_same = |before: &&OriginFile| {
        before.sha256.is_some() && before.sha256 == file.sha256 && before.size == file.size
    };
    let before = origin.files.iter().find(is_same).filter(|f| names::refusal(&f.path).is_none())?;
    let path = folder.join(names::relative(&before.path));
    fs::metadata(&path).is_ok_and(|about| about.is_file() && about.len() == file.size).then_some(path)
}
