//! What a listener is started with.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;

use crate::api_keys::ApiKeys;
use crate::bundle::{self, Dashboard};
use crate::origins::AllowedOrigin;

/// Settings of one listener. [`ServerOptions::new`] has the defaults; each bound says why it is what it is.
#[derive(Clone)]
pub struct ServerOptions {
    /// The local secret: whoever sends it as a bearer token may use `/exo/v1/*`. Read from its 0600 file by
    /// the caller. Must not be empty.
    pub local_secret: String,
    /// Host names besides `localhost`, `127.0.0.1` and `[::1]` that requests may be addressed to, without
    /// port.
    pub allowed_hosts: Vec<String>,
    /// Pages of other sites that may use the models, with an API key.
    pub allowed_origins: Vec<AllowedOrigin>,
    /// Keys that open `/v1/*`. As soon as there is one, it is needed on loopback as well.
    pub api_keys: ApiKeys,
    /// Whether a proxy stands in front of the TCP listeners: then nothing is administered over them, from
    /// this machine either, and `/v1/*` always needs a key.
    pub is_proxied: bool,
    /// Whether `/metrics` is readable without any key.
    pub metrics_open: bool,
    /// Whether an API key also shows the state of the cluster, from other machines too. It never changes
    /// anything.
    pub keys_see_cluster: bool,
    /// Where hashes of sessions are kept over restarts; `None` to end them all with the server.
    pub sessions_path: Option<PathBuf>,
    /// A session ends when nothing was asked in it for so long.
    pub session_idle_max: Duration,
    /// The files of the page.
    pub dashboard: Dashboard,
    /// For events of the cluster that a reader may ask for again, of all readers together.
    pub events_bytes_max: usize,
    /// Largest request body. A prompt of a million tokens has about four megabytes.
    pub body_bytes_max: usize,
    /// For bodies, the documents they become, and, up to half of it, answers that wait for their readers, of
    /// all clients together. A body alone may take several times its bytes.
    pub bodies_bytes_max: usize,
    /// Of a streamed answer that may wait for its reader: an answer of the usual length in whole, with
    /// probabilities.
    pub unread_bytes_max: usize,
    /// For responses that are kept for `previous_response_id`, of all clients together: thousands of turns.
    pub responses_bytes_max: usize,
    /// For the whole header of a request, and for an idle connection.
    pub header_timeout: Duration,
    /// For the whole body of a request.
    pub body_timeout: Duration,
    /// For the client to take what was written. A client that stops reading is cut off and its slot freed.
    pub write_timeout: Duration,
    /// Connections at once; further ones are answered 503 and closed. Far more than requests may wait: those
    /// get a 429 that says so. With keys, half of them are for connections that have shown one; among the
    /// others the oldest makes place for who comes.
    pub connections_max: usize,
    /// Connections of the local channel at once, which count for themselves: a few commands, and who watches.
    pub local_connections_max: usize,
    /// How long a request may wait for placing, loading and a slot.
    pub queue_wait_max: Duration,
    /// Whether tools of a request that run at their vendor are left out, and named in the answer. They are
    /// refused otherwise.
    pub leave_out_hosted_tools: bool,
    /// Whether streamed answers can go on at another node: another member's memory then has a copy of each.
    pub resume: bool,
    /// Longest silence of the node within a request, which says every 20 s that it watches the request's
    /// deadlines. The last resort of "no request hangs": the deadlines themselves are the node's
    /// (`docs/failure-model.md`).
    pub silence_max: Duration,
    /// How long a streaming request waits in the queue before its headers are sent. Until then a refusal is a
    /// status code; afterwards the client sees why it waits, and a refusal is an `error` event.
    pub stream_headers_after: Duration,
    /// Comment lines while nothing else is sent, so that proxies and people see that it lives.
    pub keep_alive_every: Duration,
    /// For administrative calls to the node.
    pub admin_timeout: Duration,
    /// For running requests to end after the shutdown signal.
    pub shutdown_grace: Duration,
    /// Becomes true when that time is over early; `None` where nobody cuts it short.
    pub shutdown_at_once: Option<watch::Receiver<bool>>,
    /// Has the allocator give back what is free. Called some times after large requests, and may take
    /// milliseconds.
    pub give_freed_memory_back: fn(),
}

impl ServerOptions {
    /// The defaults.
    pub fn new(local_secret: impl Into<String>) -> Self {
        Self {
            local_secret: local_secret.into(),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            api_keys: ApiKeys::default(),
            is_proxied: false,
            metrics_open: false,
            keys_see_cluster: false,
            sessions_path: None,
            session_idle_max: Duration::from_secs(12 * 3600),
            dashboard: bundle::bundled,
            events_bytes_max: 1 << 20,
            body_bytes_max: 8 << 20,
            bodies_bytes_max: 512 << 20,
            unread_bytes_max: 4 << 20,
            responses_bytes_max: 64 << 20,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            connections_max: 2048,
            local_connections_max: 64,
            queue_wait_max: Duration::from_secs(120),
            leave_out_hosted_tools: false,
            resume: true,
            silence_max: Duration::from_secs(150),
            stream_headers_after: Duration::from_secs(2),
            keep_alive_every: Duration::from_secs(5),
            // The node's own waits for its coordinator are shorter, and say what they waited for.
            admin_timeout: Duration::from_secs(50),
            shutdown_grace: Duration::from_secs(3),
            shutdown_at_once: None,
            give_freed_memory_back: || {},
        }
    }

    /// Where keys are needed: connections at once that have shown none. Those with a key always find the
    /// other half.
    pub(crate) fn keyless_connections_max(&self) -> usize {
        self.connections_max.div_ceil(2)
    }
}
