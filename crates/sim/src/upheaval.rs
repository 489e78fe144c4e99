//! Starts and ends of processes, and the faults of the run.

use std::collections::BTreeMap;
use std::time::Duration;

use exo_machine::{Input, LinkEnd};
use exo_types::Time;

use crate::disk::File;
use crate::faults::{End, FaultKind, Whose, pair_among};
use crate::lies::Lie;
use crate::net::{EndState, Parcel};
use crate::node::Node;
use crate::scenario::Scenario;
use crate::windows::WindowTime;
use crate::world::{Event, SAMPLE_EVERY, World, WorldEvent};

/// How a process ended, in more words than a fault has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// It was asked to.
    Clean,
    /// It was killed.
    Killed,
    /// The power went.
    PowerLost,
}

/// What nodes know of each other before the run, and who has the model.
pub(crate) fn introduce(scenario: &Scenario, nodes: &mut [Node]) {
    let places: Vec<_> = nodes.iter().map(|node| (node.id, node.address)).collect();
    for node in nodes.iter_mut() {
        node.has_model = scenario.holders[node.index];
        node.window = scenario.windows.map(|windows| WindowTime::new(windows.ran_s));
        if node.index < scenario.founded() {
            let others = places[..scenario.founded()].iter().filter(|(id, _)| *id != node.id);
            node.disk.remember(others.map(|(id, address)| (*id, vec![*address])).collect::<BTreeMap<_, _>>());
        } else if scenario.windows.is_none() && node.index > 0 && node.index.is_multiple_of(3) {
            node.peers = vec![places[0].1.to_string()];
        }
    }
}

impl World {
    /// Starts a process; one that still runs is killed first.
    pub(crate) fn start(&mut self, node: usize) {
        if self.nodes[node].process.is_some() {
            self.end_process(node, Ending::Killed);
        }
        let former = self.nodes[node].life;
        let (seed, speculation) = (self.scenario.seed, self.scenario.speculation);
        #[cfg(feature = "planted")]
        let effects = self.nodes[node].start(seed, speculation, self.now, self.options.planted);
        #[cfg(not(feature = "planted"))]
        let effects = self.nodes[node].start(seed, speculation, self.now);
        self.tell(|| format!("n{node} starts, life {}", former + 1));
        self.forget_former(node, former);
        self.see(&crate::invariants::Observation::Began { node });
        let jitter = self.draws.draw().micros(0, SAMPLE_EVERY.as_micros() as u64);
        self.process_at(self.now + jitter, node, Event::Sample);
        self.look_around(node);
        self.effects(node, effects);
    }

    /// Connections of a process that lost its power: who still sends on them is told that nobody knows them.
    fn forget_former(&mut self, node: usize, former: u32) {
        for life in 0..=former {
            for (wire, side) in self.net.of_node(node, life) {
                self.net.set_state(self.now, wire, side, EndState::Over);
                let other = self.net.wire(wire).ends[1 - side].clone();
                let soon = self.draws.draw().millis(100, 1200);
                let is_alive = other.state != EndState::Over && self.nodes[other.node].life == other.life;
                let is_told = self.net.carries(self.net.wire(wire).via, node, other.node);
                if is_alive && is_told && !self.net.is_apart(node, other.node) {
                    self.process_at(self.now + soon, other.node, Event::Down(wire, 1 - side));
                }
            }
        }
    }

    /// Ends a process.
    pub(crate) fn end_process(&mut self, node: usize, ending: Ending) {
        if self.nodes[node].process.is_none() {
            return;
        }
        self.tell(|| format!("n{node} ends: {ending:?}"));
        if ending == Ending::Clean {
            self.gone_from_lan(node);
        }
        let life = self.nodes[node].life;
        for (wire, side) in self.net.of_node(node, life) {
            if self.net.wire(wire).ends[side].state == EndState::Over {
                continue;
            }
            let is_orderly = ending == Ending::Clean || self.draws.draw().per_cent(50);
            match ending {
                Ending::PowerLost => {}
                _ if is_orderly => {
                    let gone = Parcel::Over(LinkEnd::Reset("the process ended".to_owned()));
                    self.post(wire, side, gone, 20);
                }
                _ => self.reset(wire),
            }
            self.net.set_state(self.now, wire, side, EndState::Over);
        }
        let kept = self.draws.draw().below(self.nodes[node].disk.unanswered() as u64 + 1) as usize;
        let kept = if ending == Ending::Clean { usize::MAX } else { kept };
        let (now, gone) = (self.now, &mut self.nodes[node]);
        gone.count_window(now);
        gone.disk.crash(kept);
        gone.process = None;
        gone.has_power = ending != Ending::PowerLost;
        for client in self.clients.node_died(node, self.now) {
            // Some take their time, and a few turn to the node that was restarted.
            let after = self.draws.draw().millis(20, 4000);
            self.at(self.now + after, WorldEvent::Claim(client));
        }
        self.see(&crate::invariants::Observation::Ended { node });
    }

    // ---- faults ----

    fn node_of(&self, number: usize) -> usize {
        number % self.nodes.len()
    }

