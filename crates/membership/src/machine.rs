//! The machine: its state, and what each input does to it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use exo_types::{Epoch, NodeId, Time};

use crate::config::{EPOCH_JUMP_MAX, HEARTBEAT_IDLE};
use crate::detector::{Peer, SenderProcess};
use crate::epoch_write::EpochWrite;
use crate::message::{Body, Message, Role};
use crate::{Config, Input, LogEnd, LossReason, NodeStatus, Output, Persisted};

/// A pause of this machine longer than this was a frozen process (laptop lid, debugger), not silent peers.
const FROZEN: Duration = Duration::from_secs(2);

/// A disk that has refused an epoch is asked again after this long.
const DISK_AGAIN: Duration = Duration::from_secs(1);
/// Who could not keep what it decided leaves the lead to others for so long.
const ASIDE: Duration = Duration::from_secs(10);

/// What this node does in the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ElectionState {
    /// No member (yet, or any more): silent.
    Outside,
    /// Looks for a coordinator; since when nothing has spoken against claiming.
    Seeking { clear_since: Option<Time> },
    /// Follows the coordinator of `epoch`.
    Following,
    /// Leads `epoch`, announced at that time.
    Leading { since: Time },
}

/// Membership as one node sees it.
#[derive(Debug)]
pub struct Membership {
    pub(crate) config: Config,
    pub(crate) me: NodeId,
    pub(crate) now: Time,
    pub(crate) started: Time,
    /// The epoch that messages carry: always one that is on disk.
    pub(crate) epoch: Option<Epoch>,
    /// The next one, on its way to the disk.
    pub(crate) write: EpochWrite,
    pub(crate) election: ElectionState,
    pub(crate) peers: BTreeMap<NodeId, Peer>,
    /// The coordinator's view of the others, while following.
    pub(crate) table: BTreeMap<NodeId, NodeStatus>,
    /// What `Output`s have said of each peer.
    pub(crate) shown: BTreeMap<NodeId, NodeStatus>,
    pub(crate) instances_served: u32,
    pub(crate) mains_power: bool,
    pub(crate) log: LogEnd,
    /// Members that are not followed, and until when.
    pub(crate) distrusted: BTreeMap<NodeId, Time>,
    pub(crate) ended: bool,
    pub(crate) woken_at: Option<Time>,
    /// This node led when its process last stood still, and no one has said since that it follows it.
    pub(crate) was_away: bool,
    /// Not before this time: the disk has just refused an epoch.
    pub(crate) moves_from: Time,
    /// Not before this time: the disk has just refused what this node decided.
    pub(crate) claims_from: Time,
    /// Since when this node waits for members it has never heard.
    pub(crate) waiting_since: Time,
    pub(crate) out: Vec<Output>,
}

impl Membership {
    /// A node that has just started and does not know the members yet.
    pub fn new(config: Config, me: NodeId, persisted: Persisted, now: Time) -> Self {
        Self {
            config,
            me,
            now,
            started: now,
            epoch: persisted.epoch,
            write: EpochWrite::of(persisted.epoch),
            election: ElectionState::Outside,
            peers: BTreeMap::new(),
            table: BTreeMap::new(),
            shown: BTreeMap::new(),
            instances_served: 0,
            mains_power: false,
            log: LogEnd::default(),
            distrusted: BTreeMap::new(),
            ended: false,
            woken_at: None,
            was_away: false,
            moves_from: now,
            claims_from: now,
            waiting_since: now,
            out: Vec::new(),
        }
    }

    /// Takes one input at `now` (which never runs backwards) and says what to do, in order.
    pub fn handle(&mut self, now: Time, input: Input) -> Vec<Output> {
        if self.ended {
            tracing::trace!(?input, "an input behind the goodbye");
            return Vec::new();
        }
        self.pass_time(now);
        self.take(input);
        if self.election != ElectionState::Outside && !self.ended {
            self.advance();
            self.settle_return();
            self.report();
            self.beat();
            self.wake();
        }
        std::mem::take(&mut self.out)
    }

    /// The epoch this node has adopted. Commands of lower epochs are to be refused.
    pub fn epoch(&self) -> Option<Epoch> {
        self.epoch
    }

    /// Who leads, as far as this node knows.
    pub fn coordinator(&self) -> Option<NodeId> {
        let led = matches!(self.election, ElectionState::Following | ElectionState::Leading { .. });
        self.epoch.filter(|_| led).map(|e| e.key)
    }

