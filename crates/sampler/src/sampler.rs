//! The sampler of one sequence.

use exo_types::{SampledToken, SamplingParams, TokenScore};

use crate::SampleError;
use crate::constraint::{ConstraintError, TokenConstraint};
use crate::draw::{draw, uniform};
use crate::filter::Candidates;
use crate::logprobs::LogProbs;
use crate::passes::{argmax, first_not_finite};
use crate::penalties::Penalties;

/// Chooses the tokens of one sequence. Two samplers with the same parameters and the same tokens are equal.
#[derive(Debug)]
pub struct Sampler {
    params: SamplingParams,
    penalties: Penalties,
    constraint: Option<Box<dyn TokenConstraint>>,
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
        Self::constrained(params, history, prompt_tokens, None)
    }

    /// The same with a constraint at its beginning, which is given the generated tokens of `history`.
    pub fn constrained(
        params: SamplingParams,
        history: &[u32],
        prompt_tokens: u32,
        mut constraint: Option<Box<dyn TokenConstraint>>,
    ) -> Self {
        let prompt_tokens = prompt_tokens as usize;
        let penalties = Penalties::new(&params, history, prompt_tokens);
        if let Some(constraint) = &mut constraint {
            history.iter().skip(prompt_tokens).for_each(|&token| constraint.accept(token));
        }
        Self { params, penalties, constraint, adjusted: Vec::new(), candidates: Candidates::default() }
    }

    /// Chooses the token for `position` from `logits` (one per token of the vocabulary). Does not take it:
    /// [`Sampler::accept`] does, so a token that is thrown away leaves no trace.
    pub fn sample(&mut self, logits: &[f32], position: u64) -> Result<SampledToken, SampleError> {
        check_finite(logits)?;
        let token = self.choose(logits, position).unwrap_or_else(|_| self.end_token());
        let Some(top_count) = self.params.logprobs else {
            return Ok(SampledToken::bare(token));
        };
        let probabilities = LogProbs::of(logits);
        Ok(SampledToken {
            token,
            logprob: Some(probabilities.at(token)),
            top: probabilities.top(usize::from(top_count)),
            prompt: None,
        })
    }

    /// Adds a generated token to the fold.
    pub fn accept(&mut self, token: u32) {
        self.penalties.accept(token);
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token);
        }
    }

    /// Tokens that its constraint leaves no choice about, if it has one that can tell: good guesses, and no
    /// more.
    pub fn forced(&mut self) -> Vec<u32> {
        self.constraint.as_mut().map(|constraint| constraint.forced()).unwrap_or_default()
    }

    /// Of a sampler that is plain greedy: what the greatest logit's token decides. It is the token itself if
    /// it may come; whoever is answered `None` must show the logits.
    pub fn take_best(&mut self, token: u32) -> Option<SampledToken> {
        debug_assert!(self.is_plain_greedy(), "whoever wants more is shown the logits");
        let token = match self.constraint.as_mut().map(|constraint| constraint.allows(token)) {
            None | Some(Ok(true)) => token,
            Some(Ok(false)) => return None,
            Some(Err(_)) => self.end_token(),
        };
        Some(SampledToken::bare(token))
    }

    /// Whether it takes the greatest logit as it is and is asked for nothing else: whoever knows which that
    /// is, and that all are finite, needs no logits to know the token, unless a constraint refuses that one
    /// ([`Sampler::take_best`]).
    pub fn is_plain_greedy(&self) -> bool {
        self.is_greedy() && self.penalties.is_neutral() && self.params.logprobs.is_none()
    }

    fn is_greedy(&self) -> bool {
        self.params.temperature.is_nan() || self.params.temperature <= 0.0
    }

    /// An answer that the grammar cannot go on with is ended. Whoever checks the tokens sees that it ended
    /// where it may not.
    fn end_token(&self) -> u32 {
        self.constraint.as_ref().map_or(0, |constraint| constraint.end_token())
    }

    fn choose(&mut self, logits: &[f32], position: u64) -> Result<u32, ConstraintError> {
        let is_greedy = self.is_greedy();
        let logits = if self.penalties.is_neutral() {
            logits
        } else {
            self.adjusted.clear();
            self.adjusted.extend_from_slice(logits);
            self.penalties.apply(&mut self.adjusted);
            &self.adjusted
        };
        match &mut self.constraint {
            None if is_greedy => return Ok(argmax(logits)),
            None => self.candidates.fill(logits.len()),
            Some(constraint) => {
                if is_greedy {
                    let best = argmax(logits);
                    if constraint.allows(best)? {
                        return Ok(best);
                    }
                }
                self.candidates.fill_allowed(logits.len(), constraint.mask()?);
            }
        }
        if self.candidates.ids.is_empty() {
            return Err(ConstraintError::NoToken);
        }
        if is_greedy {
            return Ok(self.candidates.best(logits));
        }
        self.candidates.top_k(logits, self.params.top_k as usize);
        self.candidates.typical_p(logits, f64::from(self.params.typical_p));
        self.candidates.top_p(logits, f64::from(self.params.top_p));
        self.candidates.min_p(logits, self.params.min_p);
        let u = uniform(self.params.seed, position);
        Ok(draw(&mut self.candidates, logits, self.params.temperature, u))
    }
}

/// How likely `token`, which stood there already, was by `logits`, with the `top` likeliest in its place.
pub fn score(logits: &[f32], token: u32, top: usize) -> Result<TokenScore, SampleError> {
    check_finite(logits)?;
    if token as usize >= logits.len() {
        return Err(SampleError::BeyondVocabulary { token, vocab: logits.len() });
    }
    let probabilities = LogProbs::of(logits);
    Ok(TokenScore { logprob: probabilities.at(token), top: probabilities.top(top) })
}

fn check_finite(logits: &[f32]) -> Result<(), SampleError> {
    if logits.is_empty() {
        return Err(SampleError::Empty);
    }
    match first_not_finite(logits) {
        Some(i) => Err(SampleError::NotFinite { token: i as u32, value: logits[i] }),
        None => Ok(()),
    }
}
