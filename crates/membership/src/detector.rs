//! What this node itself knows of one peer: when it was heard, whether its connection stands, what it said last.

use exo_types::{Epoch, Time};

use crate::message::{Rank, Role};
use crate::{Config, LossReason, NodeStatus};

/// What a peer's last heartbeat said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said {
    pub epoch: Option<Epoch>,
    pub role: Role,
    pub rank: Rank,
}

/// One peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub linked: bool,
    /// Last message; before the first, when we began to wait for it.
    heard: Time,
    reset: Option<Time>,
    /// Whether nothing listens there since.
    refused: bool,
    incarnation: Option<u64>,
    /// The run before this one, whose late messages say nothing.
    incarnation_before: Option<u64>,
    pub status: NodeStatus,
    /// Since when it has lived without a doubt.
    pub alive_since: Time,
    /// `None` also after this node was frozen: what was said before may no longer hold.
    pub said: Option<Said>,
    pub next_beat: Time,
}

/// What a message tells of the process that sent it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Run {
    /// The same as before, or the first.
    Same,
    /// Another process than before.
    Restarted,
    /// One that is over.
    Over,
}

impl Peer {
    pub fn new(now: Time) -> Self {
        Self {
            linked: false,
            heard: now,
            reset: None,
            refused: false,
            incarnation: None,
            incarnation_before: None,
            status: NodeStatus::Unseen,
            alive_since: now,
            said: None,
            next_beat: now,
        }
    }

    pub fn link_up(&mut self, now: Time) {
        (self.linked, self.reset, self.refused, self.next_beat) = (true, None, false, now);
    }

    pub fn link_reset(&mut self, now: Time) {
        self.linked = false;
        if matches!(self.status, NodeStatus::Alive | NodeStatus::Suspected) {
            self.reset.get_or_insert(now);
            self.status = NodeStatus::Suspected;
        }
    }

    /// Only beside a reset that nothing contradicted: a firewall refuses, too, and what comes over another way proves a life.
    pub fn refused(&mut self, now: Time) {
        self.refused = self.reset.is_some();
        if !self.refused {
            tracing::trace!(?now, status = ?self.status, "a refusal where no connection was reset");
        }
    }

    /// Whether a message of this run of the peer's process counts.
    pub fn run(&mut self, incarnation: u64) -> Run {
        if self.incarnation_before == Some(incarnation) {
            return Run::Over;
        }
        match self.incarnation.replace(incarnation) {
            Some(old) if old != incarnation => {
                self.incarnation_before = Some(old);
                Run::Restarted
            }
            _ => Run::Same,
        }
    }

    /// A message came: the peer lives.
    pub fn hear(&mut self, now: Time) {
        if self.status != NodeStatus::Alive {
            self.alive_since = now;
        }
        self.status = NodeStatus::Alive;
        (self.linked, self.heard, self.reset, self.refused) = (true, now, None, false);
    }

    /// The peer said goodbye: this run is over.
    pub fn left(&mut self) {
        self.incarnation_before = self.incarnation.take();
        self.said = None;
        self.status = NodeStatus::Lost(LossReason::Left);
    }

    /// Applies the time passed. `close` is whether the two exchange heartbeats at the fast rate.
    pub fn advance(&mut self, now: Time, close: bool, c: &Config) {
        let silence = now.since(self.heard);
        self.status = match self.status {
            NodeStatus::Unseen if silence >= c.patience + c.declare_after_reset => {
                NodeStatus::Lost(LossReason::NeverSeen)
            }
            NodeStatus::Alive | NodeStatus::Suspected => {
                let suspect = if close { c.suspect } else { c.suspect_idle };
                let cut_off = self.reset.is_some_and(|at| now.since(at) >= c.declare_after_reset);
                match () {
                    () if self.refused => NodeStatus::Lost(LossReason::Refused),
                    () if cut_off => NodeStatus::Lost(LossReason::Reset),
                    () if silence >= c.declare => NodeStatus::Lost(LossReason::Silent),
                    () if self.reset.is_some() || silence >= suspect => NodeStatus::Suspected,
                    () => NodeStatus::Alive,
                }
            }
            NodeStatus::Suspended { until } if now >= until + c.grace => {
                NodeStatus::Lost(LossReason::Overslept)
            }
            other => other,
        };
        if matches!(self.status, NodeStatus::Lost(_)) {
            self.said = None;
        }
    }

    /// When `advance` may next change something.
    pub fn deadline(&self, close: bool, c: &Config) -> Option<Time> {
        match self.status {
            NodeStatus::Unseen => Some(self.heard + c.patience + c.declare_after_reset),
            NodeStatus::Alive => Some(self.heard + if close { c.suspect } else { c.suspect_idle }),
            NodeStatus::Suspected => {
                let silent = self.heard + c.declare;
                Some(self.reset.map_or(silent, |at| silent.min(at + c.declare_after_reset)))
            }
            NodeStatus::Suspended { until } => Some(until + c.grace),
            NodeStatus::Lost(_) => None,
        }
    }

    /// This node did not run for a while: the peer's silence in that time was ours.
    pub fn thaw(&mut self, gap: std::time::Duration) {
        self.heard = self.heard + gap;
        self.reset = self.reset.map(|at| at + gap);
        self.said = None;
    }

    /// Whether the peer lives and said, in its last heartbeat, that it follows this epoch.
    pub fn follows(&self, epoch: Option<Epoch>) -> bool {
        let said = self.said.filter(|s| s.epoch == epoch && matches!(s.role, Role::Following { .. }));
        said.is_some() && self.status == NodeStatus::Alive
    }
}
