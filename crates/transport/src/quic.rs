//! QUIC: one pooled connection per peer and address, one bidirectional stream per channel.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use exo_stdx::Mutex;
use exo_types::{NodeId, PacketCounts, Transport};
use quinn::crypto::rustls::{HandshakeData, QuicClientConfig, QuicServerConfig};
use quinn::{Connection, ConnectionError, TransportConfig, VarInt};
use rustls::pki_types::CertificateDer;

use crate::accept::{EndpointState, Proven};
use crate::channel::Channel;
use crate::errors::DialError;
use crate::frame::RawSend;
use crate::half_open::HalfOpen;
use crate::live::Registration;
use crate::quic_timer::QuicRuntime;
use crate::renewal::{Keys, Renewal, Renewed};
use crate::tls::{self, ALPN_CLUSTER, Identity, SERVER_NAME};

/// A silent peer is given up after this; the keep-alive makes silence mean something.
const IDLE_MAX: Duration = Duration::from_secs(5);
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// Between two looks at what a connection has carried.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Streams a peer may have open towards us at once.
const STREAMS_MAX: u32 = 256;
/// Connections that one member may have open towards us at once: one for each address at which it reaches
/// us, and a few that are about to end.
const CONNECTIONS_OF_ONE_MAX: usize = 16;
/// Unread bytes per stream and per connection: what a slow reader costs, and what fast links need in flight.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;
/// The system's default loses packets even on loopback (measured: 3.5 %).
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

const CODE_CLOSED: VarInt = VarInt::from_u32(0);
const CODE_REMOVED: VarInt = VarInt::from_u32(1);
const CODE_ABORTED: VarInt = VarInt::from_u32(2);

/// A UDP socket bound to `addr` with large buffers, where the system allows them.
pub(crate) fn bind_socket(addr: SocketAddr) -> io::Result<UdpSocket> {
    let domain = socket2::Domain::for_address(addr);
    let socket = socket2::Socket::new(domain, socket2::Type::DGRAM, Some(socket2::Protocol::UDP))?;
    if addr.is_ipv6() && addr.ip().is_unspecified() {
        let _ = socket.set_only_v6(false);
    }
    let sized = socket
        .set_recv_buffer_size(SOCKET_BUFFER_BYTES)
        .and_then(|()| socket.set_send_buffer_size(SOCKET_BUFFER_BYTES));
    if let Err(error) = sized {
        tracing::debug!(%error, "UDP buffers stay at the system's default");
    }
    socket.bind(&addr.into())?;
    Ok(socket.into())
}

/// Makes the endpoint of a bound socket.
pub(crate) fn endpoint(socket: UdpSocket, config: rustls::ServerConfig) -> io::Result<quinn::Endpoint> {
    let crypto = QuicServerConfig::try_from(config).map_err(io::Error::other)?;
    let mut server = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    server.transport_config(Arc::new(transport_config(STREAMS_MAX)));
    tokio::runtime::Handle::try_current().map_err(io::Error::other)?;
    quinn::Endpoint::new(quinn::EndpointConfig::default(), Some(server), socket, Arc::new(QuicRuntime))
}

fn transport_config(peer_streams_max: u32) -> TransportConfig {
    let mut config = TransportConfig::default();
    config
        .max_idle_timeout(Some(IDLE_MAX.try_into().expect("a few seconds fit")))
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_concurrent_bidi_streams(peer_streams_max.into())
        .max_concurrent_uni_streams(0u32.into())
        .datagram_receive_buffer_size(None)
        .stream_receive_window(STREAM_WINDOW_BYTES.into())
        .receive_window(CONNECTION_WINDOW_BYTES.into())
        .send_window(u64::from(CONNECTION_WINDOW_BYTES));
    config
}

/// Accepts connections until the endpoint is closed.
pub(crate) async fn listen(endpoint: quinn::Endpoint, half_open: Arc<HalfOpen>, shared: Arc<EndpointState>) {
    let admitted = Arc::new(Admitted::default());
    while let Some(incoming) = endpoint.accept().await {
        // When crowded, strangers first show that their address is real.
        if half_open.is_crowded() && incoming.may_retry() && !incoming.remote_address_validated() {
            let _ = incoming.retry();
            continue;
        }
        let (shared, admitted, remote) = (shared.clone(), admitted.clone(), incoming.remote_address());
        half_open.run(remote.ip(), async move {
            match incoming.await {
                Ok(connection) => admit(connection, shared, &admitted),
                Err(error) => tracing::debug!(%remote, %error, "QUIC connection refused"),
            }
        });
    }
}

