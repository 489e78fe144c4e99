//! The log between members: who sends which part of it, who has what on disk, and answers that wait for a
//! second holder.
//!
//! A follower says where its log on disk ends behind each write (`Pull`) and with each report. Whoever was
//! elected first takes in what only another member has, where its own log is a prefix of that one's: so no
//! entry that a live member holds is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use exo_api::NodeStatus;
use exo_cluster::wire::{ControlMessage, ControlReply, LogMessage, NodeReport, NotCoordinator, limits};
use exo_cluster::{
    ApplyError, CoordinatorInput, Event, EventError, FollowerStep, LeaderStep, ReplyTo, State, follow, lead,
};
use exo_membership::{EPOCH_JUMP_MAX, Input};
use exo_types::{Ancestors, Epoch, InstanceId, LogHead, NodeId, Time};

use crate::NodeMachine;
use crate::persist::{FollowedAppend, Replaced};

/// How long an answer waits until a second member has on its disk what it says.
pub(crate) const SECOND_HOLDER_MAX: Duration = Duration::from_secs(3);
/// How long an elected coordinator waits for entries of one member, and of all.
pub(crate) const CATCH_UP_MAX: Duration = Duration::from_secs(1);
pub(crate) const CATCH_UP_ALL_MAX: Duration = Duration::from_secs(2);
/// A member that says that its log is longer and does not show it, so often, is taken to have another
/// history.
const SILENCES_MAX: u32 = 3;
/// How long a coordinator is not followed after it sent what cannot be.
pub(crate) const DISTRUST_FOR: Duration = Duration::from_secs(10);
/// After a long part of the log a member gets the next answer so much later: it may ask without reading.
const ANSWER_EVERY: Duration = Duration::from_millis(100);
const LONG_BYTES: usize = 256 << 10;
/// Answers that wait. Above that they go out with the number of holders that there are.
const WAITING_MAX: usize = 256;

/// What this node, leading or about to, knows of the others' logs.
#[derive(Debug, Default)]
pub(crate) struct Replication {
    /// Followers whose log on disk is a beginning of this one, and its length.
    holders: BTreeMap<NodeId, u64>,
    waiting: Vec<WaitingReply>,
    /// Elected since then: entries that only others have come first.
    elected_at: Time,
    /// What served under this node when it began to catch up: it led before.
    served: BTreeSet<InstanceId>,
    /// Who was asked for such entries, and when.
    asked: Option<(NodeId, Time)>,
    /// Members whose log does not go on where this one ends, whatever they say of its length.
    diverged: BTreeSet<NodeId>,
    /// Members that did not answer in time, in this epoch: they may yet.
    silent: BTreeSet<NodeId>,
    /// How often each did not answer, over all epochs.
    silences: BTreeMap<NodeId, u32>,
    /// Long parts go out one after the other.
    pace: Pace,
}

/// When each member may have the next part of the log.
#[derive(Debug, Default)]
struct Pace {
    /// When each was last sent a long part.
    answered: BTreeMap<NodeId, Time>,
    /// The last question of each kind and member that came too early: it is answered later.
    early: BTreeMap<(NodeId, LogQuestion), LogHead>,
}

impl Pace {
    fn sent(&mut self, now: Time, to: NodeId, bytes: usize) {
        if bytes >= LONG_BYTES {
            self.answered.insert(to, now);
        }
    }

    /// Whether the member has had its last long part for a while; else the question waits.
    fn may_answer(&mut self, now: Time, from: NodeId, question: LogQuestion, head: LogHead) -> bool {
        self.answered.retain(|_, at| now.since(*at) < ANSWER_EVERY);
        let is_early = self.answered.contains_key(&from);
        if is_early {
            tracing::trace!(peer = %from, ?question, %head, "asks for the log again at once; it is answered later");
            self.early.insert((from, question), head);
        } else {
            self.early.remove(&(from, question));
        }
        !is_early
    }
}

/// What a member asks about the log behind an end of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum LogQuestion {
    Pull,
    CatchUp,
}

/// Why a part of another's log is not taken in; what follows on "an entry that".
#[derive(Debug, thiserror::Error)]
enum ForeignLogError {
    #[error("is not an event: {0}")]
    Event(EventError),
    #[error("does not apply: {0}")]
    Apply(ApplyError),
    #[error("cannot be decoded: {0}")]
    State(EventError),
    #[error("has placements of epoch {epoch}, which has not begun")]
    NotBegun { epoch: Epoch },
    #[error("has numbers of epoch {last}, and this is epoch {own}")]
    Ahead { last: u64, own: u64 },
}

