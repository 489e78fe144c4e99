//! The world around the nodes: time, delivery, engines, crashes, the election, and what is checked on the way.

use std::collections::BTreeMap;
use std::time::Duration;

use exo_cluster::wire::{ControlMessage, DataMessage, TokenResult};
use exo_cluster::{
    Action, ClusterId, ComputeResult, CoordinatorInput, CoordinatorOutput, Driver, DriverConfig,
    DriverOutput, DriverPhase, DriverStart, Event, InstanceRequest, Member, PlaceObjective, ReplyTo, Role,
    ShardKey, StageInput, StageOutput, State, WorkerInput,
};
use exo_types::{
    Epoch, FailureKind, InstanceId, KvDType, LayerShape, ModelId, ModelShape, NodeId, Principal, RequestId,
    SampledToken, SamplingParams, SequenceId, SequenceSpec, StepFrame, StepSequence, Time,
};

use crate::node::{Effect, SimNode};
use crate::rng::{Rng, mix};

const MODEL: ModelId = ModelId([9; 32]);
const STOP: u32 = 99;

/// How unkind a run is.
#[derive(Clone, Copy, Default)]
pub struct Chance {
    pub crashes: u32,
    pub loss_per_10_000: u32,
    pub device_failures_per_10_000: u32,
}

/// One request and how it went.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub node: NodeId,
    pub life: u32,
    pub sequence: SequenceId,
    pub started_at: Time,
    pub ended_at: Option<Time>,
    pub failure: Option<FailureKind>,
    tokens: u32,
}

enum Happening {
    Control { from: NodeId, to: NodeId, bytes: Vec<u8> },
    Data { from: NodeId, to: NodeId, bytes: Vec<u8> },
    Appended { node: NodeId, life: u32, input: Box<CoordinatorInput>, events: Vec<Event> },
    Planned { node: NodeId, life: u32, input: Box<CoordinatorInput> },
    Computed { node: NodeId, life: u32, key: ShardKey, input: StageInput },
    Worked { node: NodeId, life: u32, action: Action },
    Tick,
    Ask,
    Crash,
    Detect(NodeId),
    Return(NodeId),
}

pub struct World {
    pub nodes: BTreeMap<NodeId, SimNode>,
    pub requests: Vec<Request>,
    pub events: u64,
    pub tokens_shown: u64,
    now: Time,
    queue: BTreeMap<(Time, u64), Happening>,
    /// Messages of one pair keep their order: when the last one arrives.
    links: BTreeMap<(NodeId, NodeId, bool), Time>,
    log: State,
    leader: NodeId,
    epoch: u64,
    rng: Rng,
    chance: Chance,
    /// Who computed what: (shard, sequence, position).
    computed: BTreeMap<(ShardKey, SequenceId, u32), u32>,
}

fn id(n: u8) -> NodeId {
    NodeId([n; 32])
}

fn member(n: u8) -> Member {
    let role = if n == 1 { Role::Admin } else { Role::Worker };
    Member { node: id(n), name: format!("n{n}"), role, certificate: vec![] }
}

impl World {
    pub fn new(seed: u64, nodes: u8, chance: Chance) -> Self {
        let mut log = State::default();
        let (cluster, founder) = (ClusterId([1; 16]), member(1));
        log.apply(&Event::ClusterCreated { cluster, name: "sim".into(), founder, at_unix_s: 0 })
            .expect("the first event");
        for n in 2..=nodes {
            log.apply(&Event::MemberAdmitted(member(n))).expect("a new member");
        }
        let all = (1..=nodes).map(|n| (id(n), SimNode::new(id(n), 0, log.clone()))).collect();
        let mut world = Self {
            nodes: all,
            requests: Vec::new(),
            events: 0,
            tokens_shown: 0,
            now: Time::ZERO,
            queue: BTreeMap::new(),
            links: BTreeMap::new(),
            log,
            leader: id(1),
            epoch: 0,
            rng: Rng(seed),
            chance,
            computed: BTreeMap::new(),
        };
        world.elect();
        world.schedule(0, Happening::Tick);
        for _ in 0..40 {
            let at = world.rng.below(60_000);
            world.schedule(at, Happening::Ask);
        }
        for _ in 0..chance.crashes {
            let at = 2000 + world.rng.below(48_000);
            world.schedule(at, Happening::Crash);
        }
        world
    }

