//! Connections between processes: dialled, opened, used, ended.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use exo_cluster::wire::{ControlMessage, DataMessage, LogMessage};
use exo_machine::{ADDRESSES_APART, DialId, Input, LinkEnd, LinkId, Outgoing, Purpose, TRANSPORTS_APART};
use exo_types::{NodeId, Transport};

use crate::draw::{DrawFor, mix};
use crate::net::{End, EndState, Parcel, Sent};
use crate::world::{Event, World, WorldEvent};

/// One message in so many is encoded, decoded and compared.
const ENCODED_EVERY: u64 = 64;

/// An attempt to connect: its addresses are dialled side by side.
#[derive(Clone, PartialEq, Debug)]
pub struct Dialling {
    peer: NodeId,
    purpose: Purpose,
    addresses: Vec<(Transport, SocketAddr)>,
    /// Addresses at which it has not failed yet.
    left: usize,
}

impl World {
    /// The node that listens at an address.
    pub(crate) fn listener(&self, address: SocketAddr) -> Option<usize> {
        self.nodes.iter().position(|node| node.address == address)
    }

    pub(crate) fn dial(
        &mut self,
        node: usize,
        dial: DialId,
        (peer, purpose): (NodeId, Purpose),
        addresses: Vec<(Transport, SocketAddr)>,
        within: Duration,
    ) {
        let first = addresses.first().map(|(via, _)| *via);
        let mut apart = [Duration::ZERO, TRANSPORTS_APART];
        for (at, (via, address)) in addresses.iter().enumerate() {
            let begins = &mut apart[usize::from(first != Some(*via))];
            let after = *begins;
            *begins += ADDRESSES_APART;
            let target = self.reachable(node, *address).filter(|_| self.passes(node, *address, *via));
            if let Some(target) = target {
                let handshake =
                    3 * self.net.path(node, target).delay + self.nodes[node].draws.draw().micros(100, 2000);
                self.process_at(self.now + after + handshake, node, Event::DialReach(dial, at));
            }
        }
        self.process_at(self.now + within, node, Event::DialOver(dial));
        let left = addresses.len();
        self.dials.insert((node, dial), Dialling { peer, purpose, addresses, left });
    }

    /// Tells a node if nothing listens at any address of another one. What packets do not reach refuses
    /// nothing.
    pub(crate) fn probe_ports(&mut self, node: usize, peer: NodeId, addresses: &[SocketAddr]) {
        let mut longest = Duration::ZERO;
        for address in addresses {
            let Some(target) = self.reachable(node, *address) else { return };
            if self.nodes[target].process.is_some() {
                return;
            }
            longest = longest.max(2 * self.net.path(node, target).delay);
        }
        if !addresses.is_empty() {
            let delay = longest + self.nodes[node].draws.draw().micros(100, 2000);
            for again in [Duration::ZERO, Duration::from_millis(400)] {
                self.input_at(self.now + delay + again, node, Input::Refused { peer });
            }
        }
    }

    /// The other node at an address, if packets get there and back.
    pub(crate) fn reachable(&self, node: usize, address: SocketAddr) -> Option<usize> {
        let target = self.listener(address)?;
        (target != node && self.nodes[target].has_power && !self.net.is_apart(node, target)).then_some(target)
    }

    /// Some networks let no UDP through.
    fn passes(&self, node: usize, address: SocketAddr, via: Transport) -> bool {
        let Some(target) = self.listener(address) else { return false };
        let pair = (1000 + node.min(target) * 64 + node.max(target)) as u64;
        let is_blocked =
            via == Transport::Quic && mix(self.scenario.seed, DrawFor::Scenario, pair).per_cent(10);
        !is_blocked && self.net.carries(via, node, target)
    }

    /// Its time is over.
    pub(crate) fn dial_over(&mut self, node: usize, dial: DialId) {
        if self.dials.remove(&(node, dial)).is_some() {
            self.input_at(self.now, node, Input::DialFailed { dial, reason: "timed out".to_owned() });
        }
    }

    /// An attempt has failed at one of its addresses.
    fn dial_refused(&mut self, node: usize, dial: DialId, why: &str) {
        let Some(dialling) = self.dials.get_mut(&(node, dial)) else { return };
        dialling.left -= 1;
        if dialling.left == 0 {
            self.dials.remove(&(node, dial));
            self.input_at(self.now, node, Input::DialFailed { dial, reason: why.to_owned() });
        }
    }

