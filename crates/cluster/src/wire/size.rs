//! About how many bytes a message takes before it is encoded: for what waits, and must not without bound.

use exo_types::{PromptReport, SampledToken, SequenceSpec};

use super::{
    BackupMessage, Claimed, ControlMessage, ControlReply, DataMessage, LogMessage, PlannerDevice,
    PlannerInputs, StageCommand, StepFailure, StepMessage, Unloadable, spec_bytes_about, token_bytes,
};
use crate::InstanceView;

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
            Self::Instances { instances, .. } => instances.iter().map(instance_bytes).sum(),
            Self::Reply { reply: ControlReply::PlannerInputs(inputs), .. } => inputs_bytes(inputs),
            Self::Report(_) | Self::Desired(_) | Self::Request { .. } | Self::Reply { .. } => OWN,
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

/// Its name and its stages, of which each has a shard or few.
fn instance_bytes(instance: &InstanceView) -> usize {
    let stages = instance.stages.len().max(instance.placement.stages.len());
    size_of::<InstanceView>() + instance.model_name.len() + 2 * REST * stages
}

/// What a plan is made with: it grows with members times what is loaded.
fn inputs_bytes(inputs: &PlannerInputs) -> usize {
    let devices = inputs.devices.iter().map(|device| {
        let rates = device.facts.rates_by_type.len() + device.facts.unsupported_types.len();
        size_of::<PlannerDevice>() + 2 * REST + 32 * rates
    });
    let unloadable = inputs.unloadable.iter().map(|model| {
        size_of::<Unloadable>() + model.model_name.len() + 64 * model.shards.len() + 32 * model.room.len()
    });
    devices.sum::<usize>()
        + unloadable.sum::<usize>()
        + 64 * inputs.apart.len()
        + size_of::<(exo_types::NodeId, u64)>() * inputs.parts.len()
}

fn spec_bytes(spec: &SequenceSpec) -> usize {
    REST + spec_bytes_about(spec)
}

fn failure_bytes(failure: &StepFailure) -> usize {
    REST + failure.why.text_bytes() + 32 * failure.sequences.len()
}

/// What was asked of a prompt comes with the first token behind it.
fn report_bytes(token: &SampledToken) -> usize {
    match token.prompt.as_deref() {
        Some(PromptReport::Embedding(vector)) => 4 * vector.len(),
        Some(PromptReport::Scores(scores)) => scores.iter().map(|score| 8 + 8 * score.top.len()).sum(),
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use exo_types::{InstanceId, NodeId};

    use super::*;
    use crate::wire::FreeMemory;

    #[test]
    fn what_a_plan_is_made_with_counts_what_it_holds() {
        let node = |n: u8| NodeId([n; 32]);
        let free = FreeMemory { free_bytes: u64::MAX, shared_free_bytes: Some(u64::MAX) };
        let unloadable = |n: u8| Unloadable {
            instance: InstanceId(n.into()),
            model_name: "m".repeat(40),
            shards: vec![(node(n), exo_types::DeviceId("cuda:0".to_owned())); 8],
            idle_s: Some(u64::MAX),
            room: vec![free; 500],
        };
        let inputs = PlannerInputs {
            apart: (0..200).map(|n| (node(n), node(n + 1))).collect(),
            parts: (0..200).map(|n| (node(n), u64::MAX)).collect(),
            unloadable: (0..200).map(unloadable).collect(),
            ..PlannerInputs::default()
        };
        let reply = ControlReply::PlannerInputs(Box::new(inputs));
        let message = ControlMessage::Reply { request: 1, reply };
        let (about, sent) = (message.bytes_about(), message.encode().len());
        assert!(sent > 1 << 20 && about >= sent && about < 4 * sent, "{about} of {sent}");
        let small = ControlMessage::Reply { request: 1, reply: ControlReply::Done { holders: 2 } };
        assert!(small.bytes_about() <= REST + OWN);
    }
}
