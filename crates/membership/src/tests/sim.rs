//! A cluster of machines on one thread: time, delivery, loss, crashes and partitions from one seed.
//!
//! Machines are woken by their own `WakeAt` only. What they say is recorded; invariants that hold at every
//! moment are checked here, at the moment, and a failure prints the seed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use exo_types::{Epoch, NodeId, Time};

use crate::{Config, Input, LossReason, Membership, Message, NodeStatus, Output, Persisted};

/// Something that will happen.
enum Event {
    Deliver {
        from: usize,
        to: usize,
        message: Message,
    },
    Wake {
        node: usize,
        run: u64,
    },
    Reset {
        node: usize,
        peer: usize,
    },
    Up {
        node: usize,
        peer: usize,
    },
    /// The disk has written the oldest epoch it was given.
    Written {
        node: usize,
        run: u64,
    },
}

/// One machine and its disk.
pub struct Node {
    pub machine: Option<Membership>,
    disk: Option<Epoch>,
    /// Epochs on their way to the disk, in order, and whether each still is of this node's cluster.
    writing: VecDeque<(Epoch, bool)>,
    /// When the disk is done with them.
    written_at: Time,
    run: u64,
    wake: Time,
    /// When `NodeLost` was said, of whom and why.
    pub lost: Vec<(Time, usize, LossReason)>,
    /// Epochs led.
    pub led: Vec<Epoch>,
    pub coordinators: Vec<Epoch>,
}

pub struct Sim {
    pub seed: u64,
    random: u64,
    pub now: Time,
    events: BTreeMap<(Time, u64), Event>,
    count: u64,
    pub nodes: Vec<Node>,
    /// Pairs that cannot reach each other, smaller index first.
    cut: BTreeSet<(usize, usize)>,
    /// Greatest one-way delay.
    pub delay_max: Duration,
    /// Longest time the disk takes for one epoch.
    pub disk_max: Duration,
    /// Of 1000 messages, so many vanish.
    pub loss_permille: u64,
    /// Who led which epoch, ever.
    epochs: BTreeMap<Epoch, usize>,
}

/// The node at an index; greater index, greater key.
pub fn id(index: usize) -> NodeId {
    NodeId([u8::try_from(index + 1).unwrap(); 32])
}

fn index(node: NodeId) -> usize {
    usize::from(node.0[0]) - 1
}

fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

pub fn ids(indices: impl IntoIterator<Item = usize>) -> BTreeSet<NodeId> {
    indices.into_iter().map(id).collect()
}

impl Sim {
    /// `count` nodes, all members, none started.
    pub fn new(seed: u64, count: usize) -> Self {
        let node = || Node {
            machine: None,
            disk: None,
            writing: VecDeque::new(),
            written_at: Time::ZERO,
            run: 0,
            wake: Time::ZERO,
            lost: Vec::new(),
            led: Vec::new(),
            coordinators: Vec::new(),
        };
        Self {
            seed,
            random: seed,
            now: Time::from_millis(1000),
            events: BTreeMap::new(),
            count: 0,
            nodes: (0..count).map(|_| node()).collect(),
            cut: BTreeSet::new(),
            delay_max: Duration::from_millis(5),
            disk_max: Duration::from_millis(5),
            loss_permille: 0,
            epochs: BTreeMap::new(),
        }
    }

    /// `count` nodes, started together and settled under one coordinator.
    pub fn settled(seed: u64, count: usize) -> Self {
        let mut sim = Self::new(seed, count);
        (0..count).for_each(|i| sim.start(i));
        sim.run_ms(4000);
        sim.agreed().expect("nodes that start together agree");
        sim
    }

    /// splitmix64.
    pub fn draw(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below.max(1)
    }

    fn delay(&mut self) -> Duration {
        let max = u64::try_from(self.delay_max.as_micros()).unwrap();
        Duration::from_micros(200 + self.draw(max))
    }

    fn later(&mut self, after: Duration, event: Event) {
        self.count += 1;
        self.events.insert((self.now + after, self.count), event);
    }

    pub fn up(&self, i: usize) -> bool {
        self.nodes[i].machine.is_some()
    }

    fn reaches(&self, a: usize, b: usize) -> bool {
        self.up(a) && self.up(b) && !self.cut.contains(&pair(a, b))
    }

    /// Starts a node from its disk, with all nodes as members.
    pub fn start(&mut self, i: usize) {
        let members = ids(0..self.nodes.len());
        self.start_with(i, members);
    }

