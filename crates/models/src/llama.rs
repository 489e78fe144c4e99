//! Llama 2, 3, 3.1, 3.2.
//!
//! Touvron et al. 2023 (arXiv:2302.13971, arXiv:2307.09288), Dubey et al. 2024 (arXiv:2407.21783). RMSNorm
//! before each half of a layer, rotary positions, grouped-query attention, SwiGLU, no bias anywhere. The
//! `llama3` RoPE scaling is part of the frequencies that `formats` computed.
//!
//! GGUF files of Mistral call themselves `llama` too, with the rows of Q and K reordered for interleaved RoPE
//! and, in rare cases, a sliding window: so a window is taken as it comes.

use exo_formats::ModelConfig;

use crate::block::{Block, ModelError, refuse};

pub(crate) fn block(config: &ModelConfig) -> Result<Block, ModelError> {
    refuse(config, config.qk_norm, "norms on Q and K")?;
    refuse(config, config.qkv_bias, "biases on Q, K and V")?;
    Ok(Block { qkv_bias: false, qk_norm: false, window: config.sliding_window })
}
