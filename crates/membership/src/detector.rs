//! What this node itself knows of one peer: when it was heard, on either link, whether its connection stands,
//! what it said last.

use std::time::Duration;

use exo_types::{Epoch, Time};

use crate::config::{DECLARE, DECLARE_AFTER_RESET, DECLARE_WITHOUT_MESSAGE, PATIENCE, SUSPECT, SUSPECT_IDLE};
use crate::message::{Rank, Role};
use crate::{LossReason, NodeStatus};

/// From a reset to a refusal that belongs to it.
const REFUSED_WITHIN: Duration = Duration::from_secs(1);
/// Nothing was on its way any more.
const REFUSED_SILENCE: Duration = Duration::from_millis(250);
/// Nothing of a run that is over arrives so long behind its successor's first message: silent links are
/// closed before.
const LATE_MAX: Duration = Duration::from_secs(10);

/// What a peer's last heartbeat said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastHeartbeat {
    pub epoch: Option<Epoch>,
    pub role: Role,
    pub rank: Rank,
}

#[derive(Debug)]
pub(crate) struct Peer {
    pub linked: bool,
    /// Last message; before the first, when we began to wait for it.
    heard: Time,
    /// Last sign of life on the data link that is known of.
    sign: Option<Time>,
    reset: Option<Time>,
    /// The last one since its connection stood, whatever was heard behind it.
    reset_last: Option<Time>,
    /// Whether nothing listens there since.
    refused: bool,
    incarnation: Option<u64>,
    /// The run before this one, and when that was known: its late messages say nothing.
    incarnation_before: Option<(u64, Time)>,
    pub status: NodeStatus,
    /// Since when it has lived without a doubt.
    pub alive_since: Time,
    /// `None` also after this node was frozen: what was said before may no longer hold.
    pub said: Option<LastHeartbeat>,
    pub next_beat: Time,
    /// When it was last said that this peer claims a lead that it is refused.
    pub refused_at: Option<Time>,
}

