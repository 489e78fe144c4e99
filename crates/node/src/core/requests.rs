//! Requests while they run: drivers on this node, schedulers of instances whose first stage is here.

use std::collections::BTreeSet;

use exo_api::GenerateError;
use exo_cluster::wire::{ControlAsk, ControlRefusal, ControlReply, DataMessage, Trouble};
use exo_cluster::{
    Driver, DriverConfig, DriverInput, DriverOutput, DriverPhase, DriverStart, InstanceRequest,
    InstanceState, InstanceView, Scheduler, SchedulerConfig, SchedulerInput, SchedulerOutput, ShardKey,
    StageStatus, StageView,
};
use exo_engine::DraftRequest;
use exo_types::{InstanceId, ModelId, NodeId, RequestId, SequenceId};
use tokio::sync::mpsc;

use super::{Core, CoreEvent};
use crate::generate::SequenceEvent;

/// A sequence that this node drives.
pub(super) struct DriverEntry {
    driver: Driver,
    events: mpsc::UnboundedSender<SequenceEvent>,
    model: ModelId,
    /// To place the model if it is not placed.
    request: InstanceRequest,
    told: String,
    started: bool,
}

/// The scheduler of an instance whose first stage is here.
pub(super) struct SchedulerEntry {
    pub(super) generation: u32,
    pub(super) scheduler: Scheduler,
}

/// The sequences of one request.
pub struct StartRequest {
    pub config: DriverConfig,
    pub starts: Vec<DriverStart>,
    pub place: InstanceRequest,
    pub events: mpsc::UnboundedSender<SequenceEvent>,
}

impl Core {
    // ---- drivers ----

    pub(super) fn start_request(&mut self, request: StartRequest) {
        let now = self.now();
        let (instances, links) = (self.instances.clone(), self.data_links.clone());
        for start in request.starts {
            let (id, model) = (start.spec.sequence, start.model);
            let driver = Driver::new(request.config, now, start);
            let (events, place) = (request.events.clone(), request.place.clone());
            let told = String::new();
            self.drivers
                .insert(id, DriverEntry { driver, events, model, request: place, told, started: false });
            self.feed_driver(id, DriverInput::Links(links.clone()));
            self.feed_driver(id, DriverInput::Instances(instances.clone()));
        }
        self.place_if_missing(request.place);
    }

    /// Asks for the model to be placed unless an instance of it is there or on its way.
    fn place_if_missing(&mut self, request: InstanceRequest) {
        let model = request.model;
        let there = self
            .instances
            .iter()
            .any(|i| i.model() == model && !matches!(i.state, InstanceState::Failed { .. }));
        if there || self.asks.placing.contains_key(&model) {
            return;
        }
        let now = self.now();
        self.asks.placing.insert(model, now);
        let reply = self.ask(ControlAsk::Place(request));
        let core = self.p.sender.clone();
        tokio::spawn(async move {
            let reply = reply.await.ok();
            core.post(CoreEvent::Command(super::Command::Placed { model, reply }));
        });
    }

    /// The coordinator's answer to a placement that a request caused.
    pub(super) fn placed(&mut self, model: ModelId, reply: Option<ControlReply>) {
        self.asks.placing.remove(&model);
        match reply {
            Some(ControlReply::Refused { refusal: ControlRefusal::NotCoordinator, .. }) | None => {} // asked again
            Some(ControlReply::Refused { refusal, message }) => {
                self.refuse_waiting(model, refusal == ControlRefusal::DoesNotFit, &message)
            }
            Some(_) => {}
        }
    }

    /// Whoever waits for a model that its device refused is told why, once, instead of having it placed again. Who comes later may
    /// try, and so may who waits for one that failed for another reason.
    fn tell_failed(&mut self) {
        let is_failed = |i: &InstanceView| matches!(i.state, InstanceState::Failed { .. });
        let is_refused =
            |stage: &StageView| matches!(stage.status, StageStatus::Failed { failed_loads: 1.., .. });
        let others = |model| self.instances.iter().any(|i| i.model() == model && !is_failed(i));
        let failed = |instance: &InstanceView| match &instance.state {
            InstanceState::Failed { reason } if instance.stages.iter().any(is_refused) => {
                Some((instance.placement.instance, instance.model(), reason.clone()))
            }
            _ => None,
        };
        let failed: Vec<_> = self.instances.iter().filter_map(failed).collect();
        let told = std::mem::take(&mut self.refusals_told);
        let new: Vec<_> = failed
            .iter()
            .filter(|(instance, model, _)| !told.contains(instance) && !others(*model))
            .cloned()
            .collect();
        self.refusals_told = failed.into_iter().map(|(instance, ..)| instance).collect();
        for (_, model, reason) in new {
            self.refuse_waiting(model, false, &reason);
        }
    }

