//! When and where to dial: one attempt per peer and purpose at a time, with waits that grow.

use std::net::SocketAddr;
use std::time::Duration;

use exo_types::{NodeId, Time, Transport};

use super::{Dial, Links, LinksOutput, PATIENCE, Peer, Slot};
use crate::{DialId, Effect, Purpose};

/// From the dial of one address to that of the next: one that is out of date fails only after seconds.
pub const ADDRESSES_APART: Duration = Duration::from_millis(100);
/// The same from one transport to the other: longer than a handshake takes nearly everywhere, so that the
/// other one only wins where the better one does not get through.
pub const TRANSPORTS_APART: Duration = Duration::from_millis(500);
/// What the last way of an attempt may take at most: a handshake over a slow path.
const DIAL_MAX: Duration = Duration::from_secs(3);
/// What it may take at least: a first packet that was lost is sent again after a second.
const DIAL_MIN: Duration = Duration::from_millis(1500);
/// The round trips that an attempt has, where they are known: a handshake takes four of them.
const DIAL_ROUND_TRIPS: u32 = 10;
/// Longer than an attempt may take: for the answer itself.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// The longest wait behind the first failed attempt, doubling; a wait is at least half of it.
const BACKOFF: Duration = Duration::from_millis(400);
/// The longest wait while a link has not been missing for long: with what an attempt takes, a link to a
/// member with one address is back within 2 s of being healed.
const BACKOFF_SOON: Duration = Duration::from_secs(1);
/// How long that is.
const SOON: Duration = Duration::from_secs(120);
/// The longest wait of all.
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// The wait behind the attempt that was the `failures`th in a row to fail; `chance` is any number.
fn backoff(failures: u32, max: Duration, chance: u64) -> Duration {
    let longest = BACKOFF.saturating_mul(2u32.saturating_pow(failures.saturating_sub(1))).min(max);
    let half_us = longest.as_micros() as u64 / 2;
    Duration::from_micros(half_us + chance % (half_us + 1))
}

impl Slot {
    /// An attempt of ours came to nothing, or a link that we dialled did before it was open.
    pub(super) fn dial_failed(&mut self, now: Time, chance: u64) {
        self.dial = None;
        self.failures = self.failures.saturating_add(1);
        let max = if now.since(self.since) < SOON { BACKOFF_SOON } else { BACKOFF_MAX };
        self.dial_next = now + backoff(self.failures, max, chance);
    }

    /// The open link ended: as after the first attempt that fails.
    pub(super) fn lost(&mut self, now: Time, chance: u64) {
        (self.failures, self.since, self.dial_next) = (0, now, now + backoff(1, BACKOFF_SOON, chance));
    }

    /// This node itself did not run for so long. How its attempt ended may wait to be read: once there is
    /// time for that.
    pub(super) fn held_up(&mut self, now: Time, late: Duration) {
        let Some(dial) = &mut self.dial else { return };
        dial.until = dial.until + late;
        if !std::mem::replace(&mut dial.was_held_up, true) {
            dial.until = dial.until.max(now + ANSWER_MAX);
        }
    }

    /// Dials without a wait.
    fn hurry(&mut self) {
        (self.failures, self.dial_next) = (0, Time::ZERO);
    }
}

impl Links {
    /// An attempt ended without a link.
    pub fn dial_failed(&mut self, now: Time, dial: DialId, reason: &str, out: &mut Vec<LinksOutput>) {
        self.begin(now);
        let chance = self.chance();
        let is_it = |slot: &&mut Slot| slot.dial.is_some_and(|d| d.id == dial);
        match self.peers.values_mut().flat_map(Peer::slots_mut).find(is_it) {
            Some(slot) => {
                slot.dial_failed(now, chance);
                let wait_ms = slot.dial_next.since(now).as_millis() as u64;
                tracing::debug!(dial = dial.0, failures = slot.failures, wait_ms, reason, "dial failed");
            }
            None => tracing::trace!(dial = dial.0, reason, "an attempt failed that nobody waits for"),
        }
        self.dial_and_reschedule(now, out);
    }

    /// A node says where it is.
    pub fn learn(&mut self, node: NodeId, addresses: &[SocketAddr]) {
        if node != self.me && self.addresses.learn(node, addresses) {
            self.hurry(node);
        }
    }

    /// A member says where it reaches others. Its loopback is ours only if it is reached over loopback
    /// itself.
    pub fn learn_from(&mut self, from: NodeId, reached: &[(NodeId, SocketAddr)]) {
        let is_near = self.addresses(from).first().is_some_and(|address| address.ip().is_loopback());
        for (node, address) in reached {
            let is_useful = is_near || !address.ip().is_loopback();
            let is_wanted = self.peers.contains_key(node) && from != self.me;
            if is_useful && is_wanted && self.addresses.hint(*node, *address) {
                self.hurry(*node);
            }
        }
    }

    /// An address of this node works: it is tried first from now on.
    pub fn prefer(&mut self, node: NodeId, address: SocketAddr) {
        if node != self.me && self.addresses.prefer(node, address) {
            self.hurry(node);
        }
    }

