//! Assigns contiguous layer ranges of one model to the devices of a cluster.
//!
//! [`plan`] is a pure function from a [`PlanRequest`] (model shape, context, devices, links, objective) to a
//! [`Plan`]: stages in pipeline order, predicted times with their ranges, a reason with numbers for every
//! device, the plans that stand beside it, and a lower bound that says how much better any plan could be.
//! *Solo is a legal answer*, and so is leaving a device out.
//!
//! Time decides. The formulas are in `cost.rs`, one table; `problem.rs` turns them into sums; `labels.rs`
//! finds the least sum by branch and bound (`bound.rs`), and `search.rs` makes each objective of a few such
//! questions. Memory is a hard constraint, counted to the byte (`memory.rs`, `fit.rs`). The budget is work,
//! not time, so that the same request gives the same plan everywhere.
//!
//! **Architecture invariant:** nothing here knows how bytes travel or what a tensor is. Link cost arrives as
//! a number; the transport that measured it stays out of sight.
//!
//! Planning may take seconds. Who asks from elsewhere asks [`validate`] whether the answer still fits, and
//! [`predict`] what a placement that stands is expected to reach.
//!
//! Start reading at [`plan`], or at the table in `cost.rs`.

#![forbid(unsafe_code)]

mod additions;
mod alternatives;
mod bound;
mod cost;
mod disk;
mod disk_bound;
mod domains;
mod errors;
mod explain;
mod fetching;
mod few_rows;
mod fit;
mod inputs;
mod kernels;
mod labels;
mod link_figures;
mod memory;
mod pins;
mod problem;
mod ratios;
mod request;
mod score;
mod search;
mod validate;

use exo_types::{LayerRange, Shard, Stage};

pub use cost::{ExpectedStep, Phase, StageTimes, chunk_tokens};
pub use disk_bound::{DiskBound, settings_text};
pub use domains::{memory_free_bytes, oversubscribed};
pub use errors::{DeviceMemory, InvalidPlan, PlanError, Remedy};
pub use exo_types::{Pin, PinLayers, WeightTypes};
pub use explain::PAGE_TOKENS;
pub use inputs::{CompleteRates, DeviceRates, Figure, Source};
pub use kernels::lacking_kernels;
pub use link_figures::link_figures;
pub use memory::{CHUNK_TOKENS, workspace_bytes};
pub use ratios::rates_of;
pub use request::{
    Alternative, AlternativeKind, AlternativePlan, DeviceReason, DeviceScore, FasterPlan, LinkFacts,
    NoAlternative, Objective, Plan, PlanDevice, PlanRequest, Prediction, Proof, Range, ShardMemory, WORK_MAX,
    Workload, rate, rtt,
};
pub use validate::validate;

use cost::{Case, Cases, Costs};
use memory::{Sizes, WeightForm};

/// Places the model of `request` on its devices. The same request gives the same plan everywhere.
pub fn plan(request: &PlanRequest) -> Result<Plan, PlanError> {
    check(request)?;
    let (asked, request) = (request, &*request.within_disks());
    let sizes = Sizes::of(request);
    let usable = explain::usable(request);
    if usable.is_empty() {
        return Err(explain::no_devices(request, asked));
    }
    if kernels::is_some_layer_lost(request, &usable) {
        return Err(explain::no_kernels(request));
    }
    pins::check(request, &sizes)?;
    let wanted = stages_min(request);
    let possible = usable.len().min(request.shape.layers.len()) as u32;
    if wanted > possible {
        let left_out = explain::not_counted(request);
        let left_out = if left_out.is_empty() { String::new() } else { format!("; left out: {left_out}") };
        let why = format!("{} usable devices, {} layers{left_out}", usable.len(), sizes.layer_count());
        return Err(PlanError::TooFewStages { wanted, possible, why });
    }
    match fetching::best(request, &sizes, &usable) {
        Some(chosen) => Ok(assemble(request, &sizes, &usable, &chosen)),
        None => Err(no_plan(request, asked, &sizes, &usable)),
    }
}