/// An answer whose entries only this node has on its disk.
#[derive(Debug)]
struct WaitingReply {
    index: u64,
    since: Time,
    to: ReplyTo,
    reply: ControlReply,
}

impl NodeMachine {
    // ---- answers wait for a second holder ----

    /// Sends what the coordinator answers. What it says was done is on this node's disk; a member that is
    /// there must have it, too.
    pub(crate) fn reply_when_held(&mut self, to: ReplyTo, reply: ControlReply) {
        let changes_nothing = matches!(
            reply,
            ControlReply::Refused(_) | ControlReply::Replanned(_) | ControlReply::PlannerInputs(_)
        );
        if changes_nothing {
            return self.send_reply(to, reply);
        }
        #[cfg(feature = "planted")]
        if self.config.planted == Some(crate::planted::Bug::AnsweredAlone) {
            return self.send_reply(to, crate::planted::held_by_two(reply));
        }
        let index = self.log.durable().index;
        self.replication.waiting.push(WaitingReply { index, since: self.now.time, to, reply });
        self.release_replies();
    }

    /// Sends the answers that a second member holds, and those that have waited for too long or for no one.
    pub(crate) fn release_replies(&mut self) {
        if self.replication.waiting.is_empty() {
            return;
        }
        let is_there =
            |n: &NodeId| matches!(self.statuses.get(n), Some(NodeStatus::Alive | NodeStatus::Suspected));
        let is_alone = !self.other_members().iter().any(is_there);
        let is_full = self.replication.waiting.len() > WAITING_MAX;
        let (now, holders) = (self.now.time, &self.replication.holders);
        let copies = |index: u64| holders.values().filter(|held| **held >= index).count();
        let is_over = |waiting: &mut WaitingReply| {
            copies(waiting.index) > 0 || is_alone || is_full || now.since(waiting.since) >= SECOND_HOLDER_MAX
        };
        let ready: Vec<_> = self.replication.waiting.extract_if(.., is_over).collect();
        let ready: Vec<_> = ready.into_iter().map(|w| (copies(w.index) as u32 + 1, w)).collect();
        for (count, WaitingReply { index, to, mut reply, .. }) in ready {
            if let ControlReply::Placed { holders, .. } | ControlReply::Done { holders } = &mut reply {
                *holders = count;
            }
            if count < 2 && !is_alone {
                tracing::warn!(index, peer = %to.node, "answered although no other member has the entry on its disk");
            }
            self.send_reply(to, reply);
        }
    }

    /// This node leads no more: whoever waits asks again.
    pub(crate) fn refuse_waiting_replies(&mut self) {
        for WaitingReply { to, .. } in std::mem::take(&mut self.replication.waiting) {
            self.does_not_coordinate(to, NotCoordinator::Superseded);
        }
    }

    pub(crate) fn send_reply(&mut self, to: ReplyTo, reply: ControlReply) {
        self.send_control(to.node, ControlMessage::Reply { request: to.request, reply });
    }

    // ---- who was elected catches up first ----

    /// This node was elected, and leads once it has what others have.
    pub(crate) fn begin_to_catch_up(&mut self, serving: BTreeSet<InstanceId>) {
        self.refuse_waiting_replies();
        let Replication { silences, mut served, pace, .. } = std::mem::take(&mut self.replication);
        if self.leads_soon.is_none() {
            served.clear(); // of an earlier time
        }
        served.extend(serving);
        let elected_at = self.now.time;
        self.replication = Replication { elected_at, served, silences, pace, ..Replication::default() };
    }

    /// Whether another half only placed anew, for itself, what served here all the while. No one was told of
    /// that, and what serves stays where it is.
    fn is_of_no_use(&self, events: &[Event]) -> bool {
        let served = &self.replication.served;
        events.iter().all(|event| event.unasked().is_some_and(|instance| served.contains(&instance)))
    }

