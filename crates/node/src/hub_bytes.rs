//! Bytes of models that are known before they are fetched, from their hub: for this node's own layers, or for
//! a member that cannot ask the hub itself.
//!
//! Each node asks the hub of its own environment, with its own token, and believes no peer about where that
//! is: a peer says repository, commit and path. A token of a command counts for the model that the command
//! named, in memory only.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_hub::{Cancel, Client, CommitFile, HubError, Origin, OriginFile, Settings};
use exo_stdx::Mutex;
use exo_store::{ChunkError, ChunkRef, Manifest, PartialModel, StoreError};
use exo_types::ModelId;

use crate::bulk::{ChunkRun, FetchProgress, ProgressSender};
use crate::host::Host;
use exo_accelerators::chain;

/// Chunks that are fetched for other members at once.
const RELAYS_MAX: usize = 8;
/// For one of them: the member waits for 30 s, and then gives this one up.
const RELAY_MAX: Duration = Duration::from_secs(25);
/// For a chunk of a whole copy that a disk has damaged.
const REPAIR_MAX: Duration = Duration::from_secs(120);
/// After the hub has failed, until it is asked again where members fetch meanwhile; doubled with each failure
/// in a row.
const HUB_AGAIN: Duration = Duration::from_secs(20);
const HUB_AGAIN_MAX: Duration = Duration::from_secs(600);
/// The longest that the hub may ask to wait, in all, before that is an error.
const HUB_WAIT_MAX: Duration = Duration::from_secs(600);

/// A command's token is for the model that it named: for placing it now and again, not for as long as the
/// node runs.
pub const TOKEN_MAX: Duration = Duration::from_secs(12 * 3600);

/// After that what the environment and `exo login hub` say is read again.
const SETTINGS_MAX: Duration = Duration::from_secs(60);

/// The hub as this node reaches it.
pub struct HubBytes {
    host: Arc<dyn Host>,
    data_dir: PathBuf,
    state: Mutex<HubState>,
}

#[derive(Default)]
struct HubState {
    /// With when they were used last, or made, where no command named the model.
    clients: BTreeMap<ModelId, (Arc<Client>, Instant)>,
    /// Models that a command of this node named. Others are what a member says.
    named: BTreeSet<ModelId>,
    /// What is on its way here, by the number of its batch.
    coming: BTreeMap<(ModelId, u64), ComingChunks>,
    /// What fetches under way are for, each with a number of its own.
    wanted: BTreeMap<(ModelId, u64), Vec<ChunkRun>>,
    last_number: u64,
    relays: usize,
    /// The client for what members ask for of models that no command here named: one, so that its connections
    /// and addresses last.
    without_token: Option<(Arc<Client>, Instant)>,
    hub: HubTries,
}

/// Chunks that are asked of the hub together.
struct ComingChunks {
    chunks: Vec<ChunkRef>,
    /// Knows how long the hub asks to wait.
    cancel: Arc<Cancel>,
}

/// Why chunks did not come from the hub.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubBytesError {
    #[error("{}", said(.0))]
    Hub(HubError),
    #[error("the hub asks to wait {seconds} s before the next request")]
    Waits { seconds: u64 },
    /// For a member: it waits no longer.
    #[error("the hub did not give the chunk within {seconds} s")]
    Late { seconds: u64 },
    /// For a member: others come first.
    #[error("{RELAYS_MAX} chunks are being fetched for others already")]
    Busy,
    #[error("there is no such chunk")]
    NoChunk,
    /// An address, or a registry: what is there now may be something else.
    #[error("where it came from has no commit, so only members give a part of it")]
    NoCommit,
    #[error("the transfer broke off")]
    Broken(#[from] tokio::task::JoinError),
}

impl From<HubError> for HubBytesError {
    fn from(error: HubError) -> Self {
        Self::Hub(error)
    }
}

/// An error of the hub with what would help.
fn said(error: &HubError) -> String {
    match error.hint() {
        Some(hint) => format!("{} ({hint})", chain(error)),
        None => chain(error),
    }
}

/// What is remembered of how the hub answered this node: of each model, and of the wait that it asked for.
#[derive(Default)]
struct HubTries {
    failures: BTreeMap<ModelId, HubFailure>,
    /// Since when it asks to wait, and until when.
    waits: Option<(Instant, Instant)>,
}

