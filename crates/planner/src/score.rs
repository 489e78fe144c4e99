//! The five scores of a device: compute 40, memory 30, network 15, thermal 10, bandwidth 5 of 100.
//!
//! They order the candidates of a search, so that of too many the most promising are considered and equals
//! are taken in a sensible order, and they are shown. What a plan costs decides which plan is made.

use std::collections::BTreeMap;

use exo_types::NodeId;

use crate::cost::{Costs, Links};
use crate::inputs::Figure;
use crate::memory::{Sizes, WeightForm};
use crate::ratios::TypeRatios;
use crate::request::{DeviceScore, PlanDevice, PlanRequest};

/// A link of this round trip, in nanoseconds, has half of the network score: a local network.
const RTT_HALF_NS: u64 = 1_000_000;
/// A link of this rate, in bytes per second, has half of the bandwidth score: 10 Gbit/s.
const RATE_HALF: u64 = 1_250_000_000;

/// For every device of the request, in its order, with links as `costs` counts them.
pub(crate) fn scores(request: &PlanRequest, sizes: &Sizes<'_>, costs: &Costs<'_>) -> Vec<DeviceScore> {
    let read = TypeRatios::of(request).read_rates(request);
    let fastest = read.iter().map(|figure| figure.value).fold(1.0, f64::max);
    let networks = networks(request, costs.links());
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

/// Scores of network and bandwidth: means over the links of a node to all others. A link that was measured
/// one way counts for both ends, and one that nobody measured as estimated, as in the costs.
fn networks(request: &PlanRequest, links: &Links) -> BTreeMap<NodeId, (u32, u32)> {
    let mut nodes: Vec<NodeId> = request.devices.iter().map(|d| d.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let at: Vec<(NodeId, usize)> = nodes.iter().filter_map(|&node| Some((node, links.at(node)?))).collect();
    let score = |&(node, from): &(NodeId, usize)| {
        let mut sums = (0, 0);
        for &(_, to) in at.iter().filter(|(_, to)| *to != from) {
            let (rtt_ns, rate) = links.link(from, to);
            sums.0 += per_million(RTT_HALF_NS, rtt_ns);
            sums.1 += per_million(rate, RATE_HALF);
        }
        let mean = |sum: u64| match at.len() as u64 - 1 {
            0 => 1000,
            others => (sum / others / 1000) as u32, // at most 1000
        };
        (node, (mean(sums.0), mean(sums.1)))
    };
    at.iter().map(score).collect()
}

/// `part` of `part + rest`.
fn per_million(part: u64, rest: u64) -> u64 {
    let all = u128::from(part) + u128::from(rest);
    (u128::from(part) * 1_000_000 / all.max(1)) as u64
}
