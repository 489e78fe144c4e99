//! The model of cost: what a plan takes, in whole nanoseconds.
//!
//! Rates become whole numbers first and times are rounded down a layer at a time, so every machine computes
//! the same. Below, `W` are the bytes of a layer's weights (in `W/r` as files store them where their type
//! has a rate of its own, else as the device holds them), `r` the rate at which it reads their type, `F`
//! the operations of a row, `f` their rate (with weights of several types the times of each are added,
//! operations shared as elements are), `K` the bytes of keys and values a token has in the layer, `k` the
//! rate at which attention of one row reads those of their type, `w` the rate at which a prefill waits for
//! weights beside computing with them, `a` the rate at which attention computes with those of a prompt, `C`
//! the width of a hidden state, `A` that of attention, `U` the activations of a row (`F/2C`, as many
//! outputs of `C` inputs), `u` the rate at which norms, rotations, the KV write, the activation function
//! and sums pass them, `t_layer` what these and starting the products take for one row, `P` the tokens of
//! the prompt, `m` its chunks (as large as the scheduler makes them at most, the smaller the more stages
//! there are, [`chunk_tokens`]; on slow devices it makes smaller ones, which overlap more and read weights
//! more often), `D` the depth (tokens already there).
//!
//! | what | formula | source |
//! |---|---|---|
//! | a layer, `n` rows at depth `D` | `max(W/r ⊕ X, min(W/r, W/w) + X) + n·K·D/k + t_layer + (n-1)·(U/u + s·t_layer)`, `X = (n-1)·F/(p·f)` | weights are read once for all rows: the roofline, Williams et al. 2009, doi:10.1145/1498765.1498785. On processors `a ⊕ b = √(a² + b²)`, `p` = 1 where a step of 16 rows was not measured, and `s` = 0.3, where the attention of a further row starts (decision 0071); on graphics units `a ⊕ b = max(a, b)`, `p` = 0.5, as their kernels for few rows compute so much slower (decisions 0074, 0075), and `s` = 0 |
//! | the head, `n` rows | `max(W_head/r ⊕ X, min(W_head/r, W_head/w) + X) + (n-1)·t_stream`, `X = (n-1)·2·C·V/(p·f)` | as a layer without attention; a further stream's token is chosen, turned into text and sent |
//! | a layer, one chunk of a prompt in `m` chunks | `(max(m·W/r, m·W/w + P·F/f) + 2·A·P²/a + m·q·t_layer + (P-m)·U/u) / m` | scores and sums of row `t` are `4·A·t` operations; over `P` rows `2·A·P²`; `q` = 1 on processors, 3.5 on graphics units where chunks have more than 8 rows (decision 0075) |
//! | a stage | `Σ layers + t_step + t_process` (and the head, on the last) | `t_process` = 250 µs on graphics units, which have a process of their own, else 0 (decision 0075) |
//! | a hop, `n` rows | `t_hop + rtt/2 + 4·C·n/bandwidth` | hidden states travel as f32 |
//! | the same, the first chunk of a prompt | and `max(0, s·rtt - 4·C·n/bandwidth)` | the link has been idle, so TCP starts slowly: 14,480 bytes, twice as many after each round trip, up to what the link holds; `s` are the round trips that this takes, RFC 5681 and 6928 |
//! | the way back | `t_hop + rtt/2` | it carries token ids |
//! | time per token, one stream | `Σ stages + Σ hops + way back`, at depth `P + A/2` | stages of one token never overlap |
//! | time to first token | `Σ chunk stages + Σ hops + way back + head + (m-1)·max(chunk stage, chunk on a wire)` | a pipeline of `m` equal chunks fills once, then its slowest part decides |
//! | a token for each of `N` streams | `max(M·max stage, Σ stages + hops + way back)`, `M = min(stages, N)` micro-batches of `⌈N/M⌉` rows | one micro-batch for each stage, as `cluster`'s scheduler composes them; each reads the weights again |
//!
//! Where a processor was measured with a step of 16 rows, `X(16)` is what gives it that time (see
//! `few_rows`), and `X(64)` is that of the chunk which arithmetic was measured with (`p` = 1). `X` is a
//! straight line from 1 to 16 rows and another one from there to 64; beyond it is that of a chunk. It never
//! falls. So a step of more rows takes no less time, and none takes less than reading.
//!
//! A hop between devices of one node costs `t_local` and no wire. `t_hop` is what answers that had a pipeline
//! to themselves took between its stages beside the links ([`PlanRequest::hop_s`]). Before there are any it
//! is 50 µs as `t_local`, the added time of a token and hop on loopback that docs/benchmarks.md has;
//! `t_stream` is 60 µs, from eight streams beside one on a card there: of the likeliest token, without its
//! log-probability.
//!
//! A group of devices that share the layers of a stage (tensor parallelism) will be one more kind of row in
//! [`Costs::devices`]: a stage whose layer costs the slowest of its shares plus two reductions. Nothing else
//! asks what a device is.
//!
//! A model of a few MiB stays in a processor's caches: its rate of reading and `t_layer` are derived from the
//! measured ones (decision 0072).
//!
//! Stages of one stream never work at the same time. Those of many streams do, and devices of one memory
//! domain then share its bandwidth, which nobody measures: what is expected takes it for enough for all, and
//! the slow end of the range for that of one of them, as if their stages of a round worked by turns.

use std::collections::BTreeMap;

