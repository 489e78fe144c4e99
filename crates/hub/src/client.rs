//! Requests to a hub: which way, with or without the token, along which redirects.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use exo_stdx::Mutex;
use ureq::config::Config;
use ureq::http::{HeaderMap, Response, Uri, header};
use ureq::tls::{RootCerts, TlsConfig, TlsProvider};
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Body};

use crate::answers;
use crate::body::{BodyError, Bounds};
use crate::cancel::DOCUMENT_TRIES_MAX;
use crate::errors::quoted;
use crate::problems::AnswerProblem;
use crate::{Cancel, HubError, ReferenceProblem, Settings, address, body, redirect, retry};

const CONNECT_MAX: Duration = Duration::from_secs(10);
const FIRST_BYTE_MAX: Duration = Duration::from_secs(20);
/// A page of a list, a description, an index of shards.
const JSON_BYTES_MAX: u64 = 16 << 20;
const ERROR_BYTES_MAX: u64 = 64 << 10;
/// Silences that make the time of a whole document: 60 s by default. What an error says of itself has two.
const DOCUMENT_STALLS: u32 = 12;
/// Files whose signed addresses are remembered.
const LOCATED_MAX: usize = 256;
const HEADER_BYTES_MAX: usize = 64 << 10;
/// What the hub says of a token that is none, or not one any more, whatever was asked for.
const TOKEN_REFUSED: &str = "Invalid credentials";

/// A hub, and the connections to it. Share it between threads.
pub struct Client {
    settings: Settings,
    /// For hosts of this machine: through no proxy.
    direct: Agent,
    /// For whatever a person named.
    open: Agent,
    /// For where a public host redirected to: reaches no private address, whatever its name resolves to.
    guarded: Agent,
    seen: Arc<SeenHosts>,
    /// By scheme, host and port.
    registry_tokens: Mutex<BTreeMap<(String, String, u16), String>>,
    /// The signed addresses that the hub redirected to, by that of the file, until they expire.
    located: Mutex<BTreeMap<String, Uri>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// One answer, of the last host of a chain of redirects.
pub(crate) struct HubResponse {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// Headers of the hub itself, if it redirected.
    pub(crate) hub_headers: HeaderMap,
    /// Who answered.
    pub(crate) uri: Uri,
    pub(crate) body: Body,
}

impl Client {
    /// A client of the hub that the settings name.
    pub fn new(settings: Settings) -> Self {
        let seen = Arc::new(SeenHosts::default());
        let agent = |proxy: Option<ureq::Proxy>, refuses_private: bool| {
            let proxy_host = proxy.as_ref().map(|p| p.host().to_ascii_lowercase());
            let resolver = GuardedResolver {
                inner: DefaultResolver::default(),
                seen: seen.clone(),
                proxy_host,
                refuses_private,
            };
            Agent::with_parts(config(proxy, settings.stall), DefaultConnector::default(), resolver)
        };
        let (direct, open) = (agent(None, false), agent(settings.proxy.clone(), false));
        let guarded = agent(settings.proxy.clone(), true);
        let (registry_tokens, located) = (Mutex::default(), Mutex::default());
        Self { settings, direct, open, guarded, seen, registry_tokens, located }
    }

    /// The settings it was made with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// An address of the hub's API or of a file in it. `path` begins with a slash.
    pub(crate) fn hub_uri(&self, path: &str) -> Result<Uri, HubError> {
        let base = self.settings.endpoint.to_string();
        let text = format!("{}{path}", base.trim_end_matches('/'));
        let refused = || HubError::Reference { text: quoted(path), reason: ReferenceProblem::NoAddress };
        text.parse().map_err(|_| refused())
    }

    /// Fails if nothing may be asked for.
    pub(crate) fn check_online(&self, what: impl FnOnce() -> String) -> Result<(), HubError> {
        self.settings.offline.map_or(Ok(()), |why| Err(HubError::Offline { what: what(), why }))
    }

    /// One GET, redirects followed by our rules. `located` is the address that the hub redirected to the last
    /// time, if any: the rules hold for it too. `range` is start and end (exclusive) of the bytes wanted,
    /// `accept` the types of a document.
    pub(crate) fn get(
        &self,
        uri: &Uri,
        located: Option<&Uri>,
        range: Option<(u64, u64)>,
        accept: Option<&str>,
    ) -> Result<HubResponse, Failure> {
        self.check_online(|| address::without_query(&uri.to_string())).map_err(Failure::Final)?;
        let first = uri.clone();
        let (mut at, mut hub_headers) = (located.unwrap_or(uri).clone(), HeaderMap::new());
        for hop in usize::from(located.is_some())..=redirect::HOPS_MAX {
            let response = self.request(&at, &first, hop, range, accept).map_err(Failure::Connection)?;
            let location = answers::header(response.headers(), "location").map(str::to_owned);
            let Some(location) = location.filter(|_| response.status().is_redirection()) else {
                let status = response.status().as_u16();
                let (parts, body) = response.into_parts();
                return Ok(HubResponse { status, headers: parts.headers, hub_headers, uri: at, body });
            };
            if hop == 0 {
                hub_headers = response.headers().clone();
            }
            let first_is_public = self.is_public(&first);
            at = redirect::target(&at, &location, first_is_public).map_err(Failure::Final)?;
        }
        let reason = format!("more than {} redirects in a row", redirect::HOPS_MAX);
        let (from, to) = (address::host(&first), address::without_query(&at.to_string()));
        Err(Failure::Final(HubError::Redirect { from, to, reason }))
    }

