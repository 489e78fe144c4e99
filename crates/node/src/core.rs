//! The core: one task that owns every state machine of the node and feeds them time, messages and results.
//!
//! It never waits for anything but the next event: dialling, planning, fetching, loading and computing happen in other tasks
//! and threads and come back as events. What the machines put out is carried out in order, and messages to this
//! node itself go through the same door as those from others.

mod commands;
mod coordination;
mod devices;
mod drafting;
mod joining;
mod membership;
mod peers;
mod requests;
mod shards;
mod view;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use exo_cluster::wire::{ControlMessage, DataMessage, NodeReport};
use exo_cluster::{Coordinator, CoordinatorInput, HeldSteps, InstanceView, Outbox, PlanId, ShardKey, Worker};
use exo_discovery::{Discovery, Found};
use exo_journal::Journal;
use exo_membership::Membership;
use exo_planner::{Plan, PlanError};
use exo_transport::{Channel, Endpoint, JoinChannel, MemberSet, NodeKey};
use exo_types::{Epoch, InstanceId, NodeId, RequestId, SequenceId, Time};
use tokio::sync::{broadcast, mpsc, watch};

pub use commands::{Command, Limits, ModelHolders, Resolved, instance_request};
pub use devices::DeviceEvent;
pub use joining::{JoinOutcome, unix_s};
pub use requests::StartRequest;
pub use view::empty_view;

use crate::compute::Compute;
use crate::config::NodeConfig;
use crate::draft::{Draft, DraftEvent};
use crate::engine_host::EngineEvent;
use crate::files::DataDir;
use crate::host::Host;
use crate::library::Library;
use crate::links::Purpose;
use crate::notice::Notice;
use peers::Peer;
use requests::{DriverEntry, SchedulerEntry};
use shards::{Leaving, StageEntry};

/// Time between ticks of the machines.
const TICK: Duration = Duration::from_millis(100);
/// The same while nothing is under way and no other node is there: a wake costs a sleeping processor far more than
/// the tick itself.
const TICK_AT_REST: Duration = Duration::from_millis(500);
/// From a change to its showing, at most: who places a model may ask about it at once.
const SHOW_WITHIN: Duration = Duration::from_millis(10);

/// Everything that can happen to the core.
pub enum CoreEvent {
    /// A member opened a channel.
    Incoming(Channel),
    /// A stranger opened the join exchange.
    JoinIncoming(JoinChannel),
    /// Our own dial ended.
    Dialled { peer: NodeId, purpose: Purpose, outcome: Result<Channel, String> },
    /// The peer keeps a link.
    LinkAccepted { peer: NodeId, purpose: Purpose, id: u64 },
    /// A link ended.
    LinkClosed { peer: NodeId, purpose: Purpose, id: u64, reason: String },
    /// A message from a member.
    Frame { peer: NodeId, purpose: Purpose, bytes: Bytes },
    /// A ping came back.
    RoundTrip { peer: NodeId, purpose: Purpose, rtt: Duration },
    /// Discovery saw something.
    Found(Found),
    /// Our own attempt to join ended.
    Joined(JoinOutcome),
    /// An address of `--peer` was resolved and asked who it is.
    Probed { address: SocketAddr, node: Option<NodeId> },
    /// An engine thread said something.
    Engine(EngineEvent),
    /// Something about the devices.
    Device(DeviceEvent),
    /// The small model said something.
    Draft(DraftEvent),
    /// A fetch for a shard moved on or ended.
    Fetch { key: ShardKey, event: shards::FetchEvent },
    /// The models on disk, looked at in the background.
    Held(Vec<exo_cluster::wire::HeldModel>),
    /// The planner answered the coordinator.
    Planned { plan: PlanId, result: Result<Plan, PlanError> },
    /// The API asks.
    Command(Command),
    /// A client left (`None`), or a stop string ended one choice.
    Cancel { request: RequestId, index: Option<u16> },
}

/// Where events for the core go.
#[derive(Clone)]
pub struct CoreSender {
    /// From the network: bounded, so that a flood waits in the sockets.
    bounded: mpsc::Sender<CoreEvent>,
    /// From this process: each event answers something the core or a bounded number of clients asked for.
    local: mpsc::UnboundedSender<CoreEvent>,
}

impl CoreSender {
    /// For the network: waits while the core is behind.
    pub async fn send(&self, event: CoreEvent) -> Result<(), ()> {
        self.bounded.send(event).await.map_err(|_| ())
    }

    /// For this process: never waits. Events after the end go nowhere.
    pub fn post(&self, event: CoreEvent) {
        let _ = self.local.send(event);
    }

    /// Nobody listens to this request, or to one of its choices, any more.
    pub fn cancel_request(&self, request: RequestId, index: Option<u16>) {
        self.post(CoreEvent::Cancel { request, index });
    }
}

/// The receiving ends of a [`CoreSender`].
pub struct Inbox {
    bounded: mpsc::Receiver<CoreEvent>,
    local: mpsc::UnboundedReceiver<CoreEvent>,
}