    /// Dials a member without the wait behind its last failed attempt.
    pub fn hurry(&mut self, node: NodeId) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.control.hurry();
            peer.data.hurry();
            self.deadline = self.dials_at().min().unwrap_or(self.deadline).min(self.deadline);
        }
    }

    pub(super) fn dial_due(&mut self, now: Time, out: &mut Vec<LinksOutput>) {
        let all = self.peers.keys().flat_map(|node| [(*node, Purpose::Control), (*node, Purpose::Data)]);
        let is_due = |(node, purpose)| self.dial_at(node, purpose).is_some_and(|at| now >= at);
        for (node, purpose) in all.filter(|key| is_due(*key)).collect::<Vec<_>>() {
            self.dials_made += 1;
            let dial = DialId(self.dials_made);
            let (addresses, within) = (self.ways(node, purpose), self.dial_within(node));
            if let Some(peer) = self.peers.get_mut(&node) {
                let until = now + within + ANSWER_MAX;
                peer.slot_mut(purpose).dial = Some(Dial { id: dial, until, was_held_up: false });
            }
            tracing::debug!(peer = %node, ?purpose, dial = dial.0, addresses = addresses.len(), "dialling");
            out.push(LinksOutput::Effect(Effect::Dial { dial, peer: node, purpose, addresses, within }));
        }
    }

    /// Attempts without an answer are over.
    pub(super) fn give_up_dials(&mut self, now: Time) {
        let overdue = |slot: &&mut Slot| slot.dial.is_some_and(|dial| now >= dial.until);
        for slot in self.peers.values_mut().flat_map(Peer::slots_mut).filter(overdue) {
            tracing::warn!(
                dial = slot.dial.map(|dial| dial.id.0),
                "an attempt to connect was never answered"
            );
            slot.dial_failed(now, 0);
        }
    }

    /// When the attempts under way count as failed.
    pub(super) fn dials_until(&self) -> impl Iterator<Item = Time> {
        let slots = self.peers.values().flat_map(|peer| [&peer.control, &peer.data]);
        slots.filter_map(|slot| slot.dial.map(|dial| dial.until))
    }

    /// When each missing link is to be dialled.
    pub(super) fn dials_at(&self) -> impl Iterator<Item = Time> {
        let all = self.peers.keys().flat_map(|node| [(*node, Purpose::Control), (*node, Purpose::Data)]);
        all.filter_map(|(node, purpose)| self.dial_at(node, purpose))
    }

    /// `None` while a link stands, an attempt is under way, or there is no address.
    pub(super) fn dial_at(&self, node: NodeId, purpose: Purpose) -> Option<Time> {
        let slot = self.peers.get(&node)?.slot(purpose);
        let stands = slot.open.is_some() || !slot.offers.is_empty();
        if stands || slot.dial.is_some() || self.addresses(node).is_empty() {
            return None;
        }
        let patience = if self.me < node { Duration::ZERO } else { PATIENCE };
        Some(slot.dial_next.max(slot.since + patience))
    }

    /// What an attempt may take: until its last way begins, and then for that one. A member that was linked
    /// with in this run answers within some of its round trips, or not at all: what was dialled behind a cut
    /// must not be waited for when the cut is over.
    fn dial_within(&self, node: NodeId) -> Duration {
        let longest = self.peers.get(&node).and_then(|peer| peer.rtts.iter().max());
        let trips = longest.map(|rtt| rtt.saturating_mul(DIAL_ROUND_TRIPS));
        let each = trips.map_or(DIAL_MAX, |trips| trips.clamp(DIAL_MIN, DIAL_MAX));
        let others = self.addresses(node).len().saturating_sub(1) as u32;
        TRANSPORTS_APART + ADDRESSES_APART * others + each
    }

    /// Each address over the better transport first. Control prefers QUIC, data TCP, whose reset tells of a
    /// death; but what has just stopped to get through comes last.
    fn ways(&self, node: NodeId, purpose: Purpose) -> Vec<(Transport, SocketAddr)> {
        let mut order = match purpose {
            Purpose::Control => [Transport::Quic, Transport::Tcp],
            Purpose::Data => [Transport::Tcp, Transport::Quic],
        };
        if self.peers.get(&node).and_then(|peer| peer.slot(purpose).outlived) == Some(order[0]) {
            order.reverse();
        }
        let addresses = self.addresses(node);
        order.into_iter().flat_map(|via| addresses.iter().map(move |address| (via, *address))).collect()
    }

    /// The next number of this node's own sequence of random ones.
    pub(super) fn chance(&mut self) -> u64 {
        self.draws += 1;
        let hash = blake3::keyed_hash(&self.seed, &self.draws.to_le_bytes());
        let (first, _) = hash.as_bytes().split_first_chunk::<8>().expect("a hash has 32 bytes");
        u64::from_le_bytes(*first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_from_a_fifth_of_a_second_to_the_longest() {
        let wait = |failures, chance| backoff(failures, BACKOFF_MAX, chance);
        let range = |failures| (wait(failures, 0).as_millis(), wait(failures, 200_000).as_millis());
        assert_eq!(range(1), (200, 400));
        assert_eq!(wait(2, 0).as_millis(), 400);
        assert_eq!(wait(6, 0).as_millis(), 5000);
        assert_eq!(wait(u32::MAX, 5_000_000), BACKOFF_MAX);
        assert_eq!(backoff(6, BACKOFF_SOON, 0).as_millis(), 500);
        assert_eq!(backoff(u32::MAX, BACKOFF_SOON, 500_000), BACKOFF_SOON);
        for chance in [0, 1, 77_777_777, u64::MAX] {
            let wait = wait(3, chance);
            assert!((800..=1600).contains(&wait.as_millis()), "{wait:?}");
        }
    }
}
