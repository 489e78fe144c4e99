//! What a heartbeat means for who leads: adoption, and the meeting of two halves.

use std::time::Duration;

use exo_types::{Epoch, NodeId};

use crate::NodeStatus;
use crate::config::{DECLARE, EPOCH_AGE_MIN};
use crate::detector::LastHeartbeat;
use crate::machine::{ElectionState, Membership};
use crate::message::{Heartbeat, Role};

/// That a member says in vain that it leads is logged this often.
const REFUSED_SAID_EVERY: Duration = Duration::from_secs(60);

impl Membership {
    /// A heartbeat or an announcement came from a living member.
    pub(crate) fn heartbeat(
        &mut self,
        from: NodeId,
        epoch: Option<Epoch>,
        beat: &Heartbeat,
        announced: bool,
    ) {
        let leading = beat.role == Role::Leading;
        if leading && epoch.is_none_or(|e| e.key != from) {
            tracing::warn!(peer = %from, "refused a leader under another node's epoch");
            return;
        }
        // Who is not followed counts as one that looks for a coordinator: it stands in nobody's way.
        let leading = leading && !self.is_distrusted(from);
        let role = if leading || beat.role != Role::Leading { beat.role } else { Role::Seeking };
        let said = LastHeartbeat { epoch, role, rank: beat.rank };
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.said = Some(said);
        }
        match self.election {
            ElectionState::Outside => {}
            ElectionState::Seeking { .. } => {
                if let Some(epoch) = epoch.filter(|e| leading && Some(*e) >= self.epoch) {
                    self.adopt(epoch);
                }
            }
            ElectionState::Following if self.coordinator() == Some(from) => {
                self.hear_coordinator(epoch, leading)
            }
            ElectionState::Following => {
                // Whoever announces itself takes no node away from a coordinator that it hears: the two
                // leaders compare themselves, and the one that loses says that it leads no more.
                let higher = leading && epoch > self.epoch;
                if higher && self.is_fresh() {
                    tracing::debug!(peer = %from, epoch = ?epoch, own = ?self.epoch, announced, "a leader beside the coordinator that this node hears");
                } else if let Some(epoch) = epoch.filter(|_| higher) {
                    self.adopt(epoch);
                }
            }
            ElectionState::Leading { .. } => self.meet(from, said, announced),
        }
        if self.election == ElectionState::Following
            && self.coordinator() == Some(from)
            && epoch == self.epoch
        {
            self.table = beat.table.iter().copied().collect();
        }
    }

    fn hear_coordinator(&mut self, epoch: Option<Epoch>, leading: bool) {
        match epoch {
            Some(epoch) if leading && Some(epoch) > self.epoch => self.adopt(epoch),
            _ if epoch < self.epoch => {
                tracing::trace!(?epoch, own = ?self.epoch, leading, "the coordinator's word of an epoch that is over");
            }
            _ if !leading => self.lose_coordinator(),
            _ => {} // the lease is renewed
        }
    }

    /// This node leads and hears somebody.
    fn meet(&mut self, from: NodeId, said: LastHeartbeat, announced: bool) {
        let theirs_is_higher = said.epoch > self.epoch;
        match said.role {
            Role::Leading => self.meet_leader(from, said, announced),
            // It has seen a later epoch that is over; without a higher counter it would refuse this one.
            Role::Seeking if theirs_is_higher => self.raise_epoch(said.epoch),
            Role::Following { fresh: true } if theirs_is_higher && self.is_left_over(from, said) => {
                self.stop_leading();
                self.election = ElectionState::Seeking { clear_since: None };
            }
            Role::Seeking | Role::Following { .. } => {}
        }
    }

    /// Whether a later epoch goes on out of this node's sight while nobody follows this one any more. (With
    /// followers it goes on until the two leaders can hear each other.)
    fn is_left_over(&self, from: NodeId, said: LastHeartbeat) -> bool {
        let lives = |node| self.peers.get(&node).is_some_and(|p| p.status == NodeStatus::Alive);
        let long_heard = self.peers.get(&from).is_some_and(|p| self.now.since(p.alive_since) >= DECLARE);
        self.follower_count() == 0 && long_heard && said.epoch.is_some_and(|e| !lives(e.key))
    }

    /// Two halves meet: the side with a majority of the members wins; where neither has one, the side that
    /// serves more wins and announces the higher counter plus one.
    fn meet_leader(&mut self, from: NodeId, said: LastHeartbeat, announced: bool) {
        let Some(theirs) = said.epoch else { return };
        let keeps_lead = self.has_majority();
        #[cfg(feature = "planted")]
        let keeps_lead = keeps_lead && !self.config.yields;
        if keeps_lead {
            return self.refuse_lead(from, theirs);
        }
        let they_win = (said.rank, from) > (self.rank(), self.me);
        match Some(theirs) > self.epoch {
            true if they_win || announced => self.adopt(theirs),
            _ if !they_win => self.raise_epoch(said.epoch),
            // It will not begin another epoch on the word of one that says that it leads.
            _ if said.rank.majority => {
                self.stop_leading();
                self.election = ElectionState::Seeking { clear_since: None };
            }
            _ => {} // they win under a lower epoch: their announcement comes
        }
    }

    /// This node leads a majority of the members, so no other does: who says that it leads is what was cut
    /// off, and stands down when it hears this node, or lies. A lie leads to nothing, not even to an epoch
    /// above the one that it claims.
    fn refuse_lead(&mut self, from: NodeId, theirs: Epoch) {
        let (now, own) = (self.now, self.epoch);
        let Some(peer) = self.peers.get_mut(&from) else { return };
        if peer.refused_at.is_none_or(|at| now.since(at) >= REFUSED_SAID_EVERY) {
            peer.refused_at = Some(now);
            tracing::warn!(target: "events::lead", peer = %from, epoch = %theirs, own = ?own, "a member says that it leads, and most members follow this node: refused");
        }
    }

    /// A higher epoch for this coordinator, unless the last one is so fresh that the answer is still in
    /// flight.
    pub(crate) fn raise_epoch(&mut self, theirs: Option<Epoch>) {
        if let ElectionState::Leading { since } = self.election
            && self.now.since(since) >= EPOCH_AGE_MIN
        {
            self.claim(theirs.map_or(0, |e| e.counter));
        }
    }
}
