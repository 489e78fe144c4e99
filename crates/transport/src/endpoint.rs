//! One port, two transports: what dials, accepts and renews connections on the real network.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use exo_types::{NodeId, PacketCounts, Transport};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinSet;

use crate::accept::{EndpointState, QUEUE_MAX};
use crate::channel::{Channel, Incoming};
use crate::errors::{BindError, DialError};
use crate::half_open::HalfOpen;
use crate::join::JoinChannel;
use crate::key::NodeKey;
use crate::live::Live;
use crate::members::MemberSet;
use crate::protocols::Protocols;
use crate::renewal::{Renewal, Renewed};
use crate::tls::Identity;
use crate::{quic, socket, tcp};

/// How long a connection outlasts the removal of its member.
const PARTING: Duration = Duration::from_millis(200);

/// How an [`Endpoint`] is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen, UDP and TCP on the same port; port 0 finds one that is free in both.
    pub listen: SocketAddr,
    /// This node's key.
    pub key: NodeKey,
    /// Who may connect; shared, so later changes count.
    pub members: MemberSet,
    /// Protocol versions of the layer above.
    pub protocols: Protocols,
    /// How long a handshake may take.
    pub handshake_max: Duration,
    /// Handshakes at once, per transport.
    pub half_open_max: usize,
    /// When connections get new keys.
    pub renewal: Renewal,
}

impl Options {
    /// The usual limits: handshakes of 5 s, 64 at once.
    pub fn new(listen: SocketAddr, key: NodeKey, members: MemberSet) -> Self {
        let (protocols, handshake_max) = (Protocols::CURRENT, Duration::from_secs(5));
        let renewal = Renewal::default();
        Self { listen, key, members, protocols, handshake_max, half_open_max: 64, renewal }
    }
}

/// This node's place on the network. Clones are the same endpoint; it closes with the last one.
#[derive(Clone)]
pub struct Endpoint(Arc<Inner>);

struct Inner {
    local_addr: SocketAddr,
    identity: Identity,
    shared: Arc<EndpointState>,
    /// None without a port.
    quic: Option<quinn::Endpoint>,
    pool: quic::Pool,
    half_open: Vec<Arc<HalfOpen>>,
    incoming: Mutex<mpsc::Receiver<Incoming>>,
    /// The listeners and the watcher of the member set; aborted on drop.
    tasks: exo_stdx::Mutex<JoinSet<()>>,
}

impl Endpoint {
    /// Opens the port and starts to accept. Needs a tokio runtime.
    pub async fn bind(options: Options) -> Result<Self, BindError> {
        let Options { listen, key, members, protocols, handshake_max, half_open_max, renewal } = options;
        let tls_error = |e: rustls::Error| BindError::Tls(e.to_string());
        let identity = Identity::new(&key).map_err(tls_error)?;
        let server = identity.server(&members).map_err(tls_error)?;
        let join = identity.join_server().map_err(tls_error)?;

        let (listener, udp) = bind_pair(listen)?;
        let tcp_error = |source| BindError::Socket { protocol: "TCP", addr: listen, source };
        let udp_error = |source| BindError::Socket { protocol: "UDP", addr: listen, source };
        let local_addr = listener.local_addr().map_err(tcp_error)?;
        let listener = tokio::net::TcpListener::from_std(listener).map_err(tcp_error)?;
        let quic = quic::endpoint(udp, server.clone()).map_err(udp_error)?;

        let (shared, incoming) = shared(&key, members, protocols, (handshake_max, renewal));
        let half_open = [(); 2].map(|()| HalfOpen::new(half_open_max, handshake_max));
        let configs = Arc::new(tcp::ServerConfigs { cluster: Arc::new(server), join: Arc::new(join) });
        let mut tasks = JoinSet::new();
        tasks.spawn(tcp::listen(listener, configs, half_open[0].clone(), shared.clone()));
        tasks.spawn(quic::listen(quic.clone(), half_open[1].clone(), shared.clone()));
        tasks.spawn(close_those_who_left(shared.clone()));
        Ok(Self(Arc::new(Inner {
            local_addr,
            identity,
            shared,
            quic: Some(quic),
            pool: quic::Pool::default(),
            half_open: half_open.into(),
            incoming: Mutex::new(incoming),
            tasks: exo_stdx::Mutex::new(tasks),
        })))
    }

    /// An endpoint without a port: no one connects to it, and it accepts nothing. Needs a tokio runtime.
    pub fn without_port(options: Options) -> Result<Self, BindError> {
        let Options { listen, key, members, protocols, handshake_max, renewal, .. } = options;
        let identity = Identity::new(&key).map_err(|e| BindError::Tls(e.to_string()))?;
        let (shared, incoming) = shared(&key, members, protocols, (handshake_max, renewal));
        let mut tasks = JoinSet::new();
        tasks.spawn(close_those_who_left(shared.clone()));
        Ok(Self(Arc::new(Inner {
            local_addr: SocketAddr::new(listen.ip(), 0),
            identity,
            shared,
            quic: None,
            pool: quic::Pool::default(),
            half_open: Vec::new(),
            incoming: Mutex::new(incoming),
            tasks: exo_stdx::Mutex::new(tasks),
        })))
    }

    /// This node.
    pub fn node(&self) -> NodeId {
        self.0.shared.node
    }

    /// How often this side has renewed the keys of a connection.
    pub fn keys_renewed(&self) -> u64 {
        self.0.shared.renewed.count()
    }

