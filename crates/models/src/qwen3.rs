//! Qwen 3, dense.
//!
//! Yang et al. 2025 (arXiv:2505.09388). The layer of Llama, but the biases of Qwen 2 are gone and every head
//! of Q and K passes through an RMSNorm of its own width, with one weight vector shared by the heads, before
//! it is rotated. The head size is a number of its own: H·D is not C (0.6B: 16 · 128 against 1024).

use exo_formats::ModelConfig;

use crate::block::{Block, ModelError, refuse};

pub(crate) fn block(config: &ModelConfig) -> Result<Block, ModelError> {
    refuse(config, config.qkv_bias, "biases on Q, K and V")?;
    refuse(config, !config.qk_norm, "Q and K without norms")?;
    Ok(Block { qkv_bias: false, qk_norm: true, window: config.sliding_window })
}