    pub fn start_with(&mut self, i: usize, members: BTreeSet<NodeId>) {
        assert!(!self.up(i), "started twice");
        let node = &mut self.nodes[i];
        node.run += 1;
        let config = Config {
            incarnation: node.run,
            #[cfg(feature = "planted")]
            yields: false,
        };
        node.machine = Some(Membership::new(config, id(i), Persisted { epoch: node.disk }, self.now));
        self.input(i, Input::Members(members));
        for j in 0..self.nodes.len() {
            self.connect(i, j);
        }
    }

    /// A node that ran alone becomes a member: what its disk says is of another cluster.
    pub fn join(&mut self, i: usize, members: BTreeSet<NodeId>) {
        let node = &mut self.nodes[i];
        node.disk = None;
        node.writing.iter_mut().for_each(|(_, is_ours)| *is_ours = false);
        self.input(i, Input::Joined(members));
    }

    /// A connection comes up after a moment, as dialling does.
    pub fn connect(&mut self, i: usize, j: usize) {
        if i != j && self.reaches(i, j) {
            let after = Duration::from_millis(5) + self.delay();
            self.later(after, Event::Up { node: i, peer: j });
            self.later(after, Event::Up { node: j, peer: i });
        }
    }

    /// The process dies; its peers' sockets are reset.
    pub fn crash(&mut self, i: usize) {
        self.gone(i, Duration::ZERO);
    }

    fn gone(&mut self, i: usize, flushed: Duration) {
        self.stop(i);
        for j in 0..self.nodes.len() {
            if self.up(j) && !self.cut.contains(&pair(i, j)) {
                let after = flushed + self.delay();
                self.later(after, Event::Reset { node: j, peer: i });
            }
        }
    }

    /// The power goes: nobody is told.
    pub fn unplug(&mut self, i: usize) {
        self.stop(i);
    }

    /// The process ends. Of what the disk was given and had not answered for, it keeps a part from the front.
    fn stop(&mut self, i: usize) {
        let kept = self.draw(self.nodes[i].writing.len() as u64 + 1) as usize;
        let node = &mut self.nodes[i];
        node.machine = None;
        let kept = node.writing.drain(..kept).rfind(|(_, is_ours)| *is_ours);
        node.disk = kept.map(|(epoch, _)| epoch).or(node.disk);
        node.writing.clear();
        node.written_at = Time::ZERO;
    }

    /// A clean exit: what was said arrives, then the connection closes.
    pub fn leave(&mut self, i: usize) {
        self.input(i, Input::Leave);
        let flushed = self.delay_max + Duration::from_millis(1);
        self.gone(i, flushed);
    }

    /// Nothing passes between the two any more. Sockets stay open: silence is all they see.
    pub fn cut(&mut self, a: usize, b: usize) {
        self.cut.insert(pair(a, b));
    }

    /// Packets pass again, over the same connection or, after `reset`, over a new one.
    pub fn mend(&mut self, a: usize, b: usize, reset: bool) {
        if self.cut.remove(&pair(a, b)) {
            if reset && self.reaches(a, b) {
                self.input(a, Input::LinkReset(id(b)));
                self.input(b, Input::LinkReset(id(a)));
            }
            self.connect(a, b);
        }
    }

    pub fn cuts(&self) -> Vec<(usize, usize)> {
        self.cut.iter().copied().collect()
    }

    pub fn input(&mut self, i: usize, input: Input) {
        let Some(machine) = &mut self.nodes[i].machine else { return };
        let outputs = machine.handle(self.now, input);
        for output in outputs {
            self.carry_out(i, output);
        }
        let wake = self.nodes[i].wake;
        assert!(self.now.since(wake) < Duration::from_secs(5) || self.nodes.len() == 1, "node {i} sleeps");
    }

    fn carry_out(&mut self, i: usize, output: Output) {
        match output {
            Output::Send { to, message } => {
                let disk = self.nodes[i].disk;
                assert!(message.epoch <= disk, "seed {}: {i} says {message:?} before {disk:?}", self.seed);
                self.post(i, index(to), message);
            }
            Output::Persist(epoch) => self.write(i, epoch),
            Output::Lead { epoch } => {
                assert_eq!(epoch.key, id(i), "seed {}", self.seed);
                assert_eq!(self.nodes[i].disk, Some(epoch), "seed {}: led before it was on disk", self.seed);
                let other = self.epochs.insert(epoch, i);
                assert_eq!(other, None, "seed {}: {epoch} was led before", self.seed);
                self.nodes[i].led.push(epoch);
            }
            Output::CoordinatorChanged { epoch, coordinator } => {
                assert_eq!((epoch.key, self.nodes[i].disk), (coordinator, Some(epoch)), "seed {}", self.seed);
                self.nodes[i].coordinators.push(epoch);
            }
            Output::NodeLost { node, reason } => {
                let now = self.now;
                self.nodes[i].lost.push((now, index(node), reason));
            }
            Output::WakeAt(at) => {
                let node = &mut self.nodes[i];
                (node.wake, self.count) = (at, self.count + 1);
                let run = node.run;
                self.events.insert((at, self.count), Event::Wake { node: i, run });
            }
            _ => {}
        }
    }

