//! What a layer takes beside reading its weights and multiplying with them, and what a prefill chunk waits
//! for these.
//!
//! The pieces are short, and a quota or another program stops a device for longer than they take. So each is
//! run several times beside a product whose sustained rate is known from a longer window, medians are taken,
//! and what that product loses between its median and its mean the pieces lose, too. What every run costs
//! goes with the differences.

use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_backend::{
    AttentionBatch, Buffer, Device, Element, KvShape, Op, Program, Recording, RopeStyle, Rows, Stream, Weight,
};
use exo_types::{DType, KvDType, KvRates, LayerRates, TensorView};

use super::kv::{HEAD_DIM, KvBench, PAGE_TOKENS};
use super::{Bench, CalibrationError, Chunk, DEADLINE, Evictor, matrix, seconds};
use crate::sustained::{Passes, median};

/// C: the hidden state.
const HIDDEN: usize = 1024;
/// F: the feed-forward.
const FFN: usize = 3072;
/// Tokens before the chunk that attention is measured with.
const CONTEXT: usize = 512;
/// Layers of the program that a chunk passes; that for one row has layers of its own.
const LAYERS: usize = 3;
/// Outputs of the products of one row that have a whole row of inputs, and inputs of those that have one of
/// outputs: what starting a product takes is most of them, and the rest is taken off.
const PRODUCT_ROWS: usize = 16;
const PRODUCT_COLS: usize = 32;
/// Queries, keys, values, gate and up; what comes of attention and of the feed-forward.
const PRODUCTS: [usize; 2] = [5, 2];
/// Matrices that a chunk meets as a step does: not in a cache.
const COLD_MATRICES: u64 = 2;
/// Of the pieces of a chunk; fewer where they take longer than [`PIECES_MAX`]: a start waits for them.
const ROUNDS: usize = 3;
const PIECES_MAX: Duration = Duration::from_millis(60);
/// Of what is met cold: the rest of its window belongs to the passes.
const COLD_ROUNDS: usize = 5;
/// Of the layers of one row: one takes 30 µs on a processor and some ten launches on a card. What takes so
/// much longer is a software adapter, and would need half a minute for the rest.
const ONE_MAX: Duration = Duration::from_millis(5);

/// Layers of one row, layers of a chunk without their products, matrices for a chunk, and attention of one
/// row behind many.
pub(super) struct LayerBench {
    stream: Box<dyn Stream>,
    positions: Buffer,
    one: Box<dyn Program>,
    nothing: Box<dyn Program>,
    all: Box<dyn Program>,
    cold: Bench,
    /// Where the device has the memory and the kernels.
    kv: Option<KvBench>,
    chunk: Chunk,
    /// Layers of one row, a run that does nothing, and a chunk with cold matrices.
    cold_s: [Vec<f64>; 3],
    /// A chunk of few rows with these, where the device is measured with one.
    cold_few_s: Vec<f64>,
}

impl LayerBench {
    /// `None` on a device that takes too long for layers of one row.
    pub(super) fn new(device: &dyn Device, chunk: Chunk) -> Result<Option<Self>, CalibrationError> {
        let mut stream = device.stream()?;
        let operands = Operands::new(device, &mut *stream, chunk)?;
        let mut ops = Vec::new();
        for layer in 0..chunk.layers_of_one_row {
            ops.extend(operands.layer_with_products(device, layer)?);
        }
        let one = device.compile(Recording { ops })?;
        // The first run may compile kernels, and another program may stop any one of the others.
        seconds(&mut *stream, &*one, 1)?;
        let mut is_too_slow = true;
        for _ in 0..ROUNDS {
            is_too_slow = is_too_slow && seconds(&mut *stream, &*one, 1)? > ONE_MAX.as_secs_f64();
        }
        if is_too_slow {
            return Ok(None);
        }
        let mut ops = Vec::new();
        for layer in chunk.layers_of_one_row..chunk.layers_of_one_row + LAYERS {
            ops.extend(operands.layer(device, layer)?.into_iter().flatten());
        }
        let all = device.compile(Recording { ops })?;
        let nothing = device.compile(Recording { ops: vec![Op::LayerBoundary { layer: 0 }] })?;
        let matrix_bytes = super::row_bytes(DType::Q8_0) * chunk.rows as u64;
        let cold = Bench::new(device, DType::Q8_0, chunk.rows, chunk.tokens, COLD_MATRICES * matrix_bytes)?;
        let unmeasured =
            |error: &CalibrationError| tracing::info!(%error, "reading keys and values is not measured");
        let kv = KvBench::new(device, chunk).inspect_err(unmeasured).ok();
        let positions = operands.batch.positions;
        let (cold_s, cold_few_s) = Default::default();
        Ok(Some(Self { stream, positions, one, nothing, all, cold, kv, chunk, cold_s, cold_few_s }))
    }

