//! The five scores of a device: compute 40, memory 30, network 15, thermal 10, bandwidth 5 of 100.
//!
//! They order the candidates of a search, so that of too many the most promising are considered and equals
//! are taken in a sensible order, and they are shown. What a plan costs decides which plan is made.

use exo_types::NodeId;

use crate::inputs::{Figure, LINK_RATE_ESTIMATED, RTT_ESTIMATED};
use crate::memory::{Sizes, WeightForm};
use crate::ratios::TypeRatios;
use crate::request::{DeviceScore, PlanDevice, PlanRequest};

/// A link of this round trip has half of the network score: a local network.
const RTT_HALF_S: f64 = 1e-3;
/// A link of this rate has half of the bandwidth score: 10 Gbit/s.
const RATE_HALF: f64 = 1.25e9;

/// For every device of the request, in its order.
pub(crate) fn scores(request: &PlanRequest, sizes: &Sizes<'_>) -> Vec<DeviceScore> {
    let read = TypeRatios::of(request).read_rates(request);
    let fastest = read.iter().map(|figure| figure.value).fold(1.0, f64::max);
    let networks = networks(request);
    let score = |(device, read): (&PlanDevice, &Figure)| {
        let compute = (read.value / fastest * 1e3) as u32;
        let free = device.device.memory_free_bytes.saturating_sub(sizes.workspace());
        let model = sizes.model_bytes(WeightForm::by(device.device.kind)).max(1);
        let memory = (u128::from(free) * 1000 / u128::from(model)).min(1000) as u32;
        let (network, bandwidth) = networks.get(&device.node).copied().unwrap_or((1000, 1000));
        let thermal = device.thermal_percent.min(100) * 10;
        let total = (40 * compute + 30 * memory + 15 * network + 10 * thermal + 5 * bandwidth) / 100;
        let (node, device) = (device.node, device.device.id.clone());
        DeviceScore { node, device, compute, memory, network, thermal, bandwidth, total }
    };
    request.devices.iter().zip(&read).map(score).collect()
}

/// Scores of network and bandwidth: means over the links of a node; what nobody measured counts as estimated.
fn networks(request: &PlanRequest) -> std::collections::BTreeMap<NodeId, (u32, u32)> {
    let mut sums = std::collections::BTreeMap::new();
    let mut nodes: Vec<NodeId> = request.devices.iter().map(|d| d.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let others = nodes.len().saturating_sub(1) as f64;
    for link in &request.links {
        let value = |figure: Option<Figure>, estimated: Figure| {
            figure.and_then(Figure::plausible).unwrap_or(estimated).value
        };
        let rtt = value(link.rtt_s, RTT_ESTIMATED);
        let rate = value(link.bytes_per_s, LINK_RATE_ESTIMATED);
        let (network, bandwidth) = (RTT_HALF_S / (RTT_HALF_S + rtt), rate / (RATE_HALF + rate));
        let sum: &mut (f64, f64, f64) = sums.entry(link.from).or_default();
        *sum = (sum.0 + network, sum.1 + bandwidth, sum.2 + 1.0);
    }
    let unmeasured = (
        RTT_HALF_S / (RTT_HALF_S + RTT_ESTIMATED.value),
        LINK_RATE_ESTIMATED.value / (RATE_HALF + LINK_RATE_ESTIMATED.value),
    );
    let score = |node: NodeId| {
        let (network, bandwidth, links) = sums.get(&node).copied().unwrap_or_default();
        let missing = (others - links).max(0.0);
        let count = (links + missing).max(1.0);
        let mean = |sum: f64, each: f64| ((sum + missing * each) / count * 1e3) as u32;
        (
            node,
            if others == 0.0 {
                (1000, 1000)
            } else {
                (mean(network, unmeasured.0), mean(bandwidth, unmeasured.1))
            },
        )
    };
    nodes.iter().map(|&node| score(node)).collect()
}
