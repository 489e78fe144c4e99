//! Everything a node wants done, as plain values. Most effects are answered by an input with the same id.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use exo_api::{AdminError, GenerateError, StepTimesView};
use exo_cluster::wire::{Backup, Busy, ControlMessage, ControlReply, DataMessage, EndReason, StageCommand};
use exo_cluster::{DraftCounts, EngineId, InstanceView, PlanId, State};
use exo_planner::PlanRequest;

use exo_types::{
    Ancestors, DeviceId, DiskRoom, Epoch, FailureKind, InstanceId, LogHead, ModelId, NodeId, PageKey,
    SampledToken, SequenceId, SequenceSpec, Shard, ShardPosition, ShardSpec, StepFrame, Term, Transport,
};

use crate::ActRefusal;
use crate::input::{
    DialId, ExchangeId, FetchId, LinkEnd, LinkId, PersistId, Purpose, ReplyId, SignId, StreamId,
};
use crate::join_failures::JoinFailure;
use crate::join_messages::{Code, JoinAnswer, JoinAsk, JoinedByCode};
use crate::notice::Notice;

/// Something to be done.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum Effect {
    /// Open a link: dial the addresses side by side, the first that proves the key counts. Answer `LinkUp` or
    /// `DialFailed`.
    Dial {
        dial: DialId,
        /// Whose key must be proven there.
        peer: NodeId,
        purpose: Purpose,
        /// Where, best first; those over the same transport stand together.
        addresses: Vec<(Transport, SocketAddr)>,
        /// For all of them together.
        within: Duration,
    },
    /// Try whether anything listens over TCP where a member was. Answer `Refused` if every address refuses;
    /// nothing otherwise.
    Probe { peer: NodeId, addresses: Vec<SocketAddr> },
    /// Ask a member for a burst of 1 MiB at most and measure how fast it comes. Answer `Received`, with 0
    /// bytes if it did not.
    Burst {
        from: NodeId,
        /// Where it may be, best first.
        addresses: Vec<SocketAddr>,
    },
    /// Queue a frame on a link, in order. A link that takes no more answers `LinkDown`.
    Send { link: LinkId, message: Outgoing },
    /// Close a link. No `LinkDown` follows.
    CloseLink { link: LinkId, reason: LinkEnd },
    /// Write. Answer `Persisted`, in the order of the ids.
    Persist { id: PersistId, write: Write },
    /// Ask the planner. Answer `Planned`.
    Plan { id: PlanId, request: Arc<PlanRequest> },
    /// Have a manifest or the bytes of a shard on disk. Answer `Fetched`.
    Fetch {
        fetch: FetchId,
        model: ModelId,
        what: FetchWhat,
        /// Whom to ask, and where they are.
        holders: Vec<Holder>,
    },
    /// Stop a fetch. No answer.
    CancelFetch(FetchId),
    /// Open the model and load a shard. Answer `Engine` with `Loaded` or `LoadFailed`.
    Load { engine: EngineId, spec: Box<ShardSpec> },
    /// Drop its sequences and its kept pages but some, after the jobs before. Answer `Rewired` with the same
    /// position and term.
    Rewire {
        engine: EngineId,
        position: ShardPosition,
        /// The term that begins. The first is that of an engine that begins to serve.
        term: Term,
        keep: Vec<PageKey>,
    },
    /// Compute a step. Answer `Computed`.
    Compute {
        engine: EngineId,
        /// What for; comes back with the answer.
        position: ShardPosition,
        job: StepJob,
    },
    /// End it at the next layer and free everything. Answer `Unloaded`.
    Unload(EngineId),
    /// A device of this node gives what is no number: nothing is placed on it for a while, which its samples
    /// say from then on.
    Quarantine { device: DeviceId, reason: String },
    /// Sign with this node's key. Answer `Signed`.
    Sign { id: SignId, bytes: Vec<u8> },
    /// Something for the small model. Without one, nothing comes back.
    Draft(DraftAsk),
    /// Something for a join exchange.
    Joining(JoinEffect),
    /// Who may connect from now on.
    SetMembers(BTreeSet<NodeId>),
    /// What discovery says of this node from now on: whether it is alone in its cluster.
    Advertise { is_fresh: bool },
    /// Look at the models on disk. Answer `Models`.
    ScanModels,
    /// A request of this node had a model placed: compare it with what its hub promised, if it is of one,
    /// once that instance is ready. No answer.
    Check { model: ModelId, instance: InstanceId },
    /// Answer a question.
    Reply { reply: ReplyId, answer: Answer },
    /// Tell a client.
    Emit { stream: StreamId, event: SequenceEvent },
    /// Tell the person who watches the node.
    Notice(Notice),
    /// The view has changed; [`crate::NodeMachine::view`] has the new one.
    Publish {
        /// More has changed than what is measured again and again.
        is_news: bool,
    },
    /// End the process: everything that has to be said has been sent.
    Stop,
}

