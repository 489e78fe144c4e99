//! Who has more than its share of the slots is preempted by one who has less.
//!
//! The shares are those of principals, and within a principal those of its requests. A sequence that makes
//! way goes back into the queue with what it has generated, the next of its principal's: it begins again
//! behind its kept pages, and its driver and client see a pause.

use std::collections::{BTreeMap, BTreeSet};

use exo_types::{Principal, RequestId, SequenceId, SequenceSpec};

use super::Scheduler;
use super::queue::Waiting;
use super::sequence::Running;

/// How many sequences run, by whose they are.
pub(super) struct Shares {
    principals: BTreeMap<Principal, usize>,
    requests: BTreeMap<RequestId, usize>,
}

impl Shares {
    pub(super) fn of_all(running: &BTreeMap<SequenceId, Running>) -> Self {
        let (mut principals, mut requests) = (BTreeMap::new(), BTreeMap::new());
        for (sequence, running) in running {
            *principals.entry(running.principal).or_default() += 1;
            *requests.entry(sequence.request).or_default() += 1;
        }
        Self { principals, requests }
    }

    /// What runs of its principal, and of its request.
    pub(super) fn of(&self, spec: &SequenceSpec) -> (usize, usize) {
        (self.of_principal(spec.principal), self.of_request(spec.sequence.request))
    }

    fn of_principal(&self, principal: Principal) -> usize {
        self.principals.get(&principal).copied().unwrap_or(0)
    }

    fn of_request(&self, request: RequestId) -> usize {
        self.requests.get(&request).copied().unwrap_or(0)
    }
}

impl Scheduler {
    /// Who is admitted, and which sequence makes way for it: the first that waits and whose principal runs at
    /// most as much as that sequence's when both have changed places; or the same of requests of one
    /// principal. Who runs nothing is overtaken by nobody.
    pub(super) fn preemption(&self, shares: &Shares) -> Option<(SequenceId, SequenceId)> {
        let mut overtaken = BTreeSet::new();
        for waiting in self.queue.in_order() {
            let SequenceSpec { sequence, principal, .. } = waiting.submission.spec;
            if overtaken.contains(&principal) {
                continue;
            }
            if let Some(paused) = self.preempted_by(waiting, shares) {
                return Some((sequence, paused));
            }
            if shares.of_request(sequence.request) == 0 {
                overtaken.insert(principal);
            }
            if shares.of_principal(principal) == 0 {
                return None;
            }
        }
        None
    }

    /// Of the principal that runs most, of its request that does, the one that began last; and none that a
    /// step has.
    fn preempted_by(&self, waiting: &Waiting, shares: &Shares) -> Option<SequenceId> {
        let SequenceSpec { sequence: SequenceId { request, .. }, principal, .. } = waiting.submission.spec;
        let has_too_much = |running: RequestId, of: Principal| match of == principal {
            true => shares.of_request(running) >= shares.of_request(request) + 2,
            false => shares.of_principal(of) >= shares.of_principal(principal) + 2,
        };
        let candidates = self.running.iter().filter(|(sequence, running)| {
            running.is_ready_to_decode()
                && has_too_much(sequence.request, running.principal)
                && self.pages.can_claim_without(&running.claim, &waiting.need)
        });
        let most = candidates.max_by_key(|(sequence, running)| {
            (shares.of_principal(running.principal), shares.of_request(sequence.request), running.ticket)
        });
        most.map(|(&sequence, _)| sequence)
    }

    /// Puts a running sequence that no step has back into the queue.
    pub(super) fn pause(&mut self, sequence: SequenceId) {
        let Some(running) = self.release(sequence) else { return };
        let generated = running.generated;
        let submission = running.into_rest(sequence, self.placement.id);
        let need = self.need(&submission);
        self.queue.put_back(Waiting { submission, need, generated });
    }
}