/// What the cost model says of a placement, whoever made it: `None` if a device of it is not in the request,
/// or its stages do not tile the model.
pub fn predict(request: &PlanRequest, stages: &[Stage]) -> Option<(Prediction, u64)> {
    let layout = layout_of(request, stages)?;
    let costs = Cases::of(request);
    Some((costs.predict(&layout), costs.expected.objective_ns(&layout)))
}

/// What each stage of a placement is expected to compute, whoever made it; `None` as [`predict`].
pub fn stage_times(request: &PlanRequest, stages: &[Stage]) -> Option<Vec<StageTimes>> {
    let layout = layout_of(request, stages)?;
    let costs = Costs::of(request, Case::Expected);
    let times = |&(device, range): &(usize, LayerRange)| StageTimes {
        token_ns: costs.stage_token_ns(device, range),
        prompt_ns: costs.stage_prompt_ns(device, range, costs.chunks(layout.len())),
    };
    Some(layout.iter().map(times).collect())
}

/// The stages by index of device, if they tile the model.
fn layout_of(request: &PlanRequest, stages: &[Stage]) -> Option<Vec<(usize, LayerRange)>> {
    check(request).ok()?;
    let layers = request.shape.layer_count();
    let mut next = 0;
    let mut layout = Vec::new();
    for stage in stages {
        let LayerRange { start, end } = stage.layers;
        let shard = stage.shards.first()?;
        let is_this = |d: &PlanDevice| d.node == shard.node && d.device.id == shard.device;
        let device = request.devices.iter().position(is_this)?;
        if start != next || end <= start || end > layers {
            return None;
        }
        next = end;
        layout.push((device, stage.layers));
    }
    (next == layers).then_some(layout)
}

/// What the model of cost says of one step of one stream on the first device of `request`: of a token at the
/// depth of its workload's prompt, or of that prompt in one step. `None` if it has no such device or layers,
/// and for a model that caches hold: its rates are derived from those of others.
pub fn expected_step(request: &PlanRequest, layers: LayerRange, phase: Phase) -> Option<ExpectedStep> {
    check(request).ok()?;
    let fits = layers.start < layers.end && layers.end <= request.shape.layer_count();
    let is_one = phase == Phase::Decode || request.workload.prompt_tokens <= CHUNK_TOKENS;
    (fits && is_one && !request.devices.is_empty() && !ratios::is_cached(&request.shape))
        .then(|| Costs::of(request, Case::Expected).step(0, layers, phase))
}

/// What a shard of these layers needs on a device of the request, by its index; `None` if there is no such
/// device or layer.
pub fn shard_memory(request: &PlanRequest, device: usize, layers: LayerRange) -> Option<ShardMemory> {
    let held = WeightForm::by(request.devices.get(device)?.device.kind);
    let fits = layers.start < layers.end && layers.end <= request.shape.layer_count();
    fits.then(|| Sizes::of(request).stage(held, layers))
}

fn check(request: &PlanRequest) -> Result<(), PlanError> {
    let PlanRequest { context_tokens, slots, cache_tokens, .. } = *request;
    let layers = request.shape.layer_count();
    for (what, number) in [
        ("layers", layers),
        ("context_tokens", context_tokens),
        ("slots", slots),
        ("cache_tokens", cache_tokens),
    ] {
        if number == 0 {
            return Err(PlanError::Empty { what });
        }
    }
    let layers_max = problem::LAYERS_MAX;
    if layers > layers_max { Err(PlanError::TooManyLayers { layers, layers_max }) } else { Ok(()) }
}

fn stages_min(request: &PlanRequest) -> u32 {
    match request.objective {
        Objective::Spread { stages_min } => stages_min.max(1),
        Objective::Latency | Objective::Throughput => 1,
    }
}

