//! What an update of models from hubs would fetch.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::HubToken;

/// Asks what updates would fetch.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateQuery {
    /// Names or ids of models on this node's disk; all that came from a hub or a registry without one.
    #[serde(default)]
    pub models: Vec<String>,
    /// Another hub than the node's: the address of a mirror.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// For gated and private repositories, if it is another than the node's. Kept nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<HubToken>,
}

/// Whether there is something newer of a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum UpdateState {
    /// The model's files are those of the commit that its reference means now.
    #[default]
    Current,
    /// Files of it have changed.
    Newer,
    /// The model's reference names this very commit: it does not move.
    Pinned,
    /// The hub could not say, see `error`.
    Failed,
}

/// What an update of a model would fetch.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct UpdateView {
    /// Name of the model.
    pub model: String,
    /// Id of the model, for `update_of`.
    pub id: String,
    /// The reference that was asked for when the model was fetched.
    pub reference: String,
    /// Whether there is something newer.
    pub state: UpdateState,
    /// The commit that is here; of a registry, what stands for its manifest.
    pub commit: String,
    /// The commit that the reference means now, once the hub has said.
    pub newest: Option<String>,
    /// Files that differ between the two commits.
    pub files: Vec<FileChangeView>,
    /// Bytes of the newer one.
    pub total_bytes: u64,
    /// Bytes of it that are to be fetched.
    pub fetch_bytes: u64,
    /// Its chunks.
    pub chunks: u64,
    /// Chunks that are here: of an attempt before, and of files that have not changed.
    pub chunks_here: u64,
    /// Whether only its heads would be fetched: each node then fetches its own layers when the model is
    /// placed.
    pub layers_only: bool,
    /// The licence of the newer one, if it is another.
    pub licence: Option<String>,
    /// Terms of the licence that are worth knowing before.
    pub terms: Option<String>,
    /// Models that would be deleted from this node's disk to make room; others have them.
    pub removes: Vec<String>,
    /// Instances that run the one that is here, and stay on it.
    pub instances: Vec<String>,
    /// Why there is no room for the newer one, or why nothing is known of it.
    pub error: Option<String>,
    /// What the user can do about the error.
    pub hint: Option<String>,
}

/// How a file differs between two commits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileChangeKind {
    /// The file is new.
    Added,
    /// The bytes of the file have changed.
    Changed,
    /// The file is gone.
    Removed,
}

/// A file that differs between two commits.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct FileChangeView {
    /// The file's path in the repository.
    pub path: String,
    /// How the file differs.
    pub kind: FileChangeKind,
    /// The file's length in bytes, now, or before if it is gone.
    pub size: u64,
}
