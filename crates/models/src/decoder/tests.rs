//! What is recorded, on handles that stand for nothing.

use std::sync::Arc;

use exo_backend::{
    Alone, AttentionBatch, DeviceOwned, Element, ExchangeError, KvDType, KvShape, OpKind, Owner,
};
use exo_formats::{Architecture, RopeConfig};
use exo_types::{DType, LayerRange};

use super::*;
use crate::{HeadBuffers, HeadWeights, QkNorm, block};

/// What stands behind every handle here.
struct Nothing(Owner);

impl DeviceOwned for Nothing {
    fn owner(&self) -> Owner {
        self.0
    }
}

struct Pair;

impl Exchange for Pair {
    fn is_alone(&self) -> bool {
        false
    }
    fn sum(&self, _partial: &mut [f32]) -> Result<(), ExchangeError> {
        Ok(())
    }
}

fn config() -> ModelConfig {
    ModelConfig {
        architecture: Architecture::Qwen3,
        layers: 3,
        hidden: 4,
        ffn: 8,
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
        vocab: 16,
        context_tokens_max: 64,
        rms_eps: 1e-6,
        rope: RopeConfig { style: StoredRopeStyle::Halves, frequencies: vec![1.0, 0.1], theta: 1e4 },
        sliding_window: None,
        qk_norm: true,
        qkv_bias: false,
        tied: true,
        bos: None,
        eos: vec![],
    }
}

/// Handles to nothing: a recording never looks behind them.
fn paper() -> ShardWeights {
    let storage = Arc::new(Nothing(Owner::next()));
    let (name, dtype) = ("paper".into(), DType::F32);
    let w = Weight { name, dtype, rows: 1, cols: 1, footprint_bytes: 0, storage };
    let layer = LayerWeights {
        attn_norm: w.clone(),
        q: w.clone(),
        k: w.clone(),
        v: w.clone(),
        qkv_bias: None,
        qk_norm: Some(QkNorm { q: w.clone(), k: w.clone() }),
        o: w.clone(),
        ffn_norm: w.clone(),
        gate: w.clone(),
        up: w.clone(),
        down: w.clone(),
    };
    let head = HeadWeights { norm: w.clone(), output: w.clone() };
    ShardWeights { layers: vec![layer; 3], embedding: Some(w.clone()), head: Some(head), rope_frequencies: w }
}

fn buffers() -> StepBuffers {
    let b = || Buffer { element: Element::F32, len: 1, storage: Arc::new(Nothing(Owner::next())) };
    let batch = AttentionBatch { positions: b(), sequences: b(), page_table: b(), pages_per_sequence: 1 };
    let head = HeadBuffers { rows: b(), selected: b(), logits: b(), best: b() };
    StepBuffers {
        ids: Some(b()),
        batch,
        hidden: b(),
        normed: b(),
        q: b(),
        k: b(),
        v: b(),
        gathered: b(),
        delta: b(),
        gate: b(),
        up: b(),
        head: Some(head),
    }
}

fn record(shard: &Shard, exchange: &dyn Exchange) -> Vec<Op> {
    let config = config();
    let dtype = KvDType::F32;
    let shape = KvShape { layers: 2, kv_heads: 1, head_dim: 4, page_tokens: 8, pages: 1, dtype };
    let kv = KvCache { shape, storage: Arc::new(Nothing(Owner::next())) };
    let block = block(&config).unwrap();
    record_layers(&config, &block, shard, &paper(), &buffers(), &kv, exchange).ops
}

fn count(ops: &[Op], kind: OpKind) -> usize {
    ops.iter().filter(|op| op.kind() == kind).count()
}

#[test]
fn an_exchange_follows_each_partial_sum_and_only_in_company() {
    let shard = Shard::whole(3);
    assert_eq!(count(&record(&shard, &Alone), OpKind::Exchange), 0);
    let ops = record(&shard, &Pair);
    assert_eq!(count(&ops, OpKind::Exchange), 2 * 3);
    for pair in ops.windows(2).filter(|pair| pair[0].kind() == OpKind::Exchange) {
        assert_eq!(pair[1].kind(), OpKind::Add, "summed over the group before it joins the stream");
    }
}

#[test]
fn boundaries_name_layers_of_the_model_and_the_cache_counts_those_of_the_shard() {
    let ops = record(&Shard::pipeline(LayerRange::new(1, 3), 3), &Alone);
    assert_eq!(count(&ops, OpKind::Embed), 0, "a later stage starts from hidden rows");
    let boundaries = ops.iter().filter_map(|op| match op {
        Op::LayerBoundary { layer } => Some(*layer),
        _ => None,
    });
    assert_eq!(boundaries.collect::<Vec<_>>(), [1, 2]);
    let cached = ops.iter().filter_map(|op| match op {
        Op::KvWrite { layer, .. } | Op::Attention { layer, .. } => Some(*layer),
        _ => None,
    });
    assert_eq!(cached.collect::<Vec<_>>(), [0, 0, 1, 1]);
}

#[test]
fn an_option_the_architecture_lacks_is_refused_rather_than_left_out() {
    for architecture in [Architecture::Llama, Architecture::Mistral, Architecture::Qwen2] {
        assert!(block(&ModelConfig { architecture, ..config() }).is_err(), "{architecture} has no QK-norm");
    }
    assert!(block(&ModelConfig { qkv_bias: true, ..config() }).is_err());
    assert!(block(&ModelConfig { kv_heads: 0, ..config() }).is_err());
    assert!(block(&ModelConfig { heads: 3, kv_heads: 2, ..config() }).is_err());
}