struct HubFailure {
    at: Instant,
    /// In a row.
    count: u32,
    reason: String,
}

impl HubTries {
    /// Models that are remembered.
    const MAX: usize = 64;

    fn is_to_be_asked(&self, model: ModelId, now: Instant) -> bool {
        let again = |failure: &HubFailure| {
            HUB_AGAIN.saturating_mul(1 << failure.count.saturating_sub(1).min(8)).min(HUB_AGAIN_MAX)
        };
        let failure = self.failures.get(&model);
        failure.is_none_or(|failure| now.duration_since(failure.at) >= again(failure))
    }

    fn succeeded(&mut self, model: ModelId) {
        self.failures.remove(&model);
        self.waits = None;
    }

    fn failed(&mut self, model: ModelId, at: Instant, reason: String) {
        let count = self.failures.get(&model).map_or(1, |before| before.count.saturating_add(1));
        if self.failures.len() >= Self::MAX {
            self.failures.clear();
        }
        self.failures.insert(model, HubFailure { at, count, reason });
    }

    fn note_wait(&mut self, now: Instant, error: &HubError) {
        let HubError::Limited { asked_s, .. } = error else { return };
        // One that has long been over is another.
        let before = self.waits.filter(|(_, until)| now.saturating_duration_since(*until) < HUB_AGAIN_MAX);
        let since = before.map_or(now, |(since, _)| since);
        // Far in the future is as good as that.
        let until = now + Duration::from_secs((*asked_s).min(1 << 20));
        self.waits = Some((since, until));
    }

    fn wait_left(&self, now: Instant) -> Option<Duration> {
        let (since, until) = self.waits?;
        let is_bearable = until.duration_since(since) <= HUB_WAIT_MAX;
        (now < until && is_bearable).then(|| until - now)
    }
}

impl HubState {
    fn new_key(&mut self, model: ModelId) -> (ModelId, u64) {
        self.last_number += 1;
        (model, self.last_number)
    }

    /// How long the hub is not to be asked, as it said to an earlier fetch or to one that waits now.
    fn wait_left(&self, now: Instant) -> Option<Duration> {
        let of_batches = self.coming.values().filter_map(|batch| batch.cancel.long_wait_left());
        of_batches.chain(self.hub.wait_left(now)).max()
    }
}

impl HubBytes {
    /// As the environment says.
    pub fn new(host: Arc<dyn Host>, data_dir: PathBuf) -> Self {
        Self { host, data_dir, state: Mutex::default() }
    }

    /// Asks for this model as a command said.
    pub fn use_settings(&self, model: ModelId, settings: Settings) {
        let client = Arc::new(Client::new(settings));
        let mut state = self.state.lock();
        state.clients.insert(model, (client, Instant::now()));
        state.named.insert(model);
    }

    /// Lets go of the token for a model that is no more.
    pub fn forget(&self, model: ModelId) {
        let mut state = self.state.lock();
        state.clients.remove(&model);
        state.named.remove(&model);
        state.hub.failures.remove(&model);
    }

    /// Lets go of tokens that no one needed for long.
    pub fn forget_unused(&self, now: Instant) {
        let mut state = self.state.lock();
        let is_used = |used_at: Instant| now.duration_since(used_at) < TOKEN_MAX;
        let unused = state.clients.iter().filter(|(_, (_, used_at))| !is_used(*used_at));
        let unused: Vec<ModelId> = unused.map(|(model, _)| *model).collect();
        for model in unused {
            state.clients.remove(&model);
            state.named.remove(&model);
        }
    }

    /// Chunks of a model that are on their way here from its hub, in order: not those of a batch that has to
    /// wait for long, as others may get them sooner.
    pub fn coming(&self, model: ModelId) -> Vec<ChunkRef> {
        let state = self.state.lock();
        let batches = state.coming.range((model, 0)..=(model, u64::MAX)).map(|(_, batch)| batch);
        let come = batches.filter(|batch| batch.cancel.long_wait_left().is_none());
        let chunks: BTreeSet<ChunkRef> = come.flat_map(|batch| &batch.chunks).copied().collect();
        chunks.into_iter().collect()
    }

