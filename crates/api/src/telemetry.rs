//! What `/exo/v1/telemetry` and `/exo/v1/series` show, and what `/metrics` is made of: measurements of every
//! node of the cluster.
//!
//! A source that is missing is `null`, never zero; [`MissingView`] says why.

use exo_types::LayerRange;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::downloads::PullState;
use crate::generate::{FinishReason, GenerateError};
pub use crate::labels::{Endpoint, RequestEnd};
use crate::schemas::LayersView;
use crate::view::{FetchSourceView, LoadView, NodeStatus, SensorsView};

/// Upper bounds of the histograms of whole requests and of waits, in seconds: those of OpenTelemetry's GenAI
/// conventions, extended upwards for machines on which an answer takes half an hour.
pub const DURATION_BOUNDS_S: [f64; 18] = [
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68,
    655.36, 1310.72,
];
/// The same of the time to the first token.
pub const FIRST_TOKEN_BOUNDS_S: [f64; 21] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 320.0,
];
/// The same of the time per output token.
pub const TOKEN_BOUNDS_S: [f64; 17] =
    [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// Measurements of all members, as the node that answers knows them.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, ToSchema)]
pub struct TelemetryView {
    /// The node that answers.
    pub self_node: String,
    /// Members, sorted by name.
    pub nodes: Vec<NodeTelemetryView>,
}

/// Measurements of one node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct NodeTelemetryView {
    /// Id of the node.
    pub node: String,
    /// Name of the node.
    pub name: String,
    /// Whether it is there.
    pub status: NodeStatus,
    /// Seconds since its last data came; `null` if none has come.
    pub age_s: Option<f64>,
    /// Program version; empty when not known.
    pub version: String,
    /// Operating system and architecture; empty when not known.
    pub platform: String,
    /// Seconds since its process began.
    pub uptime_s: Option<u64>,
    /// By how many seconds its clock is ahead of that of the node that answers.
    pub clock_ahead_s: Option<i64>,
    /// Resident memory of its process.
    pub process_bytes: Option<u64>,
    /// Memory of the machine, as far as the process may use it.
    pub memory_total_bytes: Option<u64>,
    /// Bytes of its memory that are free or can be freed.
    pub memory_available_bytes: Option<u64>,
    /// Free on the disk of its data folder.
    pub disk_free_bytes: Option<u64>,
    /// Of that, what models may still take by its settings `disk_reserve_mib` and `disk_quota_mib`.
    pub disk_room_bytes: Option<u64>,
    /// Open file descriptors of its process; `null` where its system does not tell.
    #[serde(default)]
    pub descriptors_open: Option<u32>,
    /// How many its process may have.
    #[serde(default)]
    pub descriptors_max: Option<u32>,
    /// Charge of its battery, 0 to 1.
    pub battery: Option<f64>,
    /// Whether it runs on mains power.
    pub mains_power: Option<bool>,
    /// Whether multicast that it sends comes back to it; `null` where it looks for no other nodes, or is on
    /// no network where that can be tried.
    #[serde(default)]
    pub multicast_heard: Option<bool>,
    /// Fetches of model files that run.
    pub transfers: u32,
    /// Bytes of model files fetched since its process began.
    pub transferred_bytes: u64,
    /// Members to which it has no link for data, and has had none for a moment.
    pub unreached: Vec<String>,
    /// Measurements of its devices.
    pub devices: Vec<DeviceTelemetryView>,
    /// Measurements of its links.
    pub links: Vec<LinkTelemetryView>,
    /// Shards that it holds.
    pub stages: Vec<StageTelemetryView>,
    /// Instances whose first stage it holds.
    pub instances: Vec<InstanceTelemetryView>,
    /// Requests of its clients since its process began, by model.
    pub requests: Vec<ModelRequestsView>,
    /// Its downloads that are not done, the oldest first, eight at most.
    #[serde(default)]
    pub pulls: Vec<NodePullView>,
}

