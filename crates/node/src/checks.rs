//! Checks of models of a hub against its digests: begun by a person, or when a model is ready that a command
//! or a request of this node had placed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use exo_accelerators::chain;
use exo_api::{CheckState, ClusterView, InstanceState, ModelCheckView};
use exo_machine::{Answer, Question, Resolved};
use exo_stdx::Mutex;
use exo_types::{InstanceId, ModelId};
use tokio::sync::watch;

use crate::checking::CheckOutcome;
use crate::events::EventSender;
use crate::library::Library;
use crate::library_error::LibraryError;
use crate::questions::{ANSWER_MAX, ask_node};

/// Results that are kept; the oldest name goes first.
const KEPT_MAX: usize = 64;
/// For a model that was placed to be ready.
const READY_MAX: Duration = Duration::from_secs(24 * 3600);

/// Checks under way and over.
pub struct Checks {
    node: EventSender,
    library: Arc<Library>,
    view: watch::Receiver<ClusterView>,
    all: Mutex<BTreeMap<ModelId, ModelCheckView>>,
    awaited: Awaited,
}

/// Models that are checked once they are ready as an instance.
struct Awaited {
    all: Mutex<BTreeMap<ModelId, AwaitedInstance>>,
    /// For one to be ready: its layers come over a slow line.
    ready_max: Duration,
}

impl Default for Awaited {
    fn default() -> Self {
        Self { all: Mutex::default(), ready_max: READY_MAX }
    }
}

/// The last instance that was noted of a model.
#[derive(Clone, Copy)]
struct AwaitedInstance {
    instance: InstanceId,
    /// Whether it was seen ready: no one waits any more.
    was_ready: bool,
}

impl Checks {
    pub fn new(node: EventSender, library: Arc<Library>, view: watch::Receiver<ClusterView>) -> Self {
        Self { node, library, view, all: Mutex::default(), awaited: Awaited::default() }
    }

    /// Those under way, and the last results.
    pub fn so_far(&self) -> Vec<ModelCheckView> {
        self.all.lock().values().cloned().collect()
    }

