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
    awaited: Awaited,
}

/// Models that are checked once they are ready as this instance.
#[derive(Default)]
struct Awaited(Mutex<BTreeMap<ModelId, InstanceId>>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Checks {
    /// None yet.
    pub fn new(node: EventSender, library: Arc<Library>, view: watch::Receiver<ClusterView>) -> Self {
        Self { node, library, view, all: Mutex::default(), awaited: Awaited::default() }
    }

    /// Those under way, and the last results.
    pub fn so_far(&self) -> Vec<ModelCheckView> {
        lock(&self.all).values().cloned().collect()
    }

    /// Has what comes from a hub checked when it is ready as this instance: as another, which this one
    /// replaces, it has other layers. Returns at once.
    pub fn when_ready(self: &Arc<Self>, model: ModelId, instance: InstanceId) {
        if !self.awaited.begin(model, instance) {
            return;
        }
        let checks = self.clone();
        tokio::spawn(async move {
            if !checks.is_of_hub(model).await {
                return checks.awaited.end(model);
            }
            let is_ready = |view: &ClusterView, instance: InstanceId| {
                let id = instance.to_string();
                view.instances.iter().any(|i| i.state == InstanceState::Ready && i.id == id)
            };
            if !checks.awaited.until_ready(model, checks.view.clone(), is_ready).await {
                return;
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
                crate::library::eviction::list_again(&checks.node).await;
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

impl Awaited {
    /// Notes the instance. False if somebody waits for this model already: then for this instance, in place
    /// of the one before.
    fn begin(&self, model: ModelId, instance: InstanceId) -> bool {
        lock(&self.0).insert(model, instance).is_none()
    }

    fn end(&self, model: ModelId) {
        lock(&self.0).remove(&model);
    }

    /// Waits until the last instance that was noted is ready. False if that takes too long, or the node ends.
    /// The model is not awaited any more then.
    async fn until_ready<V>(
        &self,
        model: ModelId,
        mut view: watch::Receiver<V>,
        is_shown: impl Fn(&V, InstanceId) -> bool,
    ) -> bool {
        // Looked at and let go of at once: an instance noted in between would be nobody's.
        let is_ready = |view: &V| {
            let mut awaited = lock(&self.0);
            let is_ready = awaited.get(&model).is_some_and(|instance| is_shown(view, *instance));
            if is_ready {
                awaited.remove(&model);
            }
            is_ready
        };
        let ready = tokio::time::timeout(READY_MAX, view.wait_for(is_ready)).await;
        let is_ready = matches!(ready, Ok(Ok(_)));
        if !is_ready {
            self.end(model);
        }
        is_ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: ModelId = ModelId([7; 32]);

    /// What is ready.
    fn shown(ready: &Option<InstanceId>, instance: InstanceId) -> bool {
        *ready == Some(instance)
    }

    /// As the first instance, it has other layers than as the one that is placed in its stead.
    #[tokio::test]
    async fn what_replaced_an_instance_is_waited_for_in_its_stead_by_whoever_waited() {
        let [first, second] = [InstanceId(1), InstanceId(2)];
        let (ready, view) = watch::channel(None);
        let awaited = Awaited::default();
        assert!(awaited.begin(MODEL, first));
        let mut wait = Box::pin(awaited.until_ready(MODEL, view, shown));
        assert!(!awaited.begin(MODEL, second), "one waits already");
        ready.send_replace(Some(first));
        tokio::select! {
            biased;
            _ = &mut wait => panic!("the first was replaced"),
            () = std::future::ready(()) => {}
        }
        ready.send_replace(Some(second));
        assert!(wait.await);
        assert!(awaited.begin(MODEL, first), "nobody waits any more");
    }

    #[tokio::test]
    async fn nobody_waits_any_more_when_the_node_has_ended() {
        let (ready, view) = watch::channel(None);
        let awaited = Awaited::default();
        assert!(awaited.begin(MODEL, InstanceId(1)));
        drop(ready);
        assert!(!awaited.until_ready(MODEL, view, shown).await);
        assert!(awaited.begin(MODEL, InstanceId(2)));
    }
}
