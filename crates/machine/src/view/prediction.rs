//! What the model of cost expects of a placement that stands, with devices and links as they are reported
//! now.

use std::collections::BTreeMap;

use exo_api::plan::{PredictionView, RangeView, StagePredictionView};
use exo_cluster::wire::{LoadReport, NodeReport};
use exo_cluster::{InstanceRequest, State, hop_seconds, link_facts};
use exo_planner::{PlanDevice, PlanRequest, Prediction, Range, StageTimes, Workload, rate};
use exo_types::{Corrections, NodeId, Placement};

use super::alone::{self, MeasuredAlone};

/// What is expected of a placement.
pub(super) struct Expected {
    pub(super) whole: PredictionView,
    /// Of each stage.
    pub(super) stages: Vec<StagePredictionView>,
    /// Of the last answer that ran alone, beside what that took.
    pub(super) alone: Option<MeasuredAlone>,
}

/// For as many streams as run, with hops as pipelines between the same nodes show them. `None` while a device
/// of the placement is not reported.
pub(super) fn of(
    placement: &Placement,
    wanted: &InstanceRequest,
    load: Option<&LoadReport>,
    (reports, state): (&BTreeMap<NodeId, NodeReport>, &State),
) -> Option<Expected> {
    let streams = load.map_or(1, |load| load.running);
    let nodes: Vec<NodeId> = placement.shards().map(|(_, shard)| shard.node).collect();
    let mut devices = Vec::new();
    for (&node, report) in reports.iter().filter(|(node, _)| nodes.contains(node)) {
        for facts in &report.facts.devices {
            devices.push(PlanDevice::reported(node, String::new(), facts.clone(), None));
        }
    }
    let links = link_facts(reports, |node| nodes.contains(&node));
    let request = PlanRequest {
        workload: Workload { streams: streams.max(1), ..Workload::default() },
        weight_types: wanted.weight_types.as_deref().cloned(),
        slots: placement.slots,
        cache_tokens: placement.cache_tokens,
        kv: wanted.kv,
        hop_s: hop_seconds(reports, &links, state),
        links,
        ..PlanRequest::new(wanted.shape.clone(), placement.context_tokens, devices)
    };
    let (predicted, _) = exo_planner::predict(&request, &placement.stages)?;
    let stage = |StageTimes { token_ns, prompt_ns }| StagePredictionView {
        token_ms: token_ns as f64 / 1e6,
        prompt_ms: prompt_ns as f64 / 1e6,
    };
    let alone = load.and_then(|load| alone::of(placement, &request, load.alone.as_ref()?));
    // A stage is slow beside what its device was measured to do, not beside what its slowness has taught.
    let mut measured = request;
    for device in &mut measured.devices {
        device.rates.corrections = Corrections::default();
    }
    let stages = exo_planner::stage_times(&measured, &placement.stages)?.into_iter().map(stage).collect();
    let (uncorrected, _) = exo_planner::predict(&measured, &placement.stages)?;
    let is_corrected = uncorrected.token_ns != predicted.token_ns;
    let uncorrected_tokens_per_s = is_corrected.then(|| uncorrected.tokens_per_s());
    let whole = PredictionView { uncorrected_tokens_per_s, ..view(&predicted) };
    Some(Expected { whole, stages, alone })
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
        prompt_tokens: predicted.prompt_tokens,
        ttft_ms: times(predicted.ttft_ns),
        tokens_per_s: rates(1, predicted.token_ns),
        hop_ms: times(predicted.hop_ns),
        streams: predicted.streams,
        total_tokens_per_s: rates(predicted.streams, predicted.round_ns),
        fetch_bytes: predicted.fetch_bytes,
        fetch_ms: ms(predicted.fetch_ns),
        is_fetch_estimated: predicted.is_fetch_estimated,
        uncorrected_tokens_per_s: None,
    }
}
