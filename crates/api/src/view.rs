//! What `/exo/v1/*` shows. Ids are strings in their full form; a source that is missing is `null`.

use std::collections::BTreeMap;

use exo_types::{
    Corrections, DType, DeviceFacts, DeviceKind, DeviceState, KvDType, LayerRange, LayerRates, MemoryDomain,
    Monitor, Provenance, SupportClass, TypeRates,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::alerts::AlertView;
use crate::generate::StepTimesView;
use crate::schemas::{CorrectionsView, KvType, LayerRatesView, LayersView};

/// The cluster as one node sees it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ClusterView {
    /// The cluster's id, or `null` before one is founded or joined.
    pub cluster: Option<String>,
    /// The node that answers.
    pub self_node: String,
    /// The coordinator and its epoch; `null` during an election.
    pub epoch: Option<EpochView>,
    /// While a member follows a coordinator that the node that answers does not hear: who. `null` in an
    /// election that all take part in.
    #[serde(default)]
    pub unheard_coordinator: Option<UnheardCoordinatorView>,
    /// Nodes, sorted by name.
    pub nodes: Vec<NodeView>,
    /// Measured paths between nodes.
    pub links: Vec<LinkView>,
    /// Models that are placed.
    pub instances: Vec<InstanceView>,
    /// Whether strangers may join by themselves.
    pub join_window: JoinWindowView,
    /// Strangers that ask to join.
    pub join_requests: Vec<JoinRequestView>,
    /// Nodes nearby that have a cluster of their own, the first few: neither side joins the other without a
    /// person's word.
    #[serde(default)]
    pub other_clusters: Vec<OtherClusterView>,
    /// The end of the event log.
    pub journal: JournalView,
    /// What went wrong on the node that answers and should be known, the last few.
    #[serde(default)]
    pub warnings: Vec<WarningView>,
    /// What is wrong in the cluster, and what was within the last day.
    #[serde(default)]
    pub alerts: Vec<AlertView>,
}

/// A request of a client of the node that answers, one for each choice. Never its text.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct RequestView {
    /// The request's id, as in `x-request-id`.
    pub id: String,
    /// Which choice of the request it is, from 0.
    pub index: u16,
    /// Name of the model.
    pub model: String,
    /// Who asked: "local", the name of an API key, or the beginning of its hash where it has none.
    pub principal: String,
    /// What the request does now.
    pub phase: RequestPhase,
    /// What the request waits for, while it does; on one line.
    pub waits_for: Option<String>,
    /// Milliseconds that it has been interrupted, where it is.
    pub interrupted_ms: Option<u64>,
    /// Milliseconds until it ends with an error unless it has gone on by then, while it is interrupted.
    #[serde(default)]
    pub interrupted_left_ms: Option<u64>,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens of the answer so far.
    pub tokens: u32,
    /// Milliseconds since the request came.
    pub age_ms: u64,
    /// How often the answer went on after an interruption.
    pub resumed: u32,
}

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RequestPhase {
    /// Waits for its model, a link or its turn.
    #[default]
    Queued,
    /// The prompt is read, and after an interruption what was answered.
    Prefill,
    /// The answer is made, token by token.
    Decode,
    /// A node or link that computed it is lost; it goes on where its tokens end.
    Interrupted,
}

/// A request of a client of the node that answers that has ended. Never its text.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct RecentRequestView {
    /// The request's id, as in `x-request-id`.
    pub id: String,
    /// Which way it came: `chat`, `messages`, `ollama_chat` and so on, as in metrics.
    pub endpoint: String,
    /// The model's name, as it was asked for.
    pub model: String,
    /// Who asked: "local", the name of an API key, or the beginning of its hash where it has none.
    pub principal: String,
    /// When the request came, in milliseconds since 1970.
    pub started_unix_ms: u64,
    /// Milliseconds that the request took.
    pub total_ms: u64,
    /// How it ended: `stop`, `length`, `tool_calls`, `cancelled`, `client_left`, or the code of its error.
    pub end: String,
    /// Tokens of its prompt; 0 where it ended before it was read.
    pub prompt_tokens: u64,
    /// Prompt tokens whose keys and values were kept from earlier requests.
    pub cached_tokens: u64,
    /// Tokens of its answer, over all choices.
    pub tokens: u64,
    /// Milliseconds that the request waited before its prompt was read.
    pub queue_ms: Option<u64>,
    /// Milliseconds from the request's arrival to its first token.
    pub ttft_ms: Option<u64>,
    /// Tokens per second after the first.
    pub tokens_per_s: Option<f64>,
    /// Stages that its answer went through.
    pub stages: u32,
    /// Where the time of its steps went, stage by stage, where that is known.
    #[serde(default)]
    pub times: Option<StepTimesView>,
}