    pub fn run_until(&mut self, seconds: u64) {
        let end = Time::from_millis(seconds * 1000);
        while let Some(((at, _), happening)) = self.queue.pop_first() {
            if at > end {
                return;
            }
            self.now = at;
            self.happen(happening);
        }
    }

    pub fn life(&self, node: NodeId) -> u32 {
        self.nodes[&node].life
    }

    /// Whether the shard belongs to the newest generation of a placed instance.
    pub fn is_current(&self, key: ShardKey) -> bool {
        self.log.instances().get(&key.instance).is_some_and(|i| i.placement.generation == key.generation)
    }

    pub fn leader_ready(&self) -> bool {
        let views = self.nodes[&self.leader].coordinator.instances();
        views.iter().any(|v| v.is_ready())
    }

    fn schedule(&mut self, in_ms: u64, happening: Happening) {
        self.schedule_at(self.now + Duration::from_millis(in_ms), happening);
    }

    fn schedule_at(&mut self, at: Time, happening: Happening) {
        self.events += 1;
        self.queue.insert((at, self.events), happening);
    }

    fn happen(&mut self, happening: Happening) {
        let now = self.now;
        match happening {
            Happening::Control { from, to, bytes } => {
                let message = ControlMessage::decode(&bytes).expect("our own bytes");
                self.on(to, |n| n.control(now, from, message));
            }
            Happening::Data { from, to, bytes } => {
                let message = DataMessage::decode(&bytes).expect("our own bytes");
                self.on(to, |n| n.data(now, from, message));
            }
            Happening::Appended { node, life, input, events } => self.appended(node, life, *input, events),
            Happening::Computed { node, life, key, input } if self.life(node) == life => {
                self.on(node, |n| n.stage(now, key, input));
            }
            Happening::Worked { node, life, action } if self.life(node) == life => self.worked(node, action),
            Happening::Planned { node, life, input } if self.life(node) == life => {
                self.on(node, |n| n.coordinator(now, *input));
            }
            Happening::Computed { .. } | Happening::Worked { .. } | Happening::Planned { .. } => {}
            Happening::Tick => self.tick(),
            Happening::Ask => self.ask(),
            Happening::Crash => self.crash(),
            Happening::Detect(node) => self.detect(node),
            Happening::Return(node) => self.come_back(node),
        }
    }

    /// Lets a living node act and carries out what it wants.
    fn on(&mut self, node: NodeId, act: impl FnOnce(&mut SimNode) -> Vec<Effect>) {
        let Some(sim) = self.nodes.get_mut(&node).filter(|n| n.alive) else { return };
        for effect in act(sim) {
            self.effect(node, effect);
        }
    }

    fn living(&self) -> Vec<NodeId> {
        self.nodes.values().filter(|n| n.alive).map(|n| n.id).collect()
    }

    fn effect(&mut self, node: NodeId, effect: Effect) {
        match effect {
            Effect::Data(to, message) => self.data(node, to, &message),
            Effect::Coordinator(output) => self.coordinated(node, output),
            Effect::Driver(sequence, output) => self.driven(node, sequence, output),
            Effect::Work(action) => {
                let (life, delay) = (self.life(node), 1 + self.rng.below(800));
                self.schedule(delay, Happening::Worked { node, life, action });
            }
            Effect::Compute(key, StageOutput::Compute { frame, .. }) => self.compute(node, key, &frame),
            Effect::Compute(..) => {}
        }
    }

