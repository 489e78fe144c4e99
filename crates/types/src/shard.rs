//! Which part of a model a device holds, and the whole assignment of parts to devices.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{DeviceId, InstanceId, KvDType, ModelId, NodeId, PlacementId, SHARDS_MAX, STAGES_MAX, list};

/// A half-open range of transformer layers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct LayerRange {
    /// First layer held.
    pub start: u32,
    /// First layer not held.
    pub end: u32,
}

impl LayerRange {
    /// The range `start..end`. Panics if it runs backwards: ranges come from planners, not from peers.
    pub fn new(start: u32, end: u32) -> Self {
        assert!(start <= end, "layer range {start}..{end} runs backwards");
        Self { start, end }
    }

    /// Number of layers; zero for a backwards range decoded from a peer.
    pub fn len(self) -> u32 {
        self.end.saturating_sub(self.start)
    }

    /// Whether no layer is held.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Whether `layer` is held.
    pub fn contains(self, layer: u32) -> bool {
        (self.start..self.end).contains(&layer)
    }

    /// The layers in order.
    pub fn iter(self) -> std::ops::Range<u32> {
        self.start..self.end
    }
}

impl fmt::Display for LayerRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

/// The part of a model one device holds. Embedding and output head are units of their own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Shard {
    /// Transformer layers held.
    pub layers: LayerRange,
    /// Whether it turns token ids into hidden states.
    pub embedding: bool,
    /// Whether it turns hidden states into logits (final norm and output head).
    pub head: bool,
}

impl Shard {
    /// Whole layers `layers` of a model of `layer_count`; embedding and head at the ends.
    pub fn pipeline(layers: LayerRange, layer_count: u32) -> Self {
        Self { layers, embedding: layers.start == 0, head: layers.end == layer_count }
    }

    /// The whole model on one device.
    pub fn whole(layer_count: u32) -> Self {
        Self::pipeline(LayerRange::new(0, layer_count), layer_count)
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "layers {}", self.layers)?;
        if self.embedding {
            f.write_str(" + embedding")?;
        }
        if self.head {
            f.write_str(" + head")?;
        }
        Ok(())
    }
}

/// What the key-value cache of a shard is made for: a shard with another cache is another shard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct CacheShape {
    /// Longest sequence (prompt and answer) in tokens.
    pub context_tokens: u32,
    /// Sequences that may run at once.
    pub slots: u32,
    /// Tokens whose keys and values there is room for, over all sequences and what is kept of earlier ones.
    pub cache_tokens: u32,
    /// How keys and values are stored.
    pub kv: KvDType,
}

/// What a shard in a device's memory is. Two with equal specs hold the same weights and the same empty cache,
/// whichever placement they were loaded for: what is loaded with the spec that is wanted need not be loaded
/// again.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ShardSpec {
    /// The model, by manifest.
    pub model: ModelId,
    /// Transformer layers held.
    pub layers: LayerRange,
    /// Whether it turns token ids into hidden states.
    pub embedding: bool,
    /// Whether it turns hidden states into logits.
    pub head: bool,
    /// On which of its node's devices.
    pub device: DeviceId,
    /// The cache beside the weights.
    pub cache: CacheShape,
}

impl ShardSpec {
    /// The part of the model that is held.
    pub fn shard(&self) -> Shard {
        Shard { layers: self.layers, embedding: self.embedding, head: self.head }
    }
}

/// Names one shard of one placement.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ShardPosition {
    /// The placement.
    pub placement: PlacementId,
    /// Index of the stage.
    pub stage: u32,
    /// Index of the shard within its stage; the leader has rank 0.
    pub rank: u32,
}

/// A shard on a device.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct PlacedShard {
    /// The node that holds it.
    pub node: NodeId,
    /// Which of the node's devices.
    pub device: DeviceId,
    /// What it holds.
    pub shard: Shard,
}

/// One step of the pipeline: layers, and who computes them together.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Stage {
    /// The layers of the stage.
    pub layers: LayerRange,
    /// Its shards, the leader's first; the index is the rank. Never empty.
    #[serde(deserialize_with = "list::<_, _, SHARDS_MAX>")]
    pub shards: Vec<PlacedShard>,
}

impl Stage {
    /// A stage of one shard.
    pub fn solo(node: NodeId, device: DeviceId, shard: Shard) -> Self {
        Self { layers: shard.layers, shards: vec![PlacedShard { node, device, shard }] }
    }

    /// The shard whose node receives the stage's steps and sends its results. Panics on a stage without
    /// shards: planners make none, and decoding has refused them.
    pub fn leader(&self) -> &PlacedShard {
        assert!(!self.shards.is_empty(), "the stage of layers {} has no shard", self.layers);
        &self.shards[0]
    }

    /// Whether one of its shards is on `node`.
    pub fn is_on(&self, node: NodeId) -> bool {
        self.shards.iter().any(|shard| shard.node == node)
    }
}

/// Shards of one model assigned to devices, in pipeline order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Placement {
    /// Its own name: what is sent for another placement is refused.
    pub id: PlacementId,
    /// The instance this placement serves.
    pub instance: InstanceId,
    /// The model, by manifest.
    pub model: ModelId,
    /// First stage first. The node of the first stage's leader runs the instance scheduler.
    #[serde(deserialize_with = "list::<_, _, STAGES_MAX>")]
    pub stages: Vec<Stage>,
    /// Longest sequence (prompt and answer) in tokens.
    pub context_tokens: u32,
    /// Sequences that may run at once.
    pub slots: u32,
    /// Tokens whose keys and values every stage has room for, over all sequences and what is kept of earlier
    /// ones: at least one sequence of `context_tokens`, in whole pages.
    pub cache_tokens: u32,
    /// How every stage stores keys and values.
    pub kv: KvDType,
}