    /// Ends requests that wait for the model.
    fn refuse_waiting(&mut self, model: ModelId, is_too_large: bool, message: &str) {
        let waiting: Vec<_> =
            self.drivers.iter().filter(|(_, d)| d.model == model && !d.started).map(|(id, _)| *id).collect();
        for id in waiting {
            let Some(entry) = self.drivers.get(&id) else { continue };
            let free: u64 =
                self.reports.values().flat_map(|r| &r.facts.devices).map(|d| d.memory_free_bytes).sum();
            let name = entry.request.model_name.clone();
            let error = if is_too_large {
                let needed_bytes = entry.request.shape.weight_bytes();
                GenerateError::DoesNotFit {
                    model: name,
                    needed_bytes,
                    free_bytes: free,
                    detail: message.to_owned(),
                }
            } else {
                GenerateError::LoadFailed { model: name, reason: message.to_owned() }
            };
            let _ = entry.events.send(SequenceEvent::Refused(error));
            self.feed_driver(id, DriverInput::PlaceRefused { message: message.to_owned() });
        }
    }

    pub(super) fn feed_driver(&mut self, id: SequenceId, input: DriverInput) {
        let now = self.now();
        let Some(entry) = self.drivers.get_mut(&id) else { return };
        let outputs = entry.driver.handle(now, input);
        for output in outputs {
            self.driver_output(id, output);
        }
        self.tell_phase(id);
    }

    fn driver_output(&mut self, id: SequenceId, output: DriverOutput) {
        let tell = |core: &Self, event| {
            if let Some(entry) = core.drivers.get(&id) {
                let _ = entry.events.send(event);
            }
        };
        match output {
            DriverOutput::Send { to, message } => self.send_data(to, message),
            DriverOutput::Token { token, .. } => {
                self.tell_phase(id);
                tell(self, SequenceEvent::Token { index: id.index, token });
            }
            DriverOutput::Ended(reason) => {
                self.tell_phase(id);
                if let Some(driver) = self.drivers.get(&id).map(|entry| &entry.driver) {
                    let (cached_tokens, drafts) = (driver.cached_tokens(), driver.drafts());
                    tell(self, SequenceEvent::Ended { index: id.index, reason, cached_tokens, drafts });
                }
                self.drivers.remove(&id);
            }
            DriverOutput::Failed { kind, message } => {
                let busy = self.drivers.get(&id).and_then(|entry| entry.driver.busy());
                tell(self, SequenceEvent::Failed { kind, message, busy });
                self.drivers.remove(&id);
            }
        }
    }

    /// Tells the client what its request waits for, or that it has begun, when that changed.
    fn tell_phase(&mut self, id: SequenceId) {
        let Some(entry) = self.drivers.get(&id) else { return };
        let (phase, model) = (entry.driver.phase(), entry.model);
        let event = match phase {
            DriverPhase::Running(instance) if !entry.started => {
                let (kernels, stages) = self.served_by(instance);
                Some(SequenceEvent::Started { kernels, stages })
            }
            DriverPhase::Running(_) | DriverPhase::Over => None,
            DriverPhase::WaitingForInstance => Some(SequenceEvent::Queued(self.waiting_for(model))),
            DriverPhase::WaitingForLink(node) => {
                let what = format!("waiting for the data link to {}", self.name_of(node));
                Some(SequenceEvent::Queued(what))
            }
            DriverPhase::Submitted(_) | DriverPhase::Queued(_) => {
                Some(SequenceEvent::Queued("waiting for a slot".to_owned()))
            }
        };
        let Some(entry) = self.drivers.get_mut(&id) else { return };
        match event {
            Some(SequenceEvent::Queued(reason)) if reason == entry.told => {}
            Some(SequenceEvent::Queued(reason)) => {
                entry.told.clone_from(&reason);
                let _ = entry.events.send(SequenceEvent::Queued(reason));
            }
            Some(event) => {
                entry.started = true;
                let _ = entry.events.send(event);
            }
            None => {}
        }
    }

