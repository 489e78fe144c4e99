//! Models of a hub on their way to this node's disk: a list of downloads, each with a task of its own.
//!
//! At most two fetch at once: a second one helps where a hub is slower than the line, a third only where it
//! is in the way. What a download is asked to do is a [`DownloadCommand`](pull::DownloadCommand); its task
//! carries the last one out, so that two in a row cannot meet half way. Downloads that are not over are kept
//! in a file and go on when the node starts again, but for the node of a command's while.

mod assembly;
mod members;
mod pull;
mod rate;
mod register;
mod reports;
mod saved;
mod updates;
mod views;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use exo_api::{
    AdminError, BoxFuture, BoxStream, ClusterView, Downloads, FoundModelView, FoundRepoView, HubLoginRequest,
    HubSearchRequest, HubShowRequest, NodeStatus, PrunedView, PullRequest, PullState, PullView, RepoView,
    UpdateQuery, UpdateView,
};
use exo_cluster::wire::PullReport;
use exo_hub::{Cancel, Client, HubError, KeptDownloads, Memory, Reference, RegistryReference, Settings};
use exo_stdx::{Mutex, unix_s};
use exo_types::{ModelId, NodeId};
use tokio::sync::{Semaphore, watch};

pub use self::register::check_opens;
pub use self::views::{found_model_view, found_repo_view, repo_view};
use crate::NodeConfig;
use crate::events::EventSender;
use crate::fits::{self, FetchesHere, FitsCluster};
use crate::host::Host;
use crate::hub_bytes::hub_settings;
use crate::library::Library;
use crate::library::eviction::list_again;
use crate::meters::Meters;
use crate::questions::{ANSWER_MAX, blocking, blocking_within};
use exo_accelerators::chain;
use pull::{DownloadCommand, Pull, drive, settings_for};
use saved::SavedPull;

/// Downloads that fetch at once.
const TURNS: usize = 2;
/// Downloads that run or wait.
const UNDER_WAY_MAX: usize = 64;
/// Downloads that are over and still shown.
const OVER_MAX: usize = 32;
/// The largest id that is taken from the file: no list gets there, and the next one fits.
const SAVED_ID_MAX: u64 = 1 << 32;
/// Between two lists of a stream.
const WATCH_EVERY: Duration = Duration::from_millis(200);
/// For a thread to let go of its files: a stalled read takes five seconds.
const END_MAX: Duration = Duration::from_secs(20);
/// For an answer of the hub to a question of a client: shorter than what the server waits.
const HUB_MAX: Duration = Duration::from_secs(25);

/// The downloads of a node.
pub struct NodeDownloads {
    shared: Arc<DownloadsInner>,
    stop: watch::Receiver<bool>,
}

/// What downloads share.
pub struct DownloadsInner {
    library: Arc<Library>,
    node: EventSender,
    host: Arc<dyn Host>,
    view: watch::Receiver<ClusterView>,
    /// The folder of fetched models.
    root: PathBuf,
    node_id: NodeId,
    pulls: Mutex<Pulls>,
    /// Held while the list is written: whoever only looks at it does not wait for the disk.
    saving: Mutex<()>,
    changes: watch::Sender<()>,
    turns: Semaphore,
    /// The node's settings.
    config: NodeConfig,
    meters: Arc<Meters>,
}

#[derive(Default)]
struct Pulls {
    last_id: u64,
    by_id: BTreeMap<u64, Arc<Pull>>,
}

impl NodeDownloads {
    /// Lists them as often as it is called.
    pub fn lister(&self) -> impl Fn() -> Vec<PullView> + Send + use<> {
        let shared = self.shared.clone();
        move || shared.list()
    }

    /// What all members are told of them, as often as it is called.
    pub fn reporter(&self) -> impl Fn() -> Vec<PullReport> + Send + Sync + use<> {
        let shared = self.shared.clone();
        move || {
            let (pulls, view) = (shared.list(), shared.view.borrow());
            let named = |name: &str| view.nodes.iter().find(|node| node.name == name);
            reports::reports(pulls, &|name| named(name)?.id.parse().ok())
        }
    }

