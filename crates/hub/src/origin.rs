//! Where a model on this disk came from, kept beside it.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::problems::OriginProblem;
use crate::{HubError, Licence};

const BYTES_MAX: u64 = 4 << 20;
const FILES_MAX: usize = 4000;

/// A file as the hub promised it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OriginFile {
    /// Its path in the repository.
    pub path: String,
    /// Its length.
    pub size: u64,
    /// Its SHA-256, which was checked; `None` where the hub had none.
    pub sha256: Option<String>,
    /// What git calls its bytes, where the hub said.
    #[serde(default)]
    pub git_id: Option<String>,
}

/// Written when every file of a model is here and checked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct Origin {
    /// Of this document.
    pub version: u32,
    /// What a person asked for.
    pub reference: String,
    pub endpoint: String,
    /// `org/repo`, or the host of an address.
    pub repo: String,
    pub commit: Option<String>,
    /// The quantisation, or `safetensors`.
    pub label: String,
    /// What it may be used for.
    pub licence: Licence,
    pub files: Vec<OriginFile>,
}

/// What files on this disk are, beside what the hub named.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum Comparison {
    /// Every file with a digest is what the hub promised: so many bytes were read.
    Matches { bytes: u64 },
    /// A file is not.
    Differs { file: String },
    /// The hub named none, or not of all weights.
    NoDigests,
}

impl Origin {
    /// Of this document.
    pub const VERSION: u32 = 1;

    /// The origin of the model at `path`, if it was fetched from a hub: `path` is a folder, or a file in one.
    pub fn beside(path: &Path) -> Option<Self> {
        Self::with_folder(path).map(|(origin, _)| origin)
    }

    /// The same with the folder of the model's files. Of two files in one folder only that which came last
    /// has an origin.
    pub fn with_folder(path: &Path) -> Option<(Self, PathBuf)> {
        let folders = path.ancestors().skip(usize::from(path.is_file())).take(3);
        let found = folders.into_iter().find_map(|folder| {
            Some((Self::read(&crate::disk::beside(folder, "origin.json"))?, folder.to_owned()))
        });
        found.filter(|(origin, folder)| {
            let below = path.strip_prefix(folder).unwrap_or(path);
            path == folder || origin.files.iter().any(|file| crate::names::relative(&file.path) == below)
        })
    }

    /// Where it is from, in one line: repository, what of it, commit.
    pub fn label(&self) -> String {
        let commit =
            self.commit.as_deref().map(|c| format!("@{}", c.get(..8).unwrap_or(c))).unwrap_or_default();
        let host = if self.commit.is_some() { "hf.co/" } else { "" };
        exo_types::printable(&format!("{host}{}:{}{commit}", self.repo, self.label), 200)
    }

    /// Whether every byte was checked against a digest of the hub.
    pub fn is_verified(&self) -> bool {
        self.files.iter().filter(|f| is_weights(&f.path)).all(|f| f.sha256.is_some())
    }

    /// Reads the files again that came to `folder`, and compares their digests with those that the hub named.
    pub fn compare(&self, folder: &Path) -> Result<Comparison, HubError> {
        if !self.is_verified() {
            return Ok(Comparison::NoDigests);
        }
        let mut bytes = 0u64;
        let digests = self.files.iter().filter_map(|file| Some((file, file.sha256.as_deref()?)));
        for (file, expected) in digests.filter(|(file, _)| crate::names::refusal(&file.path).is_none()) {
            let path = folder.join(crate::names::relative(&file.path));
            let (found, size) = sha256_of(&path, &|| true).map_err(HubError::disk("read", &path))?;
            if !found.eq_ignore_ascii_case(expected) {
                return Ok(Comparison::Differs { file: file.path.clone() });
            }
            bytes = bytes.saturating_add(size);
        }
        Ok(if bytes == 0 { Comparison::NoDigests } else { Comparison::Matches { bytes } })
    }

    pub(crate) fn read(path: &Path) -> Option<Self> {
        let bytes = exo_stdx::read_bounded(path, BYTES_MAX).ok()??;
        Self::parse(&bytes)
            .inspect_err(|e| tracing::debug!(path = %path.display(), %e, "not the record of an origin"))
            .ok()
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, OriginProblem> {
        let origin: Self = serde_json::from_slice(bytes)?;
        match origin.version == Self::VERSION && origin.files.len() <= FILES_MAX {
            true => Ok(origin),
            false => Err(OriginProblem::Other { version: origin.version, files: origin.files.len() }),
        }
    }

    pub(crate) fn write(&self, path: &Path) -> Result<(), HubError> {
        let bytes = serde_json::to_vec_pretty(self).map_err(|e| HubError::Disk {
            attempt: "encode",
            path: path.to_owned(),
            source: std::io::Error::other(e),
        })?;
        crate::disk::write_atomic(path, &bytes)
    }

    /// Models of this repository that are whole on this disk, with what to open. For when the hub cannot be
    /// asked.
    pub(crate) fn on_disk(root: &Path, repo: &str) -> Vec<(Self, PathBuf)> {
        Self::below(&root.join(crate::names::relative(repo)))
    }

    /// The same for a folder whose folders are commits.
    pub(crate) fn below(repo: &Path) -> Vec<(Self, PathBuf)> {
        let mut found = Vec::new();
        for commit in entries(repo) {
            let origins =
                entries(&commit).into_iter().filter(|p| p.to_string_lossy().ends_with(".origin.json"));
            found.extend(origins.filter_map(|path| {
                let origin = Self::read(&path)?;
                let folder = path.to_str()?.strip_suffix(".origin.json").map(PathBuf::from)?;
                let is_safe = origin.files.iter().all(|f| crate::names::refusal(&f.path).is_none());
                let here = |f: &OriginFile| folder.join(crate::names::relative(&f.path));
                let is_whole = is_safe
                    && origin
                        .files
                        .iter()
                        .all(|f| std::fs::metadata(here(f)).is_ok_and(|m| m.len() == f.size));
                let first = origin.files.first()?;
                let open = if first.path.ends_with(".gguf") { here(first) } else { folder.clone() };
                is_whole.then_some((origin, open))
            }));
        }
        found
    }
}

/// SHA-256 and length of a file. Ends early where it is not wanted any more.
pub(crate) fn sha256_of(path: &Path, is_wanted: &dyn Fn() -> bool) -> std::io::Result<(String, u64)> {
    let mut file = std::fs::File::open(path)?;
    let (mut digest, mut buffer, mut size) = (Sha256::new(), vec![0; 1 << 20], 0u64);
    loop {
        if !is_wanted() {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok((exo_types::hex(&digest.finalize()), size));
        }
        digest.update(buffer.get(..count).unwrap_or_default());
        size = size.saturating_add(count as u64);
    }
}

fn is_weights(path: &str) -> bool {
    path.ends_with(".gguf") || path.ends_with(".safetensors")
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let all = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = all.map(|e| e.path()).take(1000).collect();
    paths.sort();
    paths
}
