//! From a GGUF header to a [`Model`].

use std::path::Path;
use std::sync::Arc;

use exo_types::{ByteSource, DType};

use super::{Gguf, GgufError, tokenizer};
use crate::layout::{self, Found};
use crate::names::Dialect;
use crate::rope::{self, FACTORS_TENSOR, Scaling};
use crate::{
    Architecture, ConfigError, GgufTokenizer, MappedFile, Model, ModelConfig, ModelFile, ModelKind,
    OpenError, RopeConfig, RopeStyle, TokenizerSource,
};

/// Opens the file at `path`, which is known to be a regular file.
pub(crate) fn open_file(path: &Path) -> Result<Model, OpenError> {
    let map_error = |source| OpenError::Io { attempt: "map", path: path.to_owned(), source };
    let source: Arc<dyn ByteSource> = Arc::new(MappedFile::open(path).map_err(map_error)?);
    open_source(path, source)
}

/// Opens a file that is in memory.
pub(crate) fn open_bytes(name: &str, bytes: Vec<u8>) -> Result<Model, OpenError> {
    open_source(Path::new(name), Arc::new(bytes))
}

fn open_source(path: &Path, source: Arc<dyn ByteSource>) -> Result<Model, OpenError> {
    let opened = describe(path, &source);
    // A file that shrank meanwhile explains whatever else went wrong.
    source.check().map_err(|source| OpenError::Lost { path: path.to_owned(), source })?;
    if let Ok(model) = &opened {
        // Of a vocabulary it has megabytes, and all that matters was copied.
        source.release(0..model.files[0].head_bytes as usize);
    }
    opened
}

fn describe(path: &Path, source: &Arc<dyn ByteSource>) -> Result<Model, OpenError> {
    let at = |source: GgufError| OpenError::Gguf { path: path.to_owned(), source };
    let bytes = source.bytes();
    let gguf = Gguf::parse(bytes).map_err(at)?;
    let mut tokenizer = tokenizer::read(&gguf.metadata, bytes).map_err(at)?;
    let mut config = read_config(&gguf, bytes, &tokenizer).map_err(|e| e.at(path))?;
    drop_absent_ids(&mut tokenizer);
    let found = gguf.tensors.iter().map(found_of).collect();
    let tensors = layout::arrange(&mut config, Dialect::Gguf, found, &[])
        .map_err(|source| OpenError::Layout { path: path.to_owned(), source })?;
    let chat_template = gguf.metadata.text("tokenizer.chat_template").map_err(at)?.map(str::to_owned);
    Ok(Model {
        name: crate::open::name_of_file(path),
        kind: ModelKind::Gguf,
        config,
        tokenizer: TokenizerSource::Gguf(tokenizer),
        chat_template,
        files: vec![file_of(path, &gguf, bytes.len() as u64)],
        sources: vec![Some(source.clone())],
        tensors,
    })
}

fn file_of(path: &Path, gguf: &Gguf, len: u64) -> ModelFile {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let shared = gguf.tensor(FACTORS_TENSOR).map(|t| t.range.clone()).into_iter().collect();
    ModelFile { path: path.to_owned(), name, len, head_bytes: gguf.data_start.min(len), shared }
}

fn found_of(t: &super::GgufTensor) -> Found {
    // Outputs first, as everyone but ggml says it, and without the ones ggml pads with.
    let mut shape: Vec<u64> = t.dims.iter().rev().copied().collect();
    let ones = shape.iter().take(shape.len() - 1).take_while(|d| **d == 1).count();
    shape.drain(..ones);
    Found { checkpoint_name: t.name.clone(), file: 0, dtype: t.dtype, shape, range: t.range.clone() }
}

/// Ids beyond the vocabulary name no token; some converters write them.
fn drop_absent_ids(t: &mut GgufTokenizer) {
    let len = t.tokens.len();
    for id in [&mut t.bos, &mut t.eos, &mut t.eot, &mut t.unk, &mut t.pad] {
        *id = id.filter(|id| (*id as usize) < len);
    }
}

/// Either half of what can be wrong with the description.
enum Problem {
    Header(GgufError),
    Config(ConfigError),
}