/// Something that went wrong.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct WarningView {
    /// When, in seconds since 1970.
    pub at_unix_s: u64,
    /// What, on one line.
    pub text: String,
}

/// The epoch of a coordinator.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct EpochView {
    /// Grows with each election.
    pub counter: u64,
    /// The coordinator's node id.
    pub coordinator: String,
}

/// A coordinator that the node that answers does not hear, and somebody who does.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct UnheardCoordinatorView {
    /// The coordinator's node id.
    pub coordinator: String,
    /// The node id of a member that follows it and is heard here.
    pub followed_by: String,
}

/// What a member may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MemberRole {
    /// The member may admit and remove members.
    Admin,
    /// The member computes and answers, and changes no membership.
    Worker,
}

/// Whether a node is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NodeStatus {
    /// The node's lease is fresh.
    Alive,
    /// The node is late, and is declared lost soon.
    Suspected,
    /// The node is gone without a word.
    Lost,
    /// The node ended, and said so.
    Left,
}

impl NodeStatus {
    /// Whether nothing of it is there.
    pub fn is_gone(self) -> bool {
        matches!(self, Self::Lost | Self::Left)
    }
}

/// One node of the cluster.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct NodeView {
    /// Id of the node.
    pub id: String,
    /// Name of the node, to be displayed.
    pub name: String,
    /// Whether it is the node that answers.
    pub is_self: bool,
    /// What the member may do.
    pub role: MemberRole,
    /// Whether the node is there.
    pub status: NodeStatus,
    /// Since when it is gone, in seconds since 1970, as the node that answers has seen it; absent while it is
    /// there, and where it was gone before that node was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone_since_unix_s: Option<u64>,
    /// Program version; empty when not known yet.
    pub version: String,
    /// Operating system and architecture; empty when not known yet.
    pub platform: String,
    /// Devices of the node.
    pub devices: Vec<DeviceView>,
    /// Addresses at which the node is reached, `ip:port`.
    pub addresses: Vec<String>,
    /// Whether it runs on mains power.
    pub mains_power: Option<bool>,
    /// Resident memory of its process.
    #[serde(default)]
    pub process_bytes: Option<u64>,
    /// Graphics cards that came, went or got another driver since it was started, the last few, oldest first.
    #[serde(default)]
    pub card_events: Vec<CardEventView>,
    /// It is to have no stages (`exo drain`), or is about to end.
    #[serde(default)]
    pub is_drained: bool,
    /// Its disk has not answered a write for ten seconds: it computes what it has, and nothing more is placed
    /// on it until it writes again.
    #[serde(default)]
    pub is_disk_hung: bool,
    /// It is an admin whose key signed two changes of the members of which neither follows the other: the key
    /// is in two places, or it lies.
    #[serde(default)]
    pub has_forked: bool,
}

/// A graphics card came, went or got another driver.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct CardEventView {
    /// When, in seconds since 1970 by the node's clock.
    pub at_unix_s: u64,
    /// What, and what to do about it.
    pub text: String,
}

/// Sensor readings; `null` where nothing tells.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize, Deserialize, ToSchema)]
pub struct SensorsView {
    /// Temperature in degrees Celsius.
    pub temperature_c: Option<f32>,
    /// Power drawn, in watts.
    pub power_w: Option<f32>,
    /// Clock of the compute units, in MHz.
    pub clock_mhz: Option<f32>,
    /// Part of the time it was busy, 0 to 1.
    pub utilisation: Option<f32>,
}

impl From<Monitor> for SensorsView {
    fn from(monitor: Monitor) -> Self {
        let Monitor { temperature_c, power_w, clock_mhz, utilisation, .. } = monitor;
        Self { temperature_c, power_w, clock_mhz, utilisation }
    }
}