    /// Has what comes from a hub checked when it is ready as this instance, once for all who say so: as
    /// another, which this one replaces, it has other layers. Returns at once.
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
            let ready = checks.awaited.until_ready(model, checks.view.clone(), is_ready).await;
            let Some(ready) = ready else { return };
            let question = Question::Resolve { model: model.to_full() };
            if let Ok(Answer::Resolved(Ok(resolved))) = ask_node(&checks.node, question, ANSWER_MAX).await {
                checks.begin(*resolved);
            } else {
                checks.awaited.end_of(model, ready);
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
            let mut all = self.all.lock();
            if let Some(running) = all.get(&resolved.id).filter(|check| check.state == CheckState::Running) {
                return running.clone();
            }
            let over = all.iter().find(|(_, check)| check.state != CheckState::Running).map(|(id, _)| *id);
            if let Some(oldest) = over.filter(|_| all.len() >= KEPT_MAX) {
                all.remove(&oldest);
            }
            all.insert(resolved.id, began.clone());
        }
        let (checks, library, shown) = (self.clone(), self.library.clone(), began.clone());
        tokio::spawn(async move {
            let id = resolved.id;
            let outcome = outcome_of(async move { library.check(id, &resolved.holders).await }).await;
            let over = checks.over(began, outcome);
            tracing::info!(target: "events::model_check", model = %id, state = ?over.state, "checked");
            let is_answer = matches!(over.state, CheckState::Differs | CheckState::Matches);
            checks.all.lock().insert(id, over);
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

/// What a check comes to. One that panics has failed: else it would be under way as long as the node runs,
/// and whoever asks for another would wait for it.
async fn outcome_of(
    check: impl Future<Output = Result<CheckOutcome, LibraryError>> + Send + 'static,
) -> Result<CheckOutcome, LibraryError> {
    tokio::spawn(check).await.unwrap_or_else(|broken| Err(broken.into()))
}

impl Awaited {
    /// Notes the instance. True if it is the caller who waits for it now: not if it is noted already, and not
    /// if somebody waits for the model, who then waits for this instance in place of the one before.
    fn begin(&self, model: ModelId, instance: InstanceId) -> bool {
        let mut all = self.all.lock();
        let before = all.get(&model).copied();
        if before.is_some_and(|noted| noted.instance == instance) {
            return false;
        }
        let over = all.iter().find(|(_, noted)| noted.was_ready).map(|(model, _)| *model);
        if let Some(over) = over.filter(|_| before.is_none() && all.len() >= KEPT_MAX) {
            all.remove(&over);
        }
        all.insert(model, AwaitedInstance { instance, was_ready: false });
        before.is_none_or(|noted| noted.was_ready)
    }

    fn end(&self, model: ModelId) {
        self.all.lock().remove(&model);
    }

    /// The model is not awaited any more, unless another instance was noted meanwhile. True if it is not.
    fn end_of(&self, model: ModelId, instance: InstanceId) -> bool {
        let mut all = self.all.lock();
        let is_other = all.get(&model).is_some_and(|noted| noted.instance != instance);
        if !is_other {
            all.remove(&model);
        }
        !is_other
    }

    /// The last instance that was noted, once it is ready. `None` if that takes too long, or the node ends.
    /// One that was noted while another was waited for has a time of its own.
    async fn until_ready<V>(
        &self,
        model: ModelId,
        mut view: watch::Receiver<V>,
        is_shown: impl Fn(&V, InstanceId) -> bool,
    ) -> Option<InstanceId> {
        loop {
            let noted = self.all.lock().get(&model)?.instance;
            let mut ready = None;
            // Looked at and noted as ready at once: an instance noted in between would be no one's.
            let is_ready = |view: &V| {
                let mut all = self.all.lock();
                let noted = all.get_mut(&model).filter(|noted| is_shown(view, noted.instance));
                ready = noted.map(|noted| {
                    noted.was_ready = true;
                    noted.instance
                });
                ready.is_some()
            };
            match tokio::time::timeout(self.ready_max, view.wait_for(is_ready)).await {
                Ok(Ok(_)) => return ready,
                Ok(Err(_)) => {
                    self.end(model);
                    return None;
                }
                Err(_) if self.end_of(model, noted) => return None,
                Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: ModelId = ModelId([7; 32]);

    #[tokio::test]
    async fn a_check_that_panics_has_failed_and_is_not_under_way_for_ever() {
        let outcome = outcome_of(async { panic!("a bug in a comparison") }).await;
        assert!(matches!(outcome, Err(LibraryError::BrokenOff(_))), "{outcome:?}");
    }

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
        assert_eq!(wait.await, Some(second));
        assert!(awaited.begin(MODEL, first), "nobody waits any more");
    }

    /// Its placement was seen without an answer, and the answer to a second question names it again.
    #[tokio::test]
    async fn who_hears_of_an_instance_twice_has_it_checked_once() {
        let (instance, other) = (InstanceId(1), InstanceId(2));
        let (_ready, view) = watch::channel(Some(instance));
        let awaited = Awaited::default();
        assert!(awaited.begin(MODEL, instance));
        assert!(!awaited.begin(MODEL, instance), "while it is waited for");
        assert_eq!(awaited.until_ready(MODEL, view, shown).await, Some(instance));
        assert!(!awaited.begin(MODEL, instance), "and when it was ready");
        assert!(awaited.begin(MODEL, other), "another has other layers");
        // What could not be checked may be asked for again.
        assert!(awaited.end_of(MODEL, other) && awaited.begin(MODEL, other));
    }

    #[tokio::test]
    async fn an_instance_that_is_noted_while_another_is_given_up_is_still_waited_for() {
        let [first, second] = [InstanceId(1), InstanceId(2)];
        let (_ready, view) = watch::channel(());
        let awaited = Awaited { ready_max: Duration::from_millis(20), ..Awaited::default() };
        assert!(awaited.begin(MODEL, first));
        // The view is looked at when a wait begins, and does not change.
        let mut wait = Box::pin(awaited.until_ready(MODEL, view.clone(), |(), instance| instance == second));
        tokio::select! {
            biased;
            _ = &mut wait => panic!("the first is not ready"),
            () = std::future::ready(()) => {}
        }
        assert!(!awaited.begin(MODEL, second), "one waits already");
        assert_eq!(wait.await, Some(second));
        // And one that never comes is given up.
        assert!(awaited.begin(MODEL, first));
        assert_eq!(awaited.until_ready(MODEL, view, |(), _| false).await, None);
        assert!(awaited.begin(MODEL, first));
    }

    #[test]
    fn models_that_were_ready_are_forgotten_before_those_that_are_waited_for() {
        let awaited = Awaited::default();
        let model = |n: usize| ModelId([u8::try_from(n).unwrap(); 32]);
        for n in 0..KEPT_MAX {
            assert!(awaited.begin(model(n), InstanceId(1)));
        }
        awaited.all.lock().get_mut(&model(3)).unwrap().was_ready = true;
        assert!(awaited.begin(model(KEPT_MAX), InstanceId(1)));
        let left = awaited.all.lock().len();
        assert!(left == KEPT_MAX && !awaited.begin(model(0), InstanceId(1)));
        assert!(awaited.begin(model(3), InstanceId(1)));
    }

    #[tokio::test]
    async fn nobody_waits_any_more_when_the_node_has_ended() {
        let (ready, view) = watch::channel(None);
        let awaited = Awaited::default();
        assert!(awaited.begin(MODEL, InstanceId(1)));
        drop(ready);
        assert_eq!(awaited.until_ready(MODEL, view, shown).await, None);
        assert!(awaited.begin(MODEL, InstanceId(2)));
    }
}
