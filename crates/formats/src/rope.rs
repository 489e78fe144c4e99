//! RoPE frequencies.

/// The tensor with which GGUF files carry llama3-style scaling: one divisor per frequency.
pub(crate) const FACTORS_TENSOR: &str = "rope_freqs.weight";
