//! What can go wrong, one enum per operation.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use exo_types::NodeId;

use crate::protocols::Protocols;

/// An endpoint could not open its port.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Another program, often another exo, has it.
    #[error("port {port} at {addr} is in use by another program", port = addr.port())]
    InUse {
        /// The address asked for.
        addr: SocketAddr,
    },
    /// The system said no.
    #[error("cannot open a {protocol} socket at {addr}")]
    Socket {
        /// "TCP" or "UDP".
        protocol: &'static str,
        /// The address asked for.
        addr: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The TLS layer refused the key or the configuration.
    #[error("cannot set up TLS with this node's key: {0}")]
    Tls(String),
}

/// A peer was not reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// It is not in our own member set.
    #[error("{peer} is not a member of this cluster")]
    NotMember {
        /// Who was to be dialled.
        peer: NodeId,
    },
    /// Nothing answers there, or no route.
    #[error("cannot reach {addr}")]
    Unreachable {
        /// Address of the other end.
        addr: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// No complete handshake in time.
    #[error("no connection to {addr} within {} ms", within.as_millis())]
    Timeout {
        /// Address of the other end.
        addr: SocketAddr,
        /// How long we waited.
        within: Duration,
    },
    /// Somebody else lives at that address.
    #[error("{addr} is {found}, not {expected}")]
    WrongPeer {
        /// Address of the other end.
        addr: SocketAddr,
        /// Who was to be dialled.
        expected: NodeId,
        /// Who answered.
        found: NodeId,
    },
    /// The peer does not take us: not a member there, the wrong protocol, or too busy.
    #[error("the node at {addr} refused this node: {why}")]
    Refused {
        /// Address of the other end.
        addr: SocketAddr,
        /// What it said.
        why: String,
    },
    /// No protocol version in common.
    #[error("{peer} speaks exo protocol {theirs}, this node {ours}: update the older one")]
    Version {
        /// The peer.
        peer: NodeId,
        /// What this node speaks.
        ours: Protocols,
        /// What the peer speaks.
        theirs: Protocols,
    },
    /// The connection broke, or was no exo at the other end.
    #[error("the connection to {addr} broke during the handshake: {why}")]
    Broken {
        /// Address of the other end.
        addr: SocketAddr,
        /// What happened.
        why: String,
    },
    /// This endpoint is closed.
    #[error("this endpoint is closed")]
    Closed,
}

/// No further frame from a channel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The peer will send no more. `clean` if it said so between two frames; otherwise it died, dropped the
    /// channel, or the network did.
    #[error("{}", if *clean { "the peer finished" } else { "the connection broke" })]
    Closed {
        /// Whether the peer finished in order.
        clean: bool,
    },
    /// The peer announced more than this channel takes.
    #[error("a frame of kind {kind} with {announced_bytes} bytes, this channel takes {max_bytes}")]
    TooLarge {
        /// Its kind.
        kind: u8,
        /// Length in its header.
        announced_bytes: u32,
        /// The channel's limit.
        max_bytes: u32,
    },
    /// Not our framing.
    #[error("frame version {found}, this node reads {known}")]
    Version {
        /// In the header.
        found: u8,
        /// Version of this program.
        known: u8,
    },
    /// Nothing complete in time. What arrived is kept: ask again.
    #[error("no frame within {} ms", within.as_millis())]
    Timeout {
        /// How long we waited.
        within: Duration,
    },
}

/// A frame was not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The connection is gone, or this side finished.
    #[error("the connection is closed")]
    Closed,
    /// More than this channel takes; nothing was sent.
    #[error("a frame of kind {kind} with {bytes} bytes, this channel takes {max_bytes}")]
    TooLarge {
        /// Its kind.
        kind: u8,
        /// Its length.
        bytes: u64,
        /// The channel's limit.
        max_bytes: u32,
    },
    /// The peer took nothing for too long. The channel is broken now.
    #[error("the peer took no byte for {} ms", within.as_millis())]
    Stalled {
        /// How long we waited.
        within: Duration,
    },
    /// An earlier send was cancelled half-way, so the peer would misread what follows.
    #[error("an earlier frame was cut off half-way")]
    CutOff,
}
