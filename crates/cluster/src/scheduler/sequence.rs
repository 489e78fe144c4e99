//! A running sequence: how much of it was sent through the pipeline, and what comes next.

use exo_types::{
    Attempt, DRAFTS_MAX, NodeId, PageKey, PlacementId, Principal, PromptQuery, SamplingParams, SequenceId,
    SequenceSpec, StepSequence, Term, Time,
};

use super::SchedulerOutput;
use super::drafting::{Drafting, Terms};
use super::forced::Forced;
use super::lookup::Lookup;
use super::pages::{Claim, Pages};
use super::row_cost::DraftBudget;
use crate::wire::{
    DataMessage, EndReason, SequenceTimes, StageCommand, Submission, TokenResult, sampling_bytes_about,
};

/// Reports on prompts that one step may bring back, in the size of one vector: with `limits::EMBEDDING_MAX`
/// and `limits::SCORES_BYTES_MAX` it keeps the tokens of a step well within their message.
pub(super) const REPORT_BUDGET: usize = 64;

/// A sequence that holds pages.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) ticket: u64,
    /// When it last had a part in a step, counted in parts of all sequences: who waits longest has the
    /// lowest.
    pub(super) part_last: u64,
    pub(super) driver: NodeId,
    pub(super) attempt: Attempt,
    pub(super) claim: Claim,
    /// Tokens sampled in this submission.
    pub(super) generated: u32,
    /// Whether any of them since it was admitted: until then its tokens in steps are those of a prompt.
    pub(super) has_sampled: bool,
    /// Where its time went since it was admitted.
    pub(super) times: SequenceTimes,
    sampling: SamplingParams,
    prompt_tokens: u32,
    speculate: bool,
    /// Until the stages open it: what they are told.
    unopened: Option<SequenceSpec>,
    /// What is reported with its first token.
    query: PromptQuery,
    pub(super) principal: Principal,
    /// Prompt and answer so far.
    tokens: Vec<u32>,
    /// The longest it can become.
    tokens_max: u32,
    max_tokens: u32,
    stop_tokens: Vec<u32>,
    ignore_eos: bool,
    guesser: Guesser,
    /// Unless it goes without guesses.
    forced: Option<Forced>,
    /// Whether the drafts on their way are forced ones.
    sent_forced: bool,
    next: Next,
}

/// Who guesses the sequence's next tokens.
#[derive(Clone, Debug)]
pub(super) enum Guesser {
    Nobody,
    Lookup(Lookup),
    Model(Drafting),
}

/// What the sequence needs next.
#[derive(Clone, Debug)]
enum Next {
    /// Its prompt goes on from here.
    Prefill { sent: usize },
    /// Its next token is in flight.
    Awaited,
    /// This token goes through the pipeline. `behind_rejected`: the stages hold drafts that were rejected
    /// where it belongs.
    Decode { token: u32, behind_rejected: bool },
}

/// What a driver hears of a sequence that runs.
pub(super) fn started(
    (placement, term): (PlacementId, Term),
    to: NodeId,
    (sequence, attempt): (SequenceId, Attempt),
    cached_tokens: u32,
) -> SchedulerOutput {
    let message = DataMessage::Started { placement, term, sequence, attempt, cached_tokens };
    SchedulerOutput::Send { to, message }
}

impl Running {
    /// The sequence, about to send its prompt, and what was generated of its answer before it was put back.
    pub(super) fn new(
        submission: Submission,
        generated: u32,
        ticket: u64,
        claim: Claim,
        tokens_max: u32,
        guesser: Guesser,
    ) -> Self {
        let Submission { attempt, spec, max_tokens, stop_tokens, ignore_eos, speculate, .. } = submission;
        Self {
            ticket,
            part_last: 0,
            driver: spec.driver,
            attempt,
            claim,
            generated,
            has_sampled: false,
            times: SequenceTimes::default(),
            sampling: spec.sampling.clone(),
            prompt_tokens: spec.prompt_tokens,
            speculate,
            principal: spec.principal,
            tokens: spec.history.clone(),
            query: spec.open_query(),
            unopened: Some(spec),
            tokens_max,
            max_tokens: max_tokens.saturating_add(generated),
            stop_tokens,
            ignore_eos,
            forced: (!matches!(guesser, Guesser::Nobody)).then(Forced::new),
            sent_forced: false,
            guesser,
            next: Next::Prefill { sent: 0 },
        }
    }

    /// What its driver hears of it.
    pub(super) fn started(&self, pipeline: (PlacementId, Term), sequence: SequenceId) -> SchedulerOutput {
        started(pipeline, self.driver, (sequence, self.attempt), self.claim.cached_tokens())
    }

    /// What goes on with it from here: its answer so far becomes part of what the next submission begins
    /// with.
    pub(super) fn into_rest(self, sequence: SequenceId, placement: PlacementId) -> Submission {
        let Self { attempt, driver, principal, sampling, prompt_tokens, tokens: history, .. } = self;
        let (query, max_tokens) = (self.query, self.max_tokens.saturating_sub(self.generated));
        let (stop_tokens, ignore_eos, speculate) = (self.stop_tokens, self.ignore_eos, self.speculate);
        let spec = SequenceSpec { sequence, principal, driver, sampling, history, prompt_tokens, query };
        Submission { placement, attempt, spec, max_tokens, stop_tokens, ignore_eos, speculate }
    }

