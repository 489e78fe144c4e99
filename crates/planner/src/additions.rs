//! What a device that is left out would do, where too many are for a search of the whole cluster each.
//!
//! The devices of the plan are searched with it and nothing else, so what comes out is possible, and another
//! plan with it may be better. All of them together have a part of the request's work, each as much of what
//! is left as the others. Those for which none is left, or with which such a search finds nothing, are given
//! one layer of the plan.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use exo_types::{LayerRange, NodeId};

use crate::cost::{Costs, Layout};
use crate::kernels::Runnable;
use crate::memory::{Sizes, WeightForm};
use crate::search::{BestLayout, Outcome};
use crate::{LinkFacts, NoAlternative, Pin, PinLayers, PlanDevice, PlanRequest, domains, explain};

/// All searches together may do this part of the work.
const WORK_SHARE: u64 = 4;
/// Stages of which a layer is given away, the longest ones.
const TRIED_MAX: usize = 8;

/// For every device of the request, in its order: the least that the plan's devices reach with it, of what
/// was looked at. `None` for those that are used, or cannot be.
pub(crate) fn all(
    request: &PlanRequest,
    sizes: &Sizes<'_>,
    usable: &[usize],
    layout: &Layout,
    costs: &Costs<'_>,
) -> Vec<Option<Outcome>> {
    let used: Vec<usize> = layout.iter().map(|(device, _)| *device).collect();
    let left_out: Vec<usize> = usable.iter().copied().filter(|device| !used.contains(device)).collect();
    let additions = Additions::of(request, used);
    let mut outcomes: Vec<Option<Outcome>> = request.devices.iter().map(|_| None).collect();
    let mut left = request.work_max / WORK_SHARE;
    for (done, &device) in left_out.iter().enumerate() {
        let work_max = left / (left_out.len() - done) as u64;
        let searched = (work_max > 0).then(|| additions.with(device, sizes, costs, work_max)).flatten();
        left = left.saturating_sub(searched.as_ref().map_or(work_max, |found| found.work));
        let found = searched.or_else(|| additions.with_one_layer(device, layout, sizes, costs));
        outcomes[device] = Some(found.ok_or_else(NoAlternative::not_found));
    }
    outcomes
}

/// The plan's devices, to which one is added at a time.
struct Additions<'a> {
    request: &'a PlanRequest,
    used: Vec<usize>,
    /// The request without what another device would need of it.
    asked: PlanRequest,
    /// Between each other node and those of the plan.
    links: BTreeMap<NodeId, Vec<LinkFacts>>,
}

impl<'a> Additions<'a> {
    fn of(request: &'a PlanRequest, used: Vec<usize>) -> Self {
        let nodes: BTreeSet<NodeId> = used.iter().map(|&device| request.devices[device].node).collect();
        let (mut between, mut links) = (Vec::new(), BTreeMap::<NodeId, Vec<LinkFacts>>::new());
        for link in &request.links {
            match (nodes.contains(&link.from), nodes.contains(&link.to)) {
                (true, true) => between.push(*link),
                (true, false) => links.entry(link.to).or_default().push(*link),
                (false, true) => links.entry(link.from).or_default().push(*link),
                (false, false) => {}
            }
        }
        // What a plan fetches is told of it, and decides nothing here.
        let asked = PlanRequest {
            weight_types: request.weight_types.clone(),
            slots: request.slots,
            cache_tokens: request.cache_tokens,
            kv: request.kv,
            links: between,
            hop_s: request.hop_s,
            objective: request.objective,
            workload: request.workload,
            pins: request.pins.clone(),
            ..PlanRequest::new(request.shape.clone(), request.context_tokens, Vec::new())
        };
        Self { request, used, asked, links }
    }

    fn with(&self, device: usize, sizes: &Sizes<'_>, costs: &Costs<'_>, work_max: u64) -> Option<BestLayout> {
        let devices: Vec<usize> = self.used.iter().copied().chain([device]).collect();
        let PlanDevice { node, device: facts, .. } = &self.request.devices[device];
        let mut asked = PlanRequest { work_max, ..self.asked.clone() };
        asked.devices = devices.iter().map(|&device| self.request.devices[device].clone()).collect();
        asked.links.extend(self.links.get(node).into_iter().flatten());
        asked.pins.push(Pin { node: *node, device: facts.id.clone(), layers: PinLayers::Any });
        let all: Vec<usize> = (0..devices.len()).collect();
        let found = domains::best(&asked, sizes, &all)?;
        let of_request = |&(device, range): &(usize, LayerRange)| (devices[device], range);
        let layout: Vec<_> = found.layout.iter().map(of_request).collect();
        Some(bounded(layout, costs, found.work))
    }

    /// As the plan is, with a layer on the device that another one has at the end of its stage, or at its
    /// beginning where that is the last. Not where pins or memory that it shares say more of it.
    fn with_one_layer(
        &self,
        device: usize,
        layout: &Layout,
        sizes: &Sizes<'_>,
        costs: &Costs<'_>,
    ) -> Option<BestLayout> {
        let added = &self.request.devices[device];
        if !self.request.pins.is_empty() || added.device.memory_domain.is_some() {
            return None;
        }
        let (held, runs) = (WeightForm::by(added.device.kind), Runnable::of(self.request, added));
        let mut stages: Vec<usize> = (0..layout.len()).filter(|&at| layout[at].1.len() > 1).collect();
        stages.sort_by_key(|&at| Reverse(layout[at].1.len()));
        let given = stages.into_iter().take(TRIED_MAX).filter_map(|at| {
            let LayerRange { start, end } = layout[at].1;
            let is_last = at + 1 == layout.len();
            let layer = if is_last { start } else { end - 1 };
            let fits = sizes.bytes(held, layer, layer + 1) <= explain::free_bytes(added);
            (fits && runs.stop(layer, layer + 1) > layer).then(|| {
                let mut with = layout.to_vec();
                let (rest, place) = match is_last {
                    true => (LayerRange::new(start + 1, end), at),
                    false => (LayerRange::new(start, end - 1), at + 1),
                };
                with[at].1 = rest;
                with.insert(place, (device, LayerRange::new(layer, layer + 1)));
                bounded(with, costs, 0)
            })
        });
        given.min_by_key(|found| found.objective_ns)
    }
}

/// A layout that is possible: nothing is known of plans with the same device and others.
fn bounded(layout: Vec<(usize, LayerRange)>, costs: &Costs<'_>, work: u64) -> BestLayout {
    BestLayout { objective_ns: costs.objective_ns(&layout), layout, lower_bound_ns: 0, work }
}
