//! How fast a plan will be, from what was measured.

use exo_types::Stage;

use crate::{Chosen, PlanRequest, Prediction};

/// Bytes of one element of a hidden state on the wire.
const WIRE_BYTES: f64 = 4.0;

/// Decode reads every weight of a stage once per token, one stage after the other, with a hop between and one
/// from the last stage back to the first. Prefill computes; its chunks pass the stages one after the other too,
/// so overlapping them makes it faster than predicted.
pub(crate) fn predict(request: &PlanRequest, chosen: &Chosen, stages: &[Stage]) -> Prediction {
    let hops = hop_seconds(request, stages);
    let devices = || chosen.order.iter().map(|&d| &request.devices[d].device);
    let decode: Option<f64> = devices()
        .zip(stages)
        .map(|(device, stage)| Some(read_bytes(request, stage) / positive(device.read_bytes_per_s)?))
        .sum();
    let prefill: Option<f64> = devices()
        .zip(stages)
        .map(|(device, stage)| Some(flops(request, stage) / positive(device.flops_per_s)?))
        .sum();
    let rate = |seconds: f64| if seconds > 0.0 { Some(1.0 / seconds) } else { None };
    Prediction {
        decode_tokens_per_s: decode.zip(hops).and_then(|(compute, hops)| rate(compute + hops)),
        prefill_tokens_per_s: prefill.and_then(rate),
        hop_ms_per_token: hops.map(|seconds| seconds * 1e3),
    }
}

fn positive(number: Option<f64>) -> Option<f64> {
    number.filter(|n| n.is_finite() && *n > 0.0)
}

/// Bytes of weights a token makes the stage read: all but the embedding table, of which it reads a row.
fn read_bytes(request: &PlanRequest, stage: &Stage) -> f64 {
    let layers = &request.shape.layers[stage.layers.start as usize..stage.layers.end as usize];
    let head = if stage.leader().shard.head { request.shape.head_bytes } else { 0 };
    layers.iter().map(|l| l.weight_bytes as f64).sum::<f64>() + head as f64
}

fn flops(request: &PlanRequest, stage: &Stage) -> f64 {
    let layers = &request.shape.layers[stage.layers.start as usize..stage.layers.end as usize];
    layers.iter().map(|l| l.flops_per_token as f64).sum()
}

fn hop_seconds(request: &PlanRequest, stages: &[Stage]) -> Option<f64> {
    let hidden_bytes = f64::from(request.shape.hidden) * WIRE_BYTES;
    (0..stages.len())
        .map(|i| {
            let (from, to) = (stages[i].leader().node, stages[(i + 1) % stages.len()].leader().node);
            if from == to {
                return Some(0.0);
            }
            let link = request.link(from, to)?;
            // The way back carries a token id, not a hidden state.
            let bytes = if i + 1 < stages.len() { hidden_bytes } else { 0.0 };
            Some(link.rtt?.as_secs_f64() / 2.0 + bytes / positive(link.bytes_per_s)?)
        })
        .sum()
}
