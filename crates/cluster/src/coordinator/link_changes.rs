//! Links that have become much slower or faster since the planner last looked: a reason to look again.
//!
//! What a member reports of its links moves with every ping, so a number counts as another one only when it
//! is at least twice the one that was planned with, or half of it at most, and stays so for a while. Then it
//! is what the next ones are compared with: to count as back it has to go the same way again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use exo_types::{NodeId, Time};

use super::Coordinator;
use super::replan::Due;
use crate::wire::LinkReport;
use crate::{LinkChange, LinkQuantity};

/// A number that is so many times the other, or so many times smaller, is another one: bursts over the same
/// link differ by less (docs/benchmarks.md, "What a burst says of a link").
const STEP: u64 = 2;
/// Round trips that differ by less are the same: where processors are busy a ping waits so long.
const ROUND_TRIP_STEP_US: u64 = 2_000;
/// A median of fewer round trips is that of the first moments.
const ROUND_TRIPS_MIN: u32 = 5;
/// A number is another one for this long before anyone plans with it.
const LINK_SETTLED_AFTER: Duration = Duration::from_secs(30);

/// What the links were when they last changed, by who reports and the other end.
#[derive(Clone, Debug, Default)]
pub(super) struct LinkChanges {
    known: BTreeMap<(NodeId, NodeId), KnownLink>,
}

#[derive(Clone, Debug, Default)]
struct KnownLink {
    round_trip_us: Tracked,
    /// From the other end to the one that reports.
    bytes_per_s: Tracked,
}

/// One number: what it was, and since when it is another one.
#[derive(Clone, Debug, Default)]
struct Tracked {
    value: Option<u64>,
    away_since: Option<Time>,
}

impl Tracked {
    /// Takes in a number. If it has replaced the one before, that one.
    fn follow(&mut self, now: Time, value: u64, step_min: u64) -> Option<Option<u64>> {
        let is_same = self.value.is_some_and(|known| {
            known.abs_diff(value) < step_min
                || known.max(value) < known.min(value).max(1).saturating_mul(STEP)
        });
        if is_same {
            self.away_since = None;
            return None;
        }
        let since = *self.away_since.get_or_insert(now);
        if now.since(since) < LINK_SETTLED_AFTER {
            return None;
        }
        self.away_since = None;
        Some(self.value.replace(value))
    }
}

impl KnownLink {
    /// Takes in what the node at one end reports of it.
    fn follow(&mut self, now: Time, at: NodeId, report: &LinkReport) -> Vec<LinkChange> {
        let change = |what, before, now| LinkChange { at, peer: report.peer, what, before, now };
        let mut changes = Vec::new();
        if report.rtt_count >= ROUND_TRIPS_MIN {
            let value = u64::from(report.rtt_us);
            let before = match self.round_trip_us.value {
                Some(_) => self.round_trip_us.follow(now, value, ROUND_TRIP_STEP_US),
                // Two that have just met: the first plan has it.
                None => {
                    self.round_trip_us.value = Some(value);
                    None
                }
            };
            changes.extend(before.map(|before| change(LinkQuantity::RoundTripUs, before, value)));
        }
        if let Some(inbound) = report.inbound {
            let value = inbound.bytes_per_s;
            let before = self.bytes_per_s.follow(now, value, 1);
            changes.extend(before.map(|before| change(LinkQuantity::BytesPerS, before, value)));
        }
        changes
    }
}

impl LinkChanges {
    /// Takes in what a member reports of its links, and says which of them have changed.
    fn follow(&mut self, now: Time, from: NodeId, links: &[LinkReport]) -> Vec<LinkChange> {
        let follow =
            |link: &LinkReport| self.known.entry((from, link.peer)).or_default().follow(now, from, link);
        links.iter().flat_map(follow).collect()
    }

    /// Forgets what is known of others than these.
    pub(super) fn keep_only(&mut self, members: &BTreeSet<NodeId>) {
        self.known.retain(|(at, peer), _| members.contains(at) && members.contains(peer));
    }
}

impl Coordinator {
    /// A member says how its links are. Where one of them has changed, the planner is to look at what serves.
    pub(super) fn follow_links(&mut self, now: Time, from: NodeId, links: &[LinkReport]) {
        let Some(leading) = &mut self.leading else { return };
        let changes = leading.links.follow(now, from, links);
        let Some(&first) = changes.first() else { return };
        let (text, others) = (first.text(&|node| self.name_of(node)), changes.len() - 1);
        // All numbers of what this node reports may change at once.
        tracing::info!(target: "events::link", at = %from, peer = %first.peer, others, "{text}");
        let Some(leading) = &mut self.leading else { return };
        for watch in leading.watches.values_mut() {
            watch.review.due = Some(Due::Changed);
            watch.review.link = Some(first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What changes while each of these is reported for so many seconds.
    fn changes(step_min: u64, numbers: &[(u64, u64)]) -> Vec<(u64, Option<u64>)> {
        let mut tracked = Tracked::default();
        let seconds = numbers.iter().flat_map(|&(value, seconds)| (0..seconds).map(move |_| value));
        let follow = |(second, value)| {
            let now = Time::ZERO + Duration::from_secs(second);
            tracked.follow(now, value, step_min).map(|before| (value, before))
        };
        (0..).zip(seconds).filter_map(follow).collect()
    }

    #[test]
    fn a_number_changes_when_it_has_doubled_or_halved_and_stays_so() {
        assert_eq!(changes(1, &[(100, 29)]), []);
        assert_eq!(changes(1, &[(100, 31)]), [(100, None)], "it was not measured before");
        assert_eq!(changes(1, &[(100, 31), (199, 99), (51, 99)]), [(100, None)]);
        assert_eq!(changes(1, &[(100, 31), (200, 31)]), [(100, None), (200, Some(100))]);
        assert_eq!(changes(1, &[(100, 31), (50, 31), (99, 99)]), [(100, None), (50, Some(100))]);
        assert_eq!(changes(1, &[(100, 31), (200, 29), (100, 1), (200, 29)]), [(100, None)], "not for long");
        assert_eq!(changes(2000, &[(200, 31), (2100, 99)]), [(200, None)], "less than a plan feels");
        assert_eq!(changes(2000, &[(200, 31), (2200, 31)]), [(200, None), (2200, Some(200))]);
        assert_eq!(changes(1, &[(0, 31), (u64::MAX, 31)]), [(0, None), (u64::MAX, Some(0))]);
    }
}
