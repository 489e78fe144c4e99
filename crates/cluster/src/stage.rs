//! What a stage does with a step: check it, have it computed, pass it on.
//!
//! A stage trusts its neighbours' arithmetic and nothing else: placement, term, step order, sequence
//! bookkeeping, token ids and row lengths are checked before the engine sees them. A step that cannot be
//! computed costs its sequences, not the pipeline: the frame travels on without them, so that every stage
//! counts the same steps. A step that does not fit at all ([`PipelineBreak`]) ends the placement, a link
//! that ends only the term.
//!
//! Step 0 comes first, perhaps several times: each stage adds its pages, the last one returns them to the
//! scheduler. Step 0 of a higher term empties the stage and its engine first, but for kept pages ([`terms`]).
//!
//! A stage that was loaded anew has none of the pages that the others keep. It computes them again by itself,
//! from rows that the stage in front of it kept ([`rebuild`]).
//!
//! Start reading at [`StageMachine::handle`].

mod accept;
mod finish;
pub(crate) mod held;
mod rebuild;
mod rows;
mod terms;
#[cfg(test)]
mod tests;
mod types;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use exo_types::{
    Attempt, FailureKind, NodeId, PageKey, Placement, Principal, SequenceId, StepFrame, Term, Time,
};

pub use self::held::HeldSteps;
pub use self::rebuild::StagePagesLeft;
use self::rows::KeptRows;
pub use self::types::{ComputeResult, FailedSequence, StageGeometry, StageInput, StageOutput};
use crate::page_chain::{PageChain, PageHash};
use crate::wire::{DataMessage, PipelineBreak, StageCommand, StagePages, StageSet, StepFailure, StepMessage};
use crate::{MessageKind, Undeliverable};

/// One stage of one placement.
#[derive(Clone, Debug)]
pub struct StageMachine {
    placement: Placement,
    index: usize,
    geometry: StageGeometry,
    term: Term,
    /// Whether the engine still holds what is of an earlier term.
    rewiring: bool,
    open: BTreeMap<SequenceId, Open>,
    /// Kept pages, and what they hold.
    kept: BTreeMap<PageKey, PageHash>,
    /// Whether kept pages are those of an earlier placement, which its scheduler is still to name.
    inherits: bool,
    /// Whether it names them itself in the first term.
    offers: bool,
    /// Pages that step 0 named and that are to be computed here.
    lacking: BTreeSet<PageKey>,
    /// Stages that lack pages since step 0.
    rebuilds: Option<StageSet>,
    /// While some do: the kept pages that open sequences began with, those that this stage lacks included.
    begun: BTreeMap<SequenceId, Vec<PageKey>>,
    /// Rows that it sent on.
    rows: KeptRows,
    /// The step that must arrive next.
    step_next: u64,
    /// Arrived while another was computing.
    waiting: VecDeque<StepMessage>,
    /// On the engine.
    computing: Option<Computing>,
    /// How the pipeline broke here, in this term.
    broken: Option<PipelineBreak>,
}

/// A sequence this stage holds.
#[derive(Clone, Debug)]
struct Open {
    principal: Principal,
    attempt: Attempt,
    driver: NodeId,
    /// The same for the same prompt.
    prompt: [u8; 32],
    /// What the positions in its cache hold, those being computed included.
    tokens: Vec<u32>,
    /// Of these, or of the first.
    chain: PageChain,
    /// A step of it failed here: it is left out of all further steps until it is closed.
    lost: bool,
}

