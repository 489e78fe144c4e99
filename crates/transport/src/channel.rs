//! What a connection gives: a channel to a proven peer, or the join exchange.

use std::fmt;
use std::net::SocketAddr;

use exo_types::NodeId;

use crate::frame::{FrameLimits, FrameReader, FrameWriter};
use crate::join::JoinChannel;

/// Which of the two transports carries a channel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Via {
    /// A stream of a pooled QUIC connection: control, lossy links. Does not notice a killed process for
    /// seconds.
    Quic,
    /// A TLS connection of its own over TCP: fastest on a LAN, and its reset tells of a death at once.
    Tcp,
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Quic => "quic",
            Self::Tcp => "tcp",
        })
    }
}

/// An open channel to a member that proved its key.
pub struct Channel {
    /// Who is at the other end.
    pub peer: NodeId,
    /// From where.
    pub remote: SocketAddr,
    /// Over what.
    pub via: Via,
    /// Whether this side dialled.
    pub initiator: bool,
    /// What the dialler wants of it, by the upper layer's table.
    pub purpose: u8,
    /// The newest protocol version both sides speak.
    pub protocol: u16,
    pub(crate) writer: FrameWriter,
    pub(crate) reader: FrameReader,
}

impl Channel {
    /// The two directions, with the largest payload either may carry.
    pub fn split(self, limits: FrameLimits) -> (FrameWriter, FrameReader) {
        let Self { mut writer, mut reader, .. } = self;
        writer.set_limits(limits);
        reader.set_limits(limits);
        (writer, reader)
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = if self.initiator { "to" } else { "from" };
        write!(
            f,
            "Channel({way} {} at {} via {}, purpose {})",
            self.peer, self.remote, self.via, self.purpose
        )
    }
}

/// Somebody connected.
#[derive(Debug)]
pub enum Incoming {
    /// A member opened a channel.
    Channel(Channel),
    /// Anyone, by a key they proved, wants to join.
    Join(JoinChannel),
}
