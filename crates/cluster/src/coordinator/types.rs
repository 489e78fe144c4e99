//! What a coordinator is told, and what it wants done.

use std::collections::BTreeMap;
use std::sync::Arc;

use exo_planner::{Plan, PlanError, PlanRequest};
use exo_types::{Epoch, InstanceId, ModelId, NodeId};

use crate::wire::{ControlReply, DesiredState, Drain, NodeReport};
use crate::{Event, InstanceRequest, InstanceView, RemoveReason, State};

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
    /// Ask the planner again where an instance should be, and move it there if that is worth it and wanted.
    Replan { reply: ReplyTo, instance: InstanceId, carry_out: bool },
    /// Say with what a placement of a model would be planned now, in place of an instance or beside all.
    PlannerInputs { reply: ReplyTo, model: ModelId, replaced: Option<InstanceId> },
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
    Append { append: AppendId, events: Vec<Event> },
    /// Compute [`exo_planner::plan`] without holding up anything else, then answer
    /// [`CoordinatorInput::Planned`].
    Plan { plan: PlanId, request: Arc<PlanRequest> },
    /// Tell a worker (possibly this node's) what to hold.
    SendDesired { to: NodeId, desired: DesiredState },
    /// Answer a request.
    Reply { to: ReplyTo, reply: ControlReply },
    /// One instance changed its state: to show, to log.
    InstanceChanged(Box<InstanceView>),
    /// Tell every member, this node included, of all instances.
    Instances { epoch: Epoch, instances: Vec<InstanceView> },
}
