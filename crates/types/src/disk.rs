//! Room for models on a node's disk.

use serde::{Deserialize, Serialize};

/// Bytes that a node may still fetch for models, by each of its rules: below 0 what has to go before it may
/// fetch anything; `None` where a rule bounds nothing.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct DiskRoom {
    /// Free on the disk, less what stays free.
    pub beside_reserve_bytes: Option<i64>,
    /// Left of what models may take together.
    pub within_quota_bytes: Option<i64>,
}

/// The setting of what stays free on a node's disk.
const RESERVE: &str = "disk_reserve_mib";
/// The setting of what models may take together.
const QUOTA: &str = "disk_quota_mib";

impl DiskRoom {
    /// No disk is larger.
    pub const BYTES_MAX: i64 = 1 << 60;

    /// So many bytes.
    pub fn of(bytes: u64) -> Self {
        Self { beside_reserve_bytes: Some(signed(bytes)), within_quota_bytes: None }
    }

    /// What both rules leave.
    pub fn bytes(&self) -> Option<u64> {
        self.least().map(|least| least.max(0).unsigned_abs())
    }

    /// What has to go before anything may be fetched.
    pub fn lacking_bytes(&self) -> u64 {
        self.least().map_or(0, |least| least.min(0).unsigned_abs())
    }

    fn least(&self) -> Option<i64> {
        self.beside_reserve_bytes.into_iter().chain(self.within_quota_bytes).min()
    }

    /// With so many bytes more.
    #[must_use]
    pub fn plus(self, bytes: u64) -> Self {
        let more = |room: Option<i64>| room.map(|room| room.saturating_add_unsigned(bytes));
        Self {
            beside_reserve_bytes: more(self.beside_reserve_bytes),
            within_quota_bytes: more(self.within_quota_bytes),
        }
    }

    /// The settings that leave less than so many bytes, the one that leaves least first, each with what has
    /// to be done to it.
    pub fn short_of(&self, bytes: u64) -> Vec<(&'static str, &'static str)> {
        let mut short =
            [(self.within_quota_bytes, (QUOTA, "raise")), (self.beside_reserve_bytes, (RESERVE, "lower"))];
        short.sort_by_key(|(room, _)| room.unwrap_or(i64::MAX));
        let is_short = |room: Option<i64>| room.is_some_and(|room| room < signed(bytes));
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
        let room = DiskRoom { beside_reserve_bytes: Some(7), within_quota_bytes: Some(5) };
        assert_eq!((room.bytes(), room.plus(3).bytes()), (Some(5), Some(8)));
        assert_eq!(room.short_of(5), []);
        assert_eq!(room.short_of(6), [(QUOTA, "raise")]);
        assert_eq!(room.short_of(8), [(QUOTA, "raise"), (RESERVE, "lower")]);
        let full = DiskRoom { beside_reserve_bytes: Some(0), ..room };
        assert_eq!(full.short_of(9), [(RESERVE, "lower"), (QUOTA, "raise")]);
        // What is missing already goes off what is added.
        let short = DiskRoom { beside_reserve_bytes: Some(-4), ..room };
        assert_eq!((short.bytes(), short.lacking_bytes(), short.plus(5).bytes()), (Some(0), 4, Some(1)));
        assert_eq!(DiskRoom::default().bytes(), None);
        assert_eq!(DiskRoom::default().short_of(u64::MAX), []);
    }
}
