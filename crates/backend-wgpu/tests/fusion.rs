//! Ops that go together: as few dispatches as promised, and the bits that the ops give one by one.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test file, helpers included

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{adapters, skip};
use exo_backend::{Alone, Buffer, CancelToken, Device, KvCache, KvDType, KvShape, RunShape, Weight};
use exo_backend_wgpu::{WgpuDevice, WgpuOptions};
use exo_formats::{Architecture, ModelConfig, RopeConfig, RopeStyle};
use exo_models::{
    LayerWeights, QkNorm, QkvBias, ShardWeights, StepBuffers, StepLimits, block, record_layers,
};
use exo_types::{DType, DeviceId, LayerRange, Shard, TensorView};

const DEADLINE: Duration = Duration::from_secs(60);
const LAYERS: usize = 2;
const PAGE_TOKENS: usize = 8;
/// What the issue allows for one layer of a decode step.
const DISPATCHES_MAX: usize = 12;

fn config(architecture: Architecture) -> ModelConfig {
    let is_qwen3 = architecture == Architecture::Qwen3;
    // Heads wider together than the hidden state, and not a power of two, as the rows of Qwen 3 may be.
    let head_dim = if is_qwen3 { 80 } else { 64 };
    let style = if architecture == Architecture::Llama { RopeStyle::Interleaved } else { RopeStyle::Halves };
    let frequencies = (0..head_dim / 2).map(|i| 0.9f32.powi(i)).collect();
    ModelConfig {
        architecture,
        layers: 4,
        hidden: 256,
        ffn: 544,
        heads: 4,
        kv_heads: 2,
        head_dim: head_dim as u32,
        vocab: 16,
        context_tokens_max: 64,
        rms_eps: 1e-6,
        rope: RopeConfig { style, frequencies, theta: 1e4 },
        sliding_window: None,
        qk_norm: is_qwen3,
        qkv_bias: architecture == Architecture::Qwen2,
        tied: true,
        bos: None,
        eos: vec![],
    }
}

/// Numbers that are the same on every run.
struct Numbers(u32);

impl Numbers {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.0 >> 8
    }

    fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next() as f32 / (1 << 23) as f32 - 1.0).collect()
    }
}

/// Stored rows whose scales are small numbers and whose quants are anything.
fn matrix(device: &dyn Device, numbers: &mut Numbers, dtype: DType, rows: usize, cols: usize) -> Weight {
    let len = rows * dtype.bytes_of(cols as u64).unwrap() as usize;
    let mut bytes: Vec<u8> = (0..len).map(|_| numbers.next() as u8).collect();
    let (block, scales): (usize, &[usize]) = match dtype {
        DType::Q8_0 => (34, &[0]),
        DType::Q4_K => (144, &[0, 2]),
        DType::Q6_K => (210, &[208]),
        other => panic!("no scales are known of {other}"),
    };
    for block in bytes.chunks_mut(block) {
        for at in scales {
            block[*at..at + 2].copy_from_slice(&half::f16::from_f32(2e-4).to_le_bytes());
        }
    }
    weight(device, dtype, rows, cols, bytes)
}

fn vector(device: &dyn Device, values: &[f32]) -> Weight {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    weight(device, DType::F32, 1, values.len(), bytes)
}

fn weight(device: &dyn Device, dtype: DType, rows: usize, cols: usize, bytes: Vec<u8>) -> Weight {
    let (name, range, source) = ("w".to_owned(), 0..bytes.len(), Arc::new(bytes));
    let tensor = TensorView { name, dtype, rows: rows as u64, cols: cols as u64, range, source };
    device.weight(&tensor).unwrap()
}

/// Random weights of the types that a Q4_K_M file mixes, without embedding and head.
fn weights(device: &dyn Device, config: &ModelConfig) -> ShardWeights {
    let mut numbers = Numbers(7);
    let (c, f, d) = (config.hidden as usize, config.ffn as usize, config.head_dim as usize);
    let (q, kv) = (d * config.heads as usize, d * config.kv_heads as usize);
    let mut matrix = |dtype, rows, cols| matrix(device, &mut numbers, dtype, rows, cols);
    let (q_proj, k_proj) = (matrix(DType::Q4_K, q, c), matrix(DType::Q4_K, kv, c));
    let (v_proj, o_proj) = (matrix(DType::Q6_K, kv, c), matrix(DType::Q8_0, c, q));
    let (gate, up) = (matrix(DType::Q8_0, f, c), matrix(DType::Q4_K, f, c));
    let down = matrix(DType::Q8_0, c, f);
    let mut floats = |len| vector(device, &numbers.floats(len));
    let bias = config.qkv_bias.then(|| QkvBias { q: floats(q), k: floats(kv), v: floats(kv) });
    let norm = config.qk_norm.then(|| QkNorm { q: floats(d), k: floats(d) });
    let layer = LayerWeights {
        attn_norm: floats(c),
        q: q_proj,
        k: k_proj,
        v: v_proj,
        qkv_bias: bias,
        qk_norm: norm,
        o: o_proj,
        ffn_norm: floats(c),
        gate,
        up,
        down,
    };
    ShardWeights {
        layers: vec![layer; LAYERS],
        embedding: None,
        head: None,
        rope_frequencies: vector(device, &config.rope.frequencies),
    }
}

