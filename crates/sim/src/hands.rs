//! Carries out what machines want: each effect becomes events, most of them answers.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use ed25519_dalek::Signer;
use exo_cluster::LoadFault;
use exo_cluster::wire::DataMessage;
use exo_machine::{
    Effect, FetchEvent, FetchId, FetchWhat, Holder, Input, Outgoing, PersistId, Received, Write,
};
use exo_types::{DiskRoom, NodeId};

use crate::net::EndState;
use crate::shape::model_shape;
use crate::upheaval::Ending;
use crate::world::{Event, World};

/// Bytes per second that a model is fetched with.
const FETCH_RATE: u64 = 400_000_000;
/// How long a device that gave no numbers is left out: a run ends before a node's ten minutes.
const QUARANTINE: Duration = Duration::from_secs(8);

/// What a message shows of stages that rebuild pages.
fn rebuilding(message: &Outgoing) -> Option<&'static str> {
    let Outgoing::Data(message) = message else { return None };
    let DataMessage::Step(step) = &**message else { return None };
    let (stages, stage) = (step.rebuilds?, step.stage as usize);
    let before = stage.checked_sub(1)?;
    match (stages.has(before), stages.has(stage)) {
        (true, false) if step.frame.step > 0 && (0..stage).all(|stage| stages.has(stage)) => {
            Some("first stages rebuilt")
        }
        (false, true) if step.rows.is_empty() => None,
        (false, true) if !stages.has(0) && (1..before).any(|stage| stages.has(stage)) => {
            Some("kept rows sent to one more stage")
        }
        (false, true) => Some("kept rows sent"),
        _ => None,
    }
}

impl World {
    /// Carries out one effect. Feeds no machine: what comes of it is queued.
    pub(crate) fn carry(&mut self, node: usize, effect: Effect) {
        match effect {
            Effect::Dial { dial, peer, purpose, addresses, within } => {
                self.dial(node, dial, (peer, purpose), addresses, within);
            }
            Effect::Probe { peer, addresses } => self.probe_ports(node, peer, &addresses),
            Effect::Burst { from, addresses } => self.burst(node, from, &addresses),
            Effect::Send { link, message } => {
                self.overhear(node, link, &message);
                if let Some(what) = rebuilding(&message) {
                    self.fired(what);
                }
                self.send(node, link, message);
            }
            Effect::CloseLink { link, reason } => self.close(node, link, reason),
            Effect::Persist { id, write } => self.persist(node, id, write),
            Effect::Plan { id, request } => {
                let delay = match self.draw(node).below(50) {
                    0 => self.draw(node).millis(500, 3000),
                    _ => self.draw(node).millis(1, 20),
                };
                let result = exo_planner::plan(&request);
                self.input_at(self.now + delay, node, Input::Planned { id, result });
            }
            Effect::Fetch { fetch, model: _, what, holders } => self.fetch(node, fetch, what, &holders),
            Effect::CancelFetch(fetch) => {
                if let Some(process) = &mut self.nodes[node].process {
                    process.fetches.remove(&fetch);
                }
            }
            Effect::Load { engine, spec } => self.load(node, engine, *spec),
            Effect::Rewire { engine, position, term, keep } => {
                self.rewire(node, engine, (position, term), &keep);
            }
            Effect::Compute { engine, position, job } => self.compute(node, engine, position, &job),
            Effect::Unload(engine) => self.unload(node, engine),
            Effect::Quarantine { reason, .. } => {
                if let Some(process) = &mut self.nodes[node].process {
                    process.quarantine = Some(reason);
                }
                let samples = Box::new(self.nodes[node].samples());
                self.input_at(self.now + Duration::from_millis(1), node, Input::Sampled(samples));
                self.process_at(self.now + QUARANTINE, node, Event::Release);
            }
            Effect::Sign { id, bytes } => {
                let signature = self.nodes[node].key.sign(&bytes).to_bytes();
                let delay = self.draw(node).micros(30, 500);
                self.input_at(self.now + delay, node, Input::Signed { id, signature });
            }
            Effect::Check { .. } => self.checks += 1,
            Effect::Draft(_) | Effect::Notice(_) | Effect::Publish { .. } => {}
            Effect::Joining(effect) => self.join_effect(node, effect),
            Effect::SetMembers(members) => self.set_members(node, members),
            Effect::Advertise { is_fresh } => self.advertise(node, is_fresh),
            Effect::ScanModels => {
                let delay = self.draw(node).millis(1, 20);
                let models = self.nodes[node].models();
                self.input_at(self.now + delay, node, Input::Models(models, DiskRoom::default()));
            }
            Effect::Reply { reply, answer } => self.replied(node, reply, answer),
            Effect::Emit { stream, event } => self.emitted(node, stream, &event),
            Effect::Stop => self.stopped(node),
        }
    }

    fn draw(&mut self, node: usize) -> crate::draw::Draw {
        self.nodes[node].draws.draw()
    }

