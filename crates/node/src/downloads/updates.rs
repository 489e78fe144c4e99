//! Newer commits of models that this node fetched: what an update would bring, shown before a byte of it is
//! fetched.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use exo_api::{
    AdminError, FileChangeKind, FileChangeView, PullRequest, UpdateQuery, UpdateState, UpdateView,
};
use exo_cluster::InstanceView;
use exo_hub::{
    Cancel, ChangeKind, Client, FetchPlan, FileChange, HaveSize, HubError, Licence, Origin, OriginFile,
    Settings,
};
use exo_store::{FindError, ModelRecord, Source, Store};
use exo_types::ModelId;
use futures_util::StreamExt;
use tokio::time::Instant;

use super::{DownloadsInner, NodeDownloads};
use crate::questions::blocking;
use exo_accelerators::chain;

/// For the hub to answer about all models; room is looked at afterwards.
const LOOK_MAX: Duration = Duration::from_secs(15);
/// For the room afterwards; both together are shorter than what the server waits.
const ROOM_MAX: Duration = Duration::from_secs(8);
/// Models that the hub is asked for at once, and in one query.
const LOOKS: usize = 8;
const MODELS_MAX: usize = 256;
/// Models that a refusal names.
const NAMED_MAX: usize = 20;
/// A commit in hexadecimal digits.
const COMMIT_CHARS: [usize; 2] = [40, 64];

/// A model of a hub on this disk.
pub struct Older {
    pub origin: Origin,
    /// The folder of its files; of one that is fetched in layers there is none.
    folder: Option<PathBuf>,
    /// Its commit, or what stands for one at a registry.
    commit: String,
    licence: String,
}

impl Older {
    /// `None` for what this node did not fetch for a command of its own.
    pub fn of(store: &Store, record: &ModelRecord) -> Option<Self> {
        if record.source == Source::Local && record.is_downloaded {
            let (origin, folder) = Origin::with_folder(&record.path)?;
            let revision = folder.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
            let revision = if origin.has_revisions() { revision.into_owned() } else { String::new() };
            let commit = origin.commit.clone().unwrap_or(revision);
            let licence = origin.licence.label().to_owned();
            return Some(Self { origin, folder: Some(folder), commit, licence });
        }
        let manifest = store.manifest(record.id).ok()?;
        let hub = manifest.hub.clone()?;
        let files = hub.files.into_iter().zip(&manifest.files).map(|(file, entry)| OriginFile {
            path: file.path,
            size: entry.size,
            sha256: file.sha256.map(|digest| exo_types::hex(&digest)),
            git_id: None,
        });
        let origin = Origin {
            version: Origin::VERSION,
            reference: record.reference.clone()?,
            endpoint: String::new(),
            repo: hub.repo,
            commit: Some(hub.commit.clone()),
            label: hub.label,
            licence: Licence::default(),
            files: files.collect(),
        };
        Some(Self { origin, folder: None, commit: hub.commit, licence: hub.licence })
    }

    /// What it is, and the folder of its files, where it has one.
    pub fn files(&self) -> Option<(Origin, PathBuf)> {
        Some((self.origin.clone(), self.folder.clone()?))
    }
}

/// What the hub says of one model.
struct ModelUpdate {
    plan: FetchPlan,
    changes: Vec<FileChange>,
    have: HaveSize,
}

