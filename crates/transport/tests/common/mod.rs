//! Two nodes on some network, by one line.

#![allow(dead_code)] // each test file uses its part

use exo_types::Transport;
use std::net::SocketAddr;
use std::time::Duration;

use exo_transport::{Channel, Endpoint, FrameLimits, Incoming, JoinChannel, MemberSet, NodeKey, Options};

pub const LIMITS: FrameLimits = FrameLimits { payload_bytes_max: 32 << 20 };
pub const SECOND: Duration = Duration::from_secs(1);
/// Long enough for any one step on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(10);
pub const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// Which network a conformance test runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Quic,
    Tcp,
}

impl Kind {
    pub fn via(self) -> Transport {
        if self == Self::Quic { Transport::Quic } else { Transport::Tcp }
    }
}

/// Nodes with the seeds 1, 2, 3…, each a member at the others.
pub struct World {
    pub kind: Kind,
}

pub fn key(seed: u8) -> NodeKey {
    NodeKey::from_seed(&[seed; 32])
}

pub fn everyone() -> MemberSet {
    MemberSet::new((1..=5).map(|seed| key(seed).node_id()))
}

impl World {
    pub fn new(kind: Kind) -> Self {
        Self { kind }
    }

    pub async fn node(&self, seed: u8) -> Endpoint {
        self.node_with(seed, |_| {}).await
    }

    pub async fn node_with(&self, seed: u8, change: impl FnOnce(&mut Options)) -> Endpoint {
        let mut options = Options::new(LOOPBACK, key(seed), everyone());
        change(&mut options);
        Endpoint::bind(options).await.unwrap()
    }

    /// A channel from `a` to `b`: both ends.
    pub async fn channel(&self, a: &Endpoint, b: &Endpoint) -> (Channel, Channel) {
        let dialled = a.dial(b.node(), b.local_addr(), self.kind.via(), 7, PATIENCE).await.unwrap();
        (dialled, next_channel(b).await)
    }
}

pub async fn next_channel(node: &Endpoint) -> Channel {
    match tokio::time::timeout(PATIENCE, node.accept()).await.expect("nobody connected") {
        Some(Incoming::Channel(channel)) => channel,
        other => panic!("not a channel: {other:?}"),
    }
}

pub async fn next_join(node: &Endpoint) -> JoinChannel {
    match tokio::time::timeout(PATIENCE, node.accept()).await.expect("nobody connected") {
        Some(Incoming::Join(join)) => join,
        other => panic!("not a join: {other:?}"),
    }
}
