//! The engine is done: rows go on, tokens go out, failures go to whom they concern.

use std::collections::BTreeMap;

use bytes::Bytes;
use exo_types::{Attempt, FailureKind, NodeId, SequenceId, StepSequence, Time, WireDType};

use super::{ComputeResult, Computing, FailedSequence, StageMachine, StageOutput};
use crate::wire::{
    ComputeFault, DataMessage, Missing, MissingPart, StepFailure, StepMessage, TokenResult, TokensMessage,
    clip,
};

/// The greatest amount that an element of a row has. What models compute stays far below; of what is greater
/// the squares that a norm adds up could overflow, and the device would be blamed that was given it.
const ROW_MAX: f32 = 1e8;
/// Elements of rows that are looked through together.
const BLOCK: usize = 256;

impl StageMachine {
    pub(super) fn finish(&mut self, now: Time, step: u64, result: ComputeResult, out: &mut Vec<StageOutput>) {
        let Some(mut done) = self.computing.take_if(|on_engine| on_engine.frame.step == step) else {
            let computing = self.computing.as_ref().map(|on_engine| on_engine.frame.step);
            return tracing::trace!(
                got = step,
                ?computing,
                "the engine is done with a step that it was not given"
            );
        };
        // As many as there are stages in front, whatever they told.
        done.computed_us.resize(self.index, 0);
        done.computed_us.push(u32::try_from(now.since(done.began).as_micros()).unwrap_or(u32::MAX));
        let (is_last, vocab) = (self.is_last(), self.geometry.vocab);
        match result {
            ComputeResult::Rows(none) if done.passed.is_some() && none.is_empty() && !is_last => {
                let rows = done.passed.take().unwrap_or_default();
                self.forward(done, rows, out);
            }
            ComputeResult::Rows(rows) => match self.rows_fault(&done, &rows, out) {
                None => {
                    self.note_rows(&done.frame, &rows);
                    self.forward(done, rows, out);
                }
                Some(why) => self.step_failed(done, FailureKind::Device, why, out),
            },
            ComputeResult::Tokens(results) if is_last && are_of(&done, &results, &[], vocab) => {
                self.send_tokens(done, results, out);
            }
            ComputeResult::Tokens(results) => {
                let why = ComputeFault::Tokens { tokens: results.len() as u64 };
                self.step_failed(done, FailureKind::Device, why, out);
            }
            ComputeResult::Partial { results, failed }
                if is_last && are_of(&done, &results, &failed, vocab) =>
            {
                let spoilt = failed.iter().find(|failed| failed.is_not_finite);
                out.extend(spoilt.and_then(|failed| self.not_finite_for(failed.sequence)));
                let lost = failed.into_iter().filter_map(|failed| Lost::one(&mut done, failed)).collect();
                self.lose(&mut done, self.index, lost, out);
                self.send_tokens(done, results, out);
            }
            ComputeResult::Partial { results, failed } => {
                let (tokens, failed) = (results.len() as u64, failed.len() as u64);
                self.step_failed(done, FailureKind::Device, ComputeFault::Partial { tokens, failed }, out);
            }
            ComputeResult::Failed { kind, message } => {
                self.step_failed(done, kind, ComputeFault::Engine(clip(&message)), out);
            }
        }
    }

    /// What is wrong with rows that are to be this step's.
    fn rows_fault(&self, done: &Computing, rows: &[u8], out: &mut Vec<StageOutput>) -> Option<ComputeFault> {
        let expected_bytes = self.rows_bytes(done.frame.token_count());
        if self.is_last() || rows.len() != expected_bytes {
            let (got_bytes, expected_bytes) = (rows.len() as u64, expected_bytes as u64);
            return Some(ComputeFault::Rows { got_bytes, expected_bytes });
        }
        // Every stage behind would keep pages of it, and the sampler would draw from nothing.
        let at = no_value(rows)?;
        out.extend(self.not_finite_in(done, rows));
        Some(ComputeFault::NotFinite { row: self.row_of(at), hidden: self.geometry.hidden })
    }

    /// The step could not be computed: its sequences are lost, and what is left of it goes on.
    fn step_failed(
        &mut self,
        mut done: Computing,
        kind: FailureKind,
        why: ComputeFault,
        out: &mut Vec<StageOutput>,
    ) {
        let step = done.frame.step;
        if step == 0 {
            // An engine that cannot do nothing will not do more: the scheduler asks again.
            let (placement, term) = (self.placement.id, self.term);
            let (stage, what) = (self.index as u32, MissingPart::Engine(why));
            let missing = Missing { stage, what, waited_ms: 0 };
            let message = DataMessage::NotWired { placement, term, stage, step, missing };
            return out.push(StageOutput::Send { to: self.upward(), message });
        }
        let lost = Lost::all(&mut done, kind, &why);
        if lost.is_empty() {
            // A command that it refused: what it keeps is not what the scheduler believes.
            tracing::warn!(step, ?kind, %why, "a step of commands alone failed");
        }
        self.lose(&mut done, self.index, lost, out);
        if self.is_last() {
            self.send_tokens(done, Vec::new(), out);
        } else {
            self.forward(done, Bytes::new(), out);
        }
    }

