//! What nodes say to coordinate: reports upwards, desired state downwards, requests, the log.

use std::fmt;

use exo_types::{
    Ancestors, DeviceFacts, DeviceId, DeviceState, DiskRoom, Epoch, InstanceId, LogHead, ModelId, Monitor,
    NodeFacts, NodeId, PacketCounts, Placement, PlacementId, ShardPosition, ShardSpec, Stage, list,
};
use serde::{Deserialize, Serialize};

use super::limits::{
    CARD_EVENTS_MAX, DEVICES_MAX, FETCH_SOURCES_MAX, INSTANCES_MAX, LOG_ENTRIES_MAX, MEMBERS_MAX, MODELS_MAX,
    PAIRS_MAX, REASONS_MAX, SHARDS_MAX, STAGES_MAX, STAGES_OF_NODE_MAX,
};
use super::{BackupMessage, ControlRefusal, FetchSource, NodeMeasurements, PipelineFailure};
use crate::{EngineId, InstanceRequest, InstanceView, ReplanReason, StageStatus};

/// A message on the control channel. The sender is whoever the transport authenticated.
#[allow(clippy::large_enum_variant, reason = "one is in memory at a time, and most of them are large")]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum ControlMessage {
    /// A message of the `membership` machine, in its own encoding.
    Membership(Vec<u8>),
    /// Between any two members: entries of the log of trust, in an encoding of the machine's.
    Trust(Vec<u8>),
    /// Member to coordinator: itself, its models, its stages. Sent on change and once a second.
    Report(Box<NodeReport>),
    /// Coordinator to member: the shards it should hold.
    Desired(DesiredState),
    /// Coordinator to every member: all instances and how they do. Sent on change and with each leading.
    Instances {
        epoch: Epoch,
        #[serde(deserialize_with = "list::<_, _, INSTANCES_MAX>")]
        instances: Vec<InstanceView>,
    },
    /// Any member to coordinator: do this. Answered by `Reply` with the same number.
    Request {
        /// Chosen by the asker, unique among its open requests.
        request: u64,
        ask: ControlAsk,
    },
    /// Coordinator to the asker.
    Reply { request: u64, reply: ControlReply },
    /// The log, from the coordinator to members and the members' requests for it.
    Log(LogMessage),
    /// To the sender of a command of an older leading.
    Refused(Refusal),
    /// Between any two members: copies of requests.
    Backup(BackupMessage),
}

/// What a member says of itself.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NodeReport {
    /// Name, devices, memory. `facts.node` must be the sender.
    pub facts: NodeFacts,
    /// Models on its disk.
    #[serde(deserialize_with = "list::<_, _, MODELS_MAX>")]
    pub models: Vec<HeldModel>,
    /// What it may still fetch beside these.
    pub disk_room: DiskRoom,
    /// Its stages.
    #[serde(deserialize_with = "list::<_, _, STAGES_OF_NODE_MAX>")]
    pub stages: Vec<StageReport>,
    /// Measured paths to other nodes, over links that are open.
    #[serde(deserialize_with = "list::<_, _, MEMBERS_MAX>")]
    pub links: Vec<LinkReport>,
    /// Members to which no data link is open, and has not been for a moment. Those that are gone are among
    /// them.
    #[serde(deserialize_with = "list::<_, _, MEMBERS_MAX>")]
    pub unreached: Vec<NodeId>,
    /// Epoch and revision of the desired state it works towards; `None` before the first.
    pub desired: Option<(Epoch, u64)>,
    /// Instances whose scheduler on this node gave up: the coordinator places them anew.
    #[serde(deserialize_with = "list::<_, _, INSTANCES_MAX>")]
    pub instance_failures: Vec<InstanceFailure>,
    /// Resident memory of its process, if the system says.
    pub process_bytes: Option<u64>,
    /// Where it reaches other members: hints for those that have not met. An address is never trust.
    #[serde(deserialize_with = "list::<_, _, MEMBERS_MAX>")]
    pub reached: Vec<(NodeId, std::net::SocketAddr)>,
    /// How its devices do. To show.
    #[serde(deserialize_with = "list::<_, _, DEVICES_MAX>")]
    pub devices: Vec<DeviceReport>,
    /// Graphics cards that came and went since it was started, the last few. To show.
    #[serde(deserialize_with = "list::<_, _, CARD_EVENTS_MAX>")]
    pub card_events: Vec<CardEvent>,
    /// What it measures beside that. To show.
    pub measured: NodeMeasurements,
    /// The end of the log on its disk.
    pub log: LogHead,
    /// It is about to end, and takes no more stages.
    pub is_leaving: bool,
    /// Its disk has not answered a write of its log for ten seconds: it keeps its stages, and takes no more.
    pub is_disk_hung: bool,
}

