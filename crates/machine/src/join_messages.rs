//! What two nodes say to each other in a join exchange: one question, one answer.

use std::fmt;
use std::net::SocketAddr;

use exo_trust::{ActError, EntryId};
use exo_types::NodeId;
use serde::{Deserialize, Serialize};

use crate::ActRefusal;

/// What a stranger asks in a join exchange.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct JoinAsk {
    /// What it is called. Not to be trusted.
    pub name: String,
    pub group: String,
    /// Where it listens.
    pub port: u16,
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
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum JoinAnswer {
    /// You are a member now.
    Welcome(Box<Welcome>),
    /// Ask again soon: the answering node is about to join another itself, or is writing.
    Later,
    /// Ask this node instead.
    Elsewhere { node: NodeId, addresses: Vec<SocketAddr> },
    /// The node is not let in.
    Refused(JoinRefusal),
    /// To [`JoinPurpose::Trust`]: entries in their encoding, each after what it follows; as many as the
    /// exchange carries.
    Trust(Vec<Vec<u8>>),
    /// To [`JoinPurpose::Name`].
    Here {
        name: String,
        /// Whether it is alone in its cluster.
        fresh: bool,
    },
}

/// Why a node is not let in.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum JoinRefusal {
    /// The asker is of another group.
    OtherGroup,
    /// The asker wants the log of a cluster that is not this one, or that is none of its business.
    OtherCluster,
    /// The asker was removed from the cluster.
    Removed,
    /// A person has refused the asker.
    RefusedByPerson,
    /// No one comes in on sight.
    WindowShut {
        /// Who lets in; empty where that is the answering node itself.
        admins: Vec<String>,
    },
    /// The window is open, and the asker is on no private network of the answering node.
    NotNear { admins: Vec<String> },
    /// The answering node lets no one in.
    NotAnAdmin { admins: Vec<String> },
    /// The window has shut while the asker was being let in.
    ShutMeanwhile,
    /// The answering node is moving to another cluster.
    Moving,
    /// As many nodes were let in as a log of trust takes.
    Full { max: u64 },
    /// The answering node could not record the asker. Its own log says why.
    NotRecorded,
    /// The answering node has given out no code that counts still.
    NotInvited,
    /// Others have used the code meanwhile.
    UsedUp,
    /// The code is another one.
    WrongCode {
        /// After so many wrong ones a code is void.
        tries: u32,
    },
    /// The messages that prove the code were none.
    NoProof,
}

impl JoinRefusal {
    /// What the person at the asker reads.
    pub fn sentence(&self, asker: NodeId) -> String {
        let id = asker.to_instance_name();
        // Two are enough to be asked, and leave room for what to type there.
        let named = |admins: &[String]| admins.iter().take(2).cloned().collect::<Vec<_>>().join(" or ");
        let at = |admins: &[String]| match admins {
            [] => "there".to_owned(),
            admins => format!("on {}", named(admins)),
        };
        match self {
            Self::OtherGroup => "it belongs to another group".to_owned(),
            Self::OtherCluster => "it is of another cluster".to_owned(),
            Self::Removed => {
                "this node was removed from the cluster, for good; `exo stop` and `exo leave` make it a new one".to_owned()
            }
            Self::RefusedByPerson => {
                "a person there has refused this node; it is not shown there again for an \
                hour, and a code from there lets it in"
                    .to_owned()
            }
            Self::WindowShut { admins } => {
                let at = at(admins);
                format!(
                    "its join window is shut; `exo admit {id}` {at} lets this node in, and so does a code: `exo invite` \
                     {at}, then `exo join CODE` here"
                )
            }
            Self::NotNear { admins } => {
                let at = at(admins);
                format!(
                    "its join window is for its own private networks, and this node asks from outside of them; \
                     `exo invite` {at} and `exo join CODE` here bring it in, or `exo admit {id}` {at}"
                )
            }
            Self::NotAnAdmin { admins } => {
                format!("it is no admin of its cluster and lets nobody in; ask {}", at(admins))
            }
            Self::ShutMeanwhile => "its join window has shut meanwhile; this node asks again".to_owned(),
            Self::Moving => "it is moving to another cluster".to_owned(),
            Self::Full { max } => format!("its cluster has {max} nodes, and takes no more"),
            Self::NotRecorded => "it could not record this node as a member; its log says why".to_owned(),
            Self::NotInvited => {
                "it has no invitation open, or not any more; `exo invite` on an admin of its cluster gives a new code".to_owned()
            }
            Self::UsedUp => {
                "its invitation was used up meanwhile; `exo invite` on an admin of its cluster gives a new code".to_owned()
            }
            Self::WrongCode { tries } => format!(
                "the code is wrong, or another machine sits in between; after {tries} wrong ones a code is void"
            ),
            Self::NoProof => "what this node sent proves no code; is it of the same version?".to_owned(),
        }
    }
}

impl From<&ActRefusal> for JoinRefusal {
    fn from(refusal: &ActRefusal) -> Self {
        match refusal {
            ActRefusal::WindowShut => Self::ShutMeanwhile,
            ActRefusal::Moving => Self::Moving,
            ActRefusal::Refused => Self::RefusedByPerson,
            ActRefusal::Impossible { error: ActError::Removed { .. }, .. } => Self::Removed,
            ActRefusal::Impossible { error: ActError::TooMany { max, .. }, .. } => {
                Self::Full { max: *max as u64 }
            }
            _ => Self::NotRecorded,
        }
    }
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