/// One device of a node; see [`DeviceFacts`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeviceView {
    /// The device's name within the node: `cpu`.
    pub id: String,
    /// Kind of the device.
    #[schema(value_type = String, example = "cpu")]
    pub kind: DeviceKind,
    /// Marketing name of the device.
    pub name: String,
    /// Backend and instruction set: `cpu/avx2`.
    pub backend: String,
    /// Its driver, with the version; `null` where nothing tells, and of a processor.
    #[serde(default)]
    pub driver: Option<String>,
    /// Memory it may hold models in.
    pub memory_total_bytes: u64,
    /// Bytes of that memory that are free.
    pub memory_free_bytes: u64,
    /// What it has that memory from, where other devices may have theirs from the same.
    #[serde(default)]
    pub memory_domain: Option<MemoryDomainView>,
    /// Cores or compute units; `null` where nothing tells.
    pub compute_units: Option<u32>,
    /// Measured: bytes of Q8_0 weights that a token reads per second.
    pub read_bytes_per_s: Option<f64>,
    /// Measured: arithmetic with them for a prompt.
    pub flops_per_s: Option<f64>,
    /// The same two with other types of weights than Q8_0, as far as they were measured.
    #[serde(default)]
    pub rates_by_type: Vec<TypeRatesView>,
    /// Measured: what a layer takes beside its products with weights; `null` where it was not.
    #[serde(default)]
    #[schema(value_type = Option<LayerRatesView>)]
    pub layer_rates: Option<LayerRates>,
    /// How often and how long ago all but the rates by type were measured; `null` where they were not, or
    /// whoever embeds the node has said them.
    #[serde(default)]
    pub rates_measured: Option<ProvenanceView>,
    /// What its own steps have taught since of all of them.
    #[serde(default)]
    #[schema(value_type = CorrectionsView)]
    pub corrections: Corrections,
    /// Types of weights that it cannot run: no layer of a model with any of them goes there.
    #[serde(default)]
    #[schema(value_type = Vec<String>, example = json!(["Q2_K"]))]
    pub unsupported_types: Vec<DType>,
    /// How far the device can be used.
    #[schema(value_type = String, example = "full")]
    pub support: SupportClass,
    /// Why not fully, or what would make it better; empty when there is nothing to say.
    pub support_reason: String,
    /// Whether it takes work now: `usable`, `lost`, `verifying` or `quarantined`.
    #[serde(default = "usable")]
    #[schema(value_type = String, example = "usable")]
    pub state: DeviceState,
    /// Why the device takes no stages; empty when it does.
    #[serde(default)]
    pub state_reason: String,
    /// What the device's sensors show.
    #[serde(default)]
    pub sensors: SensorsView,
}

/// Memory that several devices share; see [`MemoryDomain`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct MemoryDomainView {
    /// Id of the memory, the same for all devices of the cluster that share it.
    pub id: String,
    /// Free bytes of it, whatever a device of it is limited to.
    pub free_bytes: u64,
}

impl From<MemoryDomain> for MemoryDomainView {
    fn from(domain: MemoryDomain) -> Self {
        Self { id: format!("{:016x}", domain.id), free_bytes: domain.free_bytes }
    }
}

/// Measured rates of a device for one type of weights; see [`TypeRates`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct TypeRatesView {
    /// How the weights are stored: `Q4_K`.
    #[schema(value_type = String, example = "Q4_K")]
    pub dtype: DType,
    /// Bytes of them, as files store them, that a token reads per second.
    pub read_bytes_per_s: f64,
    /// Operations per second for a prompt.
    pub flops_per_s: f64,
    /// Bytes of them per second that a step of 16 tokens of as many streams reads and computes with; `null`
    /// where it was not measured.
    #[serde(default)]
    pub read_16_rows_bytes_per_s: Option<f64>,
    /// How often and how long ago that was measured.
    pub measured: ProvenanceView,
}

/// See [`Provenance`]. A plan counts what is older than a day with a wider range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProvenanceView {
    /// Number of measurements.
    pub samples: u32,
    /// Seconds since the last one: rounded down to a minute, beyond an hour to ten, beyond a day to an hour.
    pub age_s: u32,
}

impl From<Provenance> for ProvenanceView {
    /// A node would differ each second otherwise, and whoever follows the cluster would be told.
    fn from(Provenance { count, age_s }: Provenance) -> Self {
        let (step_s, least_s) = match age_s {
            0..=3600 => (60, 0),
            3601..=Provenance::FRESH_S => (600, 0),
            // What is stale stays so.
            _ => (3600, Provenance::FRESH_S + 1),
        };
        Self { samples: count, age_s: (age_s / step_s * step_s).max(least_s) }
    }
}

impl From<ProvenanceView> for Provenance {
    fn from(ProvenanceView { samples, age_s }: ProvenanceView) -> Self {
        Self { count: samples, age_s }
    }
}

impl From<TypeRates> for TypeRatesView {
    fn from(rates: TypeRates) -> Self {
        let TypeRates { dtype, read_bytes_per_s, flops_per_s, read_16_rows_bytes_per_s, measured } = rates;
        Self { dtype, read_bytes_per_s, flops_per_s, read_16_rows_bytes_per_s, measured: measured.into() }
    }
}

