//! What the planner is asked and what it answers.

use std::time::Duration;

use exo_types::{
    DeviceFacts, DeviceId, DiskRoom, KvDType, ModelId, ModelShape, NodeId, Pin, Stage, WeightTypes, size,
};

use crate::disk_bound::DiskBound;
use crate::inputs::{DeviceRates, Figure};

/// Work of one search unless the request says otherwise: about 2 s of one core. A unit is one layer
/// considered as the end of one stage. A search among many devices has a quarter of it, see
/// `search::work_max`; what devices share may take as much again.
pub const WORK_MAX: u64 = 400_000_000;

/// One question to the planner. Everything it may know is in here, so that it can be answered on another
/// thread.
#[derive(Clone, PartialEq, Debug)]
pub struct PlanRequest {
    /// The model in numbers.
    pub shape: ModelShape,
    /// How many bytes of each layer and of the head are of which type, and the type of the embedding
    /// ([`WeightTypes::with_embedding`]). `None`: all at the device's general rate.
    pub weight_types: Option<WeightTypes>,
    /// The model, by manifest.
    pub model: ModelId,
    /// Longest sequence (prompt and answer) in tokens.
    pub context_tokens: u32,
    /// Sequences that may run at once.
    pub slots: u32,
    /// Tokens of keys and values every stage must hold, over all sequences.
    pub cache_tokens: u32,
    /// How they are stored; `shape` counts their bytes accordingly.
    pub kv: KvDType,
    /// Every device of the cluster, those that cannot be used included: each gets a reason.
    pub devices: Vec<PlanDevice>,
    /// Measured paths between nodes.
    pub links: Vec<LinkFacts>,
    /// What a hop between nodes takes beside the wire, where answers have shown it.
    pub hop_s: Option<Figure>,
    /// What the plan should be good at.
    pub objective: Objective,
    /// What the cost is computed for.
    pub workload: Workload,
    /// Devices that must take part.
    pub pins: Vec<Pin>,
    /// Nodes that hold the model's file.
    pub holders: Vec<NodeId>,
    /// Nodes that hold a part of it, and how many bytes: of which layers is not known.
    pub parts: Vec<(NodeId, u64)>,
    /// The room that the disks of nodes have for the file, what is there already included. A node that is not
    /// in here has room for all of it.
    pub disks: Vec<(NodeId, DiskRoom)>,
    /// Answers that the time of fetching is counted in. `None`: what is fetched keeps nobody waiting, and
    /// decides between plans of equal cost only.
    pub fetch_answers: Option<u32>,
    /// Work that the search may do, in units that are the same everywhere; see [`WORK_MAX`].
    pub work_max: u64,
    /// Whether the plan says of each device what it would cost the other way round: a search each. Then it
    /// has [`Plan::alternatives`], too.
    pub explain: bool,
}

impl PlanRequest {
    /// A request for one stream of a model on these devices, with everything else at its default.
    pub fn new(shape: ModelShape, context_tokens: u32, devices: Vec<PlanDevice>) -> Self {
        Self {
            shape,
            weight_types: None,
            model: ModelId([0; 32]),
            context_tokens,
            slots: 1,
            cache_tokens: context_tokens,
            kv: KvDType::default(),
            devices,
            links: Vec::new(),
            hop_s: None,
            objective: Objective::Latency,
            workload: Workload::default(),
            pins: Vec::new(),
            holders: Vec::new(),
            parts: Vec::new(),
            disks: Vec::new(),
            fetch_answers: None,
            work_max: WORK_MAX,
            explain: true,
        }
    }
}

/// The requests that a plan is made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Workload {
    /// Tokens of a prompt; never more than the context.
    pub prompt_tokens: u32,
    /// Tokens of an answer.
    pub answer_tokens: u32,
    /// Sequences that run at once, for [`Objective::Throughput`] and its prediction.
    pub streams: u32,
}

impl Default for Workload {
    fn default() -> Self {
        Self { prompt_tokens: 512, answer_tokens: 128, streams: 1 }
    }
}

/// One device as the planner sees it.
#[derive(Clone, PartialEq, Debug)]
pub struct PlanDevice {
    /// Its node.
    pub node: NodeId,
    /// The node's display name.
    pub node_name: String,
    /// What the node reported. `memory_free_bytes` is what the planner may fill.
    pub device: DeviceFacts,
    /// Its rates, with their sources.
    pub rates: DeviceRates,
    /// Part of its full speed that its temperature allows, in per cent.
    pub thermal_percent: u32,
    /// Why it must not be used, whatever the model (leaving, as asked).
    pub excluded: Option<String>,
    /// The room on its node's disk, where that bounds its layers.
    pub disk: Option<DiskBound>,
}

