//! Where to cut the layers, given the devices in order.

use crate::memory::{Room, Sizes};

/// How far stages reach along the layers.
pub(crate) struct Reach<'a> {
    pub(crate) sizes: &'a Sizes<'a>,
}

impl Reach<'_> {
    /// The furthest `end` for which layers `start..end` fit in `room`; `start` if none does. Without the
    /// last layer unless `last`: head and last layer go together.
    pub(crate) fn forward(&self, start: u32, room: Room, last: bool) -> u32 {
        let count = self.sizes.layer_count();
        let fits = |end: u32| self.sizes.bytes(room.held, start, end) <= room.free_bytes;
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

    /// Ends of the stages on devices with these rooms, in this order, as close as memory allows to
    /// `targets` (the wished ends). Every stage holds at least one layer. `None` exactly if these devices cannot
    /// hold the model in this order.
    pub(crate) fn cut(&self, rooms: &[Room], targets: &[u32]) -> Option<Vec<u32>> {
        let count = self.sizes.layer_count() as usize;
        // furthest[i][s]: where stage i may end when it starts at s.
        let furthest: Vec<Vec<u32>> = (0..rooms.len())
            .map(|i| (0..count as u32).map(|s| self.forward(s, rooms[i], i + 1 == rooms.len())).collect())
            .collect();
        // viable[i][e]: stage i may end at e and the stages behind it can hold the rest.
        let mut viable = vec![vec![false; count + 1]; rooms.len()];
        viable[rooms.len() - 1][count] = true;
        for i in (1..rooms.len()).rev() {
            // The nearest viable end behind each start is the easiest to reach.
            let mut nearest = u32::MAX;
            for start in (0..count).rev() {
                if viable[i][start + 1] {
                    nearest = start as u32 + 1;
                }
                viable[i - 1][start] = start > 0 && nearest <= furthest[i][start];
            }
        }
        let (mut ends, mut start) = (Vec::with_capacity(rooms.len()), 0u32);
        for (i, &target) in targets.iter().enumerate() {
            let reach = start + 1..=furthest[i].get(start as usize).copied().unwrap_or(0);
            let end = reach.filter(|&end| viable[i][end as usize]).min_by_key(|end| end.abs_diff(target))?;
            ends.push(end);
            start = end;
        }
        Some(ends)
    }
}

/// Wished ends: cumulative bytes read per token in proportion to `shares`.
pub(crate) fn targets(read_bytes: &[u64], head_bytes: u64, shares: &[f64]) -> Vec<u32> {
    let total = read_bytes.iter().map(|&b| b as f64).sum::<f64>() + head_bytes as f64;
    let all: f64 = shares.iter().sum();
    let (mut ends, mut layer, mut read, mut share) = (Vec::with_capacity(shares.len()), 0, 0.0, 0.0);
    for &one in shares {
        share += one;
        let wish = total * share / all;
        // A layer belongs to the stage that holds more than half of it.
        while layer < read_bytes.len() && read + read_bytes[layer] as f64 / 2.0 <= wish {
            read += read_bytes[layer] as f64;
            layer += 1;
        }
        ends.push(layer as u32);
    }
    ends
}
