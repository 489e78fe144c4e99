//! Questions to this node's machine, and through it to the coordinator.

use std::time::Duration;

use exo_api::{AdminError, ClusterView};
use exo_cluster::InstanceRequest;
use exo_cluster::bounds::time;
use exo_cluster::wire::{ControlAsk, ControlRefusal, ControlReply, PlannerInputs};
pub(crate) use exo_machine::bounds::ANSWER_MAX;
use exo_machine::bounds::COORDINATOR_MAX;
use exo_machine::{Answer, Question};
use exo_planner::{Figure, LinkFacts, PlanRequest};
use exo_types::{DiskRoom, InstanceId, ModelId, NodeId};
use tokio::sync::{oneshot, watch};

use crate::events::{Event, EventSender};

/// What whoever asks a node hears that is no member any more.
pub(crate) const REMOVED: &str = "this node was removed from its cluster, for good; its models stay: end it, and `exo leave` makes it a new one";

/// Why what was asked of the machine has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum NoAnswer {
    #[error("the node is shutting down")]
    Ending,
    /// The machine never waits itself, but for its disk.
    #[error(
        "this node had no answer within {}: it is busy, or waits for its disk; see `exo status` and ask again",
        time(*within)
    )]
    Late { within: Duration },
    #[error("this node gave an answer of another kind")]
    Other,
}

impl NoAnswer {
    /// Why this is not the answer.
    pub(crate) fn of(answer: Result<Answer, Self>) -> Self {
        answer.err().unwrap_or(Self::Other)
    }
}

impl From<NoAnswer> for AdminError {
    fn from(why: NoAnswer) -> Self {
        let message = why.to_string();
        match why {
            NoAnswer::Ending => unavailable(&message),
            NoAnswer::Late { .. } => Self::Late { message },
            NoAnswer::Other => Self::Failed { message },
        }
    }
}

/// What a thread that may wait for the disk comes to.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, AdminError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| AdminError::Failed { message: error.to_string() })
}

/// The same, for a disk that may not answer: `late` says what that means, given the time that it had.
pub(crate) async fn blocking_within<T: Send + 'static>(
    within: Duration,
    late: impl FnOnce(&str) -> String,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, AdminError> {
    let done = tokio::time::timeout(within, blocking(work)).await;
    done.unwrap_or_else(|_| Err(AdminError::Late { message: late(&time(within)) }))
}

pub(crate) async fn ask_node(
    node: &EventSender,
    question: Question,
    within: Duration,
) -> Result<Answer, NoAnswer> {
    let (answer, answered) = oneshot::channel();
    node.post(Event::Asked { question, answer });
    let answered = tokio::time::timeout(within, answered).await;
    answered.map_err(|_| NoAnswer::Late { within })?.map_err(|_| NoAnswer::Ending)
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
    let reply = match ask_node(node, question, COORDINATOR_MAX).await {
        Ok(Answer::Coordinator(Some(reply))) => reply,
        Ok(Answer::Coordinator(None)) => return Err(unavailable("the coordinator did not answer")),
        other => return Err(AdminError::from(NoAnswer::of(other))),
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

/// What every member knows of the cluster for a plan.
pub(crate) struct PlanFacts {
    /// What was measured of the links between them.
    pub(crate) links: Vec<LinkFacts>,
    /// What a hop takes beside the wire, where that was measured.
    pub(crate) hop_s: Option<Figure>,
    /// The room that disks have for the model's file.
    pub(crate) disks: Vec<(NodeId, DiskRoom)>,
}

impl PlanFacts {
    /// What the planner is asked for an instance.
    pub(crate) fn request(self, inputs: &PlannerInputs, wanted: &InstanceRequest) -> PlanRequest {
        let Self { links, hop_s, disks } = self;
        PlanRequest { hop_s, ..inputs.request(wanted, links, disks) }
    }
}

pub(crate) async fn plan_facts(node: &EventSender, model: ModelId) -> Result<PlanFacts, AdminError> {
    match ask_node(node, Question::PlanFacts { model }, ANSWER_MAX).await {
        Ok(Answer::PlanFacts { links, hop_s, disks }) => Ok(PlanFacts { links, hop_s, disks }),
        other => Err(AdminError::from(NoAnswer::of(other))),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::channel;

    #[tokio::test]
    async fn a_machine_that_is_held_up_is_not_one_that_ends() {
        let (node, inbox) = channel();
        let within = Duration::from_millis(20);
        let late = ask_node(&node, Question::Requests, within).await.expect_err("nobody answers");
        assert_eq!(late, NoAnswer::Late { within });
        let AdminError::Late { message } = AdminError::from(late) else { panic!("{late:?}") };
        assert!(message.contains("within 20 ms") && message.contains("`exo status`"), "{message}");
        let (asked, ()) =
            tokio::join!(ask_node(&node, Question::Requests, ANSWER_MAX), async { drop(inbox) });
        let ending = asked.expect_err("nobody answers");
        assert_eq!(ending, NoAnswer::Ending);
        assert!(matches!(AdminError::from(ending), AdminError::Unavailable { .. }));
    }
}
