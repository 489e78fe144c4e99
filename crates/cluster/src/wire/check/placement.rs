//! Bounds of models and placements, wherever they come from: a peer, the log, a snapshot.

use exo_types::{
    DType, DeviceId, LayerRange, LayerShape, ModelShape, Pin, PinLayers, Placement, TYPES_MAX, TypeBytes,
    WeightTypes,
};

use super::super::limits::{
    CACHE_TOKENS_MAX, CONTEXT_TOKENS_MAX, LAYERS_MAX, MEMBERS_MAX, PINS_MAX, SEQUENCES_MAX, SHARDS_MAX,
    STAGES_MAX,
};
use super::{Check, CheckError, at_most, ensure, text};
use crate::{InstanceRequest, PlaceObjective};

/// Bytes of one tensor group: sums over [`LAYERS_MAX`] layers stay below 2^63.
const GROUP_BYTES_MAX: u64 = 1 << 50;
/// Bytes one token adds to one layer's cache; with the next bound, all caches stay below 2^63 bytes.
const KV_BYTES_MAX: u64 = 1 << 24;
/// Bytes of a device's name.
const DEVICE_ID_BYTES_MAX: usize = 256;

impl Check for InstanceRequest {
    fn check(&self) -> Result<(), CheckError> {
        name(&self.model_name)?;
        at_most("holders of a model", self.holders.len(), MEMBERS_MAX)?;
        cache(self.context_tokens, self.slots, self.cache_tokens)?;
        match self.objective {
            PlaceObjective::Fit => {}
            PlaceObjective::Spread { stages_min } => {
                at_most("stages asked for", stages_min as usize, STAGES_MAX)?;
            }
            PlaceObjective::Throughput { streams } => {
                ensure(streams > 0, "throughput is asked for over 0 streams")?;
                at_most("streams asked for", streams as usize, SEQUENCES_MAX)?;
            }
        }
        at_most("pins", self.pins.len(), PINS_MAX)?;
        at_most("exclusions", self.excluded.len(), PINS_MAX)?;
        self.pins.iter().try_for_each(Check::check)?;
        self.excluded.iter().filter_map(|e| e.device.as_ref()).try_for_each(device_id)?;
        self.shape.check()?;
        self.weight_types.as_ref().map_or(Ok(()), |types| weight_types(types, &self.shape))
    }
}

/// What the planner adds up by type is what it adds up without.
fn weight_types(types: &WeightTypes, shape: &ModelShape) -> Result<(), CheckError> {
    for TypeBytes(bytes) in types.layers.iter().chain([&types.head]) {
        at_most("types of weights in a layer", bytes.len(), TYPES_MAX)?;
        let is_twice =
            |(at, (dtype, _)): (usize, &(DType, u64))| bytes[..at].iter().any(|(other, _)| other == dtype);
        ensure(!bytes.iter().enumerate().any(is_twice), "a layer has a type of weights twice")?;
    }
    ensure(types.are_of(shape), "the bytes by type are not those of the model")
}

impl Check for Pin {
    fn check(&self) -> Result<(), CheckError> {
        device_id(&self.device)?;
        let is_some = match self.layers {
            PinLayers::Any => true,
            PinLayers::Count(count) => (1..=LAYERS_MAX).contains(&(count as usize)),
            PinLayers::Range(LayerRange { start, end }) => start < end && end as usize <= LAYERS_MAX,
        };
        ensure(is_some, "a pin names no layers, or more than a model has")
    }
}

impl Check for ModelShape {
    fn check(&self) -> Result<(), CheckError> {
        ensure(!self.layers.is_empty(), "a model has no layers")?;
        at_most("layers of a model", self.layers.len(), LAYERS_MAX)?;
        let ends =
            [self.embedding_bytes, self.head_bytes, self.embedding_packed_bytes, self.head_packed_bytes];
        ensure(
            ends.into_iter().all(|bytes| bytes <= GROUP_BYTES_MAX),
            "a model's embedding or head has more than 2^50 bytes",
        )?;
        self.layers.check()
    }
}

impl Check for LayerShape {
    fn check(&self) -> Result<(), CheckError> {
        let small = self.weight_bytes <= GROUP_BYTES_MAX
            && self.packed_bytes <= GROUP_BYTES_MAX
            && self.flops_per_token <= GROUP_BYTES_MAX
            && self.kv_bytes_per_token <= KV_BYTES_MAX;
        ensure(small, "a layer is larger than any layer can be")
    }
}

impl Check for Placement {
    fn check(&self) -> Result<(), CheckError> {
        at_most("stages of a placement", self.stages.len(), STAGES_MAX)?;
        at_most("shards of a placement", self.stages.iter().map(|s| s.shards.len()).sum(), SHARDS_MAX)?;
        self.shards().try_for_each(|(_, shard)| device_id(&shard.device))?;
        let layer_count = self.stages.last().map_or(0, |s| s.layers.end);
        at_most("layers of a placement", layer_count as usize, LAYERS_MAX)?;
        ensure(self.tiles(layer_count), "a placement has gaps or no stages")?;
        ensure(self.id.number > 0, "a placement has number 0")?;
        cache(self.context_tokens, self.slots, self.cache_tokens)
    }
}

fn cache(context_tokens: u32, slots: u32, cache_tokens: u32) -> Result<(), CheckError> {
    ensure(context_tokens > 0 && slots > 0, "a placement has no context or no slots")?;
    at_most("tokens of a context", context_tokens as usize, CONTEXT_TOKENS_MAX as usize)?;
    at_most("slots of an instance", slots as usize, SEQUENCES_MAX)?;
    ensure(cache_tokens >= context_tokens, "a placement's cache does not hold one sequence")?;
    ensure(cache_tokens <= CACHE_TOKENS_MAX, "a placement's cache is above 2^26 tokens")
}

pub(super) fn device_id(device: &DeviceId) -> Result<(), CheckError> {
    at_most("bytes of a device's name", device.0.len(), DEVICE_ID_BYTES_MAX)
}

/// Texts of views and requests share one bound.
pub(super) fn name(model_name: &str) -> Result<(), CheckError> {
    text("bytes of a model name", model_name)
}
