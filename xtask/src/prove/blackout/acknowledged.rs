//! What the cluster has acknowledged: what must be there, and what must not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What an acknowledged order was about.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Subject {
    /// A placed model, by the id of its instance.
    Instance(String),
    /// By its node id.
    Member(String),
}

/// Whether it must be there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    There,
    Gone,
    /// An order about it was under way: either is right.
    Unknown,
}

/// All that was acknowledged, for several threads that give orders.
#[derive(Default)]
pub struct Acknowledged(Mutex<Ledger>);

#[derive(Default)]
struct Ledger {
    states: BTreeMap<Subject, State>,
    counts: Counts,
}

/// How many orders of each kind were acknowledged, and how many had no answer.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    pub placements: usize,
    pub unloads: usize,
    pub admissions: usize,
    pub removals: usize,
    pub unanswered: usize,
}

impl Counts {
    /// With those of another cluster.
    pub fn add(&mut self, other: Self) {
        self.placements += other.placements;
        self.unloads += other.unloads;
        self.admissions += other.admissions;
        self.removals += other.removals;
        self.unanswered += other.unanswered;
    }

    /// Whether something of each kind was acknowledged: else a proof shows nothing of it.
    pub fn has_all(&self) -> bool {
        [self.placements, self.unloads, self.admissions, self.removals].iter().all(|count| *count > 0)
    }
}

impl Acknowledged {
    /// These are there before any order is given.
    pub fn begins_with(&self, subjects: BTreeSet<Subject>) {
        self.lock().states.extend(subjects.into_iter().map(|subject| (subject, State::There)));
    }

    /// It was said to be there.
    pub fn is_there(&self, subject: Subject) {
        let mut ledger = self.lock();
        match subject {
            Subject::Instance(_) => ledger.counts.placements += 1,
            Subject::Member(_) => ledger.counts.admissions += 1,
        }
        ledger.states.insert(subject, State::There);
    }

    /// An order about it is given: until it is acknowledged, nothing is known.
    pub fn is_ordered(&self, subject: Subject) {
        let mut ledger = self.lock();
        ledger.counts.unanswered += 1;
        ledger.states.insert(subject, State::Unknown);
    }

    /// Its removal was acknowledged, after it was ordered.
    pub fn is_gone(&self, subject: Subject) {
        let mut ledger = self.lock();
        ledger.counts.unanswered -= 1;
        match subject {
            Subject::Instance(_) => ledger.counts.unloads += 1,
            Subject::Member(_) => ledger.counts.removals += 1,
        }
        ledger.states.insert(subject, State::Gone);
    }

    /// What of it a node does not have, or still has, of which this is there.
    pub fn broken(&self, there: &BTreeSet<Subject>) -> Vec<String> {
        let ledger = self.lock();
        let broken =
            ledger.states.iter().filter_map(|(subject, state)| match (state, there.contains(subject)) {
                (State::There, false) => Some(format!("{subject:?} is not there any more")),
                (State::Gone, true) => Some(format!("{subject:?} is there again")),
                (State::There | State::Unknown, _) | (State::Gone, false) => None,
            });
        broken.collect()
    }

    /// Of all orders so far.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_acknowledged_is_kept_and_what_was_under_way_may_be_either() {
        let (placed, member) = (Subject::Instance("i1".to_owned()), Subject::Member("n4".to_owned()));
        let both = BTreeSet::from([placed.clone(), member.clone(), Subject::Member("n1".to_owned())]);
        let acknowledged = Acknowledged::default();
        let admin = Subject::Member("n1".to_owned());
        acknowledged.begins_with(BTreeSet::from([admin.clone()]));
        assert_eq!(acknowledged.broken(&BTreeSet::new()), ["Member(\"n1\") is not there any more"]);
        acknowledged.is_there(placed.clone());
        acknowledged.is_there(member.clone());
        assert_eq!(acknowledged.broken(&both), [""; 0]);
        assert_eq!(
            acknowledged.broken(&BTreeSet::from([admin.clone(), member.clone()])),
            ["Instance(\"i1\") is not there any more"]
        );
        acknowledged.is_ordered(member.clone());
        assert_eq!(acknowledged.counts().unanswered, 1);
        assert_eq!(acknowledged.broken(&both), [""; 0]);
        assert_eq!(acknowledged.broken(&BTreeSet::from([admin, placed])), [""; 0]);
        acknowledged.is_gone(member.clone());
        assert_eq!(acknowledged.broken(&both), ["Member(\"n4\") is there again"]);
        let counts = Counts { placements: 1, unloads: 0, admissions: 1, removals: 1, unanswered: 0 };
        assert_eq!(acknowledged.counts(), counts);
        let mut all = Counts { unloads: 2, ..Counts::default() };
        assert!(!counts.has_all() && !all.has_all());
        all.add(counts);
        assert!(all.has_all());
    }
}