impl PlanDevice {
    /// A device as its node reports it.
    pub fn reported(node: NodeId, node_name: String, device: DeviceFacts, excluded: Option<String>) -> Self {
        let rates = DeviceRates::reported(&device);
        Self { node, node_name, device, rates, thermal_percent: 100, excluded, disk: None }
    }
}

/// A measured path from one node to another.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LinkFacts {
    /// Sending node.
    pub from: NodeId,
    /// Receiving node.
    pub to: NodeId,
    /// Round trip of a small message, in seconds.
    pub rtt_s: Option<Figure>,
    /// Rate of a large one.
    pub bytes_per_s: Option<Figure>,
}

/// What a plan should be good at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Objective {
    /// The least time for one request: its prompt and its answer, on one stream.
    Latency,
    /// The most tokens per second over all streams of the workload.
    Throughput,
    /// As [`Self::Latency`], on at least this many stages, each on another device.
    Spread {
        /// Least number of stages.
        stages_min: u32,
    },
}

/// The answer: who holds what, and why.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// First stage first; together they tile the model.
    pub stages: Vec<Stage>,
    /// What each shard will hold, in order of stage and rank.
    pub memory: Vec<ShardMemory>,
    /// One for every device of the request, in its order: why it got these layers, or none.
    pub reasons: Vec<DeviceReason>,
    /// The five scores of every device, in the order of the request.
    pub scores: Vec<DeviceScore>,
    /// How fast it will be.
    pub predicted: Prediction,
    /// How good it is by its objective, and how good any plan could be.
    pub proof: Proof,
    /// Other plans, the best first, and behind them those that are impossible: the model alone on each
    /// device, without each device of the plan, and with each other one. The last two kinds are looked for
    /// among few devices only, and none is unless the request asks for explanations.
    pub alternatives: Vec<Alternative>,
    /// A plan that is faster once it serves, and was not taken for what it fetches first.
    pub faster: Option<FasterPlan>,
}

impl Plan {
    /// Whether another plan is better, to be displayed.
    pub fn verdict(&self) -> String {
        let Some(FasterPlan { objective_ns, fetch_bytes, fetch_ns, is_fetch_estimated }) = self.faster else {
            return self.proof.to_string();
        };
        let wait = match (fetch_ns.div_ceil(1_000_000_000), is_fetch_estimated) {
            (seconds, false) => format!("{seconds} s or more"),
            (seconds, true) => format!("{seconds} s by a guess (a link is not measured yet)"),
        };
        let less_ns = u128::from(self.proof.objective_ns.saturating_sub(objective_ns));
        format!(
            "a plan that takes {} % less time fetches {} first, {}: `exo replan` loads it while this one serves",
            less_ns * 100 / u128::from(self.proof.objective_ns.max(1)),
            size(fetch_bytes),
            wait
        )
    }
}

/// What speaks for a plan that was not taken, and what against it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FasterPlan {
    /// Its cost by the objective.
    pub objective_ns: u64,
    /// Bytes of the file that nodes without it would fetch first, at least.
    pub fetch_bytes: u64,
    /// How long that would take at least.
    pub fetch_ns: u64,
    /// A link that it goes over is not measured yet: then that time is a guess.
    pub is_fetch_estimated: bool,
}

/// Scores of one device, each in per mille.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceScore {
    /// The node.
    pub node: NodeId,
    /// Its device.
    pub device: DeviceId,
    /// Speed of decode with the model's types of weights, by the fastest device of the request.
    pub compute: u32,
    /// Part of the model that it can hold.
    pub memory: u32,
    /// Round trips to the other nodes.
    pub network: u32,
    /// Part of its full speed that its temperature allows.
    pub thermal: u32,
    /// Rates of the links to the other nodes.
    pub bandwidth: u32,
    /// All, weighted.
    pub total: u32,
}

/// How far a plan is from the best one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proof {
    /// Cost of the plan: nanoseconds of one request, or of a token for every stream.
    pub objective_ns: u64,
    /// No plan costs less.
    pub lower_bound_ns: u64,
    /// Work that the search has done.
    pub work: u64,
}

impl Proof {
    /// Whether nothing can be better.
    pub fn is_optimal(&self) -> bool {
        self.lower_bound_ns >= self.objective_ns
    }

    /// How much better a plan may exist at most, in per mille of this one, rounded up.
    pub fn gap_per_mille(&self) -> u64 {
        let gap = u128::from(self.objective_ns.saturating_sub(self.lower_bound_ns)) * 1000;
        gap.div_ceil(u128::from(self.objective_ns.max(1))) as u64
    }
}

