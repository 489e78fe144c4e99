//! About how many bytes a message takes before it is encoded: for what waits, and must not without bound.

use exo_types::{PromptReport, SampledToken, SequenceSpec};

use super::{
    BackupMessage, Claimed, ControlMessage, DataMessage, LogMessage, StageCommand, StepFailure, StepMessage,
    spec_bytes_about, token_bytes,
};

/// What is small of each.
const REST: usize = 256;
/// What a node says of itself and its placements, about: no other member chooses how much that is.
const OWN: usize = 16 << 10;

impl DataMessage {
    /// Rows, lists and grammars; everything else of it is small.
    pub fn bytes_about(&self) -> usize {
        REST + match self {
            Self::Submit(submission) => spec_bytes(&submission.spec) + 4 * submission.stop_tokens.len(),
            Self::Step(step) => step.bytes_about(),
            Self::Tokens(tokens) => {
                let results = tokens.results.iter().map(|result| {
                    let drawn = result.tokens.iter().map(|t| 64 + 8 * t.top.len() + report_bytes(t));
                    64 + drawn.sum::<usize>() + 4 * result.forced.len()
                });
                let failures: usize = tokens.failures.iter().map(failure_bytes).sum();
                results.sum::<usize>() + failures + 8 * (tokens.kept.len() + tokens.pages.len())
            }
            Self::StepFailed(failure) => failure_bytes(failure),
            Self::Undelivered { sequences, .. } => 32 * sequences.len(),
            _ => 0,
        }
    }
}

impl StepMessage {
    /// The same of a step.
    pub fn bytes_about(&self) -> usize {
        let commands = self.commands.iter().map(|command| match command {
            StageCommand::Open { spec, cached, .. } => spec_bytes(spec) + 8 * cached.len(),
            StageCommand::Keep { pages, .. } => 64 + 16 * pages.len(),
            StageCommand::Forget(pages) => 64 + 8 * pages.len(),
            _ => 64,
        });
        let sequences = self.frame.sequences.iter().map(|s| 128 + 4 * s.tokens.len());
        let failures: usize = self.failures.iter().map(failure_bytes).sum();
        self.rows.len()
            + commands.sum::<usize>()
            + sequences.sum::<usize>()
            + failures
            + 8 * (self.kept.len() + self.pages.len())
    }
}

impl ControlMessage {
    /// Logs, copies and what has an encoding of its own.
    pub fn bytes_about(&self) -> usize {
        REST + match self {
            Self::Membership(bytes) | Self::Trust(bytes) => bytes.len(),
            Self::Log(message) => message.bytes_about(),
            Self::Backup(message) => match message {
                BackupMessage::Begin { backup, .. }
                | BackupMessage::Claimed { claimed: Claimed::Kept { backup, .. }, .. } => backup.bytes(),
                BackupMessage::Tokens { tokens, .. } => tokens.iter().map(token_bytes).sum(),
                _ => 0,
            },
            Self::Refused(_) => 0,
            Self::Report(_)
            | Self::Desired(_)
            | Self::Instances { .. }
            | Self::Request { .. }
            | Self::Reply { .. } => OWN,
        }
    }
}

impl LogMessage {
    /// Its entries, or its state.
    pub fn bytes_about(&self) -> usize {
        match self {
            Self::Entries { entries, .. } | Self::Tail { entries, .. } => {
                entries.iter().map(|entry| 24 + entry.len()).sum()
            }
            Self::Snapshot { ancestors, state, .. } | Self::TailSnapshot { ancestors, state, .. } => {
                32 * ancestors.len() + state.len()
            }
            Self::Pull { .. } | Self::CatchUp { .. } => 0,
        }
    }
}

fn spec_bytes(spec: &SequenceSpec) -> usize {
    REST + spec_bytes_about(spec)
}

fn failure_bytes(failure: &StepFailure) -> usize {
    REST + failure.message.len() + 32 * failure.sequences.len()
}

/// What was asked of a prompt comes with the first token behind it.
fn report_bytes(token: &SampledToken) -> usize {
    match token.prompt.as_deref() {
        Some(PromptReport::Embedding(vector)) => 4 * vector.len(),
        Some(PromptReport::Scores(scores)) => scores.iter().map(|score| 8 + 8 * score.top.len()).sum(),
        None => 0,
    }
}