/// How one device does at this moment.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct DeviceReport {
    pub device: DeviceId,
    pub state: DeviceState,
    /// Why it takes no work; empty when it does.
    pub reason: String,
    /// Its driver, with the version; `None` where nothing tells, and of a processor.
    pub driver: Option<String>,
    pub monitor: Monitor,
}

/// A graphics card appeared, vanished or has another driver.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CardEvent {
    /// When, in seconds since 1970 by the node's clock.
    pub at_unix_s: u64,
    /// What happened.
    pub change: CardChange,
    /// Whether the node computes on the card.
    pub is_own: bool,
    /// The card, its place on the bus and its driver, as the system names them. To be displayed.
    pub card: String,
}

/// What happened to a graphics card.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CardChange {
    /// It was plugged in.
    Appeared,
    /// It is not on the bus any more.
    Vanished,
    /// Its driver was installed, updated or removed.
    DriverChanged,
}

impl fmt::Display for CardChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Appeared => "appeared",
            Self::Vanished => "vanished",
            Self::DriverChanged => "has another driver",
        })
    }
}

impl fmt::Display for CardEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { change, card, .. } = self;
        match (self.is_own, change) {
            (true, _) => write!(f, "a graphics card of this node {change}: {card}"),
            (false, CardChange::Vanished) => write!(f, "a graphics card {change}: {card}"),
            (false, _) => write!(
                f,
                "a graphics card {change}: {card}; `exo devices` shows what it can do, and this node may use it once it is \
                 started again: by itself, or as --backend and --device say"
            ),
        }
    }
}

/// A model on a node's disk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct HeldModel {
    pub model: ModelId,
    pub name: String,
    /// Bytes of all its files, held or not.
    pub bytes: u64,
    pub held_bytes: u64,
    pub complete: bool,
    /// Whether what no member has of it is to be had from a hub: then any node may serve it, from what it has
    /// of it.
    pub is_of_hub: bool,
    /// Bytes of it for which a fetch has taken room and that are not there yet.
    pub expected_bytes: u64,
    /// Whether the node deletes it for what is to be fetched, once it is placed nowhere and whole on another
    /// member.
    pub may_go: bool,
}

impl HeldModel {
    /// Whether others are to ask this node for it.
    pub fn is_served(&self) -> bool {
        self.complete || self.is_of_hub
    }
}

/// How far a node is with one shard.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct StageReport {
    /// Its name on the node: as long as it stays the same, nothing was loaded again.
    pub engine: EngineId,
    /// The wanted shard it serves; `None` if it is wanted no more, and its memory is about to be free.
    pub serves: Option<ShardPosition>,
    pub spec: ShardSpec,
    pub status: StageStatus,
    /// Bytes of device memory it holds now: added to the free memory when it is about to go.
    pub held_bytes: u64,
    /// Of those, bytes of weights, as the engine counted them. To show; 0 until `node` fills it in.
    pub weight_bytes: u64,
    /// Of those, bytes that are read from the file until they are in memory. To show; 0 until `node` fills it
    /// in.
    pub unpacked_bytes: u64,
    /// Bytes of hidden rows that it keeps for the stage behind it. To show; 0 until `node` fills it in.
    pub rows_bytes: u64,
    /// As many at most. To show; 0 until `node` fills it in.
    pub rows_bytes_max: u64,
    /// Microseconds it has computed so far. To show; 0 until `node` fills it in.
    pub busy_us: u64,
    /// Requests that run or wait there; only of a first stage, whose node has the scheduler. 0 until `node`
    /// fills it in.
    pub sequences: u32,
    /// While it is fetched: what came from where. To show; empty until `node` fills it in, and where there is
    /// one source.
    #[serde(deserialize_with = "list::<_, _, FETCH_SOURCES_MAX>")]
    pub sources: Vec<FetchSource>,
}

