//! Whether two processes speak with one peer's key: a data folder was copied, or a disk image with it.
//!
//! A process that is over never comes back. So two are alive where an older one completes a handshake, or
//! gives a sign of life on its open link, long after a newer one has said Accept. While both are, neither has
//! a link, and each is told.

use std::time::Duration;

use exo_types::{NodeId, Time};

use super::{LinkState, Links, LinksOutput, close_effect, send};
use crate::{LinkEnd, LinkId, Outgoing};

/// Signs of life of a process that has ended arrive no later than this behind its successor's first Accept:
/// links that are silent for so long are closed.
const LATE_MAX: Duration = Duration::from_secs(10);
/// A key belongs to one process again when no other one has been seen with it for this long: longer than any
/// wait before a dial.
pub(crate) const APART_FOR: Duration = Duration::from_secs(30);
/// Runs of a peer that are known for what they are.
const RUNS_MAX: usize = 8;

/// The runs of a peer's process.
#[derive(Clone, Debug, Default)]
pub(super) struct Incarnations {
    /// The newest last, with when each was first seen.
    seen: Vec<(u64, Time)>,
    /// Who said Accept last.
    last: Option<u64>,
    /// Since two were seen to live at a time: until when neither has a link.
    until: Option<Time>,
}

impl Incarnations {
    /// A run says Accept on a connection that stood at `stood`. Whether another one lives beside it.
    fn accept(&mut self, now: Time, stood: Time, incarnation: u64) -> bool {
        if self.until.is_some_and(|until| now >= until) {
            (self.until, self.seen) = (None, vec![(incarnation, now)]); // the one that stayed, whichever that is
        }
        if !self.seen.iter().any(|(seen, _)| *seen == incarnation) {
            if self.seen.len() == RUNS_MAX {
                self.seen.remove(0);
            }
            self.seen.push((incarnation, now));
        }
        let is_another = self.last.replace(incarnation).is_some_and(|last| last != incarnation);
        let is_proof = if self.until.is_some() { is_another } else { self.is_older(stood, incarnation) };
        if is_proof {
            self.until = Some(now + APART_FOR);
        }
        self.are_two(now)
    }

    /// A run that is not the newest lives at `at`, which is too late for what it said before it ended.
    fn is_older(&self, at: Time, incarnation: u64) -> bool {
        self.seen.last().is_some_and(|(newest, since)| *newest != incarnation && at >= *since + LATE_MAX)
    }

    /// This node itself did not listen for so long: that time says nothing of the peer.
    pub(super) fn held_up(&mut self, late: Duration) {
        if let Some((_, since)) = self.seen.last_mut() {
            *since = *since + late;
        }
    }

    fn are_two(&self, now: Time) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}

impl Links {
    /// Takes in which run of the peer's process said Accept on a link. Whether that link may be used.
    pub(super) fn may_use(
        &mut self,
        now: Time,
        id: LinkId,
        incarnation: u64,
        out: &mut Vec<LinksOutput>,
    ) -> bool {
        let Some(link) = self.links.get_mut(&id) else { return false };
        link.incarnation = Some(incarnation);
        let (node, stood) = (link.node, link.since);
        let Some(runs) = self.peers.get_mut(&node).map(|peer| &mut peer.incarnations) else { return false };
        let were_two = runs.are_two(now);
        if !runs.accept(now, stood, incarnation) {
            return true;
        }
        if were_two {
            self.part(now, id, out)
        } else {
            self.part_all(now, node, out)
        }
        false
    }

    /// A sign of life on a link.
    pub(super) fn lives(&mut self, now: Time, id: LinkId, out: &mut Vec<LinksOutput>) {
        let Some(link) = self.links.get(&id).filter(|link| link.state == LinkState::Open) else { return };
        let (node, Some(incarnation)) = (link.node, link.incarnation) else { return };
        let Some(runs) = self.peers.get_mut(&node).map(|peer| &mut peer.incarnations) else { return };
        if runs.is_older(now, incarnation) {
            runs.until = Some(now + APART_FOR);
            self.part_all(now, node, out);
        }
    }

    /// Two processes have this key: neither is served, and each is told.
    fn part_all(&mut self, now: Time, node: NodeId, out: &mut Vec<LinksOutput>) {
        tracing::warn!(peer = %node, "two processes use one key; no link to either");
        let links = self.links.iter().filter(|(_, link)| link.node == node);
        for id in links.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.part(now, id, out);
        }
        out.push(LinksOutput::TwoProcesses { node });
    }

    fn part(&mut self, now: Time, id: LinkId, out: &mut Vec<LinksOutput>) {
        out.push(send(id, Outgoing::TwoProcesses));
        out.push(close_effect(id, LinkEnd::TwoProcesses));
        let Some(link) = self.remove(now, id, LinkEnd::TwoProcesses, out) else { return };
        if let Some(slot) = self.peers.get_mut(&link.node).map(|peer| peer.slot_mut(link.purpose)) {
            slot.dial_next = now + APART_FOR; // it is for them to show which one stays
        }
    }
}