impl Problem {
    fn at(self, path: &Path) -> OpenError {
        let path = path.to_owned();
        match self {
            Self::Header(source) => OpenError::Gguf { path, source },
            Self::Config(source) => OpenError::Config { path, source },
        }
    }
}

impl From<GgufError> for Problem {
    fn from(error: GgufError) -> Self {
        Self::Header(error)
    }
}

impl From<ConfigError> for Problem {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

fn unsupported(field: String, found: impl ToString, reason: &str) -> Problem {
    Problem::Config(ConfigError::Unsupported { field, found: found.to_string(), reason: reason.to_owned() })
}

fn read_config(gguf: &Gguf, bytes: &[u8], tokenizer: &GgufTokenizer) -> Result<ModelConfig, Problem> {
    let m = &gguf.metadata;
    let architecture = read_architecture(gguf)?;
    let key = |name: &str| format!("{architecture}.{name}");
    let need = |name: &str| {
        let found = m.uniform_u32(bytes, &key(name))?;
        found.ok_or_else(|| Problem::Config(ConfigError::Missing { field: key(name) }))
    };
    refuse_what_we_cannot(gguf, architecture)?;
    let (hidden, heads) = (need("embedding_length")?, need("attention.head_count")?);
    let head_dim = match m.u32(&key("attention.key_length"))? {
        Some(explicit) => explicit,
        None => hidden.checked_div(heads).unwrap_or(0),
    };
    let eps = m.f64(&key("attention.layer_norm_rms_epsilon"))?;
    let eps = eps.ok_or_else(|| ConfigError::Missing { field: key("attention.layer_norm_rms_epsilon") })?;
    let theta = m.f64(&key("rope.freq_base"))?.unwrap_or(10000.0);
    let style = match architecture {
        Architecture::Llama | Architecture::Mistral => RopeStyle::Interleaved,
        Architecture::Qwen2 | Architecture::Qwen3 => RopeStyle::Halves,
    };
    let eom = m.u32("tokenizer.ggml.eom_token_id")?;
    let mut config = ModelConfig {
        architecture,
        layers: need("block_count")?,
        hidden,
        ffn: need("feed_forward_length")?,
        heads,
        kv_heads: m.uniform_u32(bytes, &key("attention.head_count_kv"))?.unwrap_or(heads),
        head_dim,
        vocab: read_vocab(gguf, architecture, tokenizer)?,
        context_tokens_max: need("context_length")?,
        rms_eps: eps as f32,
        rope: RopeConfig { style, frequencies: Vec::new(), theta },
        sliding_window: m.u32(&key("attention.sliding_window"))?.filter(|w| *w > 0),
        qk_norm: architecture == Architecture::Qwen3,
        qkv_bias: architecture == Architecture::Qwen2,
        tied: false,
        bos: tokenizer.bos.filter(|id| (*id as usize) < tokenizer.tokens.len()),
        eos: tokenizer::ends(tokenizer, eom),
    };
    layout::check_numbers(&config)?;
    check_same(gguf, &key("attention.value_length"), head_dim)?;
    check_same(gguf, &key("rope.dimension_count"), head_dim)?;
    let factors = read_factors(gguf, bytes, head_dim)?;
    let scaling = read_scaling(gguf, architecture)?;
    config.rope.frequencies = rope::frequencies(head_dim, theta, &scaling, factors.as_deref())?;
    Ok(config)
}

fn read_architecture(gguf: &Gguf) -> Result<Architecture, Problem> {
    const KEY: &str = "general.architecture";
    let text = gguf.metadata.text(KEY)?.ok_or_else(|| ConfigError::Missing { field: KEY.to_owned() })?;
    let unknown = || ConfigError::UnknownArchitecture { field: KEY, found: super::metadata::short(text) };
    Ok(Architecture::from_key(text).ok_or_else(unknown)?)
}

/// Features a forward pass of ours would silently leave out.
fn refuse_what_we_cannot(gguf: &Gguf, architecture: Architecture) -> Result<(), Problem> {
    let m = &gguf.metadata;
    let experts = format!("{architecture}.expert_count");
    if let Some(count) = m.u32(&experts)?.filter(|n| *n > 0) {
        return Err(unsupported(experts, count, "mixtures of experts are not supported yet"));
    }
    if let Some(count) = m.u32("split.count")?.filter(|n| *n > 1) {
        let reason = "the model is split over several files; join them with llama-gguf-split --merge";
        return Err(unsupported("split.count".to_owned(), count, reason));
    }
    Ok(())
}

/// Rows of the embedding table. The tokenizer may have fewer tokens (padding), never more.
fn read_vocab(gguf: &Gguf, architecture: Architecture, tokenizer: &GgufTokenizer) -> Result<u32, Problem> {
    let table = gguf.tensor("token_embd.weight").and_then(|t| t.dims.get(1).copied());
    let tokens = tokenizer.tokens.len() as u64;
    let rows = table.unwrap_or(tokens);
    let value = |field: String, found: u64, expected: String| {
        Problem::Config(ConfigError::Value { field, found: found.to_string(), expected })
    };
    if tokens > rows {
        let expected = format!("at most the {rows} rows of token_embd.weight");
        return Err(value("number of tokenizer.ggml.tokens".to_owned(), tokens, expected));
    }
    let key = format!("{architecture}.vocab_size");
    if let Some(stated) = gguf.metadata.u32(&key)?.filter(|n| u64::from(*n) != rows) {
        return Err(value(key, stated.into(), format!("the {rows} rows of token_embd.weight")));
    }
    u32::try_from(rows)
        .map_err(|_| value("rows of token_embd.weight".to_owned(), rows, "below 2^32".to_owned()))
}

fn check_same(gguf: &Gguf, key: &str, head_dim: u32) -> Result<(), Problem> {
    match gguf.metadata.u32(key)? {
        Some(other) if other != head_dim => {
            Err(unsupported(key.to_owned(), other, &format!("only the head's own {head_dim} is supported")))
        }
        _ => Ok(()),
    }
}

/// The divisors of `rope_freqs.weight`: how GGUF files carry Llama 3's scaling.
fn read_factors(gguf: &Gguf, bytes: &[u8], head_dim: u32) -> Result<Option<Vec<f32>>, Problem> {
    let Some(t) = gguf.tensor(FACTORS_TENSOR) else { return Ok(None) };
    let error =
        |problem| GgufError { field: format!("tensor `{FACTORS_TENSOR}`"), offset: t.range.start, problem };
    if t.dtype != DType::F32 || t.dims != [u64::from(head_dim / 2)] {
        let found = format!("is {} of {:?}, expected F32 of [{}]", t.dtype, t.dims, head_dim / 2);
        return Err(error(found).into());
    }
    // The range was checked when the table was read; `get` costs nothing and cannot panic.
    let stored = bytes.get(t.range.start as usize..t.range.end as usize).unwrap_or_default();
    let factors: Vec<f32> =
        stored.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    match factors.iter().position(|f| !(f.is_finite() && *f > 0.0)) {
        None => Ok(Some(factors)),
        Some(i) => {
            Err(error(format!("has {} at element {i}, expected a positive number", factors[i])).into())
        }
    }
}

fn read_scaling(gguf: &Gguf, architecture: Architecture) -> Result<Scaling, Problem> {
    let m = &gguf.metadata;
    let kind_key = format!("{architecture}.rope.scaling.type");
    let factor = match m.f64(&format!("{architecture}.rope.scaling.factor"))? {
        Some(factor) => Some(factor),
        None => m.f64(&format!("{architecture}.rope.scale_linear"))?,
    };
    match (m.text(&kind_key)?, factor) {
        (Some("none"), _) | (None, None) => Ok(Scaling::None),
        // llama.cpp reads a factor without a type as linear.
        (Some("linear") | None, Some(factor)) => Ok(Scaling::Linear { factor }),
        (Some("linear"), None) => {
            Err(ConfigError::Missing { field: format!("{architecture}.rope.scaling.factor") }.into())
        }
        (Some(other), _) => {
            let found = super::metadata::short(other);
            Err(unsupported(kind_key, format!("`{found}`"), "supported are `none` and `linear`"))
        }
    }
}
