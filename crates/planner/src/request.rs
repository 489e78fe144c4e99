//! What the planner is asked and what it answers.

use std::time::Duration;

use exo_types::{DeviceFacts, DeviceId, ModelId, ModelShape, NodeId, Stage};

/// One question to the planner. Everything it may know is in here, so that it can be answered on another thread.
#[derive(Clone, PartialEq, Debug)]
pub struct PlanRequest {
    /// The model in numbers.
    pub shape: ModelShape,
    /// The model, by manifest.
    pub model: ModelId,
    /// Longest sequence (prompt and answer) in tokens.
    pub context_tokens: u32,
    /// Sequences that may run at once.
    pub slots: u32,
    /// Tokens of keys and values every stage must hold, over all sequences.
    pub cache_tokens: u32,
    /// Every device of the cluster, those that cannot be used included: each gets a reason.
    pub devices: Vec<PlanDevice>,
    /// Measured paths between nodes.
    pub links: Vec<LinkFacts>,
    /// What the user wants.
    pub objective: Objective,
    /// The node that holds the file or took the request: preferred as the first stage.
    pub pinned_first: Option<NodeId>,
}

impl PlanRequest {
    /// The measured path between two nodes, in this direction or else the other.
    pub fn link(&self, from: NodeId, to: NodeId) -> Option<&LinkFacts> {
        let between = |a, b| self.links.iter().find(move |l| l.from == a && l.to == b);
        between(from, to).or_else(|| between(to, from))
    }
}

/// One device as the planner sees it.
#[derive(Clone, PartialEq, Debug)]
pub struct PlanDevice {
    /// Its node.
    pub node: NodeId,
    /// The node's name for people.
    pub node_name: String,
    /// What the node reported. `memory_free_bytes` is what the planner may fill.
    pub device: DeviceFacts,
    /// Why it must not be used (leaving, suspended, no support for an op of this model).
    pub excluded: Option<String>,
}

/// A measured path from one node to another.
#[derive(Clone, PartialEq, Debug)]
pub struct LinkFacts {
    /// Sending node.
    pub from: NodeId,
    /// Receiving node.
    pub to: NodeId,
    /// Round trip of a small message.
    pub rtt: Option<Duration>,
    /// Rate of a large one.
    pub bytes_per_s: Option<f64>,
}

/// What a plan should be good at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Objective {
    /// As few devices as hold the model: each hop costs time, so solo when it fits.
    Fit,
    /// At least this many stages, each on another device; more only when the model needs them.
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
    /// How fast it will be, as far as anyone measured.
    pub predicted: Prediction,
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
    /// For people, one line.
    pub text: String,
}

/// How fast a plan will be. `None` wherever a device or link it rests on was never measured.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Prediction {
    /// Tokens per second of one sequence at the start of its context.
    pub decode_tokens_per_s: Option<f64>,
    /// Prompt tokens per second of one sequence.
    pub prefill_tokens_per_s: Option<f64>,
    /// Of a token's time, the part spent between nodes.
    pub hop_ms_per_token: Option<f64>,
}
