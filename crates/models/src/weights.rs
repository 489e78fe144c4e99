//! The weights of a shard as the forward pass asks for them.

use std::sync::Arc;

use exo_backend::{OpKind, Weight};
use exo_formats::{LayerTensor, ModelConfig, TensorName};
use exo_types::{DType, TensorView};

use crate::Block;

/// The weights of a shard, on its device.
#[derive(Clone, Debug)]
pub struct ShardWeights {
    /// Those of its layers, in order.
    pub layers: Vec<LayerWeights>,
    /// The embedding table, where the shard has it.
    pub embedding: Option<Weight>,
    /// Norm and output head, where the shard has them.
    pub head: Option<HeadWeights>,
    /// `[D/2]` radians per position.
    pub rope_frequencies: Weight,
}

/// One layer. C hidden width, H and K heads of D elements, F feed-forward width.
#[derive(Clone, Debug)]
pub struct LayerWeights {
    /// `[C]`
    pub attn_norm: Weight,
    /// `[H·D, C]`
    pub q: Weight,
    /// `[K·D, C]`
    pub k: Weight,
    /// `[K·D, C]`
    pub v: Weight,
    /// On Q, K and V, where the architecture has them.
    pub qkv_bias: Option<QkvBias>,
    /// On the heads of Q and K, where the architecture has them.
    pub qk_norm: Option<QkNorm>,
    /// `[C, H·D]`
    pub o: Weight,
    /// `[C]`
    pub ffn_norm: Weight,
    /// `[F, C]`
    pub gate: Weight,
    /// `[F, C]`
    pub up: Weight,
    /// `[C, F]`
    pub down: Weight,
}

/// Biases of the projections into attention.
#[derive(Clone, Debug)]
pub struct QkvBias {
    /// `[H·D]`
    pub q: Weight,
    /// `[K·D]`
    pub k: Weight,
    /// `[K·D]`
    pub v: Weight,
}

/// Norms of the heads of Q and K.
#[derive(Clone, Debug)]
pub struct QkNorm {
    /// `[D]`
    pub q: Weight,
    /// `[D]`
    pub k: Weight,
}

/// What turns hidden states into logits.
#[derive(Clone, Debug)]
pub struct HeadWeights {
    /// `[C]`
    pub norm: Weight,
    /// `[V, C]`; of a tied model the embedding table itself.
    pub output: Weight,
}

impl LayerWeights {
    /// Puts a layer together from what `get` finds, and says which tensor is missing.
    pub fn collect(block: &Block, get: impl Fn(LayerTensor) -> Option<Weight>) -> Result<Self, LayerTensor> {
        let need = |tensor| get(tensor).ok_or(tensor);
        let bias = || {
            let (q, k, v) = (need(LayerTensor::QBias)?, need(LayerTensor::KBias)?, need(LayerTensor::VBias)?);
            Ok(QkvBias { q, k, v })
        };
        let norm = || Ok(QkNorm { q: need(LayerTensor::QNorm)?, k: need(LayerTensor::KNorm)? });
        Ok(Self {
            attn_norm: need(LayerTensor::AttnNorm)?,
            q: need(LayerTensor::Q)?,
            k: need(LayerTensor::K)?,
            v: need(LayerTensor::V)?,
            qkv_bias: block.qkv_bias.then(bias).transpose()?,
            qk_norm: block.qk_norm.then(norm).transpose()?,
            o: need(LayerTensor::O)?,
            ffn_norm: need(LayerTensor::FfnNorm)?,
            gate: need(LayerTensor::Gate)?,
            up: need(LayerTensor::Up)?,
            down: need(LayerTensor::Down)?,
        })
    }
}

/// `[rows, cols]` the configuration asks of a tensor; a vector has one row.
pub fn tensor_shape(config: &ModelConfig, name: TensorName) -> (u64, u64) {
    let [c, f, v, d] = [config.hidden, config.ffn, config.vocab, config.head_dim].map(u64::from);
    let (q, kv) = (u64::from(config.heads) * d, u64::from(config.kv_heads) * d);
    match name {
        TensorName::Embedding | TensorName::Head => (v, c),
        TensorName::OutputNorm => (1, c),
        TensorName::Layer(_, tensor) => match tensor {
            LayerTensor::AttnNorm | LayerTensor::FfnNorm => (1, c),
            LayerTensor::Q => (q, c),
            LayerTensor::K | LayerTensor::V => (kv, c),
            LayerTensor::O => (c, q),
            LayerTensor::QBias => (1, q),
            LayerTensor::KBias | LayerTensor::VBias => (1, kv),
            LayerTensor::QNorm | LayerTensor::KNorm => (1, d),
            LayerTensor::Gate | LayerTensor::Up => (f, c),
            LayerTensor::Down => (c, f),
        },
    }
}

/// What a device must be able to do with a tensor; `None` for vectors, which every device takes in.
pub fn op_on(name: TensorName) -> Option<OpKind> {
    match name {
        TensorName::Embedding => Some(OpKind::Embed),
        TensorName::Head => Some(OpKind::MatMul),
        TensorName::OutputNorm => None,
        TensorName::Layer(_, tensor) => match tensor {
            LayerTensor::Q | LayerTensor::K | LayerTensor::V | LayerTensor::O => Some(OpKind::MatMul),
            LayerTensor::Gate | LayerTensor::Up | LayerTensor::Down => Some(OpKind::MatMul),
            _ => None,
        },
    }
}

/// The RoPE frequencies as a tensor a device can take in.
pub fn rope_frequencies(config: &ModelConfig) -> TensorView {
    let bytes: Vec<u8> = config.rope.frequencies.iter().flat_map(|f| f.to_le_bytes()).collect();
    TensorView {
        name: "rope frequencies".to_owned(),
        dtype: DType::F32,
        rows: 1,
        cols: config.rope.frequencies.len() as u64,
        range: 0..bytes.len(),
        source: Arc::new(bytes),
    }
}
