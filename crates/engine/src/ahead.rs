//! Chunks of a prompt that the device is given while it still computes the one before.
//!
//! Nothing is read back of them, so nobody has to wait between two: what the processor does for a step (checks, layout, uploads,
//! writing commands) passes while the device works. A stream does its work in order, so pages that are given back while a
//! step is on its way are overwritten behind it. A processor computes a step where it is handed over: there none is ever on its way.

use std::time::{Duration, Instant};

use exo_backend::{CancelToken, Download, RunError};
use exo_types::{SequenceId, StepFrame};

use crate::step::Leave;
use crate::{Engine, StepError, StepInput};

/// A step that was handed to the device; how it ends is not known yet. Dropped, it is never known, and its sequences have
/// positions that nobody should build on.
#[must_use = "whether the step worked is only known when it is finished"]
pub struct Ahead {
    /// Its sequences, with the positions they had before and have behind it.
    parts: Vec<(SequenceId, u32, u32)>,
    /// Nothing but what kernels complained of.
    end: Box<dyn Download>,
}

impl std::fmt::Debug for Ahead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ahead({:?})", self.parts)
    }
}

impl Ahead {
    /// Whether [`Engine::finish`] need not wait.
    pub fn is_done(&self) -> Result<bool, RunError> {
        self.end.is_ready()
    }
}

impl Engine {
    /// Whether nothing comes back of the step, on an engine that holds the whole model.
    pub fn may_go_ahead(&self, frame: &StepFrame) -> bool {
        let samples = frame.sequences.iter().any(|part| part.sample);
        self.shard.embedding && self.shard.head && !samples && !self.asks_prompts(frame)
    }

    /// Hands a step over, and does not wait for it. Its sequences have advanced; they may go on, or be closed, before it is
    /// finished. Steps are finished in the order in which they were handed over, and before one that samples. Panics on a step that
    /// may not go ahead.
    pub fn hand_over(&mut self, frame: &StepFrame, cancel: &CancelToken) -> Result<Ahead, StepError> {
        assert!(self.may_go_ahead(frame), "of step {} something comes back", frame.step);
        self.check_step(frame, StepInput::Tokens)?;
        let leave = Leave { cancel, started: Instant::now(), deadline: Duration::MAX };
        let end = self.advance(frame, |engine| {
            engine.run_layers(frame, StepInput::Tokens, &[], leave)?;
            Ok(engine.stream.download_later(&engine.buffers.hidden, 0, 0)?)
        })?;
        let part = |part: &exo_types::StepSequence| {
            (part.sequence, part.start, part.start + part.tokens.len() as u32)
        };
        Ok(Ahead { parts: frame.sequences.iter().map(part).collect(), end })
    }

    /// Waits for a step that was handed over. If it failed, or one failed that it builds on, its sequences are where they were
    /// before it.
    pub fn finish(&mut self, ahead: Ahead, deadline: Duration) -> Result<(), StepError> {
        let Ahead { parts, end } = ahead;
        let done = end.finish(&mut [], deadline).map_err(StepError::from);
        let done = done.and_then(|()| parts.iter().try_for_each(|part| self.still_has(*part)));
        if done.is_err() {
            self.steps -= 1;
            for (sequence, before, behind) in parts {
                self.tokens -= u64::from(behind - before);
                if self.positions(sequence).is_some_and(|has| has > before) {
                    self.set_len(sequence, before);
                }
            }
        }
        done
    }

