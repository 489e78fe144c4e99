//! What two nodes say to each other in a join exchange: one question, one answer.

use std::net::SocketAddr;

use exo_types::NodeId;
use serde::{Deserialize, Serialize};

/// What a stranger asks in a join exchange.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JoinAsk {
    /// What it is called. Not to be trusted.
    pub name: String,
    /// Its group.
    pub group: String,
    /// Where it listens.
    pub port: u16,
    /// Whether it is alone in a cluster of its own.
    pub fresh: bool,
    /// Only asks who is there.
    pub probe: bool,
}

/// The answer in a join exchange.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum JoinAnswer {
    /// You are a member now.
    Welcome(Box<Welcome>),
    /// Ask again soon: the answering node is about to join another itself, or waits for its coordinator.
    Later,
    /// Ask this node instead.
    Elsewhere {
        /// Which.
        node: NodeId,
        /// Where.
        addresses: Vec<SocketAddr>,
    },
    /// No.
    Refused {
        /// Why.
        reason: String,
    },
    /// To a probe.
    Here {
        /// What it is called.
        name: String,
        /// Whether it is alone in its cluster.
        fresh: bool,
    },
}

/// What a new member needs to reach its cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// What the answering node is called.
    pub name: String,
    /// The cluster.
    pub cluster: [u8; 16],
    /// The new member's certificate.
    pub certificate: Vec<u8>,
    /// Who coordinates it.
    pub coordinator: NodeId,
    /// Where that is.
    pub coordinator_addresses: Vec<SocketAddr>,
}
