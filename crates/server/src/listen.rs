//! Accepting connections, a bounded number of them, and ending them in order.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use exo_local_channel::{LocalListener, LocalStream};
use exo_stdx::Repeats;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::connection_slots::{ConnectionSlot, ConnectionSlots};
use crate::dashboard::ANSWER_POLICY;
use crate::guard::Peer;
use crate::options::ServerOptions;
use crate::timed_io::TimedIo;

/// Largest header of a request, all lines together.
const HEADER_BYTES_MAX: usize = 64 << 10;
/// Pause after a failed accept, usually for want of file descriptors: trying at once would only burn the
/// core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Failed accepts come twenty times a second.
const FAILURES_TOLD_EVERY: Duration = Duration::from_secs(10);
/// For telling a client that there is no room.
const REFUSAL_TIME: Duration = Duration::from_secs(1);
/// Clients being told so at once; beyond it they are only closed.
const REFUSALS_MAX: usize = 32;

/// Where connections come from.
pub trait Listen {
    /// One of them.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// How many of them there may be. Each listener has its own.
    fn slots(options: &ServerOptions) -> Arc<ConnectionSlots> {
        ConnectionSlots::new(options.connections_max, options.keyless_connections_max())
    }

    /// The next one, and who is at its other end.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Peer)>> + Send;
}

impl Listen for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Peer)> {
        let (stream, peer) = Self::accept(self).await?;
        // Tokens are small and must not wait for each other.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%peer, %error, "no TCP_NODELAY");
        }
        Ok((stream, Peer::At(peer)))
    }
}

/// Where the user whose node this is connects, and nobody else but root.
impl Listen for LocalListener {
    type Stream = LocalStream;

    fn slots(options: &ServerOptions) -> Arc<ConnectionSlots> {
        ConnectionSlots::new(options.local_connections_max, 0)
    }

    async fn accept(&self) -> io::Result<(LocalStream, Peer)> {
        Ok((Self::accept(self).await?, Peer::Owner))
    }
}

/// When answers have been ended, their last events get so long to be written.
const LAST_EVENTS_TIME: Duration = Duration::from_secs(1);

/// Serves until `stopping` is cancelled, then lets connections end for the grace time, and what is ended
/// behind it be said.
pub async fn run<L: Listen>(
    listener: L,
    router: Router,
    options: ServerOptions,
    stopping: CancellationToken,
) {
    let mut connections = JoinSet::new();
    let slots = L::slots(&options);
    let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
    let mut failures = Repeats::new(FAILURES_TOLD_EVERY);
    loop {
        let (stream, peer) = tokio::select! {
            () = stopping.cancelled() => break,
            // Finished tasks are taken out as they end, so that the set does not grow.
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    if let Some(times) = failures.again(std::time::Instant::now()) {
                        tracing::warn!(%error, times, "connections could not be accepted");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        let needs_key = peer != Peer::Owner && options.api_keys.are_needed();
        let slot = if needs_key { slots.take_keyless() } else { slots.take() };
        if let Some(slot) = slot {
            let (lost, slot) = (slot.lost.clone(), Arc::new(slot));
            let connection =
                connection(stream, peer, slot.clone(), router.clone(), options.clone(), stopping.clone());
            connections.spawn(async move {
                tokio::select! {
                    () = connection => {}
                    () = lost.cancelled() => tracing::debug!(?peer, "closed for a newer connection: it showed no key"),
                }
                drop(slot);
            });
        } else if let Ok(permit) = refusals.clone().try_acquire_owned() {
            tracing::trace!(?peer, needs_key, "a connection beyond the seats is refused");
            connections.spawn(async move {
                refuse(stream).await;
                drop(permit);
            });
        } else {
            tracing::trace!(
                ?peer,
                refusals = REFUSALS_MAX,
                "a connection beyond the seats is closed unanswered"
            );
        }
    }
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(options.shutdown_grace + LAST_EVENTS_TIME, ended).await.is_err() {
        connections.shutdown().await;
    }
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Peer,
    slot: Arc<ConnectionSlot>,
    router: Router,
    options: ServerOptions,
    stopping: CancellationToken,
) {
    let service = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(peer);
        request.extensions_mut().insert(slot.clone());
        service.call(request)
    });
    let io = TokioIo::new(TimedIo::new(stream, options.write_timeout));
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(options.header_timeout)
        .max_buf_size(HEADER_BYTES_MAX)
        .serve_connection(io, service);
    let mut serving = std::pin::pin!(serving);
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = stopping.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(?peer, %error, "a connection broke");
    }
}

async fn refuse(mut stream: impl AsyncWrite + Unpin) {
    const BODY: &str = r#"{"error":{"message":"too many connections","type":"server_error","param":null,"code":"too_many_connections"}}"#;
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
         x-content-type-options: nosniff\r\ncontent-security-policy: {ANSWER_POLICY}\r\n\
         cache-control: no-store\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{BODY}",
        BODY.len()
    );
    let write = async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await
    };
    // Whether it arrives is up to the client.
    let _ = tokio::time::timeout(REFUSAL_TIME, write).await;
}
