//! The drivers of this node's clients, and the placing of models that requests ask for.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use exo_api::{GenerateError, RequestPhase, RequestView};
#[cfg(feature = "planted")]
use exo_cluster::wire::DataMessage;
use exo_cluster::wire::{ControlAsk, ControlRefusal, ControlReply, InstanceFailure};
use exo_cluster::{
    Driver, DriverInput, DriverOutput, DriverPhase, InstanceRequest, InstanceState, InstanceView,
    InterruptCause, StageStatus, StageView,
};
use exo_types::{FailureKind, InstanceId, ModelId, Principal, RequestId, SequenceId, Time};

use crate::coordination::Asker;
use crate::cut_off::RETRY_AFTER_S;
use crate::placement_wait::PlacementWait;
use crate::view::step_times_view;
use crate::waiting::{FetchWatch, slowest_fetch};
use crate::{Effect, NodeMachine, RequestWait, SequenceEvent, StartRequest, StreamId};

/// A sequence that this node drives.
#[derive(Debug)]
pub(crate) struct DriverEntry {
    driver: Driver,
    stream: StreamId,
    model: ModelId,
    /// To place the model if it is not placed.
    place: Arc<InstanceRequest>,
    /// What the client was last told that it waits for.
    told: RequestWait,
    /// Since when it waits for a link.
    pub(crate) link_waited_since: Option<Time>,
    is_started: bool,
    /// What computed it is lost, and it has not gone on yet.
    is_interrupted: bool,
    principal: Principal,
    came_at: Time,
    prompt_tokens: u32,
    /// Tokens since it was last begun or begun again.
    tokens_since: u32,
    /// The fetch that it waits for, to know how fast bytes come.
    fetching: Option<FetchWatch>,
    /// How often it went on after an interruption.
    resumed: u32,
    /// When the client last heard that its request is watched: any news but what it waits for.
    told_at: Time,
}

/// A request of which there is no news says this often that its deadlines are watched.
pub(crate) const WATCHED_EVERY: Duration = Duration::from_secs(20);
/// Why requests end on a node that is no member any more.
const REMOVED: &str = "this node was removed from its cluster";

impl DriverEntry {
    pub(crate) fn phase(&self) -> DriverPhase {
        self.driver.phase()
    }

    pub(crate) fn model(&self) -> ModelId {
        self.model
    }
}

impl NodeMachine {
    pub(crate) fn start_request(&mut self, stream: StreamId, request: StartRequest) {
        let StartRequest { config, starts, place, backup } = request;
        if let (Some(backup), Some(first)) = (backup, starts.first()) {
            self.back_up(first.spec.sequence.request, backup);
        }
        let (place, links, instances) =
            (Arc::new(place), self.links.open_data().clone(), self.instances.clone());
        for start in starts {
            let (id, model) = (start.spec.sequence, start.model);
            let (principal, prompt_tokens) = (start.spec.principal, start.spec.prompt_tokens);
            let driver = Driver::new(config, self.awake.now(), start);
            let entry = DriverEntry {
                driver,
                stream,
                model,
                place: place.clone(),
                told: RequestWait::default(),
                link_waited_since: None,
                is_started: false,
                is_interrupted: false,
                principal,
                came_at: self.awake.now(),
                prompt_tokens,
                tokens_since: 0,
                fetching: None,
                resumed: 0,
                told_at: self.awake.now(),
            };
            self.drivers.insert(id, entry);
            self.feed_driver(id, DriverInput::Links(links.clone()));
            self.feed_driver(id, DriverInput::Instances(instances.to_vec()));
        }
        self.place_if_missing(&place);
    }

    /// Asks for the model to be placed unless an instance of it is there or on its way.
    fn place_if_missing(&mut self, request: &InstanceRequest) {
        let model = request.model;
        if self.is_removed() {
            return self.refuse_waiting(model, false, REMOVED);
        }
        let now = self.awake.now();
        let waits = self.asks.unplaceable.get(&model).is_some_and(|wait| wait.again_at > now);
        if self.placed_as(model).is_none() && !waits && !self.asks.is_placing(model) {
            self.ask(Asker::Placement(model), ControlAsk::Place(request.clone()));
        }
    }