use exo_types::{DType, DeviceFacts, DeviceKind, LayerRange, NodeId, Shard};

use crate::inputs::{Figure, LINK_RATE_ESTIMATED, RTT_ESTIMATED};
use crate::memory::{CHUNK_TOKENS, WeightForm};
use crate::ratios::TypeRatios;
use crate::{Objective, PlanRequest, Prediction, Range, Workload};

/// In a pipeline no chunk is smaller: the cost of a step would be most of it.
const CHUNK_TOKENS_PIPELINED_MIN: u32 = 64;

/// Tokens of a prompt that pass a stage of a pipeline at once: with several stages the less, so that they
/// work at the same time.
pub fn chunk_tokens(stages: usize, chunk_max: u32) -> u32 {
    let stages = u32::try_from(stages.max(1)).unwrap_or(u32::MAX);
    (chunk_max / stages).max(CHUNK_TOKENS_PIPELINED_MIN).min(chunk_max).max(1)
}

/// Bytes of one element of a hidden state on the wire.
const WIRE_BYTES: u64 = 4;
/// What a hop costs beside the wire before any was measured.
const HOP_NS: u64 = 50_000;
/// A hop between two devices of a node.
const LOCAL_HOP_NS: u64 = 50_000;
/// What TCP sends before the first answer comes back: ten segments.
const TCP_WINDOW_FIRST: u128 = 14_480;
/// What a further stream of a step costs the node of the last stage.
const STREAM_NS: u64 = 60_000;
/// In millionths of the rate of prefill, how fast graphics units compute further rows of a step of few.
const FEW_ROWS_MILLIONTHS: u64 = MILLION / 2;
const MILLION: u64 = 1_000_000;
/// Of the step and of the chunk that processors are measured with.
const STEP_ROWS: u64 = DeviceFacts::STEP_ROWS as u64;
const CHUNK_ROWS: u64 = DeviceFacts::CHUNK_ROWS as u64;
/// In per cent of `t_layer`, what a further row of a step takes in a layer on processors beside products, the
/// cache that it reads and its activations: its attention starts.
const FURTHER_ROW_PERCENT: u64 = 30;
/// In per cent of `t_layer`, what a layer of a chunk takes on graphics units whatever its rows and weights:
/// its products have kernels of their own, which start one after the other with most of the card idle.
const CHUNK_LAYER_PERCENT: u64 = 350;
/// Up to so many rows a chunk goes through the kernels of decode, on every backend.
const FEW_ROWS_MAX: u64 = 8;
/// Handing a step to a graphics unit, which has a process of its own, and a token back (decision 0075). No
/// rate: what steps take there does not have it.
const HANDOVER_NS: u64 = 250_000;
/// No time in here is longer: 36 minutes for one layer of one step is no use to anybody, and sums stay below
/// 2^63.
const NS_MAX: u64 = 1 << 41;

/// Which end of every input's range is counted with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Case {
    Fast,
    Expected,
    Slow,
}

impl Case {
    /// A rate as a whole number, at least 1.
    fn rate(self, figure: Figure) -> u64 {
        let (value, error) = (figure.value as u128, u128::from(figure.source.error_percent()));
        let scaled = match self {
            Self::Fast => value * (100 + error) / 100,
            Self::Expected => value,
            Self::Slow => value * 100 / (100 + error),
        };
        scaled.clamp(1, u64::MAX.into()) as u64
    }

    /// Seconds as nanoseconds.
    fn time(self, figure: Figure) -> u64 {
        let (ns, error) = ((figure.value * 1e9) as u128, u128::from(figure.source.error_percent()));
        let scaled = match self {
            Self::Fast => ns * 100 / (100 + error),
            Self::Expected => ns,
            Self::Slow => ns * (100 + error) / 100,
        };
        scaled.min(NS_MAX.into()) as u64
    }
}

/// Times of the parts of a plan, one device and layer at a time.
pub(crate) struct Costs<'a> {
    request: &'a PlanRequest,
    prompt: u64,
    answer: u64,
    devices: Vec<DeviceCost>,
    links: Links,
    /// Of a hop between nodes, beside the wire.
    hop_ns: u64,
}

struct DeviceCost {
    /// Index into the nodes of [`Links`].
    node: usize,
    held: WeightForm,
    /// Where types have no rates of their own.
    general: TypeCost,
    /// By type as [`DType::ALL`] has them: reading, and arithmetic.
    by_type: [TypeCost; DType::ALL.len()],
    kv: u64,
    prefill_read: u64,
    attention: u64,
    activations: u64,
    /// It was measured with a step of several rows, with weights of some type.
    is_step_measured: bool,
    /// Of [`Self::layer_ns`], in per cent, for a further row.
    further_row_percent: u64,
    /// With few rows it reads weights and computes with them by turns for a part of the time.
    is_processor: bool,
    chunk_layer_percent: u64,
    layer_ns: u64,
    step_ns: u64,
    handover_ns: u64,
    /// The memory whose bandwidth others may take meanwhile, where the slow end of the range is counted.
    shared_memory: Option<u64>,
    fetching: Option<Fetching>,
}

/// How fast a node fetches the model's file, and what it has not of it. Which layers a part is of is not
/// known: each is there as much as all are.
#[derive(Clone, Copy)]
struct Fetching {
    rate: u64,
    missing: u64,
    whole: u64,
}