impl From<&TypeRatesView> for TypeRates {
    fn from(rates: &TypeRatesView) -> Self {
        let &TypeRatesView { dtype, read_bytes_per_s, flops_per_s, read_16_rows_bytes_per_s, measured } =
            rates;
        Self { dtype, read_bytes_per_s, flops_per_s, read_16_rows_bytes_per_s, measured: measured.into() }
    }
}

fn usable() -> DeviceState {
    DeviceState::Usable
}

impl From<&DeviceFacts> for DeviceView {
    fn from(facts: &DeviceFacts) -> Self {
        Self {
            id: facts.id.0.clone(),
            kind: facts.kind,
            name: facts.name.clone(),
            backend: facts.backend.clone(),
            driver: None,
            memory_total_bytes: facts.memory_total_bytes,
            memory_free_bytes: facts.memory_free_bytes,
            memory_domain: facts.memory_domain.map(Into::into),
            compute_units: (facts.compute_units > 0).then_some(facts.compute_units),
            read_bytes_per_s: facts.read_bytes_per_s,
            flops_per_s: facts.flops_per_s,
            rates_by_type: facts.rates_by_type.iter().map(|&rates| rates.into()).collect(),
            layer_rates: facts.layer_rates,
            rates_measured: facts.rates_measured.map(Into::into),
            corrections: facts.corrections,
            unsupported_types: facts.unsupported_types.clone(),
            support: facts.support,
            support_reason: facts.support_reason.clone(),
            state: DeviceState::Usable,
            state_reason: String::new(),
            sensors: SensorsView::default(),
        }
    }
}

/// A measured path between two nodes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct LinkView {
    /// The node that measured.
    pub from: String,
    /// Id of the node at the other end.
    pub to: String,
    /// Round trip, median of the last measurements.
    pub rtt_ms: Option<f64>,
    /// Number of round trips that this is the median of.
    #[serde(default)]
    pub rtt_samples: u32,
    /// Seconds since the last of them was measured.
    #[serde(default)]
    pub rtt_age_s: Option<f64>,
    /// Mean difference between one round trip and the next.
    #[serde(default)]
    pub jitter_ms: Option<f64>,
    /// How fast bytes go from `from` to `to`, as `to` has received them: the last good measurement.
    pub bytes_per_s: Option<f64>,
    /// Number of measurements of bandwidth so far.
    #[serde(default)]
    pub bandwidth_samples: u32,
    /// Seconds since the last measurement of bandwidth.
    #[serde(default)]
    pub bandwidth_age_s: Option<f64>,
    /// What part of the packets from `from` to `to` was lost of late; `null` where none went over QUIC, since
    /// of TCP it is not known.
    #[serde(default)]
    pub loss: Option<LossView>,
    /// Transport of the link: `tcp`, `quic`.
    pub transport: String,
}

/// Packets that were lost on the way.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct LossView {
    /// Part of the packets sent, from 0 to 1.
    pub share: f64,
    /// Number of packets sent that this is a part of.
    pub packets: u64,
    /// Seconds until now in which they were sent, about 60 at most.
    pub window_s: u32,
}

/// A model that is placed.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct InstanceView {
    /// Instance id, like `i1a`.
    pub id: String,
    /// Id of the model.
    pub model_id: String,
    /// Name of the model.
    pub model: String,
    /// State of the instance.
    pub state: InstanceState,
    /// Where stages of it are to be elsewhere, because their node is drained or about to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving: Option<MovingView>,
    /// What a better plan gains, found when machines had come or gone: `replan` carries it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// Since when it is in that state, in seconds since 1970, as the node that answers has seen it.
    #[serde(default)]
    pub state_since_unix_s: u64,
    /// It serves, and no machine that is there has the model's file any more, as it was when it was placed:
    /// what is unloaded, or lost, could not be loaded again.
    #[serde(default)]
    pub is_file_gone: bool,
    /// A request had it placed: it is unloaded when none has used it for long, or for another model.
    #[serde(default)]
    pub is_on_demand: bool,
    /// Which placement of it this is: another each time it is placed anew.
    pub placement: String,
    /// Longest sequence, prompt and answer.
    pub context_tokens: u32,
    /// Sequences that may run at once.
    pub slots: u32,
    /// Tokens whose keys and values it has room for, over all sequences.
    #[serde(default)]
    pub cache_tokens: u32,
    /// How keys and values are stored.
    #[schema(value_type = KvType)]
    pub kv: KvDType,
    /// What the instance was placed for.
    #[serde(default)]
    pub objective: PlanObjective,
    /// Streams that `throughput` was computed for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<u32>,
    /// Devices that must take part, as `NODE/DEVICE`, and after `=` their layers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pins: Vec<String>,
    /// Nodes, or `NODE/DEVICE`, that must not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Stages of the instance, first stage first.
    pub stages: Vec<StageView>,
    /// Requests at it, and how it keeps up with them, as the node of its first stage last said; `null` before
    /// that.
    #[serde(default)]
    pub load: Option<LoadView>,
    /// What the model of cost expects of one stream on these stages, as its devices and links are measured
    /// now.
    #[serde(default)]
    pub predicted_tokens_per_s: Option<f64>,
    /// The same with its range and the time to the first token; `null` while a device of it is not reported.
    #[serde(default)]
    pub predicted: Option<PredictionView>,
    /// Why each device got its part, in the answer to the request that placed it; empty elsewhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// Tokens per second that the last steps reached, over all streams.
    #[serde(default)]
    pub measured_tokens_per_s: Option<f64>,
    /// What the last answer that ran alone took, beside what is expected of it; `null` before the first.
    #[serde(default)]
    pub measured_alone: Option<MeasuredAnswerView>,
}

