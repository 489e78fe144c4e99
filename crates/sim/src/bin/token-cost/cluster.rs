//! One or two machines, and hands that do at once what they are asked to.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use exo_cluster::wire::{Backup, DeviceReport, HeldModel, TokenResult};
use exo_cluster::{
    ComputeResult, DriverConfig, DriverStart, EngineId, Event, InstanceRequest, Speculation, StageGeometry,
    State,
};
use exo_machine::{
    BackupStart, Boot, Effect, EngineEvent, FetchEvent, Input, LinkEnd, LinkId, LoadedFacts, MachineConfig,
    NodeMachine, Now, Outgoing, SampledMeasures, Samples, SequenceEvent, StartRequest, StepJob, StreamId,
};
use exo_sim::clock::EPOCH_UNIX_S;
use exo_sim::draw::hash;
use exo_sim::model::sampling;
use exo_sim::{founding, shape};
use exo_types::{
    Ancestors, Attempt, DeviceState, DiskRoom, LogHead, ModelShape, Monitor, NodeFacts, NodeId, Principal,
    PromptQuery, RequestId, SampledToken, SequenceId, SequenceSpec, ShardSpec, StepSequence, Time,
};

use crate::meter::Meter;

const SEED: u64 = 1;
const HIDDEN: u32 = 1024;
const VOCAB: u32 = 32_000;
const CONTEXT_TOKENS: u32 = 1 << 17;
const CACHE_TOKENS: u32 = 1 << 18;
const SLOTS: u32 = 64;
const PAGE_TOKENS: u32 = 16;
/// Of the first request.
const PROMPT_TOKENS_AT_FIRST: u32 = 32;
/// What a step takes in simulated time.
const STEP: Duration = Duration::from_micros(1000);
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// The instance is ready before this, or never.
const READY_WITHIN: Duration = Duration::from_secs(60);

struct Member {
    id: NodeId,
    machine: NodeMachine,
    /// The other end of each link.
    links: BTreeMap<LinkId, (usize, LinkId)>,
    engines: BTreeMap<EngineId, ShardSpec>,
    sampled_at: Time,
}

/// Machines under one time.
pub struct Cluster {
    now: Time,
    members: Vec<Member>,
    queue: VecDeque<(usize, Input)>,
    links_given: u64,
    requests: u64,
    open: usize,
    failure: Option<String>,
    /// Of the first machine.
    pub meter: Meter,
    /// Told to clients while the meter was on.
    pub tokens: u64,
}

impl Cluster {
    /// As many nodes as the model gets stages; the first has founded the cluster, holds the model and runs
    /// the scheduler. So many bytes are read before each of its calls.
    pub fn new(nodes: usize, cold_bytes: usize) -> Result<Self, String> {
        let (trust, entries) = (founding::trust(SEED, 0, nodes, 0), founding::entries());
        let mut state = State::default();
        for entry in &entries {
            let event = Event::decode(entry).map_err(|error| error.to_string())?;
            state.apply(&event).map_err(|error| error.to_string())?;
        }
        let mut cluster = Self {
            now: Time::from_millis(1000),
            members: Vec::new(),
            queue: VecDeque::new(),
            links_given: 0,
            requests: 0,
            open: 0,
            failure: None,
            meter: Meter { cold: vec![1; cold_bytes], ..Meter::default() },
            tokens: 0,
        };
        let addresses: BTreeMap<_, _> = (0..nodes).map(|node| (id(node), vec![address(node)])).collect();
        for node in 0..nodes {
            let boot = Boot {
                epoch: None,
                base: LogHead::EMPTY,
                ancestors: Ancestors::default(),
                entries: entries.clone(),
                trust: trust.clone(),
                state: state.clone(),
                addresses: addresses.clone(),
                ended: BTreeMap::new(),
                samples: samples(node),
                models: models(),
                disk_room: DiskRoom::default(),
                window_ran: Duration::ZERO,
                has_new_model: false,
                left: Vec::new(),
                warnings: Vec::new(),
            };
            let (machine, effects) = NodeMachine::new(config(node), boot, cluster.clock());
            let (links, engines, sampled_at) = (BTreeMap::new(), BTreeMap::new(), cluster.now);
            cluster.members.push(Member { id: id(node), machine, links, engines, sampled_at });
            cluster.carry_all(node, effects);
        }
        Ok(cluster)
    }

