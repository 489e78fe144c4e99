//! Waiting sequences: who runs least is the next. Of equals, principals take turns, and within a principal
//! its requests do, so that one request with many choices does not stand in front of another with one.
//! Answers that were interrupted go on before new ones begin, and take turns among themselves in the same
//! way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use exo_types::{Attempt, NodeId, Principal, RequestId, SequenceId, SequenceSpec};

use super::pages::Need;
use crate::wire::{Submission, limits, spec_bytes_about};

/// Sequences that were submitted before and may wait: four times the slots that a placement may have.
const RETURNING_MAX: usize = 4 * limits::SEQUENCES_MAX;

/// And their bytes in all: histories, grammars and biases. Of both a principal may have its share though
/// others have more, up to twice as many in all.
const RETURNING_BYTES_MAX: usize = 64 << 20;

/// The same of those that were not submitted before, where principals take no more than their shares. Shares
/// of others that come later may be added to it, up to twice as many.
const NEW_BYTES_MAX: usize = 128 << 20;

/// A sequence that waits, and the pages it waits for.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) submission: Submission,
    pub(super) need: Need,
    /// Tokens of its answer that were sampled before it was put back here.
    pub(super) generated: u32,
}

/// A bounded queue.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    len_max: usize,
    /// Answers that were interrupted.
    resumed: Principals,
    new: Principals,
}

/// Those that wait, by whose they are.
type Principals = Turns<Principal, Turns<RequestId, VecDeque<Waiting>>>;

