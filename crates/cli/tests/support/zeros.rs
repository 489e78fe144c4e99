//! Models of zeros: they take as long as others of their shape, and hardly any space.

use std::path::Path;

use exo_formats::write::GgufWriter;
use exo_formats::{LayerTensor, TensorName, TokenizerSource};
use exo_types::DType;

use super::demo_gguf;

/// What a GGUF file calls the type of a control token.
pub const CONTROL: i32 = 3;

/// A model whose weights are zeros, with the built-in one's tokens.
pub struct Zeros {
    pub context: u32,
    pub layers: u32,
    pub hidden: u64,
    pub ffn: u64,
    pub heads: u32,
    pub template: Option<&'static str>,
    /// Control tokens beside the built-in ones.
    pub more_tokens: &'static [&'static str],
}

impl Zeros {
    /// As little of everything as there can be.
    pub const SMALL: Self =
        Self { context: 256, layers: 1, hidden: 64, ffn: 64, heads: 1, template: None, more_tokens: &[] };
    /// One that computes for a while.
    pub const BUSY: Self =
        Self { context: 4096, layers: 6, hidden: 512, ffn: 2048, heads: 8, template: None, more_tokens: &[] };
}

/// Writes it, with matrices of F16; on the disk it is a hole behind a header.
pub fn zeros(path: &Path, model: &Zeros) {
    zeros_of(path, model, DType::F16);
}

/// The same with the matrices of its layers in another type.
pub fn zeros_of(path: &Path, model: &Zeros, dtype: DType) {
    let &Zeros { context, layers, hidden, ffn, heads, template, more_tokens } = model;
    let demo = exo_formats::open(&demo_gguf()).unwrap();
    let TokenizerSource::Gguf(keys) = &demo.tokenizer else { panic!("a GGUF file") };
    let mut w = GgufWriter::new();
    w.text("general.architecture", "llama").u32("llama.context_length", context);
    w.u32("llama.block_count", layers).u32("llama.embedding_length", hidden as u32);
    w.u32("llama.feed_forward_length", ffn as u32).u32("llama.attention.head_count", heads);
    w.f32("llama.attention.layer_norm_rms_epsilon", 1e-5);
    w.text("tokenizer.ggml.model", &keys.model).text("tokenizer.ggml.pre", keys.pre.as_deref().unwrap());
    let tokens: Vec<&str> = keys.tokens.iter().chain(more_tokens.iter().copied()).collect();
    let mut token_types = keys.token_types.clone().unwrap();
    token_types.resize(tokens.len(), CONTROL);
    w.texts("tokenizer.ggml.tokens", tokens.iter()).texts("tokenizer.ggml.merges", keys.merges.iter());
    w.i32s("tokenizer.ggml.token_type", &token_types);
    w.u32("tokenizer.ggml.eos_token_id", keys.eos.unwrap());
    if let Some(template) = template {
        w.text("tokenizer.chat_template", template);
    }
    w.declare("token_embd.weight", DType::F16, &[hidden, tokens.len() as u64]);
    w.declare("output_norm.weight", DType::F32, &[hidden]);
    for layer in 0..layers {
        let name = |tensor| TensorName::Layer(layer, tensor).to_gguf();
        for tensor in [LayerTensor::AttnNorm, LayerTensor::FfnNorm] {
            w.declare(&name(tensor), DType::F32, &[hidden]);
        }
        for tensor in [LayerTensor::Q, LayerTensor::K, LayerTensor::V, LayerTensor::O] {
            w.declare(&name(tensor), dtype, &[hidden, hidden]);
        }
        w.declare(&name(LayerTensor::Gate), dtype, &[hidden, ffn]);
        w.declare(&name(LayerTensor::Up), dtype, &[hidden, ffn]);
        w.declare(&name(LayerTensor::Down), dtype, &[ffn, hidden]);
    }
    let mut header = Vec::new();
    let stop = |_: usize, _: &mut dyn std::io::Write| Err(std::io::Error::other("the header is all we want"));
    assert!(w.write_with(&mut header, stop).is_err());
    std::fs::write(path, header).unwrap();
    std::fs::File::options().write(true).open(path).unwrap().set_len(w.len_bytes()).unwrap();
}