    /// Asks once and waits for the answer: the model is placed, loaded and wired with it.
    pub fn warm_up(&mut self, tokens: u32) -> Result<(), String> {
        self.start(PROMPT_TOKENS_AT_FIRST, tokens);
        let until = self.now + READY_WITHIN;
        while self.open > 0 {
            self.advance()?;
            if self.now > until {
                return Err("the model was not ready in time".to_owned());
            }
        }
        Ok(())
    }

    /// Has `batch` clients ask at once for as many tokens each, until so many tokens are there.
    pub fn generate(&mut self, batch: usize, prompt: u32, each: u32, tokens: u64) -> Result<(), String> {
        self.meter.is_on = true;
        while self.tokens < tokens {
            (0..batch).for_each(|_| self.start(prompt, each));
            while self.open > 0 {
                self.advance()?;
            }
        }
        self.meter.is_on = false;
        Ok(())
    }

    fn start(&mut self, prompt_tokens: u32, max_tokens: u32) {
        self.requests += 1;
        let request = request(self.requests);
        let token = |position| hash(self.requests << 32 | u64::from(position)) as u32 % VOCAB;
        let start = DriverStart {
            model: shape::MODEL,
            spec: SequenceSpec {
                sequence: SequenceId { request, index: 0 },
                principal: Principal([1; 16]),
                driver: self.members[0].id,
                sampling: sampling(self.requests),
                prompt_tokens,
                history: (0..prompt_tokens).map(token).collect(),
                query: PromptQuery::Nothing,
            },
            max_tokens,
            vocab: VOCAB,
            stop_tokens: vec![2],
            ignore_eos: true,
            speculate: true,
        };
        let holders = self.members.iter().map(|member| member.id).collect();
        let place = InstanceRequest {
            shape: model_shape(),
            context_tokens: CONTEXT_TOKENS,
            slots: SLOTS,
            cache_tokens: CACHE_TOKENS,
            ..shape::instance_request(self.members.len() as u32, holders)
        };
        let backup = Backup { model: shape::MODEL, record: vec![0; 256], choices: vec![Vec::new()] };
        let backup = BackupStart { request: start.spec.sequence.request, proof: [0; 32], backup };
        let config = DriverConfig::default();
        let request = StartRequest { config, starts: vec![start], place, backup: Some(backup) };
        let input = Input::Start { stream: StreamId(self.requests), request: Box::new(request) };
        self.open += 1;
        self.queue.push_back((0, input));
    }

    /// The next thing that happens: a queued input, or else the next timer.
    fn advance(&mut self) -> Result<(), String> {
        match self.queue.pop_front() {
            Some((node, input)) => self.feed(node, input),
            None => {
                let next = self.members.iter().map(|member| member.machine.next_deadline()).min();
                self.now = self.now.max(next.unwrap_or(self.now)) + Duration::from_micros(1);
            }
        }
        for node in 0..self.members.len() {
            if self.members[node].machine.next_deadline() <= self.now {
                self.feed(node, Input::Timer);
            }
            if self.now.since(self.members[node].sampled_at) >= SAMPLE_EVERY {
                self.members[node].sampled_at = self.now;
                self.feed(node, Input::Sampled(Box::new(samples(node))));
            }
        }
        self.failure.take().map_or(Ok(()), Err)
    }

    fn clock(&self) -> Now {
        Now { time: self.now, unix_s: EPOCH_UNIX_S + self.now.0 / 1_000_000 }
    }

    fn feed(&mut self, node: usize, input: Input) {
        let now = self.clock();
        let machine = &mut self.members[node].machine;
        let effects = match node {
            0 => self.meter.handle(machine, now, input),
            _ => machine.handle(now, input),
        };
        self.carry_all(node, effects);
    }