    /// While this node follows no one: a member that it hears and that follows a coordinator, and that
    /// coordinator, which this node does not hear.
    pub fn followed_elsewhere(&self) -> Option<(NodeId, NodeId)> {
        if self.coordinator().is_some() {
            return None;
        }
        let is_heard = |node: NodeId| self.peers.get(&node).is_some_and(|p| p.status == NodeStatus::Alive);
        self.peers.iter().filter(|(_, peer)| peer.status == NodeStatus::Alive).find_map(|(node, peer)| {
            let said = peer.said.filter(|said| said.role == (Role::Following { fresh: true }))?;
            let coordinator = said.epoch?.key;
            (coordinator != self.me && !is_heard(coordinator)).then_some((*node, coordinator))
        })
    }

    /// Whether this node leads.
    pub fn is_leading(&self) -> bool {
        matches!(self.election, ElectionState::Leading { .. })
    }

    /// Whether this node leads and may place instances. A coordinator that hears none of its members holds no
    /// lease until they are back or declared lost: it may be the smaller half. One whose process stood still
    /// asks first.
    pub fn may_place(&self) -> bool {
        let mut doubtful = self.was_away;
        for peer in self.peers.values() {
            match peer.status {
                NodeStatus::Alive if !self.was_away => return self.is_leading(),
                NodeStatus::Suspected => doubtful = true,
                _ => {}
            }
        }
        self.is_leading() && !doubtful
    }

    /// When time alone next brings something about; `None` while it cannot. Any input may change it.
    pub fn next_deadline(&self) -> Option<Time> {
        self.woken_at.filter(|_| self.election != ElectionState::Outside && !self.ended)
    }

    /// Whether this coordinator did not run for a while and no member has said since that it follows it:
    /// somebody else may lead.
    pub fn was_away(&self) -> bool {
        self.was_away
    }

    /// How a member does, as last said by an [`Output`]. This node itself is alive.
    pub fn status(&self, node: NodeId) -> Option<NodeStatus> {
        if node == self.me {
            return Some(NodeStatus::Alive);
        }
        self.shown.get(&node).copied()
    }

    fn pass_time(&mut self, now: Time) {
        let gap = now.since(self.now);
        if gap > FROZEN {
            self.stood_still(gap, gap.saturating_sub(HEARTBEAT_IDLE));
        }
        self.now = self.now.max(now);
    }

    /// This node did not run for `gap` of its own clock. What it knew may be over: somebody else may lead.
    fn stood_still(&mut self, gap: Duration, silence: Duration) {
        if self.election == ElectionState::Outside || self.peers.is_empty() {
            return;
        }
        for peer in self.peers.values_mut() {
            peer.thaw(silence);
        }
        self.waiting_since = self.waiting_since + gap;
        if let ElectionState::Seeking { clear_since } = &mut self.election {
            *clear_since = None;
        }
        self.was_away = self.is_leading();
    }

