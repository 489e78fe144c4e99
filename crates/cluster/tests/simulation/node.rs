//! One simulated node: the glue that the real node has, without tasks and sockets.

use std::collections::BTreeMap;

use exo_cluster::wire::{ControlMessage, DataMessage, NodeReport, Trouble};
use exo_cluster::{
    Action, Coordinator, CoordinatorConfig, CoordinatorInput, Driver, DriverInput, InstanceState,
    InstanceView, Scheduler, SchedulerConfig, SchedulerInput, SchedulerOutput, ShardKey, StageGeometry,
    StageInput, StageMachine, StageOutput, StageStatus, State, Worker, WorkerConfig, WorkerInput,
};
use exo_types::{
    DeviceFacts, DeviceId, DeviceKind, FailureKind, InstanceId, NodeFacts, NodeId, Placement, SequenceId,
    SupportClass, Time,
};

pub const GEOMETRY: StageGeometry = StageGeometry { hidden: 2, vocab: 100, pages: 10, page_tokens: 16 };
pub const MEMORY_BYTES: u64 = 64 << 30;

/// What a node wants the world to do.
pub enum Effect {
    Data(NodeId, DataMessage),
    Coordinator(exo_cluster::CoordinatorOutput),
    Driver(SequenceId, exo_cluster::DriverOutput),
    Work(Action),
    Compute(ShardKey, StageOutput),
}

pub struct SimNode {
    pub id: NodeId,
    pub alive: bool,
    /// Counts restarts: what an earlier life started does not reach a later one.
    pub life: u32,
    pub coordinator: Coordinator,
    pub worker: Worker,
    pub schedulers: BTreeMap<(InstanceId, u32), Scheduler>,
    pub stages: BTreeMap<ShardKey, StageMachine>,
    pub drivers: BTreeMap<SequenceId, Driver>,
    views: Vec<InstanceView>,
    troubles: Vec<Trouble>,
}

impl SimNode {
    pub fn new(id: NodeId, life: u32, state: State) -> Self {
        let memory = BTreeMap::from([(DeviceId::cpu(), MEMORY_BYTES)]);
        Self {
            id,
            alive: true,
            life,
            coordinator: Coordinator::new(id, CoordinatorConfig::default(), state),
            worker: Worker::new(WorkerConfig::default(), memory),
            schedulers: BTreeMap::new(),
            stages: BTreeMap::new(),
            drivers: BTreeMap::new(),
            views: Vec::new(),
            troubles: Vec::new(),
        }
    }

    pub fn report(&self) -> NodeReport {
        let mut stages = self.worker.reports();
        for stage in stages.iter_mut().filter(|s| s.stage == 0 && s.status == StageStatus::Loaded) {
            let scheduler = self.schedulers.get(&(stage.instance, stage.generation));
            if scheduler.is_some_and(Scheduler::is_serving) {
                stage.status = StageStatus::Serving;
            }
        }
        let device = DeviceFacts {
            id: DeviceId::cpu(),
            kind: DeviceKind::Cpu,
            name: "cpu".into(),
            backend: "cpu".into(),
            memory_total_bytes: MEMORY_BYTES,
            memory_free_bytes: MEMORY_BYTES,
            compute_units: 1,
            read_bytes_per_s: None,
            flops_per_s: None,
            support: SupportClass::Full,
            support_reason: String::new(),
        };
        let (name, devices) = (self.id.to_string(), vec![device]);
        let (version, platform, mains_power) = (String::new(), String::new(), None);
        let facts = NodeFacts { node: self.id, name, version, platform, devices, mains_power };
        let (desired, troubles) = (self.worker.desired_revision(), self.troubles.clone());
        NodeReport {
            facts,
            models: vec![],
            stages,
            links: vec![],
            desired,
            troubles,
            process_bytes: None,
            devices: vec![],
            card_events: vec![],
            reached: Vec::new(),
        }
    }

    pub fn coordinator(&mut self, now: Time, input: CoordinatorInput) -> Vec<Effect> {
        self.coordinator.handle(now, input).into_iter().map(Effect::Coordinator).collect()
    }

    pub fn control(&mut self, now: Time, from: NodeId, message: ControlMessage) -> Vec<Effect> {
        match message {
            ControlMessage::Report(report) => {
                self.coordinator(now, CoordinatorInput::Report { from, report })
            }
            ControlMessage::Desired(desired) => self.worker(now, WorkerInput::Desired(desired)),
            ControlMessage::Instances { instances, .. } => self.instances(now, instances),
            _ => Vec::new(),
        }
    }

