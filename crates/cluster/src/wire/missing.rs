//! What a step or its tokens met where a stage or a link should be.

use std::fmt;

use exo_types::{NodeId, Term};
use serde::{Deserialize, Serialize};

use crate::StageStatus;

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
pub enum MissingPart {
    /// The stage: its node has not heard of it.
    Unheard {
        /// That node.
        node: NodeId,
    },
    /// The stage: it is not ready.
    NotReady {
        /// Its node.
        node: NodeId,
        /// How far it is.
        status: StageStatus,
    },
    /// The stage is in an earlier term and has not seen step 0.
    Term {
        /// The one that it is in.
        own: Term,
        /// That of the step.
        got: Term,
    },
    /// The stage's engine cannot compute an empty step. In its own words, which are free.
    Engine(String),
    /// The data link. Where nothing waited there was no room to wait.
    Link {
        /// Where it would lead.
        to: NodeId,
    },
}

impl Missing {
    /// Whether it is being fetched or loaded, which its coordinator watches.
    pub fn is_loading(&self) -> bool {
        let MissingPart::NotReady { status, .. } = &self.what else { return false };
        !matches!(status, StageStatus::Unknown | StageStatus::Failed { .. })
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stage, what, waited_ms } = self;
        write!(f, "stage {stage}: ")?;
        match what {
            MissingPart::Unheard { node } => {
                write!(f, "node {node} has not heard of it (waited {waited_ms} ms)")
            }
            MissingPart::NotReady { node, status } => {
                write!(f, "it is not ready on node {node}: {status} (waited {waited_ms} ms)")
            }
            MissingPart::Term { own, got } => {
                write!(f, "it is in term {own}, and has not seen step 0 of term {got}")
            }
            MissingPart::Engine(words) => f.write_str(words),
            MissingPart::Link { to } if *waited_ms == 0 => {
                write!(f, "the data link to node {to} is not open, and too much waits for links already")
            }
            MissingPart::Link { to } => {
                write!(f, "the data link to node {to} was not open for {waited_ms} ms")
            }
        }
    }
}
