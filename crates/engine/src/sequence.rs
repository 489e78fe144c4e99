//! One open sequence: where it stands, which pages it holds, and how its tokens are drawn.

use exo_sampler::Sampler;
use exo_types::{Principal, SampledToken, SamplingParams, SequenceSpec};

use exo_sampler::SampleError;

/// What a row gave to choose a token by.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Row<'a> {
    /// `[V]`
    Logits(&'a [f32]),
    /// The greatest logit's token, all logits being finite: for samplers that are plain greedy.
    Best(u32),
}

impl Row<'_> {
    /// The token at `position`, which does not count until the sampler accepts it.
    pub fn sample(self, sampler: &mut Sampler, position: u64) -> Result<SampledToken, SampleError> {
        match self {
            Row::Logits(logits) => sampler.sample(logits, position),
            Row::Best(token) => {
                debug_assert!(sampler.is_plain_greedy(), "whoever wants more is shown the logits");
                Ok(SampledToken { token, logprob: None, top: Vec::new() })
            }
        }
    }
}

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

    /// Whether it must be shown a row's logits: the best token alone will not do.
    pub fn asks_logits(&self) -> bool {
        !self.sampler.is_plain_greedy()
    }

    /// Draws the token at `position`; all before it must be known. Tokens from `position` on, known from before a
    /// truncation, are forgotten. The token drawn does not count until it is accepted.
    pub fn sample(&mut self, row: Row<'_>, position: u32) -> Result<SampledToken, SampleError> {
        let at = position as usize;
        debug_assert!(at <= self.history.len(), "the plan checked what is known");
        if at < self.history.len() {
            self.history.truncate(at);
            let prompt_tokens = self.prompt_tokens.min(position);
            self.sampler = Sampler::new(self.sampling.clone(), &self.history, prompt_tokens);
        }
        row.sample(&mut self.sampler, u64::from(position))
    }

    /// Takes a token that was drawn.
    pub fn accept(&mut self, token: u32) {
        self.sampler.accept(token);
        self.history.push(token);
    }
}