/// Both ends.
pub fn channel() -> (CoreSender, Inbox) {
    let (bounded, bounded_rx) = mpsc::channel(1024);
    let (local, local_rx) = mpsc::unbounded_channel();
    (CoreSender { bounded, local }, Inbox { bounded: bounded_rx, local: local_rx })
}

/// What start-up hands to the core.
pub struct Parts {
    pub config: NodeConfig,
    pub host: Arc<dyn Host>,
    pub data: DataDir,
    pub key: NodeKey,
    pub endpoint: Endpoint,
    pub members: MemberSet,
    pub journal: Journal,
    pub library: Arc<Library>,
    pub compute: Compute,
    pub draft: Option<Arc<Draft>>,
    pub facts: exo_types::NodeFacts,
    pub membership: Membership,
    pub coordinator: Coordinator,
    pub worker: Worker,
    pub discovery: Option<Discovery>,
    pub remembered: BTreeMap<NodeId, Vec<SocketAddr>>,
    pub sender: CoreSender,
    pub notices: broadcast::Sender<Notice>,
    pub started: Instant,
}

/// A message to this node itself.
enum Local {
    Control(ControlMessage),
    Data(DataMessage),
}

/// The state of the running node.
pub struct Core {
    p: Parts,
    me: NodeId,
    queue: VecDeque<Local>,
    peers: BTreeMap<NodeId, Peer>,
    links_opened: u64,
    /// Data messages for peers whose link is not open.
    outbox: Outbox,
    /// Nodes to which a data link is open.
    data_links: Arc<BTreeSet<NodeId>>,
    /// Addresses of `--peer` and of discovery whose node is not a member (yet).
    strangers: joining::Strangers,
    membership_outputs: VecDeque<exo_membership::Output>,
    membership_busy: bool,
    leader: Option<(Epoch, NodeId)>,
    statuses: BTreeMap<NodeId, exo_api::NodeStatus>,
    reports: BTreeMap<NodeId, NodeReport>,
    report_sent: Time,
    held: Vec<exo_cluster::wire::HeldModel>,
    held_at: Time,
    held_under_way: bool,
    instances: Vec<InstanceView>,
    stages: BTreeMap<ShardKey, StageEntry>,
    /// Steps for stages that are not there yet.
    held_steps: HeldSteps,
    leaving: BTreeMap<ShardKey, Leaving>,
    /// When the registry was looked at for the end of a quarantine.
    quarantine_looked: Time,
    card_events: VecDeque<exo_cluster::wire::CardEvent>,
    fetches: BTreeMap<ShardKey, tokio_util::sync::CancellationToken>,
    schedulers: BTreeMap<InstanceId, SchedulerEntry>,
    drivers: BTreeMap<SequenceId, DriverEntry>,
    troubles: Vec<exo_cluster::wire::Trouble>,
    asks: coordination::Asks,
    /// Instances whose refused loads were told to those who waited.
    refusals_told: Vec<InstanceId>,
    /// The log grew since it was last looked at.
    snapshot_due: bool,
    view: watch::Sender<exo_api::ClusterView>,
    view_stale: bool,
    stopping: bool,
}

impl Core {
    /// A core over started parts.
    pub fn new(p: Parts, view: watch::Sender<exo_api::ClusterView>) -> Self {
        let me = p.key.node_id();
        let mut core = Self {
            me,
            queue: VecDeque::new(),
            peers: BTreeMap::new(),
            links_opened: 0,
            outbox: Outbox::default(),
            data_links: Arc::default(),
            strangers: joining::Strangers::new(&p.config.peers),
            membership_outputs: VecDeque::new(),
            membership_busy: false,
            leader: None,
            statuses: BTreeMap::from([(me, exo_api::NodeStatus::Alive)]),
            reports: BTreeMap::new(),
            report_sent: Time::ZERO,
            held: Vec::new(),
            held_at: Time::ZERO,
            held_under_way: false,
            instances: Vec::new(),
            stages: BTreeMap::new(),
            held_steps: HeldSteps::default(),
            leaving: BTreeMap::new(),
            quarantine_looked: Time::ZERO,
            card_events: VecDeque::new(),
            fetches: BTreeMap::new(),
            schedulers: BTreeMap::new(),
            drivers: BTreeMap::new(),
            troubles: Vec::new(),
            asks: coordination::Asks::default(),
            refusals_told: Vec::new(),
            snapshot_due: false,
            view,
            view_stale: true,
            stopping: false,
            p,
        };
        for (node, addresses) in std::mem::take(&mut core.p.remembered) {
            core.peer(node).remember(addresses);
        }
        core
    }

