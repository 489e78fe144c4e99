//! Who may talk to us. The API is local by default, and a web page in the user's own browser is a stranger:
//! it can send requests to loopback, so every request shows that it was meant for us and by whom.
//!
//! - `Host` must be on the allow-list: a page whose DNS name was rebound to 127.0.0.1 sends its own name.
//! - `Origin`, where sent, must be our own, or on routes for text one that the setting `allowed_origins`
//!   names. A page of that origin is let in by an API key alone, and its browser alone is told by CORS
//!   headers that it may read the answer. `Sec-Fetch-Site` likewise.
//! - `POST` must be `application/json`: a form or a "simple" cross-site request cannot be. On `/api/*` no
//!   type and what curl sends by itself pass as well, where no header tells of a browser: Ollama's documented
//!   lines name no type, and libraries that speak to it send none.
//! - `/exo/*` needs the local secret or a session and a connection of this machine that no proxy stands in;
//!   `/v1/*` an API key as soon as there are any, on every listener: a proxy in front of loopback must not
//!   open it. A session opens it as the secret does.
//! - A listener that is told that a proxy stands in front of it takes nobody for near: the proxy may not say
//!   so.
//! - `/metrics` needs an API key on every listener, or the secret near, unless the setting `metrics_open`
//!   says otherwise.
//! - No cookie is ever set or read: all ports of a host share them (decision 0046).
//! - On the local channel the system says who connects: the owner of the node, who may do everything.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HOST, ORIGIN, REFERER};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use exo_stdx::unix_s;
use exo_types::Principal;

use crate::api_keys::{ApiKey, ApiKeys};
use crate::dialect::is_ollama;
use crate::errors::ApiError;
use crate::options::ServerOptions;
use crate::origins::{self, AllowedOrigin};
use crate::sessions::{SessionId, Sessions, TOKEN_PREFIX};

/// Who is at the client's end of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// Somebody at this address.
    At(SocketAddr),
    /// The user whose node this is, over the local channel.
    Owner,
}

/// By what a request was let in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// The local channel, or the local secret.
    Owner,
    /// A browser's session; `save` when the file of sessions should hear that it is in use.
    Session { id: SessionId, save: bool },
    /// An API key.
    Key,
    /// Nothing, where nothing is needed.
    Open,
}

/// Headers by which a proxy says that it forwards, besides all whose names have one of [`FORWARDING_PARTS`].
const FORWARDING: [&str; 5] =
    ["via", "x-real-ip", "cf-connecting-ip", "x-original-host", "x-envoy-external-address"];
const FORWARDING_PARTS: [&str; 2] = ["forwarded", "client-ip"];

/// What our page says of what it asks by itself, when nobody has touched it for a while. Else a page that is
/// left open would keep its session for good.
const UNATTENDED: &str = "exo-unattended";

/// Whose page sends an origin.
enum OriginIs {
    /// This node's.
    Own,
    /// One of a site that the setting names.
    Allowed,
    /// Any other.
    Foreign,
}

/// The rules of one listener.
pub struct Guard {
    /// Whether the listener is reachable from this machine only.
    loopback: bool,
    hosts: Vec<String>,
    origins: Vec<AllowedOrigin>,
    secret: ApiKey,
    keys: ApiKeys,
    keys_see_cluster: bool,
    /// A proxy stands in front of the listener, whether it says so or not.
    is_proxied: bool,
    sessions: Arc<Sessions>,
}