    /// Runs what a step meets cold, unless it has been often enough, and says whether it did; to be called
    /// after all weights of a step have been read. A layer's ops find neither their code nor what they read
    /// in the nearest caches, as behind each of its products.
    pub(super) fn cold(&mut self, evictor: &mut Evictor<'_>) -> Result<bool, CalibrationError> {
        let few = self.chunk.tokens_few.filter(|_| self.cold_few_s.len() < self.cold_s[2].len());
        if few.is_none() && self.cold_s[2].len() >= COLD_ROUNDS {
            return Ok(false);
        }
        self.at(0, 1)?;
        let one_s = seconds(&mut *self.stream, &*self.one, 1)?;
        evictor.evict(&self.cold)?;
        let start = Instant::now();
        self.cold.rows(&mut *self.stream, few.unwrap_or(self.chunk.tokens))?;
        let chunk_s = start.elapsed().as_secs_f64();
        let nothing_s = seconds(&mut *self.stream, &*self.nothing, 1)?;
        if let Some(kv) = &mut self.kv {
            kv.cold(evictor)?;
        }
        let [ones, nothings, chunks] = &mut self.cold_s;
        ones.push(one_s);
        nothings.push(nothing_s);
        if few.is_some() { &mut self.cold_few_s } else { chunks }.push(chunk_s);
        Ok(true)
    }

    /// What every run costs.
    pub(super) fn nothing_s(&self) -> f64 {
        median(self.cold_s[1].clone())
    }

    /// The rates, beside a step's weights with the sustained rate that they were read at, and a chunk's
    /// product with a matrix that a cache holds.
    pub(super) fn rates(
        mut self,
        (decode, read_bytes_per_s): (Passes, f64),
        prefill: &Bench,
        sustained: Passes,
    ) -> Result<LayerRates, CalibrationError> {
        let [mut products, mut first, mut short, mut long] = [const { Vec::new() }; 4];
        let (began, tokens) = (Instant::now(), self.chunk.tokens);
        for round in 0..ROUNDS {
            if round > 0 && began.elapsed() > PIECES_MAX {
                break;
            }
            let start = Instant::now();
            prefill.once(&mut *self.stream)?;
            products.push(start.elapsed().as_secs_f64());
            for (context, tokens, seconds_of) in
                [(0, 1, &mut first), (0, tokens, &mut short), (CONTEXT, tokens, &mut long)]
            {
                self.at(context, tokens)?;
                seconds_of.push(seconds(&mut *self.stream, &*self.all, tokens)?);
            }
        }
        let [one_s, nothing_s, chunk_s] = self.cold_s.map(median);
        let matrices = self.cold.weight_bytes as f64 / prefill.weight_bytes as f64;
        let cold_s = |run_s: f64| (run_s - nothing_s) / matrices;
        let decode_loss = decode.mean_s / decode.median_s;
        Ok(Pieces {
            chunk: self.chunk,
            one_s,
            nothing_s,
            products_s: product_bytes() / (read_bytes_per_s * decode_loss),
            chunk_cold_s: cold_s(chunk_s),
            few_cold_s: self.chunk.tokens_few.map(|few| (few, cold_s(median(self.cold_few_s)))),
            chunk_warm_s: sustained.median_s - nothing_s,
            first_s: median(first),
            short_s: median(short),
            long_s: median(long),
            matrix_bytes: prefill.weight_bytes as f64,
            kv: self.kv.map(|kv| kv.rates(decode_loss)),
            decode_loss,
            prefill_loss: sustained.mean_s / median(products),
        }
        .rates())
    }

    /// Puts the rows behind so many tokens.
    fn at(&mut self, context: usize, rows: usize) -> Result<(), CalibrationError> {
        let positions: Vec<u32> = (context..context + rows).map(|position| position as u32).collect();
        self.stream.upload_u32(&self.positions, 0, &positions)?;
        Ok(self.stream.synchronize(DEADLINE)?)
    }
}