impl Open {
    /// Positions in its cache, those being computed included.
    fn length(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// Its positions from `start` on hold these.
    fn put(&mut self, start: u32, tokens: &[u32]) {
        self.tokens.truncate(start as usize);
        self.chain.truncate((start / self.chain.page_tokens()) as usize);
        self.tokens.extend(tokens);
    }

    /// What its page `index` holds, if it is full.
    fn page(&mut self, index: u32) -> Option<PageHash> {
        let index = index as usize;
        let end = index.checked_add(1)?.checked_mul(self.chain.page_tokens() as usize)?;
        self.chain.extend(self.tokens.get(..end)?);
        self.chain.get(index)
    }
}

/// What is on the engine.
#[derive(Clone, Debug)]
struct Computing {
    commands: Vec<StageCommand>,
    frame: StepFrame,
    failures: Vec<StepFailure>,
    /// Of step 0: the caches of the stages up to this one.
    pages: Vec<StagePages>,
    /// Of step 0: kept pages that the stages up to this one have.
    kept: Vec<PageKey>,
    /// Drivers of the frame's sequences, in its order.
    drivers: Vec<NodeId>,
    /// How long each stage in front of this one computed it, in microseconds.
    computed_us: Vec<u32>,
    began: Time,
    rebuilds: Option<StageSet>,
    /// Of a step that other stages compute: the rows that go on, of pages that are kept.
    passed: Option<Bytes>,
}

impl StageMachine {
    /// Stage `index` of `placement`, just loaded: no sequence open, step 0 comes first. Panics if there is no
    /// such stage.
    pub fn new(placement: Placement, index: usize, geometry: StageGeometry) -> Self {
        assert!(index < placement.stages.len(), "stage {index} of {}", placement.stages.len());
        let row_bytes = geometry.hidden as usize * size_of::<f32>();
        Self {
            placement,
            index,
            geometry,
            term: Term::FIRST,
            rewiring: false,
            open: BTreeMap::new(),
            kept: BTreeMap::new(),
            inherits: false,
            offers: false,
            lacking: BTreeSet::new(),
            rebuilds: None,
            begun: BTreeMap::new(),
            rows: KeptRows::new(row_bytes, geometry.page_tokens),
            step_next: 0,
            waiting: VecDeque::new(),
            computing: None,
            broken: None,
        }
    }

    /// Takes in what happened and says what to do. Outputs are in order.
    pub fn handle(&mut self, now: Time, input: StageInput) -> Vec<StageOutput> {
        let mut out = Vec::new();
        if let Some(why) = self.broken.clone().filter(|_| !self.is_heard_when_broken(&input)) {
            tracing::trace!(placement = %self.placement.id, term = %self.term, stage = self.index, %why, "the pipeline is broken here");
            // A scheduler that does not know yet is a new one, and may be terms behind.
            if let StageInput::Step { from, message: step } = &input
                && *from == self.upstream()
                && self.is_first_again(step)
            {
                let got = step.frame.term;
                // What broke a later term is not that scheduler's fault.
                let kind = if got < self.term { FailureKind::StageLost } else { why.kind() };
                self.tell_broken(got, kind, why, &mut out);
            }
            return out;
        }
        let outcome = match input {
            StageInput::Step { from, message } => self.arrive(from, message, &mut out),
            StageInput::Undeliverable(undeliverable) => {
                self.undeliverable(&undeliverable, &mut out);
                Ok(())
            }
            StageInput::LinkLost(peer) => self.link_lost(peer),
            StageInput::Report { from, message } => {
                self.pass_on(from, message, &mut out);
                Ok(())
            }
            StageInput::ComputeDone { term, step, result } => {
                if self.is_own_term(term, "computed") {
                    self.finish(now, step, result, &mut out);
                }
                Ok(())
            }
            StageInput::Rewired { term } => {
                if self.is_own_term(term, "rewired") {
                    self.rewiring = false;
                }
                Ok(())
            }
        };
        if let Err(broken) = outcome.and_then(|()| self.start_next(now, &mut out)) {
            self.break_pipeline(broken, &mut out);
        }
        out
    }

    /// Pages kept now.
    pub fn pages_kept(&self) -> usize {
        self.kept.len()
    }

    /// Sequences open now.
    pub fn sequences_open(&self) -> usize {
        self.open.len()
    }

    /// Who sends this stage its steps.
    fn upstream(&self) -> NodeId {
        self.placement.stages[self.index.saturating_sub(1)].leader().node
    }

    /// Where the scheduler runs.
    fn scheduler(&self) -> NodeId {
        self.placement.stages[0].leader().node
    }

