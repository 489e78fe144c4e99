//! One node's logic as a pure machine: inputs in, effects out.
//!
//! [`NodeMachine`] composes what a node decides: membership, the coordinator, the worker's reconcile loop,
//! drivers, schedulers and stages, links, joining, the log. [`NodeMachine::handle`] takes in what happened
//! and says what to do; [`NodeMachine::next_deadline`] says when time alone changes something. The process
//! (`node`) carries effects out and brings their answers back; the simulator (`sim`) does the same with an
//! invented world.
//!
//! | part | decides |
//! |---|---|
//! | [`links`] | which connections are dialled, kept and used; what waits for one |
//! | [`joining`] | whom to join, whom to let in |
//! | `membership` | what follows from who is alive and who leads |
//! | `coordination` | what follows from reports, commands, asks; what followers get of the log |
//! | `trust` | who belongs to the cluster: what is signed, written, and told between members |
//! | `log` | where the log ends, planned and durable, and its last entries |
//! | `persist` | what follows from a write, once it is on disk |
//! | `corrections` | what this node's own steps teach of its devices |
//! | `worker` | what is fetched, loaded, wired and freed |
//! | `pipelines` | where steps, tokens and failures go; which scheduler runs |
//! | `requests` | the drivers of this node's clients |
//! | `cut_off` | what is refused because this node does not reach it, and who does |
//! | `questions` | what the API is answered |
//! | `view` | what people see |
//!
//! [`links`] and [`joining`] keep their state to themselves and name their own deadlines; the machines of
//! `membership` and `cluster` keep theirs and tick. The other parts are pages of [`NodeMachine`] and share
//! its fields.
//!
//! **Architecture invariant:** no clock, file, socket, thread, task, global or randomness of its own. What
//! must be on disk before it is announced waits for its [`Input::Persisted`]: see `persist`. What only a
//! driver knows, the states of devices, is not decided here; it comes with [`Input::Sampled`].
//!
//! Start reading at [`Input`] and [`Effect`], then [`NodeMachine::handle`].

#![forbid(unsafe_code)]

mod act_refusal;
mod awake;
mod backups;
mod bandwidth;
mod boot;
pub mod bounds;
mod coordination;
mod corrections;
mod cut_off;
mod effect;
mod input;
mod join_failures;
mod join_messages;
pub mod joining;
mod left_cluster;
pub mod links;
mod log;
mod machine;
mod membership;
mod names;
mod non_finite;
mod notice;
mod persist;
mod pipelines;
mod placement_wait;
#[cfg(feature = "planted")]
pub mod planted;
mod plausible;
mod questions;
mod replication;
mod requests;
mod telemetry;
mod trust;
mod view;
mod waiting;
mod warnings;
mod watched;
mod worker;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use exo_cluster::wire::{ControlMessage, DataMessage, HeldModel, InstanceFailure, NodeReport};
use exo_cluster::{Coordinator, EngineId, HeldSteps, InstanceState, InstanceView, PagesLeft, Worker};
use exo_membership::Membership;
use exo_types::{DiskRoom, Epoch, InstanceId, NodeId, SequenceId, ShardPosition, Time};

pub use act_refusal::ActRefusal;
pub use bandwidth::Received;
pub use boot::{Boot, MachineConfig};
pub use effect::*;
pub use input::*;
pub use left_cluster::LeftCluster;
pub use links::{ADDRESSES_APART, TRANSPORTS_APART};
pub use log::LogLimits;
pub use machine::Counts;
pub use notice::Notice;
pub use trust::{TrustMessage, TrustNews};
pub use view::{empty_view, prediction_view};

use crate::awake::Awake;
use crate::backups::Backups;
use crate::bandwidth::Bandwidths;
use crate::coordination::{Asks, EarlyCommands};
use crate::corrections::StepCorrections;
use crate::joining::{Joining, MoveIn};
use crate::links::Links;
use crate::log::Log;
use crate::names::Names;
use crate::persist::Writes;
use crate::pipelines::{Schedulers, Stage};
use crate::replication::Replication;
use crate::requests::DriverEntry;
use crate::telemetry::Reported;
use crate::trust::Trust;
use crate::waiting::StageWatches;
use crate::warnings::Warnings;
use crate::worker::{Engine, Fetch};