    /// Asks for entries that only another member has. Whether they are on their way.
    pub(crate) fn continue_catch_up(&mut self) -> bool {
        #[cfg(feature = "planted")]
        if self.config.planted == Some(crate::planted::Bug::LessWins) {
            return false;
        }
        let now = self.now.time;
        if let Some((node, since)) = self.replication.asked {
            if now.since(since) < CATCH_UP_MAX && self.reports.contains_key(&node) {
                return true;
            }
            self.mark_silent(node);
        }
        if now.since(self.replication.elected_at) >= CATCH_UP_ALL_MAX {
            return false;
        }
        let LogHead { index, hash } = self.log.durable();
        while let Some(node) = self.most_ahead(index) {
            if self.send_control(node, ControlMessage::Log(LogMessage::CatchUp { index, hash })) {
                self.replication.asked = Some((node, now));
                return true;
            }
            self.mark_silent(node);
        }
        false
    }

    /// The member with the longest log beyond `index`, of those that may have this node's in theirs.
    fn most_ahead(&self, index: u64) -> Option<NodeId> {
        let others = self.reports.iter().filter(|(node, report)| {
            let Replication { diverged, silent, .. } = &self.replication;
            let is_through = diverged.contains(node) || silent.contains(node);
            **node != self.me && report.log.index > index && !is_through
        });
        others.max_by_key(|(_, report)| report.log.index).map(|(node, _)| *node)
    }

    /// A question or its answer was lost, or somebody does not mean to answer: it is asked again in another
    /// epoch, not for ever.
    fn mark_silent(&mut self, node: NodeId) {
        self.replication.asked = None;
        let silences = self.replication.silences.entry(node).or_default();
        *silences += 1;
        if *silences > SILENCES_MAX {
            self.replication.diverged.insert(node);
        }
        self.replication.silent.insert(node);
    }

    fn mark_diverged(&mut self, node: NodeId) {
        self.replication.asked.take_if(|(asked, _)| *asked == node);
        self.replication.diverged.insert(node);
    }

    /// Tells members that this node leads and where its log ends; those whose log ends elsewhere pull.
    pub(crate) fn announce_log_head(&mut self, epoch: Epoch) {
        let LogHead { index, hash } = self.log.durable();
        let message =
            LogMessage::Entries { epoch, after_index: index, after_hash: hash, entries: Vec::new() };
        self.send_to_members(&std::sync::Arc::new(ControlMessage::Log(message)));
    }

    /// Whether what follows this log was asked of `from`, who answers now.
    fn takes_tail(&mut self, from: NodeId) -> bool {
        if self.leads_soon.is_none() || self.replication.asked.is_none_or(|(asked, _)| asked != from) {
            tracing::trace!(peer = %from, "a tail of the log that was not asked for");
            return false;
        }
        self.replication.silences.remove(&from);
        true
    }

    fn tail_came(&mut self, from: NodeId, after: LogHead, entries: Vec<Vec<u8>>) {
        if !self.takes_tail(from) {
            return;
        }
        if entries.is_empty() || after != self.log.durable() || self.writes.is_log_busy() {
            self.mark_diverged(from);
        } else {
            match self.checked(&entries) {
                Ok(events) if self.is_of_no_use(&events) => {
                    tracing::info!(target: "events::log", peer = %from, entries = entries.len(), "not taken: what they move serves here");
                    self.mark_diverged(from);
                }
                Ok(events) => {
                    tracing::info!(target: "events::log", peer = %from, entries = entries.len(), "taken before leading");
                    self.replication.asked = None;
                    self.append_followed(entries, events);
                }
                Err(reason) => {
                    tracing::warn!(target: "events::log", peer = %from, %reason, "entries that cannot be");
                    self.mark_diverged(from);
                }
            }
        }
        self.lead_when_written();
    }

    /// The same of who has no longer the entries that follow: its whole log, which went through the end of
    /// this one.
    fn longer_log_came(&mut self, from: NodeId, head: LogHead, ancestors: Ancestors, state: &[u8]) {
        if !self.takes_tail(from) {
            return;
        }
        if !ancestors.contains(head, self.log.durable()) || self.writes.is_log_busy() {
            self.mark_diverged(from);
        } else {
            match self.decoded(state) {
                Ok(state) => {
                    tracing::info!(target: "events::log", peer = %from, %head, "a longer log taken over before leading");
                    self.replication.asked = None;
                    self.replace_log(head, ancestors, state);
                }
                Err(reason) => {
                    tracing::warn!(target: "events::log", peer = %from, %reason, "a snapshot that cannot be");
                    self.mark_diverged(from);
                }
            }
        }
        self.lead_when_written();
    }