/// What a message tells of the process that sent it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SenderProcess {
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
            sign: None,
            reset: None,
            reset_last: None,
            refused: false,
            incarnation: None,
            incarnation_before: None,
            status: NodeStatus::Unseen,
            alive_since: now,
            said: None,
            next_beat: now,
            refused_at: None,
        }
    }

    pub fn link_up(&mut self, now: Time) {
        (self.linked, self.next_beat) = (true, now);
        (self.reset, self.reset_last, self.refused) = (None, None, false);
    }

    pub fn link_reset(&mut self, now: Time) {
        self.linked = false;
        if matches!(self.status, NodeStatus::Alive | NodeStatus::Suspected) {
            self.reset.get_or_insert(now);
            self.reset_last = Some(now);
            self.status = NodeStatus::Suspected;
        }
    }

    /// Its port refuses connections: beside a reset that is a death. Messages that were on their way when it
    /// died may come behind the reset; a firewall refuses, too, and a peer behind it is heard.
    pub fn refused(&mut self, now: Time) {
        let is_recent = self.reset_last.is_some_and(|at| now.since(at) <= REFUSED_WITHIN);
        self.refused = self.reset.is_some() || is_recent && now.since(self.heard) >= REFUSED_SILENCE;
        if !self.refused {
            tracing::trace!(?now, status = ?self.status, "a refusal where no connection was reset, or of a peer that is heard");
        }
    }

    /// Whether a message of this run of the peer's process counts. One that speaks long after its successor
    /// did lives: they were two processes with one key, for a while.
    pub fn run(&mut self, now: Time, incarnation: u64) -> SenderProcess {
        let before = self.incarnation_before;
        if before.is_some_and(|(before, since)| before == incarnation && now.since(since) < LATE_MAX) {
            return SenderProcess::Over;
        }
        match self.incarnation.replace(incarnation) {
            Some(old) if old != incarnation => {
                self.incarnation_before = Some((old, now));
                SenderProcess::Restarted
            }
            _ => SenderProcess::Same,
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

    /// It gave a sign of life on its data link: its process lives, whatever has become of its messages. Only
    /// these say what it is, so one that counts as lost stays lost.
    pub fn sign(&mut self, at: Time) {
        if self.reset.is_some_and(|reset| at > reset) {
            (self.reset, self.refused) = (None, false);
        }
        self.sign = self.sign.max(Some(at));
    }

    /// The peer said goodbye: this run is over.
    pub fn left(&mut self, now: Time) {
        self.incarnation_before = self.incarnation.take().map(|incarnation| (incarnation, now));
        self.said = None;
        self.status = NodeStatus::Lost(LossReason::Left);
    }

    /// Applies the time passed. `close` is whether the two exchange heartbeats at the fast rate.
    pub fn advance(&mut self, now: Time, close: bool) {
        self.status = match self.status {
            NodeStatus::Unseen if now >= self.heard + PATIENCE + DECLARE_AFTER_RESET => {
                NodeStatus::Lost(LossReason::NeverSeen)
            }
            NodeStatus::Alive | NodeStatus::Suspected => match () {
                () if self.refused => NodeStatus::Lost(LossReason::Refused),
                () if self.reset.is_some_and(|at| now >= at + DECLARE_AFTER_RESET) => {
                    NodeStatus::Lost(LossReason::Reset)
                }
                () if now >= self.silent_at() => NodeStatus::Lost(LossReason::Silent),
                () if now >= self.heard + DECLARE_WITHOUT_MESSAGE => NodeStatus::Lost(LossReason::NoMessage),
                () if self.reset.is_some() || now >= self.suspected_at(close) => NodeStatus::Suspected,
                () => NodeStatus::Alive,
            },
            other => other,
        };
        if matches!(self.status, NodeStatus::Lost(_)) {
            self.said = None;
        }
    }

    /// When it has been silent for so long that it is suspected. A data link that has nothing to carry gives
    /// a sign each second only.
    fn suspected_at(&self, close: bool) -> Time {
        let said = self.heard + if close { SUSPECT } else { SUSPECT_IDLE };
        self.sign.map_or(said, |sign| said.max(sign + SUSPECT_IDLE))
    }

    /// When it has been silent for too long on both links.
    fn silent_at(&self) -> Time {
        self.sign.map_or(self.heard, |sign| sign.max(self.heard)) + DECLARE
    }

    /// When `advance` may next change something.
    pub fn deadline(&self, close: bool) -> Option<Time> {
        let lost_at = || self.silent_at().min(self.heard + DECLARE_WITHOUT_MESSAGE);
        match self.status {
            NodeStatus::Unseen => Some(self.heard + PATIENCE + DECLARE_AFTER_RESET),
            NodeStatus::Alive => Some(self.suspected_at(close).min(lost_at())),
            NodeStatus::Suspected => {
                Some(self.reset.map_or(lost_at(), |at| lost_at().min(at + DECLARE_AFTER_RESET)))
            }
            NodeStatus::Lost(_) => None,
        }
    }

    /// This node did not run for a while: the peer's silence in that time was ours.
    pub fn thaw(&mut self, gap: std::time::Duration) {
        self.heard = self.heard + gap;
        self.sign = self.sign.map(|at| at + gap);
        self.reset = self.reset.map(|at| at + gap);
        self.said = None;
    }

    /// The epoch that it said it follows, in its last heartbeat, if it lives.
    pub fn followed(&self) -> Option<Epoch> {
        let said = self.said.filter(|s| matches!(s.role, Role::Following { .. }))?;
        said.epoch.filter(|_| self.status == NodeStatus::Alive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_was_on_its_way_does_not_take_a_death_back() {
        let at = Time::from_millis;
        let status = |refusals: &[u64], heard: u64| {
            let mut peer = Peer::new(at(0));
            peer.link_up(at(0));
            peer.hear(at(900));
            peer.link_reset(at(1000));
            peer.hear(at(1001));
            let mut refusals = refusals.iter();
            refusals.by_ref().take(1).for_each(|ms| peer.refused(at(*ms)));
            if heard > 0 {
                peer.hear(at(heard));
            }
            refusals.for_each(|ms| peer.refused(at(*ms)));
            peer.advance(at(1500), true);
            peer.status
        };
        assert_eq!(status(&[1002], 0), NodeStatus::Alive);
        assert_eq!(status(&[1002, 1402], 0), NodeStatus::Lost(LossReason::Refused));
        assert_eq!(status(&[1002, 1402], 1300), NodeStatus::Alive, "a firewall refuses, too");
    }

    /// What it counts as at the end of each second without a message, if its data link gives signs of life in
    /// so many of these seconds and its connection is reset at the end of one.
    fn by_second(signs: u64, reset: Option<u64>) -> Vec<NodeStatus> {
        let at = |s: u64, ms: u64| Time::from_millis(1000 * s + ms);
        let mut peer = Peer::new(at(0, 0));
        peer.hear(at(0, 0));
        let second = |s: u64| {
            if s <= signs {
                peer.sign(at(s - 1, 900));
            }
            if reset == Some(s) {
                peer.link_reset(at(s, 0));
            }
            peer.advance(at(s, 0), true);
            peer.status
        };
        (1..=11).map(second).collect()
    }

    #[test]
    fn signs_of_life_on_the_data_link_put_off_suspicion_and_loss_for_ten_seconds() {
        use NodeStatus::{Alive, Lost, Suspected};
        assert_eq!(by_second(0, None)[..4], [Suspected, Suspected, Suspected, Lost(LossReason::Silent)]);
        let kept = by_second(11, None);
        assert_eq!(kept[..9], [Alive; 9]);
        assert_eq!(kept[9..], [Lost(LossReason::NoMessage); 2], "not for ever");
        let ended = by_second(3, None);
        assert_eq!(ended[..4], [Alive; 4]);
        assert_eq!(ended[4..7], [Suspected, Suspected, Lost(LossReason::Silent)]);
    }

    #[test]
    fn a_reset_is_contradicted_by_a_later_sign_of_life_and_not_by_an_earlier_one() {
        use NodeStatus::{Alive, Lost, Suspected};
        assert_eq!(by_second(2, Some(2))[..4], [Alive, Suspected, Suspected, Lost(LossReason::Reset)]);
        let kept = by_second(11, Some(2));
        assert_eq!(kept[..9], [Alive, Suspected, Alive, Alive, Alive, Alive, Alive, Alive, Alive]);
        assert_eq!(kept[9], Lost(LossReason::NoMessage));
    }
}