/// One node's logic.
#[derive(Debug)]
pub struct NodeMachine {
    config: MachineConfig,
    me: NodeId,
    now: Now,
    out: Vec<Effect>,
    local: VecDeque<Local>,

    links: Links,
    bandwidths: Bandwidths,
    joining: Joining,
    membership: Membership,
    membership_outputs: VecDeque<exo_membership::Output>,
    membership_busy: bool,
    coordinator: Coordinator,
    worker: Worker,
    writes: Writes,
    log: Log,
    replication: Replication,
    warnings: Warnings,
    trust: Trust,
    asks: Asks,
    backups: Backups,
    early_commands: Option<EarlyCommands>,

    /// Who coordinates, in which epoch.
    leader: Option<(Epoch, NodeId)>,
    /// Who coordinated last, also while no one does: that another one does is told.
    leader_last: Option<NodeId>,
    /// This node leads in that epoch, and does so once the entries that are on their way to its disk are
    /// there.
    leads_soon: Option<Epoch>,
    /// Who may connect, without this node.
    members: BTreeSet<NodeId>,
    statuses: BTreeMap<NodeId, exo_api::NodeStatus>,
    /// Of whom it was said that they are gone, and not since that they are here: when that was, in seconds
    /// since 1970.
    gone_since: BTreeMap<NodeId, u64>,
    /// Members that said goodbye and were not there since, and when that was, over restarts of this node.
    ended: BTreeMap<NodeId, u64>,
    /// Another cluster's log is on its way to disk, in place of this one's.
    moving_in: Option<MoveIn>,
    /// The addresses that were last written.
    kept_addresses: Vec<(NodeId, Vec<SocketAddr>)>,
    /// What discovery was last told.
    advertised: Option<bool>,
    /// Whether the person who watches was told that the cluster has put this node out.
    is_told_removed: bool,
    /// A write failed: when the coordinator is asked for the log again.
    pull_at: Option<Time>,

    samples: Samples,
    reports: BTreeMap<NodeId, NodeReport>,
    names: Names,
    /// When the last of each came; of lost members, too.
    reported: BTreeMap<NodeId, Reported>,
    report_at: Time,
    models: Vec<HeldModel>,
    disk_room: DiskRoom,
    /// Whether one came since this run began.
    has_new_model: bool,
    models_at: Time,
    scan: Scan,

    engines: BTreeMap<EngineId, Engine>,
    fetches: BTreeMap<FetchId, Fetch>,
    fetch_last: FetchId,
    stages: BTreeMap<ShardPosition, Stage>,
    held_steps: HeldSteps,
    step_corrections: StepCorrections,
    schedulers: Schedulers,
    /// What schedulers left, for those of the next placement of their instances.
    pages_left: BTreeMap<InstanceId, PagesLeft>,
    has_draft: bool,
    /// Pipelines that broke, until the coordinator has placed their instances anew.
    instance_failures: Vec<InstanceFailure>,

    instances: Arc<Vec<InstanceView>>,
    /// Since when each of them is in its state, in seconds since 1970.
    states_since: BTreeMap<InstanceId, (std::mem::Discriminant<InstanceState>, u64)>,
    /// How far stages were that fetch or load, to know how fast bytes come.
    stage_watches: StageWatches,
    drivers: BTreeMap<SequenceId, DriverEntry>,
    /// Instances whose refused loads were told to those who waited.
    refusals_told: Vec<InstanceId>,

    /// When the window for strangers nearby ends, by the time for which this node ran.
    window_ends: Time,
    /// When the coordinator may next record that the join window is over.
    shut_window_at: Time,
    ticked: Time,
    /// This process did not run for a while: until then no deadline of requests, steps, loads and instances
    /// is looked at.
    grace_until: Time,
    awake: Awake,
    /// The view is stale; whether what changed of it is more than measurements.
    is_stale_view_news: Option<bool>,
    is_stopping: bool,
}

/// A message to this node itself.
#[allow(clippy::large_enum_variant, reason = "few are there at a time, and each is taken at once")]
#[derive(Debug)]
enum Local {
    Control(ControlMessage),
    Data(DataMessage),
}

/// The look at the models on disk.
#[derive(Default, Debug)]
struct Scan {
    is_under_way: bool,
    /// Those who wait for the next one, and whether that is the one under way.
    waiting: Vec<ReplyId>,
    again: bool,
}