fn admit(connection: Connection, shared: Arc<EndpointState>, admitted: &Admitted) {
    let Some(peer) = proven_peer(&connection) else {
        tracing::trace!(remote = %connection.remote_address(), "a QUIC connection that proved no key");
        connection.close(CODE_REMOVED, b"no proven key");
        return;
    };
    let Some(registration) = register(&shared, peer, &connection) else { return };
    let registration = Arc::new(registration);
    if !admitted.add(peer, &connection, &registration) {
        tracing::debug!(%peer, max = CONNECTIONS_OF_ONE_MAX, "a member has too many QUIC connections; the newest is closed");
        connection.close(CODE_CLOSED, b"too many connections");
        return;
    }
    tokio::spawn(async move {
        let (remote, local) = (connection.remote_address(), local_ip(&connection));
        while let Ok((send, recv)) = connection.accept_bi().await {
            let (shared, guard) = (shared.clone(), registration.clone());
            let proven = Proven {
                peer,
                remote,
                local,
                via: Transport::Quic,
                send: Box::new(send),
                recv: Box::new(recv),
                guard,
            };
            tokio::spawn(async move { shared.welcome(proven).await });
        }
    });
}

/// The connections that one member opened towards us, the oldest first, each with who uses it.
type AdmittedOfOne = Vec<(Connection, Weak<Registration>)>;

/// The connections that members opened towards us.
#[derive(Default)]
struct Admitted(Mutex<HashMap<NodeId, AdmittedOfOne>>);

impl Admitted {
    /// Whether a member may have one more: the oldest without a channel makes place for it.
    fn add(&self, peer: NodeId, connection: &Connection, registration: &Arc<Registration>) -> bool {
        let mut all = self.0.lock();
        all.retain(|_, of_one| {
            of_one.retain(|(open, _)| open.close_reason().is_none());
            !of_one.is_empty()
        });
        let of_one = all.entry(peer).or_default();
        if of_one.len() >= CONNECTIONS_OF_ONE_MAX {
            // One user is the task that waits for its channels.
            let idle = of_one.iter().position(|(_, users)| users.strong_count() <= 1);
            let Some((oldest, _)) = idle.map(|idle| of_one.remove(idle)) else { return false };
            tracing::trace!(%peer, max = CONNECTIONS_OF_ONE_MAX, "an idle QUIC connection made place for a newer one");
            oldest.close(CODE_CLOSED, b"made place for a newer one");
        }
        of_one.push((connection.clone(), Arc::downgrade(registration)));
        true
    }
}

/// An IPv4 address of a socket for both is one.
fn local_ip(connection: &Connection) -> Option<IpAddr> {
    connection.local_ip().map(|ip| ip.to_canonical())
}

fn proven_peer(connection: &Connection) -> Option<NodeId> {
    let handshake = connection.handshake_data()?.downcast::<HandshakeData>().ok()?;
    if handshake.protocol.as_deref() != Some(ALPN_CLUSTER) {
        return None;
    }
    let certs = connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    tls::node_of(&certs)
}

/// On the list of live connections first, then checked: a removal in between finds it there.
fn register(shared: &EndpointState, peer: NodeId, connection: &Connection) -> Option<Registration> {
    let (handle, counted) = (connection.clone(), connection.clone());
    let packets = move || {
        let path = counted.stats().path;
        PacketCounts { sent: path.sent_packets, lost: path.lost_packets }
    };
    let kill = move || handle.close(CODE_REMOVED, b"disconnected");
    let registration = shared.live.register(peer, kill, Some(Box::new(packets)));
    if !shared.members.contains(peer) || shared.is_closed() {
        tracing::trace!(%peer, is_closed = shared.is_closed(), "a QUIC connection of who is no member any more");
        connection.close(CODE_REMOVED, b"not a member");
        return None;
    }
    Some(registration)
}

/// A connection that was dialled, kept for the next channel.
struct Pooled {
    connection: Connection,
    registration: Arc<Registration>,
}

type Slot = Arc<tokio::sync::Mutex<Option<Pooled>>>;

/// The connections this endpoint dialled.
#[derive(Default)]
pub(crate) struct Pool(Mutex<HashMap<(NodeId, SocketAddr), Slot>>);

