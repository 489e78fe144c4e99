//! Qwen 2 and 2.5.
//!
//! Yang et al. 2024 (arXiv:2407.10671, arXiv:2412.15115). The layer of Llama, with a bias on Q, K and V (none
//! on the output projection). The small ones tie the head to the embedding table. Their configurations name a
//! sliding window that is switched off (`use_sliding_window: false`); one that is switched on in every layer
//! runs.

use exo_formats::ModelConfig;

use crate::block::{Block, ModelError, refuse};

pub(crate) fn block(config: &ModelConfig) -> Result<Block, ModelError> {
    refuse(config, config.qk_norm, "norms on Q and K")?;
    refuse(config, !config.qkv_bias, "projections without bias")?;
    Ok(Block { qkv_bias: true, qk_norm: false, window: config.sliding_window })
}