    /// The list as an earlier run of the node left it; what was not paused goes on.
    pub fn new(
        library: Arc<Library>,
        node: EventSender,
        host: Arc<dyn Host>,
        view: watch::Receiver<ClusterView>,
        node_id: NodeId,
        config: NodeConfig,
        meters: Arc<Meters>,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let shared = Arc::new(DownloadsInner {
            library,
            node,
            host,
            view,
            root: config.data_dir.join("hub"),
            node_id,
            pulls: Mutex::default(),
            saving: Mutex::default(),
            changes: watch::Sender::new(()),
            turns: Semaphore::new(TURNS),
            config,
            meters,
        });
        let downloads = Self { shared, stop };
        if downloads.shared.is_kept() {
            let saved = saved::read(&downloads.shared.root);
            downloads.shared.pulls.lock().last_id = saved.last_id.min(SAVED_ID_MAX);
            for pull in saved.pulls.into_iter().take(UNDER_WAY_MAX) {
                downloads.go_on(pull);
            }
        }
        downloads
    }

    /// How the node's hub is asked.
    pub async fn settings(&self) -> Result<Result<Settings, HubError>, AdminError> {
        self.shared.settings_in_time().await
    }

    /// With what is planned whether a reference fits: as if it were to run now.
    pub async fn cluster_for(&self, reference: &Reference) -> Result<FitsCluster, AdminError> {
        let in_layers = comes_in_layers(reference, &self.shared.view.borrow());
        self.shared.cluster_for(reference, in_layers).await
    }

    fn go_on(&self, saved: SavedPull) {
        let Ok(reference) = saved.reference.parse::<Reference>() else {
            tracing::warn!(reference = saved.reference, "a kept download names no model; it is left out");
            return;
        };
        let request = PullRequest {
            reference: saved.reference.clone(),
            ranges_max: saved.ranges_max,
            rate_max_bytes_per_s: saved.rate_max_bytes_per_s,
            endpoint: saved.endpoint.clone(),
            token: None,
            layers_only: saved.layers_only,
            to_run: saved.to_run,
            update_of: saved.update_of.clone(),
            commit: None,
        };
        let waits = saved.is_paused || saved.failed.is_some();
        let wish = if waits { DownloadCommand::Pause } else { DownloadCommand::Run };
        let aimed = self.shared.settings().and_then(|all| settings_for(all, &reference, &request));
        let source = source_of(&reference, aimed.as_ref().ok());
        let mut pulls = self.shared.pulls.lock();
        self.shared.begin(&mut pulls, (reference, source), request, Some(saved), wish, self.stop.clone());
    }

    async fn begin(&self, request: PullRequest) -> Result<PullView, AdminError> {
        if request.ranges_max.is_some_and(|ranges| !(1..=8).contains(&ranges)) {
            return Err(AdminError::invalid("ranges_max", "1 to 8 ranges are fetched at once"));
        }
        if request.rate_max_bytes_per_s == Some(0) {
            return Err(AdminError::invalid("rate_max_bytes_per_s", "a rate must be more than 0"));
        }
        let reference: Reference = request
            .reference
            .parse()
            .map_err(|e: HubError| AdminError::invalid("reference", e.to_string()))?;
        if let Reference::Path(path) = &reference {
            let message = format!("{} is a path: there is nothing to fetch", path.display());
            return Err(AdminError::invalid("reference", message));
        }
        if request.layers_only && !matches!(reference, Reference::Hub(_)) {
            let message = "only a repository of a hub says what its files are before they are fetched";
            return Err(AdminError::invalid("layers_only", message));
        }
        let param = if request.token.is_some() { "token" } else { "endpoint" };
        let settings = self.settings().await?.map_err(|e| AdminError::Conflict { message: chain(&e) })?;
        let aimed = settings_for(settings, &reference, &request);
        let aimed = aimed.map_err(|e| AdminError::invalid(param, e.to_string()))?;
        let source = source_of(&reference, Some(&aimed));
        let view = self.begin_or_go_on(reference, source, request)?;
        self.shared.save_soon();
        Ok(view)
    }

