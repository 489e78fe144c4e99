//! TLS over TCP: one connection per channel. A dead process resets it, and that is its great virtue.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use exo_stdx::{Mutex, Repeats};
use exo_types::{NodeId, Transport};
use rustls::pki_types::CertificateDer;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{LazyConfigAcceptor, TlsConnector, TlsStream};

use crate::accept::{EndpointState, Proven};
use crate::channel::{Channel, Incoming};
use crate::errors::DialError;
use crate::frame::RawSend;
use crate::half_open::HalfOpen;
use crate::join::JoinChannel;
use crate::renewal::{Keys, Renewed};
use crate::socket;
use crate::tls::{self, ALPN_CLUSTER, ALPN_JOIN, Identity, Verifier};

const EXPORTER_LABEL: &[u8] = b"EXPORTER-exo-join-v1";
/// How long a refused peer may take to read why.
const LINGER_MAX: Duration = Duration::from_millis(500);

/// After a failed accept, most likely for want of file descriptors: some may be closed meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A line of the log says how many failed in this time.
const FAILURES_TOLD_EVERY: Duration = Duration::from_secs(10);

/// Server configurations by protocol name.
pub(crate) struct ServerConfigs {
    pub(crate) cluster: Arc<rustls::ServerConfig>,
    pub(crate) join: Arc<rustls::ServerConfig>,
}