    /// These chunks are wanted as long as what is returned is there.
    pub fn want(&self, model: ModelId, chunks: &[ChunkRef]) -> WantedChunks<'_> {
        let mut state = self.state.lock();
        let key = state.new_key(model);
        state.wanted.insert(key, runs(chunks));
        WantedChunks { hub: self, key }
    }

    /// What is wanted of a model here; nothing while this node does not ask the hub for it itself.
    pub fn wanted(&self, model: ModelId, now: Instant) -> Vec<ChunkRun> {
        let state = self.state.lock();
        if state.wait_left(now).is_some() || !state.hub.is_to_be_asked(model, now) {
            return Vec::new();
        }
        let of_model = state.wanted.range((model, 0)..=(model, u64::MAX));
        of_model.flat_map(|(_, runs)| runs).copied().collect()
    }

    /// Fetches chunks into `partial`. Meanwhile they are among those that are [coming](Self::coming). Whether
    /// the hub answers is remembered for the next fetch: [`Self::is_to_be_asked`], [`Self::hub_wait`].
    pub async fn fetch(
        self: &Arc<Self>,
        partial: &Arc<PartialModel>,
        chunks: &[ChunkRef],
        progress: &ProgressSender,
    ) -> Result<(), HubBytesError> {
        let id = partial.id();
        if let Some(wait) = self.hub_wait(Instant::now()) {
            return Err(HubBytesError::Waits { seconds: wait.as_secs() });
        }
        let hub = self.clone();
        // A token may be in a file, and its disk may not answer.
        let client = tokio::task::spawn_blocking(move || hub.client(id)).await??;
        let cancel = CancelOnDrop(Arc::new(Cancel::default()));
        let _coming = Coming::begin(self, id, chunks, &cancel.0);
        let (wish, partial, chunks) = (cancel.0.clone(), partial.clone(), chunks.to_vec());
        let progress = progress.clone();
        let work = tokio::task::spawn_blocking(move || {
            let mut files: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
            chunks.iter().for_each(|chunk| files.entry(chunk.file).or_default().push(chunk.index));
            files
                .into_iter()
                .try_for_each(|(file, wanted)| fetch_file(&client, &partial, file, &wanted, &wish, &progress))
        });
        let fetched = work.await?;
        self.note(id, Instant::now(), &fetched);
        Ok(fetched?)
    }

    /// A chunk for another member. It stays on no disk here. Only for a model that a command here named it is
    /// asked for with a token: else a member could read whatever that token opens. Gives up before the member
    /// does. Blocks.
    pub fn relay(&self, manifest: &Manifest, chunk: ChunkRef) -> Result<Vec<u8>, HubBytesError> {
        let len = manifest.chunk_len(chunk).ok_or(HubBytesError::NoChunk)?;
        if let Some(wait) = self.hub_wait(Instant::now()) {
            return Err(HubBytesError::Waits { seconds: wait.as_secs() });
        }
        // Before all that may take a while, and the time counts from here.
        let _turn = Relay::begin(self).ok_or(HubBytesError::Busy)?;
        let in_time = Cancel::within(RELAY_MAX);
        let client = self.client_of_others(manifest.root())?;
        let file = commit_file(&client, manifest, chunk.file)?;
        let start = u64::from(chunk.index) * u64::from(manifest.chunk_bytes);
        let bytes = file.part(&client, (start, start + len), &in_time);
        if let Err(error @ HubError::Limited { .. }) = &bytes {
            self.state.lock().hub.note_wait(Instant::now(), error);
        }
        match bytes {
            Err(HubError::Cancelled) => Err(HubBytesError::Late { seconds: RELAY_MAX.as_secs() }),
            bytes => Ok(bytes?),
        }
    }

    /// A chunk of a model that a download brought whole, at the commit that it came from. Blocks.
    pub fn chunk_at(
        &self,
        origin: &Origin,
        model: ModelId,
        manifest: &Manifest,
        chunk: ChunkRef,
    ) -> Result<Vec<u8>, HubBytesError> {
        if let Some(wait) = self.hub_wait(Instant::now()) {
            return Err(HubBytesError::Waits { seconds: wait.as_secs() });
        }
        let commit = origin.commit.as_deref().ok_or(HubBytesError::NoCommit)?;
        let found = manifest.chunk_len(chunk).zip(manifest.files.get(chunk.file as usize));
        let (len, entry) = found.ok_or(HubBytesError::NoChunk)?;
        let is_named =
            |path: &str| Path::new(path).file_name().is_some_and(|name| name == entry.name.as_str());
        let is_it = |file: &&OriginFile| file.size == entry.size && is_named(&file.path);
        let of_hub = origin.files.iter().find(is_it).ok_or(HubBytesError::NoChunk)?;
        let client = self.client(model)?;
        let sha256 = of_hub.sha256.clone();
        let file = CommitFile::new(&client, &origin.repo, commit, &of_hub.path, of_hub.size, sha256)?;
        let start = manifest.chunk_start(chunk);
        Ok(file.part(&client, (start, start + len), &Cancel::within(REPAIR_MAX))?)
    }

    /// Whether this node asks the hub for this model itself: after failures members are asked first, longer
    /// and longer.
    pub fn is_to_be_asked(&self, model: ModelId, now: Instant) -> bool {
        self.state.lock().hub.is_to_be_asked(model, now)
    }

    /// What was wrong the last time, to be displayed.
    pub fn last_failure(&self, model: ModelId) -> Option<String> {
        self.state.lock().hub.failures.get(&model).map(|failure| failure.reason.clone())
    }

    /// How long the hub is not to be asked, as it said; `None` too if that is longer than anyone waits.
    pub fn hub_wait(&self, now: Instant) -> Option<Duration> {
        self.state.lock().wait_left(now)
    }

    fn note(&self, model: ModelId, now: Instant, fetched: &Result<(), HubError>) {
        let hub = &mut self.state.lock().hub;
        match fetched {
            Ok(()) => hub.succeeded(model),
            // Of an own disk that takes nothing the hub is not to be blamed.
            Err(HubError::Cancelled | HubError::Disk { .. }) => {}
            Err(error) => {
                let reason = said(error);
                tracing::debug!(%model, reason, "the hub gives no chunks; members are asked to fetch them");
                hub.note_wait(now, error);
                hub.failed(model, now, reason);
            }
        }
    }

    fn client(&self, model: ModelId) -> Result<Arc<Client>, HubError> {
        if let Some(client) = self.known_client(model, Instant::now()) {
            return Ok(client);
        }
        let client = Arc::new(Client::new(self.settings()?));
        let mut state = self.state.lock();
        // A command may have named the model meanwhile, with a token of its own.
        if let Some((named, _)) = state.clients.get(&model).filter(|_| state.named.contains(&model)) {
            return Ok(named.clone());
        }
        state.clients.insert(model, (client.clone(), Instant::now()));
        Ok(client)
    }

    fn known_client(&self, model: ModelId, now: Instant) -> Option<Arc<Client>> {
        let mut state = self.state.lock();
        let is_named = state.named.contains(&model);
        let (client, at) = state.clients.get_mut(&model)?;
        if is_named {
            *at = now;
        }
        (now.duration_since(*at) < SETTINGS_MAX).then(|| client.clone())
    }

    fn client_of_others(&self, model: ModelId) -> Result<Arc<Client>, HubError> {
        if self.state.lock().named.contains(&model) {
            return self.client(model);
        }
        let now = Instant::now();
        if let Some((client, made_at)) = &self.state.lock().without_token
            && now.duration_since(*made_at) < SETTINGS_MAX
        {
            return Ok(client.clone());
        }
        let client = Arc::new(Client::new(Settings { token: None, ..self.settings()? }));
        self.state.lock().without_token = Some((client.clone(), now));
        Ok(client)
    }

    fn settings(&self) -> Result<Settings, HubError> {
        hub_settings(&*self.host, &self.data_dir)
    }
}

