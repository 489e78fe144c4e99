//! How fast bytes come from each member, as this node receives them.
//!
//! Whoever receives measures: a sender cannot seem faster than it is. Weights that are fetched are counted as
//! they come. Where none are, a burst of 1 MiB is asked for when two members have met and when the number is
//! old, one at a time, and never while any member computes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use exo_cluster::wire::{Bandwidth, limits};
use exo_types::{NodeId, Time};

/// A number is measured again after this long.
const OLD_AFTER: Duration = Duration::from_secs(30 * 60);
/// A burst that came to nothing is asked for again after this long.
const AGAIN_AFTER: Duration = Duration::from_secs(60);
/// After two members have met, and beside up to three seconds by which pairs differ.
const MET_FOR: Duration = Duration::from_secs(2);
/// No member has computed for this long: a report may be a second old.
const QUIET_FOR: Duration = Duration::from_secs(3);
/// A burst without an answer is over.
const BURST_MAX: Duration = Duration::from_secs(30);
/// Fewer bytes say more of the round trip than of the rate.
const BYTES_MIN: u64 = 128 << 10;
/// A number so many times the last one is refused, and so is one that is so many times smaller.
pub(crate) const LEAP: u64 = 100;
/// Refusals in a row; the next is the truth, and it was the last one that was wrong.
pub(crate) const REFUSED_MAX: u32 = 2;

/// Bytes that came from a member, and how long they took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// How many; 0 where a burst came to nothing.
    pub bytes: u64,
    /// How long they took.
    pub took: Duration,
    /// It was a burst, not weights: these may have waited for a disk.
    pub is_burst: bool,
}

/// What is known of all members.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bandwidths {
    peers: BTreeMap<NodeId, Peer>,
    /// The burst under way.
    burst: Option<(NodeId, Time)>,
    /// When some member has last computed.
    computed_at: Option<Time>,
}

#[derive(Clone, Debug)]
struct Peer {
    good: Option<Good>,
    refused: u32,
    /// When the next burst is due.
    burst_at: Time,
}

#[derive(Clone, Copy, Debug)]
struct Good {
    bytes_per_s: u64,
    count: u32,
    at: Time,
}

/// Whether a number is out of all proportion to the one before.
pub(crate) fn is_leap(before: u64, after: u64) -> bool {
    before > after.saturating_mul(LEAP) || after > before.saturating_mul(LEAP)
}

impl Received {
    fn bytes_per_s(self) -> Option<u64> {
        let us = self.took.as_micros().max(1);
        let rate = u64::try_from(u128::from(self.bytes) * 1_000_000 / us).ok()?;
        (self.bytes >= BYTES_MIN && (1..=limits::BANDWIDTH_MAX).contains(&rate)).then_some(rate)
    }
}

impl Bandwidths {
    /// Some member has computed since its last report.
    pub(crate) fn computed(&mut self, now: Time) {
        self.computed_at = Some(now);
    }

    /// The member whose burst is due, if it is quiet and nothing else is measured. `open` are those with a
    /// data link.
    pub(crate) fn due(&mut self, now: Time, me: NodeId, open: &BTreeSet<NodeId>) -> Option<NodeId> {
        self.peers.retain(|node, _| open.contains(node));
        for node in open.iter().filter(|node| **node != me) {
            let met = || Peer { good: None, refused: 0, burst_at: now + MET_FOR + spread(me, *node) };
            self.peers.entry(*node).or_insert_with(met);
        }
        if self.burst.is_some_and(|(_, since)| now.since(since) < BURST_MAX)
            || self.computed_at.is_some_and(|at| now.since(at) < QUIET_FOR)
        {
            return None;
        }
        let due = self.peers.iter_mut().filter(|(_, peer)| now >= peer.burst_at);
        let (node, peer) = due.min_by_key(|(_, peer)| peer.burst_at)?;
        peer.burst_at = now + AGAIN_AFTER;
        self.burst = Some((*node, now));
        Some(*node)
    }

