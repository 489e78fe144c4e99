//! From a GGUF header to a [`Model`].

use std::path::Path;
use std::sync::Arc;

use exo_types::{DType, Pooling};

use super::split::{self, Part};
use super::{Gguf, GgufError, tokenizer};
use crate::layout::{self, TensorEntry};
use crate::names::{Dialect, FACTORS_TENSOR};
use crate::rope::{self, Scaling};
use crate::{
    Architecture, ConfigError, EmbeddingInfo, GgufTokenizer, Model, ModelConfig, ModelFile, ModelKind,
    OpenError, RopeConfig, RopeStyle, TokenizerSource,
};

/// Opens the file at `path`, which is known to be a regular file; of a model over several files all of them,
/// whichever is named.
pub(crate) fn open_file(path: &Path) -> Result<Model, OpenError> {
    let parts = split::all_parts(Part::open(path)?)?;
    describe(&parts)
}

/// Opens a file that is in memory.
pub(crate) fn open_bytes(name: &str, bytes: Vec<u8>) -> Result<Model, OpenError> {
    let parts = split::all_parts(Part::parse(Path::new(name), Arc::new(bytes))?)?;
    describe(&parts)
}

/// How many bytes of a GGUF file have to be there for what its head says to be so: up to its end, or up to
/// what is wrong with it. For a file that is holes behind what was read of it. `None` if it cannot be read.
pub fn head_bytes_needed(path: &Path) -> Option<u64> {
    let file = crate::MappedFile::open(path).ok()?;
    let parsed = Gguf::parse(exo_types::ByteSource::bytes(&file));
    exo_types::ByteSource::check(&file).ok()?;
    // What is wrong stands in a field of eight bytes at most, or in one whose length is known before.
    Some(parsed.map_or_else(|error| error.offset.saturating_add(8), |gguf| gguf.data_start))
}

fn describe(parts: &[Part]) -> Result<Model, OpenError> {
    let described = describe_parts(parts);
    for part in parts {
        // A file that shrank meanwhile explains whatever else went wrong.
        part.source.check().map_err(|source| OpenError::Lost { path: part.path.clone(), source })?;
    }
    let model = described?;
    for (source, file) in model.sources.iter().flatten().zip(&model.files) {
        // Of a vocabulary it has megabytes, and all that matters was copied.
        source.release(0..file.head_bytes as usize);
    }
    Ok(model)
}

fn describe_parts(parts: &[Part]) -> Result<Model, OpenError> {
    let Some(Part { path, source, gguf }) = parts.first() else {
        let reason = "it has no file".to_owned();
        return Err(OpenError::NotAModel { path: Path::new("").to_owned(), reason });
    };
    let at = |source: GgufError| OpenError::Gguf { path: path.clone(), source };
    let bytes = source.bytes();
    let mut tokenizer = tokenizer::read(&gguf.metadata, bytes).map_err(at)?;
    let mut config = read_config(parts, gguf, bytes, &tokenizer).map_err(|e| e.at(path))?;
    drop_absent_ids(&mut tokenizer);
    let found = parts
        .iter()
        .enumerate()
        .flat_map(|(file, part)| part.gguf.tensors.iter().map(move |tensor| found_of(file, tensor)));
    let files: Vec<ModelFile> = parts.iter().map(file_of).collect();
    let names: Vec<String> = files.iter().map(|file| file.name.clone()).collect();
    let tensors = layout::arrange(&mut config, Dialect::Gguf, found.collect(), &names)
        .map_err(|source| OpenError::Layout { path: path.clone(), source })?;
    let embedding = read_embedding(gguf, config.architecture).map_err(at)?;
    let chat_template = gguf.metadata.text("tokenizer.chat_template").map_err(at)?.map(str::to_owned);
    Ok(Model {
        name: split::name_of_file(path),
        kind: ModelKind::Gguf,
        config,
        tokenizer: TokenizerSource::Gguf(tokenizer),
        chat_template,
        embedding,
        files,
        sources: parts.iter().map(|part| Some(part.source.clone())).collect(),
        tensors,
    })
}

/// What is said of vectors. The numbers are llama.cpp's; there is no key for the lengths that a vector may be
/// cut to.
fn read_embedding(gguf: &Gguf, architecture: Architecture) -> Result<EmbeddingInfo, GgufError> {
    let pooling = match gguf.metadata.u32(&format!("{architecture}.pooling_type"))? {
        Some(1) => Some(Pooling::Mean),
        Some(2) => Some(Pooling::First),
        Some(3) => Some(Pooling::Last),
        // None, a reranker's, or one that is not known here.
        Some(_) | None => None,
    };
    Ok(EmbeddingInfo { pooling, ..EmbeddingInfo::default() })
}

fn file_of(part: &Part) -> ModelFile {
    let Part { path, source, gguf } = part;
    let len = source.bytes().len() as u64;
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let shared = gguf.tensor(FACTORS_TENSOR).map(|t| t.range.clone()).into_iter().collect();
    ModelFile { path: path.clone(), name, len, head_bytes: gguf.data_start.min(len), shared }
}

fn found_of(file: usize, t: &super::GgufTensor) -> TensorEntry {
    // Outputs first, as everyone but ggml says it, and without the ones ggml pads with.
    let mut shape: Vec<u64> = t.dims.iter().rev().copied().collect();
    let ones = shape.iter().take(shape.len() - 1).take_while(|d| **d == 1).count();
    shape.drain(..ones);
    TensorEntry { checkpoint_name: t.name.clone(), file, dtype: t.dtype, shape, range: t.range.clone() }
}

/// Ids beyond the vocabulary name no token; some converters write them.
fn drop_absent_ids(t: &mut GgufTokenizer) {
    let len = t.tokens.len();
    for id in [&mut t.bos, &mut t.eos, &mut t.eot, &mut t.unk, &mut t.pad] {
        *id = id.filter(|id| (*id as usize) < len);
    }
}

/// Either half of what can be wrong with the description.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum Problem {
    Header(#[from] GgufError),
    Config(#[from] ConfigError),
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

fn unsupported(field: String, found: impl ToString, reason: &str) -> Problem {
    Problem::Config(ConfigError::Unsupported { field, found: found.to_string(), reason: reason.to_owned() })
}

fn read_config(
    parts: &[Part],
    gguf: &Gguf,
    bytes: &[u8],
    tokenizer: &GgufTokenizer,
) -> Result<ModelConfig, Problem> {
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
        vocab: read_vocab(parts, architecture, tokenizer)?,
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
    let factors = read_factors(parts, head_dim)?;
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
    Ok(())
}

/// Rows of the embedding table. The tokenizer may have fewer tokens (padding), never more.
fn read_vocab(parts: &[Part], architecture: Architecture, tokenizer: &GgufTokenizer) -> Result<u32, Problem> {
    let table = parts.iter().find_map(|part| part.gguf.tensor("token_embd.weight"));
    let table = table.and_then(|t| t.dims.get(1).copied());
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
    let stated = parts.first().map(|part| part.gguf.metadata.u32(&key)).transpose()?.flatten();
    if let Some(stated) = stated.filter(|n| u64::from(*n) != rows) {
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
fn read_factors(parts: &[Part], head_dim: u32) -> Result<Option<Vec<f32>>, Problem> {
    let found = parts.iter().find_map(|part| Some((part.source.bytes(), part.gguf.tensor(FACTORS_TENSOR)?)));
    let Some((bytes, t)) = found else { return Ok(None) };
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
