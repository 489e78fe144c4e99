//! Which architecture a configuration is of, and whether a layer can be made of its numbers.

use exo_formats::{Architecture, ModelConfig};

use crate::{Block, ModelError, llama, mistral, qwen2, qwen3};

/// What the layers of `config` look like, or why we cannot run it.
pub fn block(config: &ModelConfig) -> Result<Block, ModelError> {
    check_numbers(config)?;
    match config.architecture {
        Architecture::Llama => llama::block(config),
        Architecture::Mistral => mistral::block(config),
        Architecture::Qwen2 => qwen2::block(config),
        Architecture::Qwen3 => qwen3::block(config),
        other => Err(ModelError::Architecture { architecture: other.to_string() }),
    }
}

fn check_numbers(c: &ModelConfig) -> Result<(), ModelError> {
    let positive = [
        ("layers", c.layers),
        ("hidden", c.hidden),
        ("ffn", c.ffn),
        ("heads", c.heads),
        ("kv_heads", c.kv_heads),
        ("head_dim", c.head_dim),
        ("vocab", c.vocab),
    ];
    if let Some((field, _)) = positive.into_iter().find(|(_, value)| *value == 0) {
        return Err(ModelError::Field { field, value: 0, reason: "it must be positive" });
    }
    let field = |field, value: u64, reason| Err(ModelError::Field { field, value, reason });
    if !c.heads.is_multiple_of(c.kv_heads) {
        return field("kv_heads", c.kv_heads.into(), "it must divide the number of heads");
    }
    let (pairs, half) = (c.rope.frequencies.len() as u64, u64::from(c.head_dim) / 2);
    if !c.head_dim.is_multiple_of(2) {
        return field("head_dim", c.head_dim.into(), "RoPE rotates pairs, it must be even");
    }
    if pairs == 0 || pairs > half {
        return field("rotated pairs", pairs, "at least one and at most half a head");
    }
    if c.sliding_window == Some(0) {
        return field("sliding_window", 0, "a token must see itself");
    }
    Ok(())
}