/// A download, as the node that carries it out tells all others.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct NodePullView {
    /// What was asked for; of an address without what stands behind `?` and in front of `@`.
    pub reference: String,
    /// Where it is.
    pub state: PullState,
    /// Bytes that are on the node's disk and verified.
    pub verified_bytes: u64,
    /// Bytes in all; `null` until the hub has said.
    pub total_bytes: Option<u64>,
    /// Bytes a second over the last seconds; `null` while nothing comes.
    pub bytes_per_s: Option<f64>,
    /// What came from where, most first, while it is fetched; absent where there is one source.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<FetchSourceView>,
}

/// Measurements of one device.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeviceTelemetryView {
    /// The device's name within the node.
    pub device: String,
    /// What the device's sensors show.
    pub sensors: SensorsView,
    /// Temperature at which the device slows itself down, in degrees Celsius.
    pub limit_c: Option<f32>,
    /// Whether it is slowed down for heat or power.
    pub throttled: Option<bool>,
    /// What the device's memory holds.
    pub memory: MemoryView,
    /// What the device does not tell.
    pub missing: Vec<MissingView>,
}

/// A source that tells nothing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct MissingView {
    /// What is missing: `temperature_c`.
    pub what: String,
    /// Why it is missing.
    pub reason: String,
}

/// What a device's memory holds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize, ToSchema)]
pub struct MemoryView {
    /// Bytes that models may take in all.
    pub total_bytes: u64,
    /// Bytes of the total that are free.
    pub free_bytes: u64,
    /// Bytes of the shards' weights.
    pub weights_bytes: u64,
    /// Bytes of keys and values.
    pub kv_bytes: u64,
    /// Bytes of what else shards hold: rows, buffers.
    pub workspace_bytes: u64,
    /// The rest: other programs, the system.
    pub others_bytes: u64,
}

/// Measurements of one link, by the node at its end.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct LinkTelemetryView {
    /// Id of the node at the other end.
    pub peer: String,
    /// The other end's name.
    pub peer_name: String,
    /// Round trip, median of the last measurements.
    pub rtt_ms: f64,
    /// Mean difference between one round trip and the next.
    pub jitter_ms: f64,
    /// Bytes per second that came from the other end, as last measured.
    pub received_bytes_per_s: Option<f64>,
    /// Bytes of frames sent to it since the process began; `null` where that is not counted.
    pub sent_bytes: Option<u64>,
    /// Bytes of frames received in all.
    pub received_bytes: Option<u64>,
    /// Packets sent to it over QUIC since the process began; `null` where there was no such connection.
    pub sent_packets: Option<u64>,
    /// Of these, packets lost on the way. TCP is in neither: the system repairs its losses unseen.
    pub lost_packets: Option<u64>,
    /// Whether it runs over a radio of the node, as far as the node's system tells (Linux).
    #[serde(default)]
    pub is_wireless: Option<bool>,
}

/// Measurements of one shard.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct StageTelemetryView {
    /// Id of the instance.
    pub instance: String,
    /// Name of the model.
    pub model: String,
    /// Number of the stage, from 0.
    pub stage: u32,
    /// The device that holds it.
    pub device: String,
    /// Layers that the stage holds.
    #[schema(value_type = LayersView)]
    pub layers: LayerRange,
    /// Seconds that it has computed since it was loaded.
    pub busy_s: f64,
    /// Bytes of weights in place.
    pub weight_bytes: u64,
}

/// Measurements of one instance, by the node of its first stage.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct InstanceTelemetryView {
    /// Id of the instance.
    pub instance: String,
    /// Name of the model.
    pub model: String,
    /// Requests at it, and how it keeps up with them.
    pub load: LoadView,
    /// Steps of its pipeline since it was placed.
    pub steps: u64,
}