impl Guard {
    /// The rules for a listener at `address`.
    pub fn new(address: SocketAddr, options: &ServerOptions, sessions: Arc<Sessions>) -> Self {
        let own = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned);
        let more = options.allowed_hosts.iter().map(|h| h.to_ascii_lowercase());
        Self {
            loopback: address.ip().to_canonical().is_loopback(),
            hosts: own.into_iter().chain(more).collect(),
            origins: options.allowed_origins.clone(),
            secret: ApiKey::from_key(&options.local_secret),
            keys: options.api_keys.clone(),
            keys_see_cluster: options.keys_see_cluster,
            is_proxied: options.is_proxied,
            sessions,
        }
    }

    /// What holds for every request.
    pub fn check(&self, request: &Parts) -> Result<(), ApiError> {
        let host = self.check_host(request)?;
        self.check_origin(&request.headers, &host, request.uri.path())?;
        check_content(&request.method, &request.headers, request.uri.path())
    }

    fn check_host(&self, request: &Parts) -> Result<String, ApiError> {
        let mut hosts = request.headers.get_all(HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            let message = "a request needs exactly one Host header";
            return Err(ApiError::invalid(StatusCode::BAD_REQUEST, "bad_host", message));
        };
        let host = host.to_str().unwrap_or_default().to_ascii_lowercase();
        // A proxy-style request line (`GET http://name/`) names a host of its own.
        let named = request.uri.authority().map(|a| a.as_str().to_ascii_lowercase());
        for authority in std::iter::once(&host).chain(&named) {
            if !self.allows_host(authority) {
                let message =
                    format!("requests to host `{authority:.100}` are not answered; see `allowed_hosts`");
                return Err(ApiError::forbidden("host_not_allowed", message));
            }
        }
        Ok(host)
    }

    fn allows_host(&self, authority: &str) -> bool {
        let Ok(parsed) = authority.parse::<Authority>() else { return false };
        let name = parsed.host();
        if authority.contains('@') {
            return false;
        }
        // An address cannot be rebound: who names it, means it. On loopback the short list is enough.
        let is_address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
        self.hosts.iter().any(|h| h == name) || (is_address && !self.loopback)
    }

    fn check_origin(&self, headers: &HeaderMap, host: &str, path: &str) -> Result<(), ApiError> {
        let refused = |message: String| ApiError::forbidden("origin_not_allowed", message);
        let mut is_of_allowed = false;
        if headers.get_all(ORIGIN).iter().nth(1).is_some() {
            return Err(refused("a request has at most one Origin header".to_owned()));
        }
        if let Some(origin) = headers.get(ORIGIN) {
            let origin = origin.to_str().unwrap_or("another origin").to_ascii_lowercase();
            match self.origin_is(&origin, host) {
                OriginIs::Own => {}
                OriginIs::Allowed if origins::is_for_text(path) => is_of_allowed = true,
                OriginIs::Allowed => {
                    let message = format!("a page of `{origin:.100}` may use the models and nothing else");
                    return Err(refused(message));
                }
                // A page without an origin cannot be named.
                OriginIs::Foreign if origins::is_for_text(path) && origin != "null" => {
                    let message = format!(
                        "a page of `{origin:.100}` may not call this API; the setting `allowed_origins` lets one in that has an API key"
                    );
                    return Err(refused(message));
                }
                OriginIs::Foreign => {
                    return Err(refused(format!("a page of `{origin:.100}` may not call this API")));
                }
            }
        }
        // Browsers tell it even where they send no Origin. A link to the landing page is fine.
        let site = headers.get("sec-fetch-site").map(|v| v.as_bytes());
        match site {
            Some(b"cross-site" | b"same-site") if path != "/" && !is_of_allowed => {
                Err(refused("a page of another site may not call this API".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Of an origin in lower case.
    fn origin_is(&self, origin: &str, host: &str) -> OriginIs {
        let own = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        match own == Some(host) {
            true => OriginIs::Own,
            false if origins::allows(&self.origins, origin) => OriginIs::Allowed,
            false => OriginIs::Foreign,
        }
    }

    /// The origin of a page of another site that may use the models, if a request for text has one: what its
    /// browser is told.
    pub fn shared_with(&self, headers: &HeaderMap, path: &str) -> Option<HeaderValue> {
        let host = headers.get(HOST)?.to_str().ok()?.to_ascii_lowercase();
        let origin = headers.get(ORIGIN)?;
        let is_allowed = |origin: &str| matches!(self.origin_is(origin, &host), OriginIs::Allowed);
        let text = origin.to_str().ok()?.to_ascii_lowercase();
        (origins::is_for_text(path) && is_allowed(&text)).then(|| origin.clone())
    }

    /// On whose behalf a request to `/v1/*` runs.
    pub fn principal(&self, headers: &HeaderMap, peer: Peer) -> Result<(Principal, Caller), ApiError> {
        if peer == Peer::Owner {
            return Ok((Principal::LOCAL, Caller::Owner));
        }
        let given = [bearer(headers), api_key(headers)];
        if let Some(key) = self.key(&given) {
            return Ok((key.principal(), Caller::Key));
        }
        // Of an origin that is not ours: the rules of every request have looked at it.
        let is_shared = self.shared_with(headers, "/v1/").is_some();
        if is_shared {
            let message = "a page of another site needs one of the API keys that the setting `api_keys` of this node has";
            let is_missing = given.iter().all(Option::is_none);
            let code = if is_missing { "missing_api_key" } else { "invalid_api_key" };
            return Err(ApiError::unauthorized(code, message));
        }
        if self.is_secret(&given) && self.is_near(headers, peer) {
            return Ok((Principal::LOCAL, Caller::Owner));
        }
        if let Some(session) = self.near_session(headers, peer) {
            return Ok((Principal::LOCAL, session));
        }
        if !self.needs_key() {
            return Ok((Principal::LOCAL, Caller::Open));
        }
        match given.into_iter().flatten().next() {
            None => {
                let message = "an API key is needed: send `Authorization: Bearer KEY` or `x-api-key: KEY`";
                Err(ApiError::unauthorized("missing_api_key", message))
            }
            Some(token) if token.starts_with(TOKEN_PREFIX) => Err(session_ended()),
            Some(_) => Err(ApiError::unauthorized("invalid_api_key", "the API key is not known here")),
        }
    }

    /// Whether a program without a session needs an API key on this listener.
    pub fn needs_key(&self) -> bool {
        !self.loopback || self.is_proxied || self.keys.are_needed()
    }

    /// Whether a request may read `/metrics`: with an API key on every listener, with the local secret or a
    /// session from this machine.
    pub fn check_metrics(&self, headers: &HeaderMap, peer: Peer) -> Result<Caller, ApiError> {
        if peer == Peer::Owner {
            return Ok(Caller::Owner);
        }
        let given = [bearer(headers), api_key(headers)];
        if self.key(&given).is_some() {
            return Ok(Caller::Key);
        }
        if self.is_secret(&given) && self.is_near(headers, peer) {
            return Ok(Caller::Owner);
        }
        if let Some(session) = self.near_session(headers, peer) {
            return Ok(session);
        }
        match given.into_iter().flatten().next() {
            None => Err(ApiError::unauthorized(
                "missing_api_key",
                "metrics need an API key or the local secret: send `Authorization: Bearer KEY`; see the setting `metrics_open`",
            )),
            Some(_) => Err(ApiError::unauthorized("invalid_api_key", "the API key is not known here")),
        }
    }

    /// The API key that a request has shown.
    fn key(&self, given: &[Option<&str>]) -> Option<ApiKey> {
        let given: Vec<_> = given.iter().flatten().map(|key| ApiKey::from_key(key)).collect();
        self.keys.find(&given)
    }

    fn is_secret(&self, given: &[Option<&str>]) -> bool {
        given.iter().flatten().fold(false, |any, key| any | ApiKey::from_key(key).matches(&self.secret))
    }

    fn session(&self, headers: &HeaderMap) -> Option<Caller> {
        let token = bearer(headers)?;
        if headers.contains_key(UNATTENDED) {
            let id = self.sessions.look(token, unix_s())?;
            return Some(Caller::Session { id, save: false });
        }
        let (id, save) = self.sessions.find(token, unix_s())?;
        Some(Caller::Session { id, save })
    }

    /// The session of a request that comes from this machine.
    fn near_session(&self, headers: &HeaderMap, peer: Peer) -> Option<Caller> {
        self.session(headers).filter(|_| self.is_near(headers, peer))
    }

    /// Whether this is the local secret.
    pub fn knows_secret(&self, secret: &str) -> bool {
        self.is_secret(&[Some(secret)])
    }

    /// Refuses what comes from another machine or through a proxy: what it brings would cross the network in
    /// clear.
    pub fn check_near(&self, headers: &HeaderMap, peer: Peer) -> Result<(), ApiError> {
        if self.is_near(headers, peer) {
            return Ok(());
        }
        let message = "administrative routes answer on this machine only, and through no proxy";
        Err(ApiError::forbidden("local_only", message))
    }

    /// Whether a request may use `/exo/v1/*`.
    pub fn check_admin(&self, headers: &HeaderMap, peer: Peer) -> Result<Caller, ApiError> {
        if peer == Peer::Owner {
            return Ok(Caller::Owner);
        }
        self.check_near(headers, peer)?;
        match bearer(headers) {
            None => {
                let message = "the local secret or a session is needed: send `Authorization: Bearer SECRET`, or run `exo open`";
                Err(ApiError::unauthorized("missing_local_secret", message))
            }
            Some(given) if self.knows_secret(given) => Ok(Caller::Owner),
            Some(given) => self.session(headers).ok_or_else(|| {
                if given.starts_with(TOKEN_PREFIX) {
                    return session_ended();
                }
                ApiError::unauthorized("invalid_local_secret", "that is not the local secret of this node")
            }),
        }
    }

    /// Whether a request may see the cluster.
    pub fn check_viewer(&self, headers: &HeaderMap, peer: Peer) -> Result<Caller, ApiError> {
        let is_key = self.key(&[bearer(headers), api_key(headers)]).is_some();
        if is_key && self.keys_see_cluster {
            return Ok(Caller::Key);
        }
        self.check_admin(headers, peer)
    }

    /// Whether the client is on this machine, with no proxy in between that says so or that the listener was
    /// told of.
    pub fn is_near(&self, headers: &HeaderMap, peer: Peer) -> bool {
        match peer {
            Peer::Owner => true,
            Peer::At(address) => {
                let forwards = |name: &str| {
                    FORWARDING.contains(&name) || FORWARDING_PARTS.iter().any(|part| name.contains(part))
                };
                let is_forwarded = self.is_proxied || headers.keys().any(|name| forwards(name.as_str()));
                address.ip().to_canonical().is_loopback() && !is_forwarded
            }
        }
    }

    /// Who sends a request, if that is anybody known.
    pub fn check_known(&self, headers: &HeaderMap, peer: Peer) -> Result<Caller, ApiError> {
        if self.key(&[bearer(headers), api_key(headers)]).is_some() {
            return Ok(Caller::Key);
        }
        self.check_admin(headers, peer)
    }
}

fn session_ended() -> ApiError {
    ApiError::unauthorized("session_ended", "this session has ended: run `exo open` for another one")
}

fn check_content(method: &Method, headers: &HeaderMap, path: &str) -> Result<(), ApiError> {
    if !matches!(*method, Method::POST | Method::PUT | Method::PATCH) {
        return Ok(());
    }
    let unsupported =
        |m: &str| ApiError::invalid(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", m);
    let kind = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    let is_json = essence.eq_ignore_ascii_case("application/json");
    // Ollama takes what `curl -d` calls a form, and what litellm calls nothing.
    let is_untold = !headers.contains_key(CONTENT_TYPE)
        || essence.eq_ignore_ascii_case("application/x-www-form-urlencoded");
    let is_for_ollama = is_untold && is_ollama(path) && !tells_of_a_browser(headers);
    if !is_json && !is_for_ollama {
        return Err(unsupported("a request with a body needs `Content-Type: application/json`"));
    }
    match headers.get(CONTENT_ENCODING).map(|v| v.as_bytes()) {
        None | Some(b"identity") => Ok(()),
        Some(_) => Err(unsupported("compressed bodies are not supported")),
    }
}

/// A browser marks every `POST` of a page with one of these.
fn tells_of_a_browser(headers: &HeaderMap) -> bool {
    headers.contains_key(ORIGIN)
        || headers.contains_key(REFERER)
        || headers.keys().any(|name| name.as_str().starts_with("sec-fetch-"))
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Where Anthropic's clients put the key.
fn api_key(headers: &HeaderMap) -> Option<&str> {
    headers.get("x-api-key")?.to_str().ok().map(str::trim)
}
