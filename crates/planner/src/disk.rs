//! A node without the file of a model fetches what it loads, so it gets no more layers than its disk has room
//! for.

use std::borrow::Cow;

use exo_types::{LayerRange, NodeId, Shard, size};

use crate::PlanRequest;
use crate::memory::{Held, Sizes};

impl PlanRequest {
    /// With less memory on the nodes that `disks` bounds: no stage that fits there has more bytes in the file
    /// than the disk has room for. Devices of a node take equal parts of that.
    pub fn within_disks(&self) -> Cow<'_, Self> {
        let whole = stored_bytes(self, LayerRange::new(0, self.shape.layer_count()));
        let is_short =
            |(node, room_bytes): &&(NodeId, u64)| *room_bytes < whole && !self.holders.contains(node);
        let short: Vec<_> = self.disks.iter().filter(is_short).collect();
        if short.is_empty() {
            return Cow::Borrowed(self);
        }
        let mut within = self.clone();
        for &&(node, room_bytes) in &short {
            let is_there =
                |at: &usize| self.devices[*at].node == node && self.devices[*at].excluded.is_none();
            let bound: Vec<usize> = (0..self.devices.len()).filter(is_there).collect();
            let each = room_bytes / (bound.len() as u64).max(1);
            for at in bound {
                let most = most_memory(self, Held::by(self.devices[at].device.kind), each);
                let device = &mut within.devices[at];
                device.disk_room_bytes = Some(each);
                match most {
                    Some(bytes) => {
                        device.device.memory_free_bytes = device.device.memory_free_bytes.min(bytes);
                    }
                    None => {
                        device.excluded = Some(format!(
                            "the disk of its node has room for {} of the model's file, which is less than a layer: `exo models remove` or \
                             `exo prune` there makes room",
                            size(each)
                        ));
                    }
                }
            }
        }
        Cow::Owned(within)
    }
}

/// Bytes of these layers in the file.
fn stored_bytes(request: &PlanRequest, layers: LayerRange) -> u64 {
    request.shape.shard_weight_bytes(&Shard::pipeline(layers, request.shape.layer_count()))
}

/// The most memory that a stage needs whose layers have so many bytes in the file at most; `None` if each
/// layer has more.
fn most_memory(request: &PlanRequest, held: Held, file_bytes: u64) -> Option<u64> {
    let (sizes, mut start, mut most) = (Sizes::of(request), 0, None);
    for end in 1..=sizes.layer_count() {
        while start < end && stored_bytes(request, LayerRange::new(start, end)) > file_bytes {
            start += 1;
        }
        if start < end {
            most = most.max(Some(sizes.stage(held, LayerRange::new(start, end)).total_bytes()));
        }
    }
    most
}