    fn arrival(&mut self, from: NodeId, to: NodeId, is_data: bool) -> Option<Time> {
        if from != to && self.rng.chance(self.chance.loss_per_10_000) {
            return None;
        }
        let delay = if from == to { 0 } else { 1 + self.rng.below(20) };
        let last = self.links.entry((from, to, is_data)).or_default();
        *last = (*last).max(self.now + Duration::from_millis(delay));
        Some(*last)
    }

    fn control(&mut self, from: NodeId, to: NodeId, message: &ControlMessage) {
        let bytes = message.encode();
        if let Some(at) = self.arrival(from, to, false) {
            self.schedule_at(at, Happening::Control { from, to, bytes });
        }
    }

    fn data(&mut self, from: NodeId, to: NodeId, message: &DataMessage) {
        let bytes = message.encode();
        if let Some(at) = self.arrival(from, to, true) {
            self.schedule_at(at, Happening::Data { from, to, bytes });
        }
    }

    fn coordinated(&mut self, node: NodeId, output: CoordinatorOutput) {
        match output {
            CoordinatorOutput::Append { append, events } => {
                let (life, input) = (self.life(node), Box::new(CoordinatorInput::Appended(append)));
                self.schedule(2, Happening::Appended { node, life, input, events });
            }
            CoordinatorOutput::Plan { plan, request } => {
                let (life, delay) = (self.life(node), 1 + self.rng.below(8));
                let result = exo_planner::plan(&request);
                let input = Box::new(CoordinatorInput::Planned { plan, result });
                self.schedule(delay, Happening::Planned { node, life, input });
            }
            CoordinatorOutput::SendDesired { to, desired } => {
                self.control(node, to, &ControlMessage::Desired(desired));
            }
            CoordinatorOutput::Instances { epoch, instances } => {
                let message = ControlMessage::Instances { epoch, instances };
                for to in self.living() {
                    self.control(node, to, &message);
                }
            }
            CoordinatorOutput::Reply { .. } | CoordinatorOutput::InstanceChanged(_) => {}
        }
    }

    /// The journal of the leader, and its copies. What a leader wrote while it crashed or fell is lost.
    fn appended(&mut self, node: NodeId, life: u32, input: CoordinatorInput, events: Vec<Event>) {
        if self.leader != node || self.life(node) != life || !self.nodes[&node].alive {
            return;
        }
        for event in &events {
            self.log.apply(event).expect("a coordinator appends only what applies");
        }
        let now = self.now;
        for other in self.living().into_iter().filter(|&n| n != node) {
            let events = events.clone();
            self.on(other, |n| n.coordinator(now, CoordinatorInput::Replicated(events)));
        }
        self.on(node, |n| n.coordinator(now, input));
    }

    fn worked(&mut self, node: NodeId, action: Action) {
        let now = self.now;
        let input = match action {
            Action::FetchManifest { key, .. } => WorkerInput::ManifestHeld(key),
            Action::FetchChunks { key, .. } => WorkerInput::Stored(key),
            Action::LoadShard { key, placement } | Action::AdoptShard { to: key, placement, .. } => {
                if let Some(sim) = self.nodes.get_mut(&node).filter(|n| n.alive) {
                    sim.loaded(key, placement);
                }
                WorkerInput::Ready(key)
            }
            Action::UnloadShard { key } | Action::Cancel { key } => WorkerInput::Unloaded(key),
            other => panic!("unknown action {other:?}"),
        };
        self.on(node, |n| n.worker(now, input));
        self.report(node);
    }

    fn report(&mut self, node: NodeId) {
        let (leader, report) = (self.leader, self.nodes[&node].report());
        if self.nodes[&node].alive {
            self.control(node, leader, &ControlMessage::Report(Box::new(report)));
        }
    }

