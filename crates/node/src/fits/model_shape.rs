//! A model by the few numbers that its sizes follow from.

use exo_formats::{Architecture, ModelConfig, RopeConfig, RopeStyle};
use exo_quant::Target;

/// The numbers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ModelNumbers {
    /// Which forward pass; of a mixture the one whose attention is the same.
    pub architecture: Architecture,
    /// Transformer layers.
    pub layers: u32,
    /// Width of the hidden state.
    pub hidden: u32,
    /// Width of the feed-forward network, of one expert where there are several.
    pub ffn: u32,
    /// Query heads.
    pub heads: u32,
    /// Key-value heads.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Tokens in the vocabulary.
    pub vocab: u32,
    /// Whether embedding and head are one table.
    pub tied: bool,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Longest context it was made for.
    pub context_tokens_max: u32,
    /// Feed-forward networks beside each other in each layer, of which each token takes some.
    pub experts: Option<u32>,
}

impl ModelNumbers {
    /// A llama by its layers, hidden width, feed-forward width, heads, key-value heads, head size and
    /// vocabulary; others differ from it by what is put in its place.
    pub const fn llama(
        [layers, hidden, ffn, heads, kv_heads, head_dim, vocab]: [u32; 7],
        tied: bool,
    ) -> Self {
        Self {
            architecture: Architecture::Llama,
            layers,
            hidden,
            ffn,
            heads,
            kv_heads,
            head_dim,
            vocab,
            tied,
            rope_theta: 500_000.0,
            context_tokens_max: 131_072,
            experts: None,
        }
    }

    /// Numbers in its matrices; norms and biases are thousandths of that.
    pub fn parameters(&self) -> u64 {
        let [hidden, heads, kv_heads, head_dim, ffn] =
            [self.hidden, self.heads, self.kv_heads, self.head_dim, self.ffn].map(u64::from);
        let attention = hidden * head_dim * (2 * heads + 2 * kv_heads);
        let experts = self.experts.map_or(1, u64::from);
        let router = if self.experts.is_some() { hidden * experts } else { 0 };
        let layer = attention + experts * 3 * hidden * ffn + router;
        let tables = if self.tied { 1 } else { 2 };
        u64::from(self.layers) * layer + tables * hidden * u64::from(self.vocab)
    }

    /// About the bytes of a file of this type, where the tensors are not laid out one by one.
    pub fn file_bytes(&self, stored: Target) -> u64 {
        let dtype = stored.dtype();
        let block = dtype.bytes_of(256).unwrap_or(1024);
        self.parameters().div_ceil(256).saturating_mul(block)
    }

    /// As a model's file would describe it. Scaling of RoPE for long contexts is left out: it changes values,
    /// not work.
    pub fn config(&self) -> ModelConfig {
        let (theta, d) = (self.rope_theta, self.head_dim);
        let frequency = |i| theta.powf(-2.0 * f64::from(i) / f64::from(d)) as f32;
        let is_llama = matches!(self.architecture, Architecture::Llama | Architecture::Mistral);
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
            qk_norm: self.architecture == Architecture::Qwen3,
            qkv_bias: self.architecture == Architecture::Qwen2,
            tied: self.tied,
            bos: None,
            eos: Vec::new(),
        }
    }
}