    // ---- who has what ----

    /// A member said with a report where its log ends. Who stands still there has lost what it was sent.
    pub(crate) fn log_reported(&mut self, from: NodeId, before: Option<&NodeReport>, head: LogHead) {
        if from == self.me || !self.is_leading() || self.leads_soon.is_some() {
            return;
        }
        self.note_holder(from, head);
        let stands_still = before.is_some_and(|before| before.log == head);
        if stands_still && head != self.log.durable() {
            self.answer_log(from, LogQuestion::Pull, head);
        }
    }

    fn note_holder(&mut self, from: NodeId, head: LogHead) {
        if self.log.goes_through(head) {
            self.replication.holders.insert(from, head.index);
            self.release_replies();
        } else {
            self.replication.holders.remove(&from);
        }
    }

    /// A member is gone: its disk does not count as a second one.
    pub(crate) fn holder_lost(&mut self, node: NodeId) {
        self.replication.holders.remove(&node);
        self.release_replies();
    }

    fn send_log(&mut self, to: NodeId, follower: LogHead) {
        #[cfg(feature = "planted")]
        if self.has_bug(crate::planted::Bug::NoResend) {
            return;
        }
        let Some((epoch, _)) = self.leader else { return };
        let head = self.log.durable();
        // Its log may go on where this one ends: the next epoch begins with that. What it says in its report
        // is asked for then, so whoever says so without reason does it once.
        let is_longer = follower.index > head.index;
        #[cfg(feature = "planted")]
        let is_longer = is_longer && self.config.planted != Some(crate::planted::Bug::LessWins);
        if is_longer && !self.replication.diverged.contains(&to) {
            if self.reports.get(&to).is_some_and(|report| report.log == follower) {
                self.feed_membership(Input::Renew);
            }
            return;
        }
        let message = match lead(head, follower, |index| self.log.hash_at(index)) {
            LeaderStep::SendEntries { after_index } => {
                let entries = self.log.after(after_index, limits::LOG_ENTRIES_MAX);
                LogMessage::Entries { epoch, after_index, after_hash: follower.hash, entries }
            }
            LeaderStep::SendSnapshot => {
                let (LogHead { index, hash }, state) = (head, self.state().encode());
                let ancestors = self.log.ancestors().hashes().to_vec();
                LogMessage::Snapshot { epoch, index, hash, ancestors, state }
            }
            LeaderStep::Nothing => return,
        };
        self.send_part(to, message);
    }

    fn send_part(&mut self, to: NodeId, message: LogMessage) {
        self.replication.pace.sent(self.now.time, to, message.bytes_about());
        self.send_control(to, ControlMessage::Log(message));
    }

    fn log_pulled(&mut self, from: NodeId, head: LogHead) {
        if !self.is_leading() || self.leads_soon.is_some() {
            return tracing::trace!(peer = %from, leader = ?self.leader, "asks for the log of a node that does not lead");
        }
        self.note_holder(from, head);
        self.answer_log(from, LogQuestion::Pull, head);
    }

    /// Sends what follows that end, at once or when the member has had a while for the part before.
    fn answer_log(&mut self, to: NodeId, question: LogQuestion, head: LogHead) {
        if !self.replication.pace.may_answer(self.now.time, to, question, head) {
            return;
        }
        match question {
            LogQuestion::Pull => self.send_log(to, head),
            LogQuestion::CatchUp => self.send_tail(to, head),
        }
    }

    /// Whether a member waits for a part of the log.
    pub(crate) fn owes_log(&self) -> bool {
        !self.replication.pace.early.is_empty()
    }

    /// Answers what was asked too early.
    pub(crate) fn answer_early(&mut self) {
        for ((from, question), head) in std::mem::take(&mut self.replication.pace.early) {
            let leads = self.is_leading() && self.leads_soon.is_none();
            if leads || question == LogQuestion::CatchUp {
                self.answer_log(from, question, head);
            } else {
                tracing::trace!(peer = %from, ?question, %head, "asked for the log of a node that leads no more");
            }
        }
    }

