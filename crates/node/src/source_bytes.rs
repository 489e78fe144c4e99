//! What came from where in one fetch.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Instant;

use exo_cluster::wire::limits::FETCH_SOURCES_MAX;

/// What each member gave in one fetch.
#[derive(Debug)]
pub struct SourceBytes<K> {
    since: Instant,
    members: BTreeMap<K, u64>,
}

/// What one source gave.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceShare<K> {
    /// `None` for the hub.
    pub member: Option<K>,
    pub bytes: u64,
    /// On average since the fetch began.
    pub bytes_per_s: u64,
}

impl<K: Ord + Clone> SourceBytes<K> {
    /// Of a fetch that begins.
    pub fn new(since: Instant) -> Self {
        Self { since, members: BTreeMap::new() }
    }

    /// A member gave so many.
    pub fn note(&mut self, member: K, bytes: u64) {
        let given = self.members.entry(member).or_default();
        *given = given.saturating_add(bytes);
    }

    /// Those that gave something.
    pub fn members(&self) -> impl Iterator<Item = &K> {
        self.members.keys()
    }

    /// Where all that came is from, the most first: what no member gave, the hub did. Nothing where that is
    /// one source.
    pub fn shares(&self, came_bytes: u64, now: Instant) -> Vec<SourceShare<K>> {
        let took_ms = now.saturating_duration_since(self.since).as_millis().max(1);
        let rate = |bytes: u64| u64::try_from(u128::from(bytes) * 1000 / took_ms).unwrap_or(u64::MAX);
        let of_all_members = self.members.values().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        let of_hub = came_bytes.saturating_sub(of_all_members);
        let of_members = self.members.iter().map(|(member, bytes)| (Some(member.clone()), *bytes));
        let all = of_members.chain([(None, of_hub)]).filter(|(_, bytes)| *bytes > 0);
        let share = |(member, bytes)| SourceShare { member, bytes, bytes_per_s: rate(bytes) };
        let mut shares: Vec<_> = all.map(share).collect();
        if shares.len() < 2 {
            return Vec::new();
        }
        shares.sort_by_key(|share| Reverse(share.bytes));
        shares.truncate(FETCH_SOURCES_MAX);
        shares
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_no_member_gave_came_from_the_hub_and_one_source_is_not_told() {
        let since = Instant::now();
        let mut bytes = SourceBytes::new(since);
        let now = since + Duration::from_secs(2);
        assert!(bytes.shares(900, now).is_empty(), "the hub alone");
        bytes.note("ann", 100);
        bytes.note("ann", 100);
        assert!(bytes.shares(200, now).is_empty(), "a member alone");
        bytes.note("bob", 600);
        let share = |member, bytes| SourceShare { member, bytes, bytes_per_s: bytes / 2 };
        assert_eq!(bytes.shares(800, now), [share(Some("bob"), 600), share(Some("ann"), 200)]);
        let of_all = [share(Some("bob"), 600), share(None, 300), share(Some("ann"), 200)];
        assert_eq!(bytes.shares(1100, now), of_all);
        ["c", "d", "e", "f", "g", "h", "i", "j"].into_iter().for_each(|name| bytes.note(name, 1));
        assert_eq!(bytes.shares(2000, now).len(), FETCH_SOURCES_MAX);
    }
}
