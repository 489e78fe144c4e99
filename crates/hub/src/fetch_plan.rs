//! Which files are fetched, from where and to where: decided before the first byte.

use std::path::{Path, PathBuf};

use ureq::http::Uri;

use crate::{ChosenVariant, Licence, Origin, OriginFile};

/// A file to fetch.
#[derive(Clone, Debug)]
pub struct PlannedFile {
    /// Its path in the repository, or the last part of its address.
    pub name: String,
    /// Its length.
    pub size: u64,
    /// What its SHA-256 must be, where the hub says.
    pub sha256: Option<String>,
    /// What git calls its bytes, where the hub says.
    pub(crate) git_id: Option<String>,
    /// Where to ask for it.
    pub(crate) uri: Uri,
    /// Path below the model's folder.
    pub(crate) below: PathBuf,
}

/// A repository of a hub at a commit.
#[derive(Clone, Copy, Debug)]
pub struct RepoCommit<'a> {
    /// `org/repo`
    pub repo: &'a str,
    /// The commit.
    pub commit: &'a str,
}

/// A model that is to be fetched.
#[derive(Clone, Debug)]
pub struct FetchPlan {
    /// What was asked for, to be displayed.
    pub reference: String,
    /// `org/repo`, or the host of an address.
    pub repo: String,
    /// The commit; of an address there is none.
    pub commit: Option<String>,
    /// What was chosen and why.
    pub choice: ChosenVariant,
    /// What it may be used for.
    pub licence: Licence,
    /// The files.
    pub files: Vec<PlannedFile>,
    /// Folders below the folder of all fetched models: of the model, and of what belongs to it.
    pub(crate) folder: PathBuf,
}

impl PlannedFile {
    /// Its path below the model's folder.
    pub fn below(&self) -> &Path {
        &self.below
    }

    /// What its SHA-256 must be, if what the hub says is one.
    pub fn digest(&self) -> Option<[u8; 32]> {
        let hex = self.sha256.as_deref().filter(|hex| hex.len() == 64 && hex.is_ascii())?;
        let mut digest = [0; 32];
        for (at, byte) in digest.iter_mut().enumerate() {
            let pair = hex.get(2 * at..2 * at + 2).filter(|pair| !pair.starts_with('+'))?;
            *byte = u8::from_str_radix(pair, 16).ok()?;
        }
        Some(digest)
    }
}

impl FetchPlan {
    /// Where its files are, unless they are of an address or a registry.
    pub fn repo_commit(&self) -> Option<RepoCommit<'_>> {
        Some(RepoCommit { repo: &self.repo, commit: self.commit.as_deref()? })
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, f| sum.saturating_add(f.size))
    }

    /// The folder of the model's files below `root`.
    pub fn folder(&self, root: &Path) -> PathBuf {
        root.join(&self.folder)
    }

    /// The same below the folder of all fetched models.
    pub fn relative_folder(&self) -> &Path {
        &self.folder
    }

    /// The file or folder to open once all is here.
    pub fn path(&self, root: &Path) -> PathBuf {
        let folder = self.folder(root);
        match self.files.first() {
            Some(first) if first.name.ends_with(".gguf") => folder.join(&first.below),
            _ => folder,
        }
    }

    /// Where the record of the model's origin is: beside its folder.
    pub(crate) fn origin_path(&self, root: &Path) -> PathBuf {
        crate::disk::beside(&self.folder(root), "origin.json")
    }

    /// Whether the model is here already, whole.
    pub fn is_here(&self, root: &Path) -> bool {
        let is_whole = |f: &PlannedFile| {
            std::fs::metadata(self.folder(root).join(&f.below)).is_ok_and(|m| m.len() == f.size)
        };
        self.origin_path(root).is_file() && self.files.iter().all(is_whole)
    }

    pub(crate) fn origin(&self, endpoint: &str) -> Origin {
        let file = |f: &PlannedFile| OriginFile {
            path: f.name.clone(),
            size: f.size,
            sha256: f.sha256.clone(),
            git_id: f.git_id.clone(),
        };
        Origin {
            version: Origin::VERSION,
            reference: self.reference.clone(),
            endpoint: endpoint.to_owned(),
            repo: self.repo.clone(),
            commit: self.commit.clone(),
            label: self.choice.variant.label.clone(),
            licence: self.licence.clone(),
            files: self.files.iter().map(file).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_64_hexadecimal_digits_and_nothing_else() {
        let digest = |text: &str| {
            let (name, below, uri) = ("m.gguf".to_owned(), PathBuf::new(), Uri::from_static("http://h/m"));
            let sha256 = Some(text.to_owned());
            PlannedFile { name, size: 1, sha256, git_id: None, uri, below }.digest()
        };
        assert_eq!(digest(&"0f".repeat(32)), Some([15; 32]));
        for text in ["", "0f", &"0g".repeat(32), &"é".repeat(32), &"+f".repeat(32)] {
            assert_eq!(digest(text), None, "{text}");
        }
    }
}