    /// The instance of a model that is there or on its way. One that was unloaded is told once more, as
    /// failed.
    pub(crate) fn placed_as(&self, model: ModelId) -> Option<&InstanceView> {
        let is_alive = |i: &&InstanceView| !matches!(i.state, InstanceState::Failed { .. });
        self.instances.iter().filter(is_alive).find(|i| i.model() == model)
    }

    /// The coordinator's answer to a placement that a request caused.
    pub(crate) fn placed(&mut self, model: ModelId, reply: Option<ControlReply>) {
        let before = self.asks.unplaceable.remove(&model);
        match reply {
            Some(ControlReply::Refused(
                refusal @ (ControlRefusal::InUse { .. }
                | ControlRefusal::LogFailed(_)
                | ControlRefusal::Busy(_)
                | ControlRefusal::NoPlan { .. }),
            )) => self.cannot_place(model, &refusal, before.as_ref()),
            // Over in a moment: asked again. What a coordinator had in its log when it ceased to be one may
            // be in the next one's.
            None | Some(ControlReply::Refused(ControlRefusal::NotCoordinator(_))) => {
                self.asks.note_unanswered(model, self.now.time);
            }
            // Another one has had it placed meanwhile.
            Some(ControlReply::Refused(refusal)) if self.placed_as(model).is_some() => {
                tracing::trace!(%model, ?refusal, "a refusal of a model that is placed by now");
            }
            Some(ControlReply::Refused(refusal)) => {
                self.asks.unanswered.remove(&model);
                let message = refusal.text(&|node| self.name_of(node));
                let is_too_large = matches!(refusal, ControlRefusal::DoesNotFit(_));
                self.refuse_waiting(model, is_too_large, &message);
            }
            Some(ControlReply::Placed { view, .. }) => self.check_placed(model, view.instance()),
            Some(_) => {}
        }
    }

    /// Over in a while: asked again, and its clients hear why they wait. What is over two members that have
    /// had no data link for long is not waited for.
    fn cannot_place(&mut self, model: ModelId, refusal: &ControlRefusal, before: Option<&PlacementWait>) {
        let (now, why) = (self.awake.now(), refusal.text(&|node| self.name_of(node)));
        let wait = PlacementWait::new(now, refusal, why, before);
        if wait.is_apart_for_long(now) && self.placed_as(model).is_none() {
            let new = self.drivers.iter().filter(|(_, entry)| entry.model == model && !entry.is_started);
            for id in new.map(|(id, _)| *id).collect::<Vec<_>>() {
                let (reason, retry_after_s) = (wait.why.clone(), RETRY_AFTER_S);
                self.refuse_request(id, GenerateError::Unavailable { reason, retry_after_s });
            }
        }
        self.asks.unplaceable.insert(model, wait);
        let waiting: Vec<SequenceId> =
            self.drivers.iter().filter(|(_, entry)| entry.model == model).map(|(id, _)| *id).collect();
        waiting.into_iter().for_each(|id| self.tell_phase(id));
    }

    fn check_placed(&mut self, model: ModelId, instance: InstanceId) {
        self.asks.unanswered.remove(&model);
        self.out.push(Effect::Check { model, instance });
    }

    /// What was placed is checked, too, where the answer that said so was lost with its link.
    fn check_unanswered(&mut self) {
        let placed = self.asks.unanswered.iter();
        let placed: Vec<(ModelId, InstanceId)> =
            placed.filter_map(|(model, _)| Some((*model, self.placed_as(*model)?.instance()))).collect();
        for (model, instance) in placed {
            self.check_placed(model, instance);
        }
    }