/// What an answer took, beside what the model of cost expects of the same prompt and answer as devices and
/// links are measured now. Counted where the first stage is, so without the way to another node's client.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct MeasuredAnswerView {
    /// Tokens of its prompt, none of which was kept from earlier requests.
    pub prompt_tokens: u32,
    /// Time from its first step to its first token.
    pub first_token: MeasuredTimeView,
    /// Tokens behind the first that came one a step, without guesses.
    pub answer_tokens: u32,
    /// The time of one of these; `null` where they are too few to tell.
    pub token: Option<MeasuredTimeView>,
}

/// A time as it came and as it was expected, in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct MeasuredTimeView {
    /// Milliseconds as measured.
    pub measured_ms: f64,
    /// Milliseconds as predicted.
    pub predicted_ms: f64,
    /// The part that explains most of the difference; `null` where that is a tenth or less.
    pub off: Option<TermOffView>,
}

/// A part of a time that came otherwise than expected.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct TermOffView {
    /// The stage that computes it, first stage 0; `null` for what is left behind all stages: links, and
    /// waiting. Chunks of a prompt that overlap over stages take away from that.
    pub stage: Option<u32>,
    /// Milliseconds that the part took.
    pub measured_ms: f64,
    /// Milliseconds that were predicted for it.
    pub predicted_ms: f64,
}

/// State of an instance.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum InstanceState {
    /// The plan is being made or agreed.
    #[default]
    Placing,
    /// Stages read or fetch their tensors.
    Loading {
        /// Share of all bytes that are in place, 0 to 1.
        progress: f64,
    },
    /// The instance serves requests.
    Ready,
    /// A stage is lost; it is being placed again.
    Degraded {
        /// What is wrong with the instance.
        reason: String,
    },
    /// A stage is lost, and nothing that is there can take its layers. It goes on when something can.
    Waiting {
        /// What the instance lacks.
        reason: String,
    },
    /// The instance was given up.
    Failed {
        /// What went wrong.
        reason: String,
    },
}

/// Stages that serve are to be elsewhere.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum MovingView {
    /// The stages serve until their layers are loaded there.
    Loading {
        /// Why the stages move.
        reason: String,
        /// Share of all bytes that are in place there, 0 to 1.
        progress: f64,
    },
    /// The stages stay: nothing else takes them.
    Stays {
        /// Why nothing else takes them.
        reason: String,
    },
}

/// One stage of an instance.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct StageView {
    /// Id of the stage's node.
    pub node: String,
    /// Name of the stage's node.
    pub node_name: String,
    /// The stage's device on that node.
    pub device: String,
    /// Layers that the stage holds.
    #[schema(value_type = LayersView)]
    pub layers: LayerRange,
    /// Whether it holds the embedding.
    pub embedding: bool,
    /// Whether it holds the output head.
    pub head: bool,
    /// Bytes of tensors that the stage is to hold.
    pub weight_bytes: u64,
    /// Bytes of these tensors that are in place.
    pub weight_bytes_held: u64,
    /// Of those, bytes that are read from the model's file for now: the stage answers, slower than it will
    /// when they are packed in memory. 0 once it has settled.
    #[serde(default)]
    pub weight_bytes_waiting: u64,
    /// Bytes of its key-value cache.
    pub kv_bytes: u64,
    /// Bytes of hidden rows that it keeps: with them the stage behind it is rebuilt when that is lost, and
    /// none in front computes again.
    #[serde(default)]
    pub rows_bytes: u64,
    /// The most that these rows may take, in the memory that the node leaves free.
    #[serde(default)]
    pub rows_bytes_max: u64,
    /// Share of a token's time spent here, 0 to 1, measured.
    #[serde(default)]
    pub time_share: Option<f64>,
    /// What the model of cost expects of it by the measured rates of its device, whatever its steps have
    /// taught since.
    #[serde(default)]
    pub predicted: Option<StagePredictionView>,
    /// What it took of the tokens of the last answer that ran alone.
    #[serde(default)]
    pub measured: Option<StageMeasuredView>,
    /// Where its tensors come from when they are not on its disk: the name of a member that has the whole
    /// model, else its hub and the members that have parts of it.
    #[serde(default)]
    pub fetched_from: Option<String>,
    /// Progress of the stage, while it fetches or reads its tensors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<StageProgressView>,
}