#[derive(Clone, Copy)]
struct TypeCost {
    /// Whether `read` counts bytes as they are stored; else as they are held.
    is_of_stored: bool,
    read: u64,
    flops: u64,
    /// Of `flops`, in millionths, for further rows of a step of few.
    few_rows_millionths: u64,
}

impl<'a> Costs<'a> {
    pub(crate) fn of(request: &'a PlanRequest, case: Case) -> Self {
        let Workload { prompt_tokens, answer_tokens, .. } = request.workload;
        let (context, asked) = (u64::from(request.context_tokens), u64::from(prompt_tokens));
        let both = asked + u64::from(answer_tokens);
        // What is longer than the context is as much shorter in both of its parts.
        let prompt = if both > context { asked * context / both } else { asked }.max(1);
        let answer = u64::from(answer_tokens).min(context.saturating_sub(prompt)).max(1);
        let ratios = TypeRatios::of(request);
        let links = Links::of(request, case);
        let devices = request.devices.iter().map(|device| {
            let rates = ratios.complete(device);
            // Heat slows everything that computes.
            let cool = |rate: u64| {
                ((u128::from(rate) * u128::from(device.thermal_percent.clamp(1, 100))) / 100) as u64
            };
            let rate = |figure| cool(case.rate(figure)).max(1);
            let is_processor = device.device.kind == DeviceKind::Cpu;
            let (few_rows_millionths, further_row_percent, chunk_layer_percent, handover_ns) =
                match is_processor {
                    true => (MILLION, FURTHER_ROW_PERCENT, 100, 0),
                    false => (FEW_ROWS_MILLIONTHS, 0, CHUNK_LAYER_PERCENT, HANDOVER_NS),
                };
            // Only processors have such a part.
            let few_rows =
                |part: Option<f64>| part.map_or(few_rows_millionths, |part| (part * MILLION as f64) as u64);
            DeviceCost {
                node: links.at(device.node).unwrap_or_default(), // each is there
                held: WeightForm::by(device.device.kind),
                general: TypeCost {
                    is_of_stored: false,
                    read: rate(rates.read_bytes_per_s),
                    flops: rate(rates.flops_per_s),
                    few_rows_millionths: few_rows(rates.few_rows),
                },
                by_type: DType::ALL.map(|dtype| TypeCost {
                    is_of_stored: rates.read_by_type.contains_key(&dtype),
                    read: rate(rates.read_of(dtype)),
                    flops: rate(rates.flops_of(dtype)),
                    few_rows_millionths: few_rows(rates.few_rows_of(dtype)),
                }),
                kv: rate(rates.kv_of(request.kv)),
                prefill_read: rate(rates.prefill_read_bytes_per_s),
                attention: rate(rates.attention_flops_per_s),
                activations: rate(rates.activations_per_s),
                is_step_measured: rates.few_rows.is_some() || !rates.few_rows_by_type.is_empty(),
                further_row_percent,
                is_processor,
                chunk_layer_percent,
                layer_ns: case.time(rates.layer_s),
                step_ns: case.time(rates.step_s),
                handover_ns,
                shared_memory: device.device.memory_domain.filter(|_| case == Case::Slow).map(|of| of.id),
                fetching: None,
            }
        });
        let hop_ns = request.hop_s.and_then(Figure::plausible).map_or(HOP_NS, |hop| case.time(hop));
        let mut costs = Self { request, prompt, answer, devices: devices.collect(), links, hop_ns };
        for (at, device) in request.devices.iter().enumerate() {
            costs.devices[at].fetching = costs.fetching(device.node);
        }
        costs
    }

    /// What lies between the nodes.
    pub(crate) fn links(&self) -> &Links {
        &self.links
    }

    /// Tokens of the answer that are counted.
    pub(crate) fn answer(&self) -> u64 {
        self.answer
    }

    /// Tokens of the prompt that are counted.
    pub(crate) fn prompt(&self) -> u64 {
        self.prompt
    }

    /// Chunks of the prompt over so many stages.
    pub(crate) fn chunks(&self, stages: usize) -> u64 {
        self.prompt.div_ceil(chunk_tokens(stages, CHUNK_TOKENS).into())
    }

    /// Rows of one of so many chunks.
    pub(crate) fn chunk_rows(&self, chunks: u64) -> u64 {
        self.prompt.div_ceil(chunks.max(1))
    }

    fn depth(&self) -> u64 {
        self.prompt + self.answer / 2
    }

    /// One layer of a step of `rows` sequences in the middle of their answers.
    pub(crate) fn layer_ns(&self, device: usize, layer: usize, rows: u64) -> u64 {
        let (cost, shape) = (&self.devices[device], &self.request.shape.layers[layer]);
        let (read, waits) = (self.read_ns(device, layer), self.waits_ns(device, layer));
        let further = cost.few_rows_ns(rows, shape.flops_per_token, self.layer_types(layer));
        let attend = per_s(u128::from(rows) * u128::from(self.depth()), shape.kv_bytes_per_token, cost.kv);
        let products = cost.products_ns(read, waits, further);
        let further_rows = rows.saturating_sub(1);
        let starts =
            cost.layer_ns.saturating_mul(further_rows).saturating_mul(cost.further_row_percent) / 100;
        let rest = cost.layer_ns.saturating_add(self.activations_ns(device, layer, further_rows));
        products.saturating_add(attend).saturating_add(starts).saturating_add(rest).min(NS_MAX)
    }

