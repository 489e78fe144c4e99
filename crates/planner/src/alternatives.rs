//! Plans beside the one that is made: the whole model on each device, the best plan without each device that
//! is used, and the best with each that is not.
//!
//! One device has one layout of the whole model, so each is looked at. The others take a search each, of no
//! more work than an explanation's, and are looked for among few devices only; the reasons of devices have
//! their numbers from the same searches, and among many devices from `additions`.

use exo_types::{LayerRange, size, size_up};

use crate::cost::{Cases, Costs, Layout};
use crate::memory::{Sizes, WeightForm};
use crate::search::{BestLayout, Outcome};
use crate::{
    Alternative, AlternativeKind, AlternativePlan, NoAlternative, Objective, Pin, PinLayers, PlanDevice,
    PlanRequest, additions, explain, fetching, kernels,
};

/// Up to so many usable devices each is left out, or forced in, by a search of its own.
const SEARCHED_MAX: usize = 16;
/// Of so many devices at most it is said what each does with the whole model.
const ALONE_MAX: usize = 16;
/// Among so many devices at most the bytes are searched that lack where they are enough in sum and not in
/// pieces: for each device that is used, beside a plan that was found.
const MISSING_SEARCHED_MAX: usize = 2;

/// What comes out when a device is used that is not, or the other way round: of every device of the request,
/// in its order. `None` where nobody looked, or it cannot be used; among too many devices nobody looks what
/// comes out without one that is used.
pub(crate) fn otherwise(
    request: &PlanRequest,
    sizes: &Sizes<'_>,
    usable: &[usize],
    layout: &Layout,
    costs: &Costs<'_>,
) -> Vec<Option<Outcome>> {
    if request.explain && usable.len() > SEARCHED_MAX {
        return additions::all(request, sizes, usable, layout, costs);
    }
    let of = |device: usize| {
        (request.explain && usable.contains(&device)).then(|| search(request, sizes, usable, layout, device))
    };
    (0..request.devices.len()).map(of).collect()
}

fn search(
    request: &PlanRequest,
    sizes: &Sizes<'_>,
    usable: &[usize],
    layout: &Layout,
    index: usize,
) -> Outcome {
    let device = &request.devices[index];
    let work_max = request.work_max.min(explain::EXPLAIN_WORK_MAX);
    let mut asked = PlanRequest { work_max, ..request.clone() };
    if is_used(layout, index) {
        let others: Vec<usize> = usable.iter().copied().filter(|&other| other != index).collect();
        asked.pins.retain(|pin| !is_on(pin, device));
        if others.is_empty() {
            return Err(NoAlternative::because("there is no device"));
        }
        let found = fetching::best(&asked, sizes, &others);
        return found.map(|found| found.outcome).ok_or_else(|| NoAlternative::of(&asked, sizes, &others));
    }
    let (least, free) = (explain::smallest_layer(sizes, device), device.device.memory_free_bytes);
    if free < least {
        let why = format!("the smallest layer needs {}, {} are free", size_up(least), size(free));
        return Err(NoAlternative { why, missing_bytes: device.disk.is_none().then_some(least - free) });
    }
    let id = device.device.id.clone();
    asked.pins.push(Pin { node: device.node, device: id, layers: PinLayers::Any });
    let found = fetching::best(&asked, sizes, usable);
    found.map(|found| found.outcome).ok_or_else(NoAlternative::not_found)
}

impl NoAlternative {
    pub(crate) fn not_found() -> Self {
        Self::because("no plan with it was found")
    }

    fn because(why: &str) -> Self {
        Self { why: why.to_owned(), missing_bytes: None }
    }

    /// Why these devices have no plan.
    fn of(asked: &PlanRequest, sizes: &Sizes<'_>, devices: &[usize]) -> Self {
        match asked.objective {
            _ if kernels::is_some_layer_lost(asked, devices) => {
                Self::because("some layers have no device that runs them")
            }
            Objective::Spread { stages_min } if devices.len() < stages_min as usize => Self {
                why: format!("there are fewer than the {stages_min} devices that were asked for"),
                missing_bytes: None,
            },
            Objective::Latency | Objective::Throughput if asked.pins.is_empty() => {
                // More memory does not help where a disk is what is full.
                let is_memory = devices.iter().all(|&device| asked.devices[device].disk.is_none());
                let missing =
                    is_memory.then(|| explain::missing_bytes(asked, sizes, devices, MISSING_SEARCHED_MAX));
                let missing_bytes = missing.filter(|bytes| *bytes > 0);
                Self { why: "the model does not fit".to_owned(), missing_bytes }
            }
            _ => Self::because("no plan is as it was asked for"),
        }
    }
}

