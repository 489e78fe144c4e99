//! What a planner needs to know of a model: bytes and arithmetic per unit, no tensors.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{DType, LAYERS_MAX, LayerRange, Shard, TYPES_MAX, list};

/// One transformer layer in numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LayerShape {
    /// Stored bytes of the layer's weights.
    pub weight_bytes: u64,
    /// Bytes of the same in a processor's memory, which packs them: a few per cent more.
    pub packed_bytes: u64,
    /// Multiply-adds times two, per token, without attention over the context.
    pub flops_per_token: u64,
    /// Bytes of keys and values one token adds to the cache.
    pub kv_bytes_per_token: u64,
}

/// A model in numbers. Layers may be unequal.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ModelShape {
    /// Per layer, first to last.
    #[serde(deserialize_with = "list::<_, _, LAYERS_MAX>")]
    pub layers: Vec<LayerShape>,
    /// Stored bytes of the embedding table.
    pub embedding_bytes: u64,
    /// Stored bytes of final norm and output head. A tied head counts the embedding table again: the last
    /// stage holds a copy.
    pub head_bytes: u64,
    /// As [`LayerShape::packed_bytes`], of the embedding table.
    pub embedding_packed_bytes: u64,
    /// As [`LayerShape::packed_bytes`], of final norm and output head.
    pub head_packed_bytes: u64,
    /// Whether embedding and head are one table (held once when one device has both ends).
    pub tied: bool,
    /// Width C of the hidden state.
    pub hidden: u32,
    /// Width of attention: heads times the size of one. Of many models it is not that of the hidden state.
    pub attention: u32,
    /// Tokens in the vocabulary.
    pub vocab: u32,
    /// Longest context the model was made for.
    pub context_tokens_max: u32,
}

/// Bytes of weights by type, as stored.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WeightTypes {
    /// Of each layer; the first one with the type of the embedding, which goes where it goes, and of which no
    /// bytes are counted: a step looks rows of it up.
    #[serde(deserialize_with = "list::<_, _, LAYERS_MAX>")]
    pub layers: Vec<TypeBytes>,
    /// Of final norm and output head.
    pub head: TypeBytes,
}

/// Stored bytes of each type, no type twice.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct TypeBytes(#[serde(deserialize_with = "list::<_, _, TYPES_MAX>")] pub Vec<(DType, u64)>);

impl TypeBytes {
    /// All of them; more than fits counts as the most that does.
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }
}

impl FromIterator<(DType, u64)> for TypeBytes {
    /// Adds up what is of the same type.
    fn from_iter<I: IntoIterator<Item = (DType, u64)>>(tensors: I) -> Self {
        let mut types: BTreeMap<DType, u64> = BTreeMap::new();
        for (dtype, bytes) in tensors {
            let sum = types.entry(dtype).or_default();
            *sum = sum.saturating_add(bytes);
        }
        Self(types.into_iter().collect())
    }
}

impl WeightTypes {
    /// With an embedding table of this type.
    #[must_use]
    pub fn with_embedding(mut self, dtype: DType) -> Self {
        if let Some(TypeBytes(first)) = self.layers.first_mut()
            && !first.iter().any(|(other, _)| *other == dtype)
        {
            first.push((dtype, 0));
        }
        self
    }

    /// Whether they are what `shape` consists of.
    pub fn are_of(&self, shape: &ModelShape) -> bool {
        let is_whole = |(types, layer): (&TypeBytes, &LayerShape)| types.total() == layer.weight_bytes;
        self.layers.len() == shape.layers.len()
            && self.layers.iter().zip(&shape.layers).all(is_whole)
            && self.head.total() == shape.head_bytes
    }
}

impl ModelShape {
    /// Number of layers.
    pub fn layer_count(&self) -> u32 {
        self.layers.len() as u32
    }

    /// Stored bytes of everything.
    pub fn weight_bytes(&self) -> u64 {
        self.shard_weight_bytes(&Shard::whole(self.layer_count()))
    }

    /// Stored bytes of what `shard` holds. Layers beyond the model count nothing.
    pub fn shard_weight_bytes(&self, shard: &Shard) -> u64 {
        let layers: u64 = self.layers_of(shard.layers).map(|l| l.weight_bytes).sum();
        layers + self.ends(shard, self.embedding_bytes, self.head_bytes)
    }

    /// Bytes of what `shard` holds in a processor's memory, which packs it.
    pub fn shard_packed_bytes(&self, shard: &Shard) -> u64 {
        let layers: u64 = self.layers_of(shard.layers).map(|l| l.packed_bytes).sum();
        layers + self.ends(shard, self.embedding_packed_bytes, self.head_packed_bytes)
    }

    /// What `shard` has of a table and a head of so many bytes.
    fn ends(&self, shard: &Shard, embedding_bytes: u64, head_bytes: u64) -> u64 {
        let embedding = if shard.embedding { embedding_bytes } else { 0 };
        let head = match (shard.head, self.tied && shard.embedding) {
            (false, _) => 0,
            (true, false) => head_bytes,
            (true, true) => head_bytes.saturating_sub(embedding_bytes),
        };
        embedding + head
    }

    /// Bytes one token of context costs in the layers of `shard`.
    pub fn shard_kv_bytes_per_token(&self, shard: &Shard) -> u64 {
        self.layers_of(shard.layers).map(|l| l.kv_bytes_per_token).sum()
    }

    fn layers_of(&self, range: LayerRange) -> impl Iterator<Item = &LayerShape> {
        self.layers.iter().skip(range.start as usize).take(range.len() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_of_an_embedding_is_told_once_and_counts_no_bytes() {
        let types = |bytes: &[(DType, u64)]| WeightTypes {
            layers: vec![TypeBytes(bytes.to_vec()); 2],
            head: TypeBytes(Vec::new()),
        };
        let mixed = types(&[(DType::Q4_K, 10)]).with_embedding(DType::Q6_K).with_embedding(DType::Q6_K);
        assert_eq!(mixed.layers[0].0, [(DType::Q4_K, 10), (DType::Q6_K, 0)]);
        assert_eq!((mixed.layers[1].0.len(), mixed.layers[0].total()), (1, 10));
        let same = types(&[(DType::Q6_K, 10)]);
        assert_eq!(same.clone().with_embedding(DType::Q6_K), same);
    }

    #[test]
    fn a_tied_table_is_counted_once_per_device() {
        let layer =
            LayerShape { weight_bytes: 10, packed_bytes: 11, flops_per_token: 20, kv_bytes_per_token: 4 };
        let shape = ModelShape {
            layers: vec![layer; 4],
            embedding_bytes: 100,
            head_bytes: 101,
            embedding_packed_bytes: 110,
            head_packed_bytes: 112,
            tied: true,
            hidden: 8,
            attention: 8,
            vocab: 16,
            context_tokens_max: 64,
        };
        assert_eq!(shape.weight_bytes(), 40 + 101);
        let last = Shard::pipeline(LayerRange::new(2, 4), 4);
        assert_eq!(shape.shard_weight_bytes(&last), 20 + 101);
        assert_eq!(shape.shard_packed_bytes(&last), 22 + 112);
        assert_eq!(shape.shard_packed_bytes(&Shard::whole(4)), 44 + 112);
        assert_eq!(shape.shard_kv_bytes_per_token(&last), 8);
    }
}