    fn pair_of(&self, from: usize, to: usize) -> (usize, usize) {
        pair_among(self.nodes.len(), from, to)
    }

    fn node_whose(&self, whose: Whose) -> usize {
        match whose {
            Whose::Coordinator => self.coordinator().unwrap_or(0),
            Whose::Node(number) => self.node_of(number),
        }
    }

    pub(crate) fn begin_fault(&mut self, index: usize) {
        let fault = self.scenario.faults[index];
        self.tell(|| format!("fault {}: {:?}", fault.index, fault.kind));
        if !fault.kind.waits() {
            self.fired(fault.kind.name());
        }
        match fault.kind {
            FaultKind::Crash { node, end, .. } => self.begin_crash(index, self.node_of(node), end),
            FaultKind::KillCoordinator { end, .. } => {
                if let Some(leader) = self.coordinator() {
                    self.begin_crash(index, leader, end);
                }
            }
            FaultKind::CutOff { node, cut, .. } => {
                let node = self.node_of(node);
                for other in (0..self.nodes.len()).filter(|other| *other != node) {
                    self.net.cut(node, other, cut);
                    self.net.cut(other, node, cut);
                }
            }
            FaultKind::CutPair { from, to, one_way, cut, .. } => {
                let (from, to) = self.pair_of(from, to);
                self.net.cut(from, to, cut);
                if !one_way {
                    self.net.cut(to, from, cut);
                }
            }
            FaultKind::CutUdp { from, to, .. } => {
                let ends = (self.node_of(from), self.node_of(to));
                self.net.cut_udp(index, ends);
            }
            FaultKind::SlowLink { from, to, slowdown, .. } => {
                let (from, to) = self.pair_of(from, to);
                self.net.slow_down(index, (from, to), slowdown);
            }
            FaultKind::Reset { from, to, which } => {
                let (from, to) = self.pair_of(from, to);
                let wires = self.net.between(from, to);
                let chosen = wires.get(which).map_or(wires.clone(), |wire| vec![*wire]);
                chosen.into_iter().for_each(|wire| self.reset(wire));
            }
            FaultKind::Freeze { node, .. } => {
                let node = self.node_of(node);
                if let Some(process) = &mut self.nodes[node].process {
                    process.frozen += 1;
                    self.frozen.insert(index, self.nodes[node].life);
                }
            }
            FaultKind::LoseEngine { .. }
            | FaultKind::HangDevice { .. }
            | FaultKind::FailSteps { .. }
            | FaultKind::NoNumbers { .. }
            | FaultKind::FailLoad { .. }
            | FaultKind::OutOfMemory { .. } => self.begin_of_device(index, fault.kind),
            FaultKind::SlowDisk { node, by, .. } => {
                let node = self.node_whose(node);
                self.whose_disk.insert(index, node);
                self.nodes[node].troubles.slow_disk.push(by);
            }
            FaultKind::FullDisk { node, .. } => {
                let node = self.node_whose(node);
                self.whose_disk.insert(index, node);
                self.nodes[node].disk.be_full();
            }
            FaultKind::FailWrite { node } => {
                let node = self.node_whose(node);
                self.nodes[node].disk.fail_next(File::Log);
                self.nodes[node].disk.be_unsure_of_trust();
            }
            FaultKind::Lie { liar, to, lie } => {
                let (liar, to) = (1 + liar % (self.nodes.len() - 1).max(1), self.node_of(to));
                // What an admin signs is no lie.
                let is_admin = self.scenario.appointed().any(|node| node == liar);
                if liar < self.nodes.len() && liar != to && !is_admin {
                    match lie {
                        Lie::TakesLead => self.take_lead(liar, false),
                        Lie::SeeksAndTakesLead => self.take_lead(liar, true),
                        lie => self.lie(liar, to, lie),
                    }
                }
            }
            FaultKind::Stranger { to, nth, trick } => self.trick(self.node_of(to), nth, trick),
            FaultKind::LieOfData { liar, to, passes, bend } => {
                let (liar, to) = self.pair_of(liar, to);
                self.lie_of_data(liar, to, passes, bend);
            }
            FaultKind::Withhold { node, .. } => {
                let node = self.node_of(node);
                self.nodes[node].troubles.withholds += 1;
            }
            FaultKind::SetWallClock { node, by_s, .. } => {
                let node = self.node_of(node);
                self.nodes[node].set_wall(by_s);
            }
        }
    }

    /// A device goes wrong, or is about to.
    fn begin_of_device(&mut self, index: usize, kind: FaultKind) {
        match kind {
            FaultKind::LoseEngine { node } => self.lose_engine(self.node_of(node)),
            FaultKind::HangDevice { node, lasting, .. } => self.hang_device(self.node_of(node), lasting),
            FaultKind::FailSteps { node, count } => {
                let node = self.node_of(node);
                self.nodes[node].troubles.fail_steps += count;
            }
            FaultKind::NoNumbers { node, count } => {
                let node = self.node_of(node);
                self.nodes[node].troubles.no_numbers += count;
            }
            FaultKind::FailLoad { node, is_refusal } => {
                let node = self.node_of(node);
                self.nodes[node].troubles.fail_load = Some(is_refusal);
            }
            FaultKind::OutOfMemory { node, steps, .. } => {
                let node = self.node_of(node);
                self.nodes[node].troubles.memory_taken.push((index, steps));
                self.nodes[node].troubles.starve_load = true;
            }
            _ => {}
        }
    }

