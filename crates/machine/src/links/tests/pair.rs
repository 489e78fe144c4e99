//! Two sides wired together: connections with delays of their own in each direction, that may break.

use super::*;
use exo_types::Transport;

/// Where one run's chance comes from.
pub(super) struct Chance(pub(super) u64);

impl Chance {
    /// SplitMix64.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// What happens at a side.
enum Event {
    /// It becomes a member.
    Start,
    /// It sends its next data message.
    Send,
    Up {
        conn: u64,
        dial: Option<DialId>,
        purpose: Purpose,
    },
    DialFailed(DialId),
    Frame {
        conn: u64,
        message: Outgoing,
    },
    Pong {
        conn: u64,
    },
    Down {
        conn: u64,
    },
}

#[derive(Default)]
struct Conn {
    /// Whether each side has closed it or heard of its end.
    closed: [bool; 2],
    /// Nothing arrives at this side any more, and nobody is told.
    deaf: [bool; 2],
    /// When the last frame towards each side arrives.
    last: [u64; 2],
}

/// One node of the pair.
pub(super) struct Side {
    pub(super) links: Links,
    pub(super) sent: u64,
    pub(super) received: Vec<u64>,
    pub(super) undeliverable: u64,
    pub(super) ups: u32,
    pub(super) downs: u32,
    /// The connection of its open data link.
    pub(super) open: Option<u64>,
}

pub(super) struct Pair {
    pub(super) sides: [Side; 2],
    pub(super) chance: Chance,
    /// Whether each side can dial the other.
    pub(super) reach: [bool; 2],
    /// Longest delay of anything, in milliseconds.
    pub(super) delay_max: u64,
    /// Links that went because another one was kept.
    pub(super) replaced: u64,
    pub(super) now: u64,
    /// When both have started.
    pub(super) started: u64,
    /// Connections that were made.
    made: u64,
    conns: BTreeMap<u64, Conn>,
    events: BTreeMap<(u64, u64), (usize, Event)>,
    numbered: u64,
}

const NODES: [NodeId; 2] = [LOWER, HIGHER];

impl Pair {
    /// Two members that know where the other one is; each starts some time in the first `apart` milliseconds.
    pub(super) fn new(seed: u64, delay_max: u64, apart: u64) -> Self {
        let side = |i: usize| Side {
            links: Links::new(NODES[i], 100, [seed as u8; 32], BTreeMap::from([(NODES[1 - i], vec![at(1)])])),
            sent: 0,
            received: vec![],
            undeliverable: 0,
            ups: 0,
            downs: 0,
            open: None,
        };
        let mut pair = Self {
            sides: [side(0), side(1)],
            chance: Chance(seed),
            reach: [true; 2],
            delay_max,
            replaced: 0,
            made: 0,
            now: 0,
            started: 0,
            conns: BTreeMap::new(),
            events: BTreeMap::new(),
            numbered: 0,
        };
        for side in 0..2 {
            let start = pair.chance.below(apart);
            pair.started = pair.started.max(start);
            pair.at(start, side, Event::Start);
        }
        pair
    }

    /// Both sides send `count` messages from now on, some milliseconds apart.
    pub(super) fn talk(&mut self, count: u64) {
        for side in 0..2 {
            let mut time = self.now;
            for _ in 0..count {
                time += self.chance.below(60);
                self.at(time, side, Event::Send);
            }
        }
    }

    /// Lets happen what happens up to `until`.
    pub(super) fn run(&mut self, until: u64) {
        loop {
            let due = |i: usize| self.sides[i].links.next_deadline().0.div_ceil(1000).max(self.now);
            let (timer, side) = [(due(0), 0), (due(1), 1)].into_iter().min().unwrap();
            let event = self.events.first_key_value().map(|((time, _), _)| *time);
            if event.unwrap_or(u64::MAX).min(timer) > until {
                self.now = until;
                return;
            }
            match self.events.first_entry() {
                Some(entry) if entry.key().0 <= timer => {
                    let ((time, _), (side, event)) = entry.remove_entry();
                    self.now = time;
                    self.happen(side, event);
                }
                _ => {
                    self.now = timer;
                    self.feed(side, |links, now, out| links.timer(now, out));
                    assert!(
                        self.sides[side].links.next_deadline() > ms(timer),
                        "asks for the timer again at once"
                    );
                }
            }
        }
    }

    /// Breaks a connection: what is in it is lost, both sides hear of it some time.
    pub(super) fn break_off(&mut self, conn: u64) {
        self.go_silent(conn);
        for side in 0..2 {
            let time = self.now + self.chance.below(self.delay_max);
            self.at(time, side, Event::Down { conn });
        }
    }

    /// Loses all that is in a connection and will be, and tells nobody.
    pub(super) fn go_silent(&mut self, conn: u64) {
        self.conns.entry(conn).or_default().deaf = [true; 2];
    }

    /// The same in one direction.
    pub(super) fn go_deaf(&mut self, conn: u64, side: usize) {
        self.conns.entry(conn).or_default().deaf[side] = true;
    }

