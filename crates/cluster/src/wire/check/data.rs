//! Bounds of the data channel.

use std::collections::BTreeSet;

use exo_types::{DRAFTS_MAX, PageKey, PromptReport, SequenceSpec, StepFrame, StepSequence};

use super::super::limits::{
    CONTEXT_TOKENS_MAX, EMBEDDING_MAX, LOGIT_BIAS_MAX, RETRY_S_MAX, SCORES_BYTES_MAX, STAGES_MAX,
    STEP_TOKENS_MAX, STOP_TOKENS_MAX, scores_bytes,
};
use super::super::{
    ComputeFault, DataMessage, Missing, MissingPart, Rejection, StageCommand, StagePages, StageSet,
    StepMessage, Submission, TokenResult, TokensMessage,
};
use super::{Check, CheckError, at_most, ensure, text};

impl Check for DataMessage {
    fn check(&self) -> Result<(), CheckError> {
        match self {
            Self::Submit(submission) => submission.check(),
            Self::Step(step) => step.check(),
            Self::Tokens(tokens) => tokens.check(),
            Self::StepFailed(failure) => failure.why.check(),
            Self::Rejected { why, .. } => why.check(),
            Self::PipelineBroken { kind, .. } => {
                let is_its_own =
                    matches!(kind, exo_types::FailureKind::StageLost | exo_types::FailureKind::Protocol);
                ensure(is_its_own, "a pipeline breaks for a lost stage or a broken protocol only")
            }
            Self::SequenceFailed { why, .. } => why.check(),
            Self::Undelivered { missing, .. } => missing.check(),
            Self::NotWired { stage, missing, .. } => {
                ensure((*stage as usize) < STAGES_MAX, "a step is for a stage no placement has")?;
                missing.check()
            }
            Self::Cancel { .. }
            | Self::Accepted { .. }
            | Self::Started { .. }
            | Self::SequenceEnded { .. } => Ok(()),
        }
    }
}

impl Check for Rejection {
    fn check(&self) -> Result<(), CheckError> {
        match self {
            Self::Over(why) => why.check(),
            Self::Opening { missing, .. } => missing.as_ref().map_or(Ok(()), Check::check),
            Self::QueueFull { busy, .. } => {
                at_most("seconds to come back in", busy.retry_after_s as usize, RETRY_S_MAX as usize)
            }
            Self::NoScheduler { .. }
            | Self::Placement { .. }
            | Self::OtherDriver { .. }
            | Self::Earlier { .. }
            | Self::Context { .. }
            | Self::Token { .. }
            | Self::Cache { .. } => Ok(()),
        }
    }
}

impl Check for Missing {
    fn check(&self) -> Result<(), CheckError> {
        match &self.what {
            MissingPart::NotReady { status, .. } => status.check(),
            MissingPart::Engine(why) => why.check(),
            MissingPart::Unheard { .. } | MissingPart::Term { .. } | MissingPart::Link { .. } => Ok(()),
        }
    }
}

impl Check for ComputeFault {
    fn check(&self) -> Result<(), CheckError> {
        match self {
            Self::Engine(words) => text("bytes of a reason", words),
            Self::NotFinite { .. }
            | Self::SentNotFinite { .. }
            | Self::Rows { .. }
            | Self::Tokens { .. }
            | Self::Partial { .. }
            | Self::Several => Ok(()),
        }
    }
}

impl Check for Submission {
    fn check(&self) -> Result<(), CheckError> {
        ensure(self.attempt.0 > 0, "a submission has attempt 0")?;
        ensure(self.max_tokens > 0, "a submission asks for no token")?;
        ensure(!self.spec.history.is_empty(), "a submission has no prompt")?;
        at_most("stop tokens", self.stop_tokens.len(), STOP_TOKENS_MAX)?;
        self.spec.check()
    }
}

impl Check for SequenceSpec {
    fn check(&self) -> Result<(), CheckError> {
        at_most("tokens of a history", self.history.len(), CONTEXT_TOKENS_MAX as usize)?;
        at_most("entries of a logit bias", self.sampling.logit_bias.len(), LOGIT_BIAS_MAX)?;
        ensure(self.prompt_tokens as usize <= self.history.len(), "a prompt is longer than its history")?;
        ensure(self.sampling.check().is_ok(), "a sampling parameter is out of its range")
    }
}

