//! Facts that last: what the log holds. Past tense, decided by the coordinator, never telemetry or tokens.

use exo_types::{
    Exclusion, InstanceId, KvDType, ModelId, ModelShape, NodeId, Pin, Placement, WeightTypes, list,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::limits::{self, MEMBERS_MAX, PINS_MAX};
use super::{Check, CheckError, RequestDifference};
use crate::reasons::{RemoveReason, ReplaceReason};

/// What the planner should aim for, as the log keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum PlaceObjective {
    /// The fastest single stream that fits.
    Fit,
    /// At least this many stages, where the model and the cluster have them.
    Spread { stages_min: u32 },
    /// The most tokens per second over so many streams.
    Throughput { streams: u32 },
}

/// What was asked for when an instance was placed: enough to place it again without asking anybody.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct InstanceRequest {
    pub model: ModelId,
    /// Display name, and the name in the API.
    pub model_name: String,
    pub shape: ModelShape,
    /// Its bytes by type; `None` where whoever placed it had only a part of the file.
    pub weight_types: Option<Box<WeightTypes>>,
    /// Longest sequence in tokens.
    pub context_tokens: u32,
    /// Sequences that may run at once.
    pub slots: u32,
    /// Tokens of keys and values to hold, over all sequences; in whole pages, and at least one context.
    pub cache_tokens: u32,
    /// How keys and values are stored; `shape` counts their bytes accordingly.
    pub kv: KvDType,
    pub objective: PlaceObjective,
    /// Devices that must take part, however often it is placed again.
    #[serde(deserialize_with = "list::<_, _, PINS_MAX>")]
    pub pins: Vec<Pin>,
    /// Devices that must not.
    #[serde(deserialize_with = "list::<_, _, PINS_MAX>")]
    pub excluded: Vec<Exclusion>,
    /// Nodes known to hold the model's file when it was placed; weights are fetched from them.
    #[serde(deserialize_with = "list::<_, _, MEMBERS_MAX>")]
    pub holders: Vec<NodeId>,
    /// A request loaded it, and no person asked for it: it makes room for what is placed next.
    pub is_on_demand: bool,
}

impl InstanceRequest {
    /// How an instance that was placed for `placed` is not what this asks for: it names devices or a
    /// throughput, and not these. A request without a wish of its own takes any.
    pub fn differs_from(&self, placed: &Self) -> Option<RequestDifference> {
        let named = !self.pins.is_empty() || !self.excluded.is_empty();
        let differs = named && (&self.pins, &self.excluded) != (&placed.pins, &placed.excluded);
        if differs {
            return Some(RequestDifference::Devices);
        }
        let is_throughput = matches!(self.objective, PlaceObjective::Throughput { .. });
        let differs = is_throughput && self.objective != placed.objective;
        differs.then_some(RequestDifference::Objective)
    }
}

/// One lasting fact.
#[allow(clippy::large_enum_variant, reason = "few are in memory at a time, and most of them are placements")]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum Event {
    /// The node that keeps this log was opened to others: what is placed from here on counts as use of its
    /// cluster.
    Opened,
    /// A model was placed for the first time.
    InstancePlaced {
        request: InstanceRequest,
        placement: Placement,
        /// Bytes each shard needs, as the planner counted them, in the order of [`Placement::shards`].
        memory_bytes: Vec<u64>,
    },
    /// An instance was placed again, under a later id.
    InstanceReplaced {
        placement: Placement,
        /// Bytes each shard needs, as the planner counted them, in the order of [`Placement::shards`].
        memory_bytes: Vec<u64>,
        reason: ReplaceReason,
    },
    /// A node is to have no stages, or may have some again.
    NodeDrained {
        node: NodeId,
        /// Whether it is to have none.
        is_drained: bool,
    },
    /// An instance is no more.
    InstanceRemoved { instance: InstanceId, reason: RemoveReason },
    /// A person asked for an instance that a request had loaded: it makes room for nothing any more.
    InstanceKept { instance: InstanceId },
}

impl Event {
    /// The instance of what a coordinator decided by itself; `None` for what somebody asked for and was told.
    pub fn unasked(&self) -> Option<InstanceId> {
        match self {
            // A better place is taken when somebody says so.
            Self::InstanceReplaced { reason: ReplaceReason::Better(_), .. } => None,
            Self::InstanceReplaced { placement, .. } => Some(placement.instance),
            Self::InstanceRemoved {
                instance,
                reason: RemoveReason::Unused { .. } | RemoveReason::GivenUp(_),
            } => Some(*instance),
            Self::Opened
            | Self::InstancePlaced { .. }
            | Self::NodeDrained { .. }
            | Self::InstanceRemoved { .. }
            | Self::InstanceKept { .. } => None,
        }
    }
}

/// Bytes that are no event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum EventError {
    #[error("the event has {len_bytes} bytes, at most {max_bytes} are allowed")]
    TooLong { len_bytes: usize, max_bytes: usize },
    #[error("the bytes are not an event: {0}")]
    Malformed(#[from] postcard::Error),
    #[error(
        "it has format {got}, this build reads {FORMAT}: start the build that wrote it, or type `exo leave` to begin anew"
    )]
    Format { got: u8 },
    /// Decoded, but a value is out of bounds.
    #[error(transparent)]
    OutOfBounds(#[from] CheckError),
}

/// Counts the encodings of events and snapshots, as the journal does: 5 has no members, who are in the log of
/// trust; 6 has drained nodes, 7 pins and exclusions, 8 what requests loaded, 9 bytes by type of weights and
/// the width of attention, 10 reasons as closed sets, 11 among them why a pipeline failed, 12 why a step did.
const FORMAT: u8 = 12;
/// In the first byte of what is written, beside the format.
const HAS_FORMAT: u8 = 0x80;
/// The last format without such a byte.
const FORMAT_BARE: u8 = 3;

/// Bytes of the log: the format, then postcard.
pub(crate) fn encode(value: &impl Serialize) -> Vec<u8> {
    let out = vec![HAS_FORMAT | FORMAT];
    postcard::to_extend(value, out).expect("the log holds only types postcard can write")
}

/// What [`encode`] has written.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8], max_bytes: usize) -> Result<T, EventError> {
    if bytes.len() > max_bytes {
        return Err(EventError::TooLong { len_bytes: bytes.len(), max_bytes });
    }
    match bytes.split_first() {
        Some((&first, body)) if first == HAS_FORMAT | FORMAT => Ok(postcard::from_bytes(body)?),
        Some((&first, _)) if first & HAS_FORMAT != 0 => Err(EventError::Format { got: first & !HAS_FORMAT }),
        Some(_) | None => Err(EventError::Format { got: FORMAT_BARE }),
    }
}

impl Event {
    /// The bytes that go into the journal.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// The event in one journal entry.
    pub fn decode(bytes: &[u8]) -> Result<Self, EventError> {
        let event: Self = decode(bytes, limits::EVENT_BYTES_MAX)?;
        event.check()?;
        Ok(event)
    }
}
