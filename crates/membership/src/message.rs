//! What nodes say to each other about being alive and leading. Every message carries the sender's epoch.

use exo_types::{Epoch, NodeId};
use serde::{Deserialize, Serialize};

/// Entries of a coordinator's table; a cluster is smaller.
const TABLE_MAX: usize = 4096;
/// Bytes of an encoded message: a full table.
const MESSAGE_BYTES_MAX: usize = 512 + TABLE_MAX * 48;

/// One message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Message {
    /// The epoch the sender has adopted.
    pub epoch: Option<Epoch>,
    /// Which run of the sender's process this is.
    pub incarnation: u64,
    /// What it says.
    pub body: Body,
}

/// What a message says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Body {
    /// I live. To the coordinator it renews the sender's lease, from the coordinator it grants it.
    Heartbeat(Heartbeat),
    /// I lead from now on, under the message's epoch.
    Announce(Heartbeat),
    /// I leave and hold nothing any more.
    Goodbye,
}

/// A sign of life.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Heartbeat {
    /// What the sender does in its epoch.
    pub role: Role,
    /// Its standing, should there be an election.
    pub rank: Rank,
    /// From a coordinator: how every other member does. Empty from others.
    pub table: Vec<(NodeId, NodeStatus)>,
}

/// What a node does in its epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Role {
    /// Looks for a coordinator.
    Seeking,
    /// Follows the coordinator of its epoch.
    Following {
        /// Whether it heard the coordinator within the time of suspicion. While any node says yes, no one
        /// claims.
        fresh: bool,
    },
    /// Is the coordinator of its epoch.
    Leading,
}

/// A node's standing. Where two coordinators meet the fields are compared in this order; among candidates
/// `log` comes first. The node's key decides last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct Rank {
    /// Of a coordinator: more than half of the members, itself included, follow it. No two can say so truly
    /// for long.
    pub majority: bool,
    /// Members on its side, itself included (of a candidate: itself alone), plus running instances it serves.
    pub served: u32,
    /// How much of the cluster's logs is on its disk.
    pub log: LogEnd,
    /// How long it has run, as the binary logarithm of minutes: coarse, so that two nodes agree who is older.
    pub uptime_class: u8,
    /// Whether it runs on mains power.
    pub mains_power: bool,
}

/// How up to date a node's logs are, the most complete greatest. The fields are compared in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct LogEnd {
    /// Entries of the log of trust.
    pub trust: u64,
    /// The counter of the epoch in which something was last placed.
    pub epoch: u64,
    /// Entries of the log of placements.
    pub index: u64,
}

/// How a member does, as a node sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NodeStatus {
    /// Not heard yet.
    Unseen,
    /// The node works.
    Alive,
    /// Silent, or its connection was reset.
    Suspected,
    /// The node is gone.
    Lost(LossReason),
}

/// Why bytes are not a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum MessageError {
    #[error("a membership message of {len} bytes; at most {max} are allowed")]
    TooLong { len: usize, max: usize },
    #[error("not a membership message of {len} bytes")]
    Malformed { len: usize, source: postcard::Error },
    #[error("a membership message with {what} of {value}; at most {max} are allowed")]
    OutOfBounds { what: &'static str, value: u64, max: u64 },
}

impl Message {
    /// The message as bytes.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("integers and lists always encode")
    }

    /// The message in `bytes`, within bounds.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let len = bytes.len();
        if len > MESSAGE_BYTES_MAX {
            return Err(MessageError::TooLong { len, max: MESSAGE_BYTES_MAX });
        }
        let decoded: Result<(Self, &[u8]), _> = postcard::take_from_bytes(bytes);
        let (message, rest) = decoded.map_err(|source| MessageError::Malformed { len, source })?;
        at_most("trailing bytes", rest.len() as u64, 0)?;
        message.check()?;
        Ok(message)
    }

    /// Whether every field is within bounds. `decode` has asked; a simulator may ask too.
    pub fn check(&self) -> Result<(), MessageError> {
        match &self.body {
            Body::Heartbeat(beat) | Body::Announce(beat) => {
                at_most("table entries", beat.table.len() as u64, TABLE_MAX as u64)
            }
            Body::Goodbye => Ok(()),
        }
    }
}

fn at_most(what: &'static str, value: u64, max: u64) -> Result<(), MessageError> {
    if value > max { Err(MessageError::OutOfBounds { what, value, max }) } else { Ok(()) }
}

/// Why a node is lost.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, thiserror::Error,
)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the reasons are
pub enum LossReason {
    /// It said goodbye.
    #[error("left")]
    Left,
    #[error("silent for too long")]
    Silent,
    /// Its connection was reset and it did not come back.
    #[error("connection reset")]
    Reset,
    /// It came back as another process, which holds nothing of what the old one held.
    #[error("restarted")]
    Restarted,
    #[error("removed from the cluster")]
    Removed,
    /// It has not been heard since this node started or it was admitted.
    #[error("not seen yet")]
    NeverSeen,
    /// Its connection was reset, and its port refuses another one.
    #[error("its process ended")]
    Refused,
    #[error("no message for too long, though its data link lives")]
    NoMessage,
}
