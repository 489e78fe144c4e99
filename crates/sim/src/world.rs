//! The world: nodes under one time, and a queue of what happens next.
//!
//! What happens is ordered by its time, then by when it was decided; nothing else decides order. Each event
//! feeds at most one machine with inputs, whose effects are carried out at once, which means that they become
//! further events.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use exo_cluster::EngineId;
use exo_machine::{DialId, Effect, Input, LinkEnd, Outgoing, Purpose, ReplyId};
use exo_types::{Time, Transport};

use crate::clients::Clients;
use crate::dialling::Dialling;
use crate::draw::{DrawFor, Draws};
use crate::invariants::{Facts, Failure, Invariant, Observation, Watch};
use crate::joins::Exchange;
use crate::lies_of_data::Waiting;
use crate::model::{HashModel, Model};
use crate::net::{Net, Parcel, Wire};
use crate::node::Node;
use crate::scenario::{NEWCOMER_AFTER_MS, Scenario};
use crate::shape::Names;
use crate::strangers::Strangers;
use crate::trace;

/// Between two looks at the whole cluster.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Between two samples of a node's memory and sensors.
pub(crate) const SAMPLE_EVERY: Duration = Duration::from_millis(1000);
/// No timer rings sooner than this after the input before: a deadline in the past would stop the world's
/// time.
const TIMER_GAP: Duration = Duration::from_micros(50);
/// The longest that a run goes on behind its end while a request is open: the bound of a request and a
/// little.
const AFTER: Duration = Duration::from_secs(220);
/// From the end of the last request to the last look.
const REST: Duration = Duration::from_secs(5);

/// Changes what a node sends: for nodes that lie.
pub type Rewrite = fn(&mut Outgoing);

/// What a run does besides.
#[derive(Clone, Copy, Default)]
pub struct Options {
    /// Gets each line of the trace.
    pub trace: Option<fn(&str)>,
    /// Hashes all effects, to compare two runs.
    pub is_hashed: bool,
    /// Changes what this node sends.
    pub rewrite: Option<(usize, Rewrite)>,
    /// The bug in every machine.
    #[cfg(feature = "planted")]
    pub planted: Option<exo_machine::planted::Bug>,
}

