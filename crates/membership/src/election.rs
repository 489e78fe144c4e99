//! Taking, adopting and losing the lead.

use std::time::Duration;

use exo_types::{Epoch, NodeId, Time};

use crate::config::{PATIENCE, STAGGER};
use crate::detector::Peer;
use crate::machine::{ElectionState, Membership};
use crate::message::{Body, Rank, Role};
use crate::{NodeStatus, Output};

impl Membership {
    /// Applies the time passed: detectors, then whoever leads.
    pub(crate) fn advance(&mut self) {
        let now = self.now;
        let close = self.close_to();
        for (node, peer) in &mut self.peers {
            peer.advance(now, close.is_none_or(|c| c == *node));
        }
        if self.election == ElectionState::Following {
            let status = self.coordinator().and_then(|c| self.peers.get(&c)).map(|p| p.status);
            if !matches!(status, Some(NodeStatus::Alive | NodeStatus::Suspected)) {
                self.lose_coordinator();
            }
        }
        if matches!(self.election, ElectionState::Seeking { .. }) {
            self.seek();
        }
    }

    /// The one peer this node exchanges heartbeats with at the fast rate; `None`: with all of them.
    pub(crate) fn close_to(&self) -> Option<NodeId> {
        self.coordinator().filter(|_| self.election == ElectionState::Following)
    }

    /// Claims the lead when nothing speaks against it and every better candidate had its chance.
    fn seek(&mut self) {
        let clear = self.may_claim();
        let ElectionState::Seeking { clear_since } = &mut self.election else { return };
        if !clear {
            *clear_since = None;
            return;
        }
        let since = *clear_since.get_or_insert(self.now);
        if self.now >= self.claim_at(since) {
            self.claim(0);
        }
    }

    /// When this node claims, if it has been free to since then.
    pub(crate) fn claim_at(&self, clear_since: Time) -> Time {
        let standing = |rank: Rank, node: NodeId| (rank.log, rank, node);
        let (rank, mine) = (self.rank(), standing(self.rank(), self.me));
        let said = || {
            let alive = self.peers.iter().filter(|(_, peer)| peer.status == NodeStatus::Alive);
            alive.filter_map(|(node, peer)| Some((*node, peer.said?.rank)))
        };
        let better = said().filter(|(node, theirs)| standing(*theirs, *node) > mine).count();
        let better = u32::try_from(better).unwrap_or(u32::MAX);
        // Whoever has entries that this node lacks gets time enough for a slow disk.
        let lacks = said().any(|(node, theirs)| theirs.log > rank.log && !self.is_distrusted(node));
        let patience = if lacks { PATIENCE } else { Duration::ZERO };
        clear_since + patience + STAGGER.saturating_mul(better)
    }

    /// No one alive is led or leads, and no one's fate is open.
    fn may_claim(&self) -> bool {
        let patient = self.now.since(self.waiting_since) < PATIENCE;
        let is_other = self.peers.values().any(|peer| peer.status == NodeStatus::Alive);
        (self.now >= self.claims_from || !is_other)
            && self.peers.values().all(|peer| match peer.status {
                NodeStatus::Alive => peer
                    .said
                    .is_some_and(|s| matches!(s.role, Role::Seeking | Role::Following { fresh: false })),
                NodeStatus::Suspected => false,
                NodeStatus::Unseen => !patient,
                NodeStatus::Lost(_) => true,
            })
    }

    /// Prepares to lead under a counter above this node's own and `counter`, unless another move waits for
    /// the disk.
    pub(crate) fn claim(&mut self, counter: u64) {
        if self.write.awaited().is_some() {
            return;
        }
        let above = self.write.counter_floor().max(counter);
        if let Some(counter) = above.checked_add(1) {
            self.move_to(Epoch { counter, key: self.me });
        }
    }

    /// Prepares to follow the coordinator of `epoch`, or follows it at once where the disk holds that epoch
    /// already.
    pub(crate) fn adopt(&mut self, epoch: Epoch) {
        if self.write.is_done(epoch) {
            self.follow(epoch);
        } else {
            self.move_to(epoch);
        }
    }

