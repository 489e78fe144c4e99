//! Strangers: what discovery says, questions to those who are no members, and what is answered.

use std::net::SocketAddr;
use std::time::Duration;

use exo_machine::joining::{JoinAnswer, JoinAsk};
use exo_machine::{DiscoveredNode, ExchangeId, Input, JoinEffect, JoinEvent, ProbeFailure};
use exo_types::NodeId;

use crate::world::{Event, World};

/// How long an address has for an answer.
const EXCHANGE_MAX: Duration = Duration::from_secs(5);
/// How long discovery takes to say of a node what it says: most often so long.
const FOUND_WITHIN_MS: (u64, u64) = (20, 300);
/// And now and then so long: who has just said something by multicast says it again after a second.
const FOUND_LATE_MS: (u64, u64) = (300, 1200);
const FOUND_LATE_PER_CENT: u64 = 40;
/// Discovery says again what it said.
const FOUND_AGAIN: (u64, u64) = (1500, 3000);

/// A question to somebody who is no member.
#[derive(Clone, PartialEq, Debug)]
pub struct Exchange {
    asker: usize,
    life: u32,
    /// Who must answer, or what a person wrote.
    whom: Whom,
    addresses: Vec<SocketAddr>,
    at: usize,
    attempt: u64,
    /// Until somebody proves the key there.
    proof_within: Duration,
    /// Where somebody did, who said no more.
    stalled_at: SocketAddr,
    ask: JoinAsk,
}

#[derive(Clone, PartialEq, Debug)]
enum Whom {
    Node(NodeId),
    Text(String),
}

/// What both sides of an exchange show.
pub(crate) fn words_of(exchange: u64) -> String {
    format!("words of exchange {exchange}")
}

impl World {
    pub(crate) fn join_effect(&mut self, node: usize, effect: JoinEffect) {
        let (whom, addresses, proof_within, ask) = match effect {
            JoinEffect::Ask { with, addresses, proof_within, ask, .. } => {
                (Whom::Node(with), addresses, proof_within, ask)
            }
            JoinEffect::Probe { text, ask } => {
                let addresses = text.parse().into_iter().collect();
                (Whom::Text(text), addresses, EXCHANGE_MAX, ask)
            }
            JoinEffect::Answer { exchange, answer } => return self.answer(node, exchange, answer),
        };
        self.attempts += 1;
        let (number, life) = (self.attempts, self.nodes[node].life);
        let (at, attempt, stalled_at) = (0, 0, SocketAddr::from(([0, 0, 0, 0], 0)));
        let exchange =
            Exchange { asker: node, life, whom, addresses, at, attempt, proof_within, stalled_at, ask };
        self.exchanges.insert(number, exchange);
        self.ask_address(number, "no address");
    }

    fn ask_address(&mut self, number: u64, why: &str) {
        self.attempts += 1;
        let attempt = self.attempts;
        let Some(exchange) = self.exchanges.get_mut(&number) else { return };
        exchange.attempt = attempt;
        let (asker, address) = (exchange.asker, exchange.addresses.get(exchange.at).copied());
        let proof_within = exchange.proof_within;
        let Some(address) = address else {
            return self.asked_in_vain(number, why);
        };
        let is_somebody = self.listener(address).is_some() || self.strangers.is_at(address);
        let within = if is_somebody { EXCHANGE_MAX } else { proof_within };
        self.process_at(self.now + within, asker, Event::AskOver(number, attempt, "no answer in time"));
        self.ask_stranger(number, attempt, address);
        if let Some(target) = self.reachable(asker, address) {
            let handshake = 4 * self.net.path(asker, target).delay + self.draws.draw().micros(500, 4000);
            self.process_at(self.now + handshake, asker, Event::AskReach(number, attempt));
        }
    }

    /// The question goes to an address where somebody listens that is no node of ours.
    fn ask_stranger(&mut self, number: u64, attempt: u64, address: SocketAddr) {
        let Some(exchange) = self.exchanges.get(&number) else { return };
        let asker = exchange.asker;
        let Some((proven, answer)) = self.stranger_at(address, asker, &exchange.ask) else { return };
        let at = self.now + self.draws.draw().micros(2000, 20_000);
        let event = match (&self.exchanges[&number].whom, answer) {
            (Whom::Node(with), _) if *with != proven => {
                return self.process_at(
                    at,
                    asker,
                    Event::AskOver(number, attempt, "another node answers there"),
                );
            }
            (_, None) => {
                if let Some(exchange) = self.exchanges.get_mut(&number) {
                    exchange.stalled_at = address;
                }
                return;
            }
            (Whom::Node(with), Some(answer)) => {
                JoinEvent::Answered { with: *with, address, words: words_of(number), answer: Ok(answer) }
            }
            (Whom::Text(text), Some(answer)) => {
                JoinEvent::Probed { text: text.clone(), found: Ok((address, proven, answer)) }
            }
        };
        self.exchanges.remove(&number);
        self.input_at(at, asker, Input::Joining(event));
    }

    fn asked_in_vain(&mut self, number: u64, why: &str) {
        let Some(exchange) = self.exchanges.remove(&number) else { return };
        let event = match exchange.whom {
            Whom::Node(with) => {
                let (words, answer) = (String::new(), Err(why.to_owned()));
                JoinEvent::Answered { with, address: exchange.stalled_at, words, answer }
            }
            Whom::Text(text) => {
                JoinEvent::Probed { text, found: Err(ProbeFailure::Silent(exchange.addresses)) }
            }
        };
        self.input_at(self.now, exchange.asker, Input::Joining(event));
    }