    fn request(
        &self,
        at: &Uri,
        first: &Uri,
        hop: usize,
        range: Option<(u64, u64)>,
        accept: Option<&str>,
    ) -> Result<Response<Body>, ureq::Error> {
        let agent = match address::is_loopback(at) {
            true => &self.direct,
            false if hop > 0 && self.is_public(first) => &self.guarded,
            false => &self.open,
        };
        let mut request = agent.get(at);
        if range.is_none() {
            // A hub may think about a document; bytes of a file come or they do not.
            request = request.config().timeout_per_read(Some(FIRST_BYTE_MAX)).build();
        }
        if let Some(token) = self.settings.token_for(at) {
            request = request.header(header::AUTHORIZATION, token.bearer());
        } else if let Some(token) = self.registry_token(at) {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some(accept) = accept {
            request = request.header(header::ACCEPT, accept);
        }
        if let Some((start, end)) = range {
            request = request.header(header::RANGE, format!("bytes={start}-{}", end.saturating_sub(1)));
        }
        request.call()
    }

    /// What a registry gave out for reading, which goes to no other host.
    fn registry_token(&self, at: &Uri) -> Option<String> {
        let tokens = self.registry_tokens.lock();
        tokens.get(&address::origin(at)?).cloned()
    }

    pub(crate) fn keep_registry_token(&self, of: &Uri, token: String) {
        if let Some(origin) = address::origin(of) {
            self.registry_tokens.lock().insert(origin, token);
        }
    }

    /// Where the bytes of a file were the last time.
    pub(crate) fn located(&self, file: &Uri) -> Option<Uri> {
        self.located.lock().get(&file.to_string()).cloned()
    }

    pub(crate) fn keep_located(&self, file: &Uri, at: &Uri) {
        let mut located = self.located.lock();
        if located.len() >= LOCATED_MAX {
            located.clear(); // each costs one more question
        }
        located.insert(file.to_string(), at.clone());
    }

    /// It is no good any more.
    pub(crate) fn forget_located(&self, file: &Uri) {
        self.located.lock().remove(&file.to_string());
    }

    /// Whether a host is one of the internet. One that was never resolved here, because a proxy did, counts
    /// as such.
    pub(crate) fn is_public(&self, uri: &Uri) -> bool {
        if address::is_loopback(uri) {
            return false;
        }
        match address::literal(uri) {
            Some(ip) => address::is_public(ip),
            None => self.seen.is_public(uri.host().unwrap_or_default()).unwrap_or(true),
        }
    }

    /// A small document of the hub, of a repository if it is of one.
    pub(crate) fn document(
        &self,
        uri: &Uri,
        attempt: &str,
        repo: Option<&str>,
        cancel: &Cancel,
    ) -> Result<Document, HubError> {
        let answer = self.get_again(uri, None, None, attempt, cancel)?;
        match answer.status {
            200 => self.read_document(answer, attempt, cancel),
            _ => Err(self.refusal(answer, attempt, repo)),
        }
    }

    /// One GET, waited for and made again as [`retry`] says.
    pub(crate) fn get_again(
        &self,
        uri: &Uri,
        range: Option<(u64, u64)>,
        accept: Option<&str>,
        attempt: &str,
        cancel: &Cancel,
    ) -> Result<HubResponse, HubError> {
        let (mut tries, mut waited) = (0, Duration::ZERO);
        loop {
            tries += 1;
            let answer = match self.get(uri, None, range, accept) {
                Ok(answer) => {
                    cancel.note_failed_tries(0);
                    answer
                }
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Connection(error))
                    if tries < DOCUMENT_TRIES_MAX && retry::is_passing(&error) =>
                {
                    cancel.note_failed_tries(tries);
                    pause(cancel, retry::backoff(tries))?;
                    continue;
                }
                Err(Failure::Connection(error)) => return Err(unreachable(uri, attempt, tries, error)),
            };
            if let Some(asked) = retry::asked_wait(answer.status, &answer.headers, tries) {
                waited = waited.saturating_add(asked);
                check_wait(&answer.uri, waited, wait_max(cancel))?;
                pause_as_asked(cancel, asked)?;
                continue;
            }
            match answer.status {
                500..600 if tries < DOCUMENT_TRIES_MAX => pause(cancel, retry::backoff(tries))?,
                _ => return Ok(answer),
            }
        }
    }