impl std::fmt::Display for Proof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.gap_per_mille() {
            0 => write!(f, "no plan is faster, by these numbers"),
            gap => {
                let (percent, tenths) = (gap / 10, gap % 10);
                write!(f, "a plan may be faster by {percent}.{tenths} % at most, by these numbers")
            }
        }
    }
}

/// Memory of one shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardMemory {
    /// Weights, as the device holds them.
    pub weight_bytes: u64,
    /// Keys and values of as many tokens as the cache shall hold.
    pub kv_bytes: u64,
    /// Buffers of a step, and slack.
    pub workspace_bytes: u64,
}

impl ShardMemory {
    /// All of it.
    pub fn total_bytes(&self) -> u64 {
        self.weight_bytes.saturating_add(self.kv_bytes).saturating_add(self.workspace_bytes)
    }
}

/// Why a device has its part in the plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceReason {
    /// The node.
    pub node: NodeId,
    /// Its device.
    pub device: DeviceId,
    /// To be displayed, one line.
    pub text: String,
    /// What the plan would cost if it were the other way: without this device, or with it. Among more than 16
    /// usable devices it is what the plan's devices reach with it. `None` where there is no such plan, or it
    /// was not looked for.
    pub otherwise_ns: Option<u64>,
}

/// A number with the range that it is expected in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Range {
    /// If everything is as fast as its source allows.
    pub low: u64,
    /// The value that is expected.
    pub expected: u64,
    /// If everything is as slow as its source allows.
    pub high: u64,
}

/// How fast a plan will be. Nanoseconds, so that every machine computes the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Prediction {
    /// Tokens of the prompt that is counted: the workload's, as far as they and the answer go into the
    /// context.
    pub prompt_tokens: u32,
    /// Time to the first token of that prompt.
    pub ttft_ns: Range,
    /// Time of a token of one stream, in the middle of the workload's answer.
    pub token_ns: Range,
    /// Of it, the part spent between stages.
    pub hop_ns: Range,
    /// Time in which every stream of the workload gets a token.
    pub round_ns: Range,
    /// Streams of the workload.
    pub streams: u32,
    /// Bytes of the file that nodes without it fetch first, at least: a part that a node has is taken for one
    /// that it needs.
    pub fetch_bytes: u64,
    /// How long that takes at least: it counts until the first answer, not afterwards.
    pub fetch_ns: u64,
    /// A link that it goes over is not measured yet.
    pub is_fetch_estimated: bool,
}

impl Prediction {
    /// Tokens per second of one stream.
    pub fn tokens_per_s(&self) -> f64 {
        rate(1, self.token_ns.expected)
    }

    /// Tokens per second over all streams.
    pub fn total_tokens_per_s(&self) -> f64 {
        rate(self.streams, self.round_ns.expected)
    }
}

/// So many tokens in so many nanoseconds, per second.
pub fn rate(tokens: u32, ns: u64) -> f64 {
    f64::from(tokens) * 1e9 / ns.max(1) as f64
}

/// The round trip as a number for [`LinkFacts`].
pub fn rtt(measured: Duration) -> Figure {
    Figure::measured(measured.as_secs_f64())
}

/// What another plan does otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AlternativeKind {
    /// It has the whole model on the device.
    Alone,
    /// It leaves out the device, which the plan uses.
    Without,
    /// It uses the device, which the plan leaves out.
    With,
}

/// Another plan, or why there is none.
#[derive(Clone, PartialEq, Debug)]
pub struct Alternative {
    /// What it does otherwise.
    pub kind: AlternativeKind,
    /// The node of the device that it is about.
    pub node: NodeId,
    /// That device.
    pub device: DeviceId,
    /// The best plan of this kind.
    pub outcome: Result<AlternativePlan, NoAlternative>,
}

/// A plan that was not made.
#[derive(Clone, PartialEq, Debug)]
pub struct AlternativePlan {
    /// First stage first.
    pub stages: Vec<Stage>,
    /// What each of them would hold.
    pub memory: Vec<ShardMemory>,
    /// How fast it would be.
    pub predicted: Prediction,
    /// What it would cost by the objective.
    pub objective_ns: u64,
    /// Whether no plan of this kind is better; else the search for it was cut short.
    pub is_proven: bool,
    /// Whether it has the pins and the number of stages that were asked for.
    pub is_as_asked: bool,
}

/// Why there is no such plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoAlternative {
    /// To be displayed, a part of a sentence.
    pub why: String,
    /// Bytes of memory that are missing at least, where that is why.
    pub missing_bytes: Option<u64>,
}
