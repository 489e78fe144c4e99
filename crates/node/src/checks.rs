//! Checks of models of a hub against its digests: begun by a person, or when a model is ready that a command
//! or a request of this node had placed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use exo_accelerators::chain;
use exo_api::{CheckState, ClusterView, InstanceState, ModelCheckView};
use exo_machine::{Answer, Question, Resolved};
use exo_types::{InstanceId, ModelId};
use tokio::sync::watch;

use crate::checking::CheckOutcome;
use crate::events::EventSender;
use crate::library::Library;
use crate::library_error::LibraryError;
use crate::questions::{ANSWER_MAX, ask_node};

/// Results that are kept; the oldest name goes first.
const KEPT_MAX: usize = 64;
/// For a model that was placed to be ready: its layers come over a slow line.
const READY_MAX: Duration = Duration::from_secs(24 * 3600);

/// Checks under way and over.
pub struct Checks {
    node: EventSender,
    library: Arc<Library>,
    view: watch::Receiver<ClusterView>,
    all: Mutex<BTreeMap<ModelId, ModelCheckView>>,
    /// Models that are checked once they are ready as this instance.
    awaited: Mutex<BTreeMap<ModelId, InstanceId>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Checks {
    /// None yet.
    pub fn new(node: EventSender, library: Arc<Library>, view: watch::Receiver<ClusterView>) -> Self {
        Self { node, library, view, all: Mutex::default(), awaited: Mutex::default() }
    }

    /// Those under way, and the last results.
    pub fn so_far(&self) -> Vec<ModelCheckView> {
        lock(&self.all).values().cloned().collect()
    }

    /// Has what comes from a hub checked when it is ready as this instance: as another, which this one
    /// replaces, it has other layers. Returns at once.
    pub fn when_ready(self: &Arc<Self>, model: ModelId, instance: InstanceId) {
        if lock(&self.awaited).insert(model, instance).is_some() {
            return; // whoever waited for the instance before waits for this one now
        }
        let checks = self.clone();
        tokio::spawn(async move {
            let is_of_hub = checks.is_of_hub(model).await;
            loop {
                let ready = if is_of_hub { checks.ready(model).await } else { None };
                let mut awaited = lock(&checks.awaited);
                // Another may have replaced it since: then that one is waited for.
                if ready.is_none() || awaited.get(&model) == ready.as_ref() {
                    awaited.remove(&model);
                    if ready.is_none() {
                        return;
                    }
                    break;
                }
            }
            let question = Question::Resolve { model: model.to_full() };
            if let Some(Answer::Resolved(Ok(resolved))) = ask_node(&checks.node, question, ANSWER_MAX).await {
                checks.begin(*resolved);
            }
        });
    }

    async fn is_of_hub(&self, model: ModelId) -> bool {
        match self.library.record(model).await {
            Ok(record) => record.is_some_and(|record| record.is_of_hub),
            Err(error) => {
                tracing::warn!(%model, error = chain(&error), "a model is placed without a check");
                false
            }
        }
    }

    /// The instance that is awaited, once it is ready; `None` if that takes too long, or the node ends.
    async fn ready(&self, model: ModelId) -> Option<InstanceId> {
        let mut found = None;
        let is_ready = |view: &ClusterView| {
            let awaited = lock(&self.awaited).get(&model).copied();
            let is_it = |id: &InstanceId| {
                let text = id.to_string();
                view.instances.iter().any(|i| i.state == InstanceState::Ready && i.id == text)
            };
            found = awaited.filter(is_it);
            found.is_some()
        };
        let mut view = self.view.clone();
        tokio::time::timeout(READY_MAX, view.wait_for(is_ready)).await.ok()?.ok()?;
        found
    }

    /// Begins a check, or finds the one that is under way.
    pub fn begin(self: &Arc<Self>, resolved: Resolved) -> ModelCheckView {
        let began = ModelCheckView {
            model: resolved.name.clone(),
            id: resolved.id.to_full(),
            state: CheckState::Running,
            bytes: 0,
            nodes: Vec::new(),
            message: None,
        };
        {
            let mut all = lock(&self.all);
            if let Some(running) = all.get(&resolved.id).filter(|check| check.state == CheckState::Running) {
                return running.clone();
            }
            let over = all.iter().find(|(_, check)| check.state != CheckState::Running).map(|(id, _)| *id);
            if let Some(oldest) = over.filter(|_| all.len() >= KEPT_MAX) {
                all.remove(&oldest);
            }
            all.insert(resolved.id, began.clone());
        }
        let (checks, shown) = (self.clone(), began.clone());
        tokio::spawn(async move {
            let outcome = checks.library.check(resolved.id, &resolved.holders).await;
            let over = checks.over(began, outcome);
            tracing::info!(target: "events::model_check", model = %resolved.id, state = ?over.state, "checked");
            let is_answer = matches!(over.state, CheckState::Differs | CheckState::Matches);
            lock(&checks.all).insert(resolved.id, over);
            if is_answer {
                // Which raises the alert, or ends it.
                crate::library::room::list_again(&checks.node).await;
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