    /// What an answer that is no success means. Only a repository has a page to accept: addresses and
    /// registries have none.
    pub(crate) fn refusal(&self, mut answer: HubResponse, attempt: &str, repo: Option<&str>) -> HubError {
        let host = address::host(&answer.uri);
        let code = answers::header(&answer.headers, "x-error-code").unwrap_or_default().to_owned();
        let message = answers::header(&answer.headers, "x-error-message").map(str::to_owned);
        let body = || {
            let stall = self.settings.stall;
            let bounds = Bounds { bytes_max: ERROR_BYTES_MAX, time_max: stall.saturating_mul(2), stall };
            let bytes = body::read(&mut answer.body, &bounds, &Cancel::default()).ok()?;
            let value: serde_json::Value = serde_json::from_slice(&bytes).ok()?;
            Some(value.get("error")?.as_str()?.to_owned())
        };
        let said = message.or_else(body).map(|m| format!(": {}", quoted(&m))).unwrap_or_default();
        let Some(repo) = repo else {
            return HubError::Status { host, attempt: attempt.to_owned(), status: answer.status, said };
        };
        let is_token_refused = answer.status == 401
            && said.contains(TOKEN_REFUSED)
            && self.settings.token_for(&answer.uri).is_some();
        match (answer.status, code.as_str()) {
            _ if is_token_refused => {
                HubError::Status { host, attempt: attempt.to_owned(), status: answer.status, said }
            }
            (_, "GatedRepo") => {
                HubError::Gated { repo: repo.to_owned(), advice: self.gate_advice(repo, "its page") }
            }
            (401 | 403, _) => {
                let look = self.gate_advice(repo, "its page, if it asks for consent,");
                let advice = format!(
                    "{host} answered {}{said}; look whether the name is right, and if it is {look}",
                    answer.status
                );
                HubError::Hidden { repo: repo.to_owned(), advice }
            }
            (404, "RevisionNotFound") => {
                HubError::NotFound { host, what: format!("such revision of {repo}{said}") }
            }
            (404, "EntryNotFound") => HubError::NotFound { host, what: format!("such file in {repo}{said}") },
            (404, _) => HubError::NotFound { host, what: format!("{repo}{said}") },
            (status, _) => HubError::Status { host, attempt: attempt.to_owned(), status, said },
        }
    }

    /// The whole answer, if it is small and comes in time.
    pub(crate) fn read_document(
        &self,
        mut answer: HubResponse,
        attempt: &str,
        cancel: &Cancel,
    ) -> Result<Document, HubError> {
        let host = address::host(&answer.uri);
        let wrong =
            |problem: String| HubError::Answer { host: host.clone(), attempt: attempt.to_owned(), problem };
        if answers::is_encoded(&answer.headers) {
            return Err(wrong("it is compressed, which was not asked for".to_owned()));
        }
        let (stall, bytes_max) = (self.settings.stall, JSON_BYTES_MAX);
        let bounds = Bounds { bytes_max, time_max: stall.saturating_mul(DOCUMENT_STALLS), stall };
        let bytes = body::read(&mut answer.body, &bounds, cancel).map_err(|error| match error {
            BodyError::Cancelled => HubError::Cancelled,
            BodyError::Broken(problem) => wrong(problem),
            BodyError::TooLarge => HubError::TooLarge {
                what: format!("the answer of {host} to the attempt to {attempt}, in bytes"),
                found: bytes_max + 1,
                max: bytes_max,
            },
        })?;
        Ok(Document { bytes, headers: answer.headers, uri: answer.uri })
    }