/// What the environment of the node says of hubs.
pub fn hub_settings(host: &dyn Host, data_dir: &Path) -> Result<Settings, HubError> {
    let home = host.home().unwrap_or_default();
    Settings::from_env(&home, data_dir, &|name| host.variable(name))
}

fn commit_file(client: &Client, manifest: &Manifest, file: u32) -> Result<CommitFile, HubError> {
    let found = manifest.hub.as_ref().zip(manifest.files.get(file as usize));
    let found = found.and_then(|(hub, entry)| Some((hub, entry, hub.files.get(file as usize)?)));
    let Some((hub, entry, at)) = found else {
        let what = format!("the place of file {file} on a hub");
        return Err(HubError::NotFound { host: "no hub".to_owned(), what });
    };
    let sha256 = at.sha256.map(|digest| exo_types::hex(&digest));
    CommitFile::new(client, &hub.repo, &hub.commit, &at.path, entry.size, sha256)
}

fn fetch_file(
    client: &Client,
    partial: &PartialModel,
    file: u32,
    wanted: &[u32],
    cancel: &Cancel,
    progress: &ProgressSender,
) -> Result<(), HubError> {
    let manifest = partial.manifest();
    let at = commit_file(client, manifest, file)?;
    let is_here = |index: u32| partial.has_chunk(ChunkRef { file, index });
    let store = |index: u32, _start: u64, bytes: &[u8]| match progress.write(
        partial,
        ChunkRef { file, index },
        bytes,
        None,
    ) {
        Ok(()) => Ok(()),
        Err(error @ ChunkError::Mismatch { .. }) => Err(HubError::Answer {
            host: client.settings().endpoint.host().unwrap_or_default().to_owned(),
            attempt: format!("fetch {}", at.planned().name),
            problem: error.to_string(),
        }),
        Err(error) => Err(HubError::Disk {
            attempt: "write",
            path: partial.path().to_owned(),
            source: disk_error(error),
        }),
    };
    let mut in_flight = |bytes| {
        // What is not whole is not waited for any more then.
        if !cancel.is_cancelled() {
            progress.tell(FetchProgress::InFlight(bytes));
        }
    };
    at.fetch_chunks(client, manifest.chunk_bytes, wanted, cancel, (&store, &is_here), &mut in_flight)
}