    /// Whether the stages know it.
    pub(super) fn is_open(&self) -> bool {
        self.unopened.is_none()
    }

    /// Tokens of prompt and answer so far.
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Bytes that its grammar and biases take in a message.
    pub(super) fn sampling_bytes(&self) -> usize {
        sampling_bytes_about(&self.sampling)
    }

    /// What opens it on the stages, once: its prompt starts behind the pages it begins with, but for those
    /// that some stages lack.
    pub(super) fn open(&mut self) -> Option<StageCommand> {
        let spec = self.unopened.take()?;
        self.next = Next::Prefill { sent: self.claim.complete_tokens() as usize };
        Some(StageCommand::Open { spec, attempt: self.attempt, cached: self.claim.cached().to_vec() })
    }

    /// Its first `computed` positions are in the cache of every stage: the pages to keep, with their names.
    pub(super) fn keep(&mut self, pages: &mut Pages, computed: u32) -> Vec<(u32, PageKey)> {
        pages.keep(&mut self.claim, &self.tokens, computed)
    }

    /// The stages that lacked them have computed the pages it began with, up to this position: the pages to
    /// keep there, with their names.
    pub(super) fn rebuilt(&mut self, pages: &mut Pages, end: u32) -> Vec<(u32, PageKey)> {
        pages.rebuilt(&mut self.claim, end)
    }

    /// Whether some stages must compute pages that it began with before it goes on.
    pub(super) fn is_rebuilding(&self) -> bool {
        let cached = self.claim.cached_tokens() as usize;
        self.is_open() && matches!(self.next, Next::Prefill { sent } if sent < cached)
    }

    /// Its part of a step that only these compute.
    pub(super) fn take_rebuild(&mut self, sequence: SequenceId, tokens_max: usize) -> Option<StepSequence> {
        let cached = self.claim.cached_tokens() as usize;
        let Next::Prefill { sent } = &mut self.next else { return None };
        let start = *sent;
        let end = cached.min(start + tokens_max);
        let tokens = self.tokens.get(start..end)?.to_vec();
        *sent = end;
        let (principal, start, sample) = (self.principal, start as u32, false);
        Some(StepSequence { sequence, principal, start, tokens, sample, drafts: 0, truncate_to: None })
    }

    /// Whether its prompt is through.
    pub(super) fn is_decoding(&self) -> bool {
        !matches!(self.next, Next::Prefill { .. })
    }

    /// What a report on its prompt takes of [`REPORT_BUDGET`]; 0 where there is none to come.
    pub(super) fn report_cost(&self) -> usize {
        match (&self.next, self.query) {
            (Next::Decode { .. } | Next::Awaited, _) | (_, PromptQuery::Nothing) => 0,
            (Next::Prefill { .. }, PromptQuery::Embedding(_)) => 1,
            (Next::Prefill { .. }, PromptQuery::Scores) => REPORT_BUDGET / 4,
        }
    }

    /// What to ask a small model about it now. A prompt is only read; guesses follow a token that is known.
    pub(super) fn ask_draft(
        &mut self,
        now: Time,
        sequence: SequenceId,
        budget: &mut DraftBudget,
        cost: f64,
    ) -> Option<(SequenceSpec, u32)> {
        let count_max = match self.next {
            // It knows no grammar.
            Next::Decode { .. } if self.has_forced() => return None,
            Next::Decode { .. } => self.drafts_max(),
            Next::Prefill { .. } if self.is_open() => 0,
            Next::Prefill { .. } | Next::Awaited => return None,
        };
        let Guesser::Model(drafting) = &mut self.guesser else { return None };
        let count = drafting.ask(self.tokens.len(), Terms { now, count_max, budget, cost })?;
        let (sampling, prompt_tokens) = drafting.sampling();
        let (principal, driver, history) = (self.principal, self.driver, self.tokens.clone());
        let query = PromptQuery::Nothing;
        Some((SequenceSpec { sequence, principal, driver, sampling, history, prompt_tokens, query }, count))
    }

    /// A small model has read the first `len` tokens and guesses what follows.
    pub(super) fn drafted(&mut self, len: usize, tokens: Vec<u32>) {
        if let Guesser::Model(drafting) = &mut self.guesser {
            drafting.answered(len, tokens);
        }
    }

    /// Whether its next step waits for a small model.
    pub(super) fn awaits_drafts(&self) -> bool {
        let Guesser::Model(drafting) = &self.guesser else { return false };
        matches!(self.next, Next::Decode { .. }) && drafting.is_awaited(self.tokens.len())
    }

    /// Gives up waiting for a small model that takes too long.
    pub(super) fn check_draft_wait(&mut self, now: Time) {
        if let Guesser::Model(drafting) = &mut self.guesser {
            drafting.check_wait(now);
        }
    }