/// What was measured, in seconds.
struct Pieces {
    chunk: Chunk,
    /// Layers of one row with small products, and what these take in a layer beside their starts.
    one_s: f64,
    products_s: f64,
    nothing_s: f64,
    chunk_cold_s: f64,
    /// With how many rows, and what they take.
    few_cold_s: Option<(usize, f64)>,
    chunk_warm_s: f64,
    /// Layers without products: the first row of a chunk, all of it, all of it behind others.
    first_s: f64,
    short_s: f64,
    long_s: f64,
    matrix_bytes: f64,
    kv: Option<KvRates>,
    /// Of a sustained pass, in passes.
    decode_loss: f64,
    prefill_loss: f64,
}

impl Pieces {
    /// A difference that noise has made too small, or negative, counts as a small part of the whole.
    fn rates(&self) -> LayerRates {
        let beyond = |all: f64, less: f64, part: f64| (all - less).max(all * part);
        let layers = LAYERS as f64;
        let Chunk { tokens, heads, kv_heads, .. } = self.chunk;
        let operations_of_a_pair = (4 * heads * HEAD_DIM) as f64;
        // Outputs of a layer's products, each of as many inputs as a hidden state has.
        let activations = (2 * heads * HEAD_DIM + 2 * kv_heads * HEAD_DIM + 3 * FFN) as f64;
        let attention_s = beyond(self.long_s, self.short_s, 0.05);
        let pairs = layers * (tokens * CONTEXT) as f64;
        let pair_s = attention_s / pairs;
        // Row `t` of a chunk without a context has `t + 1` positions.
        let pairs_behind_first = layers * (tokens * (tokens + 1) / 2 - 1) as f64;
        let ones = self.chunk.layers_of_one_row as f64;
        let layer_s = beyond(self.one_s, self.nothing_s + ones * self.products_s, 0.1) / ones;
        let others_s = beyond(self.short_s, self.first_s + pairs_behind_first * pair_s, 0.05);
        let row_s = others_s / (layers * (tokens - 1) as f64);
        let waits_s = match self.few_cold_s {
            Some((few, few_s)) if few_s > 0.0 => self.chunk.row_and_fixed_s(self.chunk_cold_s, few, few_s).1,
            _ => self.chunk_cold_s - self.chunk_warm_s,
        };
        let waits_s = waits_s.max(self.chunk_cold_s * 0.01);
        LayerRates {
            prefill_read_bytes_per_s: self.matrix_bytes / (waits_s * self.prefill_loss),
            attention_flops_per_s: operations_of_a_pair / (pair_s * self.prefill_loss),
            activations_per_s: activations / (row_s * self.prefill_loss),
            layer_s: layer_s * self.decode_loss,
            kv_read_bytes_per_s: self.kv,
            read_16_rows_bytes_per_s: None, // measured with what decode is
        }
    }
}

/// Of the weights of a layer of one row.
fn product_bytes() -> f64 {
    let [of_whole_rows, of_few_cols] = PRODUCTS;
    let elements = of_whole_rows * PRODUCT_ROWS * HIDDEN + of_few_cols * HIDDEN * PRODUCT_COLS;
    elements as f64 * DType::Q8_0.block_bytes() as f64 / DType::Q8_0.block_elements() as f64
}

/// What the ops work on: the buffers of a step, and a cache with a layer for each of theirs.
struct Operands {
    hidden: Buffer,
    normed: Buffer,
    q: Buffer,
    k: Buffer,
    v: Buffer,
    gathered: Buffer,
    delta: Buffer,
    gate: Buffer,
    up: Buffer,
    kv: exo_backend::KvCache,
    batch: AttentionBatch,
    chunk: Chunk,
}

impl Operands {
    fn new(device: &dyn Device, stream: &mut dyn Stream, chunk: Chunk) -> Result<Self, CalibrationError> {
        let Chunk { tokens, heads, kv_heads, .. } = chunk;
        let pages = (CONTEXT + tokens).div_ceil(PAGE_TOKENS);
        let kv = device.kv_cache(KvShape {
            layers: chunk.layers_of_one_row + LAYERS,
            kv_heads,
            head_dim: HEAD_DIM,
            page_tokens: PAGE_TOKENS,
            pages,
            dtype: KvDType::F16,
        })?;
        for page in 0..pages {
            stream.clear_kv(&kv, page)?;
        }
        let page_table = device.buffer(Element::U32, pages)?;
        let numbers: Vec<u32> = (0..pages as u32).collect();
        stream.upload_u32(&page_table, 0, &numbers)?;
        let batch = AttentionBatch {
            positions: device.buffer(Element::U32, tokens)?,
            sequences: device.buffer(Element::U32, tokens)?, // all are of the first
            page_table,
            pages_per_sequence: pages,
        };
        let mut rows = |width: usize| -> Result<Buffer, CalibrationError> {
            let buffer = device.buffer(Element::F32, tokens * width)?;
            let ramp: Vec<f32> = (0..buffer.len).map(|i| ((i % 17) as f32 - 8.0) / 8.0).collect();
            stream.upload_f32(&buffer, 0, &ramp)?;
            Ok(buffer)
        };
        let (query, key) = (heads * HEAD_DIM, kv_heads * HEAD_DIM);
        let operands = Self {
            hidden: rows(HIDDEN)?,
            normed: rows(HIDDEN)?,
            q: rows(query)?,
            k: rows(key)?,
            v: rows(key)?,
            gathered: rows(query)?,
            delta: rows(HIDDEN)?,
            gate: rows(FFN)?,
            up: rows(FFN)?,
            kv,
            batch,
            chunk,
        };
        stream.synchronize(DEADLINE)?;
        Ok(operands)
    }