    /// The engine: hidden rows of zeros, tokens by hash. No position of a sequence may be computed twice
    /// unless it was truncated.
    fn compute(&mut self, node: NodeId, key: ShardKey, frame: &StepFrame) {
        for part in &frame.sequences {
            if let Some(keep) = part.truncate_to {
                self.computed.retain(|at, _| (at.0, at.1) != (key, part.sequence) || at.2 < keep);
            }
            for (position, &token) in (part.start..).zip(&part.tokens) {
                let twice = self.computed.insert((key, part.sequence, position), token);
                assert_eq!(twice, None, "{key:?} computed {} at {position} twice", part.sequence);
            }
        }
        let placement = &self.log.instances().get(&key.instance).map(|i| i.placement.clone());
        let is_last = placement.as_ref().is_some_and(|p| key.stage as usize + 1 == p.stages.len());
        let result = if self.rng.chance(self.chance.device_failures_per_10_000) {
            ComputeResult::Failed { kind: FailureKind::Device, message: "chance".into() }
        } else if is_last {
            ComputeResult::Tokens(frame.sequences.iter().filter(|s| s.sample).map(sampled).collect())
        } else {
            ComputeResult::Rows(vec![0; frame.token_count() * 8])
        };
        let (life, step, delay) = (self.life(node), frame.step, 1 + self.rng.below(30));
        let input = StageInput::ComputeDone { step, result };
        self.schedule(delay, Happening::Computed { node, life, key, input });
    }

    fn driven(&mut self, node: NodeId, sequence: SequenceId, output: DriverOutput) {
        let now = self.now;
        let request = self.requests.iter_mut().find(|r| r.sequence == sequence).expect("its request");
        match output {
            DriverOutput::Send { to, message } => self.data(node, to, &message),
            DriverOutput::Token { position, token } => {
                assert_eq!(token, answer(sequence, position), "a client sees the model's tokens, in order");
                request.tokens += 1;
                self.tokens_shown += 1;
            }
            DriverOutput::Ended(_) => {
                assert!(request.ended_at.replace(now).is_none() && request.tokens > 0, "{request:?}");
            }
            DriverOutput::Failed { kind, .. } => {
                assert!(request.ended_at.replace(now).is_none(), "{request:?} ended twice");
                request.failure = Some(kind);
            }
        }
    }

    fn tick(&mut self) {
        self.schedule(1000, Happening::Tick);
        let now = self.now;
        for node in self.living() {
            self.report(node);
            self.on(node, |n| n.tick(now));
        }
        if self.nodes[&self.leader].coordinator.instances().is_empty() {
            let reply = ReplyTo { node: self.leader, request: 0 };
            let place = CoordinatorInput::Place { reply, request: request() };
            self.on(self.leader, |n| n.coordinator(now, place));
        }
    }

    fn ask(&mut self) {
        let living = self.living();
        let node = living[self.rng.below(living.len() as u64) as usize];
        let sequence = SequenceId { request: RequestId(self.requests.len() as u128 + 1), index: 0 };
        let prompt = 1 + self.rng.below(u64::from(PROMPT_MAX)) as u32;
        let spec = SequenceSpec {
            sequence,
            principal: Principal([self.rng.below(3) as u8; 16]),
            driver: node,
            sampling: SamplingParams::greedy(),
            history: vec![1; prompt as usize],
            prompt_tokens: prompt,
        };
        let (max_tokens, stop_tokens) = (1 + self.rng.below(30) as u32, vec![STOP]);
        let start =
            DriverStart { model: MODEL, spec, max_tokens, stop_tokens, ignore_eos: false, speculate: true };
        let (now, life) = (self.now, self.life(node));
        let (started_at, ended_at, failure, tokens) = (now, None, None, 0);
        self.requests.push(Request { node, life, sequence, started_at, ended_at, failure, tokens });
        self.on(node, |n| n.start(now, Driver::new(DriverConfig::default(), now, start)));
    }

