//! What a step or its tokens met where a stage or a link should be.

use exo_types::{NodeId, Term};
use serde::{Deserialize, Serialize};

use super::ComputeFault;
use crate::names::{NodeName, shown_by_id};
use crate::stage_status::StageStatus;

/// What is not there, who noticed, and how long that waited.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Missing {
    /// Index of the stage that is not there, or from which the link would lead.
    pub stage: u32,
    /// What is not there.
    pub what: MissingPart,
    /// How long a message waited for it, in milliseconds.
    pub waited_ms: u64,
}

/// What is not there.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // the messages say what the fields are
pub enum MissingPart {
    /// The stage: its node has not heard of it.
    Unheard { node: NodeId },
    /// The stage: it is not ready.
    NotReady { node: NodeId, status: StageStatus },
    /// The stage is in an earlier term and has not seen step 0.
    Term { own: Term, got: Term },
    /// The stage's engine cannot compute an empty step.
    Engine(ComputeFault),
    /// The data link. Where nothing waited there was no room to wait.
    Link { to: NodeId },
}

impl Missing {
    /// Whether it is being fetched or loaded, which its coordinator watches.
    pub fn is_loading(&self) -> bool {
        let MissingPart::NotReady { status, .. } = &self.what else { return false };
        !matches!(status, StageStatus::Unknown | StageStatus::Failed { .. })
    }

    /// The sentence.
    pub fn text(&self, name: NodeName<'_>) -> String {
        let Self { stage, what, waited_ms } = self;
        let what = match what {
            MissingPart::Unheard { node } => {
                format!("{} has not heard of it (waited {waited_ms} ms)", name(*node))
            }
            MissingPart::NotReady { node, status } => {
                let status = status.text(name);
                format!("it is not ready on {}: {status} (waited {waited_ms} ms)", name(*node))
            }
            MissingPart::Term { own, got } => {
                format!("it is in term {own}, and has not seen step 0 of term {got}")
            }
            MissingPart::Engine(why) => why.to_string(),
            MissingPart::Link { to } if *waited_ms == 0 => {
                let to = name(*to);
                format!("the data link to {to} is not open, and too much waits for links already")
            }
            MissingPart::Link { to } => {
                format!("the data link to {} was not open for {waited_ms} ms", name(*to))
            }
        };
        format!("stage {stage}: {what}")
    }
}

shown_by_id!(Missing);
