//! What a coordinator is told, what it wants done, and its deadlines.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use exo_planner::{Plan, PlanError, PlanRequest};
use exo_types::{Epoch, InstanceId, ModelId, NodeId};

use crate::wire::{ControlReply, DesiredState, Drain, NodeReport};
use crate::{Event, InstanceRequest, InstanceView, RemoveReason, State};

/// Deadlines of a coordinator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CoordinatorConfig {
    /// A loading stage without progress for this long fails the instance.
    pub load_deadline: Duration,
    /// A stage whose load failed so often in a row fails the instance: the same memory gives the same answer,
    /// and who asked is better told now.
    pub failed_loads_max: u32,
    /// A member whose report does not show the desired state is told again after this long.
    pub resend_after: Duration,
    /// A new coordinator waits this long for its members' reports before it calls their stages lost.
    pub settle: Duration,
    /// The data links of a member are given this long after its first report: a placement that needs one of
    /// them waits for it.
    pub links_open: Duration,
    /// A plan that is not there after this long is given up: an ask is refused, a replacement tried again
    /// later. The time in the queue counts, because somebody waits.
    pub plan_deadline: Duration,
    /// Replacements of one instance without becoming ready in between; one more removes it.
    pub replacements_max: u32,
    /// What a request loaded is unloaded when none has used it for so long; `None` never does.
    pub unload_idle_after: Option<Duration>,
}

impl Default for CoordinatorConfig {
    fn default() -> Self {
        Self {
            load_deadline: Duration::from_secs(120),
            failed_loads_max: 3,
            resend_after: Duration::from_secs(2),
            settle: Duration::from_secs(5),
            links_open: Duration::from_secs(10),
            plan_deadline: Duration::from_secs(30),
            replacements_max: 3,
            unload_idle_after: None,
        }
    }
}

/// Names one append to the log; grows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AppendId(pub u64);

/// Names one plan. No two coordinators, and no two epochs of one, give out the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PlanId {
    /// The epoch in which it was asked for: an answer after its end is dropped.
    pub epoch: Epoch,
    /// Grows within an epoch.
    pub number: u64,
}

/// Who asked, and their number for it. `node` may be this node itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ReplyTo {
    /// The asker.
    pub node: NodeId,
    /// The asker's number.
    pub request: u64,
}

/// What happens to a coordinator.
///
/// **The log handshake.** While leading, every lasting change comes out as [`CoordinatorOutput::Append`]; the
/// node writes the events to its journal in one transaction, replicates them, and answers `Appended` or
/// `AppendFailed` with the same id, in order. What depends on the change (desired states, replies) comes out
/// only then. While following, the node journals what it receives first and then tells the coordinator with
/// `Replicated`.
///
/// **The plan handshake.** Where to place a model comes out as [`CoordinatorOutput::Plan`], at most one at a
/// time. The node computes it where nothing waits and answers `Planned` with the same id. What changed
/// meanwhile is the coordinator's to find out, and so is an answer that never comes.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum CoordinatorInput {
    /// Time passed. At least once a second.
    Tick,
    /// This node was elected; the epoch is on disk.
    Lead { epoch: Epoch },
    /// Another node leads, or nobody.
    Follow,
    /// Membership says the node is alive (also said of this node).
    NodeUp(NodeId),
    /// Membership says the node is gone.
    NodeLost(NodeId),
    /// A member reported. `from` is the authenticated sender.
    Report { from: NodeId, report: Box<NodeReport> },
    /// Place a model, or answer with the instance that serves it already.
    Place { reply: ReplyTo, request: InstanceRequest },
    /// Remove an instance.
    Remove { reply: ReplyTo, instance: InstanceId, reason: RemoveReason },
    /// Move a node's stages elsewhere, or let it have some again.
    Drain { reply: ReplyTo, node: NodeId, drain: Drain },
    /// Ask the planner again where an instance should be.
    Replan {
        reply: ReplyTo,
        instance: InstanceId,
        /// Whether it is to be moved there if that is worth it.
        carry_out: bool,
    },
    /// Say with what a placement of a model would be planned now.
    PlannerInputs {
        reply: ReplyTo,
        model: ModelId,
        /// An instance that is to be replaced.
        replaced: Option<InstanceId>,
    },
    /// Who belongs to the cluster from now on, and what they are called.
    Members(BTreeMap<NodeId, String>),
    /// The events are durable.
    Appended(AppendId),
    /// The events could not be written, and none of later appends will be.
    AppendFailed { append: AppendId, reason: String },
    /// The planner answered.
    Planned { plan: PlanId, result: Result<Plan, PlanError> },
    /// While following: events arrived and are durable here.
    Replicated(Vec<Event>),
    /// While following: a snapshot arrived and is durable here.
    Restored(Box<State>),
}

/// What a coordinator wants done.
#[allow(clippy::large_enum_variant)] // handed on at once
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum CoordinatorOutput {
    /// Make these events durable in one transaction, then answer [`CoordinatorInput::Appended`].
    Append {
        /// The number to answer with.
        append: AppendId,
        /// In order.
        events: Vec<Event>,
    },
    /// Compute [`exo_planner::plan`] without holding up anything else, then answer
    /// [`CoordinatorInput::Planned`].
    Plan {
        /// The id to answer with.
        plan: PlanId,
        request: Arc<PlanRequest>,
    },
    /// Tell a worker (possibly this node's) what to hold.
    SendDesired { to: NodeId, desired: DesiredState },
    /// Answer a request.
    Reply { to: ReplyTo, reply: ControlReply },
    /// One instance changed its state: to show, to log.
    InstanceChanged(Box<InstanceView>),
    /// Tell every member, this node included, of all instances.
    Instances {
        epoch: Epoch,
        /// All of them.
        instances: Vec<InstanceView>,
    },
}
