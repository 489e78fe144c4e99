//! What the store tells of a model it knows.

use std::path::PathBuf;

use exo_types::ModelId;
use serde::{Deserialize, Serialize};

/// Where a model's bytes come from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The user's own file or folder.
    Local,
    /// Chunks received from peers, under the data folder.
    Fetched,
    /// Carried by the binary.
    Builtin,
}

/// One model the store knows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ModelRecord {
    /// Root hash of its manifest.
    pub id: ModelId,
    /// Its name, to be displayed and for the API. Two models may share one.
    pub name: String,
    /// The file or folder.
    pub path: PathBuf,
    /// Bytes of all its files, held or not.
    pub bytes: u64,
    /// Bytes of it on this disk.
    pub held_bytes: u64,
    /// Whether every byte is here and usable.
    pub complete: bool,
    /// Where its bytes come from.
    pub source: Source,
    /// Whether what no node has of it is to be had from a hub.
    pub is_of_hub: bool,
    /// Whether all of it that is on this disk was fetched by exo, from a hub or from peers: only such a model
    /// is ever deleted by itself.
    pub is_downloaded: bool,
    /// Whether somebody wants it to stay, however full the disk is.
    pub is_kept: bool,
    /// When it was last placed here, or came, in seconds since 1970; 0 if never.
    pub used_unix_s: u64,
    /// Whether a newer commit has taken its place: it goes once nothing uses it.
    pub is_replaced: bool,
    /// What a person asked for, of a model that was known before it was fetched.
    pub reference: Option<String>,
    /// What the last check against the hub's digests found.
    pub checked: Option<bool>,
    /// Why it cannot be used although it was added.
    pub problem: Option<RecordProblem>,
}

/// What becomes of a model in whose place a newer commit has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Replaced {
    /// It goes once nothing uses it.
    Goes {
        /// What it is called now.
        name: String,
    },
    /// It is kept, or is the newer one itself.
    Stays,
    /// It was not there, or another had taken its place before.
    Gone,
}

/// What became of a file after it was added. Such a model is listed and not served; add it again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the messages say what the fields are
pub enum RecordProblem {
    #[error("{} is gone or cannot be read", path.display())]
    Vanished { path: PathBuf },
    /// Size or modification time differ.
    #[error("{} changed after it was added", path.display())]
    Changed { path: PathBuf },
}
