//! What the model of cost expects of a placement that stands, with devices and links as they are reported now.

use std::collections::BTreeMap;

use exo_api::plan::{PredictionView, RangeView};
use exo_cluster::wire::NodeReport;
use exo_cluster::{InstanceRequest, link_facts};
use exo_planner::{PlanDevice, PlanRequest, Prediction, Range, Workload, rate};
use exo_types::{NodeId, Placement};

/// For so many streams. `None` while a device of the placement is not reported.
pub(super) fn of(
    placement: &Placement,
    wanted: &InstanceRequest,
    streams: u32,
    reports: &BTreeMap<NodeId, NodeReport>,
) -> Option<PredictionView> {
    let nodes: Vec<NodeId> = placement.shards().map(|(_, shard)| shard.node).collect();
    let mut devices = Vec::new();
    for (&node, report) in reports.iter().filter(|(node, _)| nodes.contains(node)) {
        for facts in &report.facts.devices {
            devices.push(PlanDevice::reported(node, String::new(), facts.clone(), None));
        }
    }
    let request = PlanRequest {
        workload: Workload { streams: streams.max(1), ..Workload::default() },
        slots: placement.slots,
        cache_tokens: placement.cache_tokens,
        links: link_facts(reports, |node| nodes.contains(&node)),
        ..PlanRequest::new(wanted.shape.clone(), placement.context_tokens, devices)
    };
    let (predicted, _) = exo_planner::predict(&request, &placement.stages)?;
    Some(view(&predicted))
}

/// A prediction in words of the API.
pub fn view(predicted: &Prediction) -> PredictionView {
    let ms = |ns: u64| ns as f64 / 1e6;
    let times =
        |range: Range| RangeView { low: ms(range.low), expected: ms(range.expected), high: ms(range.high) };
    // The longest time is the lowest rate.
    let rates = |tokens: u32, range: Range| RangeView {
        low: rate(tokens, range.high),
        expected: rate(tokens, range.expected),
        high: rate(tokens, range.low),
    };
    PredictionView {
        ttft_ms: times(predicted.ttft_ns),
        tokens_per_s: rates(1, predicted.token_ns),
        hop_ms: times(predicted.hop_ns),
        streams: predicted.streams,
        total_tokens_per_s: rates(predicted.streams, predicted.round_ns),
        fetch_bytes: predicted.fetch_bytes,
        fetch_ms: ms(predicted.fetch_ns),
    }
}