impl Placement {
    /// Whether the stages tile `layer_count` layers in order, with embedding first and head last, and every
    /// shard of a stage has the stage's layers.
    pub fn tiles(&self, layer_count: u32) -> bool {
        let mut next = 0;
        for (i, stage) in self.stages.iter().enumerate() {
            let (embedding, head) = (i == 0, i + 1 == self.stages.len());
            let part = Shard { layers: stage.layers, embedding, head };
            let is_whole = !stage.shards.is_empty() && stage.shards.iter().all(|s| s.shard == part);
            if !is_whole || stage.layers.start != next || stage.layers.end < next {
                return false;
            }
            next = stage.layers.end;
        }
        next == layer_count && !self.stages.is_empty()
    }

    /// The first stage that `node` has a shard of.
    pub fn stage_of(&self, node: NodeId) -> Option<usize> {
        self.stages.iter().position(|stage| stage.is_on(node))
    }

    /// Every shard with its position, in order of stage and rank: the order of whatever there is one of per
    /// shard.
    pub fn shards(&self) -> impl Iterator<Item = (ShardPosition, &PlacedShard)> {
        (0u32..).zip(&self.stages).flat_map(move |(stage, part)| {
            (0u32..).zip(&part.shards).map(move |(rank, shard)| (self.position(stage, rank), shard))
        })
    }

    /// The name of one of its shards.
    pub fn position(&self, stage: u32, rank: u32) -> ShardPosition {
        ShardPosition { placement: self.id, stage, rank }
    }

    /// One of its shards.
    pub fn shard(&self, stage: u32, rank: u32) -> Option<&PlacedShard> {
        self.stages.get(stage as usize)?.shards.get(rank as usize)
    }

    /// What one of its shards is in memory. Panics if there is no such shard.
    pub fn spec(&self, stage: u32, rank: u32) -> ShardSpec {
        let PlacedShard { device, shard, .. } = &self.stages[stage as usize].shards[rank as usize];
        let Shard { layers, embedding, head } = *shard;
        ShardSpec { model: self.model, layers, embedding, head, device: device.clone(), cache: self.cache() }
    }

    /// The cache of each of its shards.
    pub fn cache(&self) -> CacheShape {
        let Self { context_tokens, slots, cache_tokens, kv, .. } = *self;
        CacheShape { context_tokens, slots, cache_tokens, kv }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Epoch;

    fn placement(cuts: &[u32]) -> Placement {
        let total = cuts.last().copied().unwrap_or(0);
        let stages = cuts
            .windows(2)
            .map(|w| {
                let shard = Shard::pipeline(LayerRange::new(w[0], w[1]), total);
                Stage::solo(NodeId([w[1] as u8; 32]), DeviceId::cpu(), shard)
            })
            .collect();
        let (instance, model) = (InstanceId(1), ModelId([0; 32]));
        let id = PlacementId { epoch: Epoch { counter: 1, key: NodeId([1; 32]) }, number: 1 };
        let kv = KvDType::default();
        Placement { id, instance, model, stages, context_tokens: 64, slots: 1, cache_tokens: 64, kv }
    }

    #[test]
    fn a_placement_tiles_only_without_gap_or_rest() {
        assert!(placement(&[0, 3, 8]).tiles(8));
        assert!(!placement(&[0, 3, 8]).tiles(9));
        let mut gap = placement(&[0, 3, 8]);
        gap.stages[1].layers.start = 4;
        gap.stages[1].shards[0].shard.layers.start = 4;
        assert!(!gap.tiles(8));
        assert!(!placement(&[]).tiles(0), "no stage serves nothing");
        let mut empty = placement(&[0, 3, 8]);
        empty.stages[1].shards.clear();
        assert!(!empty.tiles(8), "a stage without shards computes nothing");
        let mut torn = placement(&[0, 3, 8]);
        torn.stages[1].shards[0].shard.layers.end = 7;
        assert!(!torn.tiles(8), "a shard has the layers of its stage");
    }

    #[test]
    fn every_shard_of_a_stage_is_found_and_the_leader_is_the_first() {
        let mut two = placement(&[0, 3, 8]);
        let second = PlacedShard { node: NodeId([77; 32]), ..two.stages[1].shards[0].clone() };
        two.stages[1].shards.push(second);
        assert!(two.tiles(8));
        let found: Vec<_> = two.shards().map(|(at, shard)| (at.stage, at.rank, shard.node.0[0])).collect();
        assert_eq!(found, [(0, 0, 3), (1, 0, 8), (1, 1, 77)]);
        assert_eq!((two.stage_of(NodeId([77; 32])), two.stages[1].leader().node), (Some(1), NodeId([8; 32])));
    }

    #[test]
    fn a_shard_is_the_same_in_the_next_placement_and_another_with_another_cache() {
        let mut next = placement(&[0, 3, 8]);
        let spec = next.spec(1, 0);
        next.id.number += 1;
        next.instance = InstanceId(9);
        assert_eq!(next.spec(1, 0), spec);
        next.cache_tokens += 16;
        assert_ne!(next.spec(1, 0), spec);
    }
}
