//! Waiting sequences: who runs least is the next. Of equals, principals take turns, and within a principal its requests do, so that
//! one request with many choices does not stand in front of another with one. Answers that were interrupted go on before new ones begin.

use std::collections::{BTreeMap, VecDeque};

use exo_types::{NodeId, Principal, RequestId, SequenceId, SequenceSpec};

use super::pages::Need;
use crate::wire::{Submission, limits};

/// Interrupted answers that may wait: four times the slots that a placement may have.
const RESUMED_MAX: usize = 4 * limits::SEQUENCES_MAX;

/// And their tokens in all: 64 MiB.
const RESUMED_TOKENS_MAX: usize = 16 << 20;

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
    /// Answers that were interrupted, in order of arrival.
    resumed: VecDeque<Waiting>,
    principals: Turns<Principal, Turns<RequestId, VecDeque<Waiting>>>,
}

impl Queue {
    pub(super) fn new(len_max: usize) -> Self {
        Self { len_max, resumed: VecDeque::new(), principals: Turns::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.iter().count()
    }

    /// Sequences that may wait.
    pub(super) fn len_max(&self) -> usize {
        self.len_max
    }

    /// Whether this one, which was interrupted, has no seat: those that a few pipelines can have run at once always have.
    pub(super) fn is_full_for_resumed(&self, submission: &Submission) -> bool {
        let tokens = |s: &Submission| s.spec.history.len();
        let waiting: usize = self.resumed.iter().map(|waiting| tokens(&waiting.submission)).sum();
        let is_first = self.resumed.is_empty();
        self.resumed.len() >= RESUMED_MAX || (waiting + tokens(submission) > RESUMED_TOKENS_MAX && !is_first)
    }

    /// Whether one more of this principal's has no seat. Its share of the seats is free for it, however many others have taken, and one
    /// seat for who has none; so more may wait than there are seats, at most four times as many.
    pub(super) fn is_full_for(&self, principal: Principal) -> bool {
        let len = self.len();
        let waits =
            |requests: &Turns<RequestId, VecDeque<Waiting>>| requests.values().map(VecDeque::len).sum();
        let own: usize = self.principals.values.get(&principal).map_or(0, waits);
        let others = self.principals.values.keys().filter(|other| **other != principal).count();
        let share = (self.len_max / (others + 1)).max(1);
        let has_share = own >= share || (own > 0 && len >= 2 * self.len_max);
        len >= self.len_max && (has_share || len >= 4 * self.len_max)
    }

    /// The caller has asked [`Queue::is_full_for`].
    pub(super) fn push(&mut self, waiting: Waiting) {
        if waiting.submission.is_resumed() {
            return self.resumed.push_back(waiting);
        }
        let (principal, request) =
            (waiting.submission.spec.principal, waiting.submission.spec.sequence.request);
        self.principals.entry(principal).entry(request).push_back(waiting);
    }

    /// Puts a sequence back that made way for another: its principal has its turn as before, and in it this one the next.
    pub(super) fn put_back(&mut self, waiting: Waiting) {
        let (principal, request) =
            (waiting.submission.spec.principal, waiting.submission.spec.sequence.request);
        self.principals.entry(principal).first_entry(request).push_front(waiting);
    }

    /// Who has the next slot: of those that run least, whose turn it is. Nobody goes before it because of its pages, so that a long
    /// prompt is not starved.
    pub(super) fn next(&self, runs: impl Fn(&SequenceSpec) -> (usize, usize)) -> Option<&Waiting> {
        let runs = |waiting: &&Waiting| runs(&waiting.submission.spec);
        let least = || {
            let principal = self.in_order().min_by_key(|waiting| runs(waiting).0)?.submission.spec.principal;
            let of_principal =
                self.in_order().filter(|waiting| waiting.submission.spec.principal == principal);
            of_principal.min_by_key(|waiting| runs(waiting).1)
        };
        self.resumed.front().or_else(least)
    }

    /// Takes one after the other, in the order of turns.
    pub(super) fn pop(&mut self) -> Option<Waiting> {
        self.resumed.pop_front().or_else(|| self.pop_turn())
    }

    fn pop_turn(&mut self) -> Option<Waiting> {
        let head = |choices: &mut VecDeque<Waiting>| (choices.pop_front(), choices.is_empty());
        self.principals.turn(|requests| (requests.turn(head), requests.is_empty()))
    }

    /// The first of each request, in the order of turns.
    pub(super) fn in_order(&self) -> impl Iterator<Item = &Waiting> {
        let requests = self.principals.in_order().flat_map(Turns::in_order);
        self.resumed.front().into_iter().chain(requests.filter_map(VecDeque::front))
    }

    /// Takes one of [`Queue::in_order`] as if it were its turn; its principal, and within it its request, goes to the end of the turns.
    pub(super) fn take(&mut self, sequence: SequenceId) -> Option<Waiting> {
        if self.resumed.front().is_some_and(|waiting| waiting.submission.spec.sequence == sequence) {
            return self.resumed.pop_front();
        }
        let spec =
            &self.waiting().find(|waiting| waiting.submission.spec.sequence == sequence)?.submission.spec;
        let principal = spec.principal;
        self.principals.first_entry(principal).first_entry(sequence.request);
        self.pop_turn()
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

    fn iter(&self) -> impl Iterator<Item = &Submission> {
        self.waiting().map(|waiting| &waiting.submission)
    }

    fn waiting(&self) -> impl Iterator<Item = &Waiting> {
        let new = self.principals.values().flat_map(Turns::values).flatten();
        self.resumed.iter().chain(new)
    }

    fn retain(&mut self, keep: impl Fn(&Submission) -> bool) {
        self.resumed.retain(|waiting| keep(&waiting.submission));
        self.principals.retain(|requests| {
            requests.retain(|choices| {
                choices.retain(|waiting| keep(&waiting.submission));
                !choices.is_empty()
            });
            !requests.is_empty()
        });
    }
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
