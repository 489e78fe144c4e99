//! What the planner is asked: which devices there are, and what of their memory is free for this instance.

use std::time::Duration;

use exo_planner::{LinkFacts, Objective, Plan, PlanDevice, PlanRequest};
use exo_types::{DeviceFacts, DeviceId, Epoch, InstanceId, NodeId, Placement, SupportClass, Time};

use super::{Coordinator, Reign};
use crate::wire::NodeReport;
use crate::{InstanceRequest, PlaceObjective, StateInstance};

impl Coordinator {
    /// The request for a plan with this objective. What `replaced` holds counts as free.
    pub(super) fn request_for(
        &self,
        now: Time,
        wanted: &InstanceRequest,
        replaced: Option<InstanceId>,
        objective: Objective,
    ) -> PlanRequest {
        PlanRequest {
            shape: wanted.shape.clone(),
            model: wanted.model,
            context_tokens: wanted.context_tokens,
            slots: wanted.slots,
            cache_tokens: wanted.cache_tokens,
            devices: self.devices(now, replaced),
            links: self.links(),
            objective,
            pinned_first: wanted.pinned_first,
        }
    }

    /// Every device of the members alive, with the memory that `replaced` may fill.
    fn devices(&self, now: Time, replaced: Option<InstanceId>) -> Vec<PlanDevice> {
        let Some(reign) = &self.reign else { return Vec::new() };
        let mut devices = Vec::new();
        for (&node, report) in self.reports.iter().filter(|(node, _)| !self.is_gone(reign, now, **node)) {
            for facts in &report.facts.devices {
                let mut device = facts.clone();
                device.memory_free_bytes = free_for(reign, node, report, facts, replaced);
                let unsupported = facts.support == SupportClass::Unsupported;
                let excluded = unsupported.then(|| facts.support_reason.clone());
                devices.push(PlanDevice { node, node_name: report.facts.name.clone(), device, excluded });
            }
        }
        devices
    }

    fn links(&self) -> Vec<LinkFacts> {
        let of_node = |(&from, report): (&NodeId, &NodeReport)| -> Vec<LinkFacts> {
            let link = |l: &crate::wire::LinkReport| LinkFacts {
                from,
                to: l.peer,
                rtt: Some(Duration::from_micros(l.rtt_us.into())),
                bytes_per_s: l.bytes_per_s,
            };
            report.links.iter().map(link).collect()
        };
        self.reports.iter().flat_map(of_node).collect()
    }
}

/// Free memory as reported, plus what is about to be freed there, minus what is promised but not taken yet.
fn free_for(
    reign: &Reign,
    node: NodeId,
    report: &NodeReport,
    facts: &DeviceFacts,
    replaced: Option<InstanceId>,
) -> u64 {
    let stays = |instance: InstanceId, generation: u32| {
        let planned = reign.planned.instances().get(&instance);
        replaced != Some(instance) && planned.is_some_and(|i| i.placement.generation == generation)
    };
    let here = report.stages.iter().filter(|s| s.device == facts.id);
    let leaving = here.filter(|s| !stays(s.instance, s.generation)).map(|s| s.held_bytes).sum::<u64>();
    let others = reign.planned.instances().iter().filter(|(id, _)| Some(**id) != replaced);
    let promised: u64 = others.map(|(_, i)| promised_bytes(i, node, &facts.id, report)).sum();
    let free_bytes = facts.memory_free_bytes.saturating_add(leaving).min(facts.memory_total_bytes);
    free_bytes.saturating_sub(promised)
}

/// Bytes of the instance's stages on this device that the report does not show as taken.
fn promised_bytes(instance: &StateInstance, node: NodeId, device: &DeviceId, report: &NodeReport) -> u64 {
    let Placement { instance: id, generation, stages, .. } = &instance.placement;
    let taken = |index: usize| {
        let is_this = |s: &&crate::wire::StageReport| {
            (s.instance, s.generation, s.stage as usize) == (*id, *generation, index)
        };
        report.stages.iter().find(is_this).map_or(0, |s| s.held_bytes)
    };
    let here = stages.iter().enumerate().filter(|(_, s)| s.node == node && s.device == *device);
    here.map(|(index, _)| instance.memory_bytes[index].saturating_sub(taken(index))).sum()
}

pub(super) fn objective_of(wanted: &InstanceRequest) -> Objective {
    match wanted.objective {
        PlaceObjective::Fit => Objective::Fit,
        PlaceObjective::Spread { stages_min } => Objective::Spread { stages_min },
    }
}

/// The placement of a plan, and the bytes of each stage.
pub(super) fn placement(
    plan: Plan,
    request: &InstanceRequest,
    instance: InstanceId,
    generation: u32,
) -> (Placement, Vec<u64>) {
    let memory_bytes = plan.memory.iter().map(|m| m.total_bytes()).collect();
    let InstanceRequest { model, context_tokens, slots, cache_tokens, kv, .. } = *request;
    let stages = plan.stages;
    let placement =
        Placement { instance, generation, model, stages, context_tokens, slots, cache_tokens, kv };
    (placement, memory_bytes)
}

/// An id no other reign can give out, even one of another half of the cluster with the same counter: the epoch's
/// counter, 16 bits of its key, and a serial number.
pub(super) fn instance_after(epoch: Epoch, last: Option<InstanceId>) -> InstanceId {
    let key = u64::from(u16::from_be_bytes([epoch.key.0[0], epoch.key.0[1]]));
    let base = epoch.counter << 28 | key << 12;
    // Ids grow for ever: after a merge the winner's counter is higher, and within a reign the serial counts.
    InstanceId(last.map_or(base, |last| last.0.max(base)) + 1)
}
