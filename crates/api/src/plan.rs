//! A plan that nobody carries out: what is asked, and what `exo plan` shows.

use exo_types::{DType, KvDType, LayerRange};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::schemas::{KvType, LayersView};
pub use crate::view::{PlanObjective, PredictionView, RangeView, StagePredictionView};

/// Asks how a model would be placed, without loading anything.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanQuery {
    /// The model's name or id.
    pub model: String,
    /// Longest sequence, prompt and answer.
    #[serde(default)]
    pub context_tokens: Option<u32>,
    /// Sequences that may run at once.
    #[serde(default)]
    pub slots: Option<u32>,
    /// Tokens whose keys and values it may hold.
    #[serde(default)]
    pub cache_tokens: Option<u32>,
    /// How keys and values are stored.
    #[serde(default)]
    #[schema(value_type = Option<KvType>)]
    pub kv: Option<KvDType>,
    /// What the plan should be good at.
    #[serde(default)]
    pub objective: PlanObjective,
    /// Split over at least so many devices.
    #[serde(default)]
    pub nodes_min: Option<u32>,
    /// Sequences that run at once: what `throughput` is computed for.
    #[serde(default)]
    pub streams: Option<u32>,
    /// Tokens of a prompt, 512 if left out.
    #[serde(default)]
    pub prompt_tokens: Option<u32>,
    /// Tokens of an answer, 128 if left out.
    #[serde(default)]
    pub answer_tokens: Option<u32>,
    /// Devices that must take part: `NODE` or `NODE/DEVICE`, and after `=` how many layers, or which
    /// (`0..8`).
    #[serde(default)]
    pub pins: Vec<String>,
    /// Nodes, or `NODE/DEVICE`, that must not.
    #[serde(default)]
    pub exclude: Vec<String>,
}

/// A plan: what every device would get, and why.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct PlanView {
    /// Name of the model.
    pub model: String,
    /// Tokens of the longest sequence.
    pub context_tokens: u32,
    /// Sequences that may run at once.
    pub slots: u32,
    /// Tokens whose keys and values are held.
    pub cache_tokens: u32,
    /// Stages of the plan, first stage first.
    pub stages: Vec<PlanStageView>,
    /// How fast the placement is expected to be.
    pub predicted: PredictionView,
    /// What the objective counts, in milliseconds: one request, or a token for every stream.
    pub objective_ms: f64,
    /// No plan costs less.
    pub lower_bound_ms: f64,
    /// How much better another plan may be at most, in per cent of this one.
    pub gap_percent: f64,
    /// The verdict in words.
    #[serde(default)]
    pub verdict: String,
    /// A plan that is faster once it serves, and was not taken for what it fetches first; `null` where there
    /// is none. `exo replan` loads it while this one serves.
    #[serde(default)]
    pub faster: Option<FasterPlanView>,
    /// The links between its nodes, in the order of its stages, and the way back to the first.
    #[serde(default)]
    pub links: Vec<PlanLinkView>,
    /// Every device, with its reason.
    pub devices: Vec<PlanDeviceView>,
    /// Other plans, the best first, and behind them those that are impossible: the whole model on each
    /// device (of sixteen at most), without each device of the plan, and with each that it leaves out. The
    /// last two are looked for where at most sixteen devices may be used.
    pub alternatives: Vec<AlternativeView>,
}

/// What speaks for a plan that was not taken, and what against it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct FasterPlanView {
    /// Milliseconds that the objective counts for this plan.
    pub objective_ms: f64,
    /// Bytes of the file that nodes without it would fetch first, at least.
    pub fetch_bytes: u64,
    /// Milliseconds that fetching takes at least.
    pub fetch_ms: f64,
    /// Whether a link that it goes over is not measured yet: then that time is a guess.
    #[serde(default)]
    pub is_fetch_estimated: bool,
}

/// A link that a plan goes over, with the numbers that it counts with.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct PlanLinkView {
    /// The sending node's name.
    pub from: String,
    /// Name of the receiving node.
    pub to: String,
    /// Round trip, in milliseconds.
    pub rtt_ms: FigureView,
    /// Bytes per second over the link.
    pub bytes_per_s: FigureView,
}

/// A number and where it comes from.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct FigureView {
    /// Value that the plan counted with.
    pub value: f64,
    /// `measured`, `measured long ago`, `stated`, `derived` or `estimated`.
    pub source: String,
    /// Measurements that the value stands for; `null` where it is not measured.
    pub samples: Option<u32>,
    /// Seconds since the last of them.
    pub age_s: Option<f64>,
}

/// One stage of a plan.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct PlanStageView {
    /// Id of the stage's node.
    #[serde(default)]
    pub node: String,
    /// Name of the stage's node.
    pub node_name: String,
    /// Name of the stage's device.
    pub device: String,
    /// Layers of the stage.
    #[schema(value_type = LayersView)]
    pub layers: LayerRange,
    /// Weights, as the device holds them.
    pub weight_bytes: u64,
    /// Bytes of keys and values.
    pub kv_bytes: u64,
    /// Bytes of everything else, such as rows and buffers.
    pub workspace_bytes: u64,
}

