//! Bytes of models that are known before they are fetched, from their hub: for this node's own layers, or for a member that cannot ask
//! the hub itself.
//!
//! Each node asks the hub of its own environment, with its own token, and believes no peer about where that is: a peer says
//! repository, commit and path. A token of a command counts for the model that the command named, in memory only.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use exo_hub::{Cancel, Client, CommitFile, HubError, Settings};
use exo_store::{ChunkError, ChunkRef, Manifest, PartialModel};
use exo_types::ModelId;
use tokio::sync::mpsc;

use crate::host::Host;
use exo_accelerators::chain;

/// Chunks that are fetched for other members at once.
const RELAYS_MAX: usize = 8;

/// A command's token is for the model that it named: for placing it now and again, not for as long as the node runs.
pub const TOKEN_MAX: Duration = Duration::from_secs(12 * 3600);

/// After that what the environment and `exo login hub` say is read again.
const SETTINGS_MAX: Duration = Duration::from_secs(60);

/// The hub as this node reaches it.
pub struct HubBytes {
    host: Arc<dyn Host>,
    data_dir: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// With when they were used last, or made, where no command named the model.
    clients: BTreeMap<ModelId, (Arc<Client>, Instant)>,
    /// Models that a command of this node named. Others are what a member says.
    named: BTreeSet<ModelId>,
    /// Chunks on their way here.
    coming: BTreeMap<ModelId, BTreeSet<ChunkRef>>,
    relays: usize,
}

impl HubBytes {
    /// As the environment says.
    pub fn new(host: Arc<dyn Host>, data_dir: PathBuf) -> Self {
        Self { host, data_dir, state: Mutex::default() }
    }

    /// Asks for this model as a command said.
    pub fn use_settings(&self, model: ModelId, settings: Settings) {
        let client = Arc::new(Client::new(settings));
        let mut state = self.lock();
        state.clients.insert(model, (client, Instant::now()));
        state.named.insert(model);
    }

    /// Lets go of the token for a model that is no more.
    pub fn forget(&self, model: ModelId) {
        let mut state = self.lock();
        state.clients.remove(&model);
        state.named.remove(&model);
    }

    /// Lets go of tokens that nobody needed for long.
    pub fn forget_unused(&self, now: Instant) {
        let mut state = self.lock();
        let is_used = |used_at: Instant| now.duration_since(used_at) < TOKEN_MAX;
        let unused = state.clients.iter().filter(|(_, (_, used_at))| !is_used(*used_at));
        let unused: Vec<ModelId> = unused.map(|(model, _)| *model).collect();
        for model in unused {
            state.clients.remove(&model);
            state.named.remove(&model);
        }
    }

    /// Chunks of a model that are on their way here from its hub.
    pub fn coming(&self, model: ModelId) -> Vec<ChunkRef> {
        self.lock().coming.get(&model).map(|all| all.iter().copied().collect()).unwrap_or_default()
    }

    /// Fetches chunks into `partial`; `progress` is told the bytes of each. Meanwhile they are among those that are [coming](Self::coming).
    pub async fn fetch(
        self: &Arc<Self>,
        partial: &Arc<PartialModel>,
        chunks: &[ChunkRef],
        progress: &mut (dyn FnMut(u64) + Send),
    ) -> Result<(), String> {
        let client = self.client(partial.id()).map_err(|e| chain(&e))?;
        let _coming = Coming::begin(self, partial.id(), chunks);
        let cancel = CancelOnDrop(Arc::new(Cancel::default()));
        let (told, mut heard) = mpsc::unbounded_channel();
        let (wish, partial, chunks) = (cancel.0.clone(), partial.clone(), chunks.to_vec());
        let work = tokio::task::spawn_blocking(move || {
            let mut files: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
            chunks.iter().for_each(|chunk| files.entry(chunk.file).or_default().push(chunk.index));
            files.into_iter().try_for_each(|(file, wanted)| {
                fetch_file(&client, &partial, file, &wanted, &wish, &|bytes| _ = told.send(bytes))
            })
        });
        while let Some(bytes) = heard.recv().await {
            progress(bytes);
        }
        let fetched = work.await.map_err(|e| format!("the transfer broke off: {e}"))?;
        fetched.map_err(|error| match error.hint() {
            Some(hint) => format!("{} ({hint})", chain(&error)),
            None => chain(&error),
        })
    }

    /// A chunk for another member. It stays on no disk here. Only for a model that a command here named it is asked for with a token: else
    /// a member could read whatever that token opens. Blocks.
    pub fn relay(&self, manifest: &Manifest, chunk: ChunkRef) -> Result<Vec<u8>, String> {
        let len = manifest.chunk_len(chunk).ok_or("there is no such chunk")?;
        let client = self.client_of_others(manifest.root()).map_err(|e| chain(&e))?;
        let file = commit_file(&client, manifest, chunk.file).map_err(|e| chain(&e))?;
        let _turn = Relay::begin(self).ok_or("too many chunks are being fetched for others")?;
        let start = u64::from(chunk.index) * u64::from(manifest.chunk_bytes);
        let bytes = file.part(&client, (start, start + len), &Cancel::default());
        bytes.map_err(|e| chain(&e))
    }