    /// The dial of its address `at` arrives.
    pub(crate) fn dial_reach(&mut self, node: usize, dial: DialId, at: usize) {
        let Some(dialling) = self.dials.get(&(node, dial)) else { return };
        let Dialling { peer, purpose, ref addresses, .. } = *dialling;
        let (via, address) = addresses[at];
        let target = self.reachable(node, address).filter(|_| self.passes(node, address, via));
        let Some(target) = target else { return }; // it times out
        let me = self.nodes[node].id;
        let refusal = match &self.nodes[target].process {
            None => Some("connection refused"),
            Some(process) if process.frozen > 0 => return,
            Some(_) if self.nodes[target].id != peer => Some("another node answers there"),
            Some(process) if !process.members.contains(&me) => Some("refused: no member"),
            Some(_) => None,
        };
        match refusal {
            Some(why) => self.dial_refused(node, dial, why),
            None => self.connect(node, target, dial, (purpose, via, address)),
        }
    }

    fn connect(
        &mut self,
        node: usize,
        target: usize,
        dial: DialId,
        (purpose, via, address): (Purpose, Transport, SocketAddr),
    ) {
        let links = [self.nodes[node].give_link(), self.nodes[target].give_link()];
        let listens_at = self.nodes[node].address;
        // Over QUIC the socket that listens dials, over TCP one of the link's own.
        let from = match via {
            Transport::Quic => listens_at,
            Transport::Tcp => SocketAddr::new(listens_at.ip(), 40_000 + (links[0].0 % 20_000) as u16),
        };
        let [dialler, acceptor] =
            [(node, links[0]), (target, links[1])].map(|(node, link)| (node, link, self.nodes[node].life));
        let ends = [
            End {
                node,
                life: dialler.2,
                link: links[0],
                remote: address,
                dial: Some(dial),
                state: EndState::Dialling,
            },
            End {
                node: target,
                life: acceptor.2,
                link: links[1],
                remote: from,
                dial: None,
                state: EndState::Open,
            },
        ];
        let wire = self.net.open(purpose, via, ends);
        self.post(wire, 1, Parcel::Hello, 100);
        let peer = self.nodes[node].id;
        self.feed(target, Input::LinkUp { link: links[1], peer, purpose, via, remote: from, dial: None });
    }

    // ---- sending ----

    pub(crate) fn send(&mut self, node: usize, link: LinkId, mut message: Outgoing) {
        if let Some((_, rewrite)) = self.options.rewrite.filter(|(liar, _)| *liar == node) {
            rewrite(&mut message);
        }
        let is_trust = matches!(&message, Outgoing::Control(m) if matches!(**m, ControlMessage::Trust(_)));
        if is_trust && self.nodes[node].troubles.withholds > 0 {
            return;
        }
        let Some((wire, side)) = self.net.of_link(node, link) else {
            return self.fail(
                "effects_make_sense",
                format!("n{node} sends on {link:?}, which it was never told of"),
            );
        };
        if self.net.wire(wire).ends[side].state != EndState::Open {
            return; // it has ended, and the machine hears of that in a moment
        }
        self.sent += 1;
        if self.sent.is_multiple_of(ENCODED_EVERY) {
            self.check_encoding(&message);
        }
        let bytes = bytes_of(&message);
        let parcel = match message {
            Outgoing::Accept { incarnation } => Parcel::Accept { incarnation },
            Outgoing::TwoProcesses => Parcel::TwoProcesses,
            Outgoing::Ping => Parcel::Ping(self.now),
            Outgoing::Control(message) => Parcel::Control(message),
            Outgoing::Data(message) => Parcel::Data(message),
        };
        self.post(wire, side, parcel, bytes);
    }

    /// What is encoded and decoded must be what it was.
    fn check_encoding(&mut self, message: &Outgoing) {
        let (same, what) = match message {
            Outgoing::Control(message) => {
                (ControlMessage::decode(&message.encode()).as_ref() == Ok(&**message), format!("{message:?}"))
            }
            Outgoing::Data(message) => {
                (DataMessage::decode(&message.encode()).as_ref() == Ok(&**message), format!("{message:?}"))
            }
            Outgoing::Accept { .. } | Outgoing::TwoProcesses | Outgoing::Ping => return,
        };
        if !same {
            self.fail("messages_survive_encoding", what);
        }
    }

    /// Puts a parcel on its way.
    pub(crate) fn post(&mut self, wire: usize, side: usize, parcel: Parcel, bytes: u64) {
        match self.net.send(self.now, wire, side, &parcel, bytes) {
            Sent::At(at) => self.at(at, WorldEvent::Arrive(wire, side, parcel)),
            Sent::Lost => {}
            Sent::Full => {
                let end = &self.net.wire(wire).ends[side];
                let (node, link) = (end.node, end.link);
                self.net.set_state(self.now, wire, side, EndState::Over);
                self.input_at(self.now, node, Input::LinkDown { link, reason: LinkEnd::QueueFull });
            }
        }
    }

    // ---- arriving ----