/// All of them, the best first, and behind them what is impossible.
pub(crate) fn list(
    request: &PlanRequest,
    sizes: &Sizes<'_>,
    usable: &[usize],
    layout: &Layout,
    costs: &Cases<'_>,
    otherwise: Vec<Option<Outcome>>,
) -> Vec<Alternative> {
    if !request.explain {
        return Vec::new();
    }
    let is_listed = usable.len() <= SEARCHED_MAX;
    let searched = otherwise.into_iter().enumerate().filter(|_| is_listed).filter_map(|(device, outcome)| {
        let kind = match is_used(layout, device) {
            true => AlternativeKind::Without,
            false => AlternativeKind::With,
        };
        Some((kind, device, outcome?))
    });
    let alone = alone(request, sizes, usable, layout, &costs.expected).into_iter();
    let alone = alone.map(|(device, outcome)| (AlternativeKind::Alone, device, outcome));
    let mut all: Vec<(AlternativeKind, usize, Outcome)> = alone.chain(searched).collect();
    all.sort_by_key(|(_, _, outcome)| order(outcome));
    let listed = |(kind, device, outcome): (AlternativeKind, usize, Outcome)| {
        let device = &request.devices[device];
        let plan = |found: BestLayout| AlternativePlan {
            stages: crate::stages_of(request, &found.layout),
            memory: crate::memory_of(request, sizes, &found.layout),
            predicted: costs.predict(&found.layout),
            objective_ns: found.objective_ns,
            is_proven: found.is_proven(),
            is_as_asked: is_as_asked(request, kind, device),
        };
        let (node, id) = (device.node, device.device.id.clone());
        Alternative { kind, node, device: id, outcome: outcome.map(plan) }
    };
    all.into_iter().map(listed).collect()
}

/// The whole model on each device, but for the one that the plan has it on.
fn alone(
    request: &PlanRequest,
    sizes: &Sizes<'_>,
    usable: &[usize],
    layout: &Layout,
    costs: &Costs<'_>,
) -> Vec<(usize, Outcome)> {
    let whole = LayerRange::new(0, sizes.layer_count());
    let on = |device: usize| {
        let outcome = holds_whole(request, sizes, &request.devices[device]).map(|()| {
            let layout = vec![(device, whole)];
            let objective_ns = costs.objective_ns(&layout);
            BestLayout { layout, objective_ns, lower_bound_ns: objective_ns, work: 1 }
        });
        (device, outcome)
    };
    let others = usable.iter().copied().filter(|&device| layout != [(device, whole)]);
    let mut found: Vec<(usize, Outcome)> = others.map(on).collect();
    found.sort_by_key(|(_, outcome)| order(outcome));
    found.truncate(ALONE_MAX);
    found
}

fn holds_whole(request: &PlanRequest, sizes: &Sizes<'_>, device: &PlanDevice) -> Result<(), NoAlternative> {
    if let Some(why) = kernels::lacking_in_model(request, device) {
        return Err(NoAlternative { why, missing_bytes: None });
    }
    let needed = sizes.bytes(WeightForm::by(device.device.kind), 0, sizes.layer_count());
    let free = explain::free_bytes(device);
    if needed <= free {
        return Ok(());
    }
    Err(match device.disk {
        Some(disk) => NoAlternative { why: disk.text(&device.node_name), missing_bytes: None },
        None => NoAlternative {
            why: format!("the model needs {} there, {} are free", size_up(needed), size(free)),
            missing_bytes: Some(needed - free),
        },
    })
}

/// The best first; of what is impossible that which lacks least.
fn order(outcome: &Outcome) -> (bool, u64) {
    match outcome {
        Ok(found) => (false, found.objective_ns),
        Err(none) => (true, none.missing_bytes.unwrap_or(u64::MAX)),
    }
}

/// Whether an alternative has all pins, and as many stages as were asked for.
fn is_as_asked(request: &PlanRequest, kind: AlternativeKind, device: &PlanDevice) -> bool {
    let whole = LayerRange::new(0, request.shape.layer_count());
    match kind {
        AlternativeKind::With => true,
        AlternativeKind::Without => !request.pins.iter().any(|pin| is_on(pin, device)),
        AlternativeKind::Alone => {
            let is_met = |pin: &Pin| is_on(pin, device) && pin.layers.are_met(&[whole]);
            request.pins.iter().all(is_met) && crate::stages_min(request) <= 1
        }
    }
}

fn is_used(layout: &Layout, device: usize) -> bool {
    layout.iter().any(|(used, _)| *used == device)
}

fn is_on(pin: &Pin, device: &PlanDevice) -> bool {
    pin.node == device.node && pin.device == device.device.id
}
