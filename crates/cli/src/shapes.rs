//! Shapes of well-known models, for measurements without a file.

use exo_formats::{Architecture, ModelConfig, RopeConfig, RopeStyle};

/// A model in numbers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Shape {
    pub name: &'static str,
    architecture: Architecture,
    layers: u32,
    hidden: u32,
    ffn: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    vocab: u32,
    tied: bool,
    rope_theta: f64,
    context_tokens_max: u32,
}

const fn llama(name: &'static str, tied: bool, numbers: [u32; 7]) -> Shape {
    let architecture = Architecture::Llama;
    let [layers, hidden, ffn, heads, kv_heads, head_dim, vocab] = numbers;
    let (rope_theta, context_tokens_max) = (500_000.0, 131_072);
    Shape {
        name,
        architecture,
        layers,
        hidden,
        ffn,
        heads,
        kv_heads,
        head_dim,
        vocab,
        tied,
        rope_theta,
        context_tokens_max,
    }
}

const fn qwen3(name: &'static str, tied: bool, numbers: [u32; 7]) -> Shape {
    let (architecture, rope_theta, context_tokens_max) = (Architecture::Qwen3, 1_000_000.0, 40_960);
    Shape { architecture, rope_theta, context_tokens_max, ..llama(name, tied, numbers) }
}

/// Layers, hidden width, feed-forward width, heads, key-value heads, head size, vocabulary: from the models' `config.json`.
/// The two tiny ones are nobody's; they are for tests.
pub const SHAPES: [Shape; 7] = [
    llama("tiny-llama", false, [8, 512, 1280, 8, 4, 64, 4096]),
    qwen3("tiny-qwen3", true, [4, 256, 768, 4, 2, 128, 4096]),
    qwen3("qwen3-0.6b", true, [28, 1024, 3072, 16, 8, 128, 151_936]),
    llama("llama-3.2-1b", true, [16, 2048, 8192, 32, 8, 64, 128_256]),
    qwen3("qwen3-8b", false, [36, 4096, 12_288, 32, 8, 128, 151_936]),
    llama("llama-8b", false, [32, 4096, 14_336, 32, 8, 128, 128_256]),
    llama("llama-70b", false, [80, 8192, 28_672, 64, 8, 128, 128_256]),
];

impl Shape {
    /// The shape called `name`.
    pub fn find(name: &str) -> Option<Self> {
        SHAPES.into_iter().find(|shape| shape.name == name)
    }

    /// As a model's file would describe it. Scaling of RoPE for long contexts is left out: it changes values, not work.
    pub fn config(&self) -> ModelConfig {
        let (theta, d) = (self.rope_theta, self.head_dim);
        let frequency = |i| theta.powf(-2.0 * f64::from(i) / f64::from(d)) as f32;
        let is_llama = self.architecture == Architecture::Llama;
        let style = if is_llama { RopeStyle::Interleaved } else { RopeStyle::Halves };
        ModelConfig {
            architecture: self.architecture,
            layers: self.layers,
            hidden: self.hidden,
            ffn: self.ffn,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: d,
            vocab: self.vocab,
            context_tokens_max: self.context_tokens_max,
            rms_eps: 1e-5,
            rope: RopeConfig { style, frequencies: (0..d / 2).map(frequency).collect(), theta },
            sliding_window: None,
            qk_norm: !is_llama,
            qkv_bias: false,
            tied: self.tied,
            bos: None,
            eos: Vec::new(),
        }
    }
}
