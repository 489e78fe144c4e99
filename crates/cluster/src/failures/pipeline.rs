//! Why a pipeline does not go on, or a sequence in it: a closed set with its numbers. Whoever shows it makes
//! the sentence.

use exo_types::NodeId;
use serde::{Deserialize, Serialize};

use super::{ComputeFault, Missing, PipelineBreak};
use crate::names::{NodeName, shown_by_id};

/// Why a sequence will not be finished by this scheduler, or nothing is scheduled any more.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // the messages say what the fields are
pub enum PipelineFailure {
    /// The node of a stage is gone.
    NodeGone { stage: u32, node: NodeId },
    /// What was on its way is lost.
    Ended(TermEnd),
    /// That happened again and again.
    NoToken { terms: u32, seconds: u64, last: TermEnd },
    /// Step 0 did not come back.
    NotOpened {
        seconds: u64,
        /// What the last answer said; `None` where none came.
        missing: Option<Missing>,
    },
    /// The caches of the stages do not fit each other.
    Caches(CacheMismatch),
    /// A step came back before one that was sent earlier.
    Order { got: u64, expected: u64 },
    /// A step came back without what it was to bring.
    NoTokens { step: u64, position: u32 },
    /// Tokens did not reach their driver.
    Undelivered(Missing),
    /// A stage could not compute a step.
    Step(ComputeFault),
    /// That happened in so many steps in a row.
    Steps { count: u32, why: ComputeFault },
    /// The instance was unloaded or placed anew.
    Stopped,
}

/// How a term of a pipeline ended, or its placement.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // the messages say what the fields are
pub enum TermEnd {
    /// A link that steps or tokens take ended at the scheduler's node.
    Link { peer: NodeId, step: u64 },
    /// A stage cannot take a step.
    Stage { stage: u32, why: PipelineBreak },
    /// A step met no stage or no link.
    NotThrough { step: u64, missing: Missing },
    /// A step did not come back.
    Late { step: u64, waited_ms: u64 },
}

/// Stages whose pages hold different numbers of tokens cannot agree on what is kept, nor give equal bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[allow(missing_docs)] // the messages say what the fields are
pub enum CacheMismatch {
    /// Step 0 has not passed each stage once.
    #[error("step 0 came back with the pages of {got} stages, the placement has {expected}")]
    Stages { got: u32, expected: u32 },
    /// What waits was counted by the caches of the term before.
    #[error(
        "the smallest cache has {got} pages of {page_tokens} tokens, in the term before {before} of {page_tokens_before}"
    )]
    Changed { got: u32, page_tokens: u32, before: u32, page_tokens_before: u32 },
    #[error("stage {stage} has pages of {page_tokens} tokens, the first stage of {first_page_tokens}")]
    Differ { stage: u32, page_tokens: u32, first_page_tokens: u32 },
}

impl PipelineFailure {
    /// The sentence.
    pub fn text(&self, name: NodeName<'_>) -> String {
        match self {
            Self::NodeGone { stage, node } => format!("stage {stage} on {} is lost", name(*node)),
            Self::Ended(end) => end.text(name),
            Self::NoToken { terms, seconds, last } => {
                let last = last.text(name);
                format!("no token came back in {terms} terms within {seconds} s: {last}")
            }
            Self::NotOpened { seconds, missing } => {
                let why = step_0_waits_for(missing.as_ref(), name);
                format!("step 0 did not come back in {seconds} s: {why}")
            }
            Self::Caches(why) => why.to_string(),
            Self::Order { got, expected } => format!("step {got} came back before step {expected}"),
            Self::NoTokens { step, position } => {
                format!("step {step} came back without the tokens from {position} on")
            }
            Self::Undelivered(missing) => missing.text(name),
            Self::Step(why) => why.to_string(),
            Self::Steps { count, why } => format!("{count} steps in a row failed: {why}"),
            Self::Stopped => "the instance was unloaded or placed anew".to_owned(),
        }
    }
}

