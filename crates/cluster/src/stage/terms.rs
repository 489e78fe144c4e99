//! Terms of a stage: what is of an earlier one is ignored, and step 0 of a later one empties the stage, but
//! for kept pages.
//!
//! Step 0 names the pages that the scheduler knows of. Each stage forgets all others, and leaves in the list
//! only what it has; so what comes back is what every stage keeps.
//!
//! The first step 0 of a scheduler whose node had not the first stage before names nothing. A stage that
//! keeps pages of the placement before names its own, for those in front of it to be computed again.
//!
//! Step 0 of a term that this stage is through with comes from a scheduler that was started anew, on a node
//! that was: it is told so, and begins the next term.

use std::collections::BTreeSet;

use exo_types::{FailureKind, NodeId, PageKey, StepFrame, Term};

use super::{StageInput, StageMachine, StageOutput};
use crate::wire::{DataMessage, Missing, MissingPart, PipelineBreak, StageSet, StepMessage, limits};

impl StageMachine {
    /// The term whose steps it takes.
    pub fn term(&self) -> Term {
        self.term
    }

    /// Of what comes to a broken stage, only reports of others and a later term count.
    pub(super) fn is_heard_when_broken(&self, input: &StageInput) -> bool {
        match input {
            StageInput::Report { .. } => true,
            StageInput::Step { message, .. } => message.frame.term > self.term,
            StageInput::Undeliverable(_)
            | StageInput::LinkLost(_)
            | StageInput::ComputeDone { .. }
            | StageInput::Rewired { .. } => false,
        }
    }

    /// Whether an answer of the engine is for the present term.
    pub(super) fn is_own_term(&self, got: Term, what: &str) -> bool {
        let term = self.term;
        if got != term {
            tracing::trace!(placement = %self.placement.id, stage = self.index, %got, %term, what, "of another term");
        }
        got == term
    }

    /// Where the first step 0 names nothing: what this stage keeps, which those in front lack. So does each
    /// repetition of it.
    pub(super) fn offer(&mut self, message: &mut StepMessage) {
        let StepFrame { term, step, .. } = message.frame;
        let is_first = (term, self.term, step) == (Term::FIRST, Term::FIRST, 0);
        let names_nothing = message.kept.is_empty() && message.rebuilds.is_none();
        self.offers |= self.inherits && is_first && names_nothing && self.index > 0;
        if self.offers && is_first && names_nothing {
            message.kept = self.kept.keys().copied().take(limits::PAGES_OF_TERM_MAX).collect();
            message.rebuilds = Some(StageSet::of(0..self.index));
        }
    }

    /// Whether a step is of the present term. A later one begins with step 0; any other step of it has met a
    /// stage that lost what came before.
    pub(super) fn follows(
        &mut self,
        from: NodeId,
        message: &StepMessage,
        out: &mut Vec<StageOutput>,
    ) -> bool {
        let (got, term, step) = (message.frame.term, self.term, message.frame.step);
        if got == term {
            if self.inherits && step == 0 {
                self.begin_term(got, &message.kept, out);
            }
            return true;
        }
        tracing::trace!(%from, placement = %self.placement.id, stage = self.index, %got, %term, step, "a step of another term");
        if got < term {
            if step == 0 {
                // Of a scheduler that was started anew, or late: then it is ignored there.
                let why = PipelineBreak::LaterTerm { own: term };
                self.tell_broken(got, FailureKind::StageLost, why, out);
            }
            return false;
        }
        if step == 0 {
            self.begin_term(got, &message.kept, out);
            return true;
        }
        let (placement, stage) = (self.placement.id, self.index as u32);
        let missing = Missing { stage, what: MissingPart::Term { own: term, got }, waited_ms: 0 };
        let message = DataMessage::NotWired { placement, term: got, stage, step, missing };
        out.push(StageOutput::Send { to: from, message });
        false
    }

    /// Whether a step begins the present term again, or one before it.
    pub(super) fn is_first_again(&self, message: &StepMessage) -> bool {
        let StepFrame { placement, term, step, .. } = message.frame;
        (placement, step) == (self.placement.id, 0) && term <= self.term
    }

    /// The scheduler is to end this term.
    pub(super) fn tell_broken(
        &self,
        term: Term,
        kind: FailureKind,
        why: PipelineBreak,
        out: &mut Vec<StageOutput>,
    ) {
        let (placement, stage) = (self.placement.id, self.index as u32);
        let message = DataMessage::PipelineBroken { placement, term, stage, kind, why };
        out.push(StageOutput::Send { to: self.upward(), message });
    }

    /// Nothing of an earlier term counts any more, but for kept pages that step 0 names.
    fn begin_term(&mut self, term: Term, kept: &[PageKey], out: &mut Vec<StageOutput>) {
        self.forget_beginning();
        let named: BTreeSet<PageKey> = kept.iter().copied().collect();
        self.kept.retain(|key, _| named.contains(key));
        self.rows.retain(|key| self.kept.contains_key(key));
        self.open.clear();
        self.begun.clear();
        self.lacking.clear();
        (self.inherits, self.rebuilds) = (false, None);
        self.waiting.clear();
        self.computing = None;
        (self.term, self.step_next, self.broken, self.rewiring) = (term, 0, None, true);
        out.push(StageOutput::Rewire { term, keep: self.kept.keys().copied().collect() });
    }
}