impl Pool {
    /// Opens a channel on the pooled connection, or on a new one.
    pub(crate) async fn dial(
        &self,
        endpoint: &quinn::Endpoint,
        identity: &Identity,
        shared: &EndpointState,
        peer: NodeId,
        addr: SocketAddr,
        purpose: u8,
    ) -> Result<Channel, DialError> {
        let slot = self.slot(peer, addr);
        let (connection, guard) = {
            let mut pooled = slot.lock().await;
            if pooled.as_ref().is_none_or(|p| p.connection.close_reason().is_some()) {
                *pooled = None;
                *pooled = Some(connect(endpoint, identity, shared, peer, addr).await?);
            }
            let pooled = pooled.as_ref().expect("filled just above");
            (pooled.connection.clone(), pooled.registration.clone())
        };
        let mut unanswered = ForgetUnlessKept { slot, connection: Some(connection.clone()) };
        let (send, recv) = connection.open_bi().await.map_err(|e| dial_error(addr, &e))?;
        let (send, recv) = (Box::new(send), Box::new(recv));
        let local = local_ip(&connection);
        let proven = Proven { peer, remote: addr, local, via: Transport::Quic, send, recv, guard };
        let outcome = shared.greet(proven, purpose).await;
        if outcome.is_ok() {
            unanswered.connection = None;
        }
        outcome
    }

    fn slot(&self, peer: NodeId, addr: SocketAddr) -> Slot {
        let mut slots = self.0.lock();
        slots.retain(|_, slot| match slot.try_lock() {
            Ok(pooled) => pooled.as_ref().is_some_and(|p| p.connection.close_reason().is_none()),
            Err(_) => true, // being dialled now
        });
        slots.entry((peer, addr)).or_default().clone()
    }
}

/// A dial that fails or is dropped (its time is over) takes the connection out of the pool, so that the next
/// one starts afresh. Channels that already use it are left alone: they notice for themselves.
struct ForgetUnlessKept {
    slot: Slot,
    connection: Option<Connection>,
}

impl Drop for ForgetUnlessKept {
    fn drop(&mut self) {
        let Some(connection) = &self.connection else { return };
        if let Ok(mut pooled) = self.slot.try_lock()
            && pooled.as_ref().is_some_and(|p| p.connection.stable_id() == connection.stable_id())
        {
            *pooled = None;
        }
    }
}

async fn connect(
    endpoint: &quinn::Endpoint,
    identity: &Identity,
    shared: &EndpointState,
    peer: NodeId,
    addr: SocketAddr,
) -> Result<Pooled, DialError> {
    let broken = |why: String| DialError::Broken { addr, why };
    let (config, verifier) = identity.client(peer, &shared.members).map_err(|e| broken(e.to_string()))?;
    let crypto = QuicClientConfig::try_from(config).map_err(|e| broken(e.to_string()))?;
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    // Channels are opened by the side that dialled.
    config.transport_config(Arc::new(transport_config(0)));
    let connecting = endpoint
        .connect_with(config, addr, SERVER_NAME)
        .map_err(|e| DialError::Unreachable { addr, source: io::Error::other(e) })?;
    let connection = connecting.await.map_err(|error| match verifier.seen() {
        Some(found) if found != peer => DialError::WrongPeer { addr, expected: peer, found },
        _ => dial_error(addr, &error),
    })?;
    if proven_peer(&connection) != Some(peer) {
        connection.close(CODE_REMOVED, b"no proven key");
        return Err(broken("the peer proved no key".to_owned()));
    }
    let registration = register(shared, peer, &connection).ok_or(DialError::NotMember { peer })?;
    let registration = Arc::new(registration);
    tokio::spawn(renew(
        connection.clone(),
        Arc::downgrade(&registration),
        shared.renewal,
        shared.renewed.clone(),
    ));
    Ok(Pooled { connection, registration })
}

/// Renews the keys of a connection that this side dialled, of both directions, for as long as somebody uses
/// it.
async fn renew(connection: Connection, user: Weak<Registration>, limits: Renewal, renewed: Renewed) {
    let bytes = || connection.stats().udp_tx.bytes + connection.stats().udp_rx.bytes;
    let (mut keys, mut counted) = (Keys::new(limits), bytes());
    while user.strong_count() > 0 {
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY.min(limits.every)) => {}
            _ = connection.closed() => return,
        }
        let now = bytes();
        if keys.sent(now.saturating_sub(counted)) {
            connection.force_key_update();
            renewed.add();
        }
        counted = now;
    }
}

fn dial_error(addr: SocketAddr, error: &ConnectionError) -> DialError {
    let why = error.to_string();
    match error {
        ConnectionError::ConnectionClosed(_) | ConnectionError::ApplicationClosed(_) => {
            DialError::Refused { addr, why }
        }
        ConnectionError::TimedOut => DialError::Timeout { addr, within: IDLE_MAX },
        _ => DialError::Broken { addr, why },
    }
}

/// Closes all connections and gives peers a moment to hear of it.
pub(crate) async fn close(endpoint: &quinn::Endpoint) {
    endpoint.close(CODE_CLOSED, b"closed");
    let _ = tokio::time::timeout(Duration::from_secs(1), endpoint.wait_idle()).await;
}

impl RawSend for quinn::SendStream {
    fn abort(&mut self) {
        let _ = Pin::new(self).reset(CODE_ABORTED);
    }
}
