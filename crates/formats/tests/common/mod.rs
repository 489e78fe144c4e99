//! A small valid model, written by our own writer, for tests here and in `store`.
#![allow(dead_code, clippy::unwrap_used)] // each test binary uses its part; helpers of tests may unwrap

use exo_formats::write::GgufWriter;
use exo_types::DType;

/// Numbers of the sample model.
pub const LAYERS: u32 = 3;
pub const HIDDEN: u64 = 64;
pub const FFN: u64 = 96;
pub const VOCAB: u64 = 80;
pub const HEADS: u64 = 4;
pub const KV_HEADS: u64 = 2;
pub const HEAD_DIM: u64 = 16;

/// Bytes that differ from tensor to tensor and from place to place.
pub fn bytes(seed: u64, len: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Metadata of a Llama model with a small byte-level tokenizer.
pub fn metadata(w: &mut GgufWriter<'_>, arch: &str) {
    let key = |name: &str| format!("{arch}.{name}");
    w.text("general.architecture", arch).text("general.name", "sample");
    w.u32(&key("block_count"), LAYERS).u32(&key("context_length"), 128);
    w.u32(&key("embedding_length"), HIDDEN as u32).u32(&key("feed_forward_length"), FFN as u32);
    w.u32(&key("attention.head_count"), HEADS as u32).u32(&key("attention.head_count_kv"), KV_HEADS as u32);
    w.f32(&key("attention.layer_norm_rms_epsilon"), 1e-5).f32(&key("rope.freq_base"), 10000.0);
    let tokens: Vec<String> = (0..VOCAB)
        .map(|i| {
            if i == 78 {
                "<|begin_of_text|>".into()
            } else if i == 79 {
                "<|eot_id|>".into()
            } else {
                format!("t{i}")
            }
        })
        .collect();
    let kinds: Vec<i32> = (0..VOCAB).map(|i| if i >= 78 { 3 } else { 1 }).collect();
    w.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "llama-bpe");
    w.texts("tokenizer.ggml.tokens", &tokens).i32s("tokenizer.ggml.token_type", &kinds);
    w.texts("tokenizer.ggml.merges", &["t 1", "t 2"]);
    w.u32("tokenizer.ggml.bos_token_id", 78).u32("tokenizer.ggml.eos_token_id", 79);
    w.flag("tokenizer.ggml.add_bos_token", true);
    w.text("tokenizer.chat_template", "{{ bos_token }}{{ messages[0].content }}");
}

/// Name, type and dimensions (contiguous first) of every tensor.
pub fn tensors(matrix: DType, tied: bool) -> Vec<(String, DType, Vec<u64>)> {
    let (q, kv) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
    let mut all = vec![("token_embd.weight".to_owned(), matrix, vec![HIDDEN, VOCAB])];
    for i in 0..LAYERS {
        let mut layer =
            |name: &str, dtype, dims: &[u64]| all.push((format!("blk.{i}.{name}"), dtype, dims.to_vec()));
        layer("attn_norm.weight", DType::F32, &[HIDDEN]);
        layer("attn_q.weight", matrix, &[HIDDEN, q]);
        layer("attn_k.weight", matrix, &[HIDDEN, kv]);
        layer("attn_v.weight", matrix, &[HIDDEN, kv]);
        layer("attn_output.weight", matrix, &[q, HIDDEN]);
        layer("ffn_norm.weight", DType::F32, &[HIDDEN]);
        layer("ffn_gate.weight", matrix, &[HIDDEN, FFN]);
        layer("ffn_up.weight", matrix, &[HIDDEN, FFN]);
        layer("ffn_down.weight", matrix, &[FFN, HIDDEN]);
    }
    all.push(("output_norm.weight".to_owned(), DType::F32, vec![HIDDEN]));
    if !tied {
        all.push(("output.weight".to_owned(), matrix, vec![HIDDEN, VOCAB]));
    }
    all
}

pub fn tensor_bytes(dtype: DType, dims: &[u64]) -> u64 {
    dtype.bytes_of(dims.iter().product()).unwrap()
}

/// A whole Llama file; `change` may add to it.
pub fn sample(matrix: DType, tied: bool, change: impl FnOnce(&mut GgufWriter<'_>)) -> Vec<u8> {
    let mut w = GgufWriter::new();
    metadata(&mut w, "llama");
    for (i, (name, dtype, dims)) in tensors(matrix, tied).into_iter().enumerate() {
        let data = bytes(i as u64 + 1, tensor_bytes(dtype, &dims));
        w.tensor(&name, dtype, &dims, data);
    }
    change(&mut w);
    w.to_bytes()
}

/// An error and its causes in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text += &format!(": {cause}");
        next = cause.source();
    }
    text
}