    pub(crate) fn end_fault(&mut self, index: usize) {
        let fault = self.scenario.faults[index];
        match fault.kind {
            FaultKind::Crash { .. } | FaultKind::KillCoordinator { .. } => {
                if let Some(node) = self.crashed.remove(&index) {
                    self.start(node);
                }
            }
            FaultKind::CutOff { node, .. } => {
                let node = self.node_of(node);
                for other in (0..self.nodes.len()).filter(|other| *other != node) {
                    self.heal(node, other);
                    self.heal(other, node);
                }
            }
            FaultKind::CutPair { from, to, one_way, .. } => {
                let (from, to) = self.pair_of(from, to);
                self.heal(from, to);
                if !one_way {
                    self.heal(to, from);
                }
            }
            FaultKind::CutUdp { .. } => self.net.heal_udp(index),
            FaultKind::SlowLink { .. } => self.net.speed_up(index),
            FaultKind::Freeze { node, .. } => self.thaw(index, self.node_of(node)),
            FaultKind::SlowDisk { by, .. } => {
                let Some(node) = self.whose_disk.remove(&index) else { return };
                let slow = &mut self.nodes[node].troubles.slow_disk;
                if let Some(position) = slow.iter().position(|one| *one == by) {
                    slow.remove(position);
                }
            }
            FaultKind::FullDisk { .. } => {
                let Some(node) = self.whose_disk.remove(&index) else { return };
                self.nodes[node].disk.have_room();
            }
            FaultKind::HangDevice { node, ends, .. } => {
                if ends {
                    self.lose_engine(self.node_of(node));
                }
            }
            FaultKind::Withhold { node, .. } => {
                let node = self.node_of(node);
                self.nodes[node].troubles.withholds -= 1;
            }
            FaultKind::OutOfMemory { node, .. } => {
                let node = self.node_of(node);
                self.nodes[node].troubles.memory_taken.retain(|(of, _)| *of != index);
            }
            FaultKind::SetWallClock { node, by_s, lasting: Some(_) } => {
                let node = self.node_of(node);
                self.nodes[node].set_wall(-by_s);
            }
            FaultKind::Reset { .. }
            | FaultKind::LoseEngine { .. }
            | FaultKind::FailWrite { .. }
            | FaultKind::FailSteps { .. }
            | FaultKind::NoNumbers { .. }
            | FaultKind::FailLoad { .. }
            | FaultKind::Lie { .. }
            | FaultKind::LieOfData { .. }
            | FaultKind::SetWallClock { .. }
            | FaultKind::Stranger { .. } => return,
        }
        self.tell(|| format!("fault {} is over", fault.index));
    }

    fn heal(&mut self, from: usize, to: usize) {
        for (wire, side, parcel) in self.net.heal(self.now, from, to) {
            self.through(wire, side, parcel);
        }
    }

    fn thaw(&mut self, index: usize, node: usize) {
        let life = self.nodes[node].life;
        if self.frozen.remove(&index) != Some(life) {
            return;
        }
        let Some(process) = &mut self.nodes[node].process else { return };
        process.frozen -= 1;
        if process.frozen > 0 {
            return;
        }
        for event in std::mem::take(&mut process.pile) {
            if self.nodes[node].life == life {
                self.hand_to(node, event);
            }
        }
    }

    fn begin_crash(&mut self, index: usize, node: usize, end: End) {
        if self.nodes[node].process.is_none() {
            return;
        }
        // A process that is down for another fault is started by that one.
        self.crashed.insert(index, node);
        match end {
            End::Clean => self.hand_to(node, Event::Input(Box::new(Input::Stop))),
            End::Killed => self.end_process(node, Ending::Killed),
            End::PowerLost => self.end_process(node, Ending::PowerLost),
        }
    }

    /// The node that most others follow; the lowest of several.
    fn coordinator(&self) -> Option<usize> {
        let mut followers: BTreeMap<usize, usize> = BTreeMap::new();
        for process in self.nodes.iter().filter_map(|node| node.process.as_ref()) {
            let leader = process.machine.leader().and_then(|(_, leader)| self.names.index(leader));
            if let Some(leader) = leader {
                *followers.entry(leader).or_default() += 1;
            }
        }
        let running = followers.into_iter().filter(|(node, _)| self.nodes[*node].process.is_some());
        running.max_by_key(|(node, count)| (*count, std::cmp::Reverse(*node))).map(|(node, _)| node)
    }

    /// When the last fault is over, or was over.
    pub(crate) fn calm_from(&self) -> Time {
        self.scenario.calm_from()
    }
}

/// Until the cluster must serve again after its last fault.
pub const SERVES_WITHIN: Duration = Duration::from_secs(20);
