//! How instances are doing: what workers report of their stages and what everybody is told of the whole.

use exo_types::{InstanceId, ModelId, NodeId, Placement, SHARDS_MAX, list, size_up};
use serde::{Deserialize, Serialize};

use crate::names::{NodeName, shown_by_id};
use crate::reasons::{Advice, RemoveReason, ReplaceReason, WaitReason};
use crate::stage_status::StageStatus;

/// Names one shard in the memory of this node, from its first byte to its last: the worker counts them, and a
/// shard that is loaded once more has another number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct EngineId(pub u64);

/// One stage as shown.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StageView {
    /// How far the shard is that is least far. Nodes, devices and shards are in the placement, at the same
    /// index.
    pub status: StageStatus,
    /// Bytes of weights, cache and workspace its shards need.
    pub memory_bytes: u64,
}

impl StageView {
    /// A stage, by its shards and the bytes that each of them needs.
    pub(crate) fn of(shards: impl Iterator<Item = (StageStatus, u64)>) -> Self {
        let least = |a: StageStatus, b: StageStatus| if b.progress() < a.progress() { b } else { a };
        let (statuses, memory_bytes): (Vec<_>, Vec<_>) = shards.unzip();
        let status = statuses.into_iter().reduce(least).unwrap_or(StageStatus::Unknown);
        Self { status, memory_bytes: memory_bytes.into_iter().fold(0, u64::saturating_add) }
    }
}

/// How long a hub that asks to wait is waited for without a byte: a little longer than the node that asks it
/// waits.
pub(crate) const HUB_WAITS_MAX: std::time::Duration = std::time::Duration::from_secs(900);

/// How an instance is doing as a whole.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum InstanceState {
    /// Decided, not yet durable or not yet known to its workers.
    Placing,
    /// Its stages are fetching and loading.
    Loading,
    /// Every stage is loaded; its scheduler has not seen yet that steps get through.
    Wiring,
    /// Steps get through: its scheduler takes sequences.
    Ready,
    /// A stage is lost; a new placement is being decided.
    Degraded { reason: ReplaceReason },
    /// A stage is lost, and nothing that is there can take its layers. It stays placed, and goes on when
    /// something can.
    Waiting { reason: WaitReason },
    /// Given up, or unloaded; the removal is on its way to the log.
    Failed { reason: RemoveReason },
}

impl InstanceState {
    /// To be displayed behind "it is".
    pub fn text(&self, name: NodeName<'_>) -> String {
        self.text_behind(None, name)
    }

    /// The same behind a sentence that has said already what was lost.
    pub fn text_behind(&self, said: Option<&ReplaceReason>, name: NodeName<'_>) -> String {
        match self {
            Self::Placing => "being placed".to_owned(),
            Self::Loading => "loading".to_owned(),
            Self::Wiring => "connecting its stages".to_owned(),
            Self::Ready => "ready".to_owned(),
            Self::Degraded { reason } if said == Some(reason) => "being placed again".to_owned(),
            Self::Degraded { reason } => format!("being placed again: {}", reason.text(name)),
            Self::Waiting { reason } => format!("waiting: {}", reason.text_behind(said, name)),
            Self::Failed { reason } => format!("given up: {}", reason.text_behind(said, name)),
        }
    }
}

shown_by_id!(InstanceState);

/// An instance as every member sees it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct InstanceView {
    /// Name of the model, to be displayed and for the API.
    pub model_name: String,
    /// Where it is; its id, instance and model.
    pub placement: Placement,
    /// How it does.
    pub state: InstanceState,
    /// Per stage, in the placement's order.
    #[serde(deserialize_with = "list::<_, _, SHARDS_MAX>")]
    pub stages: Vec<StageView>,
    /// Where stages of it are to be elsewhere.
    pub moving: Option<Moving>,
    /// A better plan, found when it was ready or members had changed. Nobody carries it out unasked.
    pub advice: Option<Advice>,
}

/// Stages that serve are to be elsewhere.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum Moving {
    /// They serve until their layers are loaded there.
    Loading { reason: ReplaceReason, done_bytes: u64, total_bytes: u64 },
    /// They stay: their node is drained, and no other device takes the layers there.
    Stays { node: NodeId, bytes: u64 },
}

impl Moving {
    /// Why they move, or stay.
    pub fn text(&self, name: NodeName<'_>) -> String {
        match self {
            Self::Loading { reason, .. } => reason.text(name),
            Self::Stays { node, bytes } => {
                let node = name(*node);
                let size = size_up(*bytes);
                format!("{node} is drained, and no other device takes the layers there, of {size}")
            }
        }
    }
}

impl InstanceView {
    /// The instance.
    pub fn instance(&self) -> InstanceId {
        self.placement.instance
    }

    /// The model.
    pub fn model(&self) -> ModelId {
        self.placement.model
    }

    /// Whether sequences can be submitted.
    pub fn is_ready(&self) -> bool {
        self.state == InstanceState::Ready
    }
}