    pub fn worker(&mut self, now: Time, input: WorkerInput) -> Vec<Effect> {
        if let WorkerInput::Unloaded(key) = &input {
            self.stages.remove(key);
        }
        let actions = self.worker.handle(now, input).unwrap_or_default();
        for action in &actions {
            if let Action::AdoptShard { from: key, .. }
            | Action::UnloadShard { key }
            | Action::Cancel { key } = action
            {
                self.stages.remove(key);
            }
        }
        actions.into_iter().map(Effect::Work).collect()
    }

    pub fn loaded(&mut self, key: ShardKey, placement: Placement) {
        self.stages.insert(key, StageMachine::new(placement, key.stage as usize, GEOMETRY));
    }

    fn instances(&mut self, now: Time, views: Vec<InstanceView>) -> Vec<Effect> {
        let mut effects = Vec::new();
        let current =
            |key: &(InstanceId, u32)| views.iter().any(|v| (v.instance(), v.placement.generation) == *key);
        let old: Vec<_> = self.schedulers.keys().copied().filter(|key| !current(key)).collect();
        for key in old {
            let reason = "placed anew or removed".to_owned();
            effects.extend(self.scheduler(now, key, SchedulerInput::Stop { reason }));
            self.schedulers.remove(&key);
        }
        self.troubles.retain(|t| current(&(t.instance, t.generation)));
        let mut opened = Vec::new();
        let opens = |v: &&InstanceView| matches!(v.state, InstanceState::Wiring | InstanceState::Ready);
        for view in views.iter().filter(opens).filter(|v| v.placement.stages[0].node == self.id) {
            let key = (view.instance(), view.placement.generation);
            let troubled = self.troubles.iter().any(|t| (t.instance, t.generation) == key);
            let stage = ShardKey { instance: key.0, generation: key.1, stage: 0 };
            if !troubled && !self.schedulers.contains_key(&key) && self.stages.contains_key(&stage) {
                let config = SchedulerConfig { chunk_tokens_max: 8, ..SchedulerConfig::default() };
                self.schedulers.insert(key, Scheduler::new(config, now, view.placement.clone()));
                opened.push(key);
            }
        }
        self.views = views;
        for key in opened {
            effects.extend(self.scheduler(now, key, SchedulerInput::Tick));
        }
        effects.extend(self.all_drivers(now, &DriverInput::Instances(self.views.clone())));
        effects
    }

    pub fn start(&mut self, now: Time, driver: Driver) -> Vec<Effect> {
        let sequence = driver.sequence();
        self.drivers.insert(sequence, driver);
        let links = (0..=u8::MAX).map(|n| NodeId([n; 32])).collect();
        self.driver(now, sequence, DriverInput::Links(std::sync::Arc::new(links)));
        self.driver(now, sequence, DriverInput::Instances(self.views.clone()))
    }

    pub fn all_drivers(&mut self, now: Time, input: &DriverInput) -> Vec<Effect> {
        let sequences: Vec<SequenceId> = self.drivers.keys().copied().collect();
        sequences.into_iter().flat_map(|s| self.driver(now, s, input.clone())).collect()
    }

    pub fn driver(&mut self, now: Time, sequence: SequenceId, input: DriverInput) -> Vec<Effect> {
        let Some(driver) = self.drivers.get_mut(&sequence) else { return Vec::new() };
        driver.handle(now, input).into_iter().map(|o| Effect::Driver(sequence, o)).collect()
    }

    pub fn node_lost(&mut self, now: Time, node: NodeId) -> Vec<Effect> {
        let mut effects = self.coordinator(now, CoordinatorInput::NodeLost(node));
        let keys: Vec<_> = self.schedulers.keys().copied().collect();
        effects.extend(keys.into_iter().flat_map(|k| self.scheduler(now, k, SchedulerInput::NodeLost(node))));
        effects.extend(self.all_drivers(now, &DriverInput::NodeLost(node)));
        effects
    }

