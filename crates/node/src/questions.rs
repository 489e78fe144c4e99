//! Questions to this node's machine, and through it to the coordinator.

use std::time::Duration;

use exo_api::{AdminError, ClusterView};
use exo_cluster::wire::{ControlAsk, ControlRefusal, ControlReply, PlannerInputs};
use exo_machine::{Answer, Question};
use exo_planner::LinkFacts;
use exo_types::{DiskRoom, InstanceId, ModelId, NodeId};
use tokio::sync::{oneshot, watch};

use crate::events::{Event, EventSender};

/// For an answer of the machine, which never waits itself.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(12);
/// For an answer of the coordinator: longer than the machine waits for it.
const COORDINATOR_MAX: Duration = Duration::from_secs(45);
/// What whoever asks a node hears that is no member any more.
pub(crate) const REMOVED: &str = "this node was removed from its cluster, for good; its models stay: end it, and `exo leave` makes it a new one";

/// The machine's answer; `None` when the node is ending.
pub(crate) async fn ask_node(node: &EventSender, question: Question, within: Duration) -> Option<Answer> {
    let (answer, answered) = oneshot::channel();
    node.post(Event::Asked { question, answer });
    tokio::time::timeout(within, answered).await.ok()?.ok()
}

/// The answer of the coordinator, which a node that was removed does not ask.
pub(crate) async fn ask_coordinator(
    node: &EventSender,
    view: &watch::Receiver<ClusterView>,
    ask: ControlAsk,
) -> Result<ControlReply, AdminError> {
    let is_removed = {
        let nodes = &view.borrow().nodes;
        !nodes.is_empty() && !nodes.iter().any(|node| node.is_self)
    };
    if is_removed {
        return Err(AdminError::Conflict { message: REMOVED.to_owned() });
    }
    let question = Question::Coordinator(Box::new(ask));
    let Some(Answer::Coordinator(Some(reply))) = ask_node(node, question, COORDINATOR_MAX).await else {
        return Err(unavailable("the coordinator did not answer"));
    };
    match *reply {
        ControlReply::Refused(ControlRefusal::NotCoordinator(why)) => {
            Err(unavailable(&why.text(&|node| name_in(view, node))))
        }
        reply => Ok(reply),
    }
}

/// What a coordinator has refused, to be displayed: what its disk did not take is no conflict.
pub(crate) fn refused(view: &watch::Receiver<ClusterView>, refusal: &ControlRefusal) -> AdminError {
    let message = refusal.text(&|node| name_in(view, node));
    match refusal {
        ControlRefusal::LogFailed(_) => AdminError::Disk { message },
        _ => AdminError::Conflict { message },
    }
}

/// What a node is called, as the view has it.
pub(crate) fn name_in(view: &watch::Receiver<ClusterView>, node: NodeId) -> String {
    let id = node.to_full();
    let view = view.borrow();
    let known = view.nodes.iter().find(|known| known.id == id);
    known.map_or_else(|| node.to_string(), |known| known.name.clone())
}

/// With what the coordinator would plan a placement of the model, with what `replaced` holds as free.
pub(crate) async fn planner_inputs(
    node: &EventSender,
    view: &watch::Receiver<ClusterView>,
    model: ModelId,
    replaced: Option<InstanceId>,
) -> Result<PlannerInputs, AdminError> {
    match ask_coordinator(node, view, ControlAsk::PlannerInputs { model, replaced }).await? {
        ControlReply::PlannerInputs(inputs) => Ok(*inputs),
        ControlReply::Refused(refusal) => Err(refused(view, &refusal)),
        ControlReply::Placed { .. } | ControlReply::Done { .. } | ControlReply::Replanned(_) => {
            Err(other_answer())
        }
    }
}

/// Measured links, and the room that disks have for the model's file.
pub(crate) async fn plan_facts(
    node: &EventSender,
    model: ModelId,
) -> Result<(Vec<LinkFacts>, Vec<(NodeId, DiskRoom)>), AdminError> {
    match ask_node(node, Question::PlanFacts { model }, ANSWER_MAX).await {
        Some(Answer::PlanFacts { links, disks }) => Ok((links, disks)),
        _ => Err(unavailable("this node is ending")),
    }
}

/// The coordinator did not answer what was asked.
pub(crate) fn other_answer() -> AdminError {
    AdminError::Failed { message: "the coordinator gave an answer of another kind".to_owned() }
}

/// Later, it may be had.
pub(crate) fn unavailable(reason: &str) -> AdminError {
    AdminError::Unavailable { reason: reason.to_owned(), retry_after_s: 5 }
}