    fn waiting_for(&self, model: ModelId) -> String {
        let Some(instance) = self.instances.iter().find(|i| i.model() == model) else {
            return "placing".to_owned();
        };
        match &instance.state {
            InstanceState::Loading | InstanceState::Wiring => {
                format!("loading {:.0} %", load_progress(instance) * 100.0)
            }
            InstanceState::Degraded { reason } => format!("placing again: {reason}"),
            InstanceState::Failed { reason } => format!("failed: {reason}"),
            InstanceState::Placing => "placing".to_owned(),
            InstanceState::Ready => "waiting for a slot".to_owned(),
        }
    }

    fn served_by(&self, instance: InstanceId) -> (Vec<String>, u32) {
        let Some(view) = self.instances.iter().find(|i| i.instance() == instance) else {
            return (Vec::new(), 0);
        };
        let mut kernels: Vec<String> = Vec::new();
        for stage in &view.placement.stages {
            let devices =
                self.reports.get(&stage.node).map(|r| r.facts.devices.as_slice()).unwrap_or_default();
            if let Some(device) = devices.iter().find(|d| d.id == stage.device)
                && !kernels.contains(&device.backend)
            {
                kernels.push(device.backend.clone());
            }
        }
        (kernels, view.placement.stages.len() as u32)
    }

    /// A client left, or one choice met its stop string.
    pub(super) fn cancel_request(&mut self, request: RequestId, index: Option<u16>) {
        let meant = |id: &SequenceId| id.request == request && index.is_none_or(|i| i == id.index);
        let ids: Vec<_> = self.drivers.keys().copied().filter(meant).collect();
        for id in ids {
            self.feed_driver(id, DriverInput::Cancel);
            if index.is_none() {
                self.drivers.remove(&id);
            }
        }
    }

    /// What every member is told of the instances, new.
    pub(super) fn instances_now(&mut self, instances: Vec<InstanceView>) {
        self.instances = instances;
        self.view_stale = true;
        self.follow_schedulers();
        let ids: Vec<_> = self.drivers.keys().copied().collect();
        for id in ids {
            let instances = self.instances.clone();
            self.feed_driver(id, DriverInput::Instances(instances));
        }
        self.tell_failed();
        self.troubles.retain(|t| {
            self.instances
                .iter()
                .any(|i| i.instance() == t.instance && i.placement.generation == t.generation)
        });
    }

    // ---- schedulers ----

    /// Opens a scheduler for each loaded instance whose first stage is here, and ends those that are over.
    fn follow_schedulers(&mut self) {
        let mine: Vec<(InstanceId, InstanceView)> = self
            .instances
            .iter()
            .filter(|i| i.placement.stages.first().is_some_and(|s| s.node == self.me))
            .map(|i| (i.instance(), i.clone()))
            .collect();
        let keep: BTreeSet<(InstanceId, u32)> =
            mine.iter().map(|(id, v)| (*id, v.placement.generation)).collect();
        let over: Vec<_> = self
            .schedulers
            .iter()
            .filter(|(id, s)| !keep.contains(&(**id, s.generation)))
            .map(|(id, s)| (*id, s.generation))
            .collect();
        for (id, generation) in over {
            self.drop_scheduler(id, generation);
        }
        for (id, view) in mine {
            let generation = view.placement.generation;
            let key = ShardKey { instance: id, generation, stage: 0 };
            // A generation whose pipeline broke gets no second scheduler: its stages are out of step.
            let troubled = self.troubles.iter().any(|t| t.instance == id && t.generation == generation);
            let is_loaded = matches!(view.state, InstanceState::Wiring | InstanceState::Ready);
            if is_loaded && !troubled && !self.schedulers.contains_key(&id) && self.is_loaded(key) {
                let speculation = self.speculation_of(&view);
                let config = SchedulerConfig { speculation, ..SchedulerConfig::default() };
                let scheduler = Scheduler::new(config, self.now(), view.placement.clone());
                self.schedulers.insert(id, SchedulerEntry { generation, scheduler });
                self.feed_scheduler(id, SchedulerInput::Tick); // sends step 0
            }
        }
    }

    /// Whether this is the first stage of an instance through which steps get.
    pub(super) fn is_serving(&self, key: ShardKey) -> bool {
        let entry = self.schedulers.get(&key.instance).filter(|entry| entry.generation == key.generation);
        key.stage == 0 && entry.is_some_and(|entry| entry.scheduler.is_serving())
    }