    /// What further rows of a layer compute beside products and attention.
    fn activations_ns(&self, device: usize, layer: usize, rows: u64) -> u64 {
        let (cost, shape) = (&self.devices[device], &self.request.shape);
        let activations = shape.layers[layer].flops_per_token / (2 * u64::from(shape.hidden)).max(1);
        per_s(rows.into(), activations, cost.activations)
    }

    /// What a layer of one of so many chunks of the prompt takes whatever its rows and weights.
    fn chunk_fixed_ns(&self, device: usize, chunks: u64) -> u64 {
        let cost = &self.devices[device];
        let has_few = self.chunk_rows(chunks) <= FEW_ROWS_MAX;
        cost.layer_ns.saturating_mul(if has_few { 100 } else { cost.chunk_layer_percent }) / 100
    }

    /// One layer of one of so many chunks of the prompt.
    pub(crate) fn chunk_layer_ns(&self, device: usize, layer: usize, chunks: u64) -> u64 {
        let (cost, shape) = (&self.devices[device], &self.request.shape.layers[layer]);
        let prompt = u128::from(self.prompt);
        let compute = cost.compute_ns(prompt * u128::from(shape.flops_per_token), self.layer_types(layer));
        let waits = self.waits_ns(device, layer).saturating_mul(chunks);
        let read = self.read_ns(device, layer).saturating_mul(chunks);
        let quadratic = 2 * u128::from(self.request.shape.attention) * prompt * prompt;
        let attend = per_s(quadratic, 1, cost.attention);
        let fixed = self.chunk_fixed_ns(device, chunks).saturating_mul(chunks);
        let rest =
            fixed.saturating_add(self.activations_ns(device, layer, self.prompt.saturating_sub(chunks)));
        let products = compute.saturating_add(waits).max(read);
        let prompt_ns = products.saturating_add(attend).saturating_add(rest);
        prompt_ns.div_ceil(chunks).min(NS_MAX)
    }

    /// The output head of a step of `rows` rows.
    pub(crate) fn head_ns(&self, device: usize, rows: u64) -> u64 {
        let (cost, shape) = (&self.devices[device], &self.request.shape);
        let held = match cost.held {
            WeightForm::AsStored => shape.head_bytes,
            WeightForm::Packed => shape.head_packed_bytes,
        };
        let types = self.request.weight_types.as_ref().map(|types| types.head.0.as_slice());
        let operations = (2 * u64::from(shape.hidden)).saturating_mul(shape.vocab.into());
        let read = cost.read_ns(held, shape.head_bytes, types);
        let waits = per_s(held.into(), 1, cost.prefill_read);
        let further = cost.few_rows_ns(rows, operations, types);
        let streams = rows.saturating_sub(1).saturating_mul(STREAM_NS);
        cost.products_ns(read, waits, further).saturating_add(streams).min(NS_MAX)
    }

    /// What every step costs on the device.
    pub(crate) fn step_ns(&self, device: usize) -> u64 {
        self.devices[device].step_ns + self.devices[device].handover_ns
    }

    fn read_ns(&self, device: usize, layer: usize) -> u64 {
        let stored = self.request.shape.layers[layer].weight_bytes;
        let held = self.weight_bytes(device, layer);
        self.devices[device].read_ns(held, stored, self.layer_types(layer))
    }

    /// What a chunk waits for the weights of a layer beside computing with them.
    fn waits_ns(&self, device: usize, layer: usize) -> u64 {
        per_s(self.weight_bytes(device, layer).into(), 1, self.devices[device].prefill_read)
    }

    /// Of a layer, as the device holds them.
    fn weight_bytes(&self, device: usize, layer: usize) -> u64 {
        let shape = &self.request.shape.layers[layer];
        match self.devices[device].held {
            WeightForm::AsStored => shape.weight_bytes,
            WeightForm::Packed => shape.packed_bytes,
        }
    }

    fn layer_types(&self, layer: usize) -> Option<&[(DType, u64)]> {
        let types = self.request.weight_types.as_ref()?.layers.get(layer)?;
        Some(types.0.as_slice())
    }

    /// From the device of one stage to that of the next, with the hidden states of `rows` rows.
    pub(crate) fn hop_ns(&self, from: usize, to: usize, rows: u64) -> u64 {
        self.back_ns(from, to).saturating_add(self.wire_ns(from, to, rows)).min(NS_MAX)
    }

    /// The same of the first chunk of a prompt.
    pub(crate) fn first_hop_ns(&self, from: usize, to: usize, rows: u64) -> u64 {
        let wire = self.wire_ns(from, to, rows);
        let (from_node, to_node) = (self.devices[from].node, self.devices[to].node);
        if from_node == to_node {
            return self.hop_ns(from, to, rows);
        }
        let (rtt, rate) = self.links.link(from_node, to_node);
        let bytes = u128::from(rows) * u128::from(WIRE_BYTES) * u128::from(self.request.shape.hidden);
        let held = u128::from(rate) * u128::from(rtt) / 1_000_000_000;
        let starts = slow_starts(bytes.min(held)).saturating_mul(rtt).saturating_sub(wire);
        self.hop_ns(from, to, rows).saturating_add(starts).min(NS_MAX)
    }

