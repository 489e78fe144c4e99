//! How fast attention is here:
//! `cargo run --release -p exo-backend-cpu --example attention [ISA [THREADS [SHAPE]]]`.
//!
//! For the heads of two models and two types of cache: the rate at which decode reads keys and values, beside
//! what the fastest read loop reaches at the same moment (the median of five pairs), at several depths; and
//! how many thousand million operations a chunk of 256 rows of a prompt is computed with, beside the peak of
//! the multiply-adds.

#![allow(clippy::print_stdout)] // its output is its purpose

use std::time::Instant;

use exo_backend::{
    Alone, AttentionBatch, Buffer, CancelToken, Device, Element, KvCache, KvShape, Op, Program, Recording,
    RunShape, Stream,
};
use exo_backend_cpu::probe::{BandwidthProbe, Instruction, PageSize, peak};
use exo_backend_cpu::{CpuDevice, CpuOptions, Isa};
use exo_types::{DType, KvDType};

type BoxError = Box<dyn std::error::Error>;

/// The heads of a model.
struct Heads {
    model: &'static str,
    /// H, K, D
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

const SHAPES: [Heads; 2] = [
    Heads { model: "qwen3-0.6b", heads: 16, kv_heads: 8, head_dim: 128 },
    Heads { model: "llama-1b", heads: 32, kv_heads: 8, head_dim: 64 },
];
const DEPTHS: [usize; 3] = [64, 1024, 4096];
/// Where a chunk of a prompt ends.
const ENDS: [usize; 2] = [512, 2048];
/// As the engine cuts prompts and pages.
const CHUNK: usize = 256;
const PAGE_TOKENS: usize = 32;
/// Of the layers that decode reads one after the other: as much as [`BandwidthProbe`] reads.
const CACHE_BYTES: u64 = 256 << 20;

fn main() -> Result<(), BoxError> {
    let mut words = std::env::args().skip(1);
    let isa = words.next().map_or(Ok(Isa::best()), |word| word.parse())?;
    let threads = words.next().map_or(Ok(1), |word| word.parse())?;
    let only = words.next();
    let device =
        CpuDevice::open(CpuOptions { threads: Some(threads), isa: Some(isa), ..CpuOptions::default() })?;
    let memory = BandwidthProbe::new(PageSize::Huge)?;
    let multiply = Instruction::for_weights(isa, DType::F32);
    let multiply = 2.0 * multiply.and_then(|instruction| peak(instruction, threads)).unwrap_or(f64::NAN);
    println!("{}, {threads} threads; decode GB/s (part of the read bandwidth) at {DEPTHS:?}", isa.name());
    println!("prefill GFLOP/s (part of {:.0}) of {CHUNK} rows up to {ENDS:?}", multiply / 1e9);
    for shape in SHAPES.iter().filter(|shape| only.as_ref().is_none_or(|only| shape.model == only)) {
        for dtype in [KvDType::F16, KvDType::Q8] {
            print!("{:10} {:4} decode", shape.model, format!("{dtype:?}"));
            for depth in DEPTHS {
                let (rate, part) = decode(&device, &memory, threads, shape, dtype, depth)?;
                print!("  {:5.2} ({part:4.2})", rate / 1e9);
            }
            print!("  prefill");
            for end in ENDS {
                let rate = prefill(&device, shape, dtype, end)?;
                print!("  {:5.1} ({:4.2})", rate / 1e9, rate / multiply);
            }
            println!();
        }
    }
    Ok(())
}

/// Bytes of keys and values read per second for one row, and that over the read bandwidth.
fn decode(
    device: &CpuDevice,
    memory: &BandwidthProbe,
    threads: usize,
    shape: &Heads,
    dtype: KvDType,
    depth: usize,
) -> Result<(f64, f64), BoxError> {
    let kv = KvShape {
        layers: 1,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
        page_tokens: PAGE_TOKENS,
        pages: depth / PAGE_TOKENS,
        dtype,
    };
    let layer_bytes = kv.page_bytes() * kv.pages as u64;
    let layers = (CACHE_BYTES / layer_bytes) as usize;
    let mut step = Step::new(device, KvShape { layers, ..kv }, shape, depth - 1..depth)?;
    let mut pairs = Vec::new();
    for _ in 0..5 {
        let before = memory.read(threads).bytes_per_s;
        let rate = (layer_bytes * layers as u64) as f64 / step.seconds()?.min(step.seconds()?);
        pairs.push((rate, rate / before.max(memory.read(threads).bytes_per_s)));
    }
    pairs.sort_by(|a, b| a.1.total_cmp(&b.1));
    Ok(pairs[pairs.len() / 2])
}

/// Multiplications and additions per second of a chunk whose last row is before `end`: the best of ten.
fn prefill(device: &CpuDevice, shape: &Heads, dtype: KvDType, end: usize) -> Result<f64, BoxError> {
    let Heads { heads, kv_heads, head_dim, .. } = *shape;
    let kv =
        KvShape { layers: 1, kv_heads, head_dim, page_tokens: PAGE_TOKENS, pages: end / PAGE_TOKENS, dtype };
    let rows = end - CHUNK..end;
    let operations: usize = rows.clone().map(|position| 4 * heads * head_dim * (position + 1)).sum();
    let mut step = Step::new(device, kv, shape, rows)?;
    let mut best = f64::INFINITY;
    for _ in 0..10 {
        best = best.min(step.seconds()?);
    }
    Ok(operations as f64 / best)
}

/// Attention of some rows in every layer of a cache, recorded.
struct Step {
    stream: Box<dyn Stream>,
    program: Box<dyn Program>,
    tokens: usize,
}

impl Step {
    fn new(
        device: &CpuDevice,
        kv_shape: KvShape,
        shape: &Heads,
        rows: std::ops::Range<usize>,
    ) -> Result<Self, BoxError> {
        let kv = device.kv_cache(kv_shape)?;
        let mut stream = device.stream()?;
        let depth = kv_shape.pages * PAGE_TOKENS;
        let table: Vec<u32> = (0..kv_shape.pages as u32).collect();
        let page_table = numbers(device, &mut *stream, &table)?;
        let mut batch = |rows: std::ops::Range<usize>| -> Result<AttentionBatch, BoxError> {
            let positions: Vec<u32> = rows.map(|position| position as u32).collect();
            Ok(AttentionBatch {
                positions: numbers(device, &mut *stream, &positions)?,
                sequences: numbers(device, &mut *stream, &vec![0; positions.len()])?,
                page_table: page_table.clone(),
                pages_per_sequence: kv_shape.pages,
            })
        };
        let (all, some) = (batch(0..depth)?, batch(rows.clone())?);
        fill(device, &mut *stream, &kv, &all)?;
        let (heads, tokens) = (shape.heads, rows.len());
        let q = floats(device, &mut *stream, tokens * heads * shape.head_dim)?;
        let out = device.buffer(Element::F32, tokens * heads * shape.head_dim)?;
        let scale = 1.0 / (shape.head_dim as f32).sqrt();
        let op = |layer| Op::Attention {
            q: q.clone(),
            kv: kv.clone(),
            layer,
            batch: some.clone(),
            out: out.clone(),
            heads,
            scale,
            window: None,
        };
        let program = device.compile(Recording { ops: (0..kv_shape.layers).map(op).collect() })?;
        let mut step = Self { stream, program, tokens };
        step.seconds()?;
        Ok(step)
    }