    fn is_last(&self) -> bool {
        self.index + 1 == self.placement.stages.len()
    }

    fn rows_bytes(&self, tokens: usize) -> usize {
        tokens.saturating_mul(self.geometry.hidden as usize).saturating_mul(size_of::<f32>())
    }

    /// The next node against the direction of the steps, up to the scheduler's.
    fn upward(&self) -> NodeId {
        let own = self.placement.stages[self.index].leader().node;
        if own == self.scheduler() {
            return own;
        }
        let before = self.placement.stages[..self.index].iter().rev();
        before.map(|stage| stage.leader().node).find(|&node| node != own).unwrap_or(own)
    }

    /// Passes a later stage's report on.
    fn pass_on(&self, from: NodeId, message: DataMessage, out: &mut Vec<StageOutput>) {
        let own = self.placement.stages[self.index].leader().node;
        // One from this node itself has begun its way here, or comes round in a circle.
        if from == own || self.placement.stage_of(from).is_none() {
            return tracing::trace!(%from, %own, "a report of nobody behind this stage");
        }
        let report = match &message {
            DataMessage::NotWired { placement, term, .. }
            | DataMessage::Undelivered { placement, term, .. }
            | DataMessage::PipelineBroken { placement, term, .. } => Some((*placement, *term)),
            _ => None,
        };
        let (serving, own_term) = (self.placement.id, self.term);
        if let Some((got, term)) = report.filter(|(got, term)| *got != serving || *term < own_term) {
            return tracing::trace!(%from, %got, %serving, %term, %own_term, "a report of a term that is over");
        }
        out.push(StageOutput::Send { to: self.upward(), message });
    }

    /// A message of this stage waited in vain for its link.
    fn undeliverable(&self, undeliverable: &Undeliverable, out: &mut Vec<StageOutput>) {
        let (placement, term) = (self.placement.id, self.term);
        let missing = undeliverable.missing(self.index as u32);
        let to = self.upward();
        match &undeliverable.kind {
            kind if kind.pipeline() != Some((placement, term)) => {
                let got = kind.pipeline();
                tracing::trace!(?got, %placement, %term, "a message of a term that is over did not go out");
            }
            MessageKind::Step { stage, step, .. } if *stage as usize == self.index + 1 => {
                let (stage, step) = (*stage, *step);
                let message = DataMessage::NotWired { placement, term, stage, step, missing };
                out.push(StageOutput::Send { to, message });
            }
            MessageKind::Tokens { step, sequences, .. } if self.is_last() => {
                let (stage, step) = (self.index as u32, *step);
                let message = if undeliverable.to == self.scheduler() {
                    DataMessage::NotWired { placement, term, stage, step, missing }
                } else {
                    let sequences = sequences.clone();
                    DataMessage::Undelivered { placement, term, step, sequences, missing }
                };
                out.push(StageOutput::Send { to, message });
            }
            MessageKind::Step { .. } | MessageKind::Tokens { .. } | MessageKind::Other => {}
        }
    }

    /// Steps or tokens may have been in the link. Before step 1 it is only step 0, which the scheduler
    /// repeats.
    fn link_lost(&mut self, peer: NodeId) -> Result<(), PipelineBreak> {
        let next = if self.is_last() { 0 } else { self.index + 1 };
        let is_used = [self.index.saturating_sub(1), next]
            .iter()
            .any(|&i| self.placement.stages[i].leader().node == peer);
        if is_used && self.step_next > 1 {
            return Err(PipelineBreak::Link { peer, step: self.step_next - 1 });
        }
        Ok(())
    }

    fn break_pipeline(&mut self, why: PipelineBreak, out: &mut Vec<StageOutput>) {
        let kind = why.kind();
        if kind == FailureKind::Protocol || matches!(why, PipelineBreak::Page { .. }) {
            // The engine was not given all of what was noted here: nothing of it outlives the term.
            self.kept.clear();
        }
        self.broken = Some(why.clone());
        self.tell_broken(self.term, kind, why, out);
    }
}