    /// No hop of any plan takes less.
    pub(crate) fn least_hop_ns(&self, rows: u64) -> u64 {
        let mut nodes: Vec<usize> = self.devices.iter().map(|d| d.node).collect();
        nodes.sort_unstable();
        let local = nodes.windows(2).any(|w| w[0] == w[1]).then_some(LOCAL_HOP_NS);
        let hop = |(rtt, rate): (u64, u64)| {
            self.hop_ns + rtt / 2 + per_s((rows * WIRE_BYTES).into(), self.request.shape.hidden.into(), rate)
        };
        self.links.between().map(hop).chain(local).min().unwrap_or(0)
    }

    /// Of a hop, how long it occupies the link.
    pub(crate) fn wire_ns(&self, from: usize, to: usize, rows: u64) -> u64 {
        let (from, to) = (self.devices[from].node, self.devices[to].node);
        if from == to {
            return 0;
        }
        per_s((rows * WIRE_BYTES).into(), self.request.shape.hidden.into(), self.links.link(from, to).1)
    }

    /// From the last stage to the first, with tokens.
    pub(crate) fn back_ns(&self, from: usize, to: usize) -> u64 {
        let (from, to) = (self.devices[from].node, self.devices[to].node);
        if from == to { LOCAL_HOP_NS } else { self.hop_ns + self.links.link(from, to).0 / 2 }
    }

    /// What the nodes without the file fetch of it at least.
    pub(crate) fn fetch(&self, layout: &Layout) -> Fetch {
        let PlanRequest { holders, parts, shape, devices, .. } = self.request;
        if holders.is_empty() {
            return Fetch::default();
        }
        let mut missing: BTreeMap<NodeId, u64> = BTreeMap::new();
        for &(device, range) in layout.iter().filter(|(device, _)| !holders.contains(&devices[*device].node))
        {
            let bytes = shape.shard_weight_bytes(&Shard::pipeline(range, shape.layer_count()));
            let of_node = missing.entry(devices[device].node).or_default();
            *of_node = of_node.saturating_add(bytes);
        }
        for (node, bytes) in parts {
            missing.entry(*node).and_modify(|missing| *missing = missing.saturating_sub(*bytes));
        }
        let one = |(&node, &bytes): (&NodeId, &u64)| {
            let (rate, is_measured) = self.fetch_rate(node)?;
            // Hours are told, and compared, as what they are.
            let ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
            let ns = u64::try_from(ns).unwrap_or(u64::MAX);
            Some(Fetch { bytes, ns, is_estimated: bytes > 0 && !is_measured })
        };
        let all = missing.iter().filter_map(one);
        all.fold(Fetch::default(), |sum, one| Fetch {
            bytes: sum.bytes.saturating_add(one.bytes),
            ns: sum.ns.max(one.ns),
            is_estimated: sum.is_estimated || one.is_estimated,
        })
    }

    /// Bytes per second from the nearest node that has the file, and whether that is measured.
    fn fetch_rate(&self, node: NodeId) -> Option<(u64, bool)> {
        let to = self.links.at(node)?;
        let from = self.request.holders.iter().filter_map(|&holder| self.links.at(holder));
        from.map(|from| (self.links.link(from, to).1, self.links.is_rate_measured(from, to))).max()
    }

    /// What fetching a layer adds to a request, where its search counts that; with the first the embedding.
    pub(crate) fn fetch_layer_ns(&self, device: usize, layer: usize) -> u64 {
        let shape = &self.request.shape;
        let embedding_bytes = if layer == 0 { shape.embedding_bytes } else { 0 };
        self.fetch_ns(device, shape.layers[layer].weight_bytes.saturating_add(embedding_bytes))
    }

    /// The same for the head.
    pub(crate) fn fetch_head_ns(&self, device: usize) -> u64 {
        self.fetch_ns(device, self.request.shape.head_bytes)
    }

    /// What fetching so many bytes of the file adds to a request.
    fn fetch_ns(&self, device: usize, bytes: u64) -> u64 {
        let Some(Fetching { rate, missing, whole }) = self.devices[device].fetching else { return 0 };
        let missing = u128::from(bytes) * u128::from(missing) / u128::from(whole.max(1));
        per_s(missing, 1, rate) / u64::from(self.request.fetch_answers.unwrap_or(1).max(1))
    }

    /// What the search counts of a fetch to a node; `None` where it counts nothing.
    fn fetching(&self, node: NodeId) -> Option<Fetching> {
        let PlanRequest { holders, parts, shape, fetch_answers, .. } = self.request;
        fetch_answers.filter(|_| !holders.contains(&node))?;
        let (rate, _) = self.fetch_rate(node)?;
        let all = Shard::pipeline(LayerRange::new(0, shape.layer_count()), shape.layer_count());
        let whole = shape.shard_weight_bytes(&all);
        let here = parts.iter().find(|(with, _)| *with == node).map_or(0, |(_, bytes)| *bytes);
        Some(Fetching { rate, missing: whole.saturating_sub(here), whole })
    }
}

impl DeviceCost {
    fn of_type(&self, dtype: DType) -> &TypeCost {
        // `DType::ALL` is in the order of declaration.
        &self.by_type[dtype as usize]
    }

    /// Weights of `stored` bytes that take `held` bytes on the device.
    fn read_ns(&self, held: u64, stored: u64, types: Option<&[(DType, u64)]>) -> u64 {
        let Some(types) = types else { return per_s(held.into(), 1, self.general.read) };
        let of_type = |&(dtype, bytes): &(DType, u64)| {
            let cost = self.of_type(dtype);
            let here = match cost.is_of_stored {
                true => bytes.into(),
                false => u128::from(bytes) * u128::from(held) / u128::from(stored.max(1)),
            };
            per_s(here, 1, cost.read)
        };
        types.iter().map(of_type).fold(0, u64::saturating_add).min(NS_MAX)
    }

