//! Terms: what was on its way is lost with a link, and the pipeline begins anew in place.
//!
//! A link that ends takes steps or tokens with it, so the stages no longer hold the same. Their nodes and
//! weights are there: running sequences are interrupted, and step 0 of the next term clears the stages and
//! proves the links again. Full pages outlive the term where every stage still has them, so an interrupted
//! sequence that is submitted again begins with its own. Sequences that wait go on waiting. A pipeline that
//! cannot hold a term for long is given up.

use std::collections::VecDeque;
use std::time::Duration;

use exo_types::{FailureKind, NodeId, PlacementId, SequenceId, Term, Time};

use super::opening::Opening;
use super::{Scheduler, SchedulerOutput};
use crate::failures::{PipelineFailure, TermEnd};
use crate::wire::limits;

/// Terms without a token, within [`WITHIN`], after which the instance is given up.
pub(crate) const TERMS_MAX: usize = 3;
pub(crate) const WITHIN: Duration = Duration::from_secs(30);

/// The term of a pipeline, and how the last ones went.
#[derive(Clone, Debug)]
pub(super) struct PipelineTerms {
    pub(super) current: Term,
    /// When each began since the last token.
    began: VecDeque<Time>,
}

impl PipelineTerms {
    pub(super) fn new(now: Time) -> Self {
        Self { current: Term::FIRST, began: VecDeque::from([now]) }
    }

    /// A token came back.
    pub(super) fn token_came(&mut self) {
        self.began.clear();
    }

    /// Terms in which nothing came back lately.
    fn in_vain(&mut self, now: Time) -> usize {
        self.began.retain(|began| now.since(*began) <= WITHIN);
        self.began.len()
    }

    fn begin(&mut self, now: Time, term: Term) {
        self.current = term;
        self.began.push_back(now);
    }
}

impl Scheduler {
    /// The term of the pipeline.
    pub fn term(&self) -> Term {
        self.terms.current
    }

    pub(super) fn pipeline(&self) -> (PlacementId, Term) {
        (self.placement.id, self.terms.current)
    }

    /// The data link to a node ended: what was in it is lost.
    pub(super) fn link_lost(&mut self, now: Time, node: NodeId, out: &mut Vec<SchedulerOutput>) {
        let ends = [self.placement.stages.get(1), self.placement.stages.last()];
        if ends.into_iter().flatten().any(|stage| stage.leader().node == node) {
            match &mut self.opening {
                // Nothing but step 0 can have been in the link, and that comes again.
                Some(opening) => {
                    tracing::trace!(%node, term = %self.terms.current, step = 0, "a link ended before step 0 came back");
                    opening.repeat(now);
                }
                None => {
                    let end = TermEnd::Link { peer: node, step: self.step_last };
                    self.end_term(now, end, out);
                }
            }
        }
        self.forget_driver(node);
    }

    /// The term is over: the next begins in place, if the last ones were any good.
    pub(super) fn end_term(&mut self, now: Time, end: TermEnd, out: &mut Vec<SchedulerOutput>) {
        if self.over.is_some() {
            return;
        }
        let (ended, terms, seconds) = (self.terms.current, self.terms.in_vain(now), WITHIN.as_secs());
        let Some(next) = ended.next().filter(|_| terms < TERMS_MAX) else {
            let why = PipelineFailure::NoToken { terms: terms as u32, seconds, last: end };
            return self.fail_instance(FailureKind::StageLost, None, why, out);
        };
        tracing::debug!(placement = %self.placement.id, %ended, %next, why = %end, "the next term begins");
        let why = PipelineFailure::Ended(end);
        let running: Vec<SequenceId> = self.running.keys().copied().collect();
        for sequence in running {
            self.fail(sequence, FailureKind::StageLost, &why, out);
        }
        self.terms.begin(now, next);
        self.failures_in_row = 0;
        self.wire_again(Opening::new(now));
    }

    /// Nothing is on its way any more, and step 0 comes next: with the names of what may be kept.
    fn wire_again(&mut self, opening: Opening) {
        self.in_flight.clear();
        self.tickets_lost.clear();
        self.commands.clear();
        self.step_last = 0;
        self.opening = Some(opening.naming(self.pages.outlive_term(limits::PAGES_OF_TERM_MAX)));
    }

    /// Stages do not keep the same: a command was under way when the term ended, or one of them is new. In
    /// the next term all keep what each has now. Whether there is one.
    pub(super) fn agree_in_next_term(&mut self, now: Time) -> bool {
        let (Some(opening), Some(next)) = (self.opening.take(), self.terms.current.next()) else {
            return false;
        };
        tracing::debug!(placement = %self.placement.id, %next, pages = self.pages.cached(), "stages keep different pages");
        self.terms.current = next;
        self.wire_again(opening.at_once(now));
        true
    }
}
