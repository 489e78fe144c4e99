//! What a stage does with a step: check it, have it computed, pass it on.
//!
//! A stage trusts its neighbours' arithmetic and nothing else: instance, generation, step order, sequence
//! bookkeeping, token ids and row lengths are checked before the engine sees them. A step that cannot be computed
//! costs its sequences, not the pipeline: the frame travels on without them, so that every stage counts the same
//! steps. A step that does not fit at all ([`Broken`]) ends the generation.
//!
//! Start reading at [`StageMachine::handle`].

mod accept;
mod finish;
#[cfg(test)]
mod tests;
mod words;

use std::collections::{BTreeMap, VecDeque};

use exo_types::{FailureKind, NodeId, PageKey, Placement, Principal, SequenceId, StepFrame, Time};

pub use self::words::{ComputeResult, StageGeometry, StageInput, StageOutput};
use crate::wire::{DataMessage, StageCommand, StepFailure, StepMessage};

/// One stage of one instance generation.
#[derive(Clone, Debug)]
pub struct StageMachine {
    placement: Placement,
    index: usize,
    geometry: StageGeometry,
    open: BTreeMap<SequenceId, Open>,
    /// Kept pages, and on whose behalf they were filled.
    kept: BTreeMap<PageKey, Principal>,
    /// The step that must arrive next.
    step_next: u64,
    /// Arrived while another was computing.
    waiting: VecDeque<StepMessage>,
    /// On the engine, in order: one, or two where the first may be gone ahead of.
    computing: VecDeque<Computing>,
    broken: bool,
}

/// A sequence this stage holds.
#[derive(Clone, Copy, Debug)]
struct Open {
    principal: Principal,
    driver: NodeId,
    /// Positions in its cache, those being computed included.
    length: u32,
    /// A step of it failed here: it is left out of all further steps until it is closed.
    lost: bool,
}

/// Steps on the engine at once.
const COMPUTING_MAX: usize = 2;

/// What is on the engine.
#[derive(Clone, Debug)]
struct Computing {
    commands: Vec<StageCommand>,
    frame: StepFrame,
    failures: Vec<StepFailure>,
    /// Drivers of the frame's sequences, in its order.
    drivers: Vec<NodeId>,
    /// How the step in front of it failed, with which sequences of this one may have been lost.
    lost_in_front: Option<FailureKind>,
}

/// Why a step cannot be: the generation ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Broken {
    #[error("step {got} arrived, {expected} was next")]
    Order { got: u64, expected: u64 },
    #[error("{waiting} steps are waiting, in a pipeline of {stages} stages no more may")]
    TooMany { waiting: usize, stages: usize },
    #[error("step {step} {what} sequence {sequence}")]
    Sequence { step: u64, what: &'static str, sequence: SequenceId },
    #[error("step {step} {what} {key}")]
    Page { step: u64, what: &'static str, key: PageKey },
    #[error("step {step} puts sequence {sequence} at {start}..{end}, this stage holds {length} of {context}")]
    Position { step: u64, sequence: SequenceId, start: u32, end: u64, length: u32, context: u32 },
    #[error("step {step} has token {token}, the vocabulary has {vocab}")]
    Token { step: u64, token: u32, vocab: u32 },
    #[error("step {step} carries {got_bytes} bytes of rows, {expected_bytes} belong to it")]
    Rows { step: u64, got_bytes: usize, expected_bytes: usize },
}

impl StageMachine {
    /// Stage `index` of `placement`, just loaded: no sequence open, step 1 comes first. Panics if there is no such
    /// stage.
    pub fn new(placement: Placement, index: usize, geometry: StageGeometry) -> Self {
        assert!(index < placement.stages.len(), "stage {index} of {}", placement.stages.len());
        Self {
            placement,
            index,
            geometry,
            open: BTreeMap::new(),
            kept: BTreeMap::new(),
            step_next: 1,
            waiting: VecDeque::new(),
            computing: VecDeque::new(),
            broken: false,
        }
    }

    /// Takes in what happened and says what to do. Outputs are in order.
    pub fn handle(&mut self, _now: Time, input: StageInput) -> Vec<StageOutput> {
        let mut out = Vec::new();
        if self.broken {
            return out;
        }
        let outcome = match input {
            StageInput::Step { from, message } => self.arrive(from, message, &mut out),
            StageInput::ComputeDone { step, result } => {
                self.finish(step, result, &mut out);
                Ok(())
            }
        };
        if let Err(broken) = outcome.and_then(|()| self.start_next(&mut out)) {
            self.break_pipeline(&broken, &mut out);
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
        self.placement.stages[self.index.saturating_sub(1)].node
    }

    /// Where the scheduler runs.
    fn scheduler(&self) -> NodeId {
        self.placement.stages[0].node
    }

    fn is_last(&self) -> bool {
        self.index + 1 == self.placement.stages.len()
    }

    fn rows_bytes(&self, tokens: usize) -> usize {
        tokens.saturating_mul(self.geometry.hidden as usize).saturating_mul(size_of::<f32>())
    }

    fn break_pipeline(&mut self, broken: &Broken, out: &mut Vec<StageOutput>) {
        self.broken = true;
        let message = DataMessage::PipelineBroken {
            instance: self.placement.instance,
            generation: self.placement.generation,
            stage: self.index as u32,
            kind: FailureKind::Protocol,
            message: format!("stage {}: {broken}", self.index),
        };
        out.push(StageOutput::Send { to: self.scheduler(), message });
    }
}