/// What a stage computed for each token behind the first of an answer, beside what the model of cost expects
/// of the same, as its device is measured and corrected now.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct StageMeasuredView {
    /// Milliseconds for a token as measured: the mean of these tokens.
    pub token_ms: f64,
    /// Milliseconds for a token as predicted.
    pub predicted_token_ms: f64,
    /// Number of tokens that were measured.
    pub tokens: u32,
}

/// How far a stage is that does not compute yet.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct StageProgressView {
    /// What the stage does.
    pub phase: StagePhase,
    /// Bytes in place. What was on the disk before counts.
    pub done_bytes: u64,
    /// Bytes that it needs.
    pub total_bytes: u64,
    /// How fast they come since this node has first seen it at work; absent for the first seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<u64>,
    /// Seconds that the rest takes at that rate; absent while nothing comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
    /// What came from where, most first, while it is fetched; absent where there is one source.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<FetchSourceView>,
}

/// What one source gave of what is fetched.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct FetchSourceView {
    /// Name of the member; absent for the model's hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    /// Bytes that came from it since this fetch began.
    pub bytes: u64,
    /// Bytes per second on average since then.
    pub bytes_per_s: u64,
}

/// What a stage does before it computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StagePhase {
    /// The stage's tensors come from members or a hub.
    Fetching,
    /// The stage's tensors are read from its disk.
    Loading,
}

/// Requests at an instance. A sequence is one choice of a request.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct LoadView {
    /// Sequences that run.
    pub running: u32,
    /// Sequences that wait for a slot.
    pub waiting: u32,
    /// Sequences that may wait; one more is refused with 429.
    pub waiting_max: u32,
    /// Pages of the key-value cache.
    pub pages: u32,
    /// Pages that running sequences use.
    pub pages_used: u32,
    /// Pages kept for prompts to come; free when needed.
    pub pages_cached: u32,
    /// Prompt tokens of all sequences since it was loaded.
    pub prompt_tokens: u64,
    /// Prompt tokens that were found in kept pages.
    pub cached_tokens: u64,
    /// Tokens guessed ahead and checked, of all sequences since it was loaded.
    #[serde(default)]
    pub drafts: u64,
    /// Drafted tokens that were right.
    #[serde(default)]
    pub drafts_accepted: u64,
    /// Prompt tokens read per second, as last measured.
    pub prompt_tokens_per_s: Option<f64>,
    /// Tokens generated per second over all sequences while no prompt is read, as last measured.
    pub tokens_per_s: Option<f64>,
}

/// Whether strangers may join by themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct JoinWindowView {
    /// Whether it is open.
    pub open: bool,
    /// Until when, seconds since 1970.
    pub open_until_unix_s: Option<u64>,
}

/// A stranger that asks to join.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct JoinRequestView {
    /// Id of the node that asks.
    pub node: String,
    /// Name that the node gives itself. Not to be trusted.
    pub name: String,
    /// Address that the request comes from.
    pub address: String,
    /// The four words that both sides show.
    pub check_words: String,
}

/// A node nearby that belongs to another cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct OtherClusterView {
    /// Id of the node that was seen.
    pub node: String,
    /// Name that the node gives itself. Not to be trusted.
    pub name: String,
    /// Address that the node gives.
    pub address: String,
}

/// A member, there or not.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct MemberView {
    /// Id of the member.
    pub node: String,
    /// Name of the member when it joined.
    pub name: String,
    /// What the member may do.
    pub role: MemberRole,
    /// Whether it is the node that answers.
    pub is_self: bool,
    /// The four words shown when it joined, where known.
    #[serde(default)]
    pub check_words: Option<String>,
}

/// The end of the event log.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct JournalView {
    /// Number of entries in the log.
    pub entries: u64,
    /// Hash of the last one, hexadecimal; empty for an empty log.
    pub head: String,
    /// Members, the one that answers among them, that are known to have the same log on their disks.
    #[serde(default)]
    pub holders: u32,
}

