//! The fold: one fact at a time, each checked against what is known before anything changes.

use exo_types::{Placement, PlacementId};

use super::{ApplyError, INSTANCE_END, State, StateInstance, serves};
use crate::Event;
use crate::wire::limits::{CONTROL_BYTES_MAX, INSTANCES_MAX, MEMBERS_MAX};

/// Bytes of a snapshot: it goes in one message with its head.
const STATE_BYTES_MAX: usize = CONTROL_BYTES_MAX - (1 << 20);
/// Instances that stay below that whatever they are, since each came in one event.
const SMALL_INSTANCES: usize = 16;

impl State {
    /// Takes in one fact, or errs and leaves the state as it was.
    pub fn apply(&mut self, event: &Event) -> Result<(), ApplyError> {
        match event {
            Event::Opened => (self.is_open, self.is_used) = (true, false),
            Event::InstancePlaced { request, placement, memory_bytes } => {
                self.place(StateInstance {
                    request: request.clone(),
                    placement: placement.clone(),
                    memory_bytes: memory_bytes.clone(),
                })?;
            }
            Event::InstanceReplaced { placement, memory_bytes, .. } => {
                self.replace(placement, memory_bytes)?
            }
            Event::NodeDrained { node, is_drained: true } => {
                if self.drained.len() >= MEMBERS_MAX {
                    return Err(ApplyError::TooMany { what: "drained nodes", max: MEMBERS_MAX });
                }
                self.drained.insert(*node);
            }
            Event::NodeDrained { node, is_drained: false } => {
                self.drained.remove(node);
            }
            Event::InstanceRemoved { instance, .. } => {
                let known = self.instances.remove(instance);
                known.ok_or(ApplyError::UnknownInstance { instance: *instance })?;
            }
            Event::InstanceKept { instance } => {
                let known = self.instances.get_mut(instance);
                let known = known.ok_or(ApplyError::UnknownInstance { instance: *instance })?;
                known.request.is_on_demand = false;
                self.is_used |= self.is_open;
            }
        }
        Ok(())
    }

    fn place(&mut self, placed: StateInstance) -> Result<(), ApplyError> {
        let instance = placed.placement.instance;
        if let Some(last) = self.instance_last.filter(|&last| instance <= last) {
            return Err(ApplyError::InstanceReused { instance, last });
        }
        if instance >= INSTANCE_END {
            return Err(ApplyError::InstanceBeyond { instance, end: INSTANCE_END });
        }
        check_id(placed.placement.id, self.placement_last)?;
        if self.instances.len() >= INSTANCES_MAX {
            return Err(ApplyError::TooMany { what: "instances", max: INSTANCES_MAX });
        }
        check_placement(&placed)?;
        // The next request loads again what a request loaded, wherever its node is by then.
        let is_asked_for = !placed.request.is_on_demand;
        self.take_placement(placed)?;
        self.instance_last = Some(instance);
        self.is_used |= self.is_open && is_asked_for;
        Ok(())
    }

    fn replace(&mut self, placement: &Placement, memory_bytes: &[u64]) -> Result<(), ApplyError> {
        let instance = placement.instance;
        let now = self.instances.get(&instance).ok_or(ApplyError::UnknownInstance { instance })?;
        let last = now.placement.id;
        check_id(placement.id, Some(last))?;
        check_id(placement.id, self.placement_last)?;
        let (request, memory_bytes) = (now.request.clone(), memory_bytes.to_vec());
        let replaced = StateInstance { request, placement: placement.clone(), memory_bytes };
        check_placement(&replaced)?;
        self.take_placement(replaced)
    }

    /// The snapshot stays within its bound, so that it can be read again.
    fn take_placement(&mut self, placed: StateInstance) -> Result<(), ApplyError> {
        let Placement { id, instance, .. } = placed.placement;
        let before = self.instances.insert(instance, placed);
        if self.instances.len() > SMALL_INSTANCES && self.encode().len() > STATE_BYTES_MAX {
            match before {
                Some(before) => self.instances.insert(instance, before),
                None => self.instances.remove(&instance),
            };
            return Err(ApplyError::TooMany { what: "bytes of all placements", max: STATE_BYTES_MAX });
        }
        self.placement_last = Some(id);
        Ok(())
    }
}

fn check_placement(placed: &StateInstance) -> Result<(), ApplyError> {
    let StateInstance { request, placement, memory_bytes } = placed;
    if serves(placement, memory_bytes, request) {
        return Ok(());
    }
    let (instance, what) = (placement.instance, "another model, context or slots, or not all layers");
    Err(ApplyError::Placement { instance, what })
}

/// Within an epoch numbers grow, and no two coordinators have the same epoch: so no id comes twice.
fn check_id(given: PlacementId, last: Option<PlacementId>) -> Result<(), ApplyError> {
    match last.filter(|last| given.epoch == last.epoch && given.number <= last.number) {
        Some(last) => Err(ApplyError::PlacementReused { given, last }),
        None => Ok(()),
    }
}