    /// Bytes came. What is absurd is refused, and the last good number is kept.
    pub(crate) fn received(&mut self, now: Time, from: NodeId, received: Received) {
        if received.is_burst {
            self.burst = self.burst.take_if(|(node, _)| *node != from);
        }
        let Some((peer, bytes_per_s)) = self.peers.get_mut(&from).zip(received.bytes_per_s()) else {
            return tracing::trace!(peer = %from, ?received, "bytes that say nothing of a bandwidth");
        };
        let is_old = peer.good.is_none_or(|good| now.since(good.at) >= OLD_AFTER);
        let before = peer.good.map_or(bytes_per_s, |good| good.bytes_per_s);
        // Weights that wait for a disk say only that the link is not slower.
        if !received.is_burst && !is_old && bytes_per_s < before {
            return tracing::trace!(peer = %from, bytes_per_s, before, "weights that came slower than the link is");
        }
        if is_leap(before, bytes_per_s) && peer.refused < REFUSED_MAX {
            peer.refused += 1;
            tracing::warn!(peer = %from, bytes_per_s, before, "a bandwidth out of all proportion is not believed");
            return;
        }
        let count = peer.good.map_or(0, |good| good.count).saturating_add(1);
        peer.good = Some(Good { bytes_per_s, count, at: now });
        (peer.refused, peer.burst_at) = (0, now + OLD_AFTER);
    }

    /// What is known of one member.
    pub(crate) fn of(&self, now: Time, node: NodeId) -> Option<Bandwidth> {
        let Good { bytes_per_s, count, at } = self.peers.get(&node)?.good?;
        let age_s = u32::try_from(now.since(at).as_secs()).unwrap_or(u32::MAX);
        Some(Bandwidth { bytes_per_s, count, age_s })
    }
}

/// So that not all members ask at once; each pair and direction its own.
fn spread(me: NodeId, node: NodeId) -> Duration {
    let byte = |id: NodeId, at: usize| u64::from(id.0[at]);
    Duration::from_millis((byte(me, 0) * 31 + byte(me, 1) * 7 + byte(node, 0) * 13 + byte(node, 1)) % 3000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: NodeId = NodeId([1; 32]);
    const PEER: NodeId = NodeId([2; 32]);

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    fn burst(bytes: u64, ms: u64) -> Received {
        Received { bytes, took: Duration::from_millis(ms), is_burst: true }
    }

    fn met() -> Bandwidths {
        let mut all = Bandwidths::default();
        assert_eq!(all.due(at(0), ME, &BTreeSet::from([ME, PEER])), None);
        all
    }

    fn rate(all: &Bandwidths, now: u64) -> Option<(u64, u32, u32)> {
        all.of(at(now), PEER).map(|b| (b.bytes_per_s, b.count, b.age_s))
    }

    #[test]
    fn members_that_have_met_are_measured_once_and_again_when_it_is_old() {
        let (mut all, open) = (met(), BTreeSet::from([PEER]));
        assert_eq!(all.due(at(6), ME, &open), Some(PEER));
        assert_eq!(all.due(at(7), ME, &open), None, "one at a time");
        all.received(at(8), PEER, burst(1 << 20, 10));
        assert_eq!(rate(&all, 18), Some((104_857_600, 1, 10)));
        assert_eq!(all.due(at(1000), ME, &open), None);
        assert_eq!(all.due(at(1900), ME, &open), Some(PEER));
        // Nothing came of it: the old number stays, and it is asked for again.
        all.received(at(1901), PEER, burst(0, 0));
        assert_eq!(rate(&all, 1901).map(|r| r.1), Some(1));
        assert_eq!(all.due(at(1930), ME, &open), None);
        assert_eq!(all.due(at(1961), ME, &open), Some(PEER));
    }

    #[test]
    fn nothing_is_measured_beside_a_stream() {
        let (mut all, open) = (met(), BTreeSet::from([PEER]));
        all.computed(at(6));
        assert_eq!(all.due(at(8), ME, &open), None);
        assert_eq!(all.due(at(9), ME, &open), Some(PEER));
    }

    #[test]
    fn absurd_numbers_are_refused_until_they_repeat_and_weights_only_raise_it() {
        let mut all = met();
        all.received(at(1), PEER, burst(1 << 20, 100));
        let good = rate(&all, 1);
        for absurd in [burst(1 << 20, 0), burst(1 << 20, 100_000), burst(1000, 1)] {
            all.received(at(1), PEER, absurd);
            assert_eq!(rate(&all, 1), good, "{absurd:?}");
        }
        let weights = |ms| Received { is_burst: false, ..burst(1 << 20, ms) };
        all.received(at(1), PEER, weights(200));
        assert_eq!(rate(&all, 1), good, "these may have waited for a disk");
        all.received(at(1), PEER, weights(50));
        assert_eq!(rate(&all, 1).map(|r| r.0), Some(20_971_520));
        for _ in 0..=REFUSED_MAX {
            all.received(at(2), PEER, burst(1 << 20, 100_000));
        }
        assert_eq!(rate(&all, 2).map(|r| r.0), Some(10_485), "it is the truth after all");
    }
}
