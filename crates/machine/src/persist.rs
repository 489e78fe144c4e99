//! What must be on disk before it is announced.
//!
//! A write is asked for by an effect and answered by [`crate::Input::Persisted`]. Until then only this module
//! knows what will follow from it: the value is behind a [`Durable`], which nothing but an answered write can
//! make. What replicates entries or replaces the log takes a `Durable`; that nothing else is told early,
//! `sim` checks (`announced_is_durable`).

use std::collections::BTreeMap;
use std::time::Duration;

use exo_cluster::{AppendId, Event, State};
use exo_trust::{Entry, TrustLog};
use exo_types::{Ancestors, Epoch, LogHead, NodeId, Time};

use crate::{Effect, PersistId, ReplyId, Write, WriteFailure};

/// A disk that has not answered for so long is worth a line to the person who watches.
const SLOW: Duration = Duration::from_secs(4);
/// A disk that has not answered a write of the log for so long counts as one that failed it: as the
/// coordinator's it would hold up all members.
pub(crate) const LOG_WRITE_MAX: Duration = Duration::from_secs(10);

/// Something that is on disk. The field is private to this file: only [`Writes::answered`] makes one.
#[derive(Debug)]
pub(crate) struct Durable<T>(T);

impl<T> Durable<T> {
    pub(crate) fn get(&self) -> &T {
        &self.0
    }

    pub(crate) fn into_inner(self) -> T {
        self.0
    }
}

/// The coordinator's own entries.
#[derive(Debug)]
pub(crate) struct OwnAppend {
    pub(crate) append: AppendId,
    /// In which epoch they were decided.
    pub(crate) epoch: Epoch,
    /// The end of the log before and after them.
    pub(crate) before: LogHead,
    pub(crate) after: LogHead,
    pub(crate) entries: Vec<Vec<u8>>,
    pub(crate) events: Vec<Event>,
}

/// Entries of the coordinator that this node follows.
#[derive(Debug)]
pub(crate) struct FollowedAppend {
    pub(crate) before: LogHead,
    pub(crate) after: LogHead,
    pub(crate) entries: Vec<Vec<u8>>,
    pub(crate) events: Vec<Event>,
}

/// Another's log in place of this node's.
#[derive(Debug)]
pub(crate) struct Replaced {
    pub(crate) head: LogHead,
    pub(crate) ancestors: Ancestors,
    pub(crate) state: State,
}

/// Who waits for an act.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ActAsker {
    /// Somebody at the API.
    Client(ReplyId),
    /// A stranger that is being let in.
    Admission(u64),
    /// No one waits for it.
    Nobody,
}

/// The log of trust.
#[derive(Debug)]
pub(crate) struct TrustWrite {
    pub(crate) log: TrustLog,
    /// Who waits for entries in it.
    pub(crate) askers: Vec<ActAsker>,
    /// It is another cluster's, to which this node moves.
    pub(crate) is_move: bool,
    /// An attempt before this one may have put it on disk.
    pub(crate) is_repeated: bool,
}

/// What a write was for, once it is on disk.
#[derive(Debug)]
pub(crate) enum Written {
    Epoch(Durable<Epoch>),
    Own(Durable<OwnAppend>),
    Followed(Durable<FollowedAppend>),
    Replaced(Durable<Replaced>),
    Trust(Durable<TrustWrite>),
    Snapshot(LogHead),
    Addresses,
    Ended(BTreeMap<NodeId, u64>),
}

/// What a write is for that is on its way, or did not happen.
#[derive(Debug)]
pub(crate) enum Unwritten {
    Epoch(Epoch),
    Own(OwnAppend),
    Followed(FollowedAppend),
    Replaced(Replaced),
    Trust(TrustWrite),
    Snapshot(LogHead),
    Addresses,
    Ended(BTreeMap<NodeId, u64>),
}

/// Writes on their way to disk, and what follows from each. Their times are those in which the machine ran:
/// while it stands still, it reads no answer.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    last: PersistId,
    waiting: BTreeMap<PersistId, (Time, Unwritten)>,
    /// The write that a notice has been given of.
    told: PersistId,
}

impl Writes {
    pub(crate) fn epoch(&mut self, now: Time, epoch: Epoch, out: &mut Vec<Effect>) {
        self.begin(now, Write::Epoch(epoch), Unwritten::Epoch(epoch), out);
    }

