//! A node without the file of a model fetches what it loads, so it gets no more layers than its disk has room
//! for.

use std::borrow::Cow;

use exo_types::{DiskRoom, LayerRange, NodeId, Shard, size_up};

use crate::PlanRequest;
use crate::disk_bound::DiskBound;
use crate::errors::Remedy;
use crate::memory::{Sizes, WeightForm};

/// Settings of disks are in such units.
const MIB: u64 = 1 << 20;

impl PlanRequest {
    /// With less memory on the nodes that `disks` bounds: no stage that fits there has more bytes in the file
    /// than the disk has room for.
    pub fn within_disks(&self) -> Cow<'_, Self> {
        let short = self.short_disks();
        if short.is_empty() {
            return Cow::Borrowed(self);
        }
        let mut within = self.clone();
        for (node, room, room_bytes) in short {
            let is_there =
                |at: &usize| self.devices[*at].node == node && self.devices[*at].excluded.is_none();
            let bound: Vec<usize> = (0..self.devices.len()).filter(is_there).collect();
            let devices = (bound.len() as u64).max(1);
            let bytes = room_bytes / devices;
            let disk = DiskBound { bytes, room };
            for at in bound {
                let most = most_memory(self, WeightForm::by(self.devices[at].device.kind), bytes);
                let device = &mut within.devices[at];
                device.disk = Some(disk);
                match most {
                    Some(bytes) => {
                        device.device.memory_free_bytes = device.device.memory_free_bytes.min(bytes);
                    }
                    None => {
                        let least_bytes = least_layer(self);
                        let remedy = disk.remedy(least_bytes.saturating_mul(devices));
                        let text = disk.text(&device.node_name);
                        let least = size_up(least_bytes);
                        device.excluded = Some(format!("{text}, and a layer has {least} at least: {remedy}"));
                    }
                }
            }
        }
        Cow::Owned(within)
    }

    /// Nodes that would fetch, and have no room for all of the file.
    fn short_disks(&self) -> Vec<(NodeId, DiskRoom, u64)> {
        let whole = self.stored_bytes();
        let room = |&(node, room): &(NodeId, DiskRoom)| Some((node, room, room.bytes()?));
        let is_short =
            |(node, _, bytes): &(NodeId, DiskRoom, u64)| *bytes < whole && !self.holders.contains(node);
        self.disks.iter().filter_map(room).filter(is_short).collect()
    }

    fn stored_bytes(&self) -> u64 {
        stored_bytes(self, LayerRange::new(0, self.shape.layer_count()))
    }
}

/// The least room that, made on one node, makes the request possible, if it is that of one node that lacks;
/// and the request with it.
pub(crate) fn least_room(
    request: &PlanRequest,
    is_possible: impl Fn(&PlanRequest) -> bool,
) -> Option<(Remedy, PlanRequest)> {
    let whole = request.stored_bytes();
    let least = |(node, room, room_bytes): (NodeId, DiskRoom, u64)| {
        let with = |more: u64| {
            let mut asked = request.clone();
            let of_node = asked.disks.iter_mut().filter(|(other, _)| *other == node);
            of_node.for_each(|(_, left)| *left = DiskRoom::of(room_bytes.saturating_add(more)));
            asked
        };
        let holds = |mib: u64| is_possible(&with(mib * MIB).within_disks());
        let (mut low, mut high) = (1, (whole - room_bytes).div_ceil(MIB));
        if !holds(high) {
            return None;
        }
        while low < high {
            let middle = low + (high - low) / 2;
            match holds(middle) {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        let bytes = high * MIB;
        let settings = room.short_of(room_bytes.saturating_add(bytes));
        let node = request.devices.iter().find(|device| device.node == node)?.node_name.clone();
        let missing = bytes.saturating_add(room.lacking_bytes());
        Some((missing, (Remedy::Disk { node, bytes: missing, settings }, with(bytes))))
    };
    let found = request.short_disks().into_iter().filter_map(least);
    found.min_by_key(|(bytes, _)| *bytes).map(|(_, found)| found)
}

/// Bytes of these layers in the file.
fn stored_bytes(request: &PlanRequest, layers: LayerRange) -> u64 {
    request.shape.shard_weight_bytes(&Shard::pipeline(layers, request.shape.layer_count()))
}

fn least_layer(request: &PlanRequest) -> u64 {
    let layer = |start| stored_bytes(request, LayerRange::new(start, start + 1));
    (0..request.shape.layer_count()).map(layer).min().unwrap_or(0)
}

/// The most memory that a stage needs whose layers have so many bytes in the file at most; `None` if each
/// layer has more.
fn most_memory(request: &PlanRequest, held: WeightForm, file_bytes: u64) -> Option<u64> {
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