    /// A decoder's layer as `exo-models` records it, with products of few weights.
    fn layer_with_products(&self, device: &dyn Device, layer: usize) -> Result<Vec<Op>, CalibrationError> {
        let Self { normed, q, k, v, gathered, delta, gate, up, .. } = self;
        let (few_rows, few_cols) =
            (weight(device, PRODUCT_ROWS, HIDDEN)?, weight(device, HIDDEN, PRODUCT_COLS)?);
        let product = |weight: &Weight, x: &Buffer, out: &Buffer| Op::MatMul {
            weight: weight.clone(),
            bias: None,
            x: x.clone(),
            out: out.clone(),
            rows: Rows::Tokens,
        };
        let [norm, attention, middle, end] = self.layer(device, layer)?;
        let qkv = [q, k, v].map(|out| product(&few_rows, normed, out));
        let gate_and_up = [gate, up].map(|out| product(&few_rows, normed, out));
        let o = product(&few_cols, gathered, delta);
        let (swiglu, add) = end.split_at(1);
        let (before, behind) = (norm.into_iter().chain(qkv).chain(attention), middle.into_iter());
        let feed_forward = gate_and_up.into_iter().chain(swiglu.to_vec());
        let down = [product(&few_cols, gate, delta)].into_iter().chain(add.to_vec());
        Ok(before.chain([o]).chain(behind).chain(feed_forward).chain(down).collect())
    }

    /// A decoder's layer without products: its ops in front of the first ones, up to o's, up to the
    /// feed-forward's, and the rest.
    fn layer(&self, device: &dyn Device, layer: usize) -> Result<[Vec<Op>; 4], CalibrationError> {
        let Self { hidden, normed, q, k, v, gathered, delta, gate, up, kv, batch, chunk } = self;
        let Chunk { heads: query_heads, kv_heads, .. } = *chunk;
        let (wide, narrow) = (vector(device, HIDDEN)?, vector(device, HEAD_DIM)?);
        let frequencies = vector(device, HEAD_DIM / 2)?;
        let norm = |x: &Buffer, weight: &Weight, out: &Buffer, groups: usize| Op::RmsNorm {
            x: x.clone(),
            weight: weight.clone(),
            out: out.clone(),
            eps: 1e-6,
            groups,
            rows: Rows::Tokens,
        };
        let rope = |x: &Buffer, heads: usize| Op::Rope {
            x: x.clone(),
            positions: batch.positions.clone(),
            frequencies: frequencies.clone(),
            heads,
            head_dim: HEAD_DIM,
            style: RopeStyle::Halves,
        };
        let add = || Op::Add { x: hidden.clone(), y: delta.clone(), width: HIDDEN };
        let (kv, batch) = (kv.clone(), batch.clone());
        let attention = Op::Attention {
            q: q.clone(),
            kv: kv.clone(),
            layer,
            batch: batch.clone(),
            out: gathered.clone(),
            heads: query_heads,
            scale: 0.1,
            window: None,
        };
        Ok([
            vec![norm(hidden, &wide, normed, 1)],
            vec![
                norm(q, &narrow, q, query_heads),
                norm(k, &narrow, k, kv_heads),
                rope(q, query_heads),
                rope(k, kv_heads),
                Op::KvWrite { kv, layer, k: k.clone(), v: v.clone(), batch },
                attention,
            ],
            vec![add(), norm(hidden, &wide, normed, 1)],
            vec![Op::SwiGlu { gate: gate.clone(), up: up.clone(), out: gate.clone(), width: FFN }, add()],
        ])
    }
}

fn vector(device: &dyn Device, len: usize) -> Result<Weight, CalibrationError> {
    tensor(device, DType::F32, 1, len)
}