impl NodeDownloads {
    /// What is newer of the models that are named, or of all.
    pub(super) async fn look_for_updates(&self, query: UpdateQuery) -> Result<Vec<UpdateView>, AdminError> {
        let models = self.updatable(query.models.clone()).await?;
        if models.len() > MODELS_MAX {
            let message = format!("{} models are of a hub: name at most {MODELS_MAX}", models.len());
            return Err(AdminError::invalid("models", message));
        }
        let settings = self.settings().await?.map_err(|e| AdminError::Conflict { message: chain(&e) })?;
        let param = if query.token.is_some() { "token" } else { "endpoint" };
        let aimed = settings
            .aimed(query.endpoint.as_deref(), query.token.as_ref().map(|token| token.0.as_str()))
            .map_err(|e| AdminError::invalid(param, e.to_string()))?;
        let is_of_all = query.models.is_empty();
        let instances = self.shared.library.room.placed().await.unwrap_or_default();
        let (deadline, instances) = (Instant::now() + LOOK_MAX, &instances);
        let looks = models.into_iter().map(|(record, older)| {
            // Of all models, one without revisions is no reason to fail.
            let is_asked = !is_of_all || older.origin.has_revisions();
            self.shared.look(record, older, is_asked.then(|| aimed.clone()), deadline, instances)
        });
        Ok(futures_util::stream::iter(looks).buffered(LOOKS).collect().await)
    }

    /// Models of this node that can have something newer. Of two commits it is the newer.
    async fn updatable(&self, names: Vec<String>) -> Result<Vec<(ModelRecord, Older)>, AdminError> {
        let store = self.shared.library.store().clone();
        blocking(move || {
            let failed = |e| AdminError::Failed { message: chain(&e) };
            if names.is_empty() {
                let all = store.list().map_err(failed)?;
                let of_hub = all.iter().filter(|record| !record.is_replaced && !is_older(record, &all));
                return Ok(of_hub.filter_map(|r| Some((r.clone(), Older::of(&store, r)?))).collect());
            }
            let named = names.into_iter().map(|name| {
                let name = exo_types::printable(&name, 200);
                let record = store.find(&name).map_err(|error| match error {
                    FindError::Nothing { .. } => {
                        let all = store.list().unwrap_or_default().into_iter();
                        let known = all.map(|record| record.name).take(NAMED_MAX).collect();
                        AdminError::ModelUnknown { model: name.clone(), known }
                    }
                    error => AdminError::invalid("models", chain(&error)),
                })?;
                let no_hub = || {
                    let why = "was not fetched from a hub by this machine: there is nothing to ask";
                    AdminError::invalid("models", format!("`{name}` {why}"))
                };
                Older::of(&store, &record).map(|older| (record, older)).ok_or_else(no_hub)
            });
            named.collect()
        })
        .await?
    }

    /// Whether a request for an update is one.
    pub(super) async fn check_update(&self, request: &PullRequest) -> Result<(), AdminError> {
        let is_commit =
            |text: &String| COMMIT_CHARS.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
        let Some(id) = &request.update_of else {
            let message =
                "it goes with `update_of`; else the reference names it, as in hf.co/ORG/REPO@COMMIT";
            return request.commit.as_ref().map_or(Ok(()), |_| Err(AdminError::invalid("commit", message)));
        };
        if !request.commit.iter().all(is_commit) {
            return Err(AdminError::invalid("commit", "a commit has 40 or 64 hexadecimal digits"));
        }
        let Ok(id) = id.parse::<ModelId>() else {
            return Err(AdminError::invalid("update_of", "the id of a model has 64 hexadecimal digits"));
        };
        let (record, older) = self.updatable(vec![id.to_full()]).await?.remove(0);
        if record.is_replaced {
            let message = format!("another commit has taken the place of `{}` already", record.name);
            return Err(AdminError::Conflict { message });
        }
        if older.folder.is_none() != request.layers_only {
            return Err(AdminError::invalid("layers_only", "a model stays what it is: whole, or in layers"));
        }
        match older.origin.reference == request.reference {
            true => Ok(()),
            false => Err(AdminError::invalid("reference", "the model was fetched by another reference")),
        }
    }
}