    /// Never waits: who has the lock of the list holds up the loop, which shows it.
    fn begin_or_go_on(
        &self,
        reference: Reference,
        source: String,
        request: PullRequest,
    ) -> Result<PullView, AdminError> {
        let mut pulls = self.shared.pulls.lock();
        let whole = reference.whole();
        let same: Vec<(u64, Arc<Pull>)> = pulls
            .by_id
            .iter()
            .filter(|(_, pull)| pull.reference.whole() == whole && pull.is_same_update(&request))
            .filter(|(_, pull)| *pull.wish.borrow() != DownloadCommand::End)
            .map(|(id, pull)| (*id, pull.clone()))
            .collect();
        for (id, pull) in same {
            match pull.view().state {
                // What is there may be an older commit by now.
                PullState::Done => pulls.take_out(id),
                // Another token, or another rate, is for another attempt.
                PullState::Failed if !pull.is_asked_by(&request) => pulls.take_out(id),
                PullState::Failed | PullState::Paused => {
                    pull.go_on(&self.shared);
                    return Ok(pull.view());
                }
                _ => return Ok(pull.view()),
            }
        }
        // Another commit is wanted in the place of the same model: one that waits must not come after it.
        let is_idle = |pull: &Pull| matches!(pull.view().state, PullState::Failed | PullState::Paused);
        let others = pulls.by_id.iter().filter(|(_, pull)| pull.is_of_same_model(&request) && is_idle(pull));
        let others: Vec<u64> = others.map(|(id, _)| *id).collect();
        others.into_iter().for_each(|id| pulls.take_out(id));
        let under_way = pulls.by_id.values().filter(|pull| !pull.is_over()).count();
        if under_way >= UNDER_WAY_MAX {
            let message = format!("{under_way} downloads are in the list; wait for one, or take some out");
            return Err(AdminError::Conflict { message });
        }
        let (wish, stop) = (DownloadCommand::Run, self.stop.clone());
        Ok(self.shared.begin(&mut pulls, (reference, source), request, None, wish, stop).view())
    }

    fn find(&self, id: &str) -> Result<Arc<Pull>, AdminError> {
        let missing = || AdminError::NotFound { what: "download", name: exo_types::printable(id, 40) };
        let number: u64 = id.parse().map_err(|_| missing())?;
        self.shared.pulls.lock().by_id.get(&number).cloned().ok_or_else(missing)
    }

    /// Wishes something of a download that is not done.
    fn wish(&self, id: &str, wish: DownloadCommand, what: &str) -> Result<PullView, AdminError> {
        let pull = self.find(id)?;
        let view = pull.view();
        if view.state == PullState::Done {
            let message = format!("download {id} is done: there is nothing to {what}");
            return Err(AdminError::Conflict { message });
        }
        match (wish, view.state) {
            (DownloadCommand::Run, PullState::Failed | PullState::Paused) => pull.go_on(&self.shared),
            (_, state) => {
                pull.wish.send_if_modified(|now| {
                    let is_new = *now != wish || state == PullState::Failed;
                    *now = wish;
                    is_new
                });
            }
        }
        self.shared.save_soon();
        Ok(pull.view())
    }

    /// Asks the hub for a client, bounded in time.
    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Client, &Cancel) -> Result<T, HubError> + Send + 'static,
    ) -> Result<T, AdminError> {
        let settings = self.settings().await?.map_err(|e| AdminError::Conflict { message: chain(&e) })?;
        let cancel = Arc::new(Cancel::default());
        let wish = cancel.clone();
        let work = tokio::task::spawn_blocking(move || question(&Client::new(settings), &wish));
        let answer = match tokio::time::timeout(HUB_MAX, work).await {
            Ok(answer) => answer.map_err(|e| AdminError::Failed { message: e.to_string() })?,
            Err(_) => {
                cancel.cancel();
                let reason = format!("the hub did not answer within {} s", HUB_MAX.as_secs());
                return Err(AdminError::Unavailable { reason, retry_after_s: 30 });
            }
        };
        answer.map_err(|error| {
            let hint = error.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
            AdminError::Conflict { message: format!("{}{hint}", chain(&error)) }
        })
    }
}