    /// Requests that wait for a model that its device refused are told why, once, instead of having it placed
    /// again. Later ones may try, and so may those that wait for one that failed for another reason.
    fn tell_failed(&mut self) {
        let is_failed = |i: &InstanceView| matches!(i.state, InstanceState::Failed { .. });
        let is_refused =
            |stage: &StageView| matches!(stage.status, StageStatus::Failed { failed_loads: 1.., .. });
        let others = |model| self.instances.iter().any(|i| i.model() == model && !is_failed(i));
        let failed = |instance: &InstanceView| match &instance.state {
            InstanceState::Failed { reason } if instance.stages.iter().any(is_refused) => {
                let reason = reason.text(&|node| self.name_of(node));
                Some((instance.placement.instance, instance.model(), reason))
            }
            _ => None,
        };
        let failed: Vec<_> = self.instances.iter().filter_map(failed).collect();
        let told = std::mem::take(&mut self.refusals_told);
        let is_new = |(instance, model, _): &&(InstanceId, ModelId, String)| {
            !told.contains(instance) && !others(*model)
        };
        let new: Vec<_> = failed.iter().filter(is_new).cloned().collect();
        self.refusals_told = failed.into_iter().map(|(instance, ..)| instance).collect();
        for (_, model, reason) in new {
            self.refuse_waiting(model, false, &reason);
        }
    }

    /// What was asked of a node that is removed ends: nothing of its cluster answers it any more.
    pub(crate) fn end_requests(&mut self) {
        self.instances_now(Vec::new());
        let models: BTreeSet<ModelId> = self.drivers.values().map(|driver| driver.model).collect();
        models.into_iter().for_each(|model| self.refuse_waiting(model, false, REMOVED));
        for driver in self.drivers.keys().copied().collect::<Vec<_>>() {
            self.feed_driver(driver, DriverInput::PlaceRefused { message: REMOVED.to_owned() });
        }
    }

    /// Ends requests that wait for the model.
    fn refuse_waiting(&mut self, model: ModelId, is_too_large: bool, message: &str) {
        let waiting: Vec<_> = self
            .drivers
            .iter()
            .filter(|(_, d)| d.model == model && !d.is_started)
            .map(|(id, _)| *id)
            .collect();
        for id in waiting {
            let Some(entry) = self.drivers.get(&id) else { continue };
            let devices = self.reports.values().flat_map(|r| &r.facts.devices);
            let free_bytes = exo_planner::memory_free_bytes(devices);
            let (model, detail) = (entry.place.model_name.clone(), message.to_owned());
            let error = if is_too_large {
                let needed_bytes = entry.place.shape.weight_bytes();
                GenerateError::DoesNotFit { model, needed_bytes, free_bytes, detail }
            } else {
                let reason = format!("{detail}; `exo doctor` says what does not work here");
                GenerateError::LoadFailed { model, reason }
            };
            self.refuse_request(id, error);
        }
    }

    /// Ends a request that has no run.
    pub(crate) fn refuse_request(&mut self, id: SequenceId, error: GenerateError) {
        let message = error.to_string();
        self.tell_client(id, SequenceEvent::Refused(error));
        self.feed_driver(id, DriverInput::PlaceRefused { message });
    }

    pub(crate) fn feed_driver(&mut self, id: SequenceId, input: DriverInput) {
        let Some(entry) = self.drivers.get_mut(&id) else {
            return tracing::trace!(request = %id.request, index = id.index, "news for a request that is over");
        };
        for output in entry.driver.handle(self.awake.now(), input) {
            self.driver_output(id, output);
        }
        #[cfg(feature = "planted")]
        if self.config.planted == Some(crate::planted::Bug::NoSecondChance)
            && let Some(DriverPhase::Interrupted { .. }) = self.drivers.get(&id).map(|d| d.driver.phase())
        {
            let (kind, message) = (exo_types::FailureKind::StageLost, "planted".to_owned());
            return self.driver_output(id, DriverOutput::Failed { kind, message });
        }
        self.tell_phase(id);
    }

