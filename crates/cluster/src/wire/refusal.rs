//! Why the coordinator did not do what was asked: a closed set with its numbers. Whoever shows it makes the
//! sentence.

use exo_types::{InstanceId, NodeId, list};
use serde::{Deserialize, Serialize};

use super::limits::INSTANCES_MAX;
use crate::names::NodeName;
use crate::reasons::apart_text;

/// Why the coordinator did not do what was asked.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum ControlRefusal {
    /// Who was asked does not coordinate, or not yet: ask again.
    NotCoordinator(NotCoordinator),
    /// The model fits nowhere.
    DoesNotFit(NoPlan),
    /// There is nothing that this could be done to.
    Unknown(UnknownTarget),
    /// The request contradicts itself or the cluster's state.
    Invalid(InvalidAsk),
    /// The log could not be written.
    LogFailed(LogFailure),
    /// As much waits already as may wait.
    Busy(Busyness),
    /// There was no plan in time, or none that lasted: whether the model fits is not known.
    NoPlan {
        /// The model that was to be placed; `None` for one that stands.
        model_name: Option<String>,
        /// Why there is no plan.
        why: Undecided,
    },
    /// What requests loaded would make room for it, and is in use: ask again.
    InUse {
        /// These models.
        #[serde(deserialize_with = "list::<_, _, INSTANCES_MAX>")]
        model_names: Vec<String>,
    },
}

/// Why who was asked decides nothing now.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // the messages say what the fields are
pub enum NotCoordinator {
    /// It does not lead any more.
    SteppedDown,
    /// It does not lead.
    Member { node: NodeId },
    /// It leads, and hears none of its members.
    Alone,
    /// Another was elected before a second member had what was decided on its disk.
    Superseded,
    /// None is elected. The asker says so itself.
    Electing,
    /// The asker has no link to it.
    NoLink { to: NodeId },
    /// The asker does not reach the coordinator that others follow.
    CutOff { member: NodeId, coordinator: NodeId },
}

/// What is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum UnknownTarget {
    /// No such instance.
    Instance(InstanceId),
    /// No such member.
    Member(NodeId),
    /// The instance was unloaded while it was planned.
    Unloaded,
    /// The instance was removed before it was durable.
    Removed(InstanceId),
}

/// What contradicts itself or the cluster.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // the messages say what the fields are
pub enum InvalidAsk {
    /// The model is placed, or about to be, for another request.
    PlacedOtherwise {
        model_name: String,
        differs: RequestDifference,
        /// Its plan is being made: it is not placed yet.
        is_planned: bool,
    },
    /// Only the node itself knows that it leaves.
    LeavesForOther(NodeId),
    /// The instance does not serve now.
    NotServing(InstanceId),
    /// No plan meets it, whatever is free.
    NoPlan(NoPlan),
    /// What is out of its bounds, as the one who checked it says.
    OutOfBounds(String),
}

/// Why the instance that there is does not do for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RequestDifference {
    /// It names other devices.
    Devices,
    /// It asks for another throughput.
    Objective,
}

/// That the planner finds nothing.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NoPlan {
    /// What it says of the cluster as it is.
    pub explanation: String,
    /// Models that requests loaded; unloading them would not be enough.
    #[serde(deserialize_with = "list::<_, _, INSTANCES_MAX>")]
    pub unloaded: Vec<String>,
}

/// Why a decision is not in the log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LogFailure {
    /// So many changes wait for it.
    Full {
        /// How many.
        changes: u32,
    },
    /// The disk did not take it, as the system says.
    Write(String),
}

/// What waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Busyness {
    /// So many questions of the asker.
    Questions(u32),
    /// So many plans.
    Plans(u32),
}

/// Why it is not known whether there is a plan.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // the messages say what the fields are
pub enum Undecided {
    /// There is one over two nodes that do not talk.
    Apart { a: NodeId, b: NodeId },
    /// It did not come in time.
    Late { seconds: u64 },
    /// The cluster changed each time.
    Changed {
        times: u32,
        /// Why the last plan did not fit any more, as the planner says.
        at_last: String,
    },
    /// The instance was unloaded meanwhile.
    Unloaded,
    /// A device of what stands is not reported now.
    Unpredictable,
}

