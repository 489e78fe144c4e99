//! Models that come from a hub: what it has, and downloads with their progress.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{AdminError, BoxFuture, BoxStream, FetchSourceView, HubToken, UpdateQuery, UpdateView};

/// What a node offers of hubs and downloads. Object safe; every call returns in bounded time, however long a
/// download takes.
pub trait Downloads: Send + Sync {
    /// Starts a download and returns. One of the same reference that is not over is answered as it is; if it
    /// is paused or has failed, it goes on.
    fn start(&self, request: PullRequest) -> BoxFuture<'_, Result<PullView, AdminError>>;

    /// Downloads of this node, the oldest first: those that run or wait, and the last that are over.
    fn list(&self) -> Vec<PullView>;

    /// The list at once and again whenever something changed, at most five times a second.
    fn watch(&self) -> BoxStream<Vec<PullView>>;

    /// Stops fetching; what is verified stays.
    fn pause(&self, pull: &str) -> Result<PullView, AdminError>;

    /// Goes on from what is verified, also after an error.
    fn resume(&self, pull: &str) -> Result<PullView, AdminError>;

    /// Ends a download and takes it from the list. What is verified stays on the disk.
    fn cancel(&self, pull: String) -> BoxFuture<'_, Result<(), AdminError>>;

    /// Models that the hub finds for a text.
    fn search(&self, request: HubSearchRequest) -> BoxFuture<'_, Result<Vec<FoundRepoView>, AdminError>>;

    /// What a repository has. Fetches no weights.
    fn show(&self, request: HubShowRequest) -> BoxFuture<'_, Result<RepoView, AdminError>>;

    /// What an update of models would fetch. Fetches no weights.
    fn updates(&self, query: UpdateQuery) -> BoxFuture<'_, Result<Vec<UpdateView>, AdminError>>;

    /// Deletes what was never finished, downloads in the list excepted.
    fn prune(&self) -> BoxFuture<'_, Result<PrunedView, AdminError>>;

    /// Keeps a token for the node's hub on its disk, in place of the one before.
    fn login(&self, request: HubLoginRequest) -> BoxFuture<'_, Result<(), AdminError>>;

    /// Deletes that token.
    fn logout(&self) -> BoxFuture<'_, Result<(), AdminError>>;

    /// Models that other programs have on this node's disk.
    fn found(&self) -> BoxFuture<'_, Result<Vec<FoundModelView>, AdminError>>;
}

/// Asks for a model of a hub.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PullRequest {
    /// As in `exo pull`: `hf.co/ORG/REPO[:QUANTISATION][@REVISION]`, or the address of a GGUF file.
    pub reference: String,
    /// Ranges of a file at once, 1 to 8; as many as help, up to this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranges_max: Option<u8>,
    /// Most bytes a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_max_bytes_per_s: Option<u64>,
    /// Another hub than the node's: the address of a mirror.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// For gated and private repositories, if it is another than the node's. Kept in memory while the
    /// download is in the list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<HubToken>,
    /// Only makes the model known, by the heads of its files: each node fetches its own layers when the model
    /// is placed. For repositories of a hub.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub layers_only: bool,
    /// It is to run: what is here of the reference is taken, of whatever commit, and the hub is asked only
    /// where nothing is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub to_run: bool,
    /// The id of a model of this node of which `reference` means a newer commit. Its type and its files that
    /// have not changed are taken over; once the newer one is here it has the name, and the older one goes as
    /// soon as nothing uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_of: Option<String>,
    /// With `update_of`: the commit, as `/exo/v1/hub/updates` named it. Without it what the reference means
    /// now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
}

/// Gives the node a token for its hub.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HubLoginRequest {
    /// For gated and private repositories. It is kept in the node's data folder, for the node's hub alone,
    /// and never shown.
    pub token: HubToken,
}

