//! One open sequence: where it stands, which pages it holds, and how its tokens are drawn.

use std::sync::Arc;

use exo_sampler::{SampleError, Sampler, TokenConstraint};
use exo_types::{Constraint, Principal, SampledToken, SamplingParams, SequenceSpec};

use crate::prompt::PromptFold;

/// Starts what holds an answer to a grammar; a grammar that cannot be followed here ends the answer at once.
/// `Err` says why none can be followed.
pub type StartConstraint = dyn Fn(&Constraint) -> Result<Box<dyn TokenConstraint>, String> + Send + Sync;

/// What a row gave to choose a token by.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Row<'a> {
    /// `[V]`
    Logits(&'a [f32]),
    /// The greatest logit's token, all logits being finite: for samplers that are plain greedy.
    Best(u32),
}

impl Row<'_> {
    /// The token at `position`, which does not count until the sampler accepts it; `None` where only the
    /// logits say which it is.
    pub fn sample(self, sampler: &mut Sampler, position: u64) -> Result<Option<SampledToken>, SampleError> {
        match self {
            Row::Logits(logits) => sampler.sample(logits, position).map(Some),
            Row::Best(token) => Ok(sampler.take_best(token)),
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
    pub token_sampler: Option<TokenSampler>,
    /// Only on the last stage, where something is asked of the prompt, until it is through.
    pub prompt: Option<PromptFold>,
}

/// Draws tokens: the sampler with the tokens it has folded over, so that it can be set back.
pub(crate) struct TokenSampler {
    /// `Err` says why its constraint cannot be held: then it draws nothing.
    sampler: Result<Sampler, String>,
    /// For the constraint of the parameters, if they have one.
    start: Option<Arc<StartConstraint>>,
    sampling: SamplingParams,
    prompt_tokens: u32,
    /// Token i stands at position i.
    history: Vec<u32>,
}

impl TokenSampler {
    /// Of an open sequence.
    pub fn new(spec: SequenceSpec, start: Option<Arc<StartConstraint>>) -> Self {
        let SequenceSpec { sampling, history, prompt_tokens, .. } = spec;
        let sampler = sampler(&sampling, &history, prompt_tokens, start.as_deref());
        let start = start.filter(|_| sampling.constraint.is_some());
        Self { sampler, start, sampling, prompt_tokens, history }
    }

    /// Tokens known.
    pub fn known(&self) -> usize {
        self.history.len()
    }

    /// The token at a position, if it is known.
    pub fn token(&self, position: u32) -> Option<u32> {
        self.history.get(position as usize).copied()
    }

    /// Whether it must be shown a row's logits: the best token alone will not do.
    pub fn asks_logits(&self) -> bool {
        self.sampler.as_ref().is_ok_and(|sampler| !sampler.is_plain_greedy())
    }

    /// Draws the token at `position`; all before it must be known. Tokens from `position` on, known from
    /// before a truncation, are forgotten. The token drawn does not count until it is accepted. `None` asks
    /// for the row's logits.
    pub fn sample(&mut self, row: Row<'_>, position: u32) -> Result<Option<SampledToken>, SampleError> {
        let at = position as usize;
        debug_assert!(at <= self.history.len(), "the plan checked what is known");
        if at < self.history.len() {
            self.history.truncate(at);
            let prompt_tokens = self.prompt_tokens.min(position);
            let start = self.start.as_deref();
            self.sampler = sampler(&self.sampling, &self.history, prompt_tokens, start);
        }
        let refused = |reason: &mut String| SampleError::Constraint { reason: reason.clone() };
        row.sample(self.sampler.as_mut().map_err(refused)?, u64::from(position))
    }

    /// Tokens that its constraint leaves no choice about behind those it knows.
    pub fn forced(&mut self) -> Vec<u32> {
        self.sampler.as_mut().map_or_else(|_| Vec::new(), Sampler::forced)
    }

    /// Takes a token that was drawn.
    pub fn accept(&mut self, token: u32) {
        if let Ok(sampler) = &mut self.sampler {
            sampler.accept(token);
        }
        self.history.push(token);
    }
}

/// A sampler behind `history`, with the constraint that its parameters ask for.
fn sampler(
    sampling: &SamplingParams,
    history: &[u32],
    prompt_tokens: u32,
    start: Option<&StartConstraint>,
) -> Result<Sampler, String> {
    let nobody = || "this engine was given no way to follow a grammar".to_owned();
    let constraint = sampling.constraint.as_deref().map(|c| start.ok_or_else(nobody)?(c)).transpose()?;
    Ok(Sampler::constrained(sampling.clone(), history, prompt_tokens, constraint))
}

impl std::fmt::Debug for TokenSampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenSampler({} tokens, {:?})", self.history.len(), self.sampler)
    }
}