    /// What the rows of a step of few take behind the first, each of so many operations. Of more rows never
    /// less: bounds of the search count steps of one.
    fn few_rows_ns(&self, rows: u64, operations: u64, types: Option<&[(DType, u64)]>) -> u64 {
        let further = |rows: u64| u128::from(rows.saturating_sub(1)) * u128::from(operations);
        let few = |rows: u64| self.arithmetic_ns(further(rows), types, |cost| cost.few_rows_millionths);
        if rows <= STEP_ROWS || !self.is_step_measured {
            return few(rows);
        }
        let of_chunk = |rows: u64| self.compute_ns(further(rows), types);
        let measured = few(STEP_ROWS);
        if rows >= CHUNK_ROWS {
            return of_chunk(rows).max(measured);
        }
        let rise = of_chunk(CHUNK_ROWS).saturating_sub(measured);
        measured + rise * (rows - STEP_ROWS) / (CHUNK_ROWS - STEP_ROWS)
    }

    /// Products of a step of few rows, of whose weights it waits for some beside computing with them.
    fn products_ns(&self, read: u64, waits: u64, further: u64) -> u64 {
        let least = if self.is_processor { root_of_squares(read, further) } else { read };
        least.max(read.min(waits).saturating_add(further))
    }

    /// Operations of a chunk, spread over the types as their elements are.
    fn compute_ns(&self, operations: u128, types: Option<&[(DType, u64)]>) -> u64 {
        self.arithmetic_ns(operations, types, |_| MILLION)
    }

    /// The same at a part of the rates.
    fn arithmetic_ns(
        &self,
        operations: u128,
        types: Option<&[(DType, u64)]>,
        millionths: fn(&TypeCost) -> u64,
    ) -> u64 {
        let at_part =
            |cost: &TypeCost| operations.saturating_mul(MILLION.into()) / u128::from(millionths(cost).max(1));
        let Some(types) = types else { return per_s(at_part(&self.general), 1, self.general.flops) };
        let elements = |&(dtype, bytes): &(DType, u64)| {
            u128::from(bytes) * u128::from(dtype.block_elements()) / u128::from(dtype.block_bytes())
        };
        let all: u128 = types.iter().map(elements).sum();
        let of_type = |part: &(DType, u64)| {
            let cost = self.of_type(part.0);
            let share = at_part(cost).saturating_mul(elements(part)) / all.max(1);
            per_s(share, 1, cost.flops)
        };
        types.iter().map(of_type).fold(0, u64::saturating_add).min(NS_MAX)
    }
}

/// `count · each` at `rate` per second, in nanoseconds.
fn per_s(count: u128, each: u64, rate: u64) -> u64 {
    let ns = count.saturating_mul(each.into()).saturating_mul(1_000_000_000) / u128::from(rate.max(1));
    ns.min(NS_MAX.into()) as u64
}

/// `√(a² + b²)`, not below either. Each of its operations is rounded in one way only, on every machine.
fn root_of_squares(a: u64, b: u64) -> u64 {
    let (a, b) = (a.min(NS_MAX) as f64, b.min(NS_MAX) as f64);
    (a * a + b * b).sqrt() as u64
}

/// Round trips that TCP waits for until so many bytes are on their way, after the link was idle.
fn slow_starts(bytes: u128) -> u64 {
    let (mut window, mut sent, mut trips) = (TCP_WINDOW_FIRST, TCP_WINDOW_FIRST, 0);
    while sent < bytes {
        window *= 2;
        sent = sent.saturating_add(window);
        trips += 1;
    }
    trips
}

/// What a placement fetches before its first answer, at least.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Fetch {
    pub(crate) bytes: u64,
    pub(crate) ns: u64,
    /// A link that it goes over is not measured.
    pub(crate) is_estimated: bool,
}

/// Round trip and bytes per second from every node to every other: measured in this direction, else in the
/// other, else estimated.
pub(crate) struct Links {
    /// In order.
    nodes: Vec<NodeId>,
    /// By the nodes' positions, a row for each that sends.
    each: Vec<(u64, u64)>,
    /// Whether its rate is measured.
    is_rate_measured: Vec<bool>,
}