    /// A process takes in what came on a connection, from its side `side`.
    pub(crate) fn parcel(&mut self, wire: usize, side: usize, parcel: Parcel) {
        let own = 1 - side;
        let end = self.net.wire(wire).ends[own].clone();
        if end.state == EndState::Over || (end.state == EndState::Dialling) != (parcel == Parcel::Hello) {
            return;
        }
        let (node, link) = (end.node, end.link);
        match parcel {
            Parcel::Hello => self.hello(wire, own, &end),
            Parcel::Accept { incarnation } => self.feed(node, Input::LinkAccepted { link, incarnation }),
            Parcel::TwoProcesses => self.link_down(wire, own, LinkEnd::TwoProcesses),
            Parcel::Ping(sent) => self.post(wire, own, Parcel::Pong(sent), 20),
            Parcel::Pong(sent) => {
                let rtt = Some(self.now.since(sent));
                self.feed(node, Input::Heard { link, rtt });
            }
            Parcel::Control(message) => {
                let message = Box::new(Arc::unwrap_or_clone(message));
                self.feed(node, Input::Control { link, message });
            }
            Parcel::Data(message) => self.feed(node, Input::Data { link, message }),
            Parcel::Over(reason) => self.link_down(wire, own, LinkEnd::Reset(reason.to_string())),
        }
    }

    /// The side that dialled hears that the connection stands.
    fn hello(&mut self, wire: usize, own: usize, end: &End) {
        let dial = end.dial.expect("it dialled");
        let Some(dialling) = self.dials.remove(&(end.node, dial)) else {
            // It has given up, or another address was first.
            self.net.set_state(self.now, wire, own, EndState::Over);
            return self.post(wire, own, Parcel::Over(LinkEnd::Reset("given up".to_owned())), 20);
        };
        self.net.set_state(self.now, wire, own, EndState::Open);
        let via = self.net.wire(wire).via;
        let (peer, purpose, dial) = (dialling.peer, dialling.purpose, Some(dial));
        let (link, remote) = (end.link, end.remote);
        self.feed(end.node, Input::LinkUp { link, peer, purpose, via, remote, dial });
    }

    /// A process hears that a connection ended.
    pub(crate) fn link_down(&mut self, wire: usize, side: usize, reason: LinkEnd) {
        let end = self.net.wire(wire).ends[side].clone();
        self.net.set_state(self.now, wire, side, EndState::Over);
        match (end.state, end.dial) {
            (EndState::Open, _) => self.feed(end.node, Input::LinkDown { link: end.link, reason }),
            (EndState::Dialling, Some(dial)) => {
                self.dial_refused(end.node, dial, "connection reset");
            }
            (EndState::Dialling, None) | (EndState::Over, _) => {}
        }
    }

    // ---- ending ----

    /// A machine closes a link: the other side hears of it behind what was sent before.
    pub(crate) fn close(&mut self, node: usize, link: LinkId, reason: LinkEnd) {
        let Some((wire, side)) = self.net.of_link(node, link) else { return };
        if self.net.wire(wire).ends[side].state == EndState::Open {
            self.net.set_state(self.now, wire, side, EndState::Over);
            self.post(wire, side, Parcel::Over(reason), 20);
        }
    }

    /// A connection is reset: both ends hear of it, if they can.
    pub(crate) fn reset(&mut self, wire: usize) {
        if !self.net.reset(self.now, wire) {
            return;
        }
        let nodes = self.net.wire(wire).ends.each_ref().map(|end| (end.node, end.life));
        let via = self.net.wire(wire).via;
        let is_apart =
            self.net.is_apart(nodes[0].0, nodes[1].0) || !self.net.carries(via, nodes[0].0, nodes[1].0);
        for (side, (node, life)) in nodes.into_iter().enumerate() {
            let delay = self.net.path(nodes[1 - side].0, node).delay + self.draws.draw().micros(0, 5000);
            if !is_apart && self.nodes[node].life == life {
                self.process_at(self.now + delay, node, Event::Down(wire, side));
            }
        }
    }
}

/// About as many bytes as a message has.
fn bytes_of(message: &Outgoing) -> u64 {
    let bytes = match message {
        Outgoing::Accept { .. } | Outgoing::TwoProcesses | Outgoing::Ping => 20,
        Outgoing::Control(message) => match &**message {
            ControlMessage::Log(
                LogMessage::Snapshot { ancestors, state, .. }
                | LogMessage::TailSnapshot { ancestors, state, .. },
            ) => 200 + 32 * ancestors.len() + state.len(),
            ControlMessage::Log(LogMessage::Entries { entries, .. }) => {
                200 + entries.iter().map(Vec::len).sum::<usize>()
            }
            ControlMessage::Report(_) | ControlMessage::Desired(_) | ControlMessage::Instances { .. } => 1500,
            _ => 200,
        },
        Outgoing::Data(message) => match &**message {
            DataMessage::Step(step) => 300 + step.rows.len(),
            _ => 300,
        },
    };
    bytes as u64
}
