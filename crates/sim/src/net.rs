//! The network between nodes: who reaches whom, and connections as two ordered streams.
//!
//! A connection delivers what was sent, in order, or it ends: in a reset, which both ends hear of, or in
//! silence, which nobody hears of. No single message vanishes from a living one.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use exo_cluster::wire::{ControlMessage, DataMessage};
use exo_machine::{DialId, LinkEnd, LinkId, Purpose};
use exo_types::{Time, Transport};

use crate::draw::{DrawFor, Draws};
use crate::faults::{Cut, Slowdown};

/// Messages that a link takes while none arrives.
const UNDER_WAY_MAX: usize = 1024;

/// No slow link delays more, one way: heartbeats that come so late are still no silence.
const SLOW_DELAY_MAX: Duration = Duration::from_millis(300);

/// What travels on a connection.
#[derive(Clone, PartialEq, Debug)]
pub enum Parcel {
    /// The connection stands: the first to travel towards the side that dialled.
    Hello,
    /// See [`exo_machine::Outgoing::Accept`].
    Accept {
        /// Of the process that sends it.
        incarnation: u64,
    },
    /// See [`exo_machine::Outgoing::TwoProcesses`].
    TwoProcesses,
    /// A ping, and when it was sent by the world's time.
    Ping(Time),
    /// Its answer.
    Pong(Time),
    /// A control message.
    Control(Arc<ControlMessage>),
    /// A data message.
    Data(Box<DataMessage>),
    /// The other side has closed it.
    Over(LinkEnd),
}

/// One end of a connection.
#[derive(Clone, PartialEq, Debug)]
pub struct End {
    /// On which node.
    pub node: usize,
    /// In which life of its process.
    pub life: u32,
    /// Its number there.
    pub link: LinkId,
    /// What it is connected to.
    pub remote: SocketAddr,
    /// The attempt that opened it, at the side that dialled.
    pub dial: Option<DialId>,
    /// How far it is.
    pub state: EndState,
}

/// How far an end is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndState {
    /// It dialled, and has not heard that the connection stands.
    Dialling,
    /// The machine knows it.
    Open,
    /// The machine has closed it or heard of its end.
    Over,
}

/// A connection.
#[derive(Clone, Debug)]
pub struct Wire {
    /// What for.
    pub purpose: Purpose,
    /// Over what.
    pub via: Transport,
    /// The side that dialled, then the other.
    pub ends: [End; 2],
    /// Whether each end has sent its `Accept`.
    pub accepted: [bool; 2],
    ways: [Way; 2],
    /// It was reset: nothing arrives, both ends hear of it.
    dead: bool,
    /// When it was open for the last time, once it is not any more.
    open_until: Option<Time>,
    /// Packets of its transport stopped to get through, and the connection never gets over that.
    is_mute: bool,
}

impl Wire {
    /// Whether both ends keep it and neither knows of an end.
    pub fn is_open(&self) -> bool {
        !self.dead && self.accepted == [true, true] && self.ends.iter().all(|end| end.state == EndState::Open)
    }

    /// Notes that it may be open no longer after what happens now.
    fn note(&mut self, now: Time) {
        if self.is_open() {
            self.open_until = Some(now);
        }
    }
}

/// One direction of a connection.
#[derive(Clone, Debug)]
struct Way {
    flow: Flow,
    /// When the sender's last byte is out.
    free_at: Time,
    /// When the last message arrives: later ones come no earlier.
    last_at: Time,
    /// Arrived at the cut.
    held: VecDeque<Parcel>,
    under_way: usize,
    draws: Draws,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flow {
    Open,
    Delayed,
    Silent,
}

/// What becomes of a message that is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// It arrives then.
    At(Time),
    /// It never arrives.
    Lost,
    /// The link takes no more.
    Full,
}

/// Delay and rate from one node to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// One way.
    pub delay: Duration,
    /// Bytes per second.
    pub rate: u64,
}

/// All connections, and what is cut.
#[derive(Debug)]
pub struct Net {
    seed: u64,
    lans: Vec<u8>,
    wires: Vec<Wire>,
    by_end: BTreeMap<(usize, LinkId), (usize, usize)>,
    /// Cuts in force, by direction.
    cuts: BTreeMap<(usize, usize), u32>,
    /// Pairs of nodes between which all takes longer, by fault.
    slow: BTreeMap<usize, ((usize, usize), Slowdown)>,
    /// When something that was held back arrived last, by direction.
    released: BTreeMap<(usize, usize), Time>,
    /// Pairs of nodes between which no UDP gets through, by fault.
    without_udp: BTreeMap<usize, (usize, usize)>,
}

