//! The end of the log, planned and durable, and the entries that followers may still lack.
//!
//! The machine chains hashes itself: it decides on the planned end, while followers, replies and workers only
//! ever see the durable one. Entries that are behind the snapshot on disk stay in memory as far as
//! [`LogLimits`] and [`KEPT_BYTES_MAX`] allow; a follower that lacks older ones gets a snapshot. Of older
//! entries the chain's hashes are left ([`Ancestors`]), also on disk: who was elected and has fewer entries
//! takes the whole log over by them, instead of giving up what only this one has.

use std::collections::VecDeque;

use exo_types::{Ancestors, LogHead, Time};

/// How long a log of placements grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogLimits {
    /// Entries after which the log is folded into a snapshot: a start replays no more than these.
    pub snapshot_every: u64,
    /// Entries kept in memory for followers.
    pub kept_max: usize,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self { snapshot_every: 256, kept_max: 256 }
    }
}

const KEPT_BYTES_MAX: usize = 8 << 20;
/// Bytes of entries in one message: several of the largest.
const SENT_BYTES_MAX: usize = 4 << 20;

/// Where the log ends, and its last entries.
#[derive(Debug)]
pub(crate) struct Log {
    /// With the entries that are on their way to disk.
    planned: LogHead,
    durable: LogHead,
    /// What the snapshot on disk stands for.
    base: LogHead,
    /// A snapshot is on its way there.
    is_folding: bool,
    /// The last one could not be written: none before that.
    folds_from: Time,
    /// Durable entries, each with the end of the log before it; the last one ends at `durable`.
    kept: VecDeque<(LogHead, Vec<u8>)>,
    /// The ends that the log had before the first of these; before `durable`, where there are none.
    ancestors: Ancestors,
    kept_bytes: usize,
    limits: LogLimits,
    /// A write failed, and others that were planned behind it have not been answered yet.
    is_failing: bool,
}

impl Log {
    /// The log as it is on disk.
    pub(crate) fn new(base: LogHead, ancestors: Ancestors, entries: Vec<Vec<u8>>, limits: LogLimits) -> Self {
        let mut log = Self {
            planned: base,
            durable: base,
            base,
            is_folding: false,
            folds_from: Time::ZERO,
            kept: VecDeque::new(),
            ancestors,
            kept_bytes: 0,
            limits,
            is_failing: false,
        };
        log.keep(entries);
        log.planned = log.durable;
        log
    }

    pub(crate) fn planned(&self) -> LogHead {
        self.planned
    }

    pub(crate) fn durable(&self) -> LogHead {
        self.durable
    }

    /// Entries are on their way to disk; where the log will end.
    pub(crate) fn plan(&mut self, entries: &[Vec<u8>]) -> LogHead {
        self.planned = self.planned.then_all(entries);
        self.planned
    }

    /// Another log is on its way to disk, in place of this one.
    pub(crate) fn plan_replacement(&mut self, head: LogHead) {
        self.planned = head;
    }

    pub(crate) fn written(&mut self, after: LogHead, entries: Vec<Vec<u8>>) {
        self.keep(entries);
        debug_assert_eq!(self.durable, after, "writes are answered in order");
    }

    /// Another log is on disk, in place of this one. What was planned in front of it and could not be written
    /// does not matter any more.
    pub(crate) fn replaced(&mut self, head: LogHead, ancestors: Ancestors, is_answered: bool) {
        (self.durable, self.base) = (head, head);
        if self.is_failing {
            (self.planned, self.is_failing) = (head, !is_answered);
        }
        self.kept.clear();
        (self.kept_bytes, self.ancestors) = (0, ancestors);
    }

    /// What was planned is not written, nor what was planned behind it. Until all of that `is_answered`
    /// nothing new is planned.
    pub(crate) fn fall_back(&mut self, is_answered: bool) {
        self.planned = self.durable;
        self.is_failing = !is_answered;
    }

    /// Whether entries may be planned.
    pub(crate) fn takes_entries(&self) -> bool {
        !self.is_failing
    }

    /// A snapshot is on its way to disk.
    pub(crate) fn folding(&mut self) {
        self.is_folding = true;
    }