    /// A coordinator that was away is one again when a member says that it follows it, or when there is
    /// no one to ask.
    fn settle_return(&mut self) {
        let open = |peer: &Peer| matches!(peer.status, NodeStatus::Alive | NodeStatus::Suspected);
        let nobody = !self.peers.values().any(open);
        self.was_away &= self.is_leading() && !nobody && self.follower_count() == 0;
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Tick => {}
            Input::Members(members) => self.members(&members),
            Input::Joined(members) => self.joined(&members),
            Input::LinkUp(node) => self.with_peer(node, Peer::link_up),
            Input::LinkReset(node) => self.with_peer(node, Peer::link_reset),
            Input::Refused(node) => self.with_peer(node, Peer::refused),
            Input::Signs(signs) => {
                for (node, at) in signs {
                    self.with_peer(node, |peer, _| peer.sign(at));
                }
            }
            Input::Message { from, message } => self.message(from, message),
            Input::LocalFacts { instances_served, mains_power, log } => {
                (self.instances_served, self.mains_power) = (instances_served, mains_power);
                self.log = log;
            }
            Input::Leave => self.leave(),
            Input::Persisted(epoch) => self.persisted(epoch),
            Input::NotPersisted(epoch) => {
                self.write.fail(epoch, self.epoch);
                self.moves_from = self.now + DISK_AGAIN;
            }
            Input::StepAside => self.step_aside(),
            Input::Renew => self.raise_epoch(None),
            Input::Distrust { node, until } => self.distrust(node, until),
            Input::Slept => self.stood_still(Duration::ZERO, Duration::ZERO),
        }
    }

    fn with_peer(&mut self, node: NodeId, change: impl Fn(&mut Peer, Time)) {
        let now = self.now;
        match self.peers.get_mut(&node) {
            Some(peer) => change(peer, now),
            None => tracing::trace!(peer = %node, "news of the link to who is no member"),
        }
    }

    fn members(&mut self, members: &BTreeSet<NodeId>) {
        if !members.contains(&self.me) {
            self.step_outside();
            return;
        }
        let removed: Vec<_> = self.peers.keys().filter(|n| !members.contains(n)).copied().collect();
        for node in removed {
            self.forget(node);
        }
        for node in members.iter().filter(|n| **n != self.me) {
            self.peers.entry(*node).or_insert_with(|| Peer::new(self.now));
        }
        if self.election == ElectionState::Outside {
            self.waiting_since = self.now;
            self.election = ElectionState::Seeking { clear_since: None };
        }
    }

    fn joined(&mut self, members: &BTreeSet<NodeId>) {
        self.step_outside();
        self.epoch = None;
        self.write.forget();
        self.members(members);
    }

    /// No member any more: what was known of the cluster no longer holds.
    fn step_outside(&mut self) {
        self.stop_leading();
        for node in self.peers.keys().copied().collect::<Vec<_>>() {
            self.forget(node);
        }
        self.table.clear();
        self.write.abandon();
        self.election = ElectionState::Outside;
    }

    fn forget(&mut self, node: NodeId) {
        self.peers.remove(&node);
        self.table.remove(&node);
        self.distrusted.remove(&node);
        if !matches!(self.shown.remove(&node), None | Some(NodeStatus::Lost(_) | NodeStatus::Unseen)) {
            self.out.push(Output::NodeLost { node, reason: LossReason::Removed });
        }
    }

    fn message(&mut self, from: NodeId, message: Message) {
        let Message { epoch, incarnation, body } = message;
        let floor = self.epoch.map_or(0, |e| e.counter);
        if let Some(epoch) = epoch.filter(|e| e.counter.saturating_sub(floor) > EPOCH_JUMP_MAX) {
            tracing::warn!(peer = %from, %epoch, floor, "refused an epoch that jumps too far");
            return;
        }
        let now = self.now;
        let Some(peer) = self.peers.get_mut(&from) else {
            return tracing::trace!(peer = %from, ?epoch, "a message of who is no member");
        };
        match peer.run(now, incarnation) {
            SenderProcess::Over => {
                return tracing::trace!(peer = %from, ?epoch, incarnation, "a message of a process that is over");
            }
            SenderProcess::Restarted => self.restarted(from),
            SenderProcess::Same => {}
        }
        let Some(peer) = self.peers.get_mut(&from) else { return };
        peer.hear(now);
        match body {
            Body::Heartbeat(beat) => {
                self.heartbeat(from, epoch, &beat, false);
                self.answer_beat(from);
            }
            Body::Announce(beat) => self.heartbeat(from, epoch, &beat, true),
            Body::Goodbye => peer.left(now),
        }
    }

    /// Another process speaks with the peer's key: all the old one held is gone, its epoch too.
    fn restarted(&mut self, node: NodeId) {
        if matches!(self.shown.get(&node), Some(s) if !matches!(s, NodeStatus::Lost(_) | NodeStatus::Unseen))
        {
            self.shown.insert(node, NodeStatus::Lost(LossReason::Restarted));
            self.out.push(Output::NodeLost { node, reason: LossReason::Restarted });
        }
        if self.election == ElectionState::Following && self.coordinator() == Some(node) {
            self.lose_coordinator();
        }
    }

    fn leave(&mut self) {
        self.stop_leading();
        for to in self.linked() {
            self.send(to, Body::Goodbye);
        }
        self.ended = true;
    }

    /// Follows `node` no more, and not again until then.
    fn distrust(&mut self, node: NodeId, until: Time) {
        self.distrusted.insert(node, until);
        if self.election == ElectionState::Following && self.coordinator() == Some(node) {
            self.lose_coordinator();
        }
    }

    pub(crate) fn is_distrusted(&self, node: NodeId) -> bool {
        self.distrusted.get(&node).is_some_and(|until| self.now < *until)
    }

    /// Leads no more, and does not claim for a while, where there is somebody else who may.
    fn step_aside(&mut self) {
        if !self.peers.values().any(|peer| peer.status == NodeStatus::Alive) {
            return;
        }
        self.claims_from = self.now + ASIDE;
        if self.is_leading() {
            self.stop_leading();
            self.election = ElectionState::Seeking { clear_since: None };
            self.beat_soon();
        }
    }

    pub(crate) fn linked(&self) -> Vec<NodeId> {
        self.peers.iter().filter(|(_, p)| p.linked).map(|(n, _)| *n).collect()
    }

    pub(crate) fn send(&mut self, to: NodeId, body: Body) {
        let message = Message { epoch: self.epoch, incarnation: self.config.incarnation, body };
        self.out.push(Output::Send { to, message });
    }
}