/// Something that happens.
#[derive(Debug)]
pub enum Event {
    /// A process is told something that needs no looking up.
    Input(Box<Input>),
    /// An engine of a process says something: not if it is gone by then.
    Engine(EngineId, Box<Input>),
    /// A process's timer.
    Timer(u64),
    /// The disk is done with what it was given.
    Written,
    /// Memory and sensors are sampled.
    Sample,
    /// A parcel has come through to a process: connection, side it comes from.
    Parcel(usize, usize, Parcel),
    /// A device in quarantine may be used again.
    Release,
    /// A process hears that a connection was reset: connection, its own side.
    Down(usize, usize),
    /// An attempt to dial reaches somebody, or nobody, at that of its addresses.
    DialReach(DialId, usize),
    /// An attempt to dial has taken too long.
    DialOver(DialId),
    /// A question of a stranger reaches somebody, or nobody.
    AskReach(u64, u64),
    /// Nobody answered it.
    AskOver(u64, u64, &'static str),
    /// Discovery tells of that node.
    Found(usize),
    /// A client starts.
    Client(usize),
    /// A client that is behind reads on.
    Read(usize),
    /// A client leaves or stops a choice.
    Leave(usize, Option<u16>),
    /// A person asks, for the how-manieth time.
    Ask(usize, u32),
}

/// What happens to no process in particular.
#[derive(Debug)]
pub(crate) enum WorldEvent {
    /// A process is told something, in that life of its node.
    Process { node: usize, life: u32, event: Event },
    /// A parcel arrives: connection, side it comes from.
    Arrive(usize, usize, Parcel),
    /// A fault begins: its place in the run's list.
    Fault(usize),
    /// It is over.
    Over(usize),
    /// A process is started.
    Start(usize),
    /// Whoever looks at the cluster does so.
    Look,
    /// A client looks for a node.
    Client(usize),
    /// A person looks for a node.
    Ask(usize, u32),
    /// A client whose node died turns to another one.
    Claim(usize),
    /// Somebody asks to see whether anybody answers.
    Probe(usize),
}

struct Entry {
    at: Time,
    number: u64,
    event: WorldEvent,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// The next event is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// A run under way.
pub struct World {
    pub(crate) scenario: Scenario,
    pub(crate) options: Options,
    pub(crate) now: Time,
    pub(crate) nodes: Vec<Node>,
    pub(crate) net: Net,
    pub(crate) clients: Clients,
    /// Clients that wait for what is left of their answer.
    pub(crate) claims: BTreeMap<(usize, ReplyId), usize>,
    pub(crate) names: Names,
    pub(crate) model: Box<dyn Model>,
    pub(crate) draws: Draws,
    pub(crate) dials: BTreeMap<(usize, DialId), Dialling>,
    pub(crate) exchanges: BTreeMap<u64, Exchange>,
    pub(crate) attempts: u64,
    pub(crate) checks: u64,
    pub(crate) asks: BTreeMap<(usize, ReplyId), (usize, u32)>,
    pub(crate) sent: u64,
    /// Freezes in force, and in which life; crashes whose process is to be started again. By fault.
    pub(crate) frozen: BTreeMap<usize, u32>,
    pub(crate) crashed: BTreeMap<usize, usize>,
    /// Nodes whose disk is slow or full. By fault.
    pub(crate) whose_disk: BTreeMap<usize, usize>,
    pub(crate) lies_waiting: Vec<Waiting>,
    pub(crate) strangers: Strangers,
    /// How often each thing went wrong, by name.
    fired: BTreeMap<&'static str, u32>,
    /// See [`Report::embedded`].
    pub(crate) embedded: u64,
    /// See [`Report::headed`].
    pub(crate) headed: u64,
    queue: BinaryHeap<Entry>,
    inserted: u64,
    handles: u64,
    watch: Watch,
    invariants: &'static [Invariant],
    failure: Option<Failure>,
    hasher: Option<blake3::Hasher>,
}

/// How a run went.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was broken.
    pub failure: Option<Failure>,
    /// Inputs handled.
    pub handles: u64,
    /// How long it went.
    pub until: Time,
    /// Requests that were answered, and that were not.
    pub answered: usize,
    /// Clients that went on at another node when theirs had died.
    pub resumed: usize,
    /// The longest that an answered one took.
    pub slowest: Duration,
    /// See `answered`; with why.
    pub failed: Vec<String>,
    /// Models that nodes had compared with what their hub promised.
    pub checks: u64,
    /// How often each thing went wrong, by name.
    pub fired: BTreeMap<&'static str, u32>,
    /// Positions that first stages computed, again or not.
    pub embedded: u64,
    /// Positions that last stages computed, again or not.
    pub headed: u64,
    /// Over all effects, if asked for.
    pub hash: Option<blake3::Hash>,
}

impl World {
    /// A world before anything happens in it.
    pub fn new(scenario: Scenario, options: Options, invariants: &'static [Invariant]) -> Self {
        let (seed, count) = (scenario.seed, scenario.nodes());
        let (together, window_s) = (scenario.founded(), scenario.window_s());
        let founded = (together > 0).then(|| crate::founding::trust(seed, 0, together, window_s));
        let trust = |node: usize| match &founded {
            Some(founded) if node < together => founded.clone(),
            _ => crate::founding::trust(seed, node, 1, window_s),
        };
        let mut nodes: Vec<Node> =
            (0..count).map(|node| Node::new(seed, node, scenario.lans[node], trust(node))).collect();
        crate::upheaval::introduce(&scenario, &mut nodes);
        let names = Names::new(nodes.iter().map(|node| node.id));
        let mut world = Self {
            net: Net::new(seed, scenario.lans.clone()),
            now: Time::ZERO,
            nodes,
            clients: Clients::default(),
            claims: BTreeMap::new(),
            names,
            model: Box::new(HashModel),
            draws: Draws::new(seed, DrawFor::Process, 1 << 20),
            dials: BTreeMap::new(),
            exchanges: BTreeMap::new(),
            attempts: 0,
            checks: 0,
            asks: BTreeMap::new(),
            sent: 0,
            frozen: BTreeMap::new(),
            crashed: BTreeMap::new(),
            whose_disk: BTreeMap::new(),
            lies_waiting: Vec::new(),
            strangers: Strangers::default(),
            fired: BTreeMap::new(),
            embedded: 0,
            headed: 0,
            queue: BinaryHeap::new(),
            inserted: 0,
            handles: 0,
            watch: Watch::default(),
            invariants,
            failure: None,
            hasher: options.is_hashed.then(blake3::Hasher::new),
            scenario,
            options,
        };
        world.plan();
        world
    }