impl Net {
    /// A network of nodes on these LANs.
    pub fn new(seed: u64, lans: Vec<u8>) -> Self {
        let (wires, by_end) = (Vec::new(), BTreeMap::new());
        let (cuts, slow, released) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let without_udp = BTreeMap::new();
        Self { seed, lans, wires, by_end, cuts, slow, released, without_udp }
    }

    /// The path from one node to another as it is now, without what is cut.
    pub fn path(&self, from: usize, to: usize) -> Path {
        let pair = (from.min(to) * 64 + from.max(to)) as u64;
        let mut draws = Draws::new(self.seed, DrawFor::Net, pair);
        let near = self.lans[from] == self.lans[to];
        let delay = if near { draws.draw().micros(80, 800) } else { draws.draw().micros(4000, 40_000) };
        let rate = if near { draws.draw().between(50, 1000) } else { draws.draw().between(5, 50) };
        let mut path = Path { delay, rate: rate * 1_000_000 };
        for (ends, slowdown) in self.slow.values() {
            if [(from, to), (to, from)].contains(ends) {
                path.delay = path.delay.saturating_mul(slowdown.delay_by).min(SLOW_DELAY_MAX).max(path.delay);
                path.rate = (path.rate / u64::from(slowdown.bytes_by)).max(1);
            }
        }
        path
    }

    /// All between two nodes takes longer from now on, in both directions. What is under way arrives as
    /// before.
    pub fn slow_down(&mut self, fault: usize, ends: (usize, usize), slowdown: Slowdown) {
        self.slow.insert(fault, (ends, slowdown));
    }

    /// It takes as long as before that fault again.
    pub fn speed_up(&mut self, fault: usize) {
        self.slow.remove(&fault);
    }

    /// No UDP gets through between two nodes from now on, in either direction.
    pub fn cut_udp(&mut self, fault: usize, (a, b): (usize, usize)) {
        self.without_udp.insert(fault, (a, b));
        let is_theirs = |wire: &&mut Wire| wire.via == Transport::Quic && side_from(wire, a, b).is_some();
        for wire in self.wires.iter_mut().filter(is_theirs) {
            wire.is_mute = true;
            wire.ways.iter_mut().for_each(|way| way.flow = Flow::Silent);
        }
    }

    /// It does again; what was open before stays silent.
    pub fn heal_udp(&mut self, fault: usize) {
        self.without_udp.remove(&fault);
    }

    /// Whether packets of a transport get from one node to the other, where any do.
    pub fn carries(&self, via: Transport, a: usize, b: usize) -> bool {
        via == Transport::Tcp || !self.without_udp.values().any(|ends| [(a, b), (b, a)].contains(ends))
    }

