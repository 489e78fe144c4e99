//! The network's twin in memory: the same channels, rules and errors, no sockets and no keys on the wire.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use exo_types::NodeId;
use tokio::sync::{Mutex as AsyncMutex, mpsc};
use tokio::task::JoinHandle;

use crate::accept::{Proven, Shared};
use crate::channel::{Channel, Incoming, Transport, TransportFuture, Via};
use crate::endpoint::{Options, close_those_who_left, shared};
use crate::errors::{BindError, DialError};
use crate::join::JoinChannel;
use crate::pipe::{Pipe, PipeDuplex};

/// A network of endpoints in one process, for tests of the layers above.
#[derive(Clone, Default)]
pub struct MemoryNet(Arc<Mutex<HashMap<SocketAddr, Arc<Shared>>>>);

/// An [`Endpoint`](crate::Endpoint) of a [`MemoryNet`].
pub struct MemoryEndpoint {
    net: MemoryNet,
    addr: SocketAddr,
    shared: Arc<Shared>,
    incoming: AsyncMutex<mpsc::Receiver<Incoming>>,
    watcher: JoinHandle<()>,
}

impl MemoryNet {
    /// A network with nobody on it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens an endpoint at `options.listen`; port 0 picks one.
    pub fn bind(&self, options: Options) -> Result<MemoryEndpoint, BindError> {
        let Options { mut listen, key, members, protocols, handshake_max, renewal, .. } = options;
        let (shared, incoming) = shared(&key, members, protocols, (handshake_max, renewal));
        let mut nodes = self.lock();
        if listen.port() == 0 {
            let free = (1024..).find(|port| !nodes.contains_key(&SocketAddr::new(listen.ip(), *port)));
            listen.set_port(free.ok_or(BindError::InUse { addr: listen })?);
        }
        if nodes.contains_key(&listen) {
            return Err(BindError::InUse { addr: listen });
        }
        nodes.insert(listen, shared.clone());
        drop(nodes);
        let watcher = tokio::spawn(close_those_who_left(shared.clone()));
        let incoming = AsyncMutex::new(incoming);
        Ok(MemoryEndpoint { net: self.clone(), addr: listen, shared, incoming, watcher })
    }

    fn at(&self, addr: SocketAddr) -> Result<Arc<Shared>, DialError> {
        self.lock().get(&addr).cloned().ok_or_else(|| DialError::Unreachable {
            addr,
            source: std::io::ErrorKind::ConnectionRefused.into(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SocketAddr, Arc<Shared>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The two ends of a new connection, and its breaker.
fn connection() -> (PipeDuplex, PipeDuplex, impl Fn() + Clone + Send + Sync + 'static) {
    let (there, back) = (Pipe::default(), Pipe::default());
    let ((there_w, there_r), (back_w, back_r)) = (there.ends(), back.ends());
    let near = PipeDuplex { writer: there_w, reader: back_r };
    let far = PipeDuplex { writer: back_w, reader: there_r };
    (near, far, move || [&there, &back].into_iter().for_each(Pipe::sever))
}

impl MemoryEndpoint {
    async fn open(
        &self,
        peer: NodeId,
        addr: SocketAddr,
        via: Via,
        purpose: u8,
    ) -> Result<Channel, DialError> {
        if self.shared.is_closed() {
            return Err(DialError::Closed);
        }
        if !self.shared.members.contains(peer) {
            return Err(DialError::NotMember { peer });
        }
        let far_side = self.net.at(addr)?;
        if far_side.node != peer {
            return Err(DialError::WrongPeer { addr, expected: peer, found: far_side.node });
        }
        if !far_side.members.contains(self.shared.node) {
            return Err(DialError::Refused { addr, why: "not a member there".to_owned() });
        }
        let (near, far, sever) = connection();
        let near_guard = Arc::new(self.shared.live.register(peer, sever.clone()));
        let far_guard = Arc::new(far_side.live.register(self.shared.node, sever));
        let (near_send, near_recv) = near.into_halves();
        let (far_send, far_recv) = far.into_halves();
        let proven = Proven {
            peer: self.shared.node,
            remote: self.addr,
            via,
            send: Box::new(far_send),
            recv: Box::new(far_recv),
            guard: far_guard,
        };
        tokio::spawn(async move { far_side.welcome(proven).await });
        let (send, recv) = (Box::new(near_send), Box::new(near_recv));
        let proven = Proven { peer, remote: addr, via, send, recv, guard: near_guard };
        self.shared.greet(proven, purpose).await
    }

    fn open_join(&self, addr: SocketAddr) -> Result<JoinChannel, DialError> {
        if self.shared.is_closed() {
            return Err(DialError::Closed);
        }
        let far_side = self.net.at(addr)?;
        let busy = |why: &str| DialError::Refused { addr, why: why.to_owned() };
        let place = far_side.joins.take(self.addr.ip()).map_err(busy)?;
        let (near, far, _) = connection();
        let mut exporter = [0; 32];
        getrandom::fill(&mut exporter).map_err(|e| DialError::Broken { addr, why: e.to_string() })?;
        let far = JoinChannel::new(self.shared.node, self.addr, false, far, exporter, Some(place));
        far_side.queue.try_send(Incoming::Join(far)).map_err(|_| busy("its queue is full"))?;
        Ok(JoinChannel::new(far_side.node, addr, true, near, exporter, None))
    }

    fn stop(&self) {
        self.net.lock().retain(|_, shared| !Arc::ptr_eq(shared, &self.shared));
        self.shared.closed.send_replace(true);
        self.watcher.abort();
        self.shared.live.kill(|_| true);
    }
}

impl Drop for MemoryEndpoint {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Transport for MemoryEndpoint {
    fn node(&self) -> NodeId {
        self.shared.node
    }

    fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    fn dial(
        &self,
        peer: NodeId,
        addr: SocketAddr,
        via: Via,
        purpose: u8,
        within: Duration,
    ) -> TransportFuture<'_, Result<Channel, DialError>> {
        Box::pin(async move {
            let open = self.open(peer, addr, via, purpose);
            tokio::time::timeout(within, open).await.unwrap_or(Err(DialError::Timeout { addr, within }))
        })
    }

    fn dial_join(
        &self,
        addr: SocketAddr,
        _within: Duration,
    ) -> TransportFuture<'_, Result<JoinChannel, DialError>> {
        Box::pin(async move { self.open_join(addr) })
    }

    fn accept(&self) -> TransportFuture<'_, Option<Incoming>> {
        Box::pin(async move {
            let mut closed = self.shared.closed.subscribe();
            let next = async { self.incoming.lock().await.recv().await };
            tokio::select! {
                biased;
                _ = closed.wait_for(|closed| *closed) => None,
                incoming = next => incoming,
            }
        })
    }

    fn disconnect(&self, peer: NodeId) {
        self.shared.live.kill(|other| other == peer);
    }

    fn close(&self) -> TransportFuture<'_, ()> {
        Box::pin(async move { self.stop() })
    }
}
