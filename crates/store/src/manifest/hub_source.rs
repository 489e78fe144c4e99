//! Where the bytes of a model are that is known before it is fetched: files of a hub's repository at one
//! commit.
//!
//! Of such a model nobody has hashed the chunks. Its identity is made of what the hub says: repository,
//! commit, and path, size and SHA-256 of each file; and of the hashes of the chunks at the head of each file,
//! which were read to know the model at all. So two nodes that ask the same hub name the same model, and
//! heads from a peer are checked. Chunks behind the heads have the word of whoever gave them: the hub, or a
//! member of the cluster.

use serde::{Deserialize, Serialize};

use super::{FileEntry, ensure};
use crate::ManifestError;

const NAME_BYTES_MAX: usize = 200;
const PATH_BYTES_MAX: usize = 500;
const COMMIT_CHARS_MAX: usize = 64;

/// A repository at one commit, and which of its files are the model.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HubSource {
    /// `org/repo`.
    pub repo: String,
    /// The commit.
    pub commit: String,
    /// What of the repository was chosen, to be displayed: `Q4_K_M`.
    pub label: String,
    /// The licence, to be displayed.
    pub licence: String,
    /// One for each file of the manifest, in its order.
    pub files: Vec<HubFile>,
}

/// A file of a repository.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HubFile {
    /// Its path in the repository.
    pub path: String,
    /// The SHA-256 that the hub names; small files have none, and all their chunks are hashed.
    pub sha256: Option<[u8; 32]>,
}

impl HubSource {
    /// Where it is from, in one line.
    pub fn name(&self) -> String {
        let commit = self.commit.get(..8).unwrap_or(&self.commit);
        exo_types::printable(&format!("hf.co/{}:{}@{commit}", self.repo, self.label), 200)
    }

    /// What of it decides the bytes of the model.
    pub(crate) fn hash_into(&self, hasher: &mut blake3::Hasher) {
        let mut text = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        text(&self.repo);
        text(&self.commit);
        for file in &self.files {
            text(&file.path);
        }
        for file in &self.files {
            hasher.update(&[u8::from(file.sha256.is_some())]);
            hasher.update(&file.sha256.unwrap_or_default());
        }
    }

    pub(crate) fn check(&self, files: &[FileEntry], chunk_bytes: u32) -> Result<(), ManifestError> {
        for (what, text, max) in [
            ("repository", &self.repo, NAME_BYTES_MAX),
            ("label", &self.label, NAME_BYTES_MAX),
            ("licence", &self.licence, NAME_BYTES_MAX),
            ("commit", &self.commit, COMMIT_CHARS_MAX),
        ] {
            let is_plain = text.len() <= max && !text.contains(exo_types::is_terminal_control);
            ensure(is_plain, what, text.len(), &format!("at most {max} printable bytes"))?;
        }
        let is_commit = !self.commit.is_empty() && self.commit.bytes().all(|b| b.is_ascii_hexdigit());
        ensure(is_commit, "commit", "something else", "hexadecimal digits")?;
        ensure(
            self.files.len() == files.len(),
            "files of the hub",
            self.files.len(),
            &files.len().to_string(),
        )?;
        for (index, (file, entry)) in self.files.iter().zip(files).enumerate() {
            let field = |what: &str| format!("{what} of file {index}");
            let is_plain =
                file.path.len() <= PATH_BYTES_MAX && !file.path.contains(exo_types::is_terminal_control);
            ensure(is_plain, &field("path"), file.path.len(), "at most 500 printable bytes")?;
            // A file of a folder below has the folder's name in its own, as there are no folders here.
            let name = file.path.rsplit('/').next().unwrap_or_default();
            ensure(
                name == entry.name || file.path.replace('/', ".") == entry.name,
                &field("path"),
                exo_types::printable(name, 80),
                "the path of its name",
            )?;
            let is_hashed = entry.chunks.len() as u64 == entry.size.div_ceil(chunk_bytes.into());
            let is_known = is_hashed || file.sha256.is_some();
            ensure(is_known, &field("digest"), "none", "a SHA-256, or a hash of every chunk")?;
        }
        Ok(())
    }
}
