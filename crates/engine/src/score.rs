//! Scoring of given text, on an engine that holds the whole model.

use std::time::Duration;

use exo_backend::CancelToken;
use exo_types::{SequenceId, StepFrame, StepSequence, TokenScore};

use crate::{Engine, StepError, StepInput};

/// For callers that set no deadline: no chunk takes this long on a device that still works.
const CHUNK_DEADLINE: Duration = Duration::from_secs(600);

impl Engine {
    /// Appends `tokens` to an open sequence, in chunks, and shows `see` the logits `[V]` after each: first
    /// the index of the token, then the row. Each chunk may take `deadline`.
    pub fn for_each_logits(
        &mut self,
        sequence: SequenceId,
        tokens: &[u32],
        cancel: &CancelToken,
        deadline: Duration,
        mut see: impl FnMut(usize, &[f32]),
    ) -> Result<(), StepError> {
        let open = self.sequences.get(&sequence).ok_or(StepError::UnknownSequence { sequence })?;
        let (principal, chunk) = (open.principal, self.options.chunk_tokens_max as usize);
        let vocab = self.config.vocab as usize;
        for (index, tokens) in tokens.chunks(chunk).enumerate() {
            let start = self.positions(sequence).unwrap_or(0);
            let (tokens, sample, drafts, truncate_to) = (tokens.to_vec(), false, 0, None);
            let part = StepSequence { sequence, principal, start, tokens, sample, drafts, truncate_to };
            let frame = StepFrame::unplaced(0, vec![part]);
            let logits = self.step_logits(&frame, StepInput::Tokens, cancel, deadline)?;
            logits.chunks_exact(vocab).enumerate().for_each(|(i, row)| see(index * chunk + i, row));
        }
        Ok(())
    }

    /// The logits `[T, V]` after each of `tokens`, appended to an open sequence.
    pub fn logits(&mut self, sequence: SequenceId, tokens: &[u32]) -> Result<Vec<f32>, StepError> {
        let mut all = Vec::new();
        self.for_each_logits(sequence, tokens, &CancelToken::default(), CHUNK_DEADLINE, |_, row| {
            all.extend_from_slice(row);
        })?;
        Ok(all)
    }

    /// For each of `tokens` but the first: its log-probability after those before it, with the `top` most
    /// likely instead.
    pub fn score(
        &mut self,
        sequence: SequenceId,
        tokens: &[u32],
        top: usize,
        cancel: &CancelToken,
        deadline: Duration,
    ) -> Result<Vec<TokenScore>, StepError> {
        let mut scores = Vec::with_capacity(tokens.len().saturating_sub(1));
        let mut failed = None;
        self.for_each_logits(sequence, tokens, cancel, deadline, |i, row| {
            match tokens.get(i + 1).map(|&next| exo_sampler::score(row, next, top)) {
                Some(Ok(score)) => scores.push(score),
                Some(Err(source)) => failed = failed.take().or(Some(source)),
                None => {}
            }
        })?;
        match failed {
            Some(source) => Err(StepError::Sample { sequence, source }),
            None => Ok(scores),
        }
    }

    /// How surprised the model is by `tokens`, as a geometric mean: 1 is certainty, V is a blind guess. Needs
    /// an open sequence without positions and at least two tokens, else there is nothing to measure.
    pub fn perplexity(&mut self, sequence: SequenceId, tokens: &[u32]) -> Result<f64, StepError> {
        let scores = self.score(sequence, tokens, 0, &CancelToken::default(), CHUNK_DEADLINE)?;
        if scores.is_empty() {
            return Err(StepError::Empty { sequence: Some(sequence) });
        }
        let sum: f64 = scores.iter().map(|s| f64::from(s.logprob)).sum();
        Ok((-sum / scores.len() as f64).exp())
    }
}