/// Accepts connections until dropped.
pub(crate) async fn listen(
    listener: TcpListener,
    configs: Arc<ServerConfigs>,
    half_open: Arc<HalfOpen>,
    shared: Arc<EndpointState>,
) {
    let mut failures = Repeats::new(FAILURES_TOLD_EVERY);
    loop {
        match listener.accept().await {
            Ok((tcp, remote)) => {
                let (configs, shared) = (configs.clone(), shared.clone());
                half_open.run(remote.ip(), async move {
                    if let Err(error) = serve(tcp, remote, &configs, &shared).await {
                        tracing::debug!(%remote, %error, "TCP connection refused");
                    }
                });
            }
            Err(error) => {
                if let Some(times) = failures.again(std::time::Instant::now()) {
                    tracing::warn!(%error, times, "cannot accept TCP connections");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(
    tcp: TcpStream,
    remote: SocketAddr,
    configs: &ServerConfigs,
    shared: &EndpointState,
) -> io::Result<()> {
    tune(&tcp);
    let start = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), tcp).await?;
    let joins = start.client_hello().alpn().is_some_and(|mut names| names.any(|name| name == ALPN_JOIN));
    let place = if joins { Some(shared.joins.take(remote.ip()).map_err(io::Error::other)?) } else { None };
    let config = if joins { &configs.join } else { &configs.cluster };
    let stream = match start.into_stream(config.clone()).into_fallible().await {
        Ok(stream) => stream,
        Err((error, tcp)) => {
            linger(tcp).await;
            return Err(error);
        }
    };
    let stream = TlsStream::Server(stream);
    let peer = proven_peer(&stream, if joins { ALPN_JOIN } else { ALPN_CLUSTER })?;
    if joins {
        let exporter = exporter(&stream)?;
        let join = JoinChannel::new(peer, remote, false, stream, exporter, place);
        let _ = shared.queue.send(Incoming::Join(join)).await;
    } else {
        let proven = register(shared, peer, remote, stream)
            .ok_or_else(|| io::Error::other("removed during the handshake"))?;
        shared.welcome(proven).await;
    }
    Ok(())
}

/// Opens a channel to `peer`.
pub(crate) async fn dial(
    identity: &Identity,
    shared: &EndpointState,
    peer: NodeId,
    addr: SocketAddr,
    purpose: u8,
) -> Result<Channel, DialError> {
    let broken = |why: String| DialError::Broken { addr, why };
    let (config, verifier) = identity.client(peer, &shared.members).map_err(|e| broken(e.to_string()))?;
    let stream = connect(config, &verifier, addr, Some(peer)).await?;
    proven_peer(&stream, ALPN_CLUSTER).map_err(|e| broken(e.to_string()))?;
    let proven = register(shared, peer, addr, stream).ok_or(DialError::NotMember { peer })?;
    shared.greet(proven, purpose).await
}

/// Opens the join exchange with whoever is there.
pub(crate) async fn dial_join(identity: &Identity, addr: SocketAddr) -> Result<JoinChannel, DialError> {
    let broken = |why: String| DialError::Broken { addr, why };
    let (config, verifier) = identity.join_client().map_err(|e| broken(e.to_string()))?;
    let stream = connect(config, &verifier, addr, None).await?;
    let peer = proven_peer(&stream, ALPN_JOIN).map_err(|e| broken(e.to_string()))?;
    let exporter = exporter(&stream).map_err(|e| broken(e.to_string()))?;
    Ok(JoinChannel::new(peer, addr, true, stream, exporter, None))
}

async fn connect(
    config: rustls::ClientConfig,
    verifier: &Verifier,
    addr: SocketAddr,
    expected: Option<NodeId>,
) -> Result<TlsStream<TcpStream>, DialError> {
    let tcp = TcpStream::connect(addr).await.map_err(|source| DialError::Unreachable { addr, source })?;
    tune(&tcp);
    match TlsConnector::from(Arc::new(config)).connect(tls::server_name(), tcp).await {
        Ok(stream) => Ok(TlsStream::Client(stream)),
        Err(error) => Err(match (expected, verifier.seen()) {
            (Some(expected), Some(found)) if found != expected => {
                DialError::WrongPeer { addr, expected, found }
            }
            _ => handshake_error(addr, &error),
        }),
    }
}

fn handshake_error(addr: SocketAddr, error: &io::Error) -> DialError {
    let why = error.to_string();
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::AlertReceived(_)) => DialError::Refused { addr, why },
        _ => DialError::Broken { addr, why },
    }
}

fn proven_peer(stream: &TlsStream<TcpStream>, alpn: &[u8]) -> io::Result<NodeId> {
    let (_, session) = stream.get_ref();
    if session.alpn_protocol() != Some(alpn) {
        return Err(io::Error::other("no exo protocol was agreed"));
    }
    let certs: &[CertificateDer<'_>] = session.peer_certificates().unwrap_or_default();
    tls::node_of(certs).ok_or_else(|| io::Error::other("the peer proved no Ed25519 key"))
}

fn exporter(stream: &TlsStream<TcpStream>) -> io::Result<[u8; 32]> {
    let secret = match stream {
        TlsStream::Client(s) => s.get_ref().1.export_keying_material([0; 32], EXPORTER_LABEL, None),
        TlsStream::Server(s) => s.get_ref().1.export_keying_material([0; 32], EXPORTER_LABEL, None),
    };
    secret.map_err(io::Error::other)
}

/// Puts the connection on the list of live ones; `None` if its peer was removed meanwhile. On the list first,
/// then checked: a removal in between finds it there.
fn register(
    shared: &EndpointState,
    peer: NodeId,
    remote: SocketAddr,
    stream: TlsStream<TcpStream>,
) -> Option<Proven> {
    let local = stream.get_ref().0.local_addr().ok().map(|local| local.ip().to_canonical());
    let wire = Arc::new(Wire(Mutex::new(stream)));
    let weak = Arc::downgrade(&wire);
    let kill = move || {
        if let Some(wire) = weak.upgrade() {
            wire.shut();
        }
    };
    let registration = shared.live.register(peer, kill, None);
    if !shared.members.contains(peer) || shared.is_closed() {
        return None;
    }
    let (keys, renewed) = (Keys::new(shared.renewal), shared.renewed.clone());
    let (send, recv) = (Box::new(TlsSend { wire: wire.clone(), keys, renewed }), Box::new(TlsRecv(wire)));
    let guard = Arc::new(registration);
    Some(Proven { peer, remote, local, via: Transport::Tcp, send, recv, guard })
}

/// Low latency, and a dead peer noticed within seconds. Best effort: the connection works without.
fn tune(tcp: &TcpStream) {
    let outcome = tcp.set_nodelay(true).and_then(|()| socket::notice_silence(&SockRef::from(tcp)));
    if let Err(error) = outcome {
        tracing::debug!(%error, "TCP socket options not set");
    }
}

/// Closing with unread bytes resets the connection and loses the alert that says why: read them first.
async fn linger(mut tcp: TcpStream) {
    let _ = tokio::time::timeout(LINGER_MAX, async {
        tcp.shutdown().await?;
        let mut sink = [0; 1024];
        for _ in 0..16 {
            if tcp.read(&mut sink).await? == 0 {
                break;
            }
        }
        io::Result::Ok(())
    })
    .await;
}

/// A TLS stream whose halves live in different tasks and that a third may break off.
///
/// The lock is held only while polling, never while waiting.
struct Wire(Mutex<TlsStream<TcpStream>>);

struct TlsSend {
    wire: Arc<Wire>,
    keys: Keys,
    renewed: Renewed,
}
struct TlsRecv(Arc<Wire>);

impl Wire {
    fn lock(&self) -> MutexGuard<'_, TlsStream<TcpStream>> {
        self.0.lock()
    }

    fn shut(&self) {
        let _ = SockRef::from(self.lock().get_ref().0).shutdown(std::net::Shutdown::Both);
    }
}

impl RawSend for TlsSend {
    fn abort(&mut self) {
        self.wire.shut();
    }
}

impl TlsSend {
    /// Counts what was written. The other side answers new keys of ours with new ones of its own.
    fn sent(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let Poll::Ready(Ok(bytes)) = written else { return written };
        if self.keys.sent(bytes as u64) {
            let refreshed = match &mut *self.wire.lock() {
                TlsStream::Client(stream) => stream.get_mut().1.refresh_traffic_keys(),
                TlsStream::Server(stream) => stream.get_mut().1.refresh_traffic_keys(),
            };
            match refreshed {
                Ok(()) => self.renewed.add(),
                Err(error) => tracing::debug!(%error, "keys are not renewed"),
            }
        }
        written
    }
}

impl AsyncWrite for TlsSend {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *self.wire.lock()).poll_write(cx, buf);
        self.sent(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *self.wire.lock()).poll_write_vectored(cx, bufs);
        self.sent(written)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.wire.lock()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.wire.lock()).poll_shutdown(cx)
    }
}

impl AsyncRead for TlsRecv {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_read(cx, buf)
    }
}
