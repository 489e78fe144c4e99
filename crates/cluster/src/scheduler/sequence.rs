//! A running sequence: how much of it was sent through the pipeline, and what comes next.

use exo_types::{NodeId, Principal, SequenceId, StepSequence};

use crate::wire::{EndReason, Submission, TokenResult};

/// A sequence that holds pages.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) ticket: u64,
    pub(super) driver: NodeId,
    /// Tokens whose pages are reserved.
    pub(super) reserved_tokens: u32,
    /// Tokens sampled in this submission.
    pub(super) generated: u32,
    principal: Principal,
    /// Tokens of prompt and answer so far.
    length: u32,
    max_tokens: u32,
    stop_tokens: Vec<u32>,
    ignore_eos: bool,
    next: Next,
}

/// What the sequence needs next.
#[derive(Clone, Debug)]
enum Next {
    /// Its prompt goes on from here.
    Prefill { history: Vec<u32>, sent: usize },
    /// Its next token is in flight.
    Awaited,
    /// This token goes through the pipeline. `since` is the step that sampled it: the longest waiting goes first.
    /// `behind_rejected`: the stages hold drafts that were rejected where it belongs.
    Decode { token: u32, since: u64, behind_rejected: bool },
}

impl Running {
    /// The sequence, about to send its prompt.
    pub(super) fn new(submission: &Submission, ticket: u64, reserved_tokens: u32) -> Self {
        let Submission { spec, max_tokens, stop_tokens, ignore_eos, .. } = submission;
        Self {
            ticket,
            driver: spec.driver,
            reserved_tokens,
            generated: 0,
            principal: spec.principal,
            length: spec.history.len() as u32,
            max_tokens: *max_tokens,
            stop_tokens: stop_tokens.clone(),
            ignore_eos: *ignore_eos,
            next: Next::Prefill { history: spec.history.clone(), sent: 0 },
        }
    }

    /// Whether its prompt is through.
    pub(super) fn is_decoding(&self) -> bool {
        !matches!(self.next, Next::Prefill { .. })
    }

    /// Since which step it is ready to decode; `None` if it is not.
    pub(super) fn decode_since(&self) -> Option<u64> {
        match self.next {
            Next::Decode { since, .. } => Some(since),
            Next::Prefill { .. } | Next::Awaited => None,
        }
    }

    /// Its part of the next step: the waiting token, or up to `chunk_tokens` of the prompt.
    pub(super) fn take(&mut self, sequence: SequenceId, chunk_tokens: usize) -> Option<StepSequence> {
        let mut truncate_to = None;
        let (start, tokens, sample) = match &mut self.next {
            Next::Awaited => return None,
            Next::Decode { token, behind_rejected, .. } => {
                let start = self.length - 1;
                truncate_to = behind_rejected.then_some(start);
                (start, vec![*token], true)
            }
            Next::Prefill { history, sent } => {
                let start = *sent;
                *sent = history.len().min(start + chunk_tokens);
                (start as u32, history[start..*sent].to_vec(), *sent == history.len())
            }
        };
        if tokens.is_empty() {
            return None;
        }
        if sample {
            self.next = Next::Awaited;
        }
        let principal = self.principal;
        Some(StepSequence { sequence, principal, start, tokens, sample, drafts: 0, truncate_to })
    }

    /// Takes in what a step sampled; says whether the last of it ends the sequence, and why.
    pub(super) fn sampled(
        &mut self,
        result: &TokenResult,
        step: u64,
        context_tokens: u32,
    ) -> Option<EndReason> {
        let (count, token) = (result.tokens.len() as u32, result.tokens.last()?.token);
        self.length += count;
        self.generated += count;
        self.next = Next::Decode { token, since: step, behind_rejected: count <= result.drafts };
        if !self.ignore_eos && self.stop_tokens.contains(&token) {
            return Some(EndReason::StopToken);
        }
        if self.generated >= self.max_tokens {
            return Some(EndReason::MaxTokens);
        }
        (self.length >= context_tokens).then_some(EndReason::ContextFull)
    }
}