/// A model that can be asked for.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ModelView {
    /// The root hash of its manifest.
    pub id: String,
    /// Name that requests use for the model.
    pub name: String,
    /// Architecture of the model: `llama`, `qwen3`.
    pub architecture: String,
    /// Format of the files: `gguf` or `safetensors`.
    pub format: String,
    /// Stored bytes by element type: `{"Q4_K": 1000, "F32": 10}`.
    #[serde(default)]
    pub dtypes: BTreeMap<String, u64>,
    /// Stored bytes of all weights.
    pub weight_bytes: u64,
    /// Number of transformer layers.
    pub layers: u32,
    /// Longest context it was made for.
    pub context_tokens_max: u32,
    /// Longest context, prompt and answer, that a request has now: of its placement, or of the one that a
    /// request would bring about; 0 where that is not known.
    #[serde(default)]
    pub context_tokens: u32,
    /// Another model of this name is the one that the name means: requests for this one say its id.
    #[serde(default)]
    pub needs_id: bool,
    /// When it is unloaded unless a request comes, in seconds since 1970, as far as the node that answers
    /// knows of requests; `null` where it is not loaded, or stays until somebody unloads it.
    #[serde(default)]
    pub unloads_unix_s: Option<u64>,
    /// Where it lies on the node that answers; `null` when only others have it.
    pub path: Option<String>,
    /// Names of the nodes that have it.
    pub nodes: Vec<String>,
    /// Whether it has a chat template.
    pub chat: bool,
    /// Whether it can be given tools; `null` where the node that answers does not have the whole model.
    #[serde(default)]
    pub tools: Option<ModelTools>,
    /// The instances of it there are.
    #[serde(default)]
    pub instances: Vec<String>,
    /// When its file was last changed on the node that answers, in seconds since 1970; 0 where that is not
    /// known.
    #[serde(default)]
    pub added_unix_s: u64,
    /// Elements of all its tensors; 0 where they are not known.
    #[serde(default)]
    pub parameters: u64,
    /// Repository, quantisation and commit, if the node that answers fetched it from a hub.
    #[serde(default)]
    pub source: Option<String>,
    /// The licence that its repository names.
    #[serde(default)]
    pub licence: Option<String>,
    /// Whether the node that answers keeps it on its disk, however full that is.
    #[serde(default)]
    pub kept: bool,
    /// When it was last in use on the node that answers, in seconds since 1970; `null` if never, or where
    /// only others have it.
    #[serde(default)]
    pub used_unix_s: Option<u64>,
}

impl ModelView {
    /// What a request for it says as `model`.
    pub fn request_name(&self) -> &str {
        if self.needs_id { &self.id } else { &self.name }
    }

    /// [`ModelView::context_tokens`], or what it was made for where that is not known.
    pub fn context_tokens_usable(&self) -> u32 {
        if self.context_tokens == 0 { self.context_tokens_max } else { self.context_tokens }
    }
}

/// Whether a model can be given tools: its chat template says so, by the calls that it prints.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ModelTools {
    /// Whether requests may have tools.
    pub usable: bool,
    /// Form of the model's calls: `JSON behind <tool_call>`.
    #[serde(default)]
    pub format: Option<String>,
    /// Why the model cannot be given tools; `null` if it can.
    #[serde(default)]
    pub reason: Option<String>,
}

/// Asks for a model to be placed. What is left out is chosen by the planner.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlaceRequest {
    /// The model's name or id.
    pub model: String,
    /// Longest sequence, prompt and answer.
    #[serde(default)]
    pub context_tokens: Option<u32>,
    /// Sequences that may run at once.
    #[serde(default)]
    pub slots: Option<u32>,
    /// Tokens whose keys and values it may hold, over all sequences and what is kept of earlier ones, in
    /// whole pages. Left out, the node's setting; without one every slot has room for a full context. A
    /// context that is left out is no longer than this.
    #[serde(default)]
    pub cache_tokens: Option<u32>,
    /// How keys and values are stored.
    #[serde(default)]
    #[schema(value_type = Option<KvType>)]
    pub kv: Option<KvDType>,
    /// Split over at least so many devices, of different nodes where they can hold it.
    #[serde(default)]
    pub nodes_min: Option<u32>,
    /// What the placement should be good at: `latency` if left out.
    #[serde(default)]
    pub objective: Option<PlanObjective>,
    /// Sequences that run at once: what `throughput` is computed for, and nothing else.
    #[serde(default)]
    pub streams: Option<u32>,
    /// Devices that must take part, now and whenever it is placed again: `NODE` or `NODE/DEVICE`, and after
    /// `=` how many layers, or which (`0..8`).
    #[serde(default)]
    pub pins: Vec<String>,
    /// Nodes, or `NODE/DEVICE`, that must not.
    #[serde(default)]
    pub exclude: Vec<String>,
    /// Unload an instance of the model that was placed with other numbers, instead of refusing.
    #[serde(default)]
    pub replace: bool,
}