    pub(crate) fn ask_over(&mut self, number: u64, attempt: u64, why: &'static str) {
        let Some(exchange) = self.exchanges.get_mut(&number).filter(|e| e.attempt == attempt) else { return };
        exchange.at += 1;
        self.ask_address(number, why);
    }

    /// The question reaches somebody.
    pub(crate) fn ask_reach(&mut self, number: u64, attempt: u64) {
        let Some(exchange) = self.exchanges.get(&number).filter(|e| e.attempt == attempt) else { return };
        let (asker, ask) = (exchange.asker, exchange.ask.clone());
        let Some(target) = self.reachable(asker, exchange.addresses[exchange.at]) else { return };
        match &mut self.nodes[target].process {
            None => return self.ask_over(number, attempt, "connection refused"),
            Some(process) if process.frozen > 0 => return,
            Some(process) => process.asked.insert(ExchangeId(number), attempt),
        };
        let remote = SocketAddr::new(self.nodes[asker].address.ip(), 50_000);
        let (exchange, node) = (ExchangeId(number), self.nodes[asker].id);
        self.feed(
            target,
            Input::Joining(JoinEvent::Asked {
                exchange,
                node,
                remote,
                is_near: true,
                has_code: false,
                words: words_of(number),
                ask,
            }),
        );
    }

    /// A machine answers a stranger.
    fn answer(&mut self, node: usize, exchange: ExchangeId, answer: JoinAnswer) {
        let asked = self.nodes[node].process.as_mut().and_then(|process| process.asked.remove(&exchange));
        let Some(attempt) = asked else {
            return self
                .fail("effects_make_sense", format!("n{node} answers {exchange:?}, which nobody asked"));
        };
        if let Some(who) = self.strangers.take_asked(exchange) {
            return self.stranger_is_told(node, who, &answer);
        }
        let number = exchange.0;
        let Some(open) = self.exchanges.get(&number).filter(|e| e.attempt == attempt) else { return };
        let (asker, address, proven) = (open.asker, open.addresses[open.at], self.nodes[node].id);
        if self.nodes[asker].life != open.life || self.net.is_cut(node, asker) {
            return;
        }
        let event = match &open.whom {
            Whom::Node(with) if *with != proven => {
                let (reason, again) = ("another node answers there", self.now);
                return self.process_at(again, asker, Event::AskOver(number, attempt, reason));
            }
            Whom::Node(with) => {
                JoinEvent::Answered { with: *with, address, words: words_of(number), answer: Ok(answer) }
            }
            Whom::Text(text) => {
                JoinEvent::Probed { text: text.clone(), found: Ok((address, proven, answer)) }
            }
        };
        self.exchanges.remove(&number);
        let delay = self.net.path(node, asker).delay;
        self.input_at(self.now + delay, asker, Input::Joining(event));
    }

    // ---- discovery ----

    /// What discovery says of a node changed: everybody on its LAN hears of it soon.
    pub(crate) fn advertise(&mut self, node: usize, is_fresh: bool) {
        if let Some(process) = &mut self.nodes[node].process {
            process.is_fresh = Some(is_fresh);
        }
        for other in self.neighbours(node) {
            let at = self.now + self.heard_after();
            self.process_at(at, other, Event::Found(node));
        }
    }

    /// A process that begins hears of everybody on its LAN.
    pub(crate) fn look_around(&mut self, node: usize) {
        for other in self.neighbours(node) {
            let at = self.now + self.heard_after();
            self.process_at(at, node, Event::Found(other));
        }
        for said in self.strangers.announced() {
            let at = self.now + self.heard_after();
            self.input_at(at, node, Input::Found(said));
        }
    }

    /// Somebody said in a node's name what is not so. It hears that, and soon says again what is (RFC 6762,
    /// section 9).
    pub(crate) fn defend_name(&mut self, whom: usize) {
        for other in self.neighbours(whom) {
            let again = self.draws.draw().millis(FOUND_AGAIN.0, FOUND_AGAIN.1);
            self.process_at(self.now + again, other, Event::Found(whom));
        }
    }

    fn heard_after(&mut self) -> Duration {
        let is_late = self.draws.draw().per_cent(FOUND_LATE_PER_CENT);
        let (from, to) = if is_late { FOUND_LATE_MS } else { FOUND_WITHIN_MS };
        self.draws.draw().millis(from, to)
    }

    fn neighbours(&self, node: usize) -> Vec<usize> {
        let lans = &self.scenario.lans;
        (0..lans.len()).filter(|&other| other != node && lans[other] == lans[node]).collect()
    }

    /// A process hears of another.
    pub(crate) fn found(&mut self, node: usize, other: usize) {
        if self.net.is_cut(other, node) {
            let again = self.draws.draw().millis(FOUND_AGAIN.0, FOUND_AGAIN.1);
            return self.process_at(self.now + again, node, Event::Found(other));
        }
        let Some(is_fresh) = self.nodes[other].process.as_ref().and_then(|process| process.is_fresh) else {
            return;
        };
        let found = self.found_of(other, is_fresh, false);
        self.feed(node, Input::Found(found));
    }

    /// A node that ends cleanly says so.
    pub(crate) fn gone_from_lan(&mut self, node: usize) {
        for other in self.neighbours(node) {
            let delay = self.draws.draw().millis(1, 50);
            let found = self.found_of(node, false, true);
            if !self.net.is_cut(node, other) {
                self.input_at(self.now + delay, other, Input::Found(found));
            }
        }
    }

    fn found_of(&self, node: usize, is_fresh: bool, is_lost: bool) -> DiscoveredNode {
        let node = &self.nodes[node];
        DiscoveredNode {
            node: node.id,
            addresses: vec![node.address],
            name: Some(node.name.clone()),
            group: Some("exo".to_owned()),
            is_fresh,
            is_lost,
        }
    }
}