    /// An error if positions that a step took are gone with one before it. A closed sequence needs none.
    fn still_has(&self, (sequence, before, behind): (SequenceId, u32, u32)) -> Result<(), StepError> {
        match self.positions(sequence) {
            Some(has) if has < behind => Err(StepError::PositionGap { sequence, expected: has, got: before }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use exo_backend_cpu::{CpuDevice, CpuOptions};
    use exo_golden::Fixture;
    use exo_types::{
        NodeId, Principal, PromptQuery, RequestId, SamplingParams, SequenceSpec, Shard, StepSequence,
    };

    use super::*;
    use crate::EngineOptions;

    const SOON: Duration = Duration::from_secs(60);

    /// What a device answers that did not finish in time.
    struct Late;

    impl Download for Late {
        fn is_ready(&self) -> Result<bool, RunError> {
            Ok(false)
        }

        fn finish(self: Box<Self>, _into: &mut [f32], deadline: Duration) -> Result<(), RunError> {
            Err(RunError::Deadline { waited_ms: deadline.as_millis() as u64 })
        }
    }

    fn id(index: u16) -> SequenceId {
        SequenceId { request: RequestId(1), index }
    }

    /// An engine with pages of eight tokens and two open sequences.
    fn engine() -> Engine {
        let model = exo_formats::open(&Fixture::load("qwen3-f16").gguf()).unwrap();
        let device = CpuDevice::open(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
        let options = EngineOptions { page_tokens: 8, ..EngineOptions::new(64, 2) };
        let mut engine =
            Engine::load(device, &model, Shard::whole(model.config.layers), options, &mut |_| {}).unwrap();
        for index in [1, 2] {
            let (principal, driver, sampling) = (Principal::LOCAL, NodeId([0; 32]), SamplingParams::greedy());
            let spec = SequenceSpec {
                sequence: id(index),
                principal,
                driver,
                sampling,
                history: Vec::new(),
                prompt_tokens: 0,
                query: PromptQuery::Nothing,
            };
            engine.open(spec).unwrap();
        }
        engine
    }

    /// A chunk of some tokens of some sequences: (index, start, tokens).
    fn chunk(parts: &[(u16, u32, u32)]) -> StepFrame {
        let part = |&(index, start, count): &(u16, u32, u32)| StepSequence {
            sequence: id(index),
            principal: Principal::LOCAL,
            start,
            tokens: (start..start + count).map(|t| t % 60).collect(),
            sample: false,
            drafts: 0,
            truncate_to: None,
        };
        StepFrame::unplaced(0, parts.iter().map(part).collect())
    }

    fn hand_over(engine: &mut Engine, parts: &[(u16, u32, u32)]) -> Ahead {
        engine.hand_over(&chunk(parts), &CancelToken::default()).unwrap()
    }

    #[test]
    fn with_a_step_that_fails_go_those_that_build_on_it_and_no_others() {
        let mut engine = engine();
        let first = hand_over(&mut engine, &[(1, 0, 10)]);
        engine.finish(first, SOON).unwrap();
        let before = engine.report();
        let late = Ahead { end: Box::new(Late), ..hand_over(&mut engine, &[(1, 10, 10)]) };
        let behind = hand_over(&mut engine, &[(1, 20, 10)]);
        let beside = hand_over(&mut engine, &[(2, 0, 8)]);
        assert!(!late.is_done().unwrap());
        let error = engine.finish(late, Duration::from_millis(7)).unwrap_err();
        assert!(matches!(error, StepError::Run(RunError::Deadline { waited_ms: 7 })), "{error}");
        let error = engine.finish(behind, SOON).unwrap_err();
        let gap = StepError::PositionGap { sequence: id(1), expected: 10, got: 20 };
        assert_eq!(error.to_string(), gap.to_string());
        engine.finish(beside, SOON).unwrap();
        assert_eq!((engine.positions(id(1)), engine.positions(id(2))), (Some(10), Some(8)));
        let after = engine.report();
        assert_eq!((after.steps, after.tokens), (before.steps + 1, before.tokens + 8));
        assert_eq!(after.pages_free, before.pages_free - 1, "one page, of the sequence beside");
        // And the sequence goes on from where it stands.
        let again = hand_over(&mut engine, &[(1, 10, 10)]);
        engine.finish(again, SOON).unwrap();
    }

    #[test]
    fn a_step_whose_sequence_was_closed_meanwhile_is_no_error() {
        let mut engine = engine();
        let all = engine.report().pages_free;
        let ahead = hand_over(&mut engine, &[(1, 0, 10), (2, 0, 3)]);
        engine.close(id(1)).unwrap();
        assert_eq!(engine.report().pages_free, all - 1);
        engine.finish(ahead, SOON).unwrap();
        assert_eq!(engine.positions(id(2)), Some(3));
    }

    #[test]
    fn a_step_that_is_cancelled_takes_nothing() {
        let mut engine = engine();
        let before = engine.report();
        let cancel = CancelToken::default();
        cancel.cancel();
        let error = engine.hand_over(&chunk(&[(1, 0, 10)]), &cancel).unwrap_err();
        assert!(matches!(error, StepError::Run(RunError::Cancelled { .. })), "{error}");
        assert_eq!((engine.positions(id(1)), engine.report()), (Some(0), before));
    }

    #[test]
    fn a_step_that_samples_does_not_go_ahead() {
        let engine = engine();
        let mut sampling = chunk(&[(1, 0, 10)]);
        sampling.sequences[0].sample = true;
        assert!(!engine.may_go_ahead(&sampling) && engine.may_go_ahead(&chunk(&[(1, 0, 10)])));
    }
}