    fn driver_output(&mut self, id: SequenceId, output: DriverOutput) {
        let event = match output {
            #[cfg(feature = "planted")]
            DriverOutput::Send { to, message: DataMessage::Submit(mut submission) }
                if self.config.planted == Some(crate::planted::Bug::LongAnswer) =>
            {
                let spec = &submission.spec;
                submission.max_tokens += spec.history.len() as u32 - spec.prompt_tokens;
                return self.send_data(to, DataMessage::Submit(submission));
            }
            #[cfg(feature = "planted")]
            DriverOutput::Send { to, message: DataMessage::Submit(mut submission) }
                if self.has_bug(crate::planted::Bug::OtherSeed) =>
            {
                submission.spec.sampling.seed ^= u64::from(submission.attempt.0 > 1);
                return self.send_data(to, DataMessage::Submit(submission));
            }
            #[cfg(feature = "planted")]
            DriverOutput::Send { to, message: DataMessage::Submit(mut submission) }
                if self.has_bug(crate::planted::Bug::ShortHistory)
                    && submission.spec.history.len() as u32 > submission.spec.prompt_tokens =>
            {
                submission.spec.history.pop();
                return self.send_data(to, DataMessage::Submit(submission));
            }
            DriverOutput::Send { to, message } => return self.send_data(to, message),
            #[cfg(feature = "planted")]
            DriverOutput::Token { position, token }
                if self.has_bug(crate::planted::Bug::ToldTwice)
                    && self.drivers.get(&id).is_some_and(|e| e.is_interrupted) =>
            {
                self.tell_phase(id);
                (0..2).for_each(|_| {
                    self.driver_output(id, DriverOutput::Token { position, token: token.clone() });
                });
                return;
            }
            DriverOutput::Token { token, .. } => {
                self.tell_phase(id);
                self.back_up_token(id, &token);
                if let Some(entry) = self.drivers.get_mut(&id) {
                    entry.tokens_since += 1;
                }
                SequenceEvent::Token { index: id.index, token }
            }
            DriverOutput::Ended(reason) => {
                self.tell_phase(id);
                let Some(driver) = self.drivers.get(&id).map(|entry| &entry.driver) else { return };
                let (index, cached_tokens, drafts) = (id.index, driver.cached_tokens(), driver.drafts());
                let times = driver.times().and_then(|(placement, times)| step_times_view(placement, times));
                SequenceEvent::Ended { index, reason, cached_tokens, drafts, times }
            }
            DriverOutput::Failed { kind, message } => {
                self.backup_failed(id.request);
                let message = self.with_names(&self.with_placement(id, kind, message));
                let busy = self.drivers.get(&id).and_then(|entry| entry.driver.busy());
                SequenceEvent::Failed { kind, message, busy }
            }
        };
        let is_last = matches!(event, SequenceEvent::Ended { .. } | SequenceEvent::Failed { .. });
        self.tell_client(id, event);
        if is_last {
            self.drivers.remove(&id);
        }
    }

    /// What the driver does not know: why its model could not be placed all the while.
    fn with_placement(&self, id: SequenceId, kind: FailureKind, message: String) -> String {
        let model = self.drivers.get(&id).map(DriverEntry::model);
        let wait = model.and_then(|model| self.asks.unplaceable.get(&model));
        match wait.filter(|_| kind == FailureKind::Deadline) {
            Some(wait) => format!("{message}: {}", wait.why),
            None => message,
        }
    }

    fn tell_client(&mut self, id: SequenceId, event: SequenceEvent) {
        let Some(entry) = self.drivers.get_mut(&id) else { return };
        // That it still waits tells the client something, and not that somebody watches.
        if !matches!(event, SequenceEvent::Queued(_)) {
            entry.told_at = self.awake.now();
        }
        self.out.push(Effect::Emit { stream: entry.stream, event });
    }

    /// Tells the client what its request waits for, or that it has begun or goes on, when that changed.
    fn tell_phase(&mut self, id: SequenceId) {
        let Some(entry) = self.drivers.get(&id) else { return };
        let (interrupted_by, waits_for) = match entry.driver.phase() {
            DriverPhase::Running(_) if entry.is_started && !entry.is_interrupted => return,
            DriverPhase::Running(instance) => return self.tell_started(id, instance),
            DriverPhase::Over => return,
            DriverPhase::Interrupted { .. } | DriverPhase::WaitingForInstance => self.waits_for_instance(id),
            DriverPhase::WaitingForLink(node) => {
                (None, format!("waiting for the link to {}", self.name_of(node)))
            }
            DriverPhase::Submitted(_) | DriverPhase::Queued(_) => (None, "waiting for a slot".to_owned()),
        };
        let Some(entry) = self.drivers.get_mut(&id) else { return };
        entry.is_interrupted = matches!(entry.driver.phase(), DriverPhase::Interrupted { .. });
        let wait = RequestWait { interrupted_by, waits_for };
        if entry.told == wait {
            return;
        }
        entry.told = wait.clone();
        self.tell_client(id, SequenceEvent::Queued(wait));
    }

