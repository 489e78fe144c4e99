//! Mistral 7B and its descendants.
//!
//! Jiang et al. 2023 (arXiv:2310.06825). The layer of Llama; version 0.1 adds a sliding window of 4096 tokens
//! in every layer, later versions have none. Token t sees `t - window < p <= t`.

use exo_formats::ModelConfig;

use crate::block::{Block, ModelError, refuse};

pub(crate) fn block(config: &ModelConfig) -> Result<Block, ModelError> {
    refuse(config, config.qk_norm, "norms on Q and K")?;
    refuse(config, config.qkv_bias, "biases on Q, K and V")?;
    Ok(Block { qkv_bias: false, qk_norm: false, window: config.sliding_window })
}