fn weight(device: &dyn Device, rows: usize, cols: usize) -> Result<Weight, CalibrationError> {
    tensor(device, DType::Q8_0, rows, cols)
}

fn tensor(device: &dyn Device, dtype: DType, rows: usize, cols: usize) -> Result<Weight, CalibrationError> {
    let row_bytes = cols as u64 / dtype.block_elements() * dtype.block_bytes();
    let bytes = matrix(rows * row_bytes as usize);
    Ok(device.weight(&TensorView {
        name: "calibration".to_owned(),
        dtype,
        rows: rows as u64,
        cols: cols as u64,
        range: 0..bytes.len(),
        source: Arc::new(bytes),
    })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: Chunk =
        Chunk { tokens: 48, tokens_few: None, rows: 1024, heads: 6, kv_heads: 2, layers_of_one_row: 1 };

    /// Of a device that does 1e9 of everything in a second, and loses a fifth of it to others.
    fn pieces() -> Pieces {
        let (layers, pair_s) = (LAYERS as f64, (4 * CHUNK.heads * HEAD_DIM) as f64 / 1e9);
        let activations = 2 * CHUNK.heads * HEAD_DIM + 2 * CHUNK.kv_heads * HEAD_DIM + 3 * FFN;
        let (row_s, tokens) = (activations as f64 / 1e9, CHUNK.tokens);
        // Starts of products are in the one, and not in the other.
        let (nothing_s, layer_s, bare_layer_s, products_s) = (50e-6, 20e-6, 3e-6, 10e-6);
        let pairs_s = (tokens * (tokens + 1) / 2) as f64 * pair_s;
        let short_s = nothing_s + layers * (bare_layer_s + (tokens - 1) as f64 * row_s + pairs_s);
        Pieces {
            chunk: CHUNK,
            one_s: nothing_s + layer_s + products_s,
            products_s,
            nothing_s,
            first_s: nothing_s + layers * (bare_layer_s + pair_s),
            chunk_warm_s: 2e-3,
            chunk_cold_s: 2e-3 + 4e6 / 1e9,
            few_cold_s: None,
            short_s,
            long_s: short_s + layers * (tokens * CONTEXT) as f64 * pair_s,
            matrix_bytes: 4e6,
            kv: Some(KvRates { f32: 1e9, f16: 1e9, q8: 1e9 }),
            decode_loss: 1.25,
            prefill_loss: 1.25,
        }
    }

    #[test]
    fn what_every_run_costs_is_in_no_rate_and_what_others_take_is_in_all() {
        let LayerRates {
            prefill_read_bytes_per_s, attention_flops_per_s, activations_per_s, layer_s, ..
        } = pieces().rates();
        for rate in [prefill_read_bytes_per_s, attention_flops_per_s, activations_per_s] {
            assert!((rate / 0.8e9 - 1.0).abs() < 1e-6, "{rate}");
        }
        assert!((layer_s / 25e-6 - 1.0).abs() < 1e-6, "{layer_s}");
    }

    /// Of a card, whose chunks of few rows take more than their part, and whose runs have several layers.
    #[test]
    fn few_rows_say_what_a_chunk_waits_and_layers_share_what_a_run_costs() {
        let Pieces { one_s, nothing_s, products_s, .. } = pieces();
        let chunk = Chunk { tokens_few: Some(8), layers_of_one_row: 8, ..CHUNK };
        let seconds = |tokens: usize| 4e6 / 1e9 + 1e-4 * tokens as f64;
        let rates = Pieces {
            chunk,
            one_s: nothing_s + 8.0 * (one_s - nothing_s),
            products_s,
            chunk_cold_s: seconds(48),
            few_cold_s: Some((8, seconds(8))),
            ..pieces()
        }
        .rates();
        assert!((rates.prefill_read_bytes_per_s / 0.8e9 - 1.0).abs() < 1e-6, "{rates:?}");
        assert!((rates.layer_s / 25e-6 - 1.0).abs() < 1e-6, "{rates:?}");
    }

    #[test]
    fn what_noise_turns_around_is_still_a_rate() {
        let Pieces { one_s, nothing_s, chunk_warm_s, chunk_cold_s, short_s, long_s, .. } = pieces();
        let upside_down = Pieces {
            one_s: nothing_s,
            nothing_s: one_s,
            chunk_warm_s: chunk_cold_s,
            chunk_cold_s: chunk_warm_s,
            short_s: long_s,
            long_s: short_s,
            ..pieces()
        };
        assert!(upside_down.rates().is_plausible(), "{:?}", upside_down.rates());
    }
}