/// What travels on a link.
#[derive(Clone, PartialEq, Debug)]
pub enum Outgoing {
    /// This side keeps the link and takes messages on it.
    Accept {
        /// Which run of this side's process says so.
        incarnation: u64,
    },
    /// Two processes use the key of the other side: neither has a link here. The link ends behind it.
    TwoProcesses,
    /// Asks for a pong.
    Ping,
    /// To several members the same, encoded once.
    Control(Arc<ControlMessage>),
    /// A step, a token, a submission.
    Data(Box<DataMessage>),
}

/// What goes to disk.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum Write {
    /// The epoch, in a file of its own.
    Epoch(Epoch),
    /// Entries behind the log's end.
    Append {
        /// What the log's end must be: the end after the appends before this one.
        after: LogHead,
        entries: Vec<Vec<u8>>,
    },
    /// Fold the log up to `head` into `state`.
    Snapshot { head: LogHead, state: Arc<State> },
    /// Throw the log away and begin from here.
    Replace {
        head: LogHead,
        /// The ends that this log had before.
        ancestors: Ancestors,
        state: Arc<State>,
    },
    /// The whole log of trust, in a file of its own: each entry after what it follows.
    Trust(Vec<Vec<u8>>),
    /// Where members were reached, for the next start.
    Addresses(Vec<(NodeId, Vec<SocketAddr>)>),
    /// Members that said goodbye and were not there since, for the next start; each with when that was, in
    /// seconds since 1970.
    Ended(BTreeMap<NodeId, u64>),
}

/// What of a model is fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FetchWhat {
    /// Its list of chunks.
    Manifest,
    /// The bytes of this part's tensors.
    Shard(Shard),
}

/// A member to fetch from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// The member.
    pub node: NodeId,
    /// Where it may be reached, best first.
    pub addresses: Vec<SocketAddr>,
}

/// A step for an engine.
#[derive(Clone, PartialEq, Debug)]
pub struct StepJob {
    /// Carried out before the batch.
    pub commands: Vec<StageCommand>,
    /// The batch.
    pub frame: StepFrame,
    /// Hidden rows of the batch; empty at the first stage.
    pub rows: Bytes,
}

/// Something for the small model.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum DraftAsk {
    /// Read this text and guess so many tokens that follow.
    Guess { instance: InstanceId, spec: SequenceSpec, count: u32 },
    /// A sequence is over.
    Forget(SequenceId),
}

/// Something for a join exchange.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum JoinEffect {
    /// Answer a stranger.
    Answer { exchange: ExchangeId, answer: JoinAnswer },
    /// Ask `with` where it proves its key first, once. Answer `JoinEvent::Answered`.
    Ask {
        with: NodeId,
        addresses: Vec<SocketAddr>,
        /// Leave out those that are neither this machine nor on a private network of it: no person named
        /// them.
        only_near: bool,
        /// It must have proved its key by then, at all addresses together.
        proof_within: Duration,
        /// Prove that this node knows it, and have it proven, before the question counts.
        code: Option<Code>,
        ask: JoinAsk,
    },
    /// Find out who is at an address that a person named. Answer `JoinEvent::Probed`.
    Probe {
        /// `host:port`.
        text: String,
        ask: JoinAsk,
    },
}

/// Why a request cannot be gone on with here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unclaimed {
    /// No member that is reached has a copy, or the proof is wrong.
    Unknown,
    /// A node that lives answers it.
    Running,
    /// Too many clients claim at once.
    Busy,
}

