//! What the layers of a step take beside products:
//! `cargo run --release -p exo-backend-cpu --example layer`.
//!
//! The ops of 28 layers of Qwen3-0.6B, one kind after another, one thread: milliseconds for so many rows,
//! each of a sequence of its own, about a hundred tokens deep, keys and values in F16. The best of fifteen.

#![allow(clippy::print_stdout)] // its output is its purpose

use std::sync::Arc;
use std::time::Instant;

use exo_backend::{
    Alone, AttentionBatch, Buffer, CancelToken, Device, Element, KvCache, KvDType, KvShape, Op, Recording,
    RopeStyle, Rows, RunShape, Stream, Weight,
};
use exo_backend_cpu::{CpuDevice, CpuOptions};
use exo_types::{DType, TensorView};

type BoxError = Box<dyn std::error::Error>;
/// The ops of one kind in a layer.
type Kind = fn(&Operands, usize) -> Vec<Op>;

const ROWS: [usize; 4] = [1, 16, 32, 512];
const LAYERS: usize = 28;
const HIDDEN: usize = 1024;
const FEED_FORWARD: usize = 3072;
const HEADS: usize = 16;
const KV_HEADS: usize = 8;
const HEAD_DIM: usize = 128;
const PAGE_TOKENS: usize = 32;
/// Of each sequence, so that it has room for its row.
const PAGES: usize = 5;
const DEPTH: usize = 100;

fn main() -> Result<(), BoxError> {
    let device = CpuDevice::open(CpuOptions { threads: Some(1), ..CpuOptions::default() })?;
    let mut stream = device.stream()?;
    for tokens in ROWS {
        print!("{tokens:3} rows, ms:");
        let operands = Operands::new(&device, &mut *stream, tokens)?;
        let kinds: [(&str, Kind); 6] = [
            ("norms", Operands::norms),
            ("rotations", Operands::rotations),
            ("KV write", Operands::kv_write),
            ("attention", Operands::attention),
            ("SwiGLU", Operands::swiglu),
            ("sums", Operands::sums),
        ];
        for (name, ops) in kinds {
            let ops = (0..LAYERS).flat_map(|layer| ops(&operands, layer)).collect();
            let program = device.compile(Recording { ops })?;
            let mut best = f64::INFINITY;
            for _ in 0..15 {
                let began = Instant::now();
                stream.run(&*program, RunShape { tokens, selected: 0 }, &Alone, &CancelToken::default())?;
                best = best.min(began.elapsed().as_secs_f64());
            }
            print!("  {name} {:.2}", best * 1e3);
        }
        println!();
    }
    Ok(())
}

/// Of all ops, for so many rows.
struct Operands {
    kv: KvCache,
    batch: AttentionBatch,
    hidden: Buffer,
    more: Buffer,
    q: Buffer,
    k: Buffer,
    v: Buffer,
    out: Buffer,
    gate: Buffer,
    up: Buffer,
    norm: Weight,
    head_norm: Weight,
    frequencies: Weight,
}