/// State of the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HealthStatus {
    /// The node takes requests.
    Ok,
    /// The node takes no requests any more.
    Stopping,
}

/// Answer of `/health`. Open to anyone who reaches the port, so it names nothing private.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct HealthView {
    /// State of the node.
    pub status: HealthStatus,
    /// Version of exo on the node.
    pub version: String,
    /// Seconds since the start.
    pub uptime_s: u64,
}

/// Makes a model on the node that answers known.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddModelRequest {
    /// Absolute path of a GGUF file or of a folder with `config.json` and safetensors.
    pub path: String,
    /// Name for the model; left out, the file or the folder says.
    #[serde(default)]
    pub name: Option<String>,
}

/// For how long the door is to be open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinWindowRequest {
    /// 1 to 60; 10 if left out.
    #[serde(default)]
    pub minutes: Option<u32>,
}

/// What a member is to be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RoleRequest {
    /// What the member may do from now on.
    pub role: MemberRole,
}

/// Whether a node is to have stages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainRequest {
    /// How long the node is to have no stages.
    pub drain: Drain,
}

/// How long a node is to have no stages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Drain {
    /// Until somebody allows it again.
    Lasting,
    /// The node ends soon.
    Leaving,
    /// The node may have stages again.
    Over,
}

/// What code is given out. Without any field: nine digits for one node, for five minutes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InviteRequest {
    /// A token for so many nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses: Option<u32>,
    /// A token for so long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hours: Option<u32>,
}

/// A code that lets a node in.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct InviteView {
    /// Nine digits or a token: whoever knows it gets in.
    pub code: String,
    /// Nodes it lets in.
    pub uses: u32,
    /// When the code becomes void, in seconds since 1970.
    pub expires_at_unix_s: u64,
    /// The node that gave it out.
    pub node: String,
    /// Where that is reached from networks that it is on.
    pub addresses: Vec<String>,
}

/// Joins where a code was given out.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// The code that `exo invite` shows.
    pub code: String,
    /// The node that gave it out, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Where that is, `host:port` with an IP address; none to ask all nodes nearby.
    #[serde(default)]
    pub addresses: Vec<String>,
}

/// The cluster that this node is a member of now.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct JoinedView {
    /// Name of the node that let this one in.
    pub name: String,
    /// The words that both show.
    pub check_words: String,
}

/// Lets a node in that asks to join.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AdmitRequest {
    /// Node id, from the join requests of the cluster view.
    pub node: String,
}

/// What a plan should be good at.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PlanObjective {
    /// The least time for one request.
    #[default]
    Latency,
    /// The most tokens per second over all streams.
    Throughput,
}

/// A number with the range it is expected in.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize, Deserialize, ToSchema)]
pub struct RangeView {
    /// The least that is expected.
    pub low: f64,
    /// The value that is expected.
    pub expected: f64,
    /// The most that is expected.
    pub high: f64,
}

/// How fast a placement is expected to be.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize, Deserialize, ToSchema)]
pub struct PredictionView {
    /// Tokens of the prompt: 512, or what goes into the context with an answer.
    #[serde(default)]
    pub prompt_tokens: u32,
    /// Milliseconds to the first token of that prompt.
    pub ttft_ms: RangeView,
    /// Tokens per second of one stream, in the middle of the answer.
    pub tokens_per_s: RangeView,
    /// Milliseconds of a token's time that pass between stages.
    pub hop_ms: RangeView,
    /// Number of streams that `total_tokens_per_s` counts.
    pub streams: u32,
    /// Tokens per second over all of them.
    pub total_tokens_per_s: RangeView,
    /// Bytes that nodes without the file fetch before the first answer.
    pub fetch_bytes: u64,
    /// Milliseconds that fetching takes at least.
    pub fetch_ms: f64,
    /// Whether a link that it goes over is not measured yet: then that time is a guess.
    #[serde(default)]
    pub is_fetch_estimated: bool,
    /// Tokens per second of one stream as they were predicted before the steps of its devices corrected that;
    /// `null` where they have not.
    #[serde(default)]
    pub uncorrected_tokens_per_s: Option<f64>,
}

/// What one stage is expected to compute.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize, Deserialize, ToSchema)]
pub struct StagePredictionView {
    /// Milliseconds for a token of one stream.
    pub token_ms: f64,
    /// Milliseconds for the prompt of the instance's prediction.
    pub prompt_ms: f64,
}