    fn carry_all(&mut self, node: usize, effects: Vec<Effect>) {
        effects.into_iter().for_each(|effect| self.carry(node, effect));
    }

    fn carry(&mut self, node: usize, effect: Effect) {
        match effect {
            Effect::Dial { dial, peer, purpose, addresses, .. } => {
                let other = self.members.iter().position(|member| member.id == peer);
                let (Some(other), Some(&(via, _))) = (other, addresses.first()) else { return };
                let [own, theirs] = [1, 2].map(|more| LinkId(self.links_given + more));
                self.links_given += 2;
                self.members[node].links.insert(own, (other, theirs));
                self.members[other].links.insert(theirs, (node, own));
                for (at, link, peer, from, dial) in
                    [(node, own, peer, other, Some(dial)), (other, theirs, self.members[node].id, node, None)]
                {
                    let remote = address(from);
                    self.queue.push_back((at, Input::LinkUp { link, peer, purpose, via, remote, dial }));
                }
            }
            Effect::Send { link, message } => self.send(node, link, message),
            Effect::CloseLink { link, .. } => {
                if let Some((other, link)) = self.members[node].links.remove(&link) {
                    self.members[other].links.remove(&link);
                    self.queue
                        .push_back((other, Input::LinkDown { link, reason: LinkEnd::Reset(String::new()) }));
                }
            }
            Effect::Persist { id, .. } => {
                self.queue.push_back((node, Input::Persisted { id, result: Ok(()) }))
            }
            Effect::Plan { id, request } => {
                let result = exo_planner::plan(&request);
                self.queue.push_back((node, Input::Planned { id, result }));
            }
            Effect::Fetch { fetch, .. } => {
                self.queue.push_back((node, Input::Fetched { fetch, event: FetchEvent::Done }));
            }
            Effect::Load { engine, spec } => {
                self.members[node].engines.insert(engine, *spec);
                self.engine_says(node, engine, EngineEvent::Loaded(Box::new(loaded())));
            }
            Effect::Rewire { engine, position, term, .. } => {
                self.engine_says(node, engine, EngineEvent::Rewired { position, term });
            }
            Effect::Compute { engine, position, job } => {
                let (term, step, busy) = (job.frame.term, job.frame.step, STEP);
                let Some(spec) = self.members[node].engines.get(&engine) else { return };
                let result = compute(spec, &job);
                self.now = self.now + STEP;
                self.queue.push_back((node, Input::Computed { engine, position, term, step, result, busy }));
            }
            Effect::Unload(engine) => self.engine_says(node, engine, EngineEvent::Unloaded),
            Effect::ScanModels => self.queue.push_back((node, Input::Models(models(), DiskRoom::default()))),
            Effect::Emit { stream, event } => self.told(stream, event),
            _ => {}
        }
    }

    fn engine_says(&mut self, node: usize, engine: EngineId, event: EngineEvent) {
        self.queue.push_back((node, Input::Engine { engine, event }));
    }

    fn send(&mut self, node: usize, link: LinkId, message: Outgoing) {
        let Some(&(other, theirs)) = self.members[node].links.get(&link) else { return };
        let input = match message {
            Outgoing::Accept { incarnation } => Input::LinkAccepted { link: theirs, incarnation },
            Outgoing::TwoProcesses => return,
            Outgoing::Ping => {
                let rtt = Some(Duration::from_micros(100));
                self.queue.push_back((node, Input::Heard { link, rtt }));
                Input::Heard { link: theirs, rtt: None }
            }
            Outgoing::Control(message) => {
                Input::Control { link: theirs, message: Box::new((*message).clone()) }
            }
            Outgoing::Data(message) => Input::Data { link: theirs, message },
        };
        self.queue.push_back((other, input));
    }

