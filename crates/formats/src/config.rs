//! What a model is, in our words: the numbers every other room asks for.

use std::fmt;

/// A model architecture we can run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Architecture {
    /// Llama 2 and 3.x. In GGUF also Mistral, which llama.cpp files under this name.
    Llama,
    /// Qwen 2 and 2.5: biases on Q, K and V.
    Qwen2,
    /// Qwen 3: Q and K are normalised per head.
    Qwen3,
    /// Mistral: Llama with a sliding window.
    Mistral,
}

impl Architecture {
    /// Every architecture, in the order messages list them.
    pub const ALL: [Self; 4] = [Self::Llama, Self::Qwen2, Self::Qwen3, Self::Mistral];

    /// The name both `model_type` and `general.architecture` use.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Mistral => "mistral",
        }
    }

    /// The architecture called `key`, if we can run it.
    pub fn from_key(key: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|a| a.key() == key)
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.key())
    }
}

/// Which elements of a head RoPE rotates together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RopeStyle {
    /// `(i, i + D/2)`: Hugging Face checkpoints, Qwen in GGUF.
    Halves,
    /// `(2i, 2i + 1)`: Llama and Mistral in GGUF, whose Q and K rows are stored reordered.
    Interleaved,
}

/// Rotary position embedding, ready to use.
#[derive(Clone, PartialEq, Debug)]
pub struct RopeConfig {
    /// Which elements pair up.
    pub style: RopeStyle,
    /// `[D/2]`: pair `i` of a head at position `p` turns by `p * frequencies[i]` radians. Scaling (`linear`,
    /// `llama3`, `rope_freqs.weight`) is already applied; computed in f64, rounded once.
    pub frequencies: Vec<f32>,
    /// The base the frequencies came from, for display.
    pub theta: f64,
}

/// Everything about a model but its tensors.
#[derive(Clone, PartialEq, Debug)]
pub struct ModelConfig {
    /// Which forward pass it needs.
    pub architecture: Architecture,
    /// Transformer layers.
    pub layers: u32,
    /// C: width of the hidden state.
    pub hidden: u32,
    /// Width of the feed-forward network.
    pub ffn: u32,
    /// H: query heads.
    pub heads: u32,
    /// K: key-value heads; divides `heads`.
    pub kv_heads: u32,
    /// D: elements of one head; even, and not always `hidden / heads`.
    pub head_dim: u32,
    /// Rows of the embedding table; may exceed the tokenizer's tokens by padding.
    pub vocab: u32,
    /// Longest context the model was made for.
    pub context_tokens_max: u32,
    /// Added under the root of RMSNorm.
    pub rms_eps: f32,
    /// Rotary position embedding.
    pub rope: RopeConfig,
    /// Tokens a token sees, itself included; `None` is all before it. The same in every layer.
    pub sliding_window: Option<u32>,
    /// Whether Q and K are normalised per head before RoPE.
    pub qk_norm: bool,
    /// Whether Q, K and V have a bias.
    pub qkv_bias: bool,
    /// Whether the embedding table is also the output head.
    pub tied: bool,
    /// Beginning-of-sequence token.
    pub bos: Option<u32>,
    /// Every token that ends a generation, ascending: end of sequence, of turn, of message. May be empty.
    pub eos: Vec<u32>,
}
