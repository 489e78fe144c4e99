//! Everything that can happen to a node, as plain values.
//!
//! An input is either news from outside (a link, a message, a sample, a question) or the answer to an
//! [`Effect`]. Each answer carries the id of its effect, so that a late one is recognised.
//!
//! [`Effect`]: crate::Effect

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use exo_cluster::wire::{
    Backup, CardEvent, ControlAsk, ControlMessage, DataMessage, DeviceReport, FetchSource, HeldModel,
    ModelTotals, NodeVitals, PullReport, Traffic,
};
use exo_cluster::{ComputeResult, DriverConfig, DriverStart, InstanceRequest, StageGeometry};
use exo_cluster::{EngineId, LoadFault, PlanId};
use exo_planner::{Plan, PlanError};
use exo_trust::Act;

use exo_types::{
    DeviceId, DiskRoom, InstanceId, ModelId, Network, NodeFacts, NodeId, RequestId, SequenceId,
    ShardPosition, Term, Time, Transport,
};

use crate::join_messages::{JoinAnswer, JoinAsk, JoinByCode};

/// Time as an input. The machine never asks for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// Since an origin of the caller's; never runs backwards.
    pub time: Time,
    /// Seconds since 1970 by the system's clock. Decides nothing but the join window, entries of the log of
    /// trust and what is shown.
    pub unix_s: u64,
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name(pub u64);
    )*};
}

ids! {
    /// One connection to a member, numbered by the caller. Never used twice.
    LinkId;
    /// One attempt to open a connection.
    DialId;
    /// One write. Answers come in the order of these.
    PersistId;
    /// One fetch of a manifest or of a shard's bytes.
    FetchId;
    /// One statement to be signed with this node's key.
    SignId;
    /// A stranger's join exchange that waits for its answer, numbered by the caller.
    ExchangeId;
    /// A client's request for text, numbered by the caller.
    StreamId;
    /// A question with somebody waiting, numbered by the caller.
    ReplyId;
}

/// What a link between members is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Purpose {
    /// [`ControlMessage`]s, over QUIC where it works.
    Control,
    /// [`DataMessage`]s, over TCP where it works: its reset tells of a death at once.
    Data,
}

/// Something happened.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum Input {
    /// [`crate::NodeMachine::next_deadline`] has come. Too early does no harm.
    Timer,

    /// A connection stands: both ends have proven their keys. `dial` names our own attempt, if it was one.
    LinkUp {
        link: LinkId,
        peer: NodeId,
        /// What the dialling side opened it for.
        purpose: Purpose,
        via: Transport,
        remote: SocketAddr,
        /// Our attempt, or `None` if the peer dialled.
        dial: Option<DialId>,
    },
    /// Our attempt ended without a connection.
    DialFailed { dial: DialId, reason: String },
    /// Every address of a [`crate::Effect::Probe`] refused a connection; perhaps several times. Nothing comes
    /// where one did not.
    Refused { peer: NodeId },
    /// The peer keeps this link: its [`crate::Outgoing::Accept`] has arrived.
    LinkAccepted {
        link: LinkId,
        /// Which run of the peer's process says so.
        incarnation: u64,
    },
    /// A link is gone. Comes once for each `LinkUp` that was not closed from here.
    LinkDown { link: LinkId, reason: LinkEnd },
    /// A sign of life besides messages: a pong with its round trip, or a part of a long frame.
    Heard {
        link: LinkId,
        /// If it was a pong.
        rtt: Option<Duration>,
    },
    /// Bytes came from a member: a burst, or the weights of a fetch.
    Received { from: NodeId, received: crate::Received },
    /// A message on a control link, decoded and within bounds.
    Control { link: LinkId, message: Box<ControlMessage> },
    /// A message on a data link, decoded and within bounds.
    Data { link: LinkId, message: Box<DataMessage> },

    /// A write is on disk, or is not and will not be.
    Persisted { id: PersistId, result: Result<(), WriteFailure> },
    /// The planner has answered.
    Planned { id: PlanId, result: Result<Plan, PlanError> },
    /// A fetch moved on or ended.
    Fetched { fetch: FetchId, event: FetchEvent },
    /// An engine says something.
    Engine { engine: EngineId, event: EngineEvent },
    /// An engine is done with a step, well or not.
    Computed {
        engine: EngineId,
        /// What the job was for: an answer for another stage than the present one is of the past.
        position: ShardPosition,
        /// The term of the job's frame: an answer of another term than the present one is of the past, too.
        term: Term,
        step: u64,
        result: ComputeResult,
        busy: Duration,
    },
    /// The small model says something.
    Draft(DraftEvent),
    /// This node's key has signed.
    Signed { id: SignId, signature: [u8; 64] },
    /// The models on this node's disk, and what it may still fetch.
    Models(Vec<HeldModel>, DiskRoom),
    /// Memory, sensors and power, sampled; also before an engine's news, so that what it holds is counted.
    Sampled(Box<Samples>),
    /// Discovery saw something.
    Found(DiscoveredNode),
    /// A join exchange moved on.
    Joining(JoinEvent),

    /// Run the sequences of a request and send what comes to `stream`.
    Start { stream: StreamId, request: Box<StartRequest> },
    /// A client left (`None`), or a stop string ended one choice.
    Cancel { request: RequestId, index: Option<u16> },
    /// The API asks. The answer may take a while and always comes.
    Ask { reply: ReplyId, question: Question },
    /// End: say goodbye, free everything.
    Stop,
}

