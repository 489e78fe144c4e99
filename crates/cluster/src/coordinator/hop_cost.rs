//! What a hop takes beside the wire: the cores of both ends, as answers show it that had their pipeline to
//! themselves.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use exo_planner::{Figure, LinkFacts};
use exo_types::{ModelShape, NodeId, Placement};

use crate::wire::{AloneTimes, NodeReport};
use crate::{State, StateInstance};

/// What is outside is no hop: round trips that were measured while a core was busy, or waiting for something
/// else.
const HOP_S: RangeInclusive<f64> = 1e-6..=5e-3;

/// In seconds, over these `links`; `None` before any pipeline gave such an answer. Of each only the node
/// counts that schedules it, and the median is that of nodes: none counts twice, however many it schedules.
pub fn hop_seconds(
    reports: &BTreeMap<NodeId, NodeReport>,
    links: &[LinkFacts],
    state: &State,
) -> Option<Figure> {
    let of = |StateInstance { request, placement, .. }: &StateInstance| {
        let scheduler = placement.stages.first()?.leader().node;
        let loads = &reports.get(&scheduler)?.measured.loads;
        let load = loads.iter().find(|load| load.placement == placement.id)?;
        let alone = load.alone.as_ref().filter(|alone| alone.is_telling())?;
        Some((scheduler, (of_pipeline(links, placement, &request.shape, alone)?, alone.answer_tokens)))
    };
    let by_node: BTreeMap<NodeId, (f64, u32)> = state.instances().values().filter_map(of).collect();
    let mut hops: Vec<(f64, u32)> = by_node.into_values().collect();
    hops.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let (seconds, tokens) = *hops.get(hops.len() / 2)?;
    Some(Figure::measured_at(seconds, Duration::ZERO, tokens))
}

/// A token's time between stages less what its links take by their measurements, in equal parts; `None` where
/// one is not measured, or a hop stays on its node.
fn of_pipeline(
    links: &[LinkFacts],
    placement: &Placement,
    shape: &ModelShape,
    alone: &AloneTimes,
) -> Option<f64> {
    let nodes: Vec<NodeId> = placement.stages.iter().map(|stage| stage.leader().node).collect();
    let row_bytes = f64::from(shape.hidden) * size_of::<f32>() as f64;
    let mut wires_s = 0.0;
    for (at, &from) in nodes.iter().enumerate() {
        let next = nodes.get(at + 1).copied();
        let to = next.or_else(|| nodes.first().copied())?;
        let link = links.iter().find(|link| (link.from, link.to) == (from, to))?;
        // Tokens, which go back, are no bytes to speak of.
        let rows_s = if next.is_some() { row_bytes / link.bytes_per_s?.value } else { 0.0 };
        wires_s += link.rtt_s?.value / 2.0 + rows_s;
    }
    let between_s = alone.answer.between_us as f64 / 1e6 / f64::from(alone.answer_tokens);
    let each_s = (between_s - wires_s) / nodes.len() as f64;
    Some(each_s.clamp(*HOP_S.start(), *HOP_S.end()))
}