impl TermEnd {
    fn text(&self, name: NodeName<'_>) -> String {
        match self {
            Self::Link { peer, step } => PipelineBreak::Link { peer: *peer, step: *step }.text(name),
            Self::Stage { stage, why } => format!("stage {stage}: {}", why.text(name)),
            Self::NotThrough { step, missing } => {
                format!("step {step} did not get through: {}", missing.text(name))
            }
            Self::Late { step, waited_ms } => {
                format!("step {step} did not come back in {:.1} s", *waited_ms as f64 / 1e3)
            }
        }
    }
}

/// What is not there while step 0 is sent again and again.
pub(crate) fn step_0_waits_for(missing: Option<&Missing>, name: NodeName<'_>) -> String {
    missing.map_or_else(|| "step 0 is on its way".to_owned(), |missing| missing.text(name))
}

shown_by_id!(PipelineFailure, TermEnd);

#[cfg(test)]
mod tests {
    use exo_types::Term;

    use super::*;
    use crate::failures::MissingPart;
    use crate::testing::node;

    #[test]
    fn sentences_call_nodes_by_the_names_that_they_have_where_they_are_read() {
        let link = Missing { stage: 1, what: MissingPart::Link { to: node(2) }, waited_ms: 2000 };
        let unheard = Missing { stage: 1, what: MissingPart::Unheard { node: node(2) }, waited_ms: 7 };
        let broken = |why| TermEnd::Stage { stage: 1, why };
        let (gone, late) = (
            PipelineFailure::NodeGone { stage: 1, node: node(2) },
            PipelineFailure::Ended(TermEnd::Late { step: 6, waited_ms: 2001 }),
        );
        let ended = TermEnd::Link { peer: node(2), step: 3 };
        let rows = ComputeFault::Rows { got_bytes: 12, expected_bytes: 16 };
        let engine = ComputeFault::Engine("no device".to_owned());
        let refused = Missing { stage: 1, what: MissingPart::Engine(engine), waited_ms: 0 };
        let cases = [
            (gone, "stage 1 on beta is lost"),
            (late, "step 6 did not come back in 2.0 s"),
            (
                PipelineFailure::NoToken { terms: 3, seconds: 30, last: ended },
                "no token came back in 3 terms within 30 s: the data link to beta ended behind step 3",
            ),
            (
                PipelineFailure::NotOpened { seconds: 30, missing: Some(unheard) },
                "step 0 did not come back in 30 s: stage 1: beta has not heard of it (waited 7 ms)",
            ),
            (PipelineFailure::Step(rows.clone()), "the engine returned 12 bytes of rows instead of 16"),
            (
                PipelineFailure::Steps { count: 3, why: rows },
                "3 steps in a row failed: the engine returned 12 bytes of rows instead of 16",
            ),
            (PipelineFailure::Undelivered(refused), "stage 1: no device"),
            (
                PipelineFailure::NotOpened { seconds: 30, missing: None },
                "step 0 did not come back in 30 s: step 0 is on its way",
            ),
            (
                PipelineFailure::Ended(TermEnd::NotThrough { step: 4, missing: link }),
                "step 4 did not get through: stage 1: the data link to beta was not open for 2000 ms",
            ),
            (
                PipelineFailure::Ended(broken(PipelineBreak::Link { peer: node(2), step: 3 })),
                "stage 1: the data link to beta ended behind step 3",
            ),
            (
                PipelineFailure::Ended(broken(PipelineBreak::LaterTerm { own: Term(2) })),
                "stage 1: it is in term 2 already",
            ),
        ];
        for (failure, sentence) in cases {
            assert_eq!(failure.text(&|_| "beta".to_owned()), sentence);
            let by_id = sentence.replace("beta", &format!("node {}", node(2)));
            assert_eq!(failure.to_string(), by_id);
        }
    }
}
