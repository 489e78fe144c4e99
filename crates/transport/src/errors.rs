//! What can go wrong, one enum per operation.

#![allow(missing_docs)] // the messages say what the fields are

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
    InUse { addr: SocketAddr },
    #[error("cannot open a {protocol} socket at {addr}")]
    Socket { protocol: &'static str, addr: SocketAddr, source: io::Error },
    #[error("cannot set up TLS with this node's key: {0}")]
    Tls(String),
}

/// A peer was not reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    #[error("{peer} is not a member of this cluster")]
    NotMember { peer: NodeId },
    /// Nothing answers there, or no route.
    #[error("cannot reach {addr}")]
    Unreachable { addr: SocketAddr, source: io::Error },
    #[error("no connection to {addr} within {} ms", within.as_millis())]
    Timeout { addr: SocketAddr, within: Duration },
    #[error("{addr} is {found}, not {expected}")]
    WrongPeer { addr: SocketAddr, expected: NodeId, found: NodeId },
    /// The peer does not take us: not a member there, the wrong protocol, or too busy.
    #[error("the node at {addr} refused this node: {why}")]
    Refused { addr: SocketAddr, why: String },
    #[error("{peer} speaks exo protocol {theirs}, this node {ours}: update the older one")]
    Version { peer: NodeId, ours: Protocols, theirs: Protocols },
    /// The connection broke, or was no exo at the other end.
    #[error("the connection to {addr} broke during the handshake: {why}")]
    Broken { addr: SocketAddr, why: String },
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
    #[error("a frame of kind {kind} with {announced_bytes} bytes, this channel takes {max_bytes}")]
    TooLarge { kind: u8, announced_bytes: u32, max_bytes: u32 },
    #[error("frame version {found}, this node reads {known}")]
    Version { found: u8, known: u8 },
    /// Nothing complete in time. What arrived is kept: ask again.
    #[error("no frame within {} ms", within.as_millis())]
    Timeout { within: Duration },
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
    TooLarge { kind: u8, bytes: u64, max_bytes: u32 },
    /// The peer took nothing for too long. The channel is broken now.
    #[error("the peer took no byte for {} ms", within.as_millis())]
    Stalled { within: Duration },
    /// An earlier send was cancelled half-way, so the peer would misread what follows.
    #[error("an earlier frame was cut off half-way")]
    CutOff,
}
