//! What a step costs by the model's numbers: bytes it must read, products it must form.

use exo_formats::{Model, TensorName};
use exo_types::{DType, Shard};

/// A model's costs. Weights count as stored, whatever layout the device gave them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModelCosts {
    /// Bytes of every tensor.
    pub stored_bytes: u64,
    /// Elements of every tensor.
    pub parameters: u64,
    /// Bytes that one decode step reads, whatever the number of its sequences: every tensor but an embedding
    /// table of its own, of which a token reads one row.
    pub step_weight_bytes: u64,
    /// Multiply-adds of one token in the matrices of the layers.
    pub layer_products: u64,
    /// Multiply-adds of one row of logits.
    pub head_products: u64,
    /// The type most weight bytes have.
    pub dtype: DType,
}

impl ModelCosts {
    pub fn of(model: &Model) -> anyhow::Result<Self> {
        let mut work = Self {
            stored_bytes: 0,
            parameters: 0,
            step_weight_bytes: 0,
            layer_products: 0,
            head_products: 0,
            dtype: DType::F32,
        };
        let mut bytes_by_type = std::collections::BTreeMap::new();
        for name in model.tensors_of(&Shard::whole(model.config.layers)) {
            let view = model.tensor(name)?;
            let (bytes, elements) = (view.range.len() as u64, view.rows * view.cols);
            work.stored_bytes += bytes;
            work.parameters += elements;
            *bytes_by_type.entry(view.dtype).or_insert(0) += bytes;
            let is_head = name == TensorName::Head || (model.config.tied && name == TensorName::Embedding);
            if is_head || name != TensorName::Embedding {
                work.step_weight_bytes += bytes;
            }
            if is_head {
                work.head_products += elements;
            } else if name != TensorName::Embedding && view.rows > 1 {
                work.layer_products += elements;
            }
        }
        let largest = bytes_by_type.into_iter().max_by_key(|(_, bytes)| *bytes);
        work.dtype = largest.map_or(DType::F32, |(dtype, _)| dtype);
        Ok(work)
    }

    /// Multiply-adds of the weights in a prompt of `tokens`: the head runs once, for the last. Attention is
    /// not counted.
    pub fn prefill_products(&self, tokens: u32) -> u64 {
        self.layer_products * u64::from(tokens) + self.head_products
    }
}

/// Bytes of keys and values one sequence reads per token, averaged over `tokens` tokens from `depth` on,
/// itself included.
pub fn kv_bytes_per_token(position_bytes: u64, depth: u32, tokens: u32) -> f64 {
    let mean_positions = f64::from(depth) + (f64::from(tokens) + 1.0) / 2.0;
    position_bytes as f64 * mean_positions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_models_costs_follow_from_its_shapes() {
        let model = crate::commands::subject::Subject::Demo.open().unwrap();
        let (work, c) = (ModelCosts::of(&model).unwrap(), &model.config);
        let [h, f, v, layers] = [c.hidden, c.ffn, c.vocab, c.layers].map(u64::from);
        let (q, kv) = (u64::from(c.heads * c.head_dim), u64::from(c.kv_heads * c.head_dim));
        assert_eq!(work.layer_products, layers * (2 * h * q + 2 * h * kv + 3 * h * f));
        assert_eq!(work.head_products, h * v);
        assert_eq!(work.prefill_products(10), 10 * work.layer_products + h * v);
        assert_eq!(work.dtype, DType::Q8_0);
        let table_bytes = model.tensor(TensorName::Embedding).unwrap().range.len() as u64;
        let once = if c.tied { work.stored_bytes } else { work.stored_bytes - table_bytes };
        assert_eq!(work.step_weight_bytes, once);
    }

    #[test]
    fn a_token_reads_all_before_it_and_itself() {
        assert_eq!(kv_bytes_per_token(10, 0, 1), 10.0);
        assert_eq!(kv_bytes_per_token(10, 0, 3), 20.0);
        assert_eq!(kv_bytes_per_token(10, 100, 1), 1010.0);
    }
}