    /// Puts all that was decided before the run into the queue.
    fn plan(&mut self) {
        let newcomers = self.nodes.len() - self.scenario.newcomers;
        for node in 0..self.nodes.len() {
            let from_ms = if node < newcomers { 0 } else { NEWCOMER_AFTER_MS };
            let at = Time::ZERO + self.draws.draw().millis(from_ms, from_ms + self.scenario.starts_ms);
            self.at(at, WorldEvent::Start(node));
        }
        for index in 0..self.scenario.faults.len() {
            let fault = self.scenario.faults[index];
            self.at(fault.at, WorldEvent::Fault(index));
            self.at(fault.over(), WorldEvent::Over(index));
        }
        for index in 0..self.scenario.clients.len() {
            self.at(self.scenario.clients[index].at, WorldEvent::Client(index));
        }
        for index in 0..self.scenario.asks.len() {
            self.at(self.scenario.asks[index].at, WorldEvent::Ask(index, 0));
        }
        self.at(Time::ZERO + LOOK_EVERY, WorldEvent::Look);
        self.at(self.scenario.calm_from() + Duration::from_secs(1), WorldEvent::Probe(0));
    }

    /// Runs to the end, or until something is broken.
    pub fn run(&mut self) -> Report {
        let mut until = self.scenario.until;
        loop {
            self.run_until(until);
            let open = self.clients.all().filter(|(_, run)| run.is_open());
            let last = open.map(|(_, run)| run.started_at + AFTER).max();
            match last {
                Some(last) if self.failure.is_none() && last > until => {
                    until = until + Duration::from_secs(1)
                }
                _ => break,
            }
        }
        if self.failure.is_none() {
            self.run_until(until + REST);
            self.see(&Observation::End);
        }
        self.report()
    }

    /// Runs until a time, or until something is broken.
    pub fn run_until(&mut self, until: Time) {
        while self.failure.is_none() && self.queue.peek().is_some_and(|entry| entry.at <= until) {
            let Entry { at, event, .. } = self.queue.pop().expect("just seen");
            self.now = at;
            self.happen(event);
        }
        self.now = self.now.max(until);
    }

    /// Whom a node shows as coordinator, while its process runs.
    pub fn shown_coordinator(&self, node: usize) -> Option<String> {
        self.nodes[node].process.as_ref()?.machine.view().epoch.map(|epoch| epoch.coordinator)
    }

    /// The placements that a node shows, while its process runs.
    pub fn shown_placements(&self, node: usize) -> Vec<String> {
        let view = self.nodes[node].process.as_ref().map(|process| process.machine.view());
        view.into_iter().flat_map(|view| view.instances).map(|instance| instance.placement).collect()
    }

    /// The members whose disks a node shows as hung, while its process runs.
    pub fn shown_hung_disks(&self, node: usize) -> Vec<String> {
        let view = self.nodes[node].process.as_ref().map(|process| process.machine.view());
        let nodes = view.into_iter().flat_map(|view| view.nodes);
        nodes.filter(|node| node.is_disk_hung).map(|node| node.id).collect()
    }

    /// Why a node's device is in quarantine, while its process runs.
    pub fn quarantine(&self, node: usize) -> Option<&str> {
        self.nodes[node].process.as_ref()?.quarantine.as_deref()
    }

    /// Whether a node computes for a placement, while its process runs.
    pub fn has_engine(&self, node: usize) -> bool {
        self.nodes[node].process.as_ref().is_some_and(|process| !process.engines.is_empty())
    }

    /// The members that a node shows as gone, while its process runs.
    pub fn shown_gone(&self, node: usize) -> Vec<String> {
        let view = self.nodes[node].process.as_ref().map(|process| process.machine.view());
        let nodes = view.into_iter().flat_map(|view| view.nodes);
        nodes.filter(|node| node.status.is_gone()).map(|node| node.name).collect()
    }

    /// Over what two nodes have an open link.
    pub fn linked_over(&self, a: usize, b: usize, purpose: Purpose) -> Option<Transport> {
        let is_theirs = |wire: &&Wire| {
            let ends = wire.ends.each_ref().map(|end| end.node);
            wire.purpose == purpose && [[a, b], [b, a]].contains(&ends)
        };
        self.net.wires().iter().rev().filter(is_theirs).find(|wire| wire.is_open()).map(|wire| wire.via)
    }