/// A full disk remains one, with the advice for it.
fn disk_error(error: ChunkError) -> std::io::Error {
    match error {
        ChunkError::Store(StoreError::DiskFull { .. }) => {
            std::io::Error::new(std::io::ErrorKind::StorageFull, error)
        }
        error => std::io::Error::other(error),
    }
}

/// Ends the work of a thread with the task that waits for it.
struct CancelOnDrop(Arc<Cancel>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Chunks are on their way as long as this is there.
struct Coming<'a> {
    hub: &'a HubBytes,
    key: (ModelId, u64),
}

impl<'a> Coming<'a> {
    fn begin(hub: &'a HubBytes, model: ModelId, chunks: &[ChunkRef], cancel: &Arc<Cancel>) -> Self {
        let mut state = hub.state.lock();
        let key = state.new_key(model);
        let batch = ComingChunks { chunks: chunks.to_vec(), cancel: cancel.clone() };
        state.coming.insert(key, batch);
        Self { hub, key }
    }
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.hub.state.lock().coming.remove(&self.key);
    }
}

/// Chunks in order, as runs.
fn runs(chunks: &[ChunkRef]) -> Vec<ChunkRun> {
    let mut runs: Vec<ChunkRun> = Vec::new();
    for first in chunks.iter().copied() {
        let last = runs.last_mut().filter(|run| {
            run.first.file == first.file && run.first.index.checked_add(run.count) == Some(first.index)
        });
        match last {
            Some(run) => run.count += 1,
            None => runs.push(ChunkRun { first, count: 1 }),
        }
    }
    runs
}

/// Chunks are wanted as long as this is there.
pub struct WantedChunks<'a> {
    hub: &'a HubBytes,
    key: (ModelId, u64),
}

impl Drop for WantedChunks<'_> {
    fn drop(&mut self) {
        self.hub.state.lock().wanted.remove(&self.key);
    }
}

/// One of the chunks that are fetched for others.
struct Relay<'a>(&'a HubBytes);

impl<'a> Relay<'a> {
    fn begin(hub: &'a HubBytes) -> Option<Self> {
        let mut state = hub.state.lock();
        (state.relays < RELAYS_MAX).then(|| {
            state.relays += 1;
            Self(hub)
        })
    }
}

