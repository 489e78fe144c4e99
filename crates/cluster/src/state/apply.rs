//! The fold: one fact at a time, each checked against what is known before anything changes.

use exo_types::{NodeId, Placement, PlacementId};

use super::{ApplyError, ON_SIGHT_MAX, State, StateInstance, serves};
use crate::legacy::is_legacy;
use crate::wire::limits::{INSTANCES_MAX, MEMBERS_MAX};
use crate::{Event, Member, Role};

impl State {
    /// Takes in one fact, or errs and leaves the state as it was.
    pub fn apply(&mut self, event: &Event) -> Result<(), ApplyError> {
        let founding = matches!(event, Event::ClusterCreated { .. });
        if founding == self.cluster.is_some() {
            return Err(ApplyError::Founding { founded: self.cluster.is_some() });
        }
        match event {
            Event::ClusterCreated { cluster, name, founder, .. } => {
                if founder.role != Role::Admin {
                    return Err(ApplyError::NotAdmin { node: founder.node });
                }
                self.cluster = Some((*cluster, name.clone()));
                self.members.insert(founder.node, founder.clone());
            }
            Event::JoinWindow { until_unix_s } => self.join_window_until_unix_s = Some(*until_unix_s),
            Event::MemberAdmitted(member) => self.admit(member)?,
            Event::MemberRemoved { node, .. } => self.remove_member(*node)?,
            Event::AdminAppointed { node, certificate } => self.appoint(*node, certificate)?,
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
            Event::InstanceRemoved { instance, .. } => {
                let known = self.instances.remove(instance);
                known.ok_or(ApplyError::UnknownInstance { instance: *instance })?;
            }
        }
        Ok(())
    }

    /// A second admission of a member replaces name and certificate; its role never falls this way.
    fn admit(&mut self, member: &Member) -> Result<(), ApplyError> {
        if self.removed.contains(&member.node) {
            return Err(ApplyError::Revoked { node: member.node });
        }
        if self.members.len() >= MEMBERS_MAX && !self.members.contains_key(&member.node) {
            return Err(ApplyError::TooMany { what: "members", max: MEMBERS_MAX });
        }
        let mut member = member.clone();
        if self.members.get(&member.node).is_some_and(|m| m.role == Role::Admin) {
            member.role = Role::Admin;
        }
        self.members.insert(member.node, member);
        if self.members.len() > ON_SIGHT_MAX {
            self.join_window_until_unix_s = Some(0);
        }
        Ok(())
    }

    /// Removing a stranger is a fact too: its key is revoked (removals of merged halves arrive this way). Whoever removes one wants to
    /// decide who comes in: the join window shuts.
    fn remove_member(&mut self, node: NodeId) -> Result<(), ApplyError> {
        let is_admin = self.admins().any(|admin| admin == node);
        if is_admin && self.admins().count() == 1 {
            return Err(ApplyError::LastAdmin { node });
        }
        self.members.remove(&node);
        self.removed.insert(node);
        self.join_window_until_unix_s = Some(0);
        Ok(())
    }

    fn appoint(&mut self, node: NodeId, certificate: &[u8]) -> Result<(), ApplyError> {
        let member = self.members.get_mut(&node).ok_or(ApplyError::UnknownMember { node })?;
        member.role = Role::Admin;
        member.certificate = certificate.to_vec();
        Ok(())
    }

    fn place(&mut self, placed: StateInstance) -> Result<(), ApplyError> {
        let instance = placed.placement.instance;
        if let Some(last) = self.instance_last.filter(|&last| instance <= last) {
            return Err(ApplyError::InstanceReused { instance, last });
        }
        check_id(placed.placement.id, self.placement_last)?;
        if self.instances.len() >= INSTANCES_MAX {
            return Err(ApplyError::TooMany { what: "instances", max: INSTANCES_MAX });
        }
        self.check_placement(&placed)?;
        self.take_placement(placed);
        self.instance_last = Some(instance);
        self.is_used |= self.join_window_until_unix_s.is_some();
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
        self.check_placement(&replaced)?;
        self.take_placement(replaced);
        Ok(())
    }

    fn take_placement(&mut self, placed: StateInstance) {
        let Placement { id, instance, .. } = placed.placement;
        if !is_legacy(id) {
            self.placement_last = Some(id);
        }
        self.instances.insert(instance, placed);
    }

    fn check_placement(&self, placed: &StateInstance) -> Result<(), ApplyError> {
        let StateInstance { request, placement, memory_bytes } = placed;
        let instance = placement.instance;
        if !serves(placement, memory_bytes, request) {
            let what = "another model, context or slots, or not all layers";
            return Err(ApplyError::Placement { instance, what });
        }
        if !placement.shards().all(|(_, s)| self.members.contains_key(&s.node)) {
            return Err(ApplyError::Placement { instance, what: "a shard is on no member" });
        }
        Ok(())
    }
}

/// Within an epoch numbers grow, and no two coordinators have the same epoch: so no id comes twice.
fn check_id(given: PlacementId, last: Option<PlacementId>) -> Result<(), ApplyError> {
    match last.filter(|last| given.epoch == last.epoch && given.number <= last.number) {
        Some(last) => Err(ApplyError::PlacementReused { given, last }),
        None => Ok(()),
    }
}