    /// Runs it once.
    fn seconds(&mut self) -> Result<f64, BoxError> {
        let shape = RunShape { tokens: self.tokens, selected: 0 };
        let start = Instant::now();
        self.stream.run(&*self.program, shape, &Alone, &CancelToken::default())?;
        Ok(start.elapsed().as_secs_f64())
    }
}

/// Writes the same keys and values to every layer.
fn fill(
    device: &CpuDevice,
    stream: &mut dyn Stream,
    kv: &KvCache,
    batch: &AttentionBatch,
) -> Result<(), BoxError> {
    let KvShape { layers, kv_heads, head_dim, pages, .. } = kv.shape;
    let tokens = pages * PAGE_TOKENS;
    let k = floats(device, stream, tokens * kv_heads * head_dim)?;
    let v = floats(device, stream, tokens * kv_heads * head_dim)?;
    let write =
        |layer| Op::KvWrite { kv: kv.clone(), layer, k: k.clone(), v: v.clone(), batch: batch.clone() };
    let program = device.compile(Recording { ops: (0..layers).map(write).collect() })?;
    Ok(stream.run(&*program, RunShape { tokens, selected: 0 }, &Alone, &CancelToken::default())?)
}

fn numbers(device: &CpuDevice, stream: &mut dyn Stream, data: &[u32]) -> Result<Buffer, BoxError> {
    let buffer = device.buffer(Element::U32, data.len())?;
    stream.upload_u32(&buffer, 0, data)?;
    Ok(buffer)
}

/// Between -2 and 2, the same each time.
fn floats(device: &CpuDevice, stream: &mut dyn Stream, len: usize) -> Result<Buffer, BoxError> {
    let buffer = device.buffer(Element::F32, len)?;
    let mut state = len as u32 | 1;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 22) as f32 - 2.0
    };
    let data: Vec<f32> = (0..len).map(|_| next()).collect();
    stream.upload_f32(&buffer, 0, &data)?;
    Ok(buffer)
}
