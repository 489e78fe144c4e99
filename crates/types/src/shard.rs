//! Which part of a model a device holds, and the whole assignment of parts to devices.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{DeviceId, InstanceId, KvDType, ModelId, NodeId};

/// A half-open range of transformer layers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
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

/// Which slice of each layer is held.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Slice {
    /// All heads, all FFN columns, the whole vocabulary.
    Whole,
}

/// Which experts of a mixture are held.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Experts {
    /// All of them, or the model has none.
    All,
}

/// Where the weights live between steps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Residency {
    /// In device memory for the life of the shard.
    Resident,
}

/// The part of a model one device holds. Embedding and output head are units of their own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Shard {
    /// Transformer layers held.
    pub layers: LayerRange,
    /// Whether it turns token ids into hidden states.
    pub embedding: bool,
    /// Whether it turns hidden states into logits (final norm and output head).
    pub head: bool,
    /// Which slice of each layer.
    pub slice: Slice,
    /// Which experts.
    pub experts: Experts,
    /// Where the weights live.
    pub residency: Residency,
}

impl Shard {
    /// Whole layers `layers` of a model of `layer_count`; embedding and head at the ends.
    pub fn pipeline(layers: LayerRange, layer_count: u32) -> Self {
        Self {
            layers,
            embedding: layers.start == 0,
            head: layers.end == layer_count,
            slice: Slice::Whole,
            experts: Experts::All,
            residency: Residency::Resident,
        }
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

/// One step of the pipeline: a device and what it holds.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Stage {
    /// The node that runs the stage.
    pub node: NodeId,
    /// Which of the node's devices.
    pub device: DeviceId,
    /// What it holds.
    pub shard: Shard,
}

/// Shards of one model assigned to devices, in pipeline order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Placement {
    /// The instance this placement serves.
    pub instance: InstanceId,
    /// Grows each time the instance is placed again; frames of older generations are refused.
    pub generation: u32,
    /// The model, by manifest.
    pub model: ModelId,
    /// First stage first. The first stage's node runs the instance scheduler.
    pub stages: Vec<Stage>,
    /// Longest sequence (prompt and answer) in tokens.
    pub context_tokens: u32,
    /// Sequences that may run at once.
    pub slots: u32,
    /// Tokens whose keys and values every stage has room for, over all sequences and what is kept of earlier ones:
    /// at least one sequence of `context_tokens`, in whole pages.
    pub cache_tokens: u32,
    /// How every stage stores keys and values.
    pub kv: KvDType,
}

impl Placement {
    /// Whether the stages tile `layer_count` layers in order, with embedding first and head last.
    pub fn tiles(&self, layer_count: u32) -> bool {
        let mut next = 0;
        for (i, stage) in self.stages.iter().enumerate() {
            let s = &stage.shard;
            let (first, last) = (i == 0, i + 1 == self.stages.len());
            if s.layers.start != next || s.layers.end < next || s.embedding != first || s.head != last {
                return false;
            }
            next = s.layers.end;
        }
        next == layer_count && !self.stages.is_empty()
    }

    /// Position of `node` in the pipeline (its first stage, if it has several).
    pub fn stage_of(&self, node: NodeId) -> Option<usize> {
        self.stages.iter().position(|s| s.node == node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(cuts: &[u32]) -> Placement {
        let total = cuts.last().copied().unwrap_or(0);
        let stages = cuts
            .windows(2)
            .map(|w| Stage {
                node: NodeId([0; 32]),
                device: DeviceId::cpu(),
                shard: Shard::pipeline(LayerRange::new(w[0], w[1]), total),
            })
            .collect();
        let (instance, model) = (InstanceId(1), ModelId([0; 32]));
        let kv = KvDType::default();
        Placement {
            instance,
            generation: 1,
            model,
            stages,
            context_tokens: 64,
            slots: 1,
            cache_tokens: 64,
            kv,
        }
    }

    #[test]
    fn a_placement_tiles_only_without_gap_or_rest() {
        assert!(placement(&[0, 3, 8]).tiles(8));
        assert!(!placement(&[0, 3, 8]).tiles(9));
        let mut gap = placement(&[0, 3, 8]);
        gap.stages[1].shard.layers.start = 4;
        assert!(!gap.tiles(8));
        assert!(!placement(&[]).tiles(0), "no stage serves nothing");
    }
}