/// State of a download.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PullState {
    /// The download waits for others to end first.
    #[default]
    Queued,
    /// The hub is asked which files there are.
    Resolving,
    /// Bytes are being fetched.
    Fetching,
    /// All is there; its parts are hashed and it is opened.
    Adding,
    /// The model can be used.
    Done,
    /// A user paused the download.
    Paused,
    /// The download failed, see `error`; it can be resumed.
    Failed,
}

/// One download.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct PullView {
    /// Id of the download, as paths of the API name it.
    pub id: String,
    /// The reference that was asked for.
    pub reference: String,
    /// State of the download.
    pub state: PullState,
    /// Id of the node that fetches.
    pub node: String,
    /// Name of the node that fetches.
    pub node_name: String,
    /// Host that the files come from.
    pub source: String,
    /// What of the repository was chosen, for example `Q4_K_M`; `null` until that is known.
    pub label: Option<String>,
    /// Why that of the repository was chosen.
    pub reason: Option<String>,
    /// Commit of the repository that is fetched; `null` until it is known.
    pub commit: Option<String>,
    /// Licence of the repository, where it is known.
    pub licence: Option<String>,
    /// Terms of the licence that are worth knowing before.
    pub terms: Option<String>,
    /// Path of the file that is being fetched.
    pub file: Option<String>,
    /// Number of files in all.
    pub files: u32,
    /// Bytes that are on disk and verified. They never become fewer.
    pub verified_bytes: u64,
    /// Bytes that have come, with those that are not verified yet: some of these may have to come again.
    #[serde(default)]
    pub received_bytes: u64,
    /// Bytes in all; `null` until the hub has said.
    pub total_bytes: Option<u64>,
    /// Byte ranges being fetched at this moment.
    pub ranges: u32,
    /// Bytes a second over the last seconds; `null` while nothing comes.
    pub bytes_per_s: Option<f64>,
    /// Seconds left at that rate; `null` while nothing comes.
    pub seconds_left: Option<u64>,
    /// The model's name, once it can be used.
    pub model: Option<String>,
    /// Where it is on the node's disk, once it can be used.
    pub path: Option<String>,
    /// Whether nothing had to be fetched.
    pub was_here: bool,
    /// Whether every byte of the weights was compared with a digest of the hub, once that is known.
    pub is_verified: Option<bool>,
    /// Models that were deleted from the node's disk to make room for it: others have them.
    #[serde(default)]
    pub removed: Vec<RemovedModelView>,
    /// The older commit that it took the place of, once it is done.
    #[serde(default)]
    pub replaced: Option<ReplacedModelView>,
    /// What came from where, most first, while it is fetched; absent where there is one source.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<FetchSourceView>,
    /// What went wrong; `null` unless something did.
    pub error: Option<String>,
    /// What the user can do about the error.
    pub hint: Option<String>,
    /// When the download was asked for, in seconds since 1970.
    pub started_unix_s: u64,
}

impl PullState {
    /// In the order of their numbers.
    const ALL: [Self; 7] =
        [Self::Queued, Self::Resolving, Self::Fetching, Self::Adding, Self::Done, Self::Paused, Self::Failed];

    /// As nodes tell each other.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The state of that number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Whether it may still change by itself.
    pub fn is_under_way(self) -> bool {
        matches!(self, Self::Queued | Self::Resolving | Self::Fetching | Self::Adding)
    }
}

/// A model that was deleted from a node's disk to make room.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct RemovedModelView {
    /// The deleted model's name.
    pub name: String,
    /// Bytes that deleting it freed.
    pub bytes: u64,
    /// When it was last in use there, in seconds since 1970; 0 if never.
    pub used_unix_s: u64,
}

/// A model of which a newer commit has come.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ReplacedModelView {
    /// What the older commit is called now.
    pub name: String,
    /// Whether it is deleted. If not, something uses it, and it goes when that ends.
    pub removed: bool,
}

/// Looks for models on the hub.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HubSearchRequest {
    /// Text to search for.
    pub text: String,
}

