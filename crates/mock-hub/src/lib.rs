//! A model hub on loopback, for tests: the hub's API, files behind redirects to signed addresses that expire,
//! ranges, gates, limits, the error headers, and each of the faults that a hub, a mirror or a line may have,
//! by switch.
//!
//! What it answers is recorded from the hub's documentation and its open clients, not from the service:
//! `docs/models.md` lists it.
//!
//! **Architecture invariant:** no crate of exo is used here, so that client and hub cannot share a mistake.
//!
//! Start reading at [`MockHub`] and [`Faults`].

#![forbid(unsafe_code)]

mod answer;
mod api;
mod content;
mod faults;
mod registry;
mod request;

pub use faults::Faults;
pub use registry::Layer;
pub use request::{Host, ReceivedRequest};

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// A client that says nothing for so long is hung up on.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// A repository that the hub has.
#[derive(Clone, Debug)]
pub struct Repository {
    /// Its commit: 40 hexadecimal digits.
    pub commit: String,
    /// Branches and tags besides `main`, all at that commit.
    pub revisions: Vec<String>,
    /// Its files.
    pub files: BTreeMap<String, File>,
    /// Whether it asks for consent: then a token is needed.
    pub is_gated: bool,
    /// The licence of its card.
    pub licence: Option<String>,
    /// Its name now, if it was renamed.
    pub moved_to: Option<String>,
}

/// A file of a repository.
#[derive(Clone, Debug)]
pub struct File {
    /// Its bytes.
    pub bytes: Arc<Vec<u8>>,
    /// Whether it is large storage: behind a redirect, with its SHA-256 in the tree.
    pub is_lfs: bool,
    /// That digest.
    pub sha256: String,
}

impl Repository {
    /// An open repository with one commit. Weights are large files, all else is small.
    pub fn new(files: &[(&str, Vec<u8>)]) -> Self {
        let file = |(path, bytes): &(&str, Vec<u8>)| ((*path).to_owned(), File::new(path, bytes.clone()));
        Self {
            commit: "0123456789abcdef0123456789abcdef01234567".to_owned(),
            revisions: Vec::new(),
            files: files.iter().map(file).collect(),
            is_gated: false,
            licence: Some("apache-2.0".to_owned()),
            moved_to: None,
        }
    }
}

impl File {
    /// A file of this name: weights are large, all else is small.
    pub fn new(path: &str, bytes: Vec<u8>) -> Self {
        let is_lfs = path.ends_with(".gguf") || path.ends_with(".safetensors");
        Self { sha256: sha256(&bytes), bytes: Arc::new(bytes), is_lfs }
    }
}

pub(crate) struct State {
    pub(crate) repositories: Mutex<BTreeMap<String, Repository>>,
    /// Manifests of the registry, by `NAME:TAG`.
    pub(crate) manifests: Mutex<BTreeMap<String, Vec<u8>>>,
    /// Tokens that the registry has given out, and requests that each is good for.
    pub(crate) registry_tokens: Mutex<Vec<u64>>,
    pub(crate) faults: Mutex<Faults>,
    pub(crate) seen: Mutex<Vec<ReceivedRequest>>,
    /// The token that opens gated repositories.
    pub(crate) token: String,
    pub(crate) hub: SocketAddr,
    pub(crate) cdn: SocketAddr,
    /// Bytes of files that were sent.
    pub(crate) sent_bytes: AtomicU64,
    /// Answers with bytes of files, and signed addresses given out.
    pub(crate) data_answers: AtomicU64,
    pub(crate) signatures: AtomicU64,
    pub(crate) requests: AtomicU64,
    stop: AtomicBool,
}

/// A hub and, on another port, the host that it redirects to. Both end when it is dropped.
pub struct MockHub {
    state: Arc<State>,
}

impl MockHub {
    /// Starts on two free ports of loopback.
    pub fn start() -> io::Result<Self> {
        Self::start_on(0)
    }

    /// Starts with the hub on this port of loopback.
    pub fn start_on(port: u16) -> io::Result<Self> {
        Self::start_at(Ipv4Addr::LOCALHOST.into(), port)
    }