/// One device of a plan's cluster.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct PlanDeviceView {
    /// Id of the device's node.
    pub node: String,
    /// Name of the device's node.
    pub node_name: String,
    /// Name of the device.
    pub device: String,
    /// Why the device holds what it holds.
    pub reason: String,
    /// What the plan would cost with it if it is not used, or without it if it is; `null` where nobody looked
    /// or there is none.
    pub otherwise_ms: Option<f64>,
    /// How fast it is with each type of weights that makes up at least a hundredth of the model: what the
    /// plan counts with, before what steps have taught.
    #[serde(default)]
    pub rates: Vec<PlanRateView>,
    /// The five scores, 0 to 1.
    pub scores: ScoresView,
}

/// A device's rates with one type of weights.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct PlanRateView {
    /// How the weights are stored: `Q4_K`.
    #[schema(value_type = String, example = "Q4_K")]
    pub dtype: DType,
    /// Bytes of them that a token reads per second.
    pub read_bytes_per_s: f64,
    /// Operations per second for a prompt.
    pub flops_per_s: f64,
    /// Where the first of these comes from: `measured`, `measured long ago`, `stated`,
    /// `taken from devices alike`, `taken from Q8_0`, `derived` or `estimated`.
    pub source: String,
    /// Of so many measurements; `null` where it is not measured.
    #[serde(default)]
    pub samples: Option<u32>,
    /// How old the last of them is, in seconds.
    #[serde(default)]
    pub age_s: Option<f64>,
}

/// Scores of a device, 0 to 1.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ScoresView {
    /// Speed, by the fastest of the cluster: 40 of 100.
    pub compute: f64,
    /// Part of the model that it holds: 30.
    pub memory: f64,
    /// Round trips to the others: 15.
    pub network: f64,
    /// Points for what its temperature allows: 10 of 100.
    pub thermal: f64,
    /// Rates of its links: 5.
    pub bandwidth: f64,
    /// Sum of all these points, 100 at most.
    pub total: f64,
}

/// What another plan does otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AlternativeKind {
    /// It has the whole model on the device.
    Alone,
    /// It leaves out the device, which the plan uses.
    Without,
    /// It uses the device, which the plan leaves out.
    With,
}

/// The best plan of one kind that was not made, or why there is none.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct AlternativeView {
    /// What it does otherwise.
    pub kind: AlternativeKind,
    /// Id of the node of the device that it is about.
    pub node: String,
    /// That node's name.
    pub node_name: String,
    /// Name of that device.
    pub device: String,
    /// That plan; `null` where there is none.
    pub plan: Option<AlternativePlanView>,
    /// Why there is none; `null` where there is one.
    pub why: Option<String>,
    /// Bytes of memory that are missing for it at least, where that is why there is none.
    pub missing_bytes: Option<u64>,
}

/// A plan that was not made.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct AlternativePlanView {
    /// Stages of it, first stage first.
    pub stages: Vec<PlanStageView>,
    /// How fast it is expected to be.
    pub predicted: PredictionView,
    /// What the objective counts for it, in milliseconds.
    pub objective_ms: f64,
    /// Whether no plan of its kind is better; else the search for it was cut short.
    pub is_proven: bool,
    /// Whether it has all pins and as many devices as were asked for.
    pub is_as_asked: bool,
}

/// Asks whether an instance should be elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplanRequest {
    /// Only say it: nothing is moved.
    #[serde(default)]
    pub dry_run: bool,
}

/// Whether an instance should be elsewhere: what that gains, and what it costs.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ReplanView {
    /// Id of the instance.
    pub instance: String,
    /// What was decided.
    pub decision: ReplanDecision,
    /// Why it was decided so.
    pub reason: String,
    /// What its objective counts where it is, in milliseconds: one request, or a token for every stream.
    pub now_ms: f64,
    /// The same by the best plan.
    pub then_ms: f64,
    /// Bytes of weights that a move loads.
    pub load_bytes: u64,
    /// Of these, bytes that are fetched from another node.
    pub fetch_bytes: u64,
    /// Milliseconds that fetching takes at least.
    pub fetch_ms: f64,
    /// Answers that run there: a move has all their tokens computed again.
    #[serde(default)]
    pub running: u32,
    /// Where the best plan has its stages, first stage first.
    pub stages: Vec<ReplanStageView>,
}

/// What comes of asking again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplanDecision {
    /// The instance stays where it is.
    #[default]
    Keep,
    /// The instance would be moved, and was not because only the answer was asked for.
    WouldMove,
    /// It serves on where it is until the other place is loaded.
    Move,
}

/// One stage of the best plan.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ReplanStageView {
    /// Name of the stage's node.
    pub node_name: String,
    /// Name of the stage's device.
    pub device: String,
    /// Layers of the stage.
    #[schema(value_type = LayersView)]
    pub layers: LayerRange,
}