    fn crash(&mut self) {
        let living = self.living();
        if living.len() <= 2 {
            return; // two stages need two nodes
        }
        let node = living[self.rng.below(living.len() as u64) as usize];
        if let Some(sim) = self.nodes.get_mut(&node) {
            sim.alive = false;
        }
        let (noticed, back) = (200 + self.rng.below(4000), 10_000 + self.rng.below(20_000));
        self.schedule(noticed, Happening::Detect(node));
        self.schedule(noticed + back, Happening::Return(node));
    }

    fn detect(&mut self, lost: NodeId) {
        let now = self.now;
        if self.leader == lost {
            self.elect();
        }
        for node in self.living() {
            self.on(node, |n| n.node_lost(now, lost));
        }
        // The typed failure comes within 10 seconds of the loss: detection takes under five, and then it is at once.
        let placements: Vec<_> = self.log.instances().values().map(|i| &i.placement).collect();
        let dead: Vec<InstanceId> =
            placements.iter().filter(|p| p.stage_of(lost).is_some()).map(|p| p.instance).collect();
        for driver in self.nodes.values().filter(|n| n.alive).flat_map(|n| n.drivers.values()) {
            if let DriverPhase::Running(on) = driver.phase() {
                assert!(!dead.contains(&on), "{} still runs on the lost {lost}", driver.sequence());
            }
        }
    }

    fn come_back(&mut self, node: NodeId) {
        let life = self.life(node) + 1;
        self.nodes.insert(node, SimNode::new(node, life, self.log.clone()));
        let now = self.now;
        for other in self.living() {
            self.on(other, |n| n.coordinator(now, CoordinatorInput::NodeUp(node)));
            self.on(node, |n| n.coordinator(now, CoordinatorInput::NodeUp(other)));
        }
    }

    /// The first living node leads.
    fn elect(&mut self) {
        let living = self.living();
        (self.leader, self.epoch) = (living[0], self.epoch + 1);
        let (now, epoch) = (self.now, Epoch { counter: self.epoch, key: self.leader });
        for node in living.clone() {
            for &other in &living {
                self.on(node, |n| n.coordinator(now, CoordinatorInput::NodeUp(other)));
            }
            let leads = node == self.leader;
            let input = if leads { CoordinatorInput::Lead { epoch } } else { CoordinatorInput::Follow };
            self.on(node, |n| n.coordinator(now, input));
        }
    }
}

const PROMPT_MAX: u32 = 25;

/// The answer's tokens as far as the drafts are right, and one more.
fn sampled(part: &StepSequence) -> TokenResult {
    let (sequence, position, drafts) = (part.sequence, part.sample_position(), part.drafts);
    let guesses = part.split_drafts().1.iter();
    let right = (position..).zip(guesses).take_while(|&(at, guess)| answer(sequence, at).token == *guess);
    let end = position + right.count() as u32;
    let tokens = (position..=end).map(|at| answer(sequence, at)).collect();
    TokenResult { sequence, position, tokens, drafts }
}

fn answer(sequence: SequenceId, position: u32) -> SampledToken {
    let hash = mix(sequence.request.0 as u64 ^ u64::from(position) << 32);
    let token = if hash.is_multiple_of(20) { STOP } else { (hash >> 8) as u32 % 90 };
    SampledToken { token, logprob: None, top: Vec::new() }
}

fn request() -> InstanceRequest {
    let layer =
        LayerShape { weight_bytes: 1000, packed_bytes: 1000, flops_per_token: 2000, kv_bytes_per_token: 4 };
    InstanceRequest {
        model: MODEL,
        model_name: "m".into(),
        shape: ModelShape {
            layers: vec![layer; 4],
            embedding_bytes: 500,
            head_bytes: 500,
            embedding_packed_bytes: 500,
            head_packed_bytes: 500,
            tied: false,
            hidden: 2,
            vocab: 100,
            context_tokens_max: 64,
        },
        context_tokens: 64,
        slots: 4,
        cache_tokens: 256,
        kv: KvDType::default(),
        objective: PlaceObjective::Spread { stages_min: 2 },
        pinned_first: None,
        holders: vec![id(1)],
    }
}
