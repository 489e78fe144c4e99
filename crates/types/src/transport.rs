//! What carries bytes between two nodes.

use std::fmt;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// Which of the two transports carries a link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Transport {
    /// A stream of a pooled QUIC connection over UDP: control, lossy links. Does not notice a killed process
    /// for seconds.
    Quic,
    /// A TLS connection of its own over TCP: fastest on a LAN, and its reset tells of a death at once.
    Tcp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Quic => "quic",
            Self::Tcp => "tcp",
        })
    }
}

/// Packets that were sent to a node, counted by the transport that sent them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct PacketCounts {
    /// Packets sent.
    pub sent: u64,
    /// Of these, packets that are known to be lost.
    pub lost: u64,
}

impl PacketCounts {
    /// What was counted since `earlier`. A loss is known only a while after the packet was sent: never more
    /// are lost than were sent.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        let sent = self.sent.saturating_sub(earlier.sent);
        Self { sent, lost: self.lost.saturating_sub(earlier.lost).min(sent) }
    }
}

impl AddAssign for PacketCounts {
    fn add_assign(&mut self, more: Self) {
        self.sent = self.sent.saturating_add(more.sent);
        self.lost = self.lost.saturating_add(more.lost);
    }
}
