//! Why a scheduler does not take a sequence: a closed set with its numbers. Whoever shows it makes the
//! sentence.

use exo_types::{Attempt, FailureKind, InstanceId, NodeId, PlacementId, SequenceId};
use serde::{Deserialize, Serialize};

use crate::failures::{Missing, PipelineFailure, step_0_waits_for};
use crate::names::{NodeName, shown_by_id};

/// Why a scheduler does not take a sequence.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // the messages say what the fields are
pub enum Rejection {
    /// The node that was asked runs no scheduler for its placement.
    NoScheduler { node: NodeId, placement: PlacementId },
    /// Nothing is scheduled any more.
    Over(PipelineFailure),
    /// Another placement of the instance is served.
    Placement { got: PlacementId, serving: PlacementId },
    /// Before the first term it is not known what has room.
    Opening {
        instance: InstanceId,
        /// What the last answer said; `None` where none came.
        missing: Option<Missing>,
    },
    /// Another node drives it.
    OtherDriver { sequence: SequenceId, node: NodeId },
    /// A later attempt has come before.
    Earlier { sequence: SequenceId, got: Attempt, known: Attempt },
    /// No answer has room in its context, or none was asked for.
    Context { history_tokens: u64, max_tokens: u32, context_tokens: u32 },
    /// A token of its history is none of the model.
    Token { token: u32, vocab: u32 },
    /// The cache is too small for it, also when nothing else is in it.
    Cache { history_tokens: u64, answer_tokens: u64, needed_pages: u32, pages: u32 },
    /// As many wait as may.
    QueueFull { instance: InstanceId, busy: Busy },
}

/// A queue that takes no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Busy {
    /// Sequences that wait: as many as may.
    pub waiting: u32,
    /// When there should be room again.
    pub retry_after_s: u32,
}

impl Rejection {
    /// Which class of failure.
    pub fn kind(&self) -> FailureKind {
        match self {
            Self::NoScheduler { .. } | Self::Over(_) | Self::Placement { .. } | Self::Opening { .. } => {
                FailureKind::InstanceGone
            }
            Self::OtherDriver { .. } | Self::Earlier { .. } | Self::Context { .. } | Self::Token { .. } => {
                FailureKind::Protocol
            }
            Self::Cache { .. } => FailureKind::OutOfMemory,
            Self::QueueFull { .. } => FailureKind::QueueFull,
        }
    }

    /// How full the queue is, where it is that.
    pub fn busy(&self) -> Option<Busy> {
        if let Self::QueueFull { busy, .. } = self { Some(*busy) } else { None }
    }

    /// The sentence.
    pub fn text(&self, name: NodeName<'_>) -> String {
        match self {
            Self::NoScheduler { node, placement } => {
                format!("{} runs no scheduler for placement {placement}", name(*node))
            }
            Self::Over(why) => why.text(name),
            Self::Placement { got, serving } => {
                format!("placement {got} was asked for, {serving} is served here")
            }
            Self::Opening { instance, missing } => {
                format!("{instance} is being wired: {}", step_0_waits_for(missing.as_ref(), name))
            }
            Self::OtherDriver { sequence, node } => {
                format!("sequence {sequence} belongs to another driver than {}", name(*node))
            }
            Self::Earlier { sequence, got, known } => {
                format!("attempt {got} of sequence {sequence} was submitted after attempt {known}")
            }
            Self::Context { history_tokens, max_tokens, context_tokens } => format!(
                "{history_tokens} tokens of prompt and {max_tokens} more were asked of a context of \
                 {context_tokens}"
            ),
            Self::Token { token, vocab } => format!("token {token} is not below the vocabulary's {vocab}"),
            Self::Cache { history_tokens, answer_tokens, needed_pages, pages } => format!(
                "{history_tokens} tokens of prompt and up to {answer_tokens} of answer need {needed_pages} pages \
                 of keys and values, the cache has {pages}; ask for fewer tokens, or place the model with a \
                 larger cache"
            ),
            Self::QueueFull { instance, busy } => {
                let waiting = busy.waiting;
                format!("{waiting} sequences wait for instance {instance}, its queue holds no more")
            }
        }
    }
}

shown_by_id!(Rejection);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{node, placement_id, seq};

    #[test]
    fn a_rejection_calls_nodes_by_the_names_that_they_have_where_it_is_read() {
        let (placement, sequence) = (placement_id(1, 1), seq(1));
        let cases = [
            (
                Rejection::NoScheduler { node: node(2), placement },
                format!("beta runs no scheduler for placement {placement}"),
            ),
            (
                Rejection::Over(PipelineFailure::NodeGone { stage: 1, node: node(2) }),
                "stage 1 on beta is lost".into(),
            ),
            (
                Rejection::OtherDriver { sequence, node: node(2) },
                format!("sequence {sequence} belongs to another driver than beta"),
            ),
        ];
        for (why, sentence) in cases {
            assert_eq!(why.text(&|_| "beta".to_owned()), sentence);
            assert_eq!(why.to_string(), sentence.replace("beta", &format!("node {}", node(2))));
        }
    }

    #[test]
    fn a_prompt_that_the_cache_cannot_hold_is_told_what_would_help() {
        let why = Rejection::Cache { history_tokens: 40, answer_tokens: 60, needed_pages: 7, pages: 4 };
        let sentence = "40 tokens of prompt and up to 60 of answer need 7 pages of keys and values, the cache has \
                        4; ask for fewer tokens, or place the model with a larger cache";
        assert_eq!((why.to_string().as_str(), why.kind()), (sentence, FailureKind::OutOfMemory));
    }
}