    fn at(&mut self, time: u64, side: usize, event: Event) {
        self.numbered += 1;
        self.events.insert((time, self.numbered), (side, event));
    }

    /// What is in `conn` towards `side` arrives in order.
    fn travel(&mut self, conn: u64, side: usize, event: Event) {
        let delay = 1 + self.chance.below(self.delay_max);
        let last = &mut self.conns.entry(conn).or_default().last[side];
        *last = (*last).max(self.now + delay);
        let time = *last;
        self.at(time, side, event);
    }

    fn happen(&mut self, side: usize, event: Event) {
        let peer = NODES[1 - side];
        let link = |conn: u64| LinkId(conn * 2 + side as u64);
        match event {
            Event::Start => {
                let members = BTreeSet::from(NODES);
                self.feed(side, |links, now, out| links.set_members(now, &members, out));
            }
            Event::Send => {
                self.sides[side].sent += 1;
                let message = numbered(self.sides[side].sent);
                self.feed(side, |links, now, out| links.send_data(now, peer, message, out));
            }
            Event::Up { conn, dial, purpose } => {
                let (via, remote) = (Transport::Tcp, at(1));
                self.feed(side, |links, now, out| {
                    links.up(now, link(conn), peer, purpose, via, remote, dial, out);
                });
            }
            Event::DialFailed(dial) => {
                self.feed(side, |links, now, out| links.dial_failed(now, dial, "refused", out));
            }
            Event::Frame { conn, .. } | Event::Pong { conn } if !self.hears(conn, side) => {}
            Event::Pong { conn } => {
                self.feed(side, |links, now, out| links.heard(now, link(conn), None, out))
            }
            Event::Frame { conn, message } => self.frame(side, conn, message),
            Event::Down { conn } => {
                let closed = &mut self.conns.entry(conn).or_default().closed[side];
                if !std::mem::replace(closed, true) {
                    let reason = LinkEnd::Reset(String::new());
                    self.feed(side, |links, now, out| links.down(now, link(conn), reason, out));
                }
            }
        }
    }

    fn hears(&self, conn: u64, side: usize) -> bool {
        self.conns.get(&conn).is_some_and(|c| !c.closed[side] && !c.deaf[side])
    }

    fn frame(&mut self, side: usize, conn: u64, message: Outgoing) {
        let link = LinkId(conn * 2 + side as u64);
        match message {
            Outgoing::Accept { incarnation } => {
                self.feed(side, |links, now, out| links.accepted(now, link, incarnation, out));
            }
            Outgoing::TwoProcesses => panic!("there is one process for each key"),
            Outgoing::Ping => self.travel(conn, 1 - side, Event::Pong { conn }),
            Outgoing::Control(_) => panic!("no control messages here"),
            Outgoing::Data(message) => {
                let from = self.sides[side].links.message(ms(self.now), link);
                if from.is_some() {
                    self.sides[side].received.push(number_of(&message));
                }
            }
        }
    }

    fn feed(&mut self, side: usize, call: impl FnOnce(&mut Links, Time, &mut Vec<LinksOutput>)) {
        let mut out = vec![];
        call(&mut self.sides[side].links, ms(self.now), &mut out);
        for output in out {
            match output {
                LinksOutput::Effect(effect) => self.carry_out(side, effect),
                LinksOutput::Up { purpose: Purpose::Data, .. } => self.sides[side].ups += 1,
                LinksOutput::Down { purpose: Purpose::Data, .. } => self.sides[side].downs += 1,
                LinksOutput::Up { .. } | LinksOutput::Down { .. } => {}
                LinksOutput::Undeliverable { .. } => self.sides[side].undeliverable += 1,
                LinksOutput::TwoProcesses { .. } | LinksOutput::KeyElsewhere { .. } => {
                    panic!("there is one process for each key")
                }
            }
        }
        let links = &self.sides[side].links;
        self.sides[side].open = links.open_link(NODES[1 - side], Purpose::Data).map(|link| link.0 / 2);
    }

    fn carry_out(&mut self, side: usize, effect: Effect) {
        match effect {
            Effect::Dial { dial, .. } if !self.reach[side] => {
                let time = self.now + self.chance.below(3000);
                self.at(time, side, Event::DialFailed(dial));
            }
            Effect::Dial { dial, purpose, .. } => {
                self.made += 1;
                let conn = self.made;
                // Either side may see first that it stands.
                for (side, dial) in [(side, Some(dial)), (1 - side, None)] {
                    self.travel(conn, side, Event::Up { conn, dial, purpose });
                }
            }
            Effect::Send { link, message } => {
                self.travel(link.0 / 2, 1 - side, Event::Frame { conn: link.0 / 2, message })
            }
            Effect::CloseLink { link, reason } => {
                self.replaced += u64::from(reason == LinkEnd::Replaced);
                let conn = link.0 / 2;
                assert!(
                    !std::mem::replace(&mut self.conns.entry(conn).or_default().closed[side], true),
                    "twice"
                );
                if !self.conns[&conn].deaf[1 - side] {
                    self.travel(conn, 1 - side, Event::Down { conn });
                }
            }
            other => panic!("{other:?}"),
        }
    }
}