/// Why a link ended.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say what the reasons are
pub enum LinkEnd {
    /// The other side closed it, or its process died.
    #[error("reset: {0}")]
    Reset(String),
    #[error("the peer broke the protocol: {0}")]
    Protocol(String),
    #[error("the peer takes no more messages")]
    QueueFull,
    /// Or did not say so in time.
    #[error("the peer did not keep it")]
    NotAccepted,
    /// By one of the same purpose.
    #[error("replaced by another one")]
    Replaced,
    #[error("silent for too long")]
    Silent,
    #[error("the peer is no member")]
    NoMember,
    /// The peer's key where it is closed here, this node's where the peer says so.
    #[error("two processes use one key")]
    TwoProcesses,
    #[error("this node ends")]
    Stopping,
}

/// A write did not happen, and neither will those asked for behind it in the same file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriteFailure {
    /// What the disk said.
    pub reason: String,
    /// It may have happened all the same: a restart may find it, or not.
    pub may_be_there: bool,
}

/// How a fetch goes.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum FetchEvent {
    /// Bytes moved.
    Progress {
        done_bytes: u64,
        total_bytes: u64,
        /// Seconds that the hub asks to wait; 0 while bytes may come.
        hub_wait_s: u32,
        /// What came from where; empty where there is one source.
        sources: Vec<FetchSource>,
    },
    /// What was asked for is on disk.
    Done,
    /// No member that has it could be asked.
    NoHolder,
    /// It did not work; nothing of it runs any more.
    Failed {
        kind: LoadFault,
        /// Why, with the numbers, in the words of what failed.
        detail: String,
    },
}

/// What an engine says besides results.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum EngineEvent {
    /// Loading moved on.
    Progress { done_bytes: u64, total_bytes: u64 },
    /// It can compute.
    Loaded(Box<LoadedFacts>),
    /// Not loaded; nothing is held.
    LoadFailed {
        kind: LoadFault,
        /// Why, in the words of what failed.
        detail: String,
    },
    /// Its sequences and kept pages are gone, its weights stay.
    Rewired { position: ShardPosition, term: Term },
    /// So many bytes of weights are still read from their file.
    Unpacked { bytes: u64 },
    /// Its process ended unasked, or had to be ended. Nothing is held.
    Lost { reason: String },
    /// Asked to end, it has freed everything.
    Unloaded,
}

/// Numbers of a loaded shard.
#[derive(Clone, PartialEq, Debug)]
pub struct LoadedFacts {
    /// Widths, for checks of steps.
    pub geometry: StageGeometry,
    /// Bytes of weights.
    pub weight_bytes: u64,
    /// Why weights are read from their file against the user's wish.
    pub slower_because: Option<String>,
    /// Whether the small model of this node can guess for this one; `None` without one.
    pub draft: Option<Result<(), String>>,
}

/// What the small model says.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum DraftEvent {
    /// It has read a text, and guesses what follows.
    Answer {
        instance: InstanceId,
        sequence: SequenceId,
        /// Tokens it has read.
        text_len: usize,
        tokens: Vec<u32>,
        /// Time of one guess, where that was measured.
        each: Option<Duration>,
    },
    /// It cannot hold a sequence: there is no use in asking about it again.
    Refused { instance: InstanceId, sequence: SequenceId },
    /// It guesses no more.
    Over { name: String, reason: String },
}

/// What this machine is and has at this moment.
#[derive(Clone, PartialEq, Debug)]
pub struct Samples {
    /// Name, devices with their free memory, mains power.
    pub facts: NodeFacts,
    /// What each device may hold in all.
    pub memory_bytes: Vec<(DeviceId, u64)>,
    /// State and sensors of each device.
    pub devices: Vec<DeviceReport>,
    /// Graphics cards that came and went.
    pub card_events: Vec<CardEvent>,
    /// Resident memory of the process.
    pub process_bytes: Option<u64>,
    /// The networks that it is on.
    pub networks: Vec<Network>,
    /// What is only shown.
    pub measured: SampledMeasures,
}