impl Check for StepMessage {
    fn check(&self) -> Result<(), CheckError> {
        ensure((self.stage as usize) < STAGES_MAX, "a step is for a stage no placement has")?;
        for command in &self.commands {
            command.check()?;
        }
        self.failures.iter().try_for_each(|failure| failure.why.check())?;
        pages_of_step(self.frame.step, &self.pages)?;
        kept_of_step(self.frame.step, &self.kept)?;
        rebuilt_stages(self.rebuilds)?;
        at_most("times of stages", self.computed_us.len(), STAGES_MAX)?;
        let carries = !(self.commands.is_empty() && self.frame.sequences.is_empty() && self.rows.is_empty());
        ensure(self.frame.step > 0 || !carries, "step 0 carries something")?;
        self.frame.check()
    }
}

/// Only step 0 collects the stages' pages.
fn pages_of_step(step: u64, pages: &[StagePages]) -> Result<(), CheckError> {
    ensure(step == 0 || pages.is_empty(), "a step other than 0 tells of caches")?;
    ensure(pages.iter().all(|p| p.page_tokens > 0), "a stage has pages without tokens")
}

/// Only step 0 names pages of the term before.
fn kept_of_step(step: u64, kept: &[PageKey]) -> Result<(), CheckError> {
    ensure(step == 0 || kept.is_empty(), "a step other than 0 names pages of the term before")
}

fn rebuilt_stages(stages: Option<StageSet>) -> Result<(), CheckError> {
    ensure(stages.is_none_or(|stages| !stages.is_empty()), "a step rebuilds pages of no stage")
}

impl Check for StageCommand {
    fn check(&self) -> Result<(), CheckError> {
        match self {
            Self::Open { spec, .. } => spec.check(),
            Self::Keep { .. } | Self::Forget(_) | Self::Close(_) => Ok(()),
        }
    }
}

impl Check for StepFrame {
    fn check(&self) -> Result<(), CheckError> {
        ensure(self.term.0 > 0, "a step has term 0")?;
        self.sequences.check()?;
        at_most("tokens of a step", self.token_count(), STEP_TOKENS_MAX)?;
        let distinct: BTreeSet<_> = self.sequences.iter().map(|s| s.sequence).collect();
        ensure(distinct.len() == self.sequences.len(), "a step names a sequence twice")
    }
}

impl Check for StepSequence {
    fn check(&self) -> Result<(), CheckError> {
        ensure(!self.tokens.is_empty(), "a step has a sequence without tokens")?;
        at_most("drafts of a sequence", self.drafts as usize, DRAFTS_MAX as usize)?;
        ensure((self.drafts as usize) < self.tokens.len(), "a step has a sequence of drafts only")?;
        ensure(self.sample || self.drafts == 0, "a step has drafts where nothing is sampled")?;
        let end = self.start as usize + self.tokens.len();
        at_most("end position of a sequence", end, CONTEXT_TOKENS_MAX as usize)
    }
}

impl Check for TokensMessage {
    fn check(&self) -> Result<(), CheckError> {
        self.failures.iter().try_for_each(|failure| failure.why.check())?;
        pages_of_step(self.step, &self.pages)?;
        kept_of_step(self.step, &self.kept)?;
        rebuilt_stages(self.rebuilds)?;
        at_most("times of stages", self.computed_us.len(), STAGES_MAX)?;
        ensure(self.step > 0 || self.results.is_empty(), "step 0 came back with tokens")?;
        self.results.check()
    }
}

impl Check for TokenResult {
    fn check(&self) -> Result<(), CheckError> {
        at_most("drafts of a sequence", self.drafts as usize, DRAFTS_MAX as usize)?;
        ensure(!self.tokens.is_empty(), "a sampled sequence has no token")?;
        at_most("tokens of a sampled sequence", self.tokens.len(), self.drafts as usize + 1)?;
        at_most("forced tokens of a sequence", self.forced.len(), DRAFTS_MAX as usize)?;
        let end = self.position as usize + self.tokens.len() - 1;
        at_most("position of a token", end, CONTEXT_TOKENS_MAX as usize)?;
        let mut behind_first = self.tokens.iter().skip(1);
        ensure(
            behind_first.all(|t| t.prompt.is_none()),
            "a report on a prompt comes behind the first token",
        )?;
        self.tokens.first().and_then(|first| first.prompt.as_deref()).map_or(Ok(()), PromptReport::check)
    }
}

impl Check for PromptReport {
    fn check(&self) -> Result<(), CheckError> {
        match self {
            Self::Embedding(vector) => at_most("elements of a vector", vector.len(), EMBEDDING_MAX),
            Self::Scores(scores) => {
                let top = scores.iter().map(|score| score.top.len()).max().unwrap_or(0);
                at_most("bytes of scores", scores_bytes(scores.len(), top), SCORES_BYTES_MAX)
            }
        }
    }
}