/// Requests for one model at one node.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, ToSchema)]
pub struct ModelRequestsView {
    /// The model's name; empty where the request named none that is known.
    pub model: String,
    /// How many requests ended, by endpoint and reason.
    pub ended: Vec<EndedView>,
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Prompt tokens whose keys and values were kept from before.
    pub cached_tokens: u64,
    /// Tokens of all answers.
    pub completion_tokens: u64,
    /// Seconds from arrival to the first token.
    pub first_token: HistogramView,
    /// Time per token behind the first.
    pub token: HistogramView,
    /// Seconds from arrival to the end.
    pub duration: HistogramView,
    /// Seconds from arrival to the first prompt token at work.
    pub queue: HistogramView,
    /// From the first prompt token at work to the first token of the answer.
    pub prefill: HistogramView,
}

/// A number of requests that ended alike.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct EndedView {
    /// The endpoint: `chat`, `messages`.
    pub endpoint: String,
    /// How they ended: `stop`, `cancelled`, `queue_full`.
    pub reason: String,
    /// Number of requests that ended so.
    pub count: u64,
}

/// Counts by size. `counts` has one number for each bound and one for what is above the last; it is empty
/// where nothing was counted.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, ToSchema)]
pub struct HistogramView {
    /// How many values fell between one bound and the next.
    pub counts: Vec<u64>,
    /// Sum of all, in seconds.
    pub sum_s: f64,
}

impl HistogramView {
    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }
}

/// One entry of Prometheus' HTTP service discovery.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ScrapeTargets {
    /// Addresses of one node, `host:port`.
    pub targets: Vec<String>,
    /// Labels that Prometheus attaches to its series.
    pub labels: std::collections::BTreeMap<String, String>,
}

/// Measurements of one thing over the last hour.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct SeriesView {
    /// What the series are of: `NODE/DEVICE`, an instance, a node.
    pub subject: String,
    /// Seconds between one point and the next.
    pub step_s: u32,
    /// When the last point was measured, in seconds since 1970.
    pub end_unix_s: u64,
    /// Each series, oldest point first, all of the same length.
    pub series: Vec<SeriesPoints>,
}

/// Points of one series.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct SeriesPoints {
    /// What was measured, with its unit: `temperature_c`.
    pub name: String,
    /// `null` where nothing was told.
    pub points: Vec<Option<f32>>,
}

/// Whose series are asked for. Exactly one is given.
#[derive(Clone, PartialEq, Eq, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeriesQuery {
    /// `NODE/DEVICE`, the node by its id in full.
    pub device: Option<String>,
    /// Id of the instance whose series are asked for.
    pub instance: Option<String>,
    /// A node, by its id in full.
    pub node: Option<String>,
}

impl From<FinishReason> for RequestEnd {
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Stop => Self::Stop,
            FinishReason::Length => Self::Length,
            FinishReason::ToolCalls => Self::ToolCalls,
        }
    }
}

impl From<&GenerateError> for RequestEnd {
    fn from(error: &GenerateError) -> Self {
        use GenerateError as E;
        match error {
            E::ModelUnknown { .. } => Self::ModelUnknown,
            E::DoesNotFit { .. } => Self::DoesNotFit,
            E::LoadFailed { .. } => Self::LoadFailed,
            E::PromptTooLong { .. } | E::PromptTooLarge { .. } => Self::PromptTooLong,
            E::TemplateFailed { .. } | E::Invalid { .. } => Self::Invalid,
            E::QueueFull { .. } => Self::QueueFull,
            E::Unavailable { .. } => Self::Unavailable,
            E::SlowReader { .. } => Self::SlowReader,
            E::Failed { .. } => Self::Failed,
            E::Deadline { .. } => Self::Deadline,
            E::Internal { .. } => Self::Internal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_grow() {
        for bounds in [&DURATION_BOUNDS_S[..], &FIRST_TOKEN_BOUNDS_S, &TOKEN_BOUNDS_S] {
            assert!(bounds.is_sorted_by(|a, b| a < b), "{bounds:?}");
        }
    }
}