    /// Somebody who was elected asks for what only this node has, which may not have heard of that yet.
    fn send_tail(&mut self, to: NodeId, head: LogHead) {
        let has_entries = self.log.hash_at(head.index) == Some(head.hash);
        let message = if !has_entries && self.log.goes_through(head) {
            let (LogHead { index, hash }, state) = (self.log.durable(), self.state().encode());
            let ancestors = self.log.ancestors().hashes().to_vec();
            LogMessage::TailSnapshot { index, hash, ancestors, state }
        } else {
            let max = if has_entries { limits::LOG_ENTRIES_MAX } else { 0 };
            let entries = self.log.after(head.index, max);
            LogMessage::Tail { after_index: head.index, after_hash: head.hash, entries }
        };
        self.send_part(to, message);
    }

    // ---- following ----

    /// Tells the coordinator where this node's log on disk ends, and so what it lacks, if `node` is who to
    /// tell.
    pub(crate) fn pull_log_from(&mut self, node: NodeId) {
        if node == self.me || self.leader.is_none_or(|(_, leader)| leader != node) {
            return;
        }
        #[cfg(feature = "planted")]
        if self.has_bug(crate::planted::Bug::SaysPlanned) {
            let LogHead { index, hash } = self.log.planned();
            self.send_control(node, ControlMessage::Log(LogMessage::Pull { index, hash }));
            return;
        }
        let LogHead { index, hash } = self.log.durable();
        self.send_control(node, ControlMessage::Log(LogMessage::Pull { index, hash }));
    }

    /// The same to whoever coordinates.
    pub(crate) fn tell_log_end(&mut self) {
        if let Some((_, node)) = self.leader.filter(|_| !self.writes.is_log_busy()) {
            self.pull_log_from(node);
        }
    }

    pub(crate) fn log_message(&mut self, from: NodeId, message: LogMessage) {
        let epoch = match message {
            LogMessage::Pull { index, hash } => return self.log_pulled(from, LogHead { index, hash }),
            LogMessage::Tail { after_index, after_hash, entries } => {
                return self.tail_came(from, LogHead { index: after_index, hash: after_hash }, entries);
            }
            LogMessage::TailSnapshot { index, hash, ancestors, state } => {
                let (head, ancestors) = (LogHead { index, hash }, Ancestors::new(ancestors));
                return self.longer_log_came(from, head, ancestors, &state);
            }
            LogMessage::CatchUp { index, hash } => {
                return self.answer_log(from, LogQuestion::CatchUp, LogHead { index, hash });
            }
            LogMessage::Entries { epoch, .. } | LogMessage::Snapshot { epoch, .. } => epoch,
        };
        if from == self.me || !self.leads(epoch, from) {
            return self.refuse_epoch(from, epoch, "a part of the log");
        }
        // What is behind the end on disk is checked there, so it waits for the write; when that is answered
        // this node pulls.
        if self.writes.is_log_busy() || !self.log.takes_entries() {
            return tracing::trace!(peer = %from, "a part of the log while another is written; it is pulled later");
        }
        match follow(self.log.durable(), Some(epoch), message) {
            FollowerStep::Append(entries) => match self.checked(&entries) {
                Ok(events) => self.append_followed(entries, events),
                Err(reason) => self.distrust(from, &format!("an entry that {reason}")),
            },
            FollowerStep::Restore { head, ancestors, state } => match self.decoded(&state) {
                Ok(state) => self.replace_log(head, ancestors, state),
                Err(reason) => self.distrust(from, &format!("a snapshot that {reason}")),
            },
            FollowerStep::Pull => self.pull_log_from(from),
            FollowerStep::Nothing => {}
            FollowerStep::Refuse(refusal) => {
                self.send_control(from, ControlMessage::Refused(refusal));
            }
        }
    }

    /// The events in these entries, if each is one of bounded size and they can follow what is on disk.
    fn checked(&self, entries: &[Vec<u8>]) -> Result<Vec<Event>, ForeignLogError> {
        #[cfg(feature = "planted")]
        if self.has_bug(crate::planted::Bug::Unchecked) {
            return Ok(entries.iter().filter_map(|entry| Event::decode(entry).ok()).collect());
        }
        let events: Result<Vec<_>, _> = entries.iter().map(|entry| Event::decode(entry)).collect();
        let events = events.map_err(ForeignLogError::Event)?;
        let after = self.state().after(&events).map_err(ForeignLogError::Apply)?;
        self.may_be(&after).map(|()| events)
    }

