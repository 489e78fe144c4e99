//! Room for models on a node's disk.

use serde::{Deserialize, Serialize};

/// What bounds the bytes that a node may still fetch for models; `None` where a rule bounds nothing.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct DiskRoom {
    /// Free on the disk, less what running fetches have taken; below 0 where that is more.
    pub free_bytes: Option<i64>,
    /// What is to stay free, which may be more.
    pub reserve_bytes: u64,
    /// Left of what models may take together; below 0 what they take too much.
    pub within_quota_bytes: Option<i64>,
}

/// The setting of what stays free on a node's disk.
const RESERVE: &str = "disk_reserve_mib";
/// The setting of what models may take together.
const QUOTA: &str = "disk_quota_mib";

impl DiskRoom {
    /// No disk is larger.
    pub const BYTES_MAX: i64 = 1 << 60;

    /// So many bytes, and no setting that leaves fewer.
    pub fn of(bytes: u64) -> Self {
        Self { free_bytes: Some(signed(bytes)), ..Self::default() }
    }

    /// What both rules leave.
    pub fn bytes(&self) -> Option<u64> {
        self.least().map(|least| least.max(0).unsigned_abs())
    }

    /// What has to go before anything may be fetched.
    pub fn lacking_bytes(&self) -> u64 {
        self.least().map_or(0, |least| least.min(0).unsigned_abs())
    }

    /// Of what is free, what the reserve keeps.
    pub fn reserved_bytes(&self) -> u64 {
        self.free_bytes.map_or(0, |free| free.max(0).unsigned_abs()).min(self.reserve_bytes)
    }

    /// Whether the quota leaves least.
    pub fn is_bounded_by_quota(&self) -> bool {
        self.within_quota_bytes.is_some_and(|left| self.beside_reserve_bytes().is_none_or(|free| left < free))
    }

    /// Free on the disk beside the reserve.
    fn beside_reserve_bytes(&self) -> Option<i64> {
        self.free_bytes.map(|free| free.saturating_sub_unsigned(self.reserve_bytes))
    }

    fn least(&self) -> Option<i64> {
        self.beside_reserve_bytes().into_iter().chain(self.within_quota_bytes).min()
    }

    /// With so many bytes more.
    #[must_use]
    pub fn plus(self, bytes: u64) -> Self {
        let more = |room: Option<i64>| room.map(|room| room.saturating_add_unsigned(bytes));
        Self { free_bytes: more(self.free_bytes), within_quota_bytes: more(self.within_quota_bytes), ..self }
    }

    /// The settings that leave less than so many bytes, the one that leaves least first, each with what has
    /// to be done to it. None where that would not do, as the disk has no more, whatever the settings.
    pub fn short_of(&self, bytes: u64) -> Vec<(&'static str, &'static str)> {
        let is_short = |room: Option<i64>| room.is_some_and(|room| room < signed(bytes));
        if is_short(self.free_bytes) {
            return Vec::new();
        }
        let mut short =
            [(self.within_quota_bytes, (QUOTA, "raise")), (self.beside_reserve_bytes(), (RESERVE, "lower"))];
        short.sort_by_key(|(room, _)| room.unwrap_or(i64::MAX));
        short.into_iter().filter(|(room, _)| is_short(*room)).map(|(_, setting)| setting).collect()
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_that_leaves_least_bounds_and_is_named_first() {
        let room = DiskRoom { free_bytes: Some(17), reserve_bytes: 10, within_quota_bytes: Some(5) };
        assert_eq!((room.bytes(), room.plus(3).bytes()), (Some(5), Some(8)));
        assert!(room.is_bounded_by_quota());
        assert_eq!(room.short_of(5), []);
        assert_eq!(room.short_of(6), [(QUOTA, "raise")]);
        assert_eq!(room.short_of(8), [(QUOTA, "raise"), (RESERVE, "lower")]);
        let full = DiskRoom { free_bytes: Some(10), ..room };
        assert!(!full.is_bounded_by_quota());
        assert_eq!(full.short_of(9), [(RESERVE, "lower"), (QUOTA, "raise")]);
        // What is missing already goes off what is added.
        let short = DiskRoom { free_bytes: Some(6), ..room };
        assert_eq!((short.bytes(), short.lacking_bytes(), short.plus(5).bytes()), (Some(0), 4, Some(1)));
        assert_eq!((room.reserved_bytes(), short.reserved_bytes()), (10, 6));
        assert_eq!(DiskRoom::default().bytes(), None);
        assert_eq!(DiskRoom::default().short_of(u64::MAX), []);
    }

    #[test]
    fn no_setting_is_named_where_the_disk_has_no_more() {
        let room = DiskRoom { free_bytes: Some(17), reserve_bytes: 10, within_quota_bytes: Some(5) };
        assert_eq!(room.short_of(17), [(QUOTA, "raise"), (RESERVE, "lower")]);
        assert_eq!(room.short_of(18), []);
        assert_eq!(DiskRoom::of(7).short_of(8), []);
        let below = DiskRoom { free_bytes: Some(-1), ..room };
        assert_eq!((below.reserved_bytes(), below.lacking_bytes()), (0, 11));
    }
}