    /// Whether nothing gets from one node to the other.
    pub fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cuts.get(&(from, to)).is_some_and(|&cuts| cuts > 0)
    }

    /// Whether nothing gets there and back.
    pub fn is_apart(&self, a: usize, b: usize) -> bool {
        self.is_cut(a, b) || self.is_cut(b, a)
    }

    /// Opens a connection. Its number.
    pub fn open(&mut self, purpose: Purpose, via: Transport, ends: [End; 2]) -> usize {
        let wire = self.wires.len();
        for (side, end) in ends.iter().enumerate() {
            self.by_end.insert((end.node, end.link), (wire, side));
        }
        let way = |side: u64| Way {
            flow: Flow::Open,
            free_at: Time::ZERO,
            last_at: Time::ZERO,
            held: VecDeque::new(),
            under_way: 0,
            draws: Draws::new(self.seed, DrawFor::Net, (1 << 32) + 2 * wire as u64 + side),
        };
        let ways = [way(0), way(1)];
        self.wires.push(Wire {
            purpose,
            via,
            ends,
            accepted: [false; 2],
            ways,
            dead: false,
            open_until: None,
            is_mute: false,
        });
        wire
    }

    /// A connection by its number.
    pub fn wire(&self, wire: usize) -> &Wire {
        &self.wires[wire]
    }

    /// All connections.
    pub fn wires(&self) -> &[Wire] {
        &self.wires
    }

    /// The connection and the side that a node's link is.
    pub fn of_link(&self, node: usize, link: LinkId) -> Option<(usize, usize)> {
        self.by_end.get(&(node, link)).copied()
    }

    /// Sets how far an end is.
    pub fn set_state(&mut self, now: Time, wire: usize, side: usize, state: EndState) {
        self.wires[wire].note(now);
        self.wires[wire].ends[side].state = state;
    }

    /// Sends `bytes` from one side of a connection.
    pub fn send(&mut self, now: Time, wire: usize, side: usize, parcel: &Parcel, bytes: u64) -> Sent {
        let (from, to) = (self.wires[wire].ends[side].node, self.wires[wire].ends[1 - side].node);
        let path = self.path(from, to);
        let is_cut = self.is_cut(from, to);
        let wire = &mut self.wires[wire];
        if wire.dead {
            return Sent::Lost;
        }
        if matches!(parcel, Parcel::Accept { .. }) {
            wire.accepted[side] = true;
        }
        let way = &mut wire.ways[side];
        if way.under_way >= UNDER_WAY_MAX {
            return Sent::Full;
        }
        if is_cut && way.flow == Flow::Open {
            way.flow = Flow::Delayed; // opened just before the cut
        }
        way.under_way += 1;
        if way.flow == Flow::Silent {
            return Sent::Lost;
        }
        way.free_at = way.free_at.max(now) + Duration::from_micros(bytes * 1_000_000 / path.rate);
        let at = way.free_at + path.delay + jitter(&mut way.draws, path.delay);
        way.last_at = way.last_at.max(at);
        Sent::At(way.last_at)
    }

    /// A parcel has arrived. `None` if it does not get through, or not yet.
    pub fn arrive(&mut self, wire: usize, side: usize, parcel: Parcel) -> Option<Parcel> {
        let wire = &mut self.wires[wire];
        let way = &mut wire.ways[side];
        match way.flow {
            _ if wire.dead => None,
            Flow::Silent => None,
            Flow::Delayed => {
                way.held.push_back(parcel);
                None
            }
            Flow::Open => {
                way.under_way = way.under_way.saturating_sub(1);
                Some(parcel)
            }
        }
    }

    /// Nothing gets from one node to the other from now on.
    pub fn cut(&mut self, from: usize, to: usize, cut: Cut) {
        *self.cuts.entry((from, to)).or_default() += 1;
        let flow = match cut {
            Cut::Silence => Flow::Silent,
            Cut::Delay => Flow::Delayed,
        };
        for way in self.ways_between(from, to) {
            if way.flow != Flow::Silent {
                way.flow = flow;
            }
        }
    }

    /// Something does again, unless it is cut twice. What was held back arrives now: connection, side,
    /// parcel.
    pub fn heal(&mut self, now: Time, from: usize, to: usize) -> Vec<(usize, usize, Parcel)> {
        let cuts = self.cuts.entry((from, to)).or_default();
        *cuts = cuts.saturating_sub(1);
        if *cuts > 0 {
            return Vec::new();
        }
        let mut arrived = Vec::new();
        for (number, wire) in self.wires.iter_mut().enumerate() {
            let Some(side) = side_from(wire, from, to) else { continue };
            let way = &mut wire.ways[side];
            if way.flow == Flow::Delayed {
                way.flow = Flow::Open;
                let is_dead = wire.dead;
                let held = way.held.drain(..).filter(|_| !is_dead);
                arrived.extend(held.map(|parcel| (number, side, parcel)));
            }
        }
        if !arrived.is_empty() {
            self.released.insert((from, to), now);
        }
        arrived
    }

    /// When something that a cut had held back arrived last.
    pub fn released(&self, from: usize, to: usize) -> Option<Time> {
        self.released.get(&(from, to)).copied()
    }

    fn ways_between(&mut self, from: usize, to: usize) -> impl Iterator<Item = &mut Way> {
        self.wires.iter_mut().filter_map(move |wire| {
            let side = side_from(wire, from, to)?;
            Some(&mut wire.ways[side])
        })
    }

    /// Ends a connection in a reset: what is under way is lost. True if it was alive.
    pub fn reset(&mut self, now: Time, wire: usize) -> bool {
        self.wires[wire].note(now);
        !std::mem::replace(&mut self.wires[wire].dead, true)
    }

    /// Living connections between two nodes that at least one end takes for open.
    pub fn between(&self, a: usize, b: usize) -> Vec<usize> {
        let is_ours = |wire: &Wire| side_from(wire, a, b).is_some() && !wire.dead && is_known(wire);
        (0..self.wires.len()).filter(|&wire| is_ours(&self.wires[wire])).collect()
    }

    /// Connections of a life of a node that at least one end takes for open.
    pub fn of_node(&self, node: usize, life: u32) -> Vec<(usize, usize)> {
        let side = |wire: &Wire| wire.ends.iter().position(|end| (end.node, end.life) == (node, life));
        let known = self.wires.iter().enumerate().filter(|(_, wire)| is_known(wire));
        known.filter_map(|(number, wire)| Some((number, side(wire)?))).collect()
    }

    /// Whether two nodes have a connection for `purpose` that both keep.
    pub fn has_open(&self, a: usize, b: usize, purpose: Purpose) -> bool {
        let fits = |wire: &&Wire| wire.purpose == purpose && side_from(wire, a, b).is_some();
        self.wires.iter().rev().filter(fits).any(Wire::is_open)
    }

    /// The same, and messages get through on it where any packets do.
    pub fn has_clear(&self, a: usize, b: usize, purpose: Purpose) -> bool {
        let fits = |wire: &&Wire| wire.purpose == purpose && side_from(wire, a, b).is_some();
        self.wires.iter().rev().filter(fits).any(|wire| wire.is_open() && !wire.is_mute)
    }

    /// [`Net::has_open`], now or at some time after `since`.
    pub fn was_open(&self, a: usize, b: usize, purpose: Purpose, since: Time) -> bool {
        let fits = |wire: &&Wire| wire.purpose == purpose && side_from(wire, a, b).is_some();
        let was = |wire: &Wire| wire.is_open() || wire.open_until.is_some_and(|until| until >= since);
        self.wires.iter().rev().filter(fits).any(was)
    }
}

