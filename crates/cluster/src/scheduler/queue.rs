//! Waiting sequences: first come first served within a principal, principals in turn.

use std::collections::{BTreeMap, VecDeque};

use exo_types::{NodeId, Principal, SequenceId};

use crate::wire::Submission;

/// A bounded queue. The head is whoever's turn it is; it is never overtaken, so that a long prompt is not starved.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    len_max: usize,
    waiting: BTreeMap<Principal, VecDeque<Submission>>,
    /// Principals with something waiting, next turn first.
    turns: VecDeque<Principal>,
}

impl Queue {
    pub(super) fn new(len_max: usize) -> Self {
        Self { len_max, waiting: BTreeMap::new(), turns: VecDeque::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.values().map(VecDeque::len).sum()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.len_max
    }

    /// The caller has asked [`Queue::is_full`].
    pub(super) fn push(&mut self, submission: Submission) {
        let principal = submission.spec.principal;
        let waiting = self.waiting.entry(principal).or_default();
        if waiting.is_empty() {
            self.turns.push_back(principal);
        }
        waiting.push_back(submission);
    }

    /// Whose turn it is.
    pub(super) fn head(&self) -> Option<&Submission> {
        self.waiting.get(self.turns.front()?)?.front()
    }

    /// Takes the head; its principal goes to the end of the turns.
    pub(super) fn pop(&mut self) -> Option<Submission> {
        let principal = self.turns.pop_front()?;
        let waiting = self.waiting.get_mut(&principal)?;
        let head = waiting.pop_front();
        if waiting.is_empty() {
            self.waiting.remove(&principal);
        } else {
            self.turns.push_back(principal);
        }
        head
    }

    pub(super) fn get(&self, sequence: SequenceId) -> Option<&Submission> {
        self.waiting.values().flatten().find(|s| s.spec.sequence == sequence)
    }

    pub(super) fn remove(&mut self, sequence: SequenceId) -> Option<Submission> {
        let found = self.get(sequence)?.clone();
        self.retain(|s| s.spec.sequence != sequence);
        Some(found)
    }

    pub(super) fn remove_driver(&mut self, driver: NodeId) {
        self.retain(|s| s.spec.driver != driver);
    }

    fn retain(&mut self, keep: impl Fn(&Submission) -> bool) {
        self.waiting.values_mut().for_each(|w| w.retain(&keep));
        self.waiting.retain(|_, w| !w.is_empty());
        self.turns.retain(|p| self.waiting.contains_key(p));
    }
}