    fn forward(&self, done: Computing, rows: Bytes, out: &mut Vec<StageOutput>) {
        let Computing { commands, frame, failures, pages, kept, computed_us, rebuilds, .. } = done;
        let (next, rows_dtype) = (self.index + 1, WireDType::F32);
        // A stage that does not compute it takes none.
        let rows = if rebuilds.is_none_or(|stages| stages.has(next)) { rows } else { Bytes::new() };
        let to = self.placement.stages[next].leader().node;
        let stage = next as u32;
        let message = StepMessage {
            stage,
            commands,
            frame,
            failures,
            pages,
            kept,
            rebuilds,
            computed_us,
            rows_dtype,
            rows,
        };
        out.push(StageOutput::Send { to, message: DataMessage::Step(message) });
    }

    /// The scheduler's node gets all tokens, once: it hands them on to the drivers that it has itself. A
    /// driver on another node gets its own.
    fn send_tokens(&self, done: Computing, mut results: Vec<TokenResult>, out: &mut Vec<StageOutput>) {
        let (placement, term) = (self.placement.id, self.term);
        let (step, rebuilds) = (done.frame.step, done.rebuilds);
        let tokens = |results, failures, pages, kept, computed_us| {
            DataMessage::Tokens(TokensMessage {
                placement,
                term,
                step,
                results,
                failures,
                pages,
                kept,
                rebuilds,
                computed_us,
            })
        };
        let scheduler = self.scheduler();
        let mut by_driver: BTreeMap<NodeId, Vec<TokenResult>> = BTreeMap::new();
        for result in &mut results {
            let Some(open) = self.open.get(&result.sequence) else {
                tracing::trace!(sequence = %result.sequence, step, "tokens of a sequence that is not open");
                continue;
            };
            result.attempt = open.attempt;
            if open.driver != scheduler {
                by_driver
                    .entry(open.driver)
                    .or_default()
                    .push(TokenResult { forced: vec![], ..result.clone() });
            }
        }
        let message = tokens(results, done.failures, done.pages, done.kept, done.computed_us);
        out.push(StageOutput::Send { to: scheduler, message });
        for (to, own) in by_driver {
            out.push(StageOutput::Send { to, message: tokens(own, vec![], vec![], vec![], vec![]) });
        }
    }

    /// Rows that came for a step are no values: whoever sent them is to blame, and nothing is computed of
    /// them.
    pub(super) fn refuse_rows(&mut self, coming: &mut Computing, at: usize, out: &mut Vec<StageOutput>) {
        let (row, before) = (self.row_of(at), self.index.saturating_sub(1));
        let why = ComputeFault::SentNotFinite { stage: before as u32, row };
        let lost = Lost::all(coming, FailureKind::Device, &why);
        self.lose(coming, before, lost, out);
    }

    /// That the device made of numbers what is none, if it did. What is finite and too great may be what the
    /// rows had that came.
    fn not_finite_in(&self, done: &Computing, rows: &[u8]) -> Option<StageOutput> {
        let (row, mut end) = (self.row_of(not_finite(rows)?), 0);
        let mut parts = done.frame.sequences.iter();
        let whose = parts.find(|part| {
            end += part.tokens.len() as u64;
            row < end
        })?;
        self.not_finite_for(whose.sequence)
    }

    /// The device made of numbers what is none, in a step of this sequence.
    fn not_finite_for(&self, sequence: SequenceId) -> Option<StageOutput> {
        let prompt = self.open.get(&sequence)?.prompt;
        Some(StageOutput::NotFinite { request: sequence.request, prompt })
    }

    /// In which row an element is.
    fn row_of(&self, element: usize) -> u64 {
        element as u64 / u64::from(self.geometry.hidden.max(1))
    }

    fn failure(
        &self,
        (stage, step): (usize, u64),
        parts: &[StepSequence],
        kind: FailureKind,
        why: ComputeFault,
    ) -> StepFailure {
        StepFailure {
            placement: self.placement.id,
            term: self.term,
            step,
            stage: stage as u32,
            sequences: parts.iter().filter_map(|part| self.attempt_of(part)).collect(),
            kind,
            why,
        }
    }