impl Queue {
    pub(super) fn new(len_max: usize) -> Self {
        Self { len_max, resumed: Turns::default(), new: Turns::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.iter().count()
    }

    /// Sequences that may wait.
    pub(super) fn len_max(&self) -> usize {
        self.len_max
    }

    /// Whether it has no seat. One that was submitted before may have been accepted where it was lost: it
    /// finds a seat where new ones find none, as do all that a few pipelines can have held at once.
    pub(super) fn is_full_for(&self, submission: &Submission) -> bool {
        let (spec, returns) = (&submission.spec, is_returning(submission));
        match returns {
            // New ones take nothing from them.
            true => {
                let count = |_: &SequenceSpec| 1;
                self.is_beyond(RETURNING_MAX, spec, returns, count)
                    || self.is_beyond(RETURNING_BYTES_MAX, spec, returns, spec_bytes_about)
            }
            false => {
                self.is_full_for_new(spec.principal)
                    || self.is_beyond(NEW_BYTES_MAX, spec, returns, spec_bytes_about)
            }
        }
    }

    /// Whether one more of this principal's has no seat. Its share of the seats is free for it until twice as
    /// many wait as there are seats, however many others have taken, and one seat for who has none until four
    /// times as many do.
    fn is_full_for_new(&self, principal: Principal) -> bool {
        let len = self.len();
        let waits =
            |requests: &Turns<RequestId, VecDeque<Waiting>>| requests.values().map(VecDeque::len).sum();
        let own: usize = self.new.values.get(&principal).map_or(0, waits);
        let others = self.new.values.keys().filter(|other| **other != principal).count();
        let share = (self.len_max / (others + 1)).max(1);
        let has_share = own >= share || (own > 0 && len >= 2 * self.len_max);
        len >= self.len_max && (has_share || len >= 4 * self.len_max)
    }

    /// Whether with one more there is more than `max` of something, and its principal is beyond its share, or
    /// all are beyond twice as much: a member may send the longest histories and grammars that there can be,
    /// and as many as it likes.
    fn is_beyond(
        &self,
        max: usize,
        spec: &SequenceSpec,
        returns: bool,
        size: impl Fn(&SequenceSpec) -> usize,
    ) -> bool {
        let (mut all, mut own, mut others) = (0, 0, BTreeSet::new());
        for waiting in self.iter().filter(|waiting| is_returning(waiting) == returns) {
            let waits = size(&waiting.spec);
            all += waits;
            if waiting.spec.principal == spec.principal {
                own += waits;
            } else {
                others.insert(waiting.spec.principal);
            }
        }
        let (more, share) = (size(spec), max / (others.len() + 1));
        all + more > max && (own + more > share || all + more > 2 * max)
    }

    /// The caller has asked [`Queue::is_full_for`].
    pub(super) fn push(&mut self, waiting: Waiting) {
        let (principal, request) =
            (waiting.submission.spec.principal, waiting.submission.spec.sequence.request);
        let turns = if waiting.submission.is_resumed() { &mut self.resumed } else { &mut self.new };
        turns.entry(principal).entry(request).push_back(waiting);
    }

    /// Puts a sequence back that made way for another: its principal has its turn as before, and in it this
    /// one the next.
    pub(super) fn put_back(&mut self, waiting: Waiting) {
        let (principal, request) =
            (waiting.submission.spec.principal, waiting.submission.spec.sequence.request);
        self.new.entry(principal).first_entry(request).push_front(waiting);
    }

    /// Who has the next slot: of those that run least, whose turn it is. Nobody goes before it because of its
    /// pages, so that a long prompt is not starved.
    pub(super) fn next(&self, runs: impl Fn(&SequenceSpec) -> (usize, usize)) -> Option<&Waiting> {
        let runs = |waiting: &&Waiting| runs(&waiting.submission.spec);
        let least = |turns| {
            let principal = in_order(turns).min_by_key(|waiting| runs(waiting).0)?.submission.spec.principal;
            let of_principal =
                in_order(turns).filter(|waiting| waiting.submission.spec.principal == principal);
            of_principal.min_by_key(|waiting| runs(waiting).1)
        };
        least(&self.resumed).or_else(|| least(&self.new))
    }

    /// Takes one after the other, in the order of turns.
    pub(super) fn pop(&mut self) -> Option<Waiting> {
        pop(&mut self.resumed).or_else(|| pop(&mut self.new))
    }

    /// The first of each request, in the order of turns.
    pub(super) fn in_order(&self) -> impl Iterator<Item = &Waiting> {
        in_order(&self.resumed).chain(in_order(&self.new))
    }

    /// Takes one of [`Queue::in_order`] as if it were its turn; its principal, and within it its request,
    /// goes to the end of the turns.
    pub(super) fn take(&mut self, sequence: SequenceId) -> Option<Waiting> {
        let principal = self.get(sequence)?.spec.principal;
        let is_resumed = waiting(&self.resumed).any(|waiting| waiting.submission.spec.sequence == sequence);
        let turns = if is_resumed { &mut self.resumed } else { &mut self.new };
        turns.first_entry(principal).first_entry(sequence.request);
        pop(turns)
    }

    pub(super) fn get(&self, sequence: SequenceId) -> Option<&Submission> {
        self.iter().find(|s| s.spec.sequence == sequence)
    }

    /// Takes a sequence out, if it is there.
    pub(super) fn remove(&mut self, sequence: SequenceId) -> Option<Waiting> {
        let found = self.waiting().find(|waiting| waiting.submission.spec.sequence == sequence).cloned();
        if found.is_some() {
            self.retain(|s| s.spec.sequence != sequence);
        }
        found
    }

    pub(super) fn remove_driver(&mut self, driver: NodeId) {
        self.retain(|s| s.spec.driver != driver);
    }

    /// Those whose answers have begun, and who made way for others.
    pub(super) fn paused(&self) -> impl Iterator<Item = &Submission> {
        self.waiting().filter(|waiting| waiting.generated > 0).map(|waiting| &waiting.submission)
    }

    /// Whether its answer has begun, and it made way for others.
    pub(super) fn is_paused(&self, sequence: SequenceId) -> bool {
        self.paused().any(|submission| submission.spec.sequence == sequence)
    }

    fn iter(&self) -> impl Iterator<Item = &Submission> {
        self.waiting().map(|waiting| &waiting.submission)
    }

    fn waiting(&self) -> impl Iterator<Item = &Waiting> {
        waiting(&self.resumed).chain(waiting(&self.new))
    }

    fn retain(&mut self, keep: impl Fn(&Submission) -> bool) {
        for turns in [&mut self.resumed, &mut self.new] {
            turns.retain(|requests| {
                requests.retain(|choices| {
                    choices.retain(|waiting| keep(&waiting.submission));
                    !choices.is_empty()
                });
                !requests.is_empty()
            });
        }
    }
}

/// Whether it was submitted before.
fn is_returning(submission: &Submission) -> bool {
    submission.is_resumed() || submission.attempt > Attempt::FIRST
}

/// All of them.
fn waiting(turns: &Principals) -> impl Iterator<Item = &Waiting> {
    turns.values().flat_map(Turns::values).flatten()
}

/// The first of each request, in the order of turns.
fn in_order(turns: &Principals) -> impl Iterator<Item = &Waiting> {
    turns.in_order().flat_map(Turns::in_order).filter_map(VecDeque::front)
}

/// Takes the one whose turn it is.
fn pop(turns: &mut Principals) -> Option<Waiting> {
    let head = |choices: &mut VecDeque<Waiting>| (choices.pop_front(), choices.is_empty());
    turns.turn(|requests| (requests.turn(head), requests.is_empty()))
}

/// Values by key, and whose turn it is. No value is empty.
#[derive(Clone, Debug)]
struct Turns<K, V> {
    values: BTreeMap<K, V>,
    /// The keys, next turn first.
    order: VecDeque<K>,
}

impl<K, V> Default for Turns<K, V> {
    fn default() -> Self {
        Self { values: BTreeMap::new(), order: VecDeque::new() }
    }
}

impl<K: Ord + Copy, V: Default> Turns<K, V> {
    /// The value of `key`; a new one has its turn after all others.
    fn entry(&mut self, key: K) -> &mut V {
        if !self.values.contains_key(&key) {
            self.order.push_back(key);
        }
        self.values.entry(key).or_default()
    }

    /// The value of `key`, which has the next turn.
    fn first_entry(&mut self, key: K) -> &mut V {
        self.order.retain(|other| *other != key);
        self.order.push_front(key);
        self.values.entry(key).or_default()
    }

    /// Lets `take` have the value whose turn it is; it says what it took and whether it left the value empty.
    fn turn<T>(&mut self, take: impl FnOnce(&mut V) -> (Option<T>, bool)) -> Option<T> {
        let key = self.order.pop_front()?;
        let (taken, is_empty) = take(self.values.get_mut(&key)?);
        if is_empty {
            self.values.remove(&key);
        } else {
            self.order.push_back(key);
        }
        taken
    }

    /// The values, next turn first.
    fn in_order(&self) -> impl Iterator<Item = &V> {
        self.order.iter().filter_map(|key| self.values.get(key))
    }

    fn values(&self) -> impl Iterator<Item = &V> {
        self.values.values()
    }

    fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    fn retain(&mut self, mut keep: impl FnMut(&mut V) -> bool) {
        self.values.retain(|_, value| keep(value));
        self.order.retain(|key| self.values.contains_key(key));
    }
}