impl StageReport {
    /// Of what it holds, bytes that no weight is in yet: a memory domain shows them as free.
    pub(crate) fn loading_bytes(&self) -> u64 {
        match self.status {
            StageStatus::Loading { done_bytes, .. } => self.held_bytes.saturating_sub(done_bytes),
            _ => 0,
        }
    }
}

/// A path between the reporting node and another, as the reporting node has measured it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LinkReport {
    /// The other end.
    pub peer: NodeId,
    /// Median round trip in microseconds.
    pub rtt_us: u32,
    /// Of so many.
    pub rtt_count: u32,
    /// How old the last of them is, in milliseconds.
    pub rtt_age_ms: u32,
    /// Mean difference between one and the next, in microseconds.
    pub jitter_us: u32,
    /// How fast bytes come from the other end, if that was measured.
    pub inbound: Option<Bandwidth>,
    /// Bytes of frames sent to the other end and received from it since the process began, where they are
    /// counted.
    pub traffic: Option<Traffic>,
    /// Whether it runs over a radio of the reporting node, where that one's system tells.
    pub is_wireless: Option<bool>,
}

/// Bytes of frames of all links to one member since the process began.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct Traffic {
    pub sent_bytes: u64,
    pub received_bytes: u64,
    /// Packets sent there, where the transport counts them.
    pub packets: Option<PacketCounts>,
    /// Of these, the last.
    pub recent_packets: Option<RecentPackets>,
}

/// Packets sent to one member in the last minute.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct RecentPackets {
    /// How many; one at least.
    pub counts: PacketCounts,
    /// In so many seconds.
    pub window_s: u32,
}

/// How fast bytes come over a path, in one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Bandwidth {
    /// The last good number.
    pub bytes_per_s: u64,
    /// Measurements so far.
    pub count: u32,
    /// How old the last one is, in seconds.
    pub age_s: u32,
}

/// An instance that failed while running.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct InstanceFailure {
    /// The placement that failed; another of the same instance is not affected.
    pub placement: PlacementId,
    /// The stage whose device failed, where it was one.
    pub stage: Option<u32>,
    /// What happened.
    pub why: PipelineFailure,
}

/// What a worker should hold. Replaces whatever was desired before.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DesiredState {
    /// The coordinator's leading; a lower one is refused.
    pub epoch: Epoch,
    /// Grows with every change while it leads.
    pub revision: u64,
    /// All shards, in order of instance, stage and rank.
    #[serde(deserialize_with = "list::<_, _, STAGES_OF_NODE_MAX>")]
    pub shards: Vec<DesiredShard>,
}

/// One shard a worker should hold.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DesiredShard {
    /// The whole placement: neighbours, context, slots.
    pub placement: Placement,
    /// Which of its stages this is a shard of.
    pub stage: u32,
    /// Which of the stage's shards this is.
    pub rank: u32,
    /// Name of the model, to be displayed.
    pub model_name: String,
    /// Members that hold the model's file, to fetch from.
    #[serde(deserialize_with = "list::<_, _, MEMBERS_MAX>")]
    pub holders: Vec<NodeId>,
    /// Bytes of weights, cache and workspace the planner counted.
    pub memory_bytes: u64,
    /// It is only loaded: another device serves its layers until then. The placement is not in the log.
    pub is_ahead: bool,
}

