//! What a device that is left out would do, where too many are for a search of the whole cluster each.
//!
//! The devices of the plan are searched with it and nothing else, so what comes out is possible, and another
//! plan with it may be better. All of them together have a part of the request's work, each as much of what
//! is left as the others: those for which none is left have no number.

use std::collections::{BTreeMap, BTreeSet};

use exo_types::{LayerRange, NodeId};

use crate::cost::{Costs, Layout};
use crate::memory::Sizes;
use crate::search::{BestLayout, Outcome};
use crate::{LinkFacts, NoAlternative, Pin, PinLayers, PlanDevice, PlanRequest, domains};

/// All searches together may do this part of the work.
const WORK_SHARE: u64 = 4;

/// For every device of the request, in its order: the least that the plan's devices reach with it. `None` for
/// those that are used, that cannot be, or that no work is left for.
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
        if left == 0 {
            break;
        }
        let work_max = left / (left_out.len() - done) as u64;
        let outcome = additions.with(device, sizes, costs, work_max.max(1));
        left = left.saturating_sub(outcome.as_ref().map_or(work_max, |found| found.work).max(1));
        outcomes[device] = Some(outcome);
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

    fn with(&self, device: usize, sizes: &Sizes<'_>, costs: &Costs<'_>, work_max: u64) -> Outcome {
        let devices: Vec<usize> = self.used.iter().copied().chain([device]).collect();
        let PlanDevice { node, device: facts, .. } = &self.request.devices[device];
        let mut asked = PlanRequest { work_max, ..self.asked.clone() };
        asked.devices = devices.iter().map(|&device| self.request.devices[device].clone()).collect();
        asked.links.extend(self.links.get(node).into_iter().flatten());
        asked.pins.push(Pin { node: *node, device: facts.id.clone(), layers: PinLayers::Any });
        let all: Vec<usize> = (0..devices.len()).collect();
        let found = domains::best(&asked, sizes, &all).ok_or_else(NoAlternative::not_found)?;
        let of_request = |&(device, range): &(usize, LayerRange)| (devices[device], range);
        let layout: Vec<_> = found.layout.iter().map(of_request).collect();
        // Nothing is known of plans with it on other devices.
        Ok(BestLayout {
            objective_ns: costs.objective_ns(&layout),
            layout,
            lower_bound_ns: 0,
            work: found.work,
        })
    }
}