/// A repository that a search found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct FoundRepoView {
    /// The repository, `ORG/REPO`.
    pub repo: String,
    /// Downloads in the last month.
    pub downloads: u64,
    /// Likes that the hub counts.
    pub likes: u64,
    /// Whether the hub asks for consent first.
    pub gated: bool,
    /// `gguf` or `safetensors`, where its tags say so.
    pub format: Option<String>,
}

/// Asks what a repository has.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HubShowRequest {
    /// The repository: `hf.co/ORG/REPO[@REVISION]`.
    pub reference: String,
}

/// A repository of a hub.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct RepoView {
    /// The repository, `ORG/REPO`.
    pub repo: String,
    /// The commit that was looked at.
    pub commit: String,
    /// Whether the hub asks for consent first.
    pub gated: bool,
    /// The licence of the repository.
    pub licence: String,
    /// Terms of the licence that are worth knowing before.
    pub terms: Option<String>,
    /// Its models, largest first.
    pub models: Vec<VariantView>,
}

/// One model of a repository.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct VariantView {
    /// The quantisation, or `safetensors`.
    pub label: String,
    /// Bytes of the model's files.
    pub bytes: u64,
    /// Memory that it takes, about.
    pub memory_bytes: u64,
    /// Whether exo computes with this type.
    pub supported: bool,
    /// What is wrong with its files.
    pub problem: Option<String>,
    /// Files of the model.
    pub files: Vec<RepoFileView>,
}

/// One file of a repository.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct RepoFileView {
    /// The file's path in the repository.
    pub path: String,
    /// The file's length in bytes.
    pub size: u64,
    /// SHA-256 of the file, where the hub has it.
    pub sha256: Option<String>,
}

/// What `prune` has deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct PrunedView {
    /// Number of partial files deleted.
    pub files: u64,
    /// Bytes that they took on disk.
    pub bytes: u64,
}

/// Says whether a model stays on a node's disk, however full that is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KeepModelRequest {
    /// The model's name or id.
    pub model: String,
    /// False lets it go again when room is needed.
    pub kept: bool,
}

/// Has a model of a hub compared with the digests that the hub named, over the nodes that have its layers.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelCheckRequest {
    /// The model's name or id.
    pub model: String,
}

/// State of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    /// Nodes read and compare their bytes.
    Running,
    /// Every file is what the hub promised.
    Matches,
    /// A file is not what the hub promised.
    Differs,
    /// No node that is there has some of the bytes.
    Incomplete,
    /// The check broke off.
    Failed,
}

/// A check of a model.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ModelCheckView {
    /// Name of the model that is checked.
    pub model: String,
    /// Id of the model that is checked: several may have one name.
    pub id: String,
    /// State of the check.
    pub state: CheckState,
    /// Bytes that were compared.
    pub bytes: u64,
    /// Other nodes that had some of them.
    pub nodes: Vec<String>,
    /// Which file differs, from where bytes are missing, or why it broke off.
    pub message: Option<String>,
}

/// A model of another program on a node's disk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct FoundModelView {
    /// The model's name in that program.
    pub name: String,
    /// Name of the program that stores the model.
    pub program: String,
    /// Path of the model on the disk.
    pub path: String,
    /// Bytes of the model's files.
    pub bytes: u64,
    /// SHA-256 of the model, where that program keeps it.
    pub sha256: Option<String>,
    /// Why exo cannot use the model; `null` if it can.
    pub problem: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_of_a_download_has_a_number_of_its_own() {
        for (number, state) in PullState::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(state.number()), number);
            assert_eq!(PullState::from_number(state.number()), Some(state));
        }
        assert_eq!(PullState::from_number(7), None);
    }

    #[test]
    fn a_token_in_a_request_is_never_printed() {
        let text = r#"{"reference":"hf.co/a/b","token":"hf_secret"}"#;
        let request: PullRequest = serde_json::from_str(text).unwrap();
        assert_eq!(request.token, Some(HubToken("hf_secret".to_owned())));
        assert!(!format!("{request:?}").contains("secret"));
        assert!(serde_json::from_str::<PullRequest>(r#"{"reference":"a","nothing":1}"#).is_err());
    }
}