/// Whether nodes fetch their own layers of what a reference means, where it is to run: of several machines
/// none needs more.
pub fn comes_in_layers(reference: &Reference, view: &ClusterView) -> bool {
    let there = view.nodes.iter().filter(|node| node.status == NodeStatus::Alive);
    matches!(reference, Reference::Hub(_)) && there.count() > 1
}

impl DownloadsInner {
    /// With what the coordinator would place what a reference means, with what nodes have of it already: of
    /// its layers, or this one of its files.
    async fn cluster_for(&self, reference: &Reference, in_layers: bool) -> Result<FitsCluster, AdminError> {
        let cluster = FitsCluster::now(&self.node, &self.view, self.config.usual_cache(), None).await?;
        let (mut known, mut fetches) = (Vec::new(), None);
        match reference {
            Reference::Hub(hub) if in_layers => {
                known = fits::known_in_layers(&self.node, self.library.store().clone(), &hub.repo).await?;
            }
            _ => {
                fetches = Some(FetchesHere { node: self.node_id, root: self.root.clone() });
            }
        }
        Ok(FitsCluster { known: Arc::new(known), fetches, ..cluster })
    }

    fn list(&self) -> Vec<PullView> {
        self.pulls.lock().by_id.values().map(|pull| pull.view()).collect()
    }

    /// Whether the list is kept in a file.
    fn is_kept(&self) -> bool {
        !self.config.is_private
    }

    /// Tells who watches.
    fn changed(&self) {
        self.changes.send_replace(());
    }

    /// Writes the list on a thread that may wait for the disk.
    fn save_soon(self: &Arc<Self>) {
        let shared = self.clone();
        tokio::task::spawn_blocking(move || shared.save());
    }

    /// Writes the list of what is not over.
    fn save(&self) {
        if !self.is_kept() {
            return;
        }
        // From before the look at the list, or of two writers the one with the older list may be the last.
        let _turn = self.saving.lock();
        let (last_id, all) = {
            let pulls = self.pulls.lock();
            (pulls.last_id, pulls.by_id.values().filter_map(|pull| pull.saved()).collect())
        };
        if let Err(error) = saved::write(&self.root, last_id, all) {
            tracing::warn!(%error, "the list of downloads cannot be written; after a restart they have to be asked for again");
        }
    }

    /// How the node's hub is asked. A token may be in a file of the home folder: blocks for its disk.
    fn settings(&self) -> Result<Settings, HubError> {
        hub_settings(&*self.host, &self.config.data_dir)
    }

    /// The same for a task, which must not wait for a disk: the loop runs on the same threads.
    async fn settings_in_time(self: &Arc<Self>) -> Result<Result<Settings, HubError>, AdminError> {
        let shared = self.clone();
        let late = |within: &str| {
            format!(
                "the disk that keeps a token of the hub, in the data or home folder, has not answered in {within}"
            )
        };
        blocking_within(ANSWER_MAX, late, move || shared.settings()).await
    }

    /// What a model may take: of each node that is there its largest device, less a tenth.
    fn memory(&self) -> Option<Memory> {
        let view = self.view.borrow();
        let there = view.nodes.iter().filter(|node| matches!(node.status, NodeStatus::Alive));
        let largest = |node: &exo_api::NodeView| node.devices.iter().map(|d| d.memory_total_bytes).max();
        let each: Vec<u64> = there.filter_map(largest).filter(|bytes| *bytes > 0).collect();
        let bytes = match each.len() {
            // No one has reported yet.
            0 => exo_device::memory(Path::new("/"))?.total_bytes,
            _ => each.iter().fold(0u64, |sum, bytes| sum.saturating_add(*bytes)),
        };
        let of = match each.len() {
            0 | 1 => "this machine".to_owned(),
            n => format!("the {n} machines of the cluster"),
        };
        Some(Memory { bytes: bytes - bytes / 10, of })
    }