    /// The disk takes a while and writes in order.
    fn write(&mut self, i: usize, epoch: Epoch) {
        let micros = self.draw(u64::try_from(self.disk_max.as_micros()).unwrap());
        let (seed, now) = (self.seed, self.now);
        let node = &mut self.nodes[i];
        let asked = node.writing.iter().rev().find(|(_, is_ours)| *is_ours).map(|(epoch, _)| *epoch);
        let before = asked.or(node.disk);
        assert!(before < Some(epoch), "seed {seed}: {i} fell from {before:?} to {epoch}");
        node.writing.push_back((epoch, true));
        node.written_at = node.written_at.max(now) + Duration::from_micros(micros);
        let (after, run) = (node.written_at.since(now), node.run);
        self.later(after, Event::Written { node: i, run });
    }

    fn post(&mut self, from: usize, to: usize, message: Message) {
        assert_eq!(Message::decode(&message.encode()).as_ref(), Ok(&message));
        if self.draw(1000) >= self.loss_permille {
            let after = self.delay();
            self.later(after, Event::Deliver { from, to, message });
        }
    }

    /// Lets time pass.
    pub fn run_ms(&mut self, ms: u64) {
        let end = self.now + Duration::from_millis(ms);
        while let Some(entry) = self.events.first_entry().filter(|e| e.key().0 <= end) {
            let (at, _) = *entry.key();
            let event = entry.remove();
            self.now = self.now.max(at);
            self.happen(event);
        }
        self.now = end;
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Deliver { from, to, message } if self.up(to) && !self.cut.contains(&pair(from, to)) => {
                self.input(to, Input::Message { from: id(from), message });
            }
            Event::Wake { node, run } if self.up(node) && self.nodes[node].run == run => {
                self.input(node, Input::Tick);
            }
            Event::Reset { node, peer } if self.up(node) && !self.up(peer) => {
                // What the connection still carried ends with it.
                let carried =
                    |e: &Event| matches!(e, Event::Deliver { from, to, .. } if (*from, *to) == (peer, node));
                self.events.retain(|_, e| !carried(e));
                self.input(node, Input::LinkReset(id(peer)));
            }
            Event::Up { node, peer } if self.reaches(node, peer) => {
                self.input(node, Input::LinkUp(id(peer)));
            }
            Event::Written { node, run } if self.up(node) && self.nodes[node].run == run => {
                let (epoch, is_ours) = self.nodes[node].writing.pop_front().expect("one event for each");
                if is_ours {
                    self.nodes[node].disk = Some(epoch);
                }
                self.input(node, Input::Persisted(epoch));
            }
            _ => {}
        }
    }

    pub fn machine(&self, i: usize) -> &Membership {
        self.nodes[i].machine.as_ref().expect("up")
    }

    /// The one coordinator all running nodes follow in one epoch while seeing each other alive, or why not.
    pub fn agreed(&self) -> Result<usize, String> {
        let up: Vec<_> = (0..self.nodes.len()).filter(|i| self.up(*i)).collect();
        let view = |i: usize| (self.machine(i).coordinator(), self.machine(i).epoch());
        let first = view(*up.first().ok_or("nobody runs")?);
        for &i in &up {
            if view(i) != first || first.0.is_none() {
                let views: Vec<_> = up.iter().map(|i| view(*i)).collect();
                return Err(format!("seed {}: {views:?}", self.seed));
            }
            if let Some(&j) = up.iter().find(|j| self.machine(i).status(id(**j)) != Some(NodeStatus::Alive)) {
                return Err(format!("seed {}: {i} sees {j} {:?}", self.seed, self.machine(i).status(id(j))));
            }
        }
        let leaders: Vec<_> = up.iter().copied().filter(|i| self.machine(*i).is_leading()).collect();
        let coordinator = index(first.0.expect("checked"));
        if leaders == [coordinator] {
            Ok(coordinator)
        } else {
            Err(format!("seed {}: {leaders:?}", self.seed))
        }
    }

    /// How long after `since` node `i` declared `peer` lost.
    pub fn lost_after(&self, i: usize, peer: usize, since: Time) -> Option<(Duration, LossReason)> {
        let found = self.nodes[i].lost.iter().find(|(at, p, _)| *p == peer && *at >= since);
        found.map(|(at, _, reason)| (at.since(since), *reason))
    }
}