    fn client(&self, model: ModelId) -> Result<Arc<Client>, HubError> {
        if let Some(client) = self.known_client(model, Instant::now()) {
            return Ok(client);
        }
        let client = Arc::new(Client::new(self.settings()?));
        let mut state = self.lock();
        // A command may have named the model meanwhile, with a token of its own.
        if let Some((named, _)) = state.clients.get(&model).filter(|_| state.named.contains(&model)) {
            return Ok(named.clone());
        }
        state.clients.insert(model, (client.clone(), Instant::now()));
        Ok(client)
    }

    fn known_client(&self, model: ModelId, now: Instant) -> Option<Arc<Client>> {
        let mut state = self.lock();
        let is_named = state.named.contains(&model);
        let (client, at) = state.clients.get_mut(&model)?;
        if is_named {
            *at = now;
        }
        (now.duration_since(*at) < SETTINGS_MAX).then(|| client.clone())
    }

    fn client_of_others(&self, model: ModelId) -> Result<Arc<Client>, HubError> {
        if self.lock().named.contains(&model) {
            return self.client(model);
        }
        Ok(Arc::new(Client::new(Settings { token: None, ..self.settings()? })))
    }

    /// As the environment says.
    fn settings(&self) -> Result<Settings, HubError> {
        let home = self.host.home().unwrap_or_default();
        Settings::from_env(&home, &self.data_dir, &|name| self.host.variable(name))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn commit_file(client: &Client, manifest: &Manifest, file: u32) -> Result<CommitFile, HubError> {
    let found = manifest.hub.as_ref().zip(manifest.files.get(file as usize));
    let found = found.and_then(|(hub, entry)| Some((hub, entry, hub.files.get(file as usize)?)));
    let Some((hub, entry, at)) = found else {
        let what = format!("the place of file {file} on a hub");
        return Err(HubError::NotFound { host: "no hub".to_owned(), what });
    };
    let sha256 = at.sha256.map(|digest| digest.iter().map(|b| format!("{b:02x}")).collect());
    CommitFile::new(client, &hub.repo, &hub.commit, &at.path, entry.size, sha256)
}

fn fetch_file(
    client: &Client,
    partial: &PartialModel,
    file: u32,
    wanted: &[u32],
    cancel: &Cancel,
    told: &(dyn Fn(u64) + Sync),
) -> Result<(), HubError> {
    let manifest = partial.manifest();
    let at = commit_file(client, manifest, file)?;
    let store =
        |index: u32, _start: u64, bytes: &[u8]| match partial.write_chunk(ChunkRef { file, index }, bytes) {
            Ok(()) => {
                told(bytes.len() as u64);
                Ok(())
            }
            Err(error @ ChunkError::Mismatch { .. }) => Err(HubError::Answer {
                host: client.settings().endpoint.host().unwrap_or_default().to_owned(),
                attempt: format!("fetch {}", at.planned().name),
                problem: error.to_string(),
            }),
            Err(error) => Err(HubError::Disk {
                attempt: "write",
                path: partial.path().to_owned(),
                source: std::io::Error::other(error),
            }),
        };
    at.fetch_chunks(client, manifest.chunk_bytes, wanted, cancel, &store)
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
    model: ModelId,
    chunks: Vec<ChunkRef>,
}

impl<'a> Coming<'a> {
    fn begin(hub: &'a HubBytes, model: ModelId, chunks: &[ChunkRef]) -> Self {
        hub.lock().coming.entry(model).or_default().extend(chunks);
        Self { hub, model, chunks: chunks.to_vec() }
    }
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        let mut state = self.hub.lock();
        if let Some(coming) = state.coming.get_mut(&self.model) {
            self.chunks.iter().for_each(|chunk| _ = coming.remove(chunk));
            if coming.is_empty() {
                state.coming.remove(&self.model);
            }
        }
    }
}

/// One of the chunks that are fetched for others.
struct Relay<'a>(&'a HubBytes);

impl<'a> Relay<'a> {
    fn begin(hub: &'a HubBytes) -> Option<Self> {
        let mut state = hub.lock();
        (state.relays < RELAYS_MAX).then(|| {
            state.relays += 1;
            Self(hub)
        })
    }
}

impl Drop for Relay<'_> {
    fn drop(&mut self) {
        self.0.lock().relays -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::SystemHost;

    #[test]
    fn a_token_goes_with_its_model_and_when_nobody_needed_it_for_long() {
        let hub = HubBytes::new(Arc::new(SystemHost), "/nonexistent".into());
        let settings = || Settings::of("https://hub.example").unwrap().aimed(None, Some("hf_x")).unwrap();
        let has_token = |model| {
            hub.lock().clients.get(&model).is_some_and(|(client, _)| client.settings().token.is_some())
        };
        let (one, two) = (ModelId([1; 32]), ModelId([2; 32]));
        hub.use_settings(one, settings());
        hub.use_settings(two, settings());
        assert!(has_token(one) && has_token(two));
        hub.forget(one);
        assert!(!has_token(one) && !hub.lock().named.contains(&one));
        hub.forget_unused(Instant::now());
        assert!(has_token(two));
        hub.forget_unused(Instant::now() + TOKEN_MAX);
        assert!(!has_token(two) && hub.lock().named.is_empty());
    }
}