    fn tell_started(&mut self, id: SequenceId, instance: InstanceId) {
        let (kernels, stages, last_node) = self.served_by(instance);
        let Some(entry) = self.drivers.get_mut(&id) else { return };
        entry.resumed += u32::from(entry.is_started);
        (entry.is_started, entry.is_interrupted, entry.tokens_since) = (true, false, 0);
        entry.told = RequestWait::default();
        self.tell_client(id, SequenceEvent::Started { index: id.index, kernels, stages, last_node });
    }

    /// What was lost, if anything was, and how far it is to be had.
    fn waits_for_instance(&mut self, id: SequenceId) -> (Option<String>, String) {
        let Some(entry) = self.drivers.get(&id) else { return (None, String::new()) };
        let (model, now, before) = (entry.model, self.awake.now(), entry.fetching);
        let instance = self.instances.iter().find(|i| i.model() == model);
        let fetch = instance.and_then(|instance| slowest_fetch(instance, before.as_ref()));
        let cause = entry.driver.interrupted_by().cloned();
        let fetching = match (fetch, before) {
            (Some(fetch), Some(watch)) if watch.is_of(&fetch) => Some(watch),
            (fetch, _) => fetch.map(|fetch| FetchWatch { fetch, since: now }),
        };
        let lost = cause.as_ref().and_then(InterruptCause::lost);
        let waits_for = self.waiting_for(model, fetching.as_ref(), lost);
        if let Some(entry) = self.drivers.get_mut(&id) {
            entry.fetching = fetching;
        }
        (cause.map(|cause| self.with_names(&cause.to_string())), waits_for)
    }

    fn served_by(&self, instance: InstanceId) -> (Vec<String>, u32, String) {
        let Some(view) = self.instances.iter().find(|i| i.instance() == instance) else {
            return (Vec::new(), 0, String::new());
        };
        let mut kernels: Vec<String> = Vec::new();
        for (_, shard) in view.placement.shards() {
            let devices =
                self.reports.get(&shard.node).map(|r| r.facts.devices.as_slice()).unwrap_or_default();
            if let Some(device) = devices.iter().find(|d| d.id == shard.device)
                && !kernels.contains(&device.backend)
            {
                kernels.push(device.backend.clone());
            }
        }
        let last_node = view.placement.shards().last().map(|(_, shard)| self.name_of(shard.node));
        (kernels, view.placement.stages.len() as u32, last_node.unwrap_or_default())
    }

    /// The requests of this node's clients, the oldest first.
    pub(crate) fn request_views(&self) -> Vec<RequestView> {
        let mut views: Vec<RequestView> =
            self.drivers.iter().map(|(id, entry)| self.request_view(*id, entry)).collect();
        views.sort_by_key(|view| std::cmp::Reverse(view.age_ms));
        views
    }

    fn request_view(&self, id: SequenceId, entry: &DriverEntry) -> RequestView {
        let now = self.awake.now();
        let ms = |since: Time| now.since(since).as_millis() as u64;
        let phase = match entry.driver.phase() {
            DriverPhase::Running(_) if entry.tokens_since > 0 => RequestPhase::Decode,
            DriverPhase::Running(_) => RequestPhase::Prefill,
            DriverPhase::Interrupted { .. } => RequestPhase::Interrupted,
            _ => RequestPhase::Queued,
        };
        let (interrupted_ms, interrupted_left_ms) = match entry.driver.phase() {
            DriverPhase::Interrupted { since, until } => {
                (Some(ms(since)), Some(until.since(now).as_millis() as u64))
            }
            _ => (None, None),
        };
        let waits = matches!(phase, RequestPhase::Queued | RequestPhase::Interrupted);
        RequestView {
            id: id.request.to_string(),
            index: id.index,
            model: entry.place.model_name.clone(),
            principal: entry.principal.label(),
            phase,
            waits_for: waits.then(|| entry.told.to_string()),
            interrupted_ms,
            interrupted_left_ms,
            prompt_tokens: entry.prompt_tokens,
            tokens: (entry.driver.history().len() as u32).saturating_sub(entry.prompt_tokens),
            age_ms: ms(entry.came_at),
            resumed: entry.resumed,
        }
    }

