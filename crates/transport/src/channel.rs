//! What a connection gives: a channel to a proven peer, or the join exchange.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use exo_types::{NodeId, Transport};

use crate::frame::{FrameLimits, FrameReader, FrameWriter};
use crate::join::JoinChannel;

/// An open channel to a member that proved its key.
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct Channel {
    /// Who is at the other end.
    pub peer: NodeId,
    pub remote: SocketAddr,
    /// The address of this machine that it runs over, where the system tells.
    pub local: Option<IpAddr>,
    pub via: Transport,
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