    /// Starts with the hub on this port of an address, which may be one of a network of tests.
    pub fn start_at(address: IpAddr, port: u16) -> io::Result<Self> {
        let (hub, cdn) = (TcpListener::bind((address, port))?, TcpListener::bind((address, 0))?);
        let state = Arc::new(State {
            repositories: Mutex::default(),
            manifests: Mutex::default(),
            registry_tokens: Mutex::default(),
            faults: Mutex::default(),
            seen: Mutex::default(),
            token: "hf_mock_token".to_owned(),
            hub: hub.local_addr()?,
            cdn: cdn.local_addr()?,
            sent_bytes: AtomicU64::new(0),
            data_answers: AtomicU64::new(0),
            signatures: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        });
        for (listener, host) in [(hub, Host::Hub), (cdn, Host::Cdn)] {
            let state = state.clone();
            std::thread::spawn(move || listen(&listener, host, &state));
        }
        Ok(Self { state })
    }

    /// Its address, for `HF_ENDPOINT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.state.hub)
    }

    /// The token that opens its gated repositories.
    pub fn token(&self) -> &str {
        &self.state.token
    }

    /// Has this repository from now on.
    pub fn put(&self, name: &str, repository: Repository) {
        lock(&self.state.repositories).insert(name.to_owned(), repository);
    }

    /// Has this repository no more.
    pub fn remove(&self, name: &str) {
        lock(&self.state.repositories).remove(name);
    }

    /// Has this model in its registry from now on: `NAME` and tag, and layers.
    pub fn put_layers(&self, name: &str, tag: &str, layers: &[Layer]) {
        registry::put(&self.state, name, tag, layers);
    }

    /// Answers with this manifest from now on, whatever it is.
    pub fn put_manifest(&self, name: &str, tag: &str, manifest: &[u8]) {
        lock(&self.state.manifests).insert(format!("{name}:{tag}"), manifest.to_vec());
    }

    /// Has these faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        *lock(&self.state.faults) = faults;
    }

    /// Requests so far.
    pub fn seen(&self) -> Vec<ReceivedRequest> {
        lock(&self.state.seen).clone()
    }

    /// Bytes of files that were sent so far.
    pub fn sent_bytes(&self) -> u64 {
        self.state.sent_bytes.load(Ordering::Relaxed)
    }
}

impl Drop for MockHub {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Relaxed);
        for address in [self.state.hub, self.state.cdn] {
            // Wakes the listener, which then sees that it is to end.
            let _ = TcpStream::connect_timeout(&address, Duration::from_secs(1));
        }
    }
}

fn listen(listener: &TcpListener, host: Host, state: &Arc<State>) {
    for stream in listener.incoming() {
        if state.stop.load(Ordering::Relaxed) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let state = state.clone();
        std::thread::spawn(move || {
            // A client that hangs up is no matter of ours.
            let _ = serve(stream, host, &state);
        });
    }
}

fn serve(stream: TcpStream, host: Host, state: &State) -> io::Result<()> {
    stream.set_read_timeout(Some(IDLE_MAX))?;
    stream.set_write_timeout(Some(IDLE_MAX))?;
    stream.set_nodelay(true)?;
    let mut reader = io::BufReader::new(stream.try_clone()?);
    let mut out = stream;
    while let Some(request) = request::read(&mut reader)? {
        lock(&state.seen).push(request.seen(host));
        state.requests.fetch_add(1, Ordering::Relaxed);
        let keeps_open = match host {
            Host::Hub => api::answer(&request, state, &mut out)?,
            Host::Cdn => content::answer_signed(&request, state, &mut out)?,
        };
        let is_last = request.header("connection").is_some_and(|text| text.eq_ignore_ascii_case("close"));
        if !keeps_open || is_last || state.stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(())
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// SHA-256 in hex.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// What git calls a file of these bytes.
pub fn git_id(bytes: &[u8]) -> String {
    hex(&Sha1::new_with_prefix(format!("blob {}\0", bytes.len())).chain_update(bytes).finalize())
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_git_id_is_what_git_prints() {
        // `printf hello | git hash-object --stdin`
        assert_eq!(super::git_id(b"hello"), "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0");
    }
}