    /// A client left, or one choice met its stop string.
    pub(crate) fn cancel_request(&mut self, request: RequestId, index: Option<u16>) {
        let is_meant = |id: &SequenceId| id.request == request && index.is_none_or(|i| i == id.index);
        let ids: Vec<_> = self.drivers.keys().copied().filter(is_meant).collect();
        for id in ids {
            self.feed_driver(id, DriverInput::Cancel);
        }
        if index.is_none() {
            self.backup_over(request);
        }
    }

    /// What every member is told of the instances, new.
    pub(crate) fn instances_now(&mut self, instances: Vec<InstanceView>) {
        self.note_states(&instances);
        self.stage_watches.note(&instances, self.awake.now());
        // They are told again each second.
        if *self.instances != instances {
            self.view_changed();
        }
        self.instances = Arc::new(instances);
        self.check_unanswered();
        let instances = self.instances.clone();
        self.feed_drivers(|| DriverInput::Instances(instances.to_vec()));
        self.tell_failed();
        #[cfg(feature = "planted")]
        if self.config.planted == Some(crate::planted::Bug::ForgottenTrouble) {
            return self.instance_failures.clear();
        }
        let placements = instances.iter().map(|i| i.placement.id);
        let current: std::collections::BTreeSet<_> = placements.collect();
        // Another coordinator may not know the placement, and the next one may know it again: while its first
        // stage stands here, it has no scheduler, and somebody must hear why.
        let stages = &self.stages;
        let stands = |t: &InstanceFailure| stages.keys().any(|p| p.placement == t.placement && p.stage == 0);
        self.instance_failures.retain(|t| current.contains(&t.placement) || stands(t));
    }

    /// Since when each instance is in its state. A reason that changes is the same state.
    fn note_states(&mut self, instances: &[InstanceView]) {
        let (before, now) = (std::mem::take(&mut self.states_since), self.now.unix_s);
        for instance in instances {
            let (id, state) = (instance.instance(), std::mem::discriminant(&instance.state));
            let since = before.get(&id).filter(|(known, _)| *known == state).map_or(now, |(_, since)| *since);
            self.states_since.insert(id, (state, since));
        }
    }

    /// Links opened or ended: drivers wait for those to the first and the last stage.
    pub(crate) fn links_changed(&mut self) {
        let links = self.links.open_data().clone();
        self.feed_drivers(|| DriverInput::Links(links.clone()));
    }

    pub(crate) fn feed_drivers(&mut self, input: impl Fn() -> DriverInput) {
        let ids: Vec<_> = self.drivers.keys().copied().collect();
        for id in ids {
            self.feed_driver(id, input());
        }
    }

    pub(crate) fn tick_requests(&mut self) {
        self.feed_drivers(|| DriverInput::Tick);
        self.refuse_cut_off();
        let now = self.awake.now();
        let silent = self.drivers.iter().filter(|(_, entry)| now.since(entry.told_at) >= WATCHED_EVERY);
        let silent: Vec<_> = silent.map(|(id, _)| *id).collect();
        silent.into_iter().for_each(|id| self.tell_client(id, SequenceEvent::Watched));
        let waits =
            |phase| matches!(phase, DriverPhase::WaitingForInstance | DriverPhase::Interrupted { .. });
        let is_waiting = |d: &&DriverEntry| waits(d.driver.phase());
        let waiting: Vec<_> = self.drivers.values().filter(is_waiting).map(|d| d.place.clone()).collect();
        // How long a model could not be placed counts anew once it was, and once nobody waits for it.
        let models: BTreeSet<ModelId> = waiting.iter().map(|request| request.model).collect();
        let unplaced: BTreeSet<ModelId> =
            models.into_iter().filter(|model| self.placed_as(*model).is_none()).collect();
        self.asks.unplaceable.retain(|model, _| unplaced.contains(model));
        for request in waiting {
            self.place_if_missing(&request);
        }
    }
}
