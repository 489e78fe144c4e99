//! One open sequence: where it stands, which pages it holds, and how its tokens are drawn.

use exo_sampler::Sampler;
use exo_types::{Principal, SampledToken, SamplingParams, SequenceSpec};

use exo_sampler::SampleError;

/// State of a sequence between steps.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// On whose behalf.
    pub principal: Principal,
    /// Positions in the cache.
    pub len: u32,
    /// Pages in order of position; exactly those that `len` positions need.
    pub pages: Vec<u32>,
    /// Only on the last stage.
    pub chooser: Option<Chooser>,
}

/// Draws tokens: the sampler with the tokens it has folded over, so that it can be set back.
#[derive(Debug)]
pub(crate) struct Chooser {
    sampler: Sampler,
    sampling: SamplingParams,
    prompt_tokens: u32,
    /// Token i stands at position i.
    history: Vec<u32>,
}

impl Chooser {
    pub fn new(spec: SequenceSpec) -> Self {
        Self {
            sampler: Sampler::new(spec.sampling.clone(), &spec.history, spec.prompt_tokens),
            sampling: spec.sampling,
            prompt_tokens: spec.prompt_tokens,
            history: spec.history,
        }
    }

    /// Tokens known.
    pub fn known(&self) -> usize {
        self.history.len()
    }

    /// Draws the token at `position`; all before it must be known. Tokens from `position` on, known from before a
    /// truncation, are forgotten. The token drawn does not count until it is accepted.
    pub fn sample(&mut self, logits: &[f32], position: u32) -> Result<SampledToken, SampleError> {
        let at = position as usize;
        debug_assert!(at <= self.history.len(), "the plan checked what is known");
        if at < self.history.len() {
            self.history.truncate(at);
            let prompt_tokens = self.prompt_tokens.min(position);
            self.sampler = Sampler::new(self.sampling.clone(), &self.history, prompt_tokens);
        }
        self.sampler.sample(logits, u64::from(position))
    }

    /// Takes a token that was drawn.
    pub fn accept(&mut self, token: u32) {
        self.sampler.accept(token);
        self.history.push(token);
    }
}