    /// Puts a download of a reference, and the host that it is asked of, into the list and starts its task.
    fn begin(
        self: &Arc<Self>,
        pulls: &mut Pulls,
        (reference, source): (Reference, String),
        request: PullRequest,
        pinned: Option<SavedPull>,
        wish: DownloadCommand,
        stop: watch::Receiver<bool>,
    ) -> Arc<Pull> {
        let id = pulls.next_id(pinned.as_ref().map_or(0, |pinned| pinned.id));
        let failed = pinned.as_ref().and_then(|pinned| pinned.failed.clone());
        let view = PullView {
            id: id.to_string(),
            reference: reference.to_string(),
            state: match (failed.is_some(), wish) {
                (true, _) => PullState::Failed,
                (false, DownloadCommand::Pause) => PullState::Paused,
                (false, _) => PullState::Queued,
            },
            node: self.node_id.to_full(),
            node_name: self.config.name.clone(),
            source,
            label: pinned.as_ref().and_then(|p| p.label.clone()),
            commit: pinned.as_ref().and_then(|p| p.commit.clone()),
            error: failed.as_ref().map(|(error, _)| error.clone()),
            hint: failed.and_then(|(_, hint)| hint),
            started_unix_s: pinned.as_ref().map_or_else(unix_s, |p| p.started_unix_s),
            ..PullView::default()
        };
        let pull = Arc::new(Pull::new(view, reference, request, pinned, wish));
        pulls.by_id.insert(id, pull.clone());
        pulls.drop_oldest_over();
        tokio::spawn(drive(self.clone(), pull.clone(), stop));
        self.changed();
        pull
    }
}

impl Pulls {
    /// The id of a download that begins: the one that it had in an earlier run of the node, if any.
    fn next_id(&mut self, earlier: u64) -> u64 {
        let is_free = (1..=SAVED_ID_MAX).contains(&earlier) && !self.by_id.contains_key(&earlier);
        let id = if is_free { earlier } else { self.last_id + 1 };
        self.last_id = self.last_id.max(id);
        id
    }

    fn take_out(&mut self, id: u64) {
        if let Some(pull) = self.by_id.remove(&id) {
            pull.wish.send_replace(DownloadCommand::End);
        }
    }

    fn drop_oldest_over(&mut self) {
        let over = self.by_id.iter().filter(|(_, pull)| pull.is_over());
        let over: Vec<u64> = over.map(|(id, _)| *id).collect();
        for id in over.iter().take(over.len().saturating_sub(OVER_MAX)) {
            self.take_out(*id);
        }
    }
}

/// Folders of the downloads that the node of this data folder goes on with when it starts again.
pub fn waiting_downloads(data_dir: &Path) -> Vec<PathBuf> {
    let root = data_dir.join("hub");
    let saved = saved::read(&root);
    folders_waiting(&root, saved.pulls)
}

/// Of downloads that go on by themselves, or were paused. One that failed may have filled the disk, and
/// begins anew if it is asked for again.
fn folders_waiting(root: &Path, saved: Vec<SavedPull>) -> Vec<PathBuf> {
    let folder = |saved: SavedPull| match saved.folder {
        Some(folder) => Some(folder),
        // Which it is, its hub has yet to say.
        None => saved.reference.parse().ok().map(|reference: Reference| reference.folder()),
    };
    let waiting = saved.into_iter().filter(|saved| saved.failed.is_none());
    waiting.filter_map(folder).map(|folder| root.join(folder)).collect()
}

/// Whether a model is placed, as far as that is known.
fn may_be_placed(placed: Option<&BTreeSet<ModelId>>, id: ModelId) -> bool {
    placed.is_none_or(|placed| placed.contains(&id))
}

/// The host that a reference is asked of; empty where the settings name none.
fn source_of(reference: &Reference, aimed: Option<&Settings>) -> String {
    match (reference, aimed) {
        (Reference::Url(url), _) => host_of(url),
        (Reference::Registry(RegistryReference { host: Some(host), .. }), _) => host_of(host),
        (_, None) => String::new(),
        (Reference::Registry(_), Some(settings)) => host_of(&settings.ollama_registry.to_string()),
        (_, Some(settings)) => host_of(&settings.endpoint.to_string()),
    }
}

