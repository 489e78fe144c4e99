//! Our names for the tensors of a model, and the names GGUF and Hugging Face give them.

use std::fmt;

/// A tensor, named by its role.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TensorName {
    /// `[vocab, C]`: token id to hidden state.
    Embedding,
    /// `[C]`: the norm before the head.
    OutputNorm,
    /// `[vocab, C]`: hidden state to logits. A tied model has none of its own: see [`crate::Model::tensor`].
    Head,
    /// One tensor of one layer.
    Layer(u32, LayerTensor),
}

/// A tensor within a layer. Matrices are `[outputs, inputs]`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LayerTensor {
    /// `[C]`: norm before attention.
    AttnNorm,
    /// `[H·D, C]`
    Q,
    /// `[K·D, C]`
    K,
    /// `[K·D, C]`
    V,
    /// `[C, H·D]`
    O,
    /// `[H·D]`
    QBias,
    /// `[K·D]`
    KBias,
    /// `[K·D]`
    VBias,
    /// `[D]`: norm of each query head.
    QNorm,
    /// `[D]`: norm of each key head.
    KNorm,
    /// `[C]`: norm before the feed-forward network.
    FfnNorm,
    /// `[ffn, C]`
    Gate,
    /// `[ffn, C]`
    Up,
    /// `[C, ffn]`
    Down,
}

impl LayerTensor {
    /// Every tensor a layer may have, in the order of use.
    pub const ALL: [Self; 14] = [
        Self::AttnNorm,
        Self::Q,
        Self::K,
        Self::V,
        Self::QBias,
        Self::KBias,
        Self::VBias,
        Self::QNorm,
        Self::KNorm,
        Self::O,
        Self::FfnNorm,
        Self::Gate,
        Self::Up,
        Self::Down,
    ];

    fn spelled(self, dialect: Dialect) -> &'static str {
        let (gguf, hugging_face) = match self {
            Self::AttnNorm => ("attn_norm.weight", "input_layernorm.weight"),
            Self::Q => ("attn_q.weight", "self_attn.q_proj.weight"),
            Self::K => ("attn_k.weight", "self_attn.k_proj.weight"),
            Self::V => ("attn_v.weight", "self_attn.v_proj.weight"),
            Self::O => ("attn_output.weight", "self_attn.o_proj.weight"),
            Self::QBias => ("attn_q.bias", "self_attn.q_proj.bias"),
            Self::KBias => ("attn_k.bias", "self_attn.k_proj.bias"),
            Self::VBias => ("attn_v.bias", "self_attn.v_proj.bias"),
            Self::QNorm => ("attn_q_norm.weight", "self_attn.q_norm.weight"),
            Self::KNorm => ("attn_k_norm.weight", "self_attn.k_norm.weight"),
            Self::FfnNorm => ("ffn_norm.weight", "post_attention_layernorm.weight"),
            Self::Gate => ("ffn_gate.weight", "mlp.gate_proj.weight"),
            Self::Up => ("ffn_up.weight", "mlp.up_proj.weight"),
            Self::Down => ("ffn_down.weight", "mlp.down_proj.weight"),
        };
        match dialect {
            Dialect::Gguf => gguf,
            Dialect::HuggingFace => hugging_face,
        }
    }
}

/// The tensor with which GGUF files carry llama3-style scaling: one divisor per frequency.
pub(crate) const FACTORS_TENSOR: &str = "rope_freqs.weight";

/// Whose names a file uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Dialect {
    Gguf,
    HuggingFace,
}

impl Dialect {
    /// What this dialect calls `name`.
    pub(crate) fn spell(self, name: TensorName) -> String {
        match (self, name) {
            (Self::Gguf, TensorName::Embedding) => "token_embd.weight".to_owned(),
            (Self::Gguf, TensorName::OutputNorm) => "output_norm.weight".to_owned(),
            (Self::Gguf, TensorName::Head) => "output.weight".to_owned(),
            (Self::Gguf, TensorName::Layer(i, t)) => format!("blk.{i}.{}", t.spelled(self)),
            (Self::HuggingFace, TensorName::Embedding) => "model.embed_tokens.weight".to_owned(),
            (Self::HuggingFace, TensorName::OutputNorm) => "model.norm.weight".to_owned(),
            (Self::HuggingFace, TensorName::Head) => "lm_head.weight".to_owned(),
            (Self::HuggingFace, TensorName::Layer(i, t)) => format!("model.layers.{i}.{}", t.spelled(self)),
        }
    }

    /// The tensor this dialect calls `text`. Spells back exactly: `blk.03.attn_q.weight` is nobody's name.
    pub(crate) fn parse(self, text: &str) -> Option<TensorName> {
        let ends = [TensorName::Embedding, TensorName::OutputNorm, TensorName::Head];
        if let Some(name) = ends.into_iter().find(|n| self.spell(*n) == text) {
            return Some(name);
        }
        let prefix = match self {
            Self::Gguf => "blk.",
            Self::HuggingFace => "model.layers.",
        };
        let (index, suffix) = text.strip_prefix(prefix)?.split_once('.')?;
        let tensor = LayerTensor::ALL.into_iter().find(|t| t.spelled(self) == suffix)?;
        let name = TensorName::Layer(index.parse().ok()?, tensor);
        (self.spell(name) == text).then_some(name)
    }

    /// Whether a file may carry `text` though no forward pass needs it as a weight.
    pub(crate) fn is_ignorable(self, text: &str) -> bool {
        match self {
            Self::Gguf => text == FACTORS_TENSOR,
            // Written by old versions of transformers: a table anyone can compute.
            Self::HuggingFace => text.ends_with(".rotary_emb.inv_freq"),
        }
    }
}

impl TensorName {
    /// The tensor that GGUF files call `text`, if it is one a forward pass knows.
    pub fn from_gguf(text: &str) -> Option<Self> {
        Dialect::Gguf.parse(text)
    }

    /// What GGUF files call it.
    pub fn to_gguf(self) -> String {
        Dialect::Gguf.spell(self)
    }
}

impl fmt::Display for TensorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedding => f.write_str("embedding"),
            Self::OutputNorm => f.write_str("output norm"),
            Self::Head => f.write_str("head"),
            Self::Layer(i, t) => write!(f, "layer {i} {t:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_survives_a_round_trip_through_both_dialects() {
        let mut names = vec![TensorName::Embedding, TensorName::OutputNorm, TensorName::Head];
        names.extend(LayerTensor::ALL.map(|t| TensorName::Layer(17, t)));
        for dialect in [Dialect::Gguf, Dialect::HuggingFace] {
            for name in &names {
                assert_eq!(dialect.parse(&dialect.spell(*name)), Some(*name));
            }
        }
    }

    #[test]
    fn a_name_that_only_resembles_one_is_none() {
        for text in
            ["blk.03.attn_q.weight", "blk.+3.attn_q.weight", "blk.3.attn_q", "blk.99999999999.attn_q.weight"]
        {
            assert_eq!(Dialect::Gguf.parse(text), None, "{text}");
        }
    }
}