    fn gate_advice(&self, repo: &str, page: &str) -> String {
        let address = format!("{}/{repo}", self.settings.endpoint.to_string().trim_end_matches('/'));
        let token = match &self.settings.token {
            None => "; then set HF_TOKEN to a token of that account, or give it once with `exo login hub`",
            Some(_) if !self.settings.carries_token() => {
                "; the token was not sent, because HF_ENDPOINT is http and not this machine: give an https address"
            }
            Some(_) => " with the account that the token is of",
        };
        format!("accept {page} at {address}{token}")
    }
}

/// A failed attempt: of the connection, which may be better at the next one, or for good.
pub(crate) enum Failure {
    Connection(ureq::Error),
    Final(HubError),
}

/// A small answer, whole.
pub(crate) struct Document {
    pub(crate) bytes: Vec<u8>,
    pub(crate) headers: HeaderMap,
    pub(crate) uri: Uri,
}

impl Document {
    /// Its JSON as a value of ours.
    pub(crate) fn parsed<T>(
        &self,
        attempt: &str,
        parse: impl Fn(&[u8]) -> Result<T, AnswerProblem>,
    ) -> Result<T, HubError> {
        parse(&self.bytes).map_err(|problem| HubError::Answer {
            host: address::host(&self.uri),
            attempt: attempt.to_owned(),
            problem: problem.to_string(),
        })
    }
}

/// The longest wait that a hub may ask for: no longer than there is time.
pub(crate) fn wait_max(cancel: &Cancel) -> Duration {
    cancel.time_left().map_or(retry::RETRY_AFTER_MAX, |left| left.min(retry::RETRY_AFTER_MAX))
}

/// Fails if a hub asks to wait longer, in all, than that.
pub(crate) fn check_wait(uri: &Uri, in_all: Duration, wait_max: Duration) -> Result<(), HubError> {
    if in_all <= wait_max {
        return Ok(());
    }
    let (asked_s, max_s) = (in_all.as_secs(), wait_max.as_secs());
    Err(HubError::Limited { host: address::host(uri), asked_s, max_s })
}

pub(crate) fn pause(cancel: &Cancel, time: Duration) -> Result<(), HubError> {
    if cancel.wait(time) { Err(HubError::Cancelled) } else { Ok(()) }
}

/// The same for a wait that the hub asks for.
pub(crate) fn pause_as_asked(cancel: &Cancel, time: Duration) -> Result<(), HubError> {
    if cancel.wait_as_asked(time) { Err(HubError::Cancelled) } else { Ok(()) }
}

pub(crate) fn unreachable(uri: &Uri, attempt: &str, tries: u32, source: ureq::Error) -> HubError {
    HubError::Unreachable {
        host: address::host(uri),
        attempt: attempt.to_owned(),
        tries,
        source: Box::new(source),
    }
}

fn config(proxy: Option<ureq::Proxy>, stall: Duration) -> Config {
    let tls = TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .root_certs(RootCerts::PlatformVerifier)
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build();
    Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .proxy(proxy)
        .tls_config(tls)
        .user_agent(concat!("exo/", env!("CARGO_PKG_VERSION")))
        .accept_encoding("identity")
        .max_response_header_size(HEADER_BYTES_MAX)
        .max_idle_connections_per_host(8)
        .timeout_connect(Some(CONNECT_MAX))
        .timeout_resolve(Some(CONNECT_MAX))
        .timeout_send_request(Some(CONNECT_MAX))
        .timeout_recv_response(Some(FIRST_BYTE_MAX))
        .timeout_per_read(Some(stall))
        .build()
}

/// What names resolved to, as far as redirects ask.
#[derive(Debug, Default)]
struct SeenHosts(Mutex<BTreeMap<String, bool>>);

impl SeenHosts {
    const MAX: usize = 64;

    fn is_public(&self, host: &str) -> Option<bool> {
        self.0.lock().get(&host.to_ascii_lowercase()).copied()
    }

    fn note(&self, host: &str, addresses: &[SocketAddr]) {
        let mut seen = self.0.lock();
        if seen.len() < Self::MAX {
            let is_public = addresses.iter().any(|a| address::is_public(a.ip()));
            seen.entry(host.to_ascii_lowercase()).or_insert(is_public);
        }
    }
}

/// The system's resolver; remembers what is public, and for redirects of public hosts refuses what is not.
#[derive(Debug)]
struct GuardedResolver {
    inner: DefaultResolver,
    seen: Arc<SeenHosts>,
    /// A proxy may be on a private network: a person named it.
    proxy_host: Option<String>,
    refuses_private: bool,
}

impl Resolver for GuardedResolver {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let host = uri.host().unwrap_or_default();
        let addresses = self.inner.resolve(uri, config, timeout).map_err(|error| match error {
            // The system's resolver has no kind of error of its own for a name that it does not find.
            ureq::Error::Io(error) => {
                tracing::debug!(host = quoted(host), %error, "a name was not resolved");
                ureq::Error::HostNotFound
            }
            error => error,
        })?;
        if self.proxy_host.as_deref() == Some(&host.to_ascii_lowercase()) {
            return Ok(addresses);
        }
        self.seen.note(host, &addresses);
        if !self.refuses_private {
            return Ok(addresses);
        }
        // Private ones among public ones are left out: some networks add theirs.
        let mut public = self.empty();
        addresses.iter().filter(|a| address::is_public(a.ip())).for_each(|a| public.push(*a));
        if public.is_empty() {
            let reason =
                format!("{} resolves to a private address, and a public host led here", quoted(host));
            return Err(ureq::Error::Other(reason.into()));
        }
        Ok(public)
    }
}