    /// The address that was opened; the same port serves UDP and TCP.
    pub fn local_addr(&self) -> SocketAddr {
        self.0.local_addr
    }

    /// Opens a channel to `peer` at `addr`, within `within`. `purpose` is told to the peer with the hello.
    pub async fn dial(
        &self,
        peer: NodeId,
        addr: SocketAddr,
        via: Transport,
        purpose: u8,
        within: Duration,
    ) -> Result<Channel, DialError> {
        let Inner { shared, identity, quic, pool, .. } = &*self.0;
        if shared.is_closed() {
            return Err(DialError::Closed);
        }
        if !shared.members.contains(peer) {
            return Err(DialError::NotMember { peer });
        }
        let dial = async {
            match (via, quic) {
                (Transport::Quic, Some(quic)) => pool.dial(quic, identity, shared, peer, addr, purpose).await,
                (Transport::Quic, None) => {
                    Err(DialError::Unreachable { addr, source: io::ErrorKind::NotConnected.into() })
                }
                (Transport::Tcp, _) => tcp::dial(identity, shared, peer, addr, purpose).await,
            }
        };
        tokio::time::timeout(within, dial).await.unwrap_or(Err(DialError::Timeout { addr, within }))
    }

    /// Opens the join exchange (over TCP) with whoever is at `addr`; its proven key is in the channel.
    pub async fn dial_join(&self, addr: SocketAddr, within: Duration) -> Result<JoinChannel, DialError> {
        if self.0.shared.is_closed() {
            return Err(DialError::Closed);
        }
        let dial = tcp::dial_join(&self.0.identity, addr);
        tokio::time::timeout(within, dial).await.unwrap_or(Err(DialError::Timeout { addr, within }))
    }

    /// The next that connects; `None` once closed.
    pub async fn accept(&self) -> Option<Incoming> {
        let mut closed = self.0.shared.closed.subscribe();
        let next = async { self.0.incoming.lock().await.recv().await };
        tokio::select! {
            biased;
            _ = closed.wait_for(|closed| *closed) => None,
            incoming = next => incoming,
        }
    }

    /// Packets sent to each peer, and those lost on the way, where its connections tell: those over QUIC do.
    pub fn packets(&self) -> BTreeMap<NodeId, PacketCounts> {
        self.0.shared.live.packets()
    }

    /// Breaks every live connection with `peer`. It may connect again while it is a member.
    pub fn disconnect(&self, peer: NodeId) {
        self.0.shared.live.kill(|other| other == peer);
    }

    /// Breaks everything and opens no more; returns within about a second.
    pub async fn close(&self) {
        self.0.stop();
        if let Some(quic) = &self.0.quic {
            quic::close(quic).await;
        }
    }
}

impl Inner {
    fn stop(&self) {
        self.shared.closed.send_replace(true);
        self.tasks.lock().abort_all();
        for half_open in &self.half_open {
            half_open.abort_all();
        }
        self.shared.live.kill(|_| true);
        if let Some(quic) = &self.quic {
            quic.close(0u32.into(), b"closed");
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What an endpoint and its connections share, and where those that come in go.
fn shared(
    key: &NodeKey,
    members: MemberSet,
    protocols: Protocols,
    (handshake_max, renewal): (Duration, Renewal),
) -> (Arc<EndpointState>, mpsc::Receiver<Incoming>) {
    let (queue, incoming) = mpsc::channel(QUEUE_MAX);
    let shared = EndpointState {
        node: key.node_id(),
        members,
        live: Arc::new(Live::default()),
        protocols,
        handshake_max,
        queue,
        joins: Arc::default(),
        renewal,
        renewed: Renewed::default(),
        closed: watch::Sender::new(false),
    };
    (Arc::new(shared), incoming)
}

/// Breaks the connections of members that were removed. They make no new ones from the moment they are; what
/// was on its way to them, the word of their removal, still gets out.
async fn close_those_who_left(shared: Arc<EndpointState>) {
    let mut changes = shared.members.watch();
    while changes.changed().await.is_ok() {
        tokio::time::sleep(PARTING).await;
        shared.live.kill(|peer| !shared.members.contains(peer));
    }
}

/// TCP and UDP on one port. With port 0 the system picks one for TCP; if it is taken in UDP, we ask again.
fn bind_pair(listen: SocketAddr) -> Result<(StdTcpListener, UdpSocket), BindError> {
    const TRIES: usize = 32;
    let mut tries = 0;
    loop {
        tries += 1;
        let bound = bind_tcp(listen).map_err(|e| bind_error("TCP", listen, e)).and_then(|tcp| {
            let addr = tcp.local_addr().map_err(|e| bind_error("TCP", listen, e))?;
            let udp = quic::bind_socket(addr).map_err(|e| bind_error("UDP", addr, e))?;
            Ok((tcp, udp))
        });
        match bound {
            Err(BindError::InUse { .. }) if listen.port() == 0 && tries < TRIES => {}
            other => return other,
        }
    }
}

fn bind_tcp(addr: SocketAddr) -> io::Result<StdTcpListener> {
    let domain = socket2::Domain::for_address(addr);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, Some(socket2::Protocol::TCP))?;
    if addr.is_ipv6() && addr.ip().is_unspecified() {
        let _ = socket.set_only_v6(false);
    }
    socket::share_port_with_the_past(&socket)?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(256)?;
    Ok(socket.into())
}

fn bind_error(protocol: &'static str, addr: SocketAddr, source: io::Error) -> BindError {
    match source.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse { addr },
        _ => BindError::Socket { protocol, addr, source },
    }
}