    /// The coordinator that a node shows as out of its reach, while its process runs.
    pub fn unheard_coordinator(&self, node: usize) -> Option<String> {
        let view = self.nodes[node].process.as_ref()?.machine.view();
        view.unheard_coordinator.map(|unheard| unheard.coordinator)
    }

    /// How it went so far.
    pub fn report(&self) -> Report {
        use crate::clients::ClientEnd;
        let ends = || self.clients.all().filter_map(|(client, run)| Some((client, run.ended.as_ref()?)));
        let answered = self.clients.all().filter_map(|(_, run)| match run.ended {
            Some((at, ClientEnd::Answered)) => Some(at.since(run.started_at)),
            _ => None,
        });
        let failed = ends().filter_map(|(client, (at, ended))| match ended {
            ClientEnd::Failed(why) => {
                Some(format!("client {} at {:.3} s: {why}", client.index, seconds(*at)))
            }
            _ => None,
        });
        Report {
            failure: self.failure.clone(),
            handles: self.handles,
            until: self.now,
            answered: ends().filter(|(_, (_, ended))| *ended == ClientEnd::Answered).count(),
            checks: self.checks,
            resumed: self.clients.all().filter(|(client, _)| client.is_resumed()).count(),
            slowest: answered.max().unwrap_or_default(),
            failed: failed.collect(),
            fired: self.fired.clone(),
            embedded: self.embedded,
            headed: self.headed,
            hash: self.hasher.as_ref().map(blake3::Hasher::finalize),
        }
    }

    /// Something has just gone wrong that was meant to.
    pub(crate) fn fired(&mut self, name: &'static str) {
        *self.fired.entry(name).or_default() += 1;
    }

    /// Ends the run: something is broken that no invariant was asked about.
    pub fn fail(&mut self, invariant: &'static str, text: String) {
        let text = self.names.shorten(&text);
        self.failure.get_or_insert(Failure { invariant, at: self.now, text });
    }

    // ---- the queue ----

    pub(crate) fn at(&mut self, at: Time, event: WorldEvent) {
        self.inserted += 1;
        self.queue.push(Entry { at: at.max(self.now), number: self.inserted, event });
    }

    /// Something happens to the process that runs on a node now, unless it is another one by then.
    pub(crate) fn process_at(&mut self, at: Time, node: usize, event: Event) {
        let life = self.nodes[node].life;
        self.at(at, WorldEvent::Process { node, life, event });
    }

    pub(crate) fn input_at(&mut self, at: Time, node: usize, input: Input) {
        self.process_at(at, node, Event::Input(Box::new(input)));
    }

    fn happen(&mut self, event: WorldEvent) {
        match event {
            WorldEvent::Process { node, life, event } => {
                if self.nodes[node].life == life {
                    self.hand_to(node, event);
                }
            }
            WorldEvent::Arrive(wire, side, parcel) => {
                if let Some(parcel) = self.net.arrive(wire, side, parcel) {
                    self.through(wire, side, parcel);
                }
            }
            WorldEvent::Fault(index) => self.begin_fault(index),
            WorldEvent::Over(index) => self.end_fault(index),
            WorldEvent::Start(node) => self.start(node),
            WorldEvent::Look => {
                self.see(&Observation::Look);
                self.count_joined();
                self.at(self.now + LOOK_EVERY, WorldEvent::Look);
            }
            WorldEvent::Client(index) => self.client(index),
            WorldEvent::Ask(index, times) => self.person(index, times),
            WorldEvent::Claim(index) => self.claim(index),
            WorldEvent::Probe(number) => self.probe(number),
        }
    }

    /// A parcel came through: the process at the other side gets it.
    pub(crate) fn through(&mut self, wire: usize, side: usize, parcel: Parcel) {
        let end = &self.net.wire(wire).ends[1 - side];
        let (node, life) = (end.node, end.life);
        if self.nodes[node].life == life {
            self.hand_to(node, Event::Parcel(wire, side, parcel));
        }
    }