/// Why the search found nothing: too few devices that can hold a layer, the pins, or memory.
fn no_plan(request: &PlanRequest, asked: &PlanRequest, sizes: &Sizes<'_>, usable: &[usize]) -> PlanError {
    let with = |objective, pins| {
        // Many are asked, and somebody waits.
        let work_max = request.work_max.min(explain::EXPLAIN_WORK_MAX);
        let asked = PlanRequest { objective, pins, work_max, ..request.clone() };
        domains::best(&asked, sizes, usable).map(|outcome| outcome.layout.len() as u32)
    };
    let pins = request.pins.clone();
    let wanted = stages_min(request);
    let holds = |stages_min: u32| with(Objective::Spread { stages_min }, pins.clone()).is_some();
    let without = |left_out: usize| {
        let others = pins.iter().enumerate().filter(|(at, _)| *at != left_out).map(|(_, pin)| pin.clone());
        with(request.objective, others.collect()).is_some()
    };
    if let Some(pin) = (0..pins.len()).find(|&at| without(at)).map(|at| &pins[at]) {
        let is_this = |d: &&PlanDevice| d.node == pin.node && d.device.id == pin.device;
        let device = request.devices.iter().find(is_this);
        let disk = device.and_then(|device| Some(format!(": {}", device.disk?.text(&device.node_name))));
        let why = format!(
            "without this pin there is a plan, and with it none{}; leave it out, or ask for other layers",
            disk.unwrap_or_default()
        );
        return PlanError::Pin { device: pins::name(request, pin), why };
    }
    // Whoever makes do with fewer has more plans: the most that are possible are found by halving.
    let (mut possible, mut too_many) = (0, wanted);
    while possible + 1 < too_many {
        let middle = possible + (too_many - possible) / 2;
        if holds(middle) {
            possible = middle;
        } else {
            too_many = middle;
        }
    }
    if possible > 0 {
        let why = match pins.is_empty() {
            true => "the other devices cannot hold a layer",
            false => "the other devices cannot hold a layer, or the pins leave none for them",
        };
        return PlanError::TooFewStages { wanted, possible, why: why.to_owned() };
    }
    if let Some(pin) = pins.first()
        && with(request.objective, Vec::new()).is_some()
    {
        let why = "without the pins there is a plan, and with any of them left out there is none; ask for other layers";
        return PlanError::Pin { device: pins::name(request, pin), why: why.to_owned() };
    }
    explain::does_not_fit(request, asked, sizes, usable)
}

fn stages_of(request: &PlanRequest, layout: &[(usize, LayerRange)]) -> Vec<Stage> {
    let stage = |(device, range): &(usize, LayerRange)| {
        let PlanDevice { node, device, .. } = &request.devices[*device];
        Stage::solo(*node, device.id.clone(), Shard::pipeline(*range, request.shape.layer_count()))
    };
    layout.iter().map(stage).collect()
}

fn memory_of(request: &PlanRequest, sizes: &Sizes<'_>, layout: &[(usize, LayerRange)]) -> Vec<ShardMemory> {
    let held = |device: usize| WeightForm::by(request.devices[device].device.kind);
    layout.iter().map(|(device, range)| sizes.stage(held(*device), *range)).collect()
}

fn assemble(
    request: &PlanRequest,
    sizes: &Sizes<'_>,
    usable: &[usize],
    chosen: &fetching::ChosenPlan,
) -> Plan {
    let search::BestLayout { ref layout, objective_ns, lower_bound_ns, work } = chosen.outcome;
    let memory = memory_of(request, sizes, layout);
    let costs = Cases::of(request);
    let otherwise = alternatives::otherwise(request, sizes, usable, layout, &costs.expected);
    let explained = explain::Explained {
        layout,
        memory: &memory,
        objective_ns,
        costs: &costs.expected,
        otherwise: &otherwise,
    };
    let reasons = explain::reasons(request, sizes, &explained);
    Plan {
        stages: stages_of(request, layout),
        reasons,
        scores: score::scores(request, sizes, &costs.expected),
        predicted: costs.predict(layout),
        proof: Proof { objective_ns, lower_bound_ns, work },
        alternatives: alternatives::list(request, sizes, usable, layout, &costs, otherwise),
        memory,
        faster: chosen.faster,
    }
}