    fn told(&mut self, stream: StreamId, event: SequenceEvent) {
        match event {
            SequenceEvent::Token { .. } => self.tokens += u64::from(self.meter.is_on),
            SequenceEvent::Ended { .. } => {
                self.open -= 1;
                // Its client has it all.
                let cancel = Input::Cancel { request: request(stream.0), index: None };
                self.queue.push_back((0, cancel));
            }
            SequenceEvent::Refused(error) => self.failure = Some(error.to_string()),
            SequenceEvent::Failed { message, .. } => self.failure = Some(message),
            SequenceEvent::Queued(_) | SequenceEvent::Watched | SequenceEvent::Started { .. } => {}
        }
    }
}

fn id(node: usize) -> NodeId {
    founding::node_id(&founding::key(SEED, node))
}

fn address(node: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, node as u8 + 1], 4000))
}

fn config(node: usize) -> MachineConfig {
    MachineConfig {
        me: id(node),
        name: founding::name(node),
        group: "exo".to_owned(),
        listen: address(node),
        peers: Vec::new(),
        trust_closed: false,
        has_token: false,
        log: Default::default(),
        speculation: Speculation::Lookup,
        unload_idle_after: None,
        incarnation: 1,
        seed: [node as u8; 32],
        #[cfg(feature = "planted")]
        planted: None,
    }
}

fn samples(node: usize) -> Samples {
    let device = shape::device(0);
    let (id, total) = (device.id.clone(), device.memory_total_bytes);
    let (state, reason, monitor) = (DeviceState::Usable, String::new(), Monitor::default());
    Samples {
        facts: NodeFacts {
            node: self::id(node),
            name: founding::name(node),
            version: "0".to_owned(),
            platform: "sim".to_owned(),
            devices: vec![device],
            mains_power: None,
        },
        memory_bytes: vec![(id.clone(), total)],
        devices: vec![DeviceReport { device: id, state, reason, driver: None, monitor }],
        card_events: Vec::new(),
        process_bytes: None,
        networks: Vec::new(),
        measured: SampledMeasures::default(),
    }
}

fn models() -> Vec<HeldModel> {
    let (model, name, bytes) = (shape::MODEL, shape::MODEL_NAME.to_owned(), model_shape().weight_bytes());
    vec![HeldModel {
        model,
        name,
        bytes,
        held_bytes: bytes,
        complete: true,
        is_of_hub: false,
        expected_bytes: 0,
        may_go: false,
    }]
}

fn model_shape() -> ModelShape {
    let (hidden, vocab, context_tokens_max) = (HIDDEN, VOCAB, CONTEXT_TOKENS);
    ModelShape { hidden, vocab, context_tokens_max, ..shape::model_shape() }
}

fn loaded() -> LoadedFacts {
    let (hidden, vocab, page_tokens, pages) = (HIDDEN, VOCAB, PAGE_TOKENS, CACHE_TOKENS / PAGE_TOKENS);
    let geometry = StageGeometry { hidden, vocab, pages, page_tokens };
    LoadedFacts { geometry, weight_bytes: 0, slower_because: None, draft: None }
}

/// Tokens by hash of their place, rows of zeros.
fn compute(spec: &ShardSpec, job: &StepJob) -> ComputeResult {
    if !spec.head {
        return ComputeResult::Rows(vec![0; job.frame.token_count() * HIDDEN as usize * 4].into());
    }
    ComputeResult::Tokens(job.frame.sequences.iter().filter(|part| part.sample).map(sample).collect())
}

fn sample(part: &StepSequence) -> TokenResult {
    let (sequence, position, drafts) = (part.sequence, part.sample_position(), part.drafts);
    let (_, guesses) = part.split_drafts();
    let mut tokens = Vec::new();
    loop {
        let place = (sequence.request.0 >> 64) as u64 ^ (u64::from(position) + tokens.len() as u64) << 20;
        let token = hash(place) as u32 % VOCAB;
        tokens.push(SampledToken::bare(token));
        if guesses.get(tokens.len() - 1) != Some(&token) {
            return TokenResult {
                sequence,
                attempt: Attempt::FIRST,
                position,
                tokens,
                drafts,
                forced: vec![],
            };
        }
    }
}

fn request(number: u64) -> RequestId {
    RequestId(u128::from(number) << 64 | 7)
}
