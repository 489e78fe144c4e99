//! How far a device's memory reaches along the layers.

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
}