/// An answer to a [`crate::Question`].
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum Answer {
    /// To `Resolve`.
    Resolved(Result<Box<Resolved>, Unresolved>),
    /// To `Coordinator`; `None` when no answer came in time.
    Coordinator(Option<Box<ControlReply>>),
    Instances(Vec<InstanceView>),
    /// To `Act` and `Door`: done and on disk, or why not.
    Acted(Result<(), ActRefusal>),
    /// To `Join`: a member there, or why not.
    Joined(Result<JoinedByCode, JoinFailure>),
    /// To `Invite`, once the stranger is a member on disk, and `Refuse`: the stranger's name.
    Invited(Result<String, AdminError>),
    /// To `Models` and `ModelsAfterScan`.
    Models(Vec<ModelHolders>),
    Leaving,
    /// To `Requests`, the oldest first.
    Requests(Vec<exo_api::RequestView>),
    /// To `Claim`.
    Claimed(Result<Backup, Unclaimed>),
    CheckWords(Vec<(NodeId, String)>),
    PlanFacts {
        links: Vec<exo_planner::LinkFacts>,
        /// What a hop takes beside the wire, in seconds.
        hop_s: Option<exo_planner::Figure>,
        /// The room that disks have for the model's file.
        disks: Vec<(NodeId, DiskRoom)>,
    },
}

/// Why a name means no model that can be asked.
#[derive(Clone, PartialEq, Debug)]
pub enum Unresolved {
    /// None of that name is known.
    Unknown {
        /// Those that are; so many as an error names.
        known: Vec<String>,
        /// Whether members may tell of it any moment: this node has just come to them.
        may_be_told: bool,
    },
    /// One is placed, and no member that is there has its files.
    Away {
        /// What it waits for, to be displayed.
        reason: String,
    },
    /// This node was removed from its cluster.
    Removed,
}

/// A model that was asked for by name.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct Resolved {
    pub id: ModelId,
    pub name: String,
    /// Other members that are asked for it, and where they are.
    pub holders: Vec<Holder>,
    /// Nodes that have all of it, this one included.
    pub holder_nodes: Vec<NodeId>,
    /// It is loaded, and no member reports its file: what is unloaded could not be loaded again.
    pub is_file_gone: bool,
    /// Context and cache of the instance that serves it, or is about to; `None` where it is not placed.
    pub limits: Option<Limits>,
    /// This node.
    pub me: NodeId,
}

/// What bounds a sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The longest it can become.
    pub context_tokens: u32,
    /// Tokens that all sequences together can have.
    pub cache_tokens: u32,
}

/// A model and who has it.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct ModelHolders {
    pub id: ModelId,
    pub name: String,
    pub bytes: u64,
    /// Who has all of it; of one that was known before it was fetched, who knows it.
    pub nodes: Vec<NodeId>,
    pub node_names: Vec<String>,
    /// Of these nodes, who has all of it.
    pub whole_on: Vec<NodeId>,
    pub instances: Vec<InstanceId>,
}

/// What a request waits for.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RequestWait {
    /// What interrupted it, where it had begun.
    pub interrupted_by: Option<String>,
    /// What has to come.
    pub waits_for: String,
}

impl std::fmt::Display for RequestWait {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { interrupted_by, waits_for } = self;
        match interrupted_by {
            Some(lost) => write!(f, "interrupted: {lost}; {waits_for}"),
            None => f.write_str(waits_for),
        }
    }
}

/// What a client's request is told.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum SequenceEvent {
    /// Waiting, and for what.
    Queued(RequestWait),
    /// No news for a while; its deadlines are watched.
    Watched,
    /// Computing, by these kernels, over so many stages. Again after each interruption.
    Started {
        /// Which choice.
        index: u16,
        kernels: Vec<String>,
        stages: u32,
        /// The name of the last stage's node, which samples.
        last_node: String,
    },
    /// A token of a choice.
    Token { index: u16, token: SampledToken },
    /// A choice ended.
    Ended {
        index: u16,
        reason: EndReason,
        /// Prompt tokens that were not computed.
        cached_tokens: u32,
        /// Tokens that were guessed ahead.
        drafts: DraftCounts,
        /// Where the time of its steps went, where its scheduler has told.
        times: Option<StepTimesView>,
    },
    /// The model cannot be placed.
    Refused(GenerateError),
    /// A choice failed, and with it the request.
    Failed {
        kind: FailureKind,
        message: String,
        /// How full the queue was.
        busy: Option<Busy>,
    },
}
