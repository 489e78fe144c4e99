//! Whether a plan still fits a cluster that has changed since the plan was asked for.

use exo_types::{LayerRange, Shard};

use crate::domains::oversubscribed;
use crate::explain::{name, unusable};
use crate::kernels::lacking_kernels;
use crate::memory::{Sizes, WeightForm};
use crate::{InvalidPlan, Plan, PlanDevice, PlanRequest};

/// Checks `plan` against `request`, which may be newer than the one it was made for: its layers tile the
/// model, each stage has a device of its own that may be used, and each device has room for its stage.
/// Whether a better plan exists is not asked, so this costs microseconds.
pub fn validate(request: &PlanRequest, plan: &Plan) -> Result<(), InvalidPlan> {
    tiles(request, plan)?;
    let sizes = Sizes::of(request);
    let stages = plan.stages.iter().enumerate();
    let shards = stages.flat_map(|(index, stage)| stage.shards.iter().map(move |shard| (index, shard)));
    let mut on: Vec<(usize, &PlanDevice, u64)> = Vec::new();
    for (stage, shard) in shards {
        let is_this = |d: &&PlanDevice| d.node == shard.node && d.device.id == shard.device;
        let Some(device) = request.devices.iter().find(is_this) else {
            return Err(InvalidPlan::DeviceGone { stage, node: shard.node, device: shard.device.clone() });
        };
        let lacking = || lacking_kernels(request, device, shard.shard.layers);
        if let Some(reason) = unusable(request, device).or_else(lacking) {
            return Err(InvalidPlan::Unusable { stage, device: name(device), reason });
        }
        if on.iter().any(|(_, before, _)| std::ptr::eq(*before, device)) {
            return Err(InvalidPlan::DeviceTwice { stage, device: name(device) });
        }
        let needed_bytes = sizes.stage(WeightForm::by(device.device.kind), shard.shard.layers).total_bytes();
        let free_bytes = device.device.memory_free_bytes;
        if needed_bytes > free_bytes {
            let device = name(device);
            return Err(InvalidPlan::NoMemory { stage, device, needed_bytes, free_bytes });
        }
        on.push((stage, device, needed_bytes));
    }
    match oversubscribed(on.iter().map(|(_, device, bytes)| (*device, *bytes))) {
        None => Ok(()),
        Some((device, needed_bytes, free_bytes)) => {
            let stage =
                on.iter().find(|(_, at, _)| std::ptr::eq(*at, device)).map_or(0, |(stage, ..)| *stage);
            Err(InvalidPlan::NoMemory { stage, device: name(device), needed_bytes, free_bytes })
        }
    }
}

/// Whether the stages hold every layer once, in order, with the ends where they belong.
fn tiles(request: &PlanRequest, plan: &Plan) -> Result<(), InvalidPlan> {
    let layer_count = request.shape.layer_count();
    let mut next = 0;
    for stage in &plan.stages {
        let LayerRange { start, end } = stage.layers;
        let follows = start == next && start < end && end <= layer_count;
        let part = Shard::pipeline(stage.layers, layer_count);
        let Some(first) = stage.shards.first() else {
            let found = "a stage without shards".to_owned();
            return Err(InvalidPlan::NotTiled { at: next, found, layer_count });
        };
        // The stage is what goes on from the one before; a shard of it that differs from it is named by
        // itself.
        let misplaced = (!follows).then_some(Shard { layers: stage.layers, ..first.shard });
        let torn = || stage.shards.iter().map(|s| s.shard).find(|shard| *shard != part);
        if let Some(found) = misplaced.or_else(torn) {
            return Err(InvalidPlan::NotTiled { at: next, found: found.to_string(), layer_count });
        }
        next = end;
    }
    if next != layer_count || plan.stages.is_empty() {
        return Err(InvalidPlan::NotTiled { at: next, found: "no stage".to_owned(), layer_count });
    }
    let shards = plan.stages.iter().map(|stage| stage.shards.len()).sum();
    if plan.memory.len() != shards {
        return Err(InvalidPlan::Unsized { stages: shards, sizes: plan.memory.len() });
    }
    Ok(())
}
