//! Holds the tensors of a file against its configuration: the right ones, of the right shapes, nothing else.

use std::collections::BTreeMap;
use std::ops::Range;

use exo_types::DType;

use crate::model::TensorLocation;
use crate::names::Dialect;
use crate::{ConfigError, LayerTensor, LayoutError, ModelConfig, TensorName};

/// A tensor as a file lists it, whatever the container. `shape` has outputs first; `range` lies in the file.
pub(crate) struct TensorEntry {
    pub(crate) checkpoint_name: String,
    pub(crate) file: usize,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<u64>,
    pub(crate) range: Range<u64>,
}

/// Bounds no real model comes near; they keep products of two of these numbers within u64 and vectors small.
const DIMENSION_MAX: u32 = 1 << 24;
const HEAD_DIM_MAX: u32 = 1 << 14;

/// Whether the numbers of `config` make sense by themselves.
pub(crate) fn check_numbers(config: &ModelConfig) -> Result<(), ConfigError> {
    let c = config;
    let numbers = [
        ("layers", c.layers, DIMENSION_MAX),
        ("hidden size", c.hidden, DIMENSION_MAX),
        ("feed-forward size", c.ffn, DIMENSION_MAX),
        ("heads", c.heads, DIMENSION_MAX),
        ("key-value heads", c.kv_heads, DIMENSION_MAX),
        ("head size", c.head_dim, HEAD_DIM_MAX),
        ("vocabulary", c.vocab, DIMENSION_MAX),
        ("context length", c.context_tokens_max, u32::MAX),
    ];
    let value = |field: &str, found: String, expected: String| {
        Err(ConfigError::Value { field: field.to_owned(), found, expected })
    };
    for (field, found, max) in numbers {
        if !(1..=max).contains(&found) {
            return value(field, found.to_string(), format!("1 to {max}"));
        }
    }
    if !c.heads.is_multiple_of(c.kv_heads) {
        return value(
            "heads",
            c.heads.to_string(),
            format!("a multiple of the {} key-value heads", c.kv_heads),
        );
    }
    if !c.head_dim.is_multiple_of(2) {
        return value("head size", c.head_dim.to_string(), "an even number".to_owned());
    }
    if !(c.rms_eps > 0.0 && c.rms_eps < 1.0) {
        return value("RMSNorm epsilon", c.rms_eps.to_string(), "between 0 and 1".to_owned());
    }
    Ok(())
}

/// The table of tensors, checked. Completes `config` with what only the tensors tell: whether the head is
/// tied (none is stored) and whether Q, K and V have biases. `file_names` are for messages.
pub(crate) fn arrange(
    config: &mut ModelConfig,
    dialect: Dialect,
    found: Vec<TensorEntry>,
    file_names: &[String],
) -> Result<BTreeMap<TensorName, TensorLocation>, LayoutError> {
    let mut table = by_name(config, dialect, found, file_names)?;
    config.tied |= !table.contains_key(&TensorName::Head);
    if config.tied {
        table.remove(&TensorName::Head);
    }
    config.qkv_bias |= table.contains_key(&TensorName::Layer(0, LayerTensor::QBias));
    for (name, found) in &table {
        let Some(expected) = expected_shape(config, *name) else {
            return Err(unexpected(config, found.checkpoint_name.clone()));
        };
        check_one(found, expected)?;
    }
    for name in expected_names(config) {
        if !table.contains_key(&name) {
            return Err(LayoutError::Missing { tensor: dialect.spell(name) });
        }
    }
    Ok(table.into_iter().map(|(name, found)| (name, stored(found))).collect())
}

fn by_name(
    config: &ModelConfig,
    dialect: Dialect,
    found: Vec<TensorEntry>,
    file_names: &[String],
) -> Result<BTreeMap<TensorName, TensorEntry>, LayoutError> {
    let mut table: BTreeMap<TensorName, TensorEntry> = BTreeMap::new();
    for tensor in found {
        if dialect.is_ignorable(&tensor.checkpoint_name) {
            continue;
        }
        let Some(name) = dialect.parse(&tensor.checkpoint_name) else {
            return Err(unexpected(config, tensor.checkpoint_name));
        };
        if let Some(first) = table.get(&name) {
            let file = |i: usize| file_names.get(i).cloned().unwrap_or_default();
            let (first, second) = (file(first.file), file(tensor.file));
            return Err(LayoutError::Twice { tensor: tensor.checkpoint_name, first, second });
        }
        table.insert(name, tensor);
    }
    Ok(table)
}

fn unexpected(config: &ModelConfig, tensor: String) -> LayoutError {
    LayoutError::Unexpected { tensor, architecture: config.architecture, layers: config.layers }
}

fn check_one(found: &TensorEntry, expected: Vec<u64>) -> Result<(), LayoutError> {
    let tensor = || found.checkpoint_name.clone();
    if found.shape != expected {
        return Err(LayoutError::Shape { tensor: tensor(), expected, found: found.shape.clone() });
    }
    if expected.len() == 1 && found.dtype.is_quantised() {
        return Err(LayoutError::VectorType { tensor: tensor(), found: found.dtype });
    }
    Ok(())
}

fn expected_names(config: &ModelConfig) -> impl Iterator<Item = TensorName> + '_ {
    let ends = [TensorName::Embedding, TensorName::OutputNorm, TensorName::Head];
    let layers = (0..config.layers).flat_map(|i| LayerTensor::ALL.map(|t| TensorName::Layer(i, t)));
    ends.into_iter().chain(layers).filter(|name| expected_shape(config, *name).is_some())
}

/// The shape `name` must have, outputs first; `None` if such a model has no such tensor.
fn expected_shape(config: &ModelConfig, name: TensorName) -> Option<Vec<u64>> {
    let c = config;
    let (vocab, hidden, ffn) = (u64::from(c.vocab), u64::from(c.hidden), u64::from(c.ffn));
    let head_dim = u64::from(c.head_dim);
    let (q, kv) = (u64::from(c.heads) * head_dim, u64::from(c.kv_heads) * head_dim);
    let shape = match name {
        TensorName::Embedding => vec![vocab, hidden],
        TensorName::OutputNorm => vec![hidden],
        TensorName::Head if c.tied => return None,
        TensorName::Head => vec![vocab, hidden],
        TensorName::Layer(layer, _) if layer >= c.layers => return None,
        TensorName::Layer(_, tensor) => match tensor {
            LayerTensor::AttnNorm | LayerTensor::FfnNorm => vec![hidden],
            LayerTensor::Q => vec![q, hidden],
            LayerTensor::K | LayerTensor::V => vec![kv, hidden],
            LayerTensor::O => vec![hidden, q],
            LayerTensor::QBias if c.qkv_bias => vec![q],
            LayerTensor::KBias | LayerTensor::VBias if c.qkv_bias => vec![kv],
            LayerTensor::QNorm | LayerTensor::KNorm if c.qk_norm => vec![head_dim],
            LayerTensor::Gate | LayerTensor::Up => vec![ffn, hidden],
            LayerTensor::Down => vec![hidden, ffn],
            LayerTensor::QBias | LayerTensor::KBias | LayerTensor::VBias => return None,
            LayerTensor::QNorm | LayerTensor::KNorm => return None,
        },
    };
    Some(shape)
}

fn stored(found: TensorEntry) -> TensorLocation {
    let cols = found.shape.last().copied().unwrap_or(1);
    let rows = if found.shape.len() > 1 { found.shape[0] } else { 1 };
    let TensorEntry { checkpoint_name, file, dtype, range, .. } = found;
    TensorLocation { checkpoint_name, file, dtype, rows, cols, range }
}