    /// The state in another's snapshot.
    fn decoded(&self, state: &[u8]) -> Result<State, ForeignLogError> {
        let state = State::decode(state).map_err(ForeignLogError::State)?;
        self.may_be(&state).map(|()| state)
    }

    /// Whether coordinators can have come as far as the state's numbers say. Who takes in numbers that are
    /// far ahead has soon none left to place anything under.
    fn may_be(&self, state: &State) -> Result<(), ForeignLogError> {
        if let Some(epoch) = self.leads_soon.filter(|epoch| state.epoch_last() == Some(*epoch)) {
            return Err(ForeignLogError::NotBegun { epoch });
        }
        let (last, own) = (state.counter_last(), self.leader.map_or(0, |(epoch, _)| epoch.counter));
        match last.saturating_sub(own) > EPOCH_JUMP_MAX {
            true => Err(ForeignLogError::Ahead { last, own }),
            false => Ok(()),
        }
    }

    fn append_followed(&mut self, entries: Vec<Vec<u8>>, events: Vec<Event>) {
        let (before, after) = (self.log.planned(), self.log.plan(&entries));
        let append = FollowedAppend { before, after, entries, events };
        self.writes.followed(self.awake.ran(), append, &mut self.out);
        #[cfg(feature = "planted")]
        if self.has_bug(crate::planted::Bug::SaysPlanned)
            && let Some((_, node)) = self.leader
        {
            self.pull_log_from(node);
        }
    }

    /// What a coordinator sent cannot be, so nothing of it is written: this node does not follow it for a
    /// while, and says so.
    fn distrust(&mut self, leader: NodeId, what: &str) {
        let (name, seconds) = (self.name_of(leader), DISTRUST_FOR.as_secs());
        tracing::warn!(target: "events::log", peer = %leader, what, "refused, and its sender is not followed");
        self.warn(format!("{name} coordinates and sent {what}. It was not written, and {name} is not followed for {seconds} s"));
        let until = self.now.time + DISTRUST_FOR;
        self.feed_membership(Input::Distrust { node: leader, until });
    }

    pub(crate) fn replace_log(&mut self, head: LogHead, ancestors: Ancestors, state: State) {
        self.log.plan_replacement(head);
        self.writes.replace(self.awake.ran(), Replaced { head, ancestors, state }, &mut self.out);
    }

    /// What only this node or few have of the log: for `exo status`.
    pub(crate) fn log_holders(&self) -> u32 {
        let head = self.log.durable();
        let others = self.reports.iter().filter(|(node, report)| **node != self.me && report.log == head);
        others.count() as u32 + 1
    }

    /// While following: what is on disk here counts for the coordinator's answers.
    pub(crate) fn followed_written(&mut self, append: FollowedAppend) {
        let FollowedAppend { after, entries, events, .. } = append;
        self.log.written(after, entries);
        self.feed_coordinator(CoordinatorInput::Replicated(events));
        self.tell_log_end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_parts_of_the_log_go_out_at_a_pace_and_short_ones_at_once() {
        let (mut pace, at) = (Pace::default(), Time::from_millis);
        let [a, b] = [1, 2].map(|n| NodeId([n; 32]));
        let heads = [LogHead::EMPTY, LogHead::EMPTY.then(&[1])];
        for ms in 0..10 {
            assert!(pace.may_answer(at(ms), a, LogQuestion::Pull, heads[0]), "an acknowledgement, say");
            pace.sent(at(ms), a, LONG_BYTES - 1);
        }
        pace.sent(at(10), a, LONG_BYTES);
        assert!(pace.may_answer(at(11), b, LogQuestion::CatchUp, heads[0]), "another member");
        assert!(!pace.may_answer(at(11), a, LogQuestion::CatchUp, heads[0]));
        assert!(!pace.may_answer(at(109), a, LogQuestion::Pull, heads[0]));
        assert!(!pace.may_answer(at(109), a, LogQuestion::Pull, heads[1]));
        let early =
            BTreeMap::from([((a, LogQuestion::Pull), heads[1]), ((a, LogQuestion::CatchUp), heads[0])]);
        assert_eq!(pace.early, early, "the last of each kind is not forgotten");
        assert!(pace.may_answer(at(110), a, LogQuestion::Pull, heads[1]));
        assert_eq!(pace.early.len(), 1, "that one is answered");
    }
}