/// Dispatches of a layer, and the bits of every buffer and page after two steps.
fn steps(
    device: &WgpuDevice,
    architecture: Architecture,
    dtype: KvDType,
    tokens: usize,
) -> (usize, Vec<u32>) {
    let config = config(architecture);
    let weights = weights(device, &config);
    let limits = StepLimits { tokens, sequences: 2, selected: 1, pages_per_sequence: 2 };
    // A stage in the middle: neither embedding nor head.
    let shard = Shard::pipeline(LayerRange::new(1, 1 + LAYERS as u32), config.layers);
    let buffers = StepBuffers::allocate(device, &config, &shard, limits).unwrap();
    let shape = KvShape {
        layers: LAYERS,
        kv_heads: config.kv_heads as usize,
        head_dim: config.head_dim as usize,
        page_tokens: PAGE_TOKENS,
        pages: 4,
        dtype,
    };
    let kv = device.kv_cache(shape).unwrap();
    let block = block(&config).unwrap();
    let recording = record_layers(&config, &block, &shard, &weights, &buffers, &kv, &Alone);
    let program = device.compile(recording).unwrap();
    let mut stream = device.stream().unwrap();
    let shape = RunShape { tokens, selected: 0 };
    stream.upload_f32(&buffers.hidden, 0, &Numbers(3).floats(tokens * config.hidden as usize)).unwrap();
    stream.upload_u32(&buffers.batch.page_table, 0, &[2, 0, 3, 1]).unwrap();
    let places = |first: usize| (0..tokens).map(move |t| ((t / 2 + first) as u32, t as u32 % 2));
    for first in [0, 3] {
        let (positions, sequences): (Vec<_>, Vec<_>) = places(first).unzip();
        stream.upload_u32(&buffers.batch.positions, 0, &positions).unwrap();
        stream.upload_u32(&buffers.batch.sequences, 0, &sequences).unwrap();
        stream.run(&*program, shape, &Alone, &CancelToken::default()).unwrap();
    }
    let bits = contents(&mut *stream, &buffers, &kv);
    (device.dispatches(&*program, shape) / LAYERS, bits)
}

fn contents(stream: &mut dyn exo_backend::Stream, b: &StepBuffers, kv: &KvCache) -> Vec<u32> {
    let mut all = Vec::new();
    let work: [&Buffer; 9] = [&b.hidden, &b.normed, &b.q, &b.k, &b.v, &b.gathered, &b.delta, &b.gate, &b.up];
    for buffer in work {
        let mut values = vec![0.0; buffer.len];
        stream.download_f32(buffer, 0, &mut values, DEADLINE).unwrap();
        assert!(values.iter().all(|value| value.is_finite()) && values.iter().any(|value| *value != 0.0));
        all.extend(values);
    }
    for (layer, page) in (0..LAYERS).flat_map(|layer| (0..kv.shape.pages).map(move |page| (layer, page))) {
        all.extend(stream.export_kv(kv, layer, page).unwrap());
    }
    all.into_iter().map(f32::to_bits).collect()
}

const ARCHITECTURES: [Architecture; 3] = [Architecture::Llama, Architecture::Qwen2, Architecture::Qwen3];

#[test]
fn a_layer_of_a_decode_step_takes_few_dispatches_and_gives_the_bits_of_its_ops() {
    let test = "a_layer_of_a_decode_step_takes_few_dispatches_and_gives_the_bits_of_its_ops";
    for adapter in adapters(test) {
        for without_subgroups in [false, true] {
            let open = |without_fusion| {
                let memory_limit_bytes = Some(64 << 20);
                let options = WgpuOptions {
                    memory_limit_bytes,
                    without_subgroups,
                    without_fusion,
                    ..WgpuOptions::default()
                };
                WgpuDevice::open(&adapter, DeviceId("test".to_owned()), &options).unwrap()
            };
            let (fused, plain) = (open(false), open(true));
            if !(without_subgroups || fused.has_subgroups()) {
                skip(&format!("{test}: {} has no subgroups of eight threads", adapter.name));
                continue;
            }
            for architecture in ARCHITECTURES {
                // One row, a few, as many as the kernel for few rows takes, and more.
                for (tokens, dtype) in
                    [(1, KvDType::F16), (3, KvDType::Q8), (8, KvDType::F32), (20, KvDType::F16)]
                {
                    let what = format!("{architecture}, {tokens} rows, cache of {dtype}");
                    let (ours, bits) = steps(&fused, architecture, dtype, tokens);
                    let (theirs, expected) = steps(&plain, architecture, dtype, tokens);
                    assert_eq!(bits.len(), expected.len());
                    let differs = bits.iter().zip(&expected).position(|(a, b)| a != b);
                    assert_eq!(differs, None, "{what}");
                    println!("{what}: {ours} dispatches a layer, {theirs} of single ops");
                    assert!(tokens > 8 || ours <= DISPATCHES_MAX, "{what}: {ours} dispatches a layer");
                    assert!(ours < theirs, "{what}");
                }
            }
        }
    }
}
