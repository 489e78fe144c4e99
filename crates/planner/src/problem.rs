//! The tables a search works on: every cost of a plan as a sum over its stages and the arcs between them.
//!
//! Each objective is a function of two numbers of a plan that never falls when one of them grows: the *sum*
//! of its stages and arcs, and its *slowest* stage or wire. Sums are in ticks of 1/1024 ns; the ticks below a
//! nanosecond count the layers on nodes without the model's file, which so decide between plans of equal time
//! and nothing else.

use exo_types::LayerRange;

use crate::cost::Costs;
use crate::kernels::Runnable;
use crate::memory::{Sizes, WeightForm};
use crate::{PinLayers, PlanRequest};

/// Ticks of a nanosecond: more than a model has layers.
pub(crate) const TICKS: i64 = 1 << 10;
/// Layers of a model, at most, for the ticks to stay below a nanosecond.
pub(crate) const LAYERS_MAX: u32 = 1023;
/// A request that takes longer, 104 days, is of no use to anyone, and so many ticks fit in 63 bits beside
/// those that count files.
const REQUEST_NS_MAX: u64 = (1 << 53) - (1 << 43);

/// Nanoseconds of one layer, stage or hop as ticks. Each is cut at its share of the longest request, so that
/// the sum of all of them is not above it: a plan has at most as many stages, and hops, as layers, and a
/// head.
pub(crate) fn ticks(ns: u64, request: &PlanRequest) -> i64 {
    let terms = 3 * u64::from(request.shape.layer_count()) + 2;
    ns.min(REQUEST_NS_MAX / terms) as i64 * TICKS
}

/// What a step is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// A prompt in so many chunks and its answer, on one stream.
    Request { chunks: u64 },
    /// A step of so many rows.
    Rows(u64),
}

/// Costs of one device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DeviceTable {
    /// Index into the request.
    pub(crate) device: usize,
    /// Ticks of the first n layers.
    pub(crate) sum: Vec<i64>,
    /// Nanoseconds of the first n layers in what decides the slowest stage.
    pub(crate) slow: Vec<i64>,
    /// Ticks of every stage here, and of the head.
    pub(crate) stage_sum: i64,
    pub(crate) head_sum: i64,
    /// The same for the slowest stage.
    pub(crate) stage_slow: i64,
    pub(crate) head_slow: i64,
    /// For each end the least start that memory and kernels allow; the end itself where none does.
    pub(crate) start_min: Vec<u32>,
    /// Which layers it must hold.
    pub(crate) pin: Option<PinLayers>,
}

impl DeviceTable {
    fn of(costs: &Costs<'_>, sizes: &Sizes<'_>, request: &PlanRequest, device: usize, phase: Phase) -> Self {
        let facts = &request.devices[device];
        let layers = request.shape.layers.len();
        let answer = costs.answer();
        let has_file = request.holders.is_empty() || request.holders.contains(&facts.node);
        let (mut sum, mut slow) = (vec![0i64], vec![0i64]);
        for layer in 0..layers {
            let (sum_ns, slow_ns) = match phase {
                Phase::Request { chunks } => {
                    let chunk = costs.chunk_layer_ns(device, layer, chunks);
                    let answer_ns = answer.saturating_mul(costs.layer_ns(device, layer, 1));
                    (
                        chunk.saturating_add(answer_ns).saturating_add(costs.fetch_layer_ns(device, layer)),
                        chunk,
                    )
                }
                Phase::Rows(rows) => {
                    let fetch_ns = costs.fetch_layer_ns(device, layer) / answer.max(1);
                    let ns = costs.layer_ns(device, layer, rows).saturating_add(fetch_ns);
                    (ns, ns)
                }
            };
            sum.push(sum[layer] + ticks(sum_ns, request) + i64::from(!has_file));
            slow.push(slow[layer] + slow_ns as i64);
        }
        let step = costs.step_ns(device);
        let fetch_ns = costs.fetch_head_ns(device);
        let (steps, head_sum, head_slow) = match phase {
            Phase::Request { .. } => {
                let head_ns = (answer + 1).saturating_mul(costs.head_ns(device, 1));
                (answer + 1, head_ns.saturating_add(fetch_ns), 0)
            }
            Phase::Rows(rows) => {
                let head_ns = costs.head_ns(device, rows).saturating_add(fetch_ns / answer.max(1));
                (1, head_ns, head_ns as i64)
            }
        };
        let pin = request.pins.iter().find(|p| p.node == facts.node && p.device == facts.device.id);
        Self {
            device,
            sum,
            slow,
            stage_sum: ticks(steps.saturating_mul(step), request),
            head_sum: ticks(head_sum, request),
            stage_slow: step as i64,
            head_slow,
            start_min: start_min(sizes, request, device),
            pin: pin.map(|p| p.layers),
        }
    }

    /// Ticks of a stage with these layers.
    pub(crate) fn stage_sum(&self, start: usize, end: usize) -> i64 {
        let head = if end + 1 == self.sum.len() { self.head_sum } else { 0 };
        self.sum[end] - self.sum[start] + self.stage_sum + head
    }

    /// Nanoseconds of a stage with these layers.
    pub(crate) fn stage_slow(&self, start: usize, end: usize) -> i64 {
        let head = if end + 1 == self.slow.len() { self.head_slow } else { 0 };
        self.slow[end] - self.slow[start] + self.stage_slow + head
    }

    /// The starts a stage that ends at `end` may have when no stage may take longer than `slow_max`.
    pub(crate) fn starts(&self, end: usize, slow_min_start: u32) -> std::ops::Range<usize> {
        let low = self.start_min[end].max(slow_min_start) as usize;
        match self.pin {
            None | Some(PinLayers::Any) => low..end,
            Some(PinLayers::Count(count)) => match end.checked_sub(count as usize) {
                Some(start) if start >= low && start < end => start..start + 1,
                _ => 0..0,
            },
            Some(PinLayers::Range(LayerRange { start, end: last })) => {
                let fits = last as usize == end && start as usize >= low && start < last;
                if fits { start as usize..start as usize + 1 } else { 0..0 }
            }
        }
    }