    pub(super) fn drop_scheduler(&mut self, instance: InstanceId, generation: u32) {
        if self.schedulers.get(&instance).is_some_and(|s| s.generation == generation) {
            let reason = "the instance was unloaded or placed anew".to_owned();
            self.feed_scheduler(instance, SchedulerInput::Stop { reason });
            self.schedulers.remove(&instance);
        }
    }

    pub(super) fn feed_scheduler(&mut self, instance: InstanceId, input: SchedulerInput) {
        let now = self.now();
        let Some(entry) = self.schedulers.get_mut(&instance) else { return };
        let generation = entry.generation;
        let outputs = entry.scheduler.handle(now, input);
        for output in outputs {
            self.scheduler_output(instance, generation, output);
        }
    }

    fn scheduler_output(&mut self, instance: InstanceId, generation: u32, output: SchedulerOutput) {
        let (to, message) = match output {
            SchedulerOutput::Accepted { to, sequence, queue_ahead } => {
                (to, DataMessage::Accepted { instance, generation, sequence, queue_ahead })
            }
            SchedulerOutput::Started { to, sequence, cached_tokens } => {
                (to, DataMessage::Started { instance, generation, sequence, cached_tokens })
            }
            SchedulerOutput::Rejected { to, sequence, generation, kind, message, busy } => {
                (to, DataMessage::Rejected { instance, generation, sequence, kind, message, busy })
            }
            SchedulerOutput::Draft { spec, count } => {
                return match &self.p.draft {
                    Some(draft) => draft.ask(instance, DraftRequest { spec, count }),
                    None => self.feed_scheduler(instance, SchedulerInput::DraftsOver),
                };
            }
            SchedulerOutput::DraftOver(sequence) => return self.draft_over(sequence),
            SchedulerOutput::Serving => return self.report_now(),
            SchedulerOutput::Step(step) => (self.me, DataMessage::Step(step)),
            SchedulerOutput::Ended { to, sequence, reason, generated } => {
                (to, DataMessage::SequenceEnded { instance, generation, sequence, reason, generated })
            }
            SchedulerOutput::Failed { to, sequence, kind, message } => {
                (to, DataMessage::SequenceFailed { instance, generation, sequence, kind, message })
            }
            SchedulerOutput::InstanceFailed { message, .. } => {
                self.schedulers.remove(&instance);
                self.troubles.push(Trouble { instance, generation, reason: message });
                return self.report_now();
            }
        };
        self.send_data(to, message);
    }

    // ---- messages ----

    /// A message on the data channel, from a member or from this node itself.
    pub(super) fn data(&mut self, from: NodeId, message: DataMessage) {
        match message {
            DataMessage::Submit(submission) => self.submitted(from, submission),
            DataMessage::Cancel { instance, generation, sequence } => {
                self.feed_scheduler(instance, SchedulerInput::Cancel { from, generation, sequence });
            }
            DataMessage::Step(step) => self.step_arrived(from, step),
            DataMessage::Tokens(tokens) => {
                let ids: BTreeSet<_> = tokens.results.iter().map(|r| r.sequence).collect();
                self.drivers_hear(from, ids, &DataMessage::Tokens(tokens.clone()));
                self.feed_scheduler(tokens.instance, SchedulerInput::Tokens { from, tokens });
            }
            DataMessage::StepFailed(failure) => {
                let ids = failure.sequences.iter().copied().collect();
                self.drivers_hear(from, ids, &DataMessage::StepFailed(failure));
            }
            DataMessage::PipelineBroken { instance, generation, .. }
            | DataMessage::NotWired { instance, generation, .. }
            | DataMessage::Undelivered { instance, generation, .. } => {
                self.stage_report(from, (instance, generation), message);
            }
            DataMessage::Accepted { sequence, .. }
            | DataMessage::Started { sequence, .. }
            | DataMessage::Rejected { sequence, .. }
            | DataMessage::SequenceEnded { sequence, .. }
            | DataMessage::SequenceFailed { sequence, .. } => {
                self.drivers_hear(from, [sequence].into(), &message)
            }
            DataMessage::StaleGeneration { .. } => {
                let ids = self.drivers.keys().copied().collect();
                self.drivers_hear(from, ids, &message);
            }
            _ => tracing::warn!(peer = %from, "a data message this version does not know"),
        }
    }

