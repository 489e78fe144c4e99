//! The engine is done: rows go on, tokens go out, failures go to whom they concern.

use std::collections::BTreeMap;

use exo_types::{FailureKind, NodeId, StepSequence, WireDType};

use super::{ComputeResult, Computing, StageMachine, StageOutput};
use crate::wire::{DataMessage, StepFailure, StepMessage, TokenResult, TokensMessage};

impl StageMachine {
    pub(super) fn finish(&mut self, step: u64, result: ComputeResult, out: &mut Vec<StageOutput>) {
        let Some(done) = self.computing.pop_front_if(|first| first.frame.step == step) else { return };
        match (self.checked(&done, result), self.is_last()) {
            (ComputeResult::Rows(rows), _) => self.forward(done, rows, out),
            (ComputeResult::Tokens(results), _) => self.send_tokens(done, results, out),
            (ComputeResult::Failed { kind, message }, is_last) => {
                let done = self.lose(done, kind, message, out);
                if is_last {
                    self.send_tokens(done, Vec::new(), out)
                } else {
                    self.forward(done, Vec::new(), out)
                }
            }
        }
    }

    /// The result, or a failure if it is not one of this step.
    fn checked(&self, done: &Computing, result: ComputeResult) -> ComputeResult {
        let message = match &result {
            ComputeResult::Failed { .. } => return result,
            ComputeResult::Rows(rows) => {
                let expected_bytes = self.rows_bytes(done.frame.token_count());
                if !self.is_last() && rows.len() == expected_bytes {
                    return result;
                }
                format!("the engine returned {} bytes of rows instead of {expected_bytes}", rows.len())
            }
            ComputeResult::Tokens(tokens) => {
                let sampled: Vec<_> = done.frame.sequences.iter().filter(|s| s.sample).collect();
                let fits =
                    sampled.len() == tokens.len() && sampled.iter().zip(tokens).all(|(s, t)| t.answers(s));
                if self.is_last() && fits {
                    return result;
                }
                format!("the engine returned {} tokens that are not this step's", tokens.len())
            }
        };
        ComputeResult::Failed { kind: FailureKind::Device, message }
    }

    fn forward(&self, done: Computing, rows: Vec<u8>, out: &mut Vec<StageOutput>) {
        let Computing { commands, frame, failures, .. } = done;
        let (next, rows_dtype) = (self.index + 1, WireDType::F32);
        let message = StepMessage { stage: next as u32, commands, frame, failures, rows_dtype, rows };
        let to = self.placement.stages[next].node;
        out.push(StageOutput::Send { to, message: DataMessage::Step(message) });
    }

    /// Each driver gets its own tokens, the scheduler all of them.
    fn send_tokens(&self, done: Computing, results: Vec<TokenResult>, out: &mut Vec<StageOutput>) {
        let (instance, generation) = (self.placement.instance, self.placement.generation);
        let tokens = |results, failures| {
            let step = done.frame.step;
            DataMessage::Tokens(TokensMessage { instance, generation, step, results, failures })
        };
        let mut by_driver: BTreeMap<NodeId, Vec<TokenResult>> = BTreeMap::new();
        for result in &results {
            if let Some(open) = self.open.get(&result.sequence) {
                by_driver.entry(open.driver).or_default().push(result.clone());
            }
        }
        out.push(StageOutput::Send { to: self.scheduler(), message: tokens(results, done.failures) });
        for (to, own) in by_driver {
            out.push(StageOutput::Send { to, message: tokens(own, Vec::new()) });
        }
    }

    /// Gives up the step's sequences; what is left of it goes on.
    fn lose(
        &mut self,
        mut done: Computing,
        kind: FailureKind,
        message: String,
        out: &mut Vec<StageOutput>,
    ) -> Computing {
        let lost = std::mem::take(&mut done.frame.sequences);
        let (front, told) = done.lost_in_front.take().unzip();
        let told = told.unwrap_or_default();
        let is_told = |part: &StepSequence| told.contains(&part.sequence);
        // What a step says that misses the positions of another's sequence is nothing for its own.
        let (kind, message) = match front.filter(|_| lost.iter().any(is_told)) {
            Some(kind) => (kind, "the step in front of it failed".to_owned()),
            None => (kind, message),
        };
        let message: String = message.chars().take(1000).collect();
        let failure = |sequences| StepFailure {
            instance: self.placement.instance,
            generation: self.placement.generation,
            step: done.frame.step,
            stage: self.index as u32,
            sequences,
            kind,
            message: message.clone(),
        };
        let mut by_driver: BTreeMap<NodeId, Vec<_>> = BTreeMap::new();
        for (part, &driver) in lost.iter().zip(&done.drivers).filter(|(part, _)| !is_told(part)) {
            by_driver.entry(driver).or_default().push(part.sequence);
        }
        for (to, own) in by_driver {
            out.push(StageOutput::Send { to, message: DataMessage::StepFailed(failure(own)) });
        }
        let all = failure(lost.iter().map(|s| s.sequence).collect());
        for part in &lost {
            if let Some(open) = self.open.get_mut(&part.sequence) {
                open.lost = true;
            }
        }
        for behind in &mut self.computing {
            behind.lost_in_front = Some((kind, all.sequences.clone()));
        }
        done.failures.push(all);
        done
    }
}
