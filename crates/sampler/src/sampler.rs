//! The sampler of one sequence.

use exo_types::{SampledToken, SamplingParams};

use crate::SampleError;
use crate::draw::{draw, uniform};
use crate::filter::Candidates;
use crate::logprobs::LogProbs;
use crate::penalties::Penalties;

/// Chooses the tokens of one sequence. Two samplers with the same parameters and the same tokens are equal.
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplingParams,
    penalties: Penalties,
    /// Logits after bias and penalties. Scratch: kept between calls for its memory only.
    adjusted: Vec<f32>,
    /// Scratch of the filters and the draw.
    candidates: Candidates,
}

impl Sampler {
    /// A sampler that stands after `history`, whose first `prompt_tokens` tokens are prompt.
    ///
    /// `params` should have passed [`SamplingParams::check`]; values out of range sample badly, never panic.
    pub fn new(params: SamplingParams, history: &[u32], prompt_tokens: u32) -> Self {
        let penalties = Penalties::new(&params, history, prompt_tokens as usize);
        Self { params, penalties, adjusted: Vec::new(), candidates: Candidates::default() }
    }

    /// Chooses the token for `position` from `logits` (one per token of the vocabulary). Does not take it:
    /// [`Sampler::accept`] does, so a token that is thrown away leaves no trace.
    pub fn sample(&mut self, logits: &[f32], position: u64) -> Result<SampledToken, SampleError> {
        check_finite(logits)?;
        let token = self.choose(logits, position);
        let Some(top_count) = self.params.logprobs else {
            return Ok(SampledToken { token, logprob: None, top: Vec::new() });
        };
        let probabilities = LogProbs::of(logits);
        Ok(SampledToken {
            token,
            logprob: Some(probabilities.at(token)),
            top: probabilities.top(usize::from(top_count)),
        })
    }

    /// Adds a generated token to the fold.
    pub fn accept(&mut self, token: u32) {
        self.penalties.accept(token);
    }

    /// Whether it takes the greatest logit as it is and is asked for nothing else: whoever knows which that is, and that all are
    /// finite, needs no logits to know the token.
    pub fn is_plain_greedy(&self) -> bool {
        self.is_greedy() && self.penalties.is_neutral() && self.params.logprobs.is_none()
    }

    fn is_greedy(&self) -> bool {
        self.params.temperature.is_nan() || self.params.temperature <= 0.0
    }

    /// The parameters it was made with.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    fn choose(&mut self, logits: &[f32], position: u64) -> u32 {
        let is_greedy = self.is_greedy();
        let logits = if self.penalties.is_neutral() {
            logits
        } else {
            self.adjusted.clear();
            self.adjusted.extend_from_slice(logits);
            self.penalties.apply(&mut self.adjusted);
            &self.adjusted
        };
        if is_greedy {
            return argmax(logits);
        }
        self.candidates.fill(logits.len());
        self.candidates.top_k(logits, self.params.top_k as usize);
        self.candidates.top_p(logits, f64::from(self.params.top_p));
        self.candidates.min_p(logits, self.params.min_p);
        let u = uniform(self.params.seed, position);
        draw(&mut self.candidates, logits, self.params.temperature, u)
    }
}

/// The greatest logit; the lowest id among equals.
pub(crate) fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (i, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = i;
        }
    }
    best as u32
}

fn check_finite(logits: &[f32]) -> Result<(), SampleError> {
    if logits.is_empty() {
        return Err(SampleError::Empty);
    }
    match logits.iter().position(|l| !l.is_finite()) {
        Some(i) => Err(SampleError::NotFinite { token: i as u32, value: logits[i] }),
        None => Ok(()),
    }
}