    /// Runs until a clean end is asked for. The journal is closed and the data folder free when it returns.
    pub async fn run(mut self, mut inbox: Inbox, mut stop: watch::Receiver<bool>) {
        let mut ticked = tokio::time::Instant::now();
        let mut shown = ticked;
        let timer = tokio::time::sleep_until(ticked);
        tokio::pin!(timer);
        self.begin();
        self.settle();
        loop {
            let tick_due = ticked + if self.at_rest() { TICK_AT_REST } else { TICK };
            let due = if self.view_stale { tick_due.min(shown + SHOW_WITHIN) } else { tick_due };
            if timer.deadline() != due {
                timer.as_mut().reset(due);
            }
            tokio::select! {
                biased;
                _ = stop.wait_for(|s| *s) => break,
                // First: it comes at most a hundred times a second and cannot starve the others, who could starve it.
                () = &mut timer => {
                    shown = tokio::time::Instant::now();
                    if shown >= tick_due {
                        ticked = shown;
                        self.tick();
                    }
                    self.publish_view();
                }
                Some(event) = inbox.local.recv() => self.handle(event),
                Some(event) = inbox.bounded.recv() => self.handle(event),
            }
            self.settle();
            if self.stopping {
                break;
            }
        }
        self.end().await;
    }

    /// Whether time alone brings nothing on: no request, no load, nobody else who could fall silent.
    fn at_rest(&self) -> bool {
        self.drivers.is_empty()
            && self.fetches.is_empty()
            && self.p.members.is_empty()
            && self.strangers.nobody()
            && self.leader.is_some()
            && self.instances.iter().all(InstanceView::is_ready)
    }

    /// Time for the machines: since this process started.
    fn now(&self) -> Time {
        Time(u64::try_from(self.p.started.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    fn begin(&mut self) {
        self.look_at_models();
        self.members_changed();
        self.report_now();
    }

    fn handle(&mut self, event: CoreEvent) {
        match event {
            CoreEvent::Incoming(channel) => self.incoming(channel),
            CoreEvent::JoinIncoming(channel) => self.join_incoming(channel),
            CoreEvent::Dialled { peer, purpose, outcome } => self.dialled(peer, purpose, outcome),
            CoreEvent::LinkAccepted { peer, purpose, id } => self.link_accepted(peer, purpose, id),
            CoreEvent::LinkClosed { peer, purpose, id, reason } => {
                self.link_closed(peer, purpose, id, &reason)
            }
            CoreEvent::Frame { peer, purpose, bytes } => self.frame(peer, purpose, &bytes),
            CoreEvent::RoundTrip { peer, purpose, rtt } => self.round_trip(peer, purpose, rtt),
            CoreEvent::Found(found) => self.found(found),
            CoreEvent::Joined(outcome) => self.joined(outcome),
            CoreEvent::Probed { address, node } => self.probed(address, node),
            CoreEvent::Engine(event) => self.engine_event(event),
            CoreEvent::Device(event) => self.device_event(event),
            CoreEvent::Draft(event) => self.draft_event(event),
            CoreEvent::Fetch { key, event } => self.fetch_event(key, event),
            CoreEvent::Held(held) => {
                self.held_under_way = false;
                self.held = held;
            }
            CoreEvent::Planned { plan, result } => {
                self.feed_coordinator(CoordinatorInput::Planned { plan, result });
            }
            CoreEvent::Command(command) => self.command(command),
            CoreEvent::Cancel { request, index } => self.cancel_request(request, index),
        }
    }

    fn tick(&mut self) {
        self.tick_membership();
        self.tick_coordination();
        self.tick_worker();
        self.tick_devices();
        self.tick_requests();
        self.tick_steps();
        self.tick_peers();
        self.tick_joining();
        self.report_if_due();
    }

    /// Delivers messages to this node until there are none: each may cause others.
    fn settle(&mut self) {
        while let Some(local) = self.queue.pop_front() {
            let me = self.me;
            match local {
                Local::Control(message) => self.control(me, message),
                Local::Data(message) => self.data(me, message),
            }
        }
    }

    fn notice(&self, notice: Notice) {
        tracing::info!(%notice, "notice");
        let _ = self.p.notices.send(notice);
    }

    /// What people call a node.
    fn name_of(&self, node: NodeId) -> String {
        if node == self.me {
            return self.p.config.name.clone();
        }
        let member = self.p.coordinator.state().members().get(&node).map(|m| m.name.clone());
        member.unwrap_or_else(|| node.to_string())
    }

    async fn end(mut self) {
        self.stopping = true;
        self.say_goodbye();
        self.settle();
        self.drivers.clear();
        for stage in self.stages.values_mut() {
            stage.stop();
        }
        for fetch in self.fetches.values() {
            fetch.cancel();
        }
        self.wait_for_workers().await;
        if let Some(discovery) = self.p.discovery.take() {
            let _ = tokio::task::spawn_blocking(move || discovery.shutdown()).await;
        }
        // The goodbyes are queued in the links: give their writers a moment before everything closes.
        tokio::time::sleep(Duration::from_millis(100)).await;
        self.peers.clear();
        self.p.endpoint.close().await;
    }
}
