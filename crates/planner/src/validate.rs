//! Whether a plan still fits a cluster that has changed since the plan was asked for.

use exo_types::{LayerRange, Shard};

use crate::explain::{name, unusable};
use crate::memory::{Held, Sizes};
use crate::{InvalidPlan, Plan, PlanRequest};

/// Checks `plan` against `request`, which may be newer than the one it was made for: its layers tile the model, each
/// stage has a device of its own that may be used, and each device has room for its stage. Whether a better plan
/// exists is not asked, so this costs microseconds.
pub fn validate(request: &PlanRequest, plan: &Plan) -> Result<(), InvalidPlan> {
    tiles(request, plan)?;
    let sizes = Sizes::of(request);
    for (index, stage) in plan.stages.iter().enumerate() {
        let is_this = |d: &&crate::PlanDevice| d.node == stage.node && d.device.id == stage.device;
        let Some(device) = request.devices.iter().find(is_this) else {
            return Err(InvalidPlan::DeviceGone {
                stage: index,
                node: stage.node,
                device: stage.device.clone(),
            });
        };
        if let Some(reason) = unusable(device) {
            return Err(InvalidPlan::Unusable { stage: index, device: name(device), reason });
        }
        if plan.stages[..index].iter().any(|s| (s.node, &s.device) == (stage.node, &stage.device)) {
            return Err(InvalidPlan::DeviceTwice { stage: index, device: name(device) });
        }
        let needed_bytes = sizes.stage(Held::by(device.device.kind), stage.shard.layers).total_bytes();
        let free_bytes = device.device.memory_free_bytes;
        if needed_bytes > free_bytes {
            let device = name(device);
            return Err(InvalidPlan::NoMemory { stage: index, device, needed_bytes, free_bytes });
        }
    }
    Ok(())
}

/// Whether the stages hold every layer once, in order, with the ends where they belong.
fn tiles(request: &PlanRequest, plan: &Plan) -> Result<(), InvalidPlan> {
    let layer_count = request.shape.layer_count();
    let mut next = 0;
    for stage in &plan.stages {
        let LayerRange { start, end } = stage.shard.layers;
        let follows = start == next && start < end && end <= layer_count;
        if !follows || stage.shard != Shard::pipeline(stage.shard.layers, layer_count) {
            return Err(InvalidPlan::NotTiled { at: next, found: stage.shard.to_string(), layer_count });
        }
        next = end;
    }
    if next != layer_count || plan.stages.is_empty() {
        return Err(InvalidPlan::NotTiled { at: next, found: "no stage".to_owned(), layer_count });
    }
    if plan.memory.len() != plan.stages.len() {
        return Err(InvalidPlan::Unsized { stages: plan.stages.len(), sizes: plan.memory.len() });
    }
    Ok(())
}