    fn attempt_of(&self, part: &StepSequence) -> Option<(SequenceId, Attempt)> {
        Some((part.sequence, self.open.get(&part.sequence)?.attempt))
    }

    /// Gives up sequences of the step, which failed at a stage; what is left of it goes on. Each driver is
    /// told why in its own case. The scheduler is told once for each kind: what it says goes to all of their
    /// drivers.
    fn lose(&mut self, done: &mut Computing, stage: usize, lost: Vec<Lost>, out: &mut Vec<StageOutput>) {
        let at = (stage, done.frame.step);
        let mut by_driver: BTreeMap<(NodeId, FailureKind, ComputeFault), Vec<StepSequence>> = BTreeMap::new();
        let mut by_kind: BTreeMap<FailureKind, (ComputeFault, Vec<StepSequence>)> = BTreeMap::new();
        for Lost { part, driver, kind, why } in lost {
            let (of_all, parts) = by_kind.entry(kind).or_insert_with(|| (why.clone(), Vec::new()));
            if *of_all != why {
                *of_all = ComputeFault::Several;
            }
            parts.push(part.clone());
            by_driver.entry((driver, kind, why)).or_default().push(part);
        }
        for ((to, kind, why), parts) in by_driver {
            let own = self.failure(at, &parts, kind, why);
            out.push(StageOutput::Send { to, message: DataMessage::StepFailed(own) });
        }
        for (kind, (why, parts)) in by_kind {
            done.failures.push(self.failure(at, &parts, kind, why));
            for part in &parts {
                if let Some(open) = self.open.get_mut(&part.sequence) {
                    open.lost = true;
                }
            }
        }
    }
}

/// A part of a step that failed.
struct Lost {
    part: StepSequence,
    driver: NodeId,
    kind: FailureKind,
    why: ComputeFault,
}

impl Lost {
    /// Takes out all that is left of a step.
    fn all(done: &mut Computing, kind: FailureKind, why: &ComputeFault) -> Vec<Self> {
        let parts = std::mem::take(&mut done.frame.sequences);
        let drivers = std::mem::take(&mut done.drivers);
        let lost = |(part, driver)| Self { part, driver, kind, why: why.clone() };
        parts.into_iter().zip(drivers).map(lost).collect()
    }

    /// Takes out one sequence.
    fn one(done: &mut Computing, failed: FailedSequence) -> Option<Self> {
        let FailedSequence { sequence, kind, message, .. } = failed;
        let at = done.frame.sequences.iter().position(|part| part.sequence == sequence)?;
        let driver = (at < done.drivers.len()).then(|| done.drivers.remove(at))?;
        let part = done.frame.sequences.remove(at);
        Some(Self { part, driver, kind, why: ComputeFault::Engine(clip(&message)) })
    }
}

/// Whether they are the results of a step, without those of its sequences that failed.
fn are_of(done: &Computing, results: &[TokenResult], failed: &[FailedSequence], vocab: u32) -> bool {
    let parts = &done.frame.sequences;
    let has_failed = |part: &StepSequence| failed.iter().any(|f| f.sequence == part.sequence);
    let sampled: Vec<_> = parts.iter().filter(|part| part.sample && !has_failed(part)).collect();
    failed.iter().all(|f| parts.iter().any(|part| part.sequence == f.sequence))
        && sampled.len() == results.len()
        && sampled.iter().zip(results).all(|(part, result)| result.answers(part, vocab))
}

/// The first element that is infinite or no number.
fn not_finite(rows: &[u8]) -> Option<usize> {
    beyond(rows, f32::MAX)
}

/// The first element that no stage may send on: one that is not finite, or beyond [`ROW_MAX`].
pub(super) fn no_value(rows: &[u8]) -> Option<usize> {
    beyond(rows, ROW_MAX)
}

/// The first element whose amount is greater, infinite or none.
fn beyond(rows: &[u8], max: f32) -> Option<usize> {
    // Without their sign, the bits of what is greater are greater; those of infinity and of no number most
    // of all. Little-endian, as on the wire.
    let amount = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes) & 0x7fff_ffff;
    let values = rows.as_chunks::<4>().0;
    // All rows pass here before they are computed and before they go on. Whole blocks are looked through by
    // vectors; a search that may end at any element is not.
    let is_beyond = |block: &[[u8; 4]]| block.iter().map(amount).fold(0, u32::max) > max.to_bits();
    let start = values.chunks(BLOCK).position(is_beyond)? * BLOCK;
    values[start..].iter().position(|bytes| amount(bytes) > max.to_bits()).map(|at| start + at)
}