    pub fn tick(&mut self, now: Time) -> Vec<Effect> {
        let mut effects = self.coordinator(now, CoordinatorInput::Tick);
        effects.extend(self.worker(now, WorkerInput::Tick));
        let keys: Vec<_> = self.schedulers.keys().copied().collect();
        effects.extend(keys.into_iter().flat_map(|k| self.scheduler(now, k, SchedulerInput::Tick)));
        effects.extend(self.all_drivers(now, &DriverInput::Tick));
        effects
    }

    pub fn data(&mut self, now: Time, from: NodeId, message: DataMessage) -> Vec<Effect> {
        match message {
            DataMessage::Submit(submission) => {
                let key = (submission.instance, submission.generation);
                if !self.schedulers.contains_key(&key) {
                    let ((instance, generation), sequence) = (key, submission.spec.sequence);
                    let (kind, message) = (FailureKind::InstanceGone, "no scheduler here".to_owned());
                    let message =
                        DataMessage::Rejected { instance, generation, sequence, kind, message, busy: None };
                    return vec![Effect::Data(from, message)];
                }
                self.scheduler(now, key, SchedulerInput::Submit { from, submission })
            }
            DataMessage::Cancel { instance, generation, sequence } => self.scheduler(
                now,
                (instance, generation),
                SchedulerInput::Cancel { from, generation, sequence },
            ),
            DataMessage::PipelineBroken { instance, generation, kind, message, .. } => {
                let input = SchedulerInput::PipelineBroken { from, generation, kind, message };
                self.scheduler(now, (instance, generation), input)
            }
            DataMessage::NotWired { instance, generation, step, missing, .. } => {
                let input = SchedulerInput::NotWired { from, generation, step, missing };
                self.scheduler(now, (instance, generation), input)
            }
            DataMessage::Step(message) => {
                let (instance, generation) = (message.frame.instance, message.frame.generation);
                let key = ShardKey { instance, generation, stage: message.stage };
                if !self.stages.contains_key(&key) {
                    let (stage, step, missing) = (message.stage, message.frame.step, "not there".to_owned());
                    let answer = DataMessage::NotWired { instance, generation, stage, step, missing };
                    return vec![Effect::Data(from, answer)];
                }
                self.stage(now, key, StageInput::Step { from, message })
            }
            DataMessage::Tokens(tokens) => {
                let key = (tokens.instance, tokens.generation);
                let input = SchedulerInput::Tokens { from, tokens: tokens.clone() };
                let mut effects = self.scheduler(now, key, input);
                effects.extend(self.tell_drivers(now, from, DataMessage::Tokens(tokens)));
                effects
            }
            other => self.tell_drivers(now, from, other),
        }
    }

    /// Drivers ignore what is not about them.
    fn tell_drivers(&mut self, now: Time, from: NodeId, message: DataMessage) -> Vec<Effect> {
        self.all_drivers(now, &DriverInput::Message { from, message })
    }

    pub fn stage(&mut self, now: Time, key: ShardKey, input: StageInput) -> Vec<Effect> {
        let Some(stage) = self.stages.get_mut(&key) else { return Vec::new() };
        let out = stage.handle(now, input);
        let effect = |o| match o {
            StageOutput::Send { to, message } => Effect::Data(to, message),
            compute @ StageOutput::Compute { .. } => Effect::Compute(key, compute),
        };
        out.into_iter().map(effect).collect()
    }

    pub fn scheduler(&mut self, now: Time, key: (InstanceId, u32), input: SchedulerInput) -> Vec<Effect> {
        let Some(scheduler) = self.schedulers.get_mut(&key) else { return Vec::new() };
        let (instance, generation) = key;
        let mut effects = Vec::new();
        for output in scheduler.handle(now, input) {
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
                SchedulerOutput::Ended { to, sequence, reason, generated } => {
                    (to, DataMessage::SequenceEnded { instance, generation, sequence, reason, generated })
                }
                SchedulerOutput::Failed { to, sequence, kind, message } => {
                    (to, DataMessage::SequenceFailed { instance, generation, sequence, kind, message })
                }
                // Nothing guesses with a model here.
                SchedulerOutput::Draft { .. } | SchedulerOutput::DraftOver(_) => continue,
                SchedulerOutput::Serving => continue,
                SchedulerOutput::Step(step) => (self.id, DataMessage::Step(step)),
                SchedulerOutput::InstanceFailed { message: reason, .. } => {
                    self.troubles.push(Trouble { instance, generation, reason });
                    continue;
                }
            };
            effects.push(Effect::Data(to, message));
        }
        effects
    }
}