impl Drop for Relay<'_> {
    fn drop(&mut self) {
        self.0.state.lock().relays -= 1;
    }
}

#[cfg(test)]
mod tests {
    use exo_store::{FileEntry, ModelKind};

    use super::*;
    use crate::host::SystemHost;

    #[test]
    fn a_hub_that_failed_is_asked_again_later_and_later_for_that_model_until_it_answers() {
        let (mut hub, start, model) = (HubTries::default(), Instant::now(), ModelId([1; 32]));
        assert!(hub.is_to_be_asked(model, start));
        hub.failed(model, start, "503".to_owned());
        assert!(
            !hub.is_to_be_asked(model, start + HUB_AGAIN / 2) && hub.is_to_be_asked(model, start + HUB_AGAIN)
        );
        assert!(hub.is_to_be_asked(ModelId([2; 32]), start));
        hub.failed(model, start, "401".to_owned());
        assert!(
            !hub.is_to_be_asked(model, start + HUB_AGAIN) && hub.is_to_be_asked(model, start + 2 * HUB_AGAIN)
        );
        (0..50).for_each(|_| hub.failed(model, start, "401".to_owned()));
        assert!(hub.is_to_be_asked(model, start + HUB_AGAIN_MAX));
        assert_eq!(hub.failures[&model].reason, "401");
        hub.succeeded(model);
        assert!(hub.is_to_be_asked(model, start));
    }

    #[test]
    fn a_wait_that_the_hub_asked_for_outlives_the_fetch_and_ends_at_ten_minutes_in_all() {
        let (mut hub, start) = (HubTries::default(), Instant::now());
        let limited = |asked_s| HubError::Limited { host: "h".to_owned(), asked_s, max_s: 20 };
        let at = |s: u64| start + Duration::from_secs(s);
        hub.note_wait(start, &limited(300));
        assert_eq!(hub.wait_left(at(100)), Some(Duration::from_secs(200)));
        assert_eq!(hub.wait_left(at(300)), None);
        hub.note_wait(at(300), &limited(300));
        assert_eq!(hub.wait_left(at(400)), Some(Duration::from_secs(200)));
        hub.note_wait(at(600), &limited(30));
        assert_eq!(hub.wait_left(at(610)), None, "that is an error from here on");
        hub.succeeded(ModelId([1; 32]));
        hub.note_wait(at(700), &limited(30));
        assert!(hub.wait_left(at(710)).is_some());
        hub.succeeded(ModelId([1; 32]));
        hub.note_wait(start, &limited(u64::MAX));
        assert_eq!(hub.wait_left(at(1)), None);
    }

    #[test]
    fn what_fetches_are_for_is_wanted_until_they_end_and_while_the_hub_is_asked_here() {
        let hub = HubBytes::new(Arc::new(SystemHost), "/nonexistent".into());
        let (model, now) = (ModelId([1; 32]), Instant::now());
        let chunk = |index| ChunkRef { file: 0, index };
        let run = |index, count| ChunkRun { first: chunk(index), count };
        let of_head =
            hub.want(model, &[chunk(0), chunk(1), chunk(2), ChunkRef { file: 1, index: 3 }, chunk(9)]);
        let of_layers = hub.want(model, &[chunk(5)]);
        let in_other = ChunkRun { first: ChunkRef { file: 1, index: 3 }, count: 1 };
        assert_eq!(hub.wanted(model, now), [run(0, 3), in_other, run(9, 1), run(5, 1)]);
        assert!(hub.wanted(ModelId([2; 32]), now).is_empty());
        assert!(run(5, 2).has(chunk(6)) && !run(5, 2).has(chunk(7)) && !run(5, 2).has(chunk(4)));
        assert!(!run(5, 2).has(ChunkRef { file: 1, index: 5 }));
        drop(of_head);
        hub.state.lock().hub.failed(model, now, "no route".to_owned());
        assert!(hub.wanted(model, now).is_empty(), "another is to ask");
        assert_eq!(hub.wanted(model, now + HUB_AGAIN), [run(5, 1)]);
        drop(of_layers);
        assert!(hub.wanted(model, now + HUB_AGAIN).is_empty());
    }

