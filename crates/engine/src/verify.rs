//! Sampling along the drafts of a part: one token after the other, for as long as each is the draft at its
//! place.
//!
//! Every token comes from the sequence's own sampler, with everything before it taken in, at its own
//! position: what comes out is what would have come out one step at a time. Nothing here trusts a draft for
//! more than speed.

use exo_sampler::SampleError;
use exo_types::{SampledToken, SequenceId, StepSequence};

use crate::sequence::{Row, TokenSampler};

/// The tokens one sequence gets from a step.
pub(crate) struct SampledTokens<'a> {
    part: &'a StepSequence,
    tokens: Vec<SampledToken>,
    failed: Option<SampleError>,
}

impl<'a> SampledTokens<'a> {
    /// Nothing sampled yet of a part that samples.
    pub fn new(part: &'a StepSequence) -> Self {
        Self { part, tokens: Vec::with_capacity(1 + part.drafts as usize), failed: None }
    }

    /// The sequence.
    pub fn sequence(&self) -> SequenceId {
        self.part.sequence
    }

    /// Whether the next row follows from tokens that are the sequence's own.
    fn is_open(&self) -> bool {
        let drafts = self.part.split_drafts().1;
        let confirmed = self.tokens.iter().zip(drafts).all(|(sampled, draft)| sampled.token == *draft);
        self.failed.is_none() && confirmed && self.tokens.len() <= drafts.len()
    }

    /// Takes the part's next row, and a token from it if the run goes on. `token_sampler` takes it in. False
    /// if the row must be shown again, with its logits.
    pub fn see(&mut self, token_sampler: &mut TokenSampler, row: Row<'_>) -> bool {
        if !self.is_open() {
            return true;
        }
        match token_sampler.sample(row, self.part.sample_position() + self.tokens.len() as u32) {
            Ok(Some(token)) => {
                token_sampler.accept(token.token);
                self.tokens.push(token);
            }
            Ok(None) => return false,
            Err(error) => self.failed = Some(error),
        }
        true
    }

    /// The tokens: at least one. Or why there are none.
    pub fn finish(self) -> Result<(SequenceId, Vec<SampledToken>), (SequenceId, SampleError)> {
        let sequence = self.sequence();
        match self.failed {
            Some(error) => Err((sequence, error)),
            None => Ok((sequence, self.tokens)),
        }
    }
}
