//! What the simulator reads out of placements and shards, in one place.

use std::collections::BTreeMap;

use exo_cluster::{InstanceRequest, PlaceObjective};
use exo_types::{
    Corrections, DeviceFacts, DeviceId, DeviceKind, KvDType, LayerRates, LayerShape, ModelId, ModelShape,
    NodeId, Placement, ShardSpec, SupportClass,
};

use crate::engine::PAGE_TOKENS;
use crate::model::{HIDDEN, VOCAB};

/// The model that every run serves.
pub const MODEL: ModelId = ModelId([9; 32]);
/// What it is called.
pub const MODEL_NAME: &str = "sim";
/// Its layers.
pub const LAYERS: u32 = 6;
/// Longest sequence.
pub const CONTEXT_TOKENS: u32 = 128;
/// Tokens of its cache.
pub const CACHE_TOKENS: u32 = 512;
/// Sequences at once.
pub const SLOTS: u32 = 6;
/// Memory of a device.
pub const MEMORY_BYTES: u64 = 64 << 30;
const LAYER_BYTES: u64 = 40 << 20;

/// The node of each stage, first stage first.
pub fn stage_nodes(placement: &Placement) -> Vec<NodeId> {
    placement.stages.iter().map(|stage| stage.leader().node).collect()
}

/// Pages of a shard's cache.
pub fn pages_of(spec: &ShardSpec) -> u32 {
    spec.cache.cache_tokens / PAGE_TOKENS
}

/// The model in numbers.
pub fn model_shape() -> ModelShape {
    let layer = LayerShape {
        weight_bytes: LAYER_BYTES,
        packed_bytes: LAYER_BYTES,
        flops_per_token: 2 * LAYER_BYTES,
        kv_bytes_per_token: 4096,
    };
    ModelShape {
        layers: vec![layer; LAYERS as usize],
        embedding_bytes: LAYER_BYTES / 2,
        head_bytes: LAYER_BYTES / 2,
        embedding_packed_bytes: LAYER_BYTES / 2,
        head_packed_bytes: LAYER_BYTES / 2,
        tied: false,
        hidden: HIDDEN,
        attention: HIDDEN,
        vocab: VOCAB,
        context_tokens_max: CONTEXT_TOKENS,
    }
}

/// What is asked for when the model is placed over at least so many stages.
pub fn instance_request(stages_min: u32, holders: Vec<NodeId>) -> InstanceRequest {
    let objective = if stages_min > 1 { PlaceObjective::Spread { stages_min } } else { PlaceObjective::Fit };
    InstanceRequest {
        model: MODEL,
        model_name: MODEL_NAME.to_owned(),
        shape: model_shape(),
        weight_types: None,
        context_tokens: CONTEXT_TOKENS,
        slots: SLOTS,
        cache_tokens: CACHE_TOKENS,
        kv: KvDType::default(),
        objective,
        pins: Vec::new(),
        excluded: Vec::new(),
        holders,
        is_on_demand: false,
    }
}

/// A node's only device, with so much of its memory in use.
pub fn device(used_bytes: u64) -> DeviceFacts {
    DeviceFacts {
        id: DeviceId::cpu(),
        kind: DeviceKind::Cpu,
        name: "simulated".to_owned(),
        backend: "sim".to_owned(),
        memory_total_bytes: MEMORY_BYTES,
        memory_free_bytes: MEMORY_BYTES - used_bytes,
        memory_domain: None,
        compute_units: 4,
        read_bytes_per_s: Some(20e9),
        flops_per_s: Some(1e12),
        rates_by_type: Vec::new(),
        layer_rates: Some(LayerRates {
            prefill_read_bytes_per_s: 6e9,
            attention_flops_per_s: 300e9,
            activations_per_s: 2e9,
            layer_s: 20e-6,
            kv_read_bytes_per_s: None,
            read_16_rows_bytes_per_s: None,
        }),
        rates_measured: None,
        corrections: Corrections::default(),
        unsupported_types: Vec::new(),
        support: SupportClass::Full,
        support_reason: String::new(),
    }
}

/// Numbers the nodes of a run for people: `n0`, `n1`, …
#[derive(Clone, Debug, Default)]
pub struct Names(BTreeMap<NodeId, usize>);

impl Names {
    /// Names for these nodes, in order.
    pub fn new(nodes: impl IntoIterator<Item = NodeId>) -> Self {
        Self(nodes.into_iter().enumerate().map(|(index, id)| (id, index)).collect())
    }

    /// The index of a node; `None` for a stranger to the run.
    pub fn index(&self, node: NodeId) -> Option<usize> {
        self.0.get(&node).copied()
    }

    /// Puts `n0`, `n1`, … for the ids in a text.
    pub fn shorten(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (id, index) in &self.0 {
            text = text.replace(&format!("NodeId({id})"), &format!("n{index}"));
            text = text.replace(&id.to_string(), &format!("n{index}"));
        }
        text
    }
}