impl DownloadsInner {
    /// What is newer of one model; without settings nothing is asked.
    async fn look(
        &self,
        record: ModelRecord,
        older: Older,
        settings: Option<Settings>,
        deadline: Instant,
        instances: &[InstanceView],
    ) -> UpdateView {
        let mut view = current(&record, &older, instances);
        let Some(settings) = settings.filter(|_| !older.origin.is_pinned()) else {
            view.state = UpdateState::Pinned;
            return view;
        };
        let (root, cancel) = (self.root.clone(), Arc::new(Cancel::default()));
        let (licence, wish) = (older.licence.clone(), cancel.clone());
        let work = tokio::task::spawn_blocking(move || ask(&root, &older, settings, &wish));
        let failed = match tokio::time::timeout_at(deadline, work).await {
            Ok(Ok(Ok(found))) => {
                let filled = self.fill(&mut view, found, &licence);
                if tokio::time::timeout_at(deadline + ROOM_MAX, filled).await.is_err() {
                    view.error = Some("whether there is room for it was not found out in time".to_owned());
                    view.hint = Some("the disk is slow, or the node busy: try again".to_owned());
                }
                return view;
            }
            Ok(Ok(Err(error))) => (chain(&error), error.hint()),
            Ok(Err(error)) => (format!("asking the hub broke off: {error}"), None),
            Err(_) => {
                cancel.cancel();
                let message = format!("the hub did not answer within {} s", LOOK_MAX.as_secs());
                (message, Some("check the line and the proxy, and ask for fewer models at once"))
            }
        };
        view.state = UpdateState::Failed;
        (view.error, view.hint) = (Some(failed.0), failed.1.map(str::to_owned));
        view
    }

    async fn fill(&self, view: &mut UpdateView, found: ModelUpdate, licence: &str) {
        let ModelUpdate { plan, changes, have } = found;
        view.newest = Some(plan.revision());
        if changes.is_empty() {
            return;
        }
        view.state = UpdateState::Newer;
        view.files = changes.into_iter().map(change_view).collect();
        view.total_bytes = plan.bytes();
        (view.fetch_bytes, view.chunks) = (have.missing_bytes, have.chunks);
        view.chunks_here = have.chunks_here;
        if plan.licence.label() != licence {
            view.licence = Some(plan.licence.label().to_owned());
            view.terms = plan.licence.notable_terms();
        }
        if view.layers_only {
            return;
        }
        match self.library.room_for(have.room_bytes).await {
            Ok(removes) => view.removes = removes,
            Err(error) => {
                (view.error, view.hint) = (Some(error.to_string()), Some(error.hint().to_owned()));
            }
        }
    }
}

/// Whether a model is called by its commit because the name means another.
fn is_older(record: &ModelRecord, all: &[ModelRecord]) -> bool {
    let plain = exo_store::plain_name(&record.name);
    plain != record.name && all.iter().any(|other| other.name == plain)
}

/// Asks the hub. Blocks.
fn ask(root: &Path, older: &Older, settings: Settings, cancel: &Cancel) -> Result<ModelUpdate, HubError> {
    let client = Client::new(settings);
    let plan = exo_hub::resolve_again(&client, &older.origin, None, cancel)?;
    let (mut changes, have) = (older.origin.changes(&plan), plan.have(root, older.files().as_slice()));
    if older.folder.is_none() {
        // Of files beside the weights not all are known there.
        let is_weights = |path: &str| path.ends_with(".gguf") || path.ends_with(".safetensors");
        changes.retain(|change| change.kind != ChangeKind::Added || is_weights(&change.path));
    }
    Ok(ModelUpdate { plan, changes, have })
}

/// What is known without a hub.
fn current(record: &ModelRecord, older: &Older, instances: &[InstanceView]) -> UpdateView {
    let of_it = instances.iter().filter(|instance| instance.model() == record.id);
    UpdateView {
        model: record.name.clone(),
        id: record.id.to_full(),
        reference: older.origin.reference.clone(),
        state: UpdateState::Current,
        commit: older.commit.clone(),
        layers_only: older.folder.is_none(),
        instances: of_it.map(|instance| instance.instance().to_string()).collect(),
        ..UpdateView::default()
    }
}

fn change_view(change: FileChange) -> FileChangeView {
    let kind = match change.kind {
        ChangeKind::Added => FileChangeKind::Added,
        ChangeKind::Changed => FileChangeKind::Changed,
        ChangeKind::Removed => FileChangeKind::Removed,
    };
    FileChangeView { path: change.path, kind, size: change.size }
}
