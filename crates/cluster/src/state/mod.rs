//! The cluster's state: a pure fold over [`Event`]s. The same events give the same state on every node.

use std::collections::{BTreeMap, BTreeSet};

use exo_types::{InstanceId, NodeId, Placement, PlacementId};
use serde::{Deserialize, Serialize};

use crate::wire::{Check, CheckError, limits};
use crate::{ClusterId, Event, EventError, InstanceRequest, Member, Role, events};

mod apply;
mod errors;
#[cfg(test)]
mod tests;

pub use errors::ApplyError;

/// An instance as the log knows it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StateInstance {
    /// What was asked.
    pub request: InstanceRequest,
    /// Where it is now.
    pub placement: Placement,
    /// Bytes each shard needs, in the order of [`Placement::shards`].
    pub memory_bytes: Vec<u64>,
}

/// What lasts of a cluster. [`State::default`] is the state before any event.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct State {
    pub(crate) cluster: Option<(ClusterId, String)>,
    /// None until the window is opened or shut for the first time.
    pub(crate) join_window_until_unix_s: Option<u64>,
    pub(crate) members: BTreeMap<NodeId, Member>,
    pub(crate) removed: BTreeSet<NodeId>,
    pub(crate) instances: BTreeMap<InstanceId, StateInstance>,
    pub(crate) instance_last: Option<InstanceId>,
    /// The last id given to a placement since format 3.
    pub(crate) placement_last: Option<PlacementId>,
    /// Whether a model was placed since the join window was opened.
    pub(crate) is_used: bool,
}

/// How long the join window of a new cluster is open, at most.
pub const JOIN_WINDOW_S: u64 = 600;
/// How far a clock may be behind the one that opened the window: clocks are set by the network, and another node may coordinate.
const CLOCK_SLACK_S: u64 = 60;
/// Nodes let in after which the join window shuts.
pub const ON_SIGHT_MAX: usize = 16;

impl State {
    /// The snapshot's bytes.
    pub fn encode(&self) -> Vec<u8> {
        events::encode(self)
    }

    /// The state in a snapshot, also in one that the build before wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, EventError> {
        let state: Self = events::decode(bytes, limits::CONTROL_BYTES_MAX, crate::legacy::state)?;
        state.check()?;
        Ok(state)
    }

    /// Identity and name; `None` before the founding.
    pub fn cluster(&self) -> Option<(ClusterId, &str)> {
        self.cluster.as_ref().map(|(id, name)| (*id, name.as_str()))
    }

    /// Until when strangers on the local network join on sight, in seconds since 1970; 0 once the window is shut for good, and
    /// `None` before it was ever opened.
    pub fn join_window_until_unix_s(&self) -> Option<u64> {
        self.join_window_until_unix_s
    }

    /// For how many seconds more the join window is open by the wall clock. One that was set back by more than a minute does not open
    /// it again.
    pub fn join_window_left_s(&self, now_unix_s: u64) -> u64 {
        let left = self.join_window_until_unix_s.unwrap_or(0).saturating_sub(now_unix_s);
        if left <= JOIN_WINDOW_S + CLOCK_SLACK_S { left.min(JOIN_WINDOW_S) } else { 0 }
    }

    /// Whether a model was placed since the join window was opened: this is no new cluster any more.
    pub fn is_used(&self) -> bool {
        self.is_used
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

    /// The members that `other` has removed or admitted and this state has not: what a winner of a merge appends.
    pub fn member_changes_missing(&self, other: &Self) -> Vec<Event> {
        let reason = "removed while the cluster was split";
        let removed = other.removed.difference(&self.removed);
        let removed = removed.map(|&node| Event::MemberRemoved { node, reason: reason.to_owned() });
        let is_new = |m: &&Member| !self.members.contains_key(&m.node) && !self.removed.contains(&m.node);
        let admitted = other.members.values().filter(is_new).cloned().map(Event::MemberAdmitted);
        removed.chain(admitted).collect()
    }
}

/// A snapshot comes from a peer or a disk: its maps must say of each entry what the entry says of itself.
impl Check for State {
    fn check(&self) -> Result<(), CheckError> {
        let members = self.members.iter().all(|(&node, m)| m.node == node && !self.removed.contains(&node));
        let instances = self.instances.iter().all(|(&id, i)| {
            i.placement.instance == id
                && Some(id) <= self.instance_last
                && serves(&i.placement, &i.memory_bytes, &i.request)
        });
        if !members || !instances {
            return Err(CheckError::Invalid { what: "a snapshot contradicts itself" });
        }
        self.members.values().try_for_each(Member::check)?;
        self.instances.values().try_for_each(|i| i.request.check().and(i.placement.check()))
    }
}

/// Whether the placement is one of the request: same model, all its layers, the context, slots and cache asked for.
fn serves(placement: &Placement, memory_bytes: &[u64], request: &InstanceRequest) -> bool {
    placement.model == request.model
        && placement.shards().count() == memory_bytes.len()
        && placement.tiles(request.shape.layer_count())
        && (placement.context_tokens, placement.slots) == (request.context_tokens, request.slots)
        && (placement.cache_tokens, placement.kv) == (request.cache_tokens, request.kv)
}
