//! Checks of models of a hub against its digests: begun by a person, or when a model is ready that a command
//! or a request of this node had placed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use exo_api::{AdminError, CheckState, ClusterView, InstanceState, ModelCheckView};
use exo_machine::{Answer, Question, Resolved};
use exo_types::ModelId;
use tokio::sync::watch;

use super::{ANSWER_MAX, NodeFacade, ask_node};
use crate::checking::CheckOutcome;
use crate::events::EventSender;
use crate::library::Library;
use crate::library_error::LibraryError;
use exo_accelerators::chain;

/// Results that are kept; the oldest name goes first.
const KEPT_MAX: usize = 64;
/// For a model that was placed to be ready: its layers come over a slow line.
const READY_MAX: Duration = Duration::from_secs(24 * 3600);

/// Checks under way and over.
#[derive(Default)]
pub struct Checks {
    all: Mutex<BTreeMap<ModelId, ModelCheckView>>,
    /// Models that are checked once they are ready.
    awaited: Mutex<BTreeSet<ModelId>>,
}

impl Checks {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ModelId, ModelCheckView>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn awaited(&self) -> MutexGuard<'_, BTreeSet<ModelId>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a check needs of a node.
struct Checker {
    node: EventSender,
    library: Arc<Library>,
    checks: Arc<Checks>,
    view: watch::Receiver<ClusterView>,
}

impl NodeFacade {
    pub(super) fn checks_so_far(&self) -> Vec<ModelCheckView> {
        self.checks.lock().values().cloned().collect()
    }

    /// Begins a check, or finds the one that is under way.
    pub(super) async fn begin_check(&self, model: String) -> Result<ModelCheckView, AdminError> {
        let resolved = self.resolve(&model).await.map_err(|m| m.for_admin(&model))?;
        Ok(self.checker().begin(resolved))
    }

    /// Whether a model may be placed, by a command or a request of this node: not once a check has found that
    /// it is not what its hub promised.
    pub(super) async fn check_placeable(&self, model: ModelId) -> Result<(), LibraryError> {
        match self.library.record(model).await? {
            Some(record) if record.checked == Some(false) => Err(LibraryError::Differs { id: model }),
            _ => Ok(()),
        }
    }

    /// Has what comes from a hub checked when it is ready: a model that is about to be placed, or has been.
    /// Not before an instance that it replaces is gone, whose layers would be checked.
    pub(super) async fn check_placed(&self, model: ModelId) {
        match self.library.record(model).await {
            Ok(Some(record)) if record.is_of_hub => self.check_when_ready(model),
            Ok(_) => {}
            Err(error) => tracing::warn!(%model, error = chain(&error), "a model is placed without a check"),
        }
    }

    /// Whether an instance runs it, or is to.
    pub(super) fn is_placed(&self, model: ModelId) -> bool {
        let id = model.to_full();
        self.view.borrow().instances.iter().any(|instance| instance.model_id == id)
    }

    fn check_when_ready(&self, model: ModelId) {
        if !self.checks.awaited().insert(model) {
            return;
        }
        let (mut checker, id) = (self.checker(), model.to_full());
        tokio::spawn(async move {
            let is_ready = |view: &ClusterView| {
                view.instances.iter().any(|i| i.model_id == id && matches!(i.state, InstanceState::Ready))
            };
            let ready = tokio::time::timeout(READY_MAX, checker.view.wait_for(is_ready)).await;
            let is_ready = ready.is_ok_and(|seen| seen.is_ok());
            checker.checks.awaited().remove(&model);
            if !is_ready {
                return;
            }
            let question = Question::Resolve { model: model.to_full() };
            if let Some(Answer::Resolved(Ok(resolved))) = ask_node(&checker.node, question, ANSWER_MAX).await
            {
                checker.begin(*resolved);
            }
        });
    }

    fn checker(&self) -> Checker {
        let (node, library) = (self.node.clone(), self.library.clone());
        Checker { node, library, checks: self.checks.clone(), view: self.view.clone() }
    }
}

impl Checker {
    fn begin(self, resolved: Resolved) -> ModelCheckView {
        let began = ModelCheckView {
            model: resolved.name.clone(),
            id: resolved.id.to_full(),
            state: CheckState::Running,
            bytes: 0,
            nodes: Vec::new(),
            message: None,
        };
        {
            let mut all = self.checks.lock();
            if let Some(running) = all.get(&resolved.id).filter(|check| check.state == CheckState::Running) {
                return running.clone();
            }
            let over = all.iter().find(|(_, check)| check.state != CheckState::Running).map(|(id, _)| *id);
            if let Some(oldest) = over.filter(|_| all.len() >= KEPT_MAX) {
                all.remove(&oldest);
            }
            all.insert(resolved.id, began.clone());
        }
        let shown = began.clone();
        tokio::spawn(async move {
            let outcome = self.library.check(resolved.id, &resolved.holders).await;
            let over = self.over(began, outcome);
            tracing::info!(target: "events::model_check", model = %resolved.id, state = ?over.state, "checked");
            let is_answer = matches!(over.state, CheckState::Differs | CheckState::Matches);
            self.checks.lock().insert(resolved.id, over);
            if is_answer {
                // Which raises the alert, or ends it.
                crate::library::room::list_again(&self.node).await;
            }
        });
        shown
    }

    fn over(&self, began: ModelCheckView, outcome: Result<CheckOutcome, LibraryError>) -> ModelCheckView {
        match outcome {
            Ok(CheckOutcome::Matches { bytes, nodes }) => {
                let view = self.view.borrow();
                let name = |id: String| {
                    view.nodes.iter().find(|n| n.id == id).map_or(id.clone(), |n| n.name.clone())
                };
                let nodes = nodes.into_iter().map(|node| name(node.to_full())).collect();
                ModelCheckView { state: CheckState::Matches, bytes, nodes, ..began }
            }
            Ok(CheckOutcome::Differs { file }) => {
                let file = exo_types::printable(&file, 100);
                let message = format!(
                    "{file} is not what the hub promised: what the machines have of it is of no use; `exo models remove` the model on each, and fetch it again"
                );
                tracing::error!(model = %began.model, file, "a file is not what the hub promised");
                ModelCheckView { state: CheckState::Differs, message: Some(message), ..began }
            }
            Ok(CheckOutcome::Missing { file, start }) => {
                let file = exo_types::printable(&file, 100);
                let message = format!("no machine that is there has {file} from byte {start} on");
                ModelCheckView { state: CheckState::Incomplete, message: Some(message), ..began }
            }
            Err(error) => ModelCheckView { state: CheckState::Failed, message: Some(chain(&error)), ..began },
        }
    }
}
