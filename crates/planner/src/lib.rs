//! Assigns contiguous layer ranges of one model to the devices of a cluster.
//!
//! [`plan`] is a pure function from a [`PlanRequest`] (model shape, context, devices, links, objective) to a
//! [`Plan`]: stages in pipeline order, a reason for every device, and a prediction where everything it rests on
//! was measured. *Solo is a legal answer*, and so is leaving a device out.
//!
//! For now the search is simple: memory decides who takes part (exactly, up to [`EXACT_DEVICES_MAX`] devices),
//! measured speed decides the shares. The interface is the one the constraint search will stand behind.
//!
//! **Architecture invariant:** nothing here knows how bytes travel or what a tensor is. Link cost arrives as a
//! number; the transport that measured it stays out of sight.
//!
//! Planning may take seconds. Who asks from elsewhere asks [`validate`] whether the answer still fits.
//!
//! Start reading at [`plan`].

#![forbid(unsafe_code)]

mod cuts;
mod errors;
mod explain;
mod memory;
mod predict;
mod request;
mod search;
mod validate;

use exo_types::{LayerRange, Shard, Stage};

pub use errors::{DeviceMemory, InvalidPlan, PlanError};
pub use memory::workspace_bytes;
pub use request::{
    DeviceReason, LinkFacts, Objective, Plan, PlanDevice, PlanRequest, Prediction, ShardMemory,
};
pub use search::EXACT_DEVICES_MAX;
pub use validate::validate;

use memory::{Held, Sizes};

/// Places the model of `request` on its devices. The same request gives the same plan everywhere.
pub fn plan(request: &PlanRequest) -> Result<Plan, PlanError> {
    let layer_count = request.shape.layer_count();
    let PlanRequest { context_tokens, slots, cache_tokens, .. } = *request;
    for (what, number) in [
        ("layers", layer_count),
        ("context_tokens", context_tokens),
        ("slots", slots),
        ("cache_tokens", cache_tokens),
    ] {
        if number == 0 {
            return Err(PlanError::Empty { what });
        }
    }
    let sizes = Sizes::of(request);
    let usable: Vec<usize> =
        (0..request.devices.len()).filter(|&i| explain::unusable(&request.devices[i]).is_none()).collect();
    if usable.is_empty() {
        return Err(explain::no_devices(request));
    }
    let chosen = search::choose(request, &sizes, &usable)?;
    Ok(assemble(request, &sizes, &chosen))
}

/// Devices in pipeline order, each with the first layer it does not hold.
pub(crate) struct Chosen {
    pub(crate) order: Vec<usize>,
    pub(crate) ends: Vec<u32>,
}

fn assemble(request: &PlanRequest, sizes: &Sizes, chosen: &Chosen) -> Plan {
    let layer_count = request.shape.layer_count();
    let starts = std::iter::once(0).chain(chosen.ends.iter().copied());
    let ranges: Vec<LayerRange> =
        starts.zip(&chosen.ends).map(|(start, &end)| LayerRange::new(start, end)).collect();
    let stage = |(&device, &range): (&usize, &LayerRange)| {
        let PlanDevice { node, device, .. } = &request.devices[device];
        Stage::solo(*node, device.id.clone(), Shard::pipeline(range, layer_count))
    };
    let stages: Vec<Stage> = chosen.order.iter().zip(&ranges).map(stage).collect();
    let held = |&device: &usize| Held::by(request.devices[device].device.kind);
    let memory: Vec<ShardMemory> =
        chosen.order.iter().zip(&ranges).map(|(device, &range)| sizes.stage(held(device), range)).collect();
    let reasons = explain::reasons(request, sizes, chosen, &stages, &memory);
    let predicted = predict::predict(request, chosen, &stages);
    Plan { stages, memory, reasons, predicted }
}
