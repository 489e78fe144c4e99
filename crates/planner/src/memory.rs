//! How many bytes a stage needs.

use exo_types::{DeviceKind, LayerRange, ModelShape, Shard};

use crate::{PlanRequest, ShardMemory};

/// Tokens of a prompt that pass a stage at once.
pub const CHUNK_TOKENS: u32 = 512;
/// Buffers of a layer, in rows of the hidden width: the residual stream, its norm, queries, keys, values,
/// attention output, and gate and up of a feed-forward about four times as wide.
const ROWS_OF_HIDDEN: u64 = 14;
/// What a process needs beside its tensors: code, stacks, connections, allocator slack.
const FIXED_BYTES: u64 = 64 << 20;

/// Bytes of a stage beside weights and KV: the buffers of one prefill chunk in f32, one row of logits for
/// every slot where the head is, and 64 MiB for everything else.
pub fn workspace_bytes(shape: &ModelShape, slots: u32, head: bool) -> u64 {
    let chunk = u64::from(CHUNK_TOKENS) * ROWS_OF_HIDDEN * u64::from(shape.hidden) * 4;
    let logits = if head { u64::from(slots) * u64::from(shape.vocab) * 4 } else { 0 };
    FIXED_BYTES.saturating_add(chunk).saturating_add(logits)
}

/// How a device holds weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WeightForm {
    /// About as large as they are stored: cards.
    AsStored,
    /// In the groups that a processor's kernels read. One that leaves them in their file needs a little less.
    Packed,
}

impl WeightForm {
    pub(crate) fn by(kind: DeviceKind) -> Self {
        if kind == DeviceKind::Cpu { Self::Packed } else { Self::AsStored }
    }

    /// Of a shard.
    fn weight_bytes(self, shape: &ModelShape, shard: &Shard) -> u64 {
        match self {
            Self::AsStored => shape.shard_weight_bytes(shard),
            Self::Packed => shape.shard_packed_bytes(shard),
        }
    }
}

/// What a stage may fill.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) free_bytes: u64,
    pub(crate) held: WeightForm,
}

/// Bytes of every range of layers, by sums from the start. Sums saturate: a hostile shape fits nowhere.
pub(crate) struct Sizes<'a> {
    shape: &'a ModelShape,
    slots: u32,
    tokens: u64,
    /// Weights and KV of the first n layers, by [`WeightForm`].
    layers: [Vec<u64>; 2],
}

impl<'a> Sizes<'a> {
    pub(crate) fn of(request: &'a PlanRequest) -> Self {
        let tokens = u64::from(request.cache_tokens);
        let layers = [WeightForm::AsStored, WeightForm::Packed].map(|held| {
            let mut sums = vec![0u64];
            for layer in &request.shape.layers {
                let weights = match held {
                    WeightForm::AsStored => layer.weight_bytes,
                    WeightForm::Packed => layer.packed_bytes,
                };
                let bytes = weights.saturating_add(layer.kv_bytes_per_token.saturating_mul(tokens));
                sums.push(sums[sums.len() - 1].saturating_add(bytes));
            }
            sums
        });
        Self { shape: &request.shape, slots: request.slots, tokens, layers }
    }

    pub(crate) fn layer_count(&self) -> u32 {
        self.shape.layer_count()
    }

    /// Everything a stage of these layers needs.
    pub(crate) fn stage(&self, held: WeightForm, range: LayerRange) -> ShardMemory {
        let shard = Shard::pipeline(range, self.layer_count());
        ShardMemory {
            weight_bytes: held.weight_bytes(self.shape, &shard),
            kv_bytes: self.shape.shard_kv_bytes_per_token(&shard).saturating_mul(self.tokens),
            workspace_bytes: workspace_bytes(self.shape, self.slots, shard.head),
        }
    }

    /// The same as one number, by subtraction.
    pub(crate) fn bytes(&self, held: WeightForm, start: u32, end: u32) -> u64 {
        let sums = &self.layers[held as usize];
        let layers = sums[end as usize].saturating_sub(sums[start as usize]);
        let (first, last) = (start == 0, end == self.layer_count());
        layers
            .saturating_add(self.ends_bytes(held, first, last))
            .saturating_add(workspace_bytes(self.shape, self.slots, last))
    }

    /// The furthest `end` for which layers `start..end` fit in `room`; `start` if none does. Without the
    /// last layer unless `last`: head and last layer go together.
    pub(crate) fn reach(&self, start: u32, room: Room, last: bool) -> u32 {
        let count = self.layer_count();
        let fits = |end: u32| self.bytes(room.held, start, end) <= room.free_bytes;
        if last && start < count && fits(count) {
            return count;
        }
        let (mut low, mut high) = (start, (count - 1).max(start));
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if fits(middle) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low
    }

    /// Weights and KV of the whole model on one device.
    pub(crate) fn model_bytes(&self, held: WeightForm) -> u64 {
        let sums = &self.layers[held as usize];
        sums[sums.len() - 1].saturating_add(self.ends_bytes(held, true, true))
    }

    /// Workspace of a stage in the middle.
    pub(crate) fn workspace(&self) -> u64 {
        workspace_bytes(self.shape, self.slots, false)
    }

    /// The piece that cannot be split and needs the most: a layer alone, or with the embedding or head that
    /// the first or last layer comes with.
    pub(crate) fn largest_unit(&self, held: WeightForm) -> (String, u64) {
        let last = self.layer_count() - 1;
        let unit = |layer: u32| {
            let name = match (layer == 0, layer == last) {
                (true, true) => "the only layer with embedding and head".to_owned(),
                (true, false) => "layer 0 with the embedding".to_owned(),
                (false, true) => format!("layer {layer} with the output head"),
                (false, false) => format!("layer {layer}"),
            };
            let workspace = workspace_bytes(self.shape, self.slots, layer == last);
            let bytes = self.bytes(held, layer, layer + 1) - workspace;
            (name, bytes)
        };
        (0..=last).map(unit).max_by_key(|(_, bytes)| *bytes).unwrap_or_default()
    }

    fn ends_bytes(&self, held: WeightForm, first: bool, last: bool) -> u64 {
        let empty = Shard { layers: LayerRange::new(0, 0), embedding: first, head: last };
        held.weight_bytes(self.shape, &empty)
    }
}