    /// For each end the least start with which a stage takes `slow_max` at most.
    pub(crate) fn slow_starts(&self, slow_max: i64) -> Vec<u32> {
        let mut start = 0;
        let least = |end: usize| {
            while start < end && self.stage_slow(start, end) > slow_max {
                start += 1;
            }
            start as u32
        };
        (0..self.slow.len()).map(least).collect()
    }
}

/// For each end the least start so that the layers between fit, and the device runs them; the end itself
/// where not even one does.
fn start_min(sizes: &Sizes<'_>, request: &PlanRequest, device: usize) -> Vec<u32> {
    let device = &request.devices[device];
    let (held, free_bytes) = (WeightForm::by(device.device.kind), device.device.memory_free_bytes);
    let mut start = 0;
    let least = |(end, runs_from): (u32, u32)| {
        start = start.max(runs_from);
        while start < end && sizes.bytes(held, start, end) > free_bytes {
            start += 1;
        }
        start
    };
    let runs_from = Runnable::of(request, device).starts(sizes.layer_count());
    (0..=sizes.layer_count()).zip(runs_from).map(least).collect()
}

/// Everything a search needs.
pub(crate) struct Problem {
    pub(crate) tables: Vec<DeviceTable>,
    pub(crate) layers: usize,
    /// Of devices that are alike in everything the earlier are used first: the one before each.
    pub(crate) twin_before: Vec<Option<usize>>,
    /// Devices that must take part, as a set.
    pub(crate) pinned: u128,
    arcs: Vec<Arc>,
}

/// From one device to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Arc {
    /// Ticks of the hops forward.
    pub(crate) sum: i64,
    /// Nanoseconds for which the link is occupied.
    pub(crate) slow: i64,
    /// Ticks of the ways back.
    pub(crate) back: i64,
}

/// The tables of these devices, without what lies between them.
pub(crate) fn tables(
    costs: &Costs<'_>,
    sizes: &Sizes<'_>,
    request: &PlanRequest,
    devices: &[usize],
    phase: Phase,
) -> Vec<DeviceTable> {
    devices.iter().map(|&d| DeviceTable::of(costs, sizes, request, d, phase)).collect()
}

impl Problem {
    pub(crate) fn of(
        costs: &Costs<'_>,
        sizes: &Sizes<'_>,
        request: &PlanRequest,
        devices: &[usize],
        phase: Phase,
    ) -> Self {
        let tables = tables(costs, sizes, request, devices, phase);
        let arc = |from: usize, to: usize| {
            let answer = costs.answer();
            match phase {
                Phase::Request { chunks } => {
                    let rows = costs.chunk_rows(chunks);
                    let tokens = answer.saturating_mul(costs.hop_ns(from, to, 1));
                    Arc {
                        sum: ticks(costs.first_hop_ns(from, to, rows).saturating_add(tokens), request),
                        slow: costs.wire_ns(from, to, rows) as i64,
                        back: ticks((answer + 1).saturating_mul(costs.back_ns(from, to)), request),
                    }
                }
                Phase::Rows(rows) => Arc {
                    sum: ticks(costs.hop_ns(from, to, rows), request),
                    slow: costs.wire_ns(from, to, rows) as i64,
                    back: ticks(costs.back_ns(from, to), request),
                },
            }
        };
        let arcs = devices.iter().flat_map(|&from| devices.iter().map(move |&to| (from, to)));
        let arcs = arcs.map(|(from, to)| if from == to { Arc::default() } else { arc(from, to) }).collect();
        let pinned = tables.iter().enumerate().filter(|(_, t)| t.pin.is_some());
        let pinned = pinned.fold(0, |set, (i, _)| set | 1u128 << i);
        let layers = request.shape.layers.len();
        let mut problem = Self { tables, layers, twin_before: Vec::new(), pinned, arcs };
        problem.twin_before =
            (0..devices.len()).map(|d| (0..d).rev().find(|&e| problem.are_twins(e, d))).collect();
        problem
    }

    pub(crate) fn arc(&self, from: usize, to: usize) -> Arc {
        self.arcs[from * self.tables.len() + to]
    }

    /// Whether a plan stays the same plan when these two change places.
    fn are_twins(&self, a: usize, b: usize) -> bool {
        let (one, other) = (&self.tables[a], &self.tables[b]);
        let alike = one.pin.is_none()
            && other.pin.is_none()
            && (
                &one.sum,
                &one.slow,
                one.stage_sum,
                one.head_sum,
                one.stage_slow,
                one.head_slow,
                &one.start_min,
            ) == (
                &other.sum,
                &other.slow,
                other.stage_sum,
                other.head_sum,
                other.stage_slow,
                other.head_slow,
                &other.start_min,
            );
        alike
            && self.arc(a, b) == self.arc(b, a)
            && (0..self.tables.len())
                .filter(|&x| x != a && x != b)
                .all(|x| self.arc(a, x) == self.arc(b, x) && self.arc(x, a) == self.arc(x, b))
    }

    /// The slowest stage or wire of a layout, by positions.
    pub(crate) fn slowest(&self, layout: &[(usize, LayerRange)]) -> i64 {
        let stages = layout.iter().map(|(d, r)| self.tables[*d].stage_slow(r.start as usize, r.end as usize));
        let wires = layout.windows(2).map(|w| self.arc(w[0].0, w[1].0).slow);
        stages.chain(wires).max().unwrap_or(0)
    }
}
