//! `config.json`, as transformers 4 and 5 write it, to a [`ModelConfig`].
//!
//! A field that is absent has the default of transformers' configuration class; `null` means none.

use serde_json::Value;

use super::json::{self, get, short};
use crate::rope::{self, Scaling};
use crate::{
    Architecture, ConfigError, EmbeddingInfo, EmbeddingLengths, JsonError, ModelConfig, RopeConfig,
    RopeStyle, layout,
};

/// Either half of what can be wrong with a configuration.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) enum Problem {
    Json(#[from] JsonError),
    Config(#[from] ConfigError),
}

/// Most lengths of vectors that a file may name.
const EMBEDDING_LENGTHS_MAX: usize = 64;

/// What `config.json` says of vectors: of some models how far one may be cut.
pub(super) fn read_embedding(config: &Value) -> EmbeddingInfo {
    let named = config.get("matryoshka_dimensions").and_then(Value::as_array).map(|list| {
        let lengths = list.iter().filter_map(Value::as_u64).filter_map(|n| u32::try_from(n).ok());
        EmbeddingLengths::Some(lengths.take(EMBEDDING_LENGTHS_MAX).collect())
    });
    let any = config.get("is_matryoshka").and_then(Value::as_bool).unwrap_or(false);
    let lengths = named.or(any.then_some(EmbeddingLengths::Any)).unwrap_or_default();
    EmbeddingInfo { pooling: None, lengths }
}

/// Reads the configuration; `generation` is `generation_config.json`, whose list of end tokens joins that of
/// `config.json`.
pub(super) fn read(config: &Value, generation: Option<&Value>) -> Result<ModelConfig, Problem> {
    let architecture = read_architecture(config)?;
    refuse_what_we_cannot(config, architecture)?;
    let need = |field: &str| {
        let missing = || Problem::Json(JsonError::Missing { field: field.to_owned() });
        json::u32(config, field)?.ok_or_else(missing)
    };
    let (hidden, heads, layers) =
        (need("hidden_size")?, need("num_attention_heads")?, need("num_hidden_layers")?);
    let vocab = need("vocab_size")?;
    let head_dim = match json::u32(config, "head_dim")? {
        Some(explicit) => explicit,
        None if architecture == Architecture::Qwen3 => 128,
        None => hidden.checked_div(heads).unwrap_or(0),
    };
    let mut read = ModelConfig {
        architecture,
        layers,
        hidden,
        ffn: need("intermediate_size")?,
        heads,
        kv_heads: kv_heads(config, architecture, heads)?,
        head_dim,
        vocab,
        context_tokens_max: need("max_position_embeddings")?,
        rms_eps: json::f64(config, "rms_norm_eps")?.unwrap_or(1e-6) as f32,
        rope: RopeConfig { style: RopeStyle::Halves, frequencies: Vec::new(), theta: 0.0 },
        sliding_window: sliding_window(config, architecture, layers)?,
        qk_norm: architecture == Architecture::Qwen3,
        qkv_bias: architecture == Architecture::Qwen2,
        tied: json::flag(config, "tie_word_embeddings")?.unwrap_or(false),
        bos: ids(config, "bos_token_id", vocab)?.first().copied(),
        eos: ids(config, "eos_token_id", vocab)?,
    };
    if let Some(generation) = generation {
        read.eos.extend(ids(generation, "eos_token_id", vocab)?);
    }
    read.eos.sort_unstable();
    read.eos.dedup();
    layout::check_numbers(&read)?;
    let (theta, scaling) = read_rope(config)?;
    read.rope.theta = theta;
    read.rope.frequencies = rope::frequencies(head_dim, theta, &scaling, None)?;
    Ok(read)
}

fn read_architecture(config: &Value) -> Result<Architecture, Problem> {
    let text = json::text(config, "model_type")?;
    let text = text.ok_or_else(|| JsonError::Missing { field: "model_type".to_owned() })?;
    let found = || text.chars().take(80).collect();
    let unknown = || ConfigError::UnknownArchitecture { field: "model_type", found: found() };
    Ok(Architecture::from_key(text).ok_or_else(unknown)?)
}

fn unsupported(field: &str, found: String, reason: impl Into<String>) -> Problem {
    Problem::Config(ConfigError::Unsupported { field: field.to_owned(), found, reason: reason.into() })
}

/// Features a forward pass of ours would silently leave out.
fn refuse_what_we_cannot(config: &Value, architecture: Architecture) -> Result<(), Problem> {
    if let Some(quantised) = get(config, "quantization_config") {
        let method = quantised.get("quant_method").map_or_else(|| short(quantised), short);
        let reason = "checkpoints quantised this way are not supported; use the original or a GGUF file";
        return Err(unsupported("quantization_config", method, reason));
    }
    let act = json::text(config, "hidden_act")?.unwrap_or("silu");
    if act != "silu" {
        return Err(unsupported(
            "hidden_act",
            format!("`{}`", act.chars().take(80).collect::<String>()),
            "only `silu` is supported",
        ));
    }
    let biased: &[&str] =
        if architecture == Architecture::Qwen2 { &["mlp_bias"] } else { &["attention_bias", "mlp_bias"] };
    for field in biased {
        if json::flag(config, field)?.unwrap_or(false) {
            return Err(unsupported(
                field,
                "true".to_owned(),
                format!("{architecture} with biases is not supported"),
            ));
        }
    }
    Ok(())
}

/// Absent, the number is the class default; null, it is the number of heads.
fn kv_heads(config: &Value, architecture: Architecture, heads: u32) -> Result<u32, JsonError> {
    const FIELD: &str = "num_key_value_heads";
    let class_default = match architecture {
        Architecture::Llama => heads,
        Architecture::Mistral => 8,
        Architecture::Qwen2 | Architecture::Qwen3 => 32,
    };
    let absent = if config.get(FIELD).is_some() { heads } else { class_default };
    Ok(json::u32(config, FIELD)?.unwrap_or(absent))
}

/// The window, if every layer has the same one; an error if layers differ.
fn sliding_window(config: &Value, architecture: Architecture, layers: u32) -> Result<Option<u32>, Problem> {
    let window = match config.get("sliding_window") {
        None if architecture == Architecture::Mistral => Some(4096),
        _ => json::u32(config, "sliding_window")?.filter(|w| *w > 0),
    };
    let window = match architecture {
        Architecture::Llama => None,
        Architecture::Mistral => window,
        // transformers ignores the window unless this says otherwise.
        _ => window.filter(|_| get(config, "use_sliding_window").and_then(Value::as_bool).unwrap_or(false)),
    };
    let Some(tokens) = window else { return Ok(None) };
    let sliding_layers = match get(config, "layer_types") {
        Some(types) => listed_sliding_layers(types, layers)?,
        None if architecture == Architecture::Mistral => layers,
        None => {
            let first_sliding = json::u32(config, "max_window_layers")?.unwrap_or(28);
            layers.saturating_sub(first_sliding)
        }
    };
    match sliding_layers {
        0 => Ok(None),
        n if n == layers => Ok(Some(tokens)),
        n => {
            let reason =
                format!("{n} of {layers} layers would have a sliding window; all or none are supported");
            Err(unsupported("sliding_window", tokens.to_string(), reason))
        }
    }
}

fn listed_sliding_layers(types: &Value, layers: u32) -> Result<u32, Problem> {
    let wrong =
        || json::wrong("layer_types", types, "one of `full_attention`, `sliding_attention` per layer");
    let list = types.as_array().filter(|l| l.len() == layers as usize).ok_or_else(wrong)?;
    let mut sliding = 0;
    for kind in list {
        match kind.as_str() {
            Some("sliding_attention") => sliding += 1,
            Some("full_attention") => {}
            _ => {
                return Err(unsupported(
                    "layer_types",
                    short(kind),
                    "supported are full and sliding attention",
                ));
            }
        }
    }
    Ok(sliding)
}

/// One id, a list of them, or none. Ids outside of the vocabulary name no token and are left out.
fn ids(object: &Value, field: &str, vocab: u32) -> Result<Vec<u32>, JsonError> {
    let Some(value) = get(object, field) else { return Ok(Vec::new()) };
    let one = std::slice::from_ref(value);
    let list = value.as_array().map_or(one, Vec::as_slice);
    let wrong = || json::wrong(field, value, "a token id or a list of token ids");
    let numbers: Option<Vec<i64>> = list.iter().map(Value::as_i64).collect();
    let numbers = numbers.ok_or_else(wrong)?;
    Ok(numbers.into_iter().filter_map(|n| u32::try_from(n).ok()).filter(|n| *n < vocab).collect())
}

/// The base and its scaling: `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (4).
fn read_rope(config: &Value) -> Result<(f64, Scaling), Problem> {
    let (field, parameters) = match get(config, "rope_parameters") {
        Some(p) => ("rope_parameters", Some(p)),
        None => ("rope_scaling", get(config, "rope_scaling")),
    };
    let theta_at = |object| json::f64(object, "rope_theta");
    let theta = match parameters.map(theta_at).transpose()?.flatten() {
        Some(theta) => theta,
        None => theta_at(config)?.unwrap_or(10000.0),
    };
    for object in [Some(config), parameters].into_iter().flatten() {
        if let Some(part) = json::f64(object, "partial_rotary_factor")?.filter(|part| *part != 1.0) {
            return Err(unsupported(
                "partial_rotary_factor",
                part.to_string(),
                "only whole heads are rotated",
            ));
        }
    }
    let Some(parameters) = parameters else { return Ok((theta, Scaling::None)) };
    if !parameters.is_object() {
        return Err(json::wrong(field, parameters, "an object").into());
    }
    if parameters.get("full_attention").is_some() || parameters.get("sliding_attention").is_some() {
        let reason = "parameters that differ by kind of layer are not supported";
        return Err(unsupported(field, short(parameters), reason));
    }
    Ok((theta, read_scaling(config, field, parameters)?))
}

fn read_scaling(config: &Value, field: &str, parameters: &Value) -> Result<Scaling, Problem> {
    let kind = match json::text(parameters, "rope_type")? {
        Some(kind) => Some(kind),
        None => json::text(parameters, "type")?,
    };
    let need = |name: &str| {
        let missing = || Problem::Json(JsonError::Missing { field: format!("{field}.{name}") });
        json::f64(parameters, name)?.ok_or_else(missing)
    };
    match kind.unwrap_or("default") {
        "default" => Ok(Scaling::None),
        "linear" => Ok(Scaling::Linear { factor: need("factor")? }),
        "llama3" => Ok(Scaling::Llama3 {
            factor: need("factor")?,
            low_freq_factor: need("low_freq_factor")?,
            high_freq_factor: need("high_freq_factor")?,
            trained_tokens: match json::f64(parameters, "original_max_position_embeddings")? {
                Some(tokens) => tokens,
                None => match json::f64(config, "original_max_position_embeddings")? {
                    Some(tokens) => tokens,
                    None => need("original_max_position_embeddings")?,
                },
            },
        }),
        other => {
            let found = format!("`{}`", other.chars().take(80).collect::<String>());
            Err(unsupported(&format!("{field}.rope_type"), found, "supported are default, linear and llama3"))
        }
    }
}

#[cfg(test)]
mod tests;