    // ---- disk ----

    fn persist(&mut self, node: usize, id: PersistId, write: Write) {
        if self.nodes[node].disk.ask(id, write) {
            self.write_on(node);
        }
    }

    /// The disk has begun.
    fn write_on(&mut self, node: usize) {
        let slower: Duration = self.nodes[node].troubles.slow_disk.iter().sum();
        let usual = match self.draw(node).below(40) {
            0 => self.draw(node).millis(20, 200),
            _ => self.draw(node).micros(300, 8000),
        };
        self.process_at(self.now + usual + slower, node, Event::Written);
    }

    /// What the disk was given is there: the process hears of each.
    pub(crate) fn written(&mut self, node: usize) {
        let answers = self.nodes[node].disk.complete();
        if let Some(wrong) = self.nodes[node].disk.wrong() {
            let text = format!("n{node} wrote what it cannot read again: {wrong}");
            return self.fail("log_stays_whole", text);
        }
        let life = self.nodes[node].life;
        for (id, result) in answers {
            if self.nodes[node].life == life && self.nodes[node].process.is_some() {
                self.feed(node, Input::Persisted { id, result });
            }
        }
        if self.nodes[node].disk.begin() {
            self.write_on(node);
        }
    }

    // ---- models ----

    fn fetch(&mut self, node: usize, fetch: FetchId, what: FetchWhat, holders: &[Holder]) {
        let Some(process) = &mut self.nodes[node].process else { return };
        process.fetches.insert(fetch);
        let has = self.nodes[node].has_model || holders.iter().any(|holder| self.serves(node, holder));
        let (bytes, least) = match what {
            FetchWhat::Manifest => (10_000, Duration::from_millis(5)),
            FetchWhat::Shard(shard) if self.nodes[node].has(&shard) => (0, Duration::from_millis(1)),
            FetchWhat::Shard(shard) => (model_shape().shard_weight_bytes(&shard), Duration::from_millis(20)),
        };
        let took = least + Duration::from_micros(bytes * 1_000_000 / FETCH_RATE);
        if !has && bytes > 0 {
            let (kind, detail) = (LoadFault::Fetch, "no holder answers".to_owned());
            let event = FetchEvent::Failed { kind, detail };
            return self.input_at(self.now + Duration::from_secs(2), node, Input::Fetched { fetch, event });
        }
        if bytes > 1 << 20 {
            let (done_bytes, sources) = (bytes / 2, Vec::new());
            let event = FetchEvent::Progress { done_bytes, total_bytes: bytes, hub_wait_s: 0, sources };
            self.input_at(self.now + took / 2, node, Input::Fetched { fetch, event });
        }
        if let FetchWhat::Shard(shard) = what
            && !self.nodes[node].has(&shard)
        {
            self.nodes[node].fetched.push(shard);
        }
        self.input_at(self.now + took, node, Input::Fetched { fetch, event: FetchEvent::Done });
    }

    fn burst(&mut self, node: usize, from: NodeId, addresses: &[SocketAddr]) {
        let is_reached = addresses.iter().any(|address| self.reachable(node, *address).is_some());
        let (bytes, took) = (if is_reached { 1 << 20 } else { 0 }, Duration::from_millis(10));
        let received = Received { bytes, took, is_burst: true };
        self.input_at(self.now + took, node, Input::Received { from, received });
    }

    /// Whether a holder is reached and has the model.
    fn serves(&self, node: usize, holder: &Holder) -> bool {
        let reached = |address| self.reachable(node, address);
        holder.addresses.iter().filter_map(|address| reached(*address)).any(|other| {
            let other = &self.nodes[other];
            other.id == holder.node && other.has_model && other.is_awake()
        })
    }

    // ---- members ----

    fn set_members(&mut self, node: usize, members: BTreeSet<NodeId>) {
        let is_out = |id: &NodeId| !members.contains(id);
        let out: Vec<usize> =
            self.nodes.iter().filter(|other| is_out(&other.id)).map(|other| other.index).collect();
        for other in out.into_iter().filter(|other| *other != node) {
            let open = self.net.between(node, other);
            let knows = |wire: &usize| {
                let ends = &self.net.wire(*wire).ends;
                ends.iter().any(|end| end.node == node && end.state == EndState::Open)
            };
            for wire in open.into_iter().filter(knows).collect::<Vec<_>>() {
                self.reset(wire);
            }
        }
        if let Some(process) = &mut self.nodes[node].process {
            process.members = members;
        }
    }

    fn stopped(&mut self, node: usize) {
        self.tell(|| format!("n{node} stops"));
        self.end_process(node, Ending::Clean);
    }
}

impl crate::node::Node {
    /// Whether this part of the model is on its disk.
    fn has(&self, shard: &exo_types::Shard) -> bool {
        self.has_model || self.fetched.contains(shard)
    }
}
