//! What carries bytes between two nodes.

use std::fmt;

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