/// `https://HOST/…` to `HOST`.
fn host_of(address: &str) -> String {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    exo_types::printable(rest.split(['/', '?', '#']).next().unwrap_or_default(), 100)
}

impl Downloads for NodeDownloads {
    fn start(&self, request: PullRequest) -> BoxFuture<'_, Result<PullView, AdminError>> {
        Box::pin(async move {
            self.check_update(&request).await?;
            self.begin(request).await
        })
    }

    fn list(&self) -> Vec<PullView> {
        self.shared.list()
    }

    fn watch(&self) -> BoxStream<Vec<PullView>> {
        let (shared, mut changes) = (self.shared.clone(), self.shared.changes.subscribe());
        changes.mark_changed();
        Box::pin(futures_util::stream::unfold(
            (shared, changes, true),
            |(shared, mut changes, is_first)| async move {
                if !is_first {
                    tokio::time::sleep(WATCH_EVERY).await;
                }
                changes.changed().await.ok()?;
                let list = shared.pulls.lock().by_id.values().map(|pull| pull.view()).collect();
                Some((list, (shared, changes, false)))
            },
        ))
    }

    fn pause(&self, pull: &str) -> Result<PullView, AdminError> {
        self.wish(pull, DownloadCommand::Pause, "pause")
    }

    fn resume(&self, pull: &str) -> Result<PullView, AdminError> {
        self.wish(pull, DownloadCommand::Run, "go on with")
    }

    fn cancel(&self, id: String) -> BoxFuture<'_, Result<(), AdminError>> {
        Box::pin(async move {
            let pull = self.find(&id)?;
            let mut ended = pull.ended.subscribe();
            pull.wish.send_replace(DownloadCommand::End);
            let shared = self.shared.clone();
            // A task of its own: a client that does not wait for a silent hub has asked for the end all the
            // same.
            let ending = tokio::spawn(async move {
                // Until its thread has let go of the files, another download of the same would be refused.
                let waited = tokio::time::timeout(END_MAX, ended.wait_for(|ended| *ended)).await;
                if waited.is_err() {
                    tracing::warn!(id, seconds = END_MAX.as_secs(), "a download has not ended yet");
                }
                shared.pulls.lock().by_id.retain(|_, listed| !Arc::ptr_eq(listed, &pull));
                shared.save_soon();
                shared.changed();
            });
            let broken = |e| AdminError::Failed { message: format!("ending the download broke off: {e}") };
            ending.await.map_err(broken)
        })
    }

    fn search(&self, request: HubSearchRequest) -> BoxFuture<'_, Result<Vec<FoundRepoView>, AdminError>> {
        Box::pin(async move {
            let found = self.ask(move |client, cancel| client.search(&request.text, cancel)).await?;
            Ok(found.iter().map(found_repo_view).collect())
        })
    }

    fn show(&self, request: HubShowRequest) -> BoxFuture<'_, Result<RepoView, AdminError>> {
        Box::pin(async move {
            let hub = match request.reference.parse() {
                Ok(Reference::Hub(hub)) => Ok(hub),
                Ok(_) => Err("a repository is needed, as in hf.co/ORG/REPO".to_owned()),
                Err(error) => Err(error.to_string()),
            };
            let hub = hub.map_err(|message| AdminError::invalid("reference", message))?;
            let snapshot = self.ask(move |client, cancel| client.snapshot(&hub, cancel)).await?;
            Ok(repo_view(&snapshot))
        })
    }

    fn updates(&self, query: UpdateQuery) -> BoxFuture<'_, Result<Vec<UpdateView>, AdminError>> {
        Box::pin(self.look_for_updates(query))
    }

    fn prune(&self) -> BoxFuture<'_, Result<PrunedView, AdminError>> {
        Box::pin(async move {
            let (shared, library) = (self.shared.clone(), self.shared.library.clone());
            // What is placed is in use. A node that cannot say what is, as it ends or has just begun, deletes
            // no parts.
            let placed = library.room.placed_as_told().await;
            if placed.is_none() {
                tracing::warn!("what is placed is not known: parts of models are not pruned");
            }
            let turn = library.room.turn().await;
            let work = blocking(move || {
                let (_turn, store, root) = (turn, library.store(), &shared.root);
                // As the list is now: what was asked to go on meanwhile waits for its files.
                let saved = shared.pulls.lock().by_id.values().filter_map(|pull| pull.saved()).collect();
                let waiting = folders_waiting(root, saved);
                // A list that cannot be read is not an empty one.
                let known = store.places().map_err(|e| AdminError::Disk { message: chain(&e) })?;
                let kept = KeptDownloads { waiting, known };
                let pruned = exo_hub::forget_partial(root, &kept);
                let (files, bytes) = pruned.map_err(|e| AdminError::Failed { message: chain(&e) })?;
                let listed: Vec<Arc<Pull>> = shared.pulls.lock().by_id.values().cloned().collect();
                listed.iter().for_each(|pull| pull.note_pruned(&shared));
                let placed: Option<BTreeSet<ModelId>> =
                    placed.map(|all| all.iter().map(exo_cluster::InstanceView::model).collect());
                let is_in_use = |id| {
                    let is_needed =
                        may_be_placed(placed.as_ref(), id) || library.room.why_needed(id).is_some();
                    if !is_needed {
                        library.forget(id); // so that its files can go
                    }
                    is_needed
                };
                let pruned = store.prune(&is_in_use);
                let (models, of_parts) = pruned.map_err(|e| AdminError::Disk { message: chain(&e) })?;
                Ok::<_, AdminError>((files + models, bytes + of_parts))
            });
            let (files, bytes) = work.await??;
            list_again(&self.shared.node).await;
            Ok(PrunedView { files: files as u64, bytes })
        })
    }

    fn login(&self, request: HubLoginRequest) -> BoxFuture<'_, Result<(), AdminError>> {
        Box::pin(async move {
            let settings = self.settings().await?.map_err(|e| AdminError::Conflict { message: chain(&e) })?;
            let data_dir = self.shared.config.data_dir.clone();
            let kept = blocking(move || settings.keep_token(&data_dir, &request.token.0)).await?;
            kept.map_err(|error| match error {
                HubError::Disk { .. } => AdminError::Disk { message: chain(&error) },
                _ => AdminError::invalid("token", chain(&error)),
            })
        })
    }

    fn logout(&self) -> BoxFuture<'_, Result<(), AdminError>> {
        Box::pin(async move {
            let data_dir = self.shared.config.data_dir.clone();
            let forgotten = blocking(move || exo_hub::forget_token(&data_dir)).await?;
            forgotten.map(drop).map_err(|e| AdminError::Disk { message: chain(&e) })
        })
    }

    fn found(&self) -> BoxFuture<'_, Result<Vec<FoundModelView>, AdminError>> {
        Box::pin(async move {
            let host = self.shared.host.clone();
            let found = blocking(move || {
                let home = host.home().unwrap_or_default();
                exo_store::local_caches(&home, &|name| host.variable(name))
            });
            Ok(found.await?.iter().map(found_model_view).collect())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_may_be_placed_where_that_is_not_known() {
        let [placed, other] = [ModelId([1; 32]), ModelId([2; 32])];
        let known = BTreeSet::from([placed]);
        assert!(may_be_placed(Some(&known), placed) && !may_be_placed(Some(&known), other));
        assert!(may_be_placed(None, other));
    }

    #[test]
    fn a_download_keeps_the_id_of_an_earlier_run_and_no_id_is_given_twice() {
        let mut pulls = Pulls { last_id: 5, ..Pulls::default() };
        // Of an earlier run, of a version that kept none, from a file that somebody wrote, and new ones.
        assert_eq!([4, 0, u64::MAX, 0].map(|earlier| pulls.next_id(earlier)), [4, 6, 7, 8]);
        assert_eq!([9, 0].map(|earlier| pulls.next_id(earlier)), [9, 10]);
    }
}
