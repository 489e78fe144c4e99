//! The cluster's state: a pure fold over [`Event`]s. The same events give the same state on every node.

use std::collections::{BTreeMap, BTreeSet};

use exo_types::{InstanceId, NodeId, Placement};
use serde::{Deserialize, Serialize};

use crate::wire::limits;
use crate::{ClusterId, Event, EventError, InstanceRequest, Member, Role};

/// An instance as the log knows it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StateInstance {
    /// What was asked.
    pub request: InstanceRequest,
    /// Where it is now.
    pub placement: Placement,
}

/// What lasts of a cluster. [`State::default`] is the state before any event.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct State {
    cluster: Option<(ClusterId, String)>,
    join_window_until_unix_s: u64,
    members: BTreeMap<NodeId, Member>,
    removed: BTreeSet<NodeId>,
    instances: BTreeMap<InstanceId, StateInstance>,
    instance_last: Option<InstanceId>,
}

/// An event that contradicts the state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// Something before, or a second, founding.
    #[error("the cluster is {}", if *.founded { "founded already" } else { "not founded yet" })]
    Founding {
        /// Whether it is.
        founded: bool,
    },
    /// The founder or an appointed admin does not qualify.
    #[error("{node} is not an admin member")]
    NotAdmin {
        /// The node.
        node: NodeId,
    },
    /// Removal is for ever: a removed key never comes back.
    #[error("{node} was removed from this cluster")]
    Revoked {
        /// The node.
        node: NodeId,
    },
    /// No such member.
    #[error("{node} is not a member")]
    UnknownMember {
        /// The node.
        node: NodeId,
    },
    /// A cluster keeps at least one admin.
    #[error("{node} is the only admin: appoint another first")]
    LastAdmin {
        /// The node.
        node: NodeId,
    },
    /// No such instance.
    #[error("there is no instance {instance}")]
    UnknownInstance {
        /// The instance.
        instance: InstanceId,
    },
    /// Instance ids are never used twice.
    #[error("instance {instance} is not after {last}, the last one placed")]
    InstanceReused {
        /// The new one.
        instance: InstanceId,
        /// The last one.
        last: InstanceId,
    },
    /// Generations count up by one.
    #[error("instance {instance} goes from generation {from} to {to}")]
    Generation {
        /// The instance.
        instance: InstanceId,
        /// Now.
        from: u32,
        /// Offered.
        to: u32,
    },
    /// The placement is not one of this request.
    #[error("the placement of instance {instance} does not serve its request: {what}")]
    Placement {
        /// The instance.
        instance: InstanceId,
        /// What is wrong.
        what: &'static str,
    },
    /// More members or instances than a cluster may have.
    #[error("a cluster has at most {max} {what}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The bound.
        max: usize,
    },
}

impl State {
    /// Takes in one fact, or leaves the state as it was.
    pub fn apply(&mut self, _event: &Event) -> Result<(), ApplyError> {
        Ok(())
    }

    /// The snapshot's bytes.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("states hold only types postcard can write")
    }

    /// The state in a snapshot.
    pub fn decode(bytes: &[u8]) -> Result<Self, EventError> {
        if bytes.len() > limits::CONTROL_BYTES_MAX {
            return Err(EventError::TooLong { len_bytes: bytes.len(), max_bytes: limits::CONTROL_BYTES_MAX });
        }
        Ok(postcard::from_bytes(bytes)?)
    }

    /// Identity and name; `None` before the founding.
    pub fn cluster(&self) -> Option<(ClusterId, &str)> {
        self.cluster.as_ref().map(|(id, name)| (*id, name.as_str()))
    }

    /// Until when strangers on the local network join on sight, in seconds since 1970.
    pub fn join_window_until_unix_s(&self) -> u64 {
        self.join_window_until_unix_s
    }

    /// The members by key.
    pub fn members(&self) -> &BTreeMap<NodeId, Member> {
        &self.members
    }

    /// Whether the node was removed: its certificate is revoked for ever.
    pub fn is_removed(&self, node: NodeId) -> bool {
        self.removed.contains(&node)
    }

    /// The keys that may sign.
    pub fn admins(&self) -> impl Iterator<Item = NodeId> {
        self.members.values().filter(|m| m.role == Role::Admin).map(|m| m.node)
    }

    /// The instances by id.
    pub fn instances(&self) -> &BTreeMap<InstanceId, StateInstance> {
        &self.instances
    }

    /// The highest instance id ever given out.
    pub fn instance_last(&self) -> Option<InstanceId> {
        self.instance_last
    }

    /// The removals `other` knows and this state does not: what a winner of a merge appends.
    pub fn removals_missing(&self, other: &Self) -> Vec<Event> {
        let missing = other.removed.difference(&self.removed);
        let reason = "removed while the cluster was split";
        missing.map(|&node| Event::MemberRemoved { node, reason: reason.to_owned() }).collect()
    }
}