impl Operands {
    fn new(device: &CpuDevice, stream: &mut dyn Stream, tokens: usize) -> Result<Self, BoxError> {
        let shape = KvShape {
            layers: LAYERS,
            kv_heads: KV_HEADS,
            head_dim: HEAD_DIM,
            page_tokens: PAGE_TOKENS,
            pages: tokens * PAGES,
            dtype: KvDType::F16,
        };
        let mut numbers = |data: Vec<u32>| -> Result<Buffer, BoxError> {
            let buffer = device.buffer(Element::U32, data.len())?;
            stream.upload_u32(&buffer, 0, &data)?;
            Ok(buffer)
        };
        let batch = AttentionBatch {
            positions: numbers((0..tokens).map(|t| (DEPTH + t % 8) as u32).collect())?,
            sequences: numbers((0..tokens as u32).collect())?,
            page_table: numbers((0..(tokens * PAGES) as u32).collect())?,
            pages_per_sequence: PAGES,
        };
        let mut floats = |width: usize| -> Result<Buffer, BoxError> {
            let buffer = device.buffer(Element::F32, tokens * width)?;
            let data: Vec<f32> = (0..buffer.len).map(|i| (i * 7919 % 255) as f32 / 127.0 - 1.0).collect();
            stream.upload_f32(&buffer, 0, &data)?;
            Ok(buffer)
        };
        Ok(Self {
            kv: device.kv_cache(shape)?,
            batch,
            hidden: floats(HIDDEN)?,
            more: floats(HIDDEN)?,
            q: floats(HEADS * HEAD_DIM)?,
            k: floats(KV_HEADS * HEAD_DIM)?,
            v: floats(KV_HEADS * HEAD_DIM)?,
            out: floats(HEADS * HEAD_DIM)?,
            gate: floats(FEED_FORWARD)?,
            up: floats(FEED_FORWARD)?,
            norm: vector(device, HIDDEN)?,
            head_norm: vector(device, HEAD_DIM)?,
            frequencies: vector(device, HEAD_DIM / 2)?,
        })
    }

    fn norms(&self, _layer: usize) -> Vec<Op> {
        let norm = |x: &Buffer, weight: &Weight, groups| Op::RmsNorm {
            x: x.clone(),
            weight: weight.clone(),
            out: x.clone(),
            eps: 1e-6,
            groups,
            rows: Rows::Tokens,
        };
        let layer = norm(&self.hidden, &self.norm, 1);
        let heads = [(&self.q, HEADS), (&self.k, KV_HEADS)].map(|(x, heads)| norm(x, &self.head_norm, heads));
        [layer.clone(), layer].into_iter().chain(heads).collect()
    }

    fn rotations(&self, _layer: usize) -> Vec<Op> {
        let rope = |(x, heads): (&Buffer, usize)| Op::Rope {
            x: x.clone(),
            positions: self.batch.positions.clone(),
            frequencies: self.frequencies.clone(),
            heads,
            head_dim: HEAD_DIM,
            style: RopeStyle::Halves,
        };
        [(&self.q, HEADS), (&self.k, KV_HEADS)].map(rope).into()
    }

    fn kv_write(&self, layer: usize) -> Vec<Op> {
        let (kv, k, v) = (self.kv.clone(), self.k.clone(), self.v.clone());
        vec![Op::KvWrite { kv, layer, k, v, batch: self.batch.clone() }]
    }

    fn attention(&self, layer: usize) -> Vec<Op> {
        let (q, kv, out, batch) = (self.q.clone(), self.kv.clone(), self.out.clone(), self.batch.clone());
        let scale = 1.0 / (HEAD_DIM as f32).sqrt();
        vec![Op::Attention { q, kv, layer, batch, out, heads: HEADS, scale, window: None }]
    }

    fn swiglu(&self, _layer: usize) -> Vec<Op> {
        let (gate, up, out) = (self.gate.clone(), self.up.clone(), self.gate.clone());
        vec![Op::SwiGlu { gate, up, out, width: FEED_FORWARD }]
    }

    fn sums(&self, _layer: usize) -> Vec<Op> {
        vec![Op::Add { x: self.hidden.clone(), y: self.more.clone(), width: HIDDEN }; 2]
    }
}

/// A norm's weights, or frequencies: from 1 down.
fn vector(device: &CpuDevice, len: usize) -> Result<Weight, BoxError> {
    let source: Vec<u8> = (0..len).flat_map(|i| (1.0 / (1.0 + i as f32)).to_le_bytes()).collect();
    let (name, range) = ("v".to_owned(), 0..source.len());
    let (rows, cols, source) = (1, len as u64, Arc::new(source));
    Ok(device.weight(&TensorView { name, dtype: DType::F32, rows, cols, range, source })?)
}