    pub(crate) fn own(&mut self, now: Time, append: OwnAppend, out: &mut Vec<Effect>) {
        let write = Write::Append { after: append.before, entries: append.entries.clone() };
        self.begin(now, write, Unwritten::Own(append), out);
    }

    pub(crate) fn followed(&mut self, now: Time, append: FollowedAppend, out: &mut Vec<Effect>) {
        let write = Write::Append { after: append.before, entries: append.entries.clone() };
        self.begin(now, write, Unwritten::Followed(append), out);
    }

    pub(crate) fn replace(&mut self, now: Time, replaced: Replaced, out: &mut Vec<Effect>) {
        let Replaced { head, ancestors, state } = &replaced;
        let (ancestors, state) = (ancestors.clone(), std::sync::Arc::new(state.clone()));
        let write = Write::Replace { head: *head, ancestors, state };
        self.begin(now, write, Unwritten::Replaced(replaced), out);
    }

    pub(crate) fn trust(&mut self, now: Time, trust: TrustWrite, out: &mut Vec<Effect>) {
        let entries = trust.log.entries().map(Entry::encode).collect();
        self.begin(now, Write::Trust(entries), Unwritten::Trust(trust), out);
    }

    pub(crate) fn snapshot(&mut self, now: Time, head: LogHead, state: State, out: &mut Vec<Effect>) {
        let write = Write::Snapshot { head, state: std::sync::Arc::new(state) };
        self.begin(now, write, Unwritten::Snapshot(head), out);
    }

    pub(crate) fn addresses(&mut self, now: Time, write: Write, out: &mut Vec<Effect>) {
        self.begin(now, write, Unwritten::Addresses, out);
    }

    /// One at a time: a member may come and go as it pleases, and the disk may be slow. Whether more has
    /// changed meanwhile shows when it is written.
    pub(crate) fn ended(&mut self, now: Time, ended: &BTreeMap<NodeId, u64>, out: &mut Vec<Effect>) {
        if !self.waiting.values().any(|(_, waiting)| matches!(waiting, Unwritten::Ended(_))) {
            self.begin(now, Write::Ended(ended.clone()), Unwritten::Ended(ended.clone()), out);
        }
    }

    fn begin(&mut self, now: Time, write: Write, waiting: Unwritten, out: &mut Vec<Effect>) {
        self.last = PersistId(self.last.0 + 1);
        self.waiting.insert(self.last, (now, waiting));
        out.push(Effect::Persist { id: self.last, write });
    }

    /// Whether entries or a log are on their way.
    pub(crate) fn is_log_busy(&self) -> bool {
        self.of_log().next().is_some()
    }

    /// Whether the disk has had some of them for longer than it may.
    pub(crate) fn is_log_late(&self, now: Time) -> bool {
        self.of_log().any(|since| now.since(since) >= LOG_WRITE_MAX)
    }

    /// Since when entries and logs are on their way.
    fn of_log(&self) -> impl Iterator<Item = Time> {
        let is_log =
            |w: &Unwritten| matches!(w, Unwritten::Own(_) | Unwritten::Followed(_) | Unwritten::Replaced(_));
        self.waiting.values().filter(move |(_, waiting)| is_log(waiting)).map(|(since, _)| *since)
    }

    /// Whether another's log is on its way in place of this node's.
    pub(crate) fn is_replacing(&self) -> bool {
        self.waiting.values().any(|(_, waiting)| matches!(waiting, Unwritten::Replaced(_)))
    }

    /// Whether the log of trust is on its way.
    pub(crate) fn is_trust_busy(&self) -> bool {
        self.waiting.values().any(|(_, waiting)| matches!(waiting, Unwritten::Trust(_)))
    }

    /// Writes that have no answer yet.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// How long the oldest write has been waiting, once for each that takes too long.
    pub(crate) fn slow(&mut self, now: Time) -> Option<Duration> {
        let (&id, (since, _)) = self.waiting.first_key_value()?;
        let waited = now.since(*since);
        (waited >= SLOW && self.told < id).then(|| {
            self.told = id;
            waited
        })
    }

    /// A write was answered; `None` for one that no one waits for.
    pub(crate) fn answered(
        &mut self,
        id: PersistId,
        result: Result<(), WriteFailure>,
    ) -> Option<Result<Written, (Unwritten, WriteFailure)>> {
        let Some((_, waiting)) = self.waiting.remove(&id) else {
            tracing::trace!(id = id.0, last = self.last.0, "an answer for no write");
            return None;
        };
        Some(match result {
            Ok(()) => Ok(waiting.written()),
            Err(failure) => Err((waiting, failure)),
        })
    }

