//! What two nodes say to each other in a join exchange: one question, one answer.

use std::fmt;
use std::net::SocketAddr;

use exo_trust::EntryId;
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
    /// What it wants.
    pub what: JoinPurpose,
}

/// What somebody wants who is no member, or is not known as one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum JoinPurpose {
    /// Only to know who is there.
    Name,
    /// To become a member: it is alone in a cluster of its own.
    Membership,
    /// What it lacks of a log of trust, in which it is or was a member.
    Trust {
        /// Whose: the id of its founding entry.
        cluster: EntryId,
        /// What it has: these and what they follow.
        known: Vec<EntryId>,
    },
}

/// The answer in a join exchange.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum JoinAnswer {
    /// You are a member now.
    Welcome(Box<Welcome>),
    /// Ask again soon: the answering node is about to join another itself, or is writing.
    Later,
    /// Ask this node instead.
    Elsewhere {
        /// The node.
        node: NodeId,
        /// Where.
        addresses: Vec<SocketAddr>,
    },
    /// No.
    Refused {
        /// Why.
        reason: String,
    },
    /// To [`JoinPurpose::Trust`]: entries in their encoding, each after what it follows; as many as the
    /// exchange carries.
    Trust(Vec<Vec<u8>>),
    /// To [`JoinPurpose::Name`].
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
    /// The cluster: the id of the founding entry of its log of trust.
    pub cluster: EntryId,
    /// Who coordinates it.
    pub coordinator: NodeId,
    /// Where that is.
    pub coordinator_addresses: Vec<SocketAddr>,
}

/// What a person was given to get in: the digits of an invitation, or a token. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Code(pub String);

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Code(..)")
    }
}

/// A person has this node join where a code was given out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JoinByCode {
    /// Proves that it was.
    pub code: Code,
    /// Who gave it out, if that is known.
    pub with: Option<NodeId>,
    /// Where that is; none to ask all who are nearby.
    pub addresses: Vec<SocketAddr>,
}

/// Where a code has let this node in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JoinedByCode {
    /// What the node that let it in is called.
    pub name: String,
    /// The words that both show.
    pub words: String,
}