    /// There is no small model any more, or it cannot hold this sequence: its own text is looked at instead.
    pub(super) fn stop_drafting(&mut self) {
        if self.has_drafter() {
            self.guesser = Guesser::Lookup(Lookup::new(&self.tokens, self.tokens_max));
        }
    }

    /// Whether a small model may know it.
    pub(super) fn has_drafter(&self) -> bool {
        matches!(self.guesser, Guesser::Model(_))
    }

    /// Whether its next token can go into a step.
    pub(super) fn is_ready_to_decode(&self) -> bool {
        matches!(self.next, Next::Decode { .. })
    }

    /// Its part of the next step: the waiting token with drafts worth their cost, or up to `chunk_tokens` of
    /// the prompt. Nor are there more drafts than `chunk_tokens`.
    pub(super) fn take(
        &mut self,
        sequence: SequenceId,
        chunk_tokens: usize,
        budget: &mut DraftBudget,
    ) -> Option<StepSequence> {
        let (mut drafts, mut truncate_to) = (Vec::new(), None);
        let (start, tokens, sample) = match &mut self.next {
            Next::Awaited => return None,
            Next::Decode { token, behind_rejected } => {
                let start = self.tokens.len() as u32 - 1;
                truncate_to = behind_rejected.then_some(start);
                let token = *token;
                (drafts, self.sent_forced) = self.drafts(chunk_tokens, budget);
                (start, [&[token], drafts.as_slice()].concat(), true)
            }
            Next::Prefill { sent } => {
                let (start, prompt) = (*sent, &self.tokens);
                *sent = prompt.len().min(start + chunk_tokens);
                (start as u32, prompt[start..*sent].to_vec(), *sent == prompt.len())
            }
        };
        if tokens.is_empty() {
            return None;
        }
        if sample {
            self.next = Next::Awaited;
        }
        let (principal, drafts) = (self.principal, drafts.len() as u32);
        Some(StepSequence { sequence, principal, start, tokens, sample, drafts, truncate_to })
    }

    /// Guesses at the tokens after the next. None reaches the last token the sequence may have, nor passes a
    /// stop token: all that are right belong to the answer. And whether they are what its grammar forces.
    fn drafts(&self, count_max: usize, budget: &mut DraftBudget) -> (Vec<u32>, bool) {
        let stop = if self.ignore_eos { &[][..] } else { &self.stop_tokens };
        let count = self.drafts_max().min(count_max as u32);
        let guesses = |budget: &mut DraftBudget| match &self.guesser {
            Guesser::Nobody => Vec::new(),
            Guesser::Lookup(lookup) => lookup.drafts(&self.tokens, count, stop, budget),
            Guesser::Model(drafting) => drafting.drafts(&self.tokens, count, stop, budget),
        };
        let Some(forced) = self.forced.as_ref().filter(|forced| !forced.is_empty()) else {
            return (guesses(budget), false);
        };
        let mut of_guesses = budget.clone();
        let guesses = guesses(&mut of_guesses);
        if forced.is_in(&guesses) {
            *budget = of_guesses;
            return (guesses, false);
        }
        let mut of_forced = budget.clone();
        let drafts = forced.drafts(count, stop, &mut of_forced);
        // Where the model spells otherwise each time, somebody else may know how.
        if drafts.is_empty() {
            *budget = of_guesses;
            return (guesses, false);
        }
        *budget = of_forced;
        (drafts, true)
    }

    fn has_forced(&self) -> bool {
        self.forced.as_ref().is_some_and(|forced| !forced.is_empty())
    }

    /// Guesses that have room before the last token it may have.
    fn drafts_max(&self) -> u32 {
        self.tokens_max.saturating_sub(self.tokens.len() as u32 + 1).min(DRAFTS_MAX)
    }

    /// Takes in what a step sampled; says whether the last of it ends the sequence, and why.
    pub(super) fn sampled(&mut self, result: &TokenResult, context_tokens: u32) -> Option<EndReason> {
        let (count, token) = (result.tokens.len() as u32, result.tokens.last()?.token);
        for token in &result.tokens {
            self.tokens.push(token.token);
            if let Guesser::Lookup(lookup) = &mut self.guesser {
                lookup.push(&self.tokens);
            }
        }
        if let Guesser::Model(drafting) = &mut self.guesser
            && !self.sent_forced
        {
            drafting.learn(result.drafts, result.drafts_accepted());
        }
        if let Some(forced) = &mut self.forced {
            forced.learn(result.tokens.iter().map(|t| t.token), &result.forced);
        }
        self.generated += count;
        self.has_sampled = true;
        self.next = Next::Decode { token, behind_rejected: count <= result.drafts };
        if !self.ignore_eos && self.stop_tokens.contains(&token) {
            return Some(EndReason::StopToken);
        }
        if self.generated >= self.max_tokens {
            return Some(EndReason::MaxTokens);
        }
        (self.tokens.len() >= context_tokens as usize).then_some(EndReason::ContextFull)
    }
}