    /// A process takes an event in, or has it pile up while it stands still.
    pub(crate) fn hand_to(&mut self, node: usize, event: Event) {
        let Some(process) = &mut self.nodes[node].process else { return };
        if process.frozen > 0 {
            process.pile.push_back(event);
            return;
        }
        match event {
            Event::Input(input) => self.feed(node, *input),
            Event::Engine(engine, input) => self.engine_says(node, engine, *input),
            Event::Timer(armed) => self.timer(node, armed),
            Event::Written => self.written(node),
            Event::Sample => {
                let samples = self.nodes[node].samples();
                self.feed(node, Input::Sampled(Box::new(samples)));
                self.process_at(self.now + SAMPLE_EVERY, node, Event::Sample);
            }
            Event::Release => {
                if let Some(process) = &mut self.nodes[node].process {
                    process.quarantine = None;
                }
            }
            Event::Parcel(wire, side, parcel) => self.parcel(wire, side, parcel),
            Event::Down(wire, side) => self.link_down(wire, side, LinkEnd::Reset("reset".to_owned())),
            Event::DialReach(dial, at) => self.dial_reach(node, dial, at),
            Event::DialOver(dial) => self.dial_over(node, dial),
            Event::AskReach(exchange, attempt) => self.ask_reach(exchange, attempt),
            Event::AskOver(exchange, attempt, why) => self.ask_over(exchange, attempt, why),
            Event::Found(other) => self.found(node, other),
            Event::Client(index) => self.client_at(node, index),
            Event::Read(index) => self.client_reads(node, index),
            Event::Leave(index, choice) => self.client_leaves(node, index, choice),
            Event::Ask(index, times) => self.person_at(node, index, times),
        }
    }

    // ---- machines ----

    /// Feeds a machine and carries out what it wants.
    pub(crate) fn feed(&mut self, node: usize, input: Input) {
        if self.failure.is_some() || self.nodes[node].process.is_none() {
            return;
        }
        self.see(&Observation::Input { node, input: &input });
        if let Some(print) = self.options.trace {
            trace::input(print, &self.names, self.now, node, &input);
        }
        let Some(process) = &mut self.nodes[node].process else { return };
        let now = process.clock.now(self.now);
        let effects = process.machine.handle(now, input);
        self.handles += 1;
        self.effects(node, effects);
    }

    /// What a machine wants.
    pub(crate) fn effects(&mut self, node: usize, effects: Vec<Effect>) {
        self.see(&Observation::Effects { node, effects: &effects });
        if let Some(hasher) = &mut self.hasher {
            hasher.update(format!("{} {node} {effects:?}", self.now.0).as_bytes());
        }
        for effect in effects {
            if let Some(print) = self.options.trace {
                trace::effect(print, &self.names, self.now, node, &effect);
            }
            self.carry(node, effect);
        }
        self.arm(node);
    }

    /// Sets the timer for the machine's next deadline. One that rings too early is set again when it does.
    fn arm(&mut self, node: usize) {
        let now = self.now;
        let Some(process) = &mut self.nodes[node].process else { return };
        let at = process.clock.when(process.machine.next_deadline()).max(now + TIMER_GAP);
        if at >= process.rings_at {
            return;
        }
        (process.rings_at, process.armed) = (at, process.armed + 1);
        let armed = process.armed;
        self.process_at(at, node, Event::Timer(armed));
    }

    fn timer(&mut self, node: usize, armed: u64) {
        let now = self.now;
        let Some(process) = &mut self.nodes[node].process else { return };
        if process.armed != armed {
            return;
        }
        process.rings_at = Time(u64::MAX);
        if process.clock.now(now).time >= process.machine.next_deadline() {
            self.feed(node, Input::Timer);
        } else {
            self.arm(node);
        }
    }

    // ---- what is watched ----

    pub(crate) fn see(&mut self, seen: &Observation<'_>) {
        let facts = Facts {
            now: self.now,
            scenario: &self.scenario,
            nodes: &self.nodes,
            net: &self.net,
            clients: &self.clients,
            names: &self.names,
            model: self.model.as_ref(),
        };
        if let Err(mut failure) = self.watch.see(self.invariants, &facts, seen) {
            failure.text = self.names.shorten(&failure.text);
            self.failure.get_or_insert(failure);
        }
    }

    /// Says something in the trace that is neither input nor effect.
    pub(crate) fn tell(&self, what: impl FnOnce() -> String) {
        if let Some(print) = self.options.trace {
            print(&format!("{:>10.6} ** {}", seconds(self.now), self.names.shorten(&what())));
        }
    }
}

/// A time as people read it.
pub fn seconds(time: Time) -> f64 {
    time.0 as f64 / 1e6
}