impl DesiredShard {
    /// What is to be in memory. Panics if the shard is not in the placement: decoding has checked that it is.
    pub fn spec(&self) -> ShardSpec {
        self.placement.spec(self.stage, self.rank)
    }

    /// Its name.
    pub fn position(&self) -> ShardPosition {
        self.placement.position(self.stage, self.rank)
    }
}

/// What members ask the coordinator to do.
#[allow(clippy::large_enum_variant, reason = "one is in memory at a time, and most of them place something")]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum ControlAsk {
    /// Place a model, or answer with the instance that serves it already.
    Place(InstanceRequest),
    /// Remove an instance.
    RemoveInstance { instance: InstanceId },
    /// Say whether an instance that serves should be elsewhere, and move it there if that is worth it.
    Replan { instance: InstanceId, carry_out: bool },
    /// Say with what a placement of the model would be planned now.
    PlannerInputs {
        model: ModelId,
        /// An instance that is to be replaced: what it holds counts as free.
        replaced: Option<InstanceId>,
    },
    /// Move the stages of a node elsewhere, and place none there; or allow it again.
    Drain { node: NodeId, drain: Drain },
}

/// How long a node is to have no stages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Drain {
    /// Until somebody allows it again.
    Lasting,
    /// It ends soon.
    Leaving,
    /// It may have some again.
    Over,
}

/// The coordinator's answer.
#[allow(clippy::large_enum_variant)] // one at a time, handed on at once
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum ControlReply {
    /// Durable and on its way to the workers.
    Placed {
        /// The instance, now placing or loading, or already there.
        view: InstanceView,
        /// The planner's reasons, one line per device.
        #[serde(deserialize_with = "list::<_, _, REASONS_MAX>")]
        reasons: Vec<String>,
        /// Members that have it on their disks.
        holders: u32,
    },
    /// Durably done, and on the disks of so many members.
    Done { holders: u32 },
    /// What the planner said of an instance that serves.
    Replanned(ReplanReport),
    /// With what a placement would be planned.
    PlannerInputs(Box<PlannerInputs>),
    /// Not done.
    Refused(ControlRefusal),
}

/// With what the coordinator plans a placement, for members that plan without placing. Measured links are not
/// in it: every member has those from the reports.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PlannerInputs {
    /// Every device of the members that are there, in the order in which equal ones are taken.
    #[serde(deserialize_with = "list::<_, _, REASONS_MAX>")]
    pub devices: Vec<PlannerDevice>,
    /// Pairs of members without a data link.
    #[serde(deserialize_with = "list::<_, _, PAIRS_MAX>")]
    pub apart: Vec<(NodeId, NodeId)>,
    /// Nodes that hold a part of the model's file, and how many bytes.
    #[serde(deserialize_with = "list::<_, _, MEMBERS_MAX>")]
    pub parts: Vec<(NodeId, u64)>,
    /// Models that requests loaded, in the order in which they make room for a plan that does not fit
    /// otherwise.
    #[serde(deserialize_with = "list::<_, _, INSTANCES_MAX>")]
    pub unloadable: Vec<Unloadable>,
}

/// A device as a placement may use it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct PlannerDevice {
    pub node: NodeId,
    pub node_name: String,
    /// As its node reported it; of its memory as much is free as a placement may fill.
    pub facts: DeviceFacts,
    /// Part of its speed that counts, in per cent: less than all where it is throttled.
    pub thermal_percent: u32,
    pub excluded: Option<DeviceExclusion>,
}

/// Why no placement may use a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DeviceExclusion {
    /// It is not supported. In the words of who tried it.
    Unsupported(String),
    /// Its node is to have no stages.
    Drained,
    /// Its node cannot write.
    DiskHung,
}

impl fmt::Display for DeviceExclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unsupported(reason) => reason,
            Self::Drained => "its node is drained",
            Self::DiskHung => "the disk of its node does not answer",
        })
    }
}