    /// A stage's word for the scheduler, which is here or further on.
    fn stage_report(&mut self, from: NodeId, at: (InstanceId, u32), message: DataMessage) {
        if !self.schedulers.contains_key(&at.0) {
            return self.pass_on_report(from, at, message);
        }
        let input = match message {
            DataMessage::PipelineBroken { generation, kind, message, .. } => {
                SchedulerInput::PipelineBroken { from, generation, kind, message }
            }
            DataMessage::NotWired { generation, step, missing, .. } => {
                SchedulerInput::NotWired { from, generation, step, missing }
            }
            DataMessage::Undelivered { generation, sequences, message, .. } => {
                SchedulerInput::Undelivered { from, generation, sequences, message }
            }
            _ => return,
        };
        self.feed_scheduler(at.0, input);
    }

    fn drivers_hear(&mut self, from: NodeId, ids: BTreeSet<SequenceId>, message: &DataMessage) {
        for id in ids {
            if self.drivers.contains_key(&id) {
                self.feed_driver(id, DriverInput::Message { from, message: message.clone() });
            }
        }
    }

    fn submitted(&mut self, from: NodeId, submission: exo_cluster::wire::Submission) {
        let instance = submission.instance;
        // The driver may have heard that the instance is ready before this node did.
        self.follow_schedulers();
        if self.schedulers.contains_key(&instance) {
            return self.feed_scheduler(instance, SchedulerInput::Submit { from, submission });
        }
        let (got, own) = (submission.generation, self.me);
        tracing::trace!(%from, %instance, got, %own, "a submission for a scheduler that is not here");
        let message = DataMessage::Rejected {
            instance,
            generation: submission.generation,
            sequence: submission.spec.sequence,
            kind: exo_types::FailureKind::InstanceGone,
            message: format!("{} runs no scheduler for instance {instance}", self.me),
            busy: None,
        };
        self.send_data(from, message);
    }

    // ---- losses ----

    /// The data link to a node broke: what was in it is lost.
    pub(super) fn unreachable(&mut self, node: NodeId) {
        self.requests_lost(node);
        self.stages_lost_link(node);
    }

    /// Other data links than before are open.
    pub(super) fn links_told(&mut self) {
        let ids: Vec<_> = self.drivers.keys().copied().collect();
        for id in ids {
            let links = self.data_links.clone();
            self.feed_driver(id, DriverInput::Links(links));
        }
    }

    /// A node is gone, for requests at least.
    pub(super) fn requests_lost(&mut self, node: NodeId) {
        let instances: Vec<_> = self.schedulers.keys().copied().collect();
        for instance in instances {
            self.feed_scheduler(instance, SchedulerInput::NodeLost(node));
        }
        let ids: Vec<_> = self.drivers.keys().copied().collect();
        for id in ids {
            self.feed_driver(id, DriverInput::NodeLost(node));
        }
    }

    pub(super) fn tick_requests(&mut self) {
        let instances: Vec<_> = self.schedulers.keys().copied().collect();
        for instance in instances {
            self.feed_scheduler(instance, SchedulerInput::Tick);
        }
        let ids: Vec<_> = self.drivers.keys().copied().collect();
        for id in ids {
            self.feed_driver(id, DriverInput::Tick);
        }
        let unplaced: Vec<_> = self
            .drivers
            .values()
            .filter(|d| d.driver.phase() == DriverPhase::WaitingForInstance)
            .map(|d| d.request.clone())
            .collect();
        for request in unplaced {
            self.place_if_missing(request);
        }
    }
}

/// Of all bytes of an instance, the share in place.
pub(super) fn load_progress(view: &InstanceView) -> f64 {
    let (mut done, mut total) = (0.0, 0.0);
    for stage in &view.stages {
        let all = stage.memory_bytes.max(1) as f64;
        let share = match &stage.status {
            StageStatus::Loaded | StageStatus::Serving => 1.0,
            StageStatus::Fetching { done_bytes, total_bytes } if *total_bytes > 0 => {
                0.9 * *done_bytes as f64 / *total_bytes as f64
            }
            StageStatus::Loading { done_bytes, total_bytes } if *total_bytes > 0 => {
                0.9 + 0.1 * *done_bytes as f64 / *total_bytes as f64
            }
            _ => 0.0,
        };
        done += share.min(1.0) * all;
        total += all;
    }
    if total > 0.0 { done / total } else { 0.0 }
}