    /// A planted bug: the coordinator's entries count as written when they are only asked for.
    #[cfg(feature = "planted")]
    pub(crate) fn answered_early(&mut self) -> Option<Written> {
        let (id, _) = self.waiting.iter().find(|(_, (_, w))| matches!(w, Unwritten::Own(_)))?;
        let (id, since) = (*id, Time::ZERO);
        let (_, waiting) = self.waiting.insert(id, (since, Unwritten::Addresses))?;
        Some(waiting.written())
    }
}

impl Unwritten {
    fn written(self) -> Written {
        match self {
            Self::Epoch(epoch) => Written::Epoch(Durable(epoch)),
            Self::Own(append) => Written::Own(Durable(append)),
            Self::Followed(append) => Written::Followed(Durable(append)),
            Self::Replaced(replaced) => Written::Replaced(Durable(replaced)),
            Self::Trust(trust) => Written::Trust(Durable(trust)),
            Self::Snapshot(head) => Written::Snapshot(head),
            Self::Addresses => Written::Addresses,
            Self::Ended(ended) => Written::Ended(ended),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure() -> WriteFailure {
        WriteFailure { reason: "no space".to_owned(), may_be_there: false }
    }

    #[test]
    fn nothing_is_durable_before_its_answer_and_everything_once() {
        let (mut writes, mut out) = (Writes::default(), Vec::new());
        let epoch = Epoch { counter: 3, key: exo_types::NodeId([1; 32]) };
        writes.epoch(Time::ZERO, epoch, &mut out);
        let Some(Effect::Persist { id, .. }) = out.first() else { panic!("{out:?}") };
        assert_eq!(writes.len(), 1);
        let Some(Ok(Written::Epoch(durable))) = writes.answered(*id, Ok(())) else { panic!("not written") };
        assert_eq!(*durable.get(), epoch);
        assert!(writes.answered(*id, Ok(())).is_none(), "once");
    }

    #[test]
    fn what_did_not_happen_says_what_it_was() {
        let (mut writes, mut out) = (Writes::default(), Vec::new());
        let (before, entries, events) = (LogHead::EMPTY, vec![vec![1]], Vec::new());
        let epoch = Epoch { counter: 1, key: exo_types::NodeId([1; 32]) };
        let after = before.then_all(&entries);
        writes.own(
            Time::ZERO,
            OwnAppend { append: AppendId(7), epoch, before, after, entries, events },
            &mut out,
        );
        assert!(writes.is_log_busy());
        let answer = writes.answered(PersistId(1), Err(failure()));
        assert!(
            matches!(answer, Some(Err((Unwritten::Own(OwnAppend { append: AppendId(7), .. }), _)))),
            "{answer:?}"
        );
        assert!(!writes.is_log_busy());
    }

    #[test]
    fn the_log_is_late_ten_seconds_after_its_oldest_write_and_nothing_else_is() {
        let (mut writes, mut out) = (Writes::default(), Vec::new());
        let (before, entries, events) = (LogHead::EMPTY, vec![vec![1]], Vec::new());
        let after = before.then_all(&entries);
        let append = || FollowedAppend { before, after, entries: entries.clone(), events: Vec::new() };
        let at = Time::from_millis;
        writes.addresses(at(0), Write::Addresses(Vec::new()), &mut out);
        writes.followed(at(1_000), append(), &mut out);
        let epoch = Epoch { counter: 1, key: exo_types::NodeId([1; 32]) };
        let own = OwnAppend { append: AppendId(7), epoch, before, after, entries: entries.clone(), events };
        writes.own(at(6_000), own, &mut out);
        assert!(!writes.is_log_late(at(10_999)), "addresses may take longer");
        assert!(writes.is_log_late(at(11_000)));
        writes.answered(PersistId(2), Ok(()));
        assert!(!writes.is_log_late(at(15_999)), "the oldest was answered");
        assert!(writes.is_log_late(at(16_000)));
    }

    #[test]
    fn a_slow_disk_is_told_of_once_for_each_write() {
        let (mut writes, mut out) = (Writes::default(), Vec::new());
        writes.addresses(Time::ZERO, Write::Addresses(Vec::new()), &mut out);
        assert_eq!(writes.slow(Time::from_millis(3999)), None);
        assert_eq!(writes.slow(Time::from_millis(4000)), Some(Duration::from_secs(4)));
        assert_eq!(writes.slow(Time::from_millis(9000)), None);
    }
}