impl Links {
    fn of(request: &PlanRequest, case: Case) -> Self {
        let of_devices = request.devices.iter().map(|d| d.node);
        let mut nodes: Vec<NodeId> = of_devices.chain(request.holders.iter().copied()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let mut measured = vec![(None, None); nodes.len() * nodes.len()];
        let known = |figure: Option<Figure>| figure.and_then(Figure::plausible);
        for link in &request.links {
            let (Ok(from), Ok(to)) = (nodes.binary_search(&link.from), nodes.binary_search(&link.to)) else {
                continue;
            };
            let rtt = known(link.rtt_s).map(|rtt| case.time(rtt));
            measured[from * nodes.len() + to] = (rtt, known(link.bytes_per_s).map(|rate| case.rate(rate)));
        }
        let one = |from: usize, to: usize| {
            let ((rtt, rate), (back_rtt, back_rate)) =
                (measured[from * nodes.len() + to], measured[to * nodes.len() + from]);
            (rtt.or(back_rtt), rate.or(back_rate))
        };
        let pairs = || (0..nodes.len()).flat_map(|from| (0..nodes.len()).map(move |to| (from, to)));
        let unmeasured = (case.time(RTT_ESTIMATED), case.rate(LINK_RATE_ESTIMATED));
        let complete = |(rtt, rate): (Option<u64>, Option<u64>)| {
            (rtt.unwrap_or(unmeasured.0), rate.unwrap_or(unmeasured.1))
        };
        let each = pairs().map(|(from, to)| complete(one(from, to))).collect();
        let is_rate_measured = pairs().map(|(from, to)| one(from, to).1.is_some()).collect();
        Self { each, is_rate_measured, nodes }
    }

    /// Whether [`Links::link`] has its rate from a measurement, in this direction or the other.
    fn is_rate_measured(&self, from: usize, to: usize) -> bool {
        self.is_rate_measured[from * self.nodes.len() + to]
    }

    pub(crate) fn at(&self, node: NodeId) -> Option<usize> {
        self.nodes.binary_search(&node).ok()
    }

    pub(crate) fn link(&self, from: usize, to: usize) -> (u64, u64) {
        self.each[from * self.nodes.len() + to]
    }

    /// Those between two nodes.
    fn between(&self) -> impl Iterator<Item = (u64, u64)> {
        let nodes = self.nodes.len();
        let is_between = move |(at, _): &(usize, &(u64, u64))| at / nodes != at % nodes;
        self.each.iter().enumerate().filter(is_between).map(|(_, link)| *link)
    }
}

/// What a step does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Phase {
    /// One token of one stream.
    Decode,
    /// A whole prompt at once.
    Prefill,
}

/// What the model of cost says of a step on one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExpectedStep {
    /// The part that a rate of its phase decides; 0 where none does.
    pub rated_ns: u64,
    /// The rest.
    pub fixed_ns: u64,
}

/// What one stage computes, beside the others of its placement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StageTimes {
    /// For a token of one stream.
    pub token_ns: u64,
    /// For a whole prompt.
    pub prompt_ns: u64,
}

/// Times of one plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Times {
    pub(crate) ttft_ns: u64,
    pub(crate) token_ns: u64,
    pub(crate) hop_ns: u64,
    pub(crate) round_ns: u64,
}

/// Devices in pipeline order with their layers.
pub(crate) type Layout = [(usize, LayerRange)];

impl Times {
    /// Of a token, what is not spent between stages.
    pub(crate) fn compute_ns(&self) -> u64 {
        self.token_ns - self.hop_ns
    }
}