    /// Leads or follows `epoch` once it is on disk. A higher epoch takes the place of one that waits.
    fn move_to(&mut self, epoch: Epoch) {
        if self.now < self.moves_from {
            return tracing::trace!(%epoch, "no move to another epoch: the disk has just refused one");
        }
        match self.write.begin(epoch, self.me) {
            Ok(true) => self.out.push(Output::Persist(epoch)),
            Ok(false) => {} // its write is under way
            Err(last) => tracing::trace!(%epoch, %last, "refused an epoch below the last one written"),
        }
    }

    /// `epoch` is on disk: from here on messages may carry it.
    pub(crate) fn persisted(&mut self, epoch: Epoch) {
        let was_awaited = self.write.awaited() == Some(epoch);
        if !self.write.finish(epoch) {
            tracing::trace!(%epoch, awaited = ?self.write.awaited(), "an epoch was written that no move waits for");
            return;
        }
        if !was_awaited {
            // This node left while it was written: the disk has it, so nothing below it may be followed
            // again.
            tracing::trace!(%epoch, before = ?self.epoch, "an epoch was written that no move waits for any more");
            self.epoch = Some(epoch);
        } else if epoch.key != self.me {
            self.follow(epoch);
        } else {
            self.lead(epoch);
        }
    }

    fn lead(&mut self, epoch: Epoch) {
        self.epoch = Some(epoch);
        self.election = ElectionState::Leading { since: self.now };
        self.table.clear();
        tracing::info!(target: "events::lead", %epoch);
        self.out.push(Output::CoordinatorChanged { epoch, coordinator: self.me });
        self.out.push(Output::Lead { epoch });
        let beat = self.heartbeat_now();
        for to in self.linked() {
            self.send(to, Body::Announce(beat.clone()));
        }
        self.beaten();
    }

    fn follow(&mut self, epoch: Epoch) {
        self.stop_leading();
        self.election = ElectionState::Following;
        self.table.clear();
        self.epoch = Some(epoch);
        self.out.push(Output::CoordinatorChanged { epoch, coordinator: epoch.key });
        self.beat_soon();
    }

    /// The coordinator is gone or leads no more.
    pub(crate) fn lose_coordinator(&mut self) {
        self.election = ElectionState::Seeking { clear_since: None };
        self.table.clear();
        if let Some(epoch) = self.epoch {
            self.out.push(Output::CoordinatorLost { epoch });
        }
        self.beat_soon();
    }

    /// Says so if this node led. The caller sets the new election.
    pub(crate) fn stop_leading(&mut self) {
        if self.is_leading() {
            self.out.push(Output::StepDown);
            if let Some(epoch) = self.epoch {
                self.out.push(Output::CoordinatorLost { epoch });
            }
            self.beat_soon();
        }
    }

    /// Whether the coordinator was heard within the time of suspicion, and since this node was last frozen.
    pub(crate) fn is_fresh(&self) -> bool {
        let coordinator = self.close_to().and_then(|c| self.peers.get(&c));
        coordinator.is_some_and(|p| p.status == NodeStatus::Alive && p.said.is_some())
    }

    /// Members that hold a lease of this node's epoch.
    pub(crate) fn follower_count(&self) -> usize {
        self.peers.values().filter_map(Peer::followed).filter(|e| Some(*e) == self.epoch).count()
    }

    /// Whether more than half of the members, this coordinator included, follow it: in its epoch, or still in
    /// one before that. Else it would have none for as long as they take to follow it to another.
    pub(crate) fn has_majority(&self) -> bool {
        let followers = self.peers.values().filter_map(Peer::followed).filter(|e| e.key == self.me).count();
        self.is_leading() && 2 * (followers + 1) > self.peers.len() + 1
    }

    /// This node's standing. A coordinator's side are the members that follow it. Candidates count themselves
    /// only: what each has heard so far differs, and they must agree on who is best.
    pub(crate) fn rank(&self) -> Rank {
        let followers = if self.is_leading() { self.follower_count() } else { 0 };
        let members = u32::try_from(followers).unwrap_or(u32::MAX).saturating_add(1);
        let minutes = self.now.since(self.started).as_secs() / 60 + 1;
        Rank {
            majority: self.has_majority(),
            // What a coordinator that was away knows of is of the past: who served meanwhile goes on.
            served: if self.was_away { 0 } else { members.saturating_add(self.instances_served) },
            log: self.log,
            uptime_class: u8::try_from(minutes.ilog2()).unwrap_or(u8::MAX),
            mains_power: self.mains_power,
        }
    }
}