impl ControlRefusal {
    /// The sentence.
    pub fn text(&self, name: NodeName<'_>) -> String {
        match self {
            Self::NotCoordinator(why) => why.text(name),
            Self::DoesNotFit(plan) | Self::Invalid(InvalidAsk::NoPlan(plan)) => plan.text(),
            Self::Unknown(what) => what.text(name),
            Self::Invalid(what) => what.text(name),
            Self::LogFailed(LogFailure::Full { changes }) => {
                format!("{changes} changes are waiting for the log")
            }
            Self::LogFailed(LogFailure::Write(error)) => format!("the log could not be written: {error}"),
            Self::Busy(Busyness::Questions(asked)) => {
                format!("{asked} questions of this node are waiting for an answer; ask again later")
            }
            Self::Busy(Busyness::Plans(queued)) => {
                format!("{queued} plans are waiting for another; ask again later")
            }
            Self::NoPlan { model_name: Some(model), why } => {
                format!("{model} is not placed: {}", why.text(name))
            }
            Self::NoPlan { model_name: None, why } => why.text(name),
            Self::InUse { model_names } => in_use_text(model_names),
        }
    }
}

/// That models are in use where room is needed.
pub(crate) fn in_use_text(model_names: &[String]) -> String {
    format!("waiting for room: {} is in use", model_names.join(", "))
}

impl NotCoordinator {
    /// The sentence.
    pub fn text(&self, name: NodeName<'_>) -> String {
        match self {
            Self::SteppedDown => "this node does not lead (any more); ask again".to_owned(),
            Self::Member { node } => format!("{} does not coordinate", name(*node)),
            Self::Alone => "the coordinator hears none of its members; it decides when it does".to_owned(),
            Self::Superseded => {
                "another coordinator was elected before a second member had this on its disk".to_owned()
            }
            Self::Electing => "the cluster is electing a coordinator".to_owned(),
            Self::NoLink { to } => format!("the link to the coordinator {} is not open", name(*to)),
            Self::CutOff { member, coordinator } => format!(
                "this node does not reach {}, which coordinates its cluster; {} does: ask there, or see that the two \
                 machines reach each other (exo's port, UDP and TCP, in both firewalls)",
                name(*coordinator),
                name(*member)
            ),
        }
    }
}

impl UnknownTarget {
    fn text(&self, name: NodeName<'_>) -> String {
        match self {
            Self::Instance(instance) => format!("there is no instance {instance}"),
            Self::Member(node) => format!("{} is not a member of this cluster", name(*node)),
            Self::Unloaded => "it was unloaded meanwhile".to_owned(),
            Self::Removed(instance) => format!("instance {instance} was removed before it was durable"),
        }
    }
}

impl InvalidAsk {
    fn text(&self, name: NodeName<'_>) -> String {
        match self {
            Self::PlacedOtherwise { model_name, differs, is_planned } => {
                let other = match differs {
                    RequestDifference::Devices => "other pins or exclusions",
                    RequestDifference::Objective => "another objective",
                };
                let what_to_do = match is_planned {
                    true => ", and its plan is being made; ask again when it is placed",
                    false => "; ask for it to be replaced (`exo place --replace`), or unload it",
                };
                format!("`{model_name}` is placed already, with {other}{what_to_do}")
            }
            Self::LeavesForOther(node) => format!("only {} itself knows that it leaves", name(*node)),
            Self::NotServing(instance) => format!("{instance} does not serve now; ask again when it does"),
            Self::NoPlan(plan) => plan.text(),
            Self::OutOfBounds(what) => what.clone(),
        }
    }
}

impl NoPlan {
    /// The sentence.
    pub fn text(&self) -> String {
        match &self.unloaded[..] {
            [] => self.explanation.clone(),
            names => format!("{}; unloading {} would not be enough", self.explanation, names.join(", ")),
        }
    }
}

impl Undecided {
    fn text(&self, name: NodeName<'_>) -> String {
        match self {
            Self::Apart { a, b } => apart_text(&name(*a), &name(*b)),
            Self::Late { seconds } => format!("there was no plan within {seconds} s"),
            Self::Changed { times, at_last } => {
                format!("the cluster changed {times} times while it was planned; at last {at_last}")
            }
            Self::Unloaded => "it was unloaded meanwhile".to_owned(),
            Self::Unpredictable => {
                "what stands cannot be predicted: a device of it is not reported now".to_owned()
            }
        }
    }
}