    #[test]
    fn a_full_disk_is_told_as_one_with_what_makes_room() {
        let full = || StoreError::DiskFull { path: "/d/m.gguf".into(), bytes: 65536 };
        let told = |error: ChunkError| {
            let (attempt, path) = ("write", PathBuf::from("/d/m.gguf"));
            let error = HubError::Disk { attempt, path, source: disk_error(error) };
            (said(&error), error.hint().is_some())
        };
        let (text, has_hint) = told(full().into());
        assert!(text.contains("the disk is full: 65536 bytes") && has_hint, "{text}");
        let source = std::io::Error::from_raw_os_error(5);
        let failed = StoreError::Io { attempt: "write", path: "/d/m.gguf".into(), bytes: 65536, source };
        let (text, has_hint) = told(failed.into());
        assert!(text.contains("os error 5") && !has_hint, "{text}");
    }

    #[test]
    fn what_members_ask_for_is_asked_with_one_client_and_no_token() {
        let folder = tempfile::tempdir().unwrap();
        let hub = HubBytes::new(Arc::new(SystemHost), folder.path().into());
        let (one, two) = (ModelId([1; 32]), ModelId([2; 32]));
        let settings = Settings::of("https://hub.example").unwrap().aimed(None, Some("hf_x")).unwrap();
        hub.use_settings(two, settings);
        let client = hub.client_of_others(one).unwrap();
        assert!(Arc::ptr_eq(&client, &hub.client_of_others(ModelId([3; 32])).unwrap()));
        assert!(client.settings().token.is_none());
        assert!(hub.client_of_others(two).unwrap().settings().token.is_some(), "a command named it");
    }

    #[test]
    fn eight_chunks_are_fetched_for_others_at_once_and_each_that_ends_makes_room() {
        let hub = HubBytes::new(Arc::new(SystemHost), "/nonexistent".into());
        let mut turns: Vec<Relay<'_>> = (0..8).map(|_| Relay::begin(&hub).unwrap()).collect();
        assert!(Relay::begin(&hub).is_none());
        turns.pop();
        assert!(Relay::begin(&hub).is_some());
    }

    #[test]
    fn a_chunk_for_a_member_takes_its_place_before_anything_else_is_done_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let hub = HubBytes::new(Arc::new(SystemHost), folder.path().into());
        let (size, head_bytes) = (9, 0);
        let entry =
            FileEntry { name: "m".to_owned(), size, head_bytes, shared: vec![], chunks: vec![[1; 32]] };
        let name = "m".to_owned();
        let (kind, files) = (ModelKind::Gguf, vec![entry]);
        let manifest = Manifest { version: 1, name, kind, chunk_bytes: 4096, files, hub: None };
        let relay = || hub.relay(&manifest, ChunkRef { file: 0, index: 0 });
        let turns: Vec<_> = (0..RELAYS_MAX).map(|_| Relay::begin(&hub).unwrap()).collect();
        assert!(matches!(relay(), Err(HubBytesError::Busy)), "{:?}", relay());
        drop(turns);
        // No hub is known for it: its place is free again after that.
        assert!(matches!(relay(), Err(HubBytesError::Hub(HubError::NotFound { .. }))), "{:?}", relay());
        assert_eq!(hub.state.lock().relays, 0);
    }

    #[test]
    fn a_token_goes_with_its_model_and_when_nobody_needed_it_for_long() {
        let hub = HubBytes::new(Arc::new(SystemHost), "/nonexistent".into());
        let settings = || Settings::of("https://hub.example").unwrap().aimed(None, Some("hf_x")).unwrap();
        let has_token = |model| {
            hub.state.lock().clients.get(&model).is_some_and(|(client, _)| client.settings().token.is_some())
        };
        let (one, two) = (ModelId([1; 32]), ModelId([2; 32]));
        hub.use_settings(one, settings());
        hub.use_settings(two, settings());
        assert!(has_token(one) && has_token(two));
        hub.forget(one);
        assert!(!has_token(one) && !hub.state.lock().named.contains(&one));
        hub.forget_unused(Instant::now());
        assert!(has_token(two));
        hub.forget_unused(Instant::now() + TOKEN_MAX);
        assert!(!has_token(two) && hub.state.lock().named.is_empty());
    }
}