/// A model that a request loaded.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct Unloadable {
    pub instance: InstanceId,
    pub model_name: String,
    #[serde(deserialize_with = "list::<_, _, SHARDS_MAX>")]
    pub shards: Vec<(NodeId, DeviceId)>,
    /// For how many seconds it had no request; `None` while it is in use.
    pub idle_s: Option<u64>,
    /// Free bytes of every device, in the order of `PlannerInputs::devices`, once this and those before it
    /// are unloaded.
    #[serde(deserialize_with = "list::<_, _, REASONS_MAX>")]
    pub room: Vec<FreeMemory>,
}

/// What is free on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FreeMemory {
    /// On it.
    pub free_bytes: u64,
    /// In the memory that it shares with others, if it does.
    pub shared_free_bytes: Option<u64>,
}

/// Whether an instance should be elsewhere: what that gains, and what it costs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct ReplanReport {
    pub instance: InstanceId,
    pub is_moved: bool,
    /// Why it is worth one, or is kept.
    pub reason: ReplanReason,
    /// Nanoseconds that its objective counts where it is.
    pub now_ns: u64,
    /// The same where it would be.
    pub then_ns: u64,
    /// Bytes of weights that would be loaded.
    pub load_bytes: u64,
    /// Of these, bytes that would be fetched from another node.
    pub fetch_bytes: u64,
    /// How long that takes at least, in nanoseconds.
    pub fetch_ns: u64,
    /// Where its stages would be.
    #[serde(deserialize_with = "list::<_, _, STAGES_MAX>")]
    pub stages: Vec<Stage>,
}

impl ReplanReport {
    /// Whether a move is worth it.
    pub fn is_better(&self) -> bool {
        matches!(self.reason, ReplanReason::Better(_))
    }
}

/// Replication of the log. Entries are events in their encoding, chained by the journal's hash.
/// `index` counts entries, `hash` is the chain's behind them, and `state` is [`crate::State::encode`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum LogMessage {
    /// Coordinator to members: what follows entry `after_index`.
    Entries {
        epoch: Epoch,
        after_index: u64,
        after_hash: [u8; 32],
        #[serde(deserialize_with = "list::<_, _, LOG_ENTRIES_MAX>")]
        entries: Vec<Vec<u8>>,
    },
    /// Coordinator to a member whose log does not continue: throw yours away, start here.
    Snapshot {
        epoch: Epoch,
        index: u64,
        hash: [u8; 32],
        /// Chain hashes after fewer entries, the latest last: see [`exo_types::Ancestors`].
        #[serde(deserialize_with = "list::<_, _, { Ancestors::MAX }>")]
        ancestors: Vec<[u8; 32]>,
        state: Vec<u8>,
    },
    /// Member to coordinator: my log on disk ends here, send what follows. It is said behind each write, too:
    /// answers of the coordinator wait for that.
    Pull { index: u64, hash: [u8; 32] },
    /// Of a node that was elected, before it leads: what follows my log in yours?
    CatchUp { index: u64, hash: [u8; 32] },
    /// The answer: what follows its log in mine. None, if mine does not go on there, as far as I know.
    Tail {
        after_index: u64,
        after_hash: [u8; 32],
        #[serde(deserialize_with = "list::<_, _, LOG_ENTRIES_MAX>")]
        entries: Vec<Vec<u8>>,
    },
    /// The answer of who has these entries no longer: my whole log, which went through the end of yours.
    TailSnapshot {
        index: u64,
        hash: [u8; 32],
        /// Chain hashes after fewer entries, the latest last. The end that was asked about is among them.
        #[serde(deserialize_with = "list::<_, _, { Ancestors::MAX }>")]
        ancestors: Vec<[u8; 32]>,
        state: Vec<u8>,
    },
}

/// A command of an older leading was not followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[allow(missing_docs)] // the messages say what they are
pub enum Refusal {
    #[error("epoch {got} is over, {seen} has begun")]
    StaleEpoch { got: Epoch, seen: Epoch },
    #[error("revision {got} is older than {seen}")]
    StaleRevision { got: u64, seen: u64 },
}