    /// The snapshot on disk stands for this.
    pub(crate) fn folded(&mut self, base: LogHead) {
        (self.base, self.is_folding) = (base, false);
    }

    /// The snapshot was not written; the next one is tried then.
    pub(crate) fn not_folded(&mut self, again_at: Time) {
        (self.folds_from, self.is_folding) = (again_at, false);
    }

    /// Whether the log on disk is long enough to be folded.
    pub(crate) fn is_snapshot_due(&self, now: Time) -> bool {
        let is_long = self.durable.index.saturating_sub(self.base.index) >= self.limits.snapshot_every;
        is_long && !self.is_folding && now >= self.folds_from
    }

    /// The durable end after so many entries; `None` for what is not kept.
    pub(crate) fn hash_at(&self, index: u64) -> Option<[u8; 32]> {
        if index == self.durable.index {
            return Some(self.durable.hash);
        }
        let first = self.kept.front()?.0.index;
        let at = usize::try_from(index.checked_sub(first)?).ok()?;
        self.kept.get(at).map(|(before, _)| before.hash)
    }

    /// Whether the durable log had its end here before, or has it now.
    pub(crate) fn goes_through(&self, end: LogHead) -> bool {
        let first = self.kept.front().map_or(self.durable, |(before, _)| *before);
        self.hash_at(end.index) == Some(end.hash) || self.ancestors.contains(first, end)
    }

    /// The ends that the durable log had before this one.
    pub(crate) fn ancestors(&self) -> Ancestors {
        let mut ancestors = self.ancestors.clone();
        self.kept.iter().for_each(|(before, _)| ancestors.push(*before));
        ancestors
    }

    /// The durable entries behind the first `index`, `max` at most and as many as go in one message. Empty
    /// for what is not kept.
    pub(crate) fn after(&self, index: u64, max: usize) -> Vec<Vec<u8>> {
        let from = self.kept.iter().skip_while(|(before, _)| before.index < index);
        let mut bytes = 0;
        let fits = |entry: &&Vec<u8>| {
            bytes += entry.len();
            bytes <= SENT_BYTES_MAX
        };
        from.take(max).map(|(_, entry)| entry).take_while(fits).cloned().collect()
    }

