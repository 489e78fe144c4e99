//! The cluster's state: a pure fold over [`Event`](crate::Event)s. Who its members are is in the log of
//! trust. The same events give the same state on every node.

use std::collections::{BTreeMap, BTreeSet};

use exo_types::{Epoch, InstanceId, NodeId, Placement, PlacementId};
use serde::{Deserialize, Serialize};

use crate::wire::events;
use crate::wire::{Check, CheckError, limits};
use crate::{EventError, InstanceRequest};

mod apply;
mod errors;
#[cfg(test)]
mod tests;

pub use errors::ApplyError;

/// An instance's id is the counter of its epoch, 16 bits of the epoch's key, and a serial number.
const SERIAL_BITS: u32 = 12;
const EPOCH_SHIFT: u32 = SERIAL_BITS + 16;
/// Ids of instances stay below, so that the next one is a number, too.
const INSTANCE_END: InstanceId = InstanceId(1 << 63);

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
    pub(crate) instances: BTreeMap<InstanceId, StateInstance>,
    pub(crate) instance_last: Option<InstanceId>,
    /// The last id given to a placement.
    pub(crate) placement_last: Option<PlacementId>,
    pub(crate) is_open: bool,
    pub(crate) is_used: bool,
    /// Nodes that are to have no stages.
    pub(crate) drained: BTreeSet<NodeId>,
}

impl State {
    /// The snapshot's bytes.
    pub fn encode(&self) -> Vec<u8> {
        events::encode(self)
    }

    /// The state in a snapshot.
    pub fn decode(bytes: &[u8]) -> Result<Self, EventError> {
        let state: Self = events::decode(bytes, limits::CONTROL_BYTES_MAX)?;
        state.check()?;
        Ok(state)
    }

    /// Whether the node was opened to others: [`Event::Opened`](crate::Event::Opened).
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether a person placed a model since then: this is no new cluster any more. What requests load
    /// themselves does not count.
    pub fn is_used(&self) -> bool {
        self.is_used
    }

    /// The state after these facts, one after the other, or why one of them cannot follow.
    pub fn after(&self, events: &[crate::Event]) -> Result<Self, ApplyError> {
        let mut state = self.clone();
        events.iter().try_for_each(|event| state.apply(event))?;
        Ok(state)
    }

    /// The instances by id.
    pub fn instances(&self) -> &BTreeMap<InstanceId, StateInstance> {
        &self.instances
    }

    /// Nodes that are to have no stages.
    pub fn drained(&self) -> &BTreeSet<NodeId> {
        &self.drained
    }

    /// The epoch in which something was last placed.
    pub fn epoch_last(&self) -> Option<Epoch> {
        self.placement_last.map(|placement| placement.epoch)
    }

    /// The highest instance id ever given out.
    pub fn instance_last(&self) -> Option<InstanceId> {
        self.instance_last
    }

    /// The counter of the latest epoch whose numbers are in it.
    pub fn counter_last(&self) -> u64 {
        let of_instance = self.instance_last.map_or(0, |last| last.0 >> EPOCH_SHIFT);
        self.epoch_last().map_or(0, |epoch| epoch.counter).max(of_instance)
    }

    /// The id of the next instance, placed in this epoch. No other epoch can give it out, even one of another
    /// half of the cluster with the same counter. Ids grow for ever: after a merge the winner's counter is
    /// higher, and within an epoch the serial counts.
    pub(crate) fn instance_next(&self, epoch: Epoch) -> InstanceId {
        let key = u64::from(u16::from_be_bytes([epoch.key.0[0], epoch.key.0[1]]));
        let counter = epoch.counter.min(u64::MAX >> EPOCH_SHIFT);
        let base = counter << EPOCH_SHIFT | key << SERIAL_BITS;
        InstanceId(self.instance_last.map_or(base, |last| last.0.max(base)).saturating_add(1))
    }
}

/// A snapshot comes from a peer or a disk: its maps must say of each entry what the entry says of itself.
impl Check for State {
    fn check(&self) -> Result<(), CheckError> {
        let instances = self.instances.iter().all(|(&id, i)| {
            i.placement.instance == id
                && Some(id) <= self.instance_last
                && serves(&i.placement, &i.memory_bytes, &i.request)
        });
        let is_last_sound = self.instance_last.is_none_or(|id| id < INSTANCE_END);
        if !instances || !is_last_sound || self.drained.len() > limits::MEMBERS_MAX {
            return Err(CheckError::Invalid { what: "a snapshot contradicts itself" });
        }
        self.instances.values().try_for_each(|i| i.request.check().and(i.placement.check()))
    }
}

/// Whether the placement is one of the request: same model, all its layers, the context, slots and cache
/// asked for.
fn serves(placement: &Placement, memory_bytes: &[u64], request: &InstanceRequest) -> bool {
    placement.model == request.model
        && placement.shards().count() == memory_bytes.len()
        && placement.tiles(request.shape.layer_count())
        && (placement.context_tokens, placement.slots) == (request.context_tokens, request.slots)
        && (placement.cache_tokens, placement.kv) == (request.cache_tokens, request.kv)
}