fn is_known(wire: &Wire) -> bool {
    wire.ends.iter().any(|end| end.state != EndState::Over)
}

fn side_from(wire: &Wire, from: usize, to: usize) -> Option<usize> {
    let nodes = [wire.ends[0].node, wire.ends[1].node];
    (0..2).find(|&side| nodes[side] == from && nodes[1 - side] == to)
}

/// A part of the delay, and seldom much more.
fn jitter(draws: &mut Draws, delay: Duration) -> Duration {
    let draw = draws.draw();
    if draw.below(200) == 0 {
        draws.draw().micros(2000, 30_000)
    } else {
        Duration::from_micros(draw.0 / 200 % (delay.as_micros() as u64 / 3 + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(node: usize) -> End {
        let remote = SocketAddr::from(([10, 0, 0, 1], 1));
        End { node, life: 0, link: LinkId(1), remote, dial: None, state: EndState::Open }
    }

    fn net() -> (Net, usize) {
        let mut net = Net::new(5, vec![0, 0, 0]);
        let wire = net.open(Purpose::Data, Transport::Tcp, [end(0), end(1)]);
        (net, wire)
    }

    fn ping(n: u64) -> Parcel {
        Parcel::Ping(Time(n))
    }

    /// Sends so many from side 0, one each 10 µs from `from_us`, and gives them with the times they arrive
    /// at.
    fn send(net: &mut Net, wire: usize, from_us: u64, count: u64) -> Vec<(Time, Parcel)> {
        let one = |n| match net.send(Time(from_us + 10 * n), wire, 0, &ping(from_us + n), 100) {
            Sent::At(at) => Some((at, ping(from_us + n))),
            _ => None,
        };
        (0..count).filter_map(one).collect()
    }

    #[test]
    fn messages_arrive_in_order_whatever_their_delays() {
        let (mut net, wire) = net();
        let sent = send(&mut net, wire, 0, 1000);
        assert_eq!(sent.len(), 1000);
        assert!(sent.windows(2).all(|pair| pair[0].0 <= pair[1].0));
        let spread = sent.iter().map(|(at, _)| at.0).max().unwrap() - 10_000;
        assert!(spread > 2000, "some took long: {spread} µs");
    }

    #[test]
    fn a_link_takes_no_more_than_its_queue() {
        let (mut net, wire) = net();
        send(&mut net, wire, 0, UNDER_WAY_MAX as u64);
        assert_eq!(net.send(Time(0), wire, 0, &ping(0), 1), Sent::Full);
        assert_ne!(net.send(Time(0), wire, 1, &ping(0), 1), Sent::Full, "the other direction is empty");
    }

    #[test]
    fn what_a_cut_delays_comes_in_order_when_it_is_over() {
        let (mut net, wire) = net();
        let before = send(&mut net, wire, 0, 3);
        net.cut(0, 1, Cut::Delay);
        let during = send(&mut net, wire, 100, 3);
        for (_, parcel) in before.iter().chain(&during) {
            assert_eq!(net.arrive(wire, 0, parcel.clone()), None);
        }
        let arrived: Vec<_> = net.heal(Time(0), 0, 1).into_iter().map(|(_, _, parcel)| parcel).collect();
        let expected: Vec<_> = before.into_iter().chain(during).map(|(_, parcel)| parcel).collect();
        assert_eq!(arrived, expected);
        assert_eq!(net.arrive(wire, 0, ping(9)), Some(ping(9)));
    }

    #[test]
    fn after_silence_nothing_arrives_any_more_in_that_direction() {
        let (mut net, wire) = net();
        net.cut(0, 1, Cut::Silence);
        assert!(net.heal(Time(0), 0, 1).is_empty());
        assert_eq!(net.send(Time(0), wire, 0, &ping(0), 1), Sent::Lost);
        assert_eq!(net.arrive(wire, 0, ping(1)), None, "also what was under way");
        assert_eq!(net.arrive(wire, 1, ping(2)), Some(ping(2)));
        assert!(!net.is_apart(0, 1), "a new connection would work");
    }

    #[test]
    fn a_slow_link_delays_both_ways_keeps_the_order_and_is_as_before_when_that_is_over() {
        let (mut net, wire) = net();
        let before = net.path(0, 1);
        net.slow_down(7, (1, 0), Slowdown { delay_by: 3, bytes_by: 4 });
        for path in [net.path(0, 1), net.path(1, 0)] {
            assert_eq!(path, Path { delay: 3 * before.delay, rate: before.rate / 4 });
        }
        net.slow_down(8, (0, 1), Slowdown { delay_by: 1_000_000, bytes_by: 1 });
        assert_eq!(net.path(1, 0).delay, SLOW_DELAY_MAX);
        let slow = send(&mut net, wire, 0, 10);
        net.speed_up(8);
        net.speed_up(7);
        assert_eq!(net.path(0, 1), before);
        let after = send(&mut net, wire, 20_000, 10);
        assert!(slow[0].0 > Time(300_000) && after[0].0 >= slow[9].0, "what was sent first comes first");
    }

    #[test]
    fn without_udp_what_is_open_over_it_stays_silent_and_the_rest_goes_on() {
        let (mut net, tcp) = net();
        let quic = net.open(Purpose::Control, Transport::Quic, [end(1), end(0)]);
        let other = net.open(Purpose::Control, Transport::Quic, [end(1), end(2)]);
        net.cut_udp(3, (0, 1));
        assert!(!net.carries(Transport::Quic, 1, 0) && net.carries(Transport::Tcp, 0, 1));
        assert!(net.carries(Transport::Quic, 1, 2));
        for _ in 0..2 {
            assert_eq!([0, 1].map(|side| net.send(Time(0), quic, side, &ping(0), 1)), [Sent::Lost; 2]);
            assert_ne!(net.send(Time(0), tcp, 0, &ping(0), 1), Sent::Lost);
            assert_ne!(net.send(Time(0), other, 0, &ping(0), 1), Sent::Lost);
            net.heal_udp(3);
        }
        assert!(net.carries(Transport::Quic, 1, 0), "for what is opened now");
    }

    #[test]
    fn two_cuts_are_over_when_both_are() {
        let (mut net, wire) = net();
        net.cut(0, 1, Cut::Delay);
        net.cut(0, 1, Cut::Delay);
        assert!(net.heal(Time(0), 0, 1).is_empty() && net.is_cut(0, 1));
        assert_eq!(net.arrive(wire, 0, ping(1)), None);
        assert_eq!(net.heal(Time(0), 0, 1), vec![(wire, 0, ping(1))]);
    }

    #[test]
    fn a_reset_loses_what_is_under_way_and_happens_once() {
        let (mut net, wire) = net();
        assert_eq!(net.between(0, 1), vec![wire]);
        assert!(net.reset(Time(0), wire) && !net.reset(Time(0), wire));
        assert_eq!(net.arrive(wire, 0, ping(1)), None);
        assert!(net.between(0, 1).is_empty());
    }
}