    fn keep(&mut self, entries: Vec<Vec<u8>>) {
        for entry in entries {
            let after = self.durable.then(&entry);
            self.kept_bytes += entry.len();
            self.kept.push_back((std::mem::replace(&mut self.durable, after), entry));
        }
        while self.kept.len() > self.limits.kept_max || self.kept_bytes > KEPT_BYTES_MAX {
            let Some((before, oldest)) = self.kept.pop_front() else { return };
            self.kept_bytes -= oldest.len();
            self.ancestors.push(before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(numbers: std::ops::Range<u64>) -> Vec<Vec<u8>> {
        numbers.map(|n| n.to_le_bytes().to_vec()).collect()
    }

    #[test]
    fn the_planned_end_runs_ahead_and_falls_back() {
        let mut log = Log::new(LogHead::EMPTY, Ancestors::default(), entries(0..2), LogLimits::default());
        assert_eq!((log.planned().index, log.durable().index), (2, 2));
        let after = log.plan(&entries(2..5));
        assert_eq!((log.planned(), log.durable().index), (after, 2));
        log.fall_back(false);
        assert!(!log.takes_entries());
        log.fall_back(true);
        assert!(log.takes_entries());
        assert_eq!(log.planned(), log.durable());
        let after = log.plan(&entries(2..3));
        log.written(after, entries(2..3));
        assert_eq!((log.durable(), log.planned()), (after, after));
    }

    #[test]
    fn followers_get_what_is_kept_and_hashes_of_it() {
        let log = Log::new(LogHead::EMPTY, Ancestors::default(), entries(0..9), LogLimits::default());
        assert_eq!(log.after(7, 100), entries(7..9));
        assert_eq!(log.after(0, 3), entries(0..3));
        assert_eq!(log.hash_at(4), Some(LogHead::EMPTY.then_all(&entries(0..4)).hash));
        assert_eq!(log.hash_at(9), Some(log.durable().hash));
        assert_eq!(log.hash_at(10), None);
    }

    #[test]
    fn no_more_is_kept_than_its_bounds_allow() {
        let mut log = Log::new(LogHead::EMPTY, Ancestors::default(), Vec::new(), LogLimits::default());
        let many = entries(0..600);
        let after = log.plan(&many);
        log.written(after, many);
        assert_eq!(log.kept.len(), 256);
        assert_eq!(log.hash_at(600 - 257), None);
        assert!(log.hash_at(600 - 256).is_some() && log.is_snapshot_due(Time::ZERO));
        log.folded(log.durable());
        assert!(!log.is_snapshot_due(Time::ZERO));
        let large = vec![vec![0; KEPT_BYTES_MAX - 8]];
        let after = log.plan(&large);
        log.written(after, large);
        assert_eq!(log.kept.len(), 2, "bytes count, too");
    }

    #[test]
    fn a_log_that_could_not_be_folded_is_folded_later_and_once_at_a_time() {
        let mut log = Log::new(LogHead::EMPTY, Ancestors::default(), entries(0..300), LogLimits::default());
        let at = Time::from_millis;
        assert!(log.is_snapshot_due(at(0)));
        log.folding();
        assert!(!log.is_snapshot_due(at(500)), "one is under way");
        log.not_folded(at(60_000));
        assert!(!log.is_snapshot_due(at(59_999)) && log.is_snapshot_due(at(60_000)));
        log.folding();
        log.folded(log.durable());
        assert!(!log.is_snapshot_due(at(90_000)));
    }

    #[test]
    fn a_log_takes_entries_again_behind_a_replacement_that_followed_a_failure() {
        let mut log = Log::new(LogHead::EMPTY, Ancestors::default(), entries(0..3), LogLimits::default());
        let head = LogHead { index: 70, hash: [7; 32] };
        log.plan(&entries(3..4));
        log.plan_replacement(head);
        log.fall_back(false);
        log.replaced(head, Ancestors::default(), true);
        assert!(log.takes_entries());
        assert_eq!((log.planned(), log.durable()), (head, head));
        log.plan_replacement(head);
        let after = log.plan(&entries(0..1));
        log.replaced(head, Ancestors::default(), false);
        assert_eq!(log.planned(), after, "what is planned behind one that was written stays planned");
    }

    /// Whether entries are kept, were folded before the last start, or came as another's snapshot.
    #[test]
    fn a_log_knows_the_ends_that_it_went_through_when_their_entries_are_gone() {
        let limits = LogLimits { kept_max: 4, ..LogLimits::default() };
        let all = entries(0..9);
        let ends: Vec<LogHead> = (0..=9).map(|count| LogHead::EMPTY.then_all(&all[..count])).collect();
        let grown = Log::new(LogHead::EMPTY, Ancestors::default(), all.clone(), limits);
        let ancestors = Ancestors::new(ends[..6].iter().map(|end| end.hash).collect());
        let started = Log::new(ends[6], ancestors, all[6..].to_vec(), limits);
        let mut restored = Log::new(LogHead::EMPTY, Ancestors::default(), entries(3..5), limits);
        restored.replaced(ends[9], grown.ancestors(), true);
        for log in [&grown, &started, &restored] {
            assert!(ends.iter().all(|end| log.goes_through(*end)), "{log:?}");
            assert!(!log.goes_through(ends[9].then(b"more")));
            assert!(!log.goes_through(LogHead { hash: [7; 32], ..ends[4] }));
            assert_eq!(log.ancestors(), grown.ancestors());
        }
        assert_eq!(
            (grown.hash_at(2), started.hash_at(2)),
            (None, None),
            "their entries are not there to send"
        );
    }

    #[test]
    fn a_replacement_forgets_what_was_before() {
        let mut log = Log::new(LogHead::EMPTY, Ancestors::default(), entries(0..3), LogLimits::default());
        let head = LogHead { index: 70, hash: [7; 32] };
        log.plan_replacement(head);
        assert_eq!(log.planned(), head);
        log.replaced(head, Ancestors::default(), true);
        assert_eq!((log.durable(), log.hash_at(2)), (head, None));
        assert!(log.after(2, 9).is_empty());
    }
}