impl Costs<'_> {
    /// A stage of a step of one stream.
    pub(crate) fn stage_token_ns(&self, device: usize, range: LayerRange) -> u64 {
        let layers = range.start as usize..range.end as usize;
        let is_last = layers.end == self.request.shape.layers.len();
        let head = if is_last { self.head_ns(device, 1) } else { 0 };
        layers.map(|layer| self.layer_ns(device, layer, 1)).sum::<u64>() + self.step_ns(device) + head
    }

    /// A stage of the whole prompt, in so many chunks.
    pub(crate) fn stage_prompt_ns(&self, device: usize, range: LayerRange, chunks: u64) -> u64 {
        let layers = range.start as usize..range.end as usize;
        let chunk: u64 = layers.map(|layer| self.chunk_layer_ns(device, layer, chunks)).sum();
        (chunk + self.step_ns(device)).saturating_mul(chunks)
    }

    /// A step of one stream, or the whole prompt where that is one chunk.
    pub(crate) fn step(&self, device: usize, range: LayerRange, phase: Phase) -> ExpectedStep {
        let layers = range.start as usize..range.end as usize;
        let cost = &self.devices[device];
        let of_layers = |ns: u64| cost.step_ns + ns.saturating_mul(layers.len() as u64);
        match phase {
            Phase::Decode => {
                let fixed_ns = of_layers(cost.layer_ns);
                let all_ns = self.stage_token_ns(device, range).saturating_sub(cost.handover_ns);
                ExpectedStep { rated_ns: all_ns.saturating_sub(fixed_ns), fixed_ns }
            }
            Phase::Prefill => {
                let fixed_ns = of_layers(self.chunk_fixed_ns(device, 1));
                let weights_ns = |layer| self.read_ns(device, layer).max(self.waits_ns(device, layer));
                let weights_ns: u64 = layers.clone().map(weights_ns).sum();
                let head_ns =
                    if layers.end == self.request.shape.layers.len() { self.head_ns(device, 1) } else { 0 };
                let all_ns: u64 = layers.map(|layer| self.chunk_layer_ns(device, layer, 1)).sum();
                let rated_ns = (all_ns + cost.step_ns).saturating_sub(fixed_ns);
                // What waits for weights says nothing of arithmetic.
                let rated_ns = if rated_ns >= 2 * weights_ns { rated_ns } else { 0 };
                ExpectedStep { rated_ns, fixed_ns: fixed_ns + head_ns }
            }
        }
    }

    pub(crate) fn times(&self, layout: &Layout) -> Times {
        let last = layout.len() - 1;
        let streams = u64::from(self.request.workload.streams.max(1));
        let micro_batches = streams.min(layout.len() as u64);
        let rows = streams.div_ceil(micro_batches);
        let chunks = self.chunks(layout.len());
        let chunk_rows = self.chunk_rows(chunks);
        let stage = |at: usize, layer: &dyn Fn(usize, usize) -> u64| -> u64 {
            let (device, range) = layout[at];
            (range.start as usize..range.end as usize).map(|l| layer(device, l)).sum::<u64>()
                + self.step_ns(device)
        };
        let around = |hop: &dyn Fn(usize, usize) -> u64| -> u64 {
            if last == 0 {
                return 0;
            }
            let forward: u64 = layout.windows(2).map(|w| hop(w[0].0, w[1].0)).sum();
            forward + self.back_ns(layout[last].0, layout[0].0)
        };
        let hops = |rows: u64| around(&|from, to| self.hop_ns(from, to, rows));
        let decode = |at: usize, rows: u64| {
            let head = if at == last { self.head_ns(layout[at].0, rows) } else { 0 };
            stage(at, &|d, l| self.layer_ns(d, l, rows)) + head
        };
        let chunk = |at: usize| stage(at, &|d, l| self.chunk_layer_ns(d, l, chunks));
        let wires = layout.windows(2).map(|w| self.wire_ns(w[0].0, w[1].0, chunk_rows));
        // A device that has two stages, as a repair may leave it, computes one after the other.
        let on_device = |of: &dyn Fn(usize) -> u64, at: usize| -> u64 {
            (0..=last).filter(|&other| layout[other].0 == layout[at].0).map(of).sum()
        };
        let slowest_chunk = (0..=last).map(|at| on_device(&chunk, at)).chain(wires).max().unwrap_or(0);
        let head = self.head_ns(layout[last].0, 1);
        let round_wires = layout.windows(2).map(|w| self.wire_ns(w[0].0, w[1].0, rows));
        let by_turns = |at: usize| -> u64 {
            let beside = (0..=last).filter(|&other| self.is_by_turns(layout[other].0, layout[at].0));
            beside.map(|other| decode(other, rows)).sum()
        };
        let slowest = (0..=last).map(by_turns).chain(round_wires).max().unwrap_or(0);
        let round = (0..=last).map(|at| decode(at, rows)).sum::<u64>() + hops(rows);
        let first_hops = around(&|from, to| self.first_hop_ns(from, to, chunk_rows));
        let filled = (0..=last).map(chunk).sum::<u64>() + first_hops + head;
        Times {
            ttft_ns: filled.saturating_add((chunks - 1).saturating_mul(slowest_chunk)),
            token_ns: (0..=last).map(|at| decode(at, 1)).sum::<u64>() + hops(1),
            hop_ns: hops(1),
            round_ns: round.max(micro_batches * slowest),
        }
    }

    /// Whether stages of these two read weights one after the other.
    fn is_by_turns(&self, one: usize, other: usize) -> bool {
        let memory = |device: usize| self.devices[device].shared_memory;
        one == other || memory(one).is_some() && memory(one) == memory(other)
    }

    /// What the objective asks to be least.
    pub(crate) fn objective_ns(&self, layout: &Layout) -> u64 {
        let times = self.times(layout);
        match self.request.objective {
            Objective::Latency | Objective::Spread { .. } => {
                times.ttft_ns.saturating_add(self.answer.saturating_mul(times.token_ns))
            }
            Objective::Throughput => times.round_ns,
        }
    }
}

/// The costs of a request in each case.
pub(crate) struct Cases<'a> {
    fast: Costs<'a>,
    pub(crate) expected: Costs<'a>,
    slow: Costs<'a>,
}

impl<'a> Cases<'a> {
    pub(crate) fn of(request: &'a PlanRequest) -> Self {
        let of = |case| Costs::of(request, case);
        Self { fast: of(Case::Fast), expected: of(Case::Expected), slow: of(Case::Slow) }
    }

    /// The times of a layout with their ranges.
    pub(crate) fn predict(&self, layout: &Layout) -> Prediction {
        let Self { fast, expected: costs, slow } = self;
        let (fast, expected, slow) = (fast.times(layout), costs.times(layout), slow.times(layout));
        let range = |of: fn(&Times) -> u64| {
            let expected = of(&expected);
            // A faster line may take a round trip more until it is filled.
            Range { low: of(&fast).min(expected), expected, high: of(&slow).max(expected) }
        };
        let fetch = costs.fetch(layout);
        Prediction {
            prompt_tokens: costs.prompt() as u32, // at most the workload's
            ttft_ns: range(|t| t.ttft_ns),
            token_ns: range(|t| t.token_ns),
            hop_ns: range(|t| t.hop_ns),
            round_ns: range(|t| t.round_ns),
            streams: costs.request.workload.streams.max(1),
            fetch_bytes: fetch.bytes,
            fetch_ns: fetch.ns,
            is_fetch_estimated: fetch.is_estimated,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bounds of the search count steps of one row, so one of more must never take less.
    #[test]
    fn a_root_of_squares_is_not_below_either_and_grows_with_both() {
        let times = [0, 1, 3, (1 << 26) + 1, (1 << 27) - 1, (1 << 40) + 1, NS_MAX - 1, NS_MAX];
        for a in times {
            assert_eq!((root_of_squares(a, 0), root_of_squares(0, a)), (a, a));
            for pair in times.windows(2) {
                let [less, more] = [pair[0], pair[1]].map(|b| root_of_squares(a, b));
                assert!(a.max(pair[0]) <= less && less <= more, "{a} {pair:?}: {less} {more}");
            }
        }
        assert_eq!((root_of_squares(3, 4), root_of_squares(u64::MAX, 0)), (5, NS_MAX));
    }
}
