//! An engine driven without node and scheduler: prompts of random tokens in, one step after the other.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use exo_backend::{CancelToken, RunError};
use exo_engine::{Engine, StepError, StepInput, StepOutput};
use exo_types::{
    NodeId, Principal, PromptQuery, RequestId, SamplingParams, SequenceId, SequenceSpec, StepFrame,
    StepSequence,
};

use crate::ui;

/// No step takes this long on a device that still works.
const STEP_MAX: Duration = Duration::from_secs(600);
const PRINCIPAL: Principal = Principal([0; 16]);

/// An engine and the sequences opened in it.
pub struct Lane<'a> {
    engine: Engine,
    cancel: &'a CancelToken,
    /// Tokens of each open sequence that were given, not sampled.
    prompts: Vec<Vec<u32>>,
    random: u64,
    step: u64,
}

impl<'a> Lane<'a> {
    pub fn new(engine: Engine, cancel: &'a CancelToken) -> Self {
        Self { engine, cancel, prompts: Vec::new(), random: 0x9e37_79b9_7f4a_7c15, step: 0 }
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Waits until all weights are packed in memory.
    pub fn settle(&mut self, at_most: Duration) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            let unpacked_bytes = self.engine.unpacked_bytes();
            if unpacked_bytes == 0 {
                return Ok(());
            }
            let (waiting, seconds) = (ui::bytes(unpacked_bytes), at_most.as_secs());
            ensure!(began.elapsed() < at_most, "{waiting} of the weights are not packed after {seconds} s");
            if self.cancel.is_cancelled() {
                return Err(StepError::Run(RunError::Cancelled { layer: 0 }).into());
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// Closes what is open and opens `count` sequences, each with a prompt of `tokens` random tokens of its
    /// own.
    pub fn open(&mut self, count: u32, tokens: u32) -> anyhow::Result<()> {
        for index in 0..self.prompts.len() {
            self.engine.close(sequence(index))?;
        }
        self.prompts.clear();
        for index in 0..count as usize {
            let history: Vec<u32> = (0..tokens).map(|_| self.random_token()).collect();
            self.prompts.push(history.clone());
            self.engine.open(SequenceSpec {
                sequence: sequence(index),
                principal: PRINCIPAL,
                driver: NodeId([0; 32]),
                sampling: SamplingParams::greedy(),
                history,
                prompt_tokens: tokens,
                query: PromptQuery::Nothing,
            })?;
        }
        Ok(())
    }

    /// Takes sequence `index` from where it stands to `to` prompt tokens, in chunks as large as the engine
    /// takes. Draws a token after the last if `sample`.
    pub fn prefill(&mut self, index: usize, to: u32, sample: bool) -> anyhow::Result<()> {
        let chunk = self.engine.options().chunk_tokens_max;
        let mut at = self.engine.positions(sequence(index)).unwrap_or(0);
        while at < to {
            let end = to.min(at + chunk);
            let tokens = self.prompts[index][at as usize..end as usize].to_vec();
            self.step(vec![part(index, at, tokens, sample && end == to)])?;
            at = end;
        }
        Ok(())
    }

    /// Sets every open sequence back to `to` positions.
    pub fn rewind(&mut self, to: u32) -> anyhow::Result<()> {
        (0..self.prompts.len()).try_for_each(|index| Ok(self.engine.truncate(sequence(index), to)?))
    }

    /// Generates `tokens` tokens for each open sequence, all of them in every step. The first token fed is
    /// the prompt's at that position.
    pub fn decode(&mut self, tokens: u32) -> anyhow::Result<()> {
        let from = self.engine.positions(sequence(0)).unwrap_or(0);
        let mut next: Vec<u32> = self.prompts.iter().map(|p| p[from as usize]).collect();
        for at in from..from + tokens {
            let parts = next.iter().enumerate().map(|(index, token)| part(index, at, vec![*token], true));
            next = self.step(parts.collect())?;
        }
        Ok(())
    }

    /// Runs one step and gives the tokens drawn.
    fn step(&mut self, sequences: Vec<StepSequence>) -> anyhow::Result<Vec<u32>> {
        self.step += 1;
        let frame = StepFrame::unplaced(self.step, sequences);
        let output = self.engine.step(&frame, StepInput::Tokens, self.cancel, STEP_MAX);
        match output.context("a step failed")? {
            // Nothing is drafted here: one token each.
            StepOutput::Sampled(sampled) => {
                let drawn = sampled.all().context("a step failed")?;
                Ok(drawn.into_iter().flat_map(|(_, tokens)| tokens).map(|drawn| drawn.token).collect())
            }
            StepOutput::Hidden(_) => anyhow::bail!("a whole model gave hidden rows"),
        }
    }

    /// xorshift64: any sequence of tokens does, as long as no two prompts are the same.
    fn random_token(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((self.random >> 32) % u64::from(self.engine.config().vocab)) as u32
    }
}

/// Seconds that `work` takes.
pub fn timed(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed().as_secs_f64().max(1e-9))
}

/// Whether an error is only the answer to a cancellation.
pub fn is_cancelled(error: &anyhow::Error) -> bool {
    let step = error.chain().find_map(|e| e.downcast_ref::<StepError>());
    matches!(step, Some(StepError::Run(exo_backend::RunError::Cancelled { .. })))
}

fn sequence(index: usize) -> SequenceId {
    SequenceId { request: RequestId(1 + index as u128), index: 0 }
}

fn part(index: usize, start: u32, tokens: Vec<u32>, sample: bool) -> StepSequence {
    let (sequence, drafts) = (sequence(index), 0);
    StepSequence { sequence, principal: PRINCIPAL, start, tokens, sample, drafts, truncate_to: None }
}
