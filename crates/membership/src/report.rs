//! What goes out without being asked: changes in how members do, heartbeats, the next deadline.

use std::time::Duration;

use exo_types::{NodeId, Time};

use crate::config::{HEARTBEAT, HEARTBEAT_IDLE, PATIENCE};
use crate::detector::Peer;
use crate::machine::{ElectionState, Membership};
use crate::message::{Body, Heartbeat, Role};
use crate::{LossReason, NodeStatus, Output};

impl Membership {
    /// Says what changed since it was last said.
    pub(crate) fn report(&mut self) {
        let nodes: Vec<_> = self.peers.keys().copied().collect();
        for node in nodes {
            let status = self.judge(node);
            let before = self.shown.insert(node, status).unwrap_or(NodeStatus::Unseen);
            if before == status {
                continue;
            }
            if self.is_leading() {
                self.beat_soon(); // the table changed: followers hear it now
            }
            self.out.extend(match (before, status) {
                (_, NodeStatus::Unseen) => None,
                (_, NodeStatus::Alive) => Some(Output::NodeUp(node)),
                (_, NodeStatus::Suspected) => Some(Output::NodeSuspected(node)),
                (NodeStatus::Lost(_), NodeStatus::Lost(_)) => None, // lost is lost, whatever the reason
                (_, NodeStatus::Lost(reason)) => Some(Output::NodeLost { node, reason }),
            });
        }
    }

    /// How a member does: the coordinator decides for those it leads, as it alone hears them all often. A
    /// follower's own suspicion counts at once, its own verdict of loss only while no one leads.
    fn judge(&self, node: NodeId) -> NodeStatus {
        let own = self.peers.get(&node).map_or(NodeStatus::Unseen, |p| p.status);
        let told = self.table.get(&node).filter(|_| self.is_fresh() && self.coordinator() != Some(node));
        match (told, own) {
            (None | Some(NodeStatus::Unseen), _) => own,
            (_, NodeStatus::Lost(LossReason::Left)) => own,
            (Some(NodeStatus::Alive), NodeStatus::Suspected) => own,
            (Some(NodeStatus::Alive), NodeStatus::Lost(reason)) if reason != LossReason::NeverSeen => {
                NodeStatus::Suspected
            }
            (Some(told), _) => *told,
        }
    }

    /// Sends the heartbeats that are due, and with them those that are due soon: each wake costs more than a
    /// message.
    pub(crate) fn beat(&mut self) {
        let now = self.now;
        let linked = || self.peers.iter().filter(|(_, peer)| peer.linked);
        if !linked().any(|(_, peer)| peer.next_beat <= now) {
            return;
        }
        let is_due = |node: NodeId, peer: &Peer| peer.next_beat <= now + self.interval(node) / 4;
        let due: Vec<_> =
            linked().filter(|(node, peer)| is_due(**node, peer)).map(|(node, _)| *node).collect();
        let body = Body::Heartbeat(self.heartbeat_now());
        for node in due {
            self.send(node, body.clone());
            // Whoever answers leaves the other time to speak first.
            let wait = if self.answers(node) { self.interval(node) / 4 } else { Duration::ZERO };
            let next = now + self.interval(node) + wait;
            if let Some(peer) = self.peers.get_mut(&node) {
                peer.next_beat = next;
            }
        }
    }

    /// Whether this node's heartbeats go behind that node's, so that both wake once for two of them: a
    /// member's behind its coordinator's, and of two members the higher one's.
    fn answers(&self, node: NodeId) -> bool {
        self.close_to().is_some_and(|coordinator| coordinator == node || self.me > node)
    }

    /// A heartbeat came: this node's goes now, unless the last one has only just gone.
    pub(crate) fn answer_beat(&mut self, from: NodeId) {
        let (now, soon) = (self.now, self.interval(from) / 2);
        if self.answers(from)
            && let Some(peer) = self.peers.get_mut(&from).filter(|peer| peer.next_beat <= now + soon)
        {
            peer.next_beat = now;
        }
    }

    fn interval(&self, node: NodeId) -> Duration {
        let close = self.close_to().is_none_or(|c| c == node);
        if close { HEARTBEAT } else { HEARTBEAT_IDLE }
    }

    /// Everybody hears the next heartbeat now.
    pub(crate) fn beat_soon(&mut self) {
        for peer in self.peers.values_mut() {
            peer.next_beat = self.now;
        }
    }

    /// Everybody just heard from this node.
    pub(crate) fn beaten(&mut self) {
        for peer in self.peers.values_mut().filter(|p| p.linked) {
            peer.next_beat = self.now + HEARTBEAT;
        }
    }

    pub(crate) fn heartbeat_now(&self) -> Heartbeat {
        let role = match self.election {
            ElectionState::Leading { .. } => Role::Leading,
            ElectionState::Following => Role::Following { fresh: self.is_fresh() },
            ElectionState::Seeking { .. } | ElectionState::Outside => Role::Seeking,
        };
        let listed = self.peers.iter().filter(|_| role == Role::Leading);
        let table = listed.map(|(node, peer)| (*node, peer.status)).collect();
        Heartbeat { role, rank: self.rank(), table }
    }

    /// Asks to be woken for the next thing that time alone brings about.
    pub(crate) fn wake(&mut self) {
        let close = self.close_to();
        let peers = self.peers.iter().flat_map(|(node, peer)| {
            let deadline = peer.deadline(close.is_none_or(|c| c == *node));
            [deadline, Some(peer.next_beat).filter(|_| peer.linked)]
        });
        let claim = match self.election {
            ElectionState::Seeking { clear_since: Some(since) } => Some(self.claim_at(since)),
            ElectionState::Seeking { clear_since: None } => Some(self.waiting_since + PATIENCE),
            _ => None,
        };
        let later = |at: &Time| *at > self.now;
        // Often enough that a longer pause can only mean that this process did not run.
        let check = Some(self.now + Duration::from_secs(1)).filter(|_| !self.peers.is_empty());
        let next = peers.chain([claim, check]).flatten().filter(later).min();
        if let Some(at) = next.filter(|_| next != self.woken_at) {
            self.out.push(Output::WakeAt(at));
        }
        self.woken_at = next;
    }
}