/// What a node's process measures beside its devices, and only shows.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct SampledMeasures {
    /// Of the machine and the process.
    pub vitals: NodeVitals,
    /// Requests of its clients, by model.
    pub requests: Vec<ModelTotals>,
    /// Its downloads that are not done, eight at most.
    pub pulls: Vec<PullReport>,
    /// Bytes to and from members.
    pub traffic: BTreeMap<NodeId, Traffic>,
    /// Whether the data link to a member runs over a radio of this machine, where the system tells.
    pub wireless: BTreeMap<NodeId, bool>,
}

/// A node that discovery saw, or sees no more.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct DiscoveredNode {
    /// Who it says it is.
    pub node: NodeId,
    /// Where it says it is.
    pub addresses: Vec<SocketAddr>,
    pub name: Option<String>,
    pub group: Option<String>,
    /// Whether it says it is alone in its cluster.
    pub is_fresh: bool,
    pub is_lost: bool,
}

/// News of join exchanges.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum JoinEvent {
    /// A stranger asks; answer with [`crate::JoinEffect::Answer`].
    Asked {
        exchange: ExchangeId,
        /// Who proved its key.
        node: NodeId,
        remote: SocketAddr,
        /// Whether that is this machine or a private network that it is on.
        is_near: bool,
        /// It proved that it knows a code that this node gave out.
        has_code: bool,
        /// The words that both sides have for this exchange; none unless it asks to become a member.
        words: String,
        ask: JoinAsk,
    },
    /// Our own question was answered by `with`, or by no one.
    Answered {
        with: NodeId,
        /// Where it proved its key; unspecified if nowhere.
        address: SocketAddr,
        /// The words that both sides have for this exchange; none unless this node asked to become a member.
        words: String,
        /// What came; or why nothing did in the words of the transport, by which nothing is decided.
        answer: Result<JoinAnswer, String>,
    },
    /// Who is at an address that a person named.
    Probed {
        /// As the person wrote it.
        text: String,
        /// Where who proved its key, and what it said.
        found: Result<(SocketAddr, NodeId, JoinAnswer), ProbeFailure>,
    },
}

/// Why no one was found at an address that a person named.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say what they are
pub enum ProbeFailure {
    #[error("its name leads to no address")]
    UnknownName,
    #[error("no exo answers at {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Silent(Vec<SocketAddr>),
}

/// What an own request needs for its copy.
#[derive(Clone, PartialEq, Debug)]
pub struct BackupStart {
    /// As its client knows it.
    pub request: RequestId,
    /// Hash of the secret that its client was given.
    pub proof: [u8; 32],
    /// The request, and tokens of its choices that were there already.
    pub backup: Backup,
}

/// The sequences of one request.
#[derive(Clone, PartialEq, Debug)]
pub struct StartRequest {
    /// Its deadlines.
    pub config: DriverConfig,
    /// One for each choice.
    pub starts: Vec<DriverStart>,
    /// To place the model if it is not placed.
    pub place: InstanceRequest,
    /// For the copy that another member keeps, unless there is to be none.
    pub backup: Option<BackupStart>,
}

/// What the API asks.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum Question {
    /// Which model is meant by a name or an id, who has it, and with which context it runs.
    Resolve { model: String },
    /// Ask the coordinator, which may be this node.
    Coordinator(Box<ControlAsk>),
    /// Change who belongs to the cluster.
    Act(Act),
    /// The instances as now known.
    Instances,
    /// Join where a code was given out.
    Join(JoinByCode),
    /// Let in a node that asks to join.
    Invite { node: NodeId },
    /// Refuse a node that asks to join.
    Refuse { node: NodeId },
    /// Open this node's door for so long, or shut it.
    Door { lasting: Option<Duration> },
    /// Every model some member has.
    Models,
    /// The same, after another look at this node's disk: a person has changed it.
    ModelsAfterScan,
    /// This node is about to end: from now on copies of what its clients asked stay with their keepers.
    Leaving,
    /// Requests of this node's clients.
    Requests,
    /// Go on with a request of a node that is lost.
    Claim {
        request: RequestId,
        /// Hash of its client's secret.
        proof: [u8; 32],
    },
    /// The check words shown when members were admitted.
    CheckWords,
    /// What every member knows of the cluster for a plan: measured links and hops, and the room on disks.
    PlanFacts { model: ModelId },
}
