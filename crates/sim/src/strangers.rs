//! A machine on the LAN that nobody has let in: it has as many keys as it likes, says what it likes by
//! discovery, asks for whatever there is to ask, and answers whoever asks it. Where all doors are shut
//! nothing may come of anything; at join windows what the invariants of `doors` say may.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use ed25519_dalek::SigningKey;
use exo_machine::joining::{JoinAnswer, JoinAsk, JoinPurpose, JoinRefusal, Welcome};
use exo_machine::{DiscoveredNode, ExchangeId, Input, JoinEvent};
use exo_trust::{Act, EntryId, Statement, TrustLog};
use exo_types::NodeId;

use crate::draw::{DrawFor, mix};
use crate::founding;
use crate::joins::words_of;
use crate::node::PORT;
use crate::windows::WindowCase;
use crate::world::World;

/// Keys that nobody has let in are numbered from here.
const OUTSIDER: usize = 99;
/// How many it asks with at once.
const MANY: usize = 40;
/// Names with which nobody is there are of keys from here on.
const NOBODY: usize = 500;
/// The last number of its address is this and that of its key.
const HOST: u8 = 100;
/// What it calls itself.
const NAME: &str = "n0\u{1b}[2J\u{202e}'\"";

/// What it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trick {
    /// Asks to become a member, from the same network or through a router.
    AskToJoin {
        /// From the same.
        is_near: bool,
    },
    /// Asks for the log of trust, as members do that lost touch.
    AskForTrust,
    /// Asks with many keys at once.
    AskWithManyKeys {
        /// From the same network.
        is_near: bool,
        /// To become a member, else only who is there.
        wants_in: bool,
    },
    /// Asks to become a member with the key of a node, as who has its disk.
    AskAs {
        /// Which node.
        whom: usize,
    },
    /// Says that somebody is there where nobody is.
    FalseName {
        /// Somebody who is alone, else with a cluster.
        is_fresh: bool,
    },
    /// Says that it is there, and answers so.
    Announce {
        /// It says that it is alone, else that it has a cluster.
        is_fresh: bool,
        /// What it answers.
        reply: Reply,
    },
    /// Says that a member is where it is itself.
    FalseAddress,
    /// Says that a member is gone.
    FalseGoodbye,
}

/// What it answers whoever asks it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    /// It answers nothing.
    Mute,
    /// "Ask again."
    Later,
    /// "No."
    Refused,
    /// "You are a member now", of a cluster of its own.
    Welcome,
    /// "Ask that member", at an address of its own.
    Elsewhere,
    /// Entries that it signed, some of them in the name of whom it guesses to be the founder.
    Trust,
    /// "I am here, and new."
    Here,
}

const REPLIES: [Reply; 7] =
    [Reply::Mute, Reply::Later, Reply::Refused, Reply::Welcome, Reply::Elsewhere, Reply::Trust, Reply::Here];

impl Trick {
    /// One of them, by two draws.
    pub fn drawn(which: u64, how: u64) -> Self {
        let reply = REPLIES[how as usize % REPLIES.len()];
        match which % 8 {
            0 | 1 => Self::AskToJoin { is_near: how.is_multiple_of(2) },
            2 => Self::AskForTrust,
            3 => Self::AskWithManyKeys { is_near: true, wants_in: true },
            4 => Self::FalseAddress,
            5 => Self::FalseGoodbye,
            rest => Self::Announce { is_fresh: rest == 6, reply },
        }
    }

    /// One of them at join windows, by two draws. It welcomes nobody there: whoever does may have a new node
    /// by right, for as long as the window is open.
    pub fn drawn_at(case: WindowCase, which: u64, how: u64) -> Self {
        let replies = REPLIES.map(|reply| if reply == Reply::Welcome { Reply::Mute } else { reply });
        let reply = replies[(how / 2 % REPLIES.len() as u64) as usize];
        let is_even = how.is_multiple_of(2);
        match (which % 10, case.becomes_one()) {
            (0 | 1, _) => Self::Announce { is_fresh: is_even, reply },
            (2, _) => Self::FalseName { is_fresh: is_even },
            (3, _) => Self::FalseAddress,
            (4, _) => Self::FalseGoodbye,
            (5, _) => Self::AskForTrust,
            (6 | 7, becomes_one) => Self::AskToJoin { is_near: is_even && !becomes_one },
            (8, true) => Self::AskWithManyKeys { is_near: is_even, wants_in: !is_even },
            (8, false) => {
                Self::AskWithManyKeys { is_near: is_even && case == WindowCase::Crowd, wants_in: true }
            }
            (_, true) => Self::AskWithManyKeys { is_near: true, wants_in: false },
            (_, false) => Self::AskAs { whom: (how % 60) as usize },
        }
    }
}

/// What the world keeps of it.
#[derive(Debug, Default)]
pub(crate) struct Strangers {
    /// Where it listens: with which key, and what it answers.
    listening: BTreeMap<SocketAddr, (usize, Reply)>,
    /// Its questions without an answer, and with which key each was asked.
    asked: BTreeMap<u64, NodeId>,
    /// What it says at join windows: who starts later hears it as well.
    announced: BTreeMap<NodeId, DiscoveredNode>,
    /// The nodes have become one cluster, and that was counted.
    is_counted: bool,
}

impl Strangers {
    /// With which key it asked, if a question was its own.
    pub(crate) fn take_asked(&mut self, exchange: ExchangeId) -> Option<NodeId> {
        self.asked.remove(&exchange.0)
    }

    /// Whether it listens at an address.
    pub(crate) fn is_at(&self, address: SocketAddr) -> bool {
        self.listening.contains_key(&address)
    }

    /// What it says of itself.
    pub(crate) fn announced(&self) -> Vec<DiscoveredNode> {
        self.announced.values().cloned().collect()
    }
}

impl World {
    /// Whom no entry of an admin names.
    pub(crate) fn stranger(&self, nth: usize) -> NodeId {
        founding::node_id(&self.stranger_key(nth))
    }

    fn stranger_key(&self, nth: usize) -> SigningKey {
        founding::key(mix(self.scenario.seed, DrawFor::Identity, 0).0, OUTSIDER + nth)
    }

    /// At join windows its keys are at few hosts, as in a flood.
    fn stranger_address(&self, near: usize, nth: usize) -> SocketAddr {
        let lan = self.scenario.lans[near];
        match self.scenario.windows {
            Some(windows) => {
                let host = HOST + (nth % windows.hosts) as u8;
                SocketAddr::from(([10, 0, lan, host], PORT + nth as u16))
            }
            None => SocketAddr::from(([10, 0, lan, HOST + nth as u8], PORT)),
        }
    }

    /// It plays a trick on a node. `nth` is its key.
    pub(crate) fn trick(&mut self, to: usize, nth: usize, trick: Trick) {
        let whom = (to + 1 + nth) % self.nodes.len();
        let member = self.nodes[whom].id;
        let address = self.stranger_address(to, nth);
        match trick {
            Trick::AskToJoin { is_near } => self.stranger_asks(to, nth, is_near, JoinPurpose::Membership),
            Trick::AskForTrust => {
                let (cluster, known) = (self.nodes[to].disk.content().trust.cluster(), Vec::new());
                self.stranger_asks(to, nth, true, JoinPurpose::Trust { cluster, known });
            }
            Trick::AskWithManyKeys { is_near, wants_in } => {
                for key in 0..MANY {
                    let what = if wants_in { JoinPurpose::Membership } else { JoinPurpose::Name };
                    self.stranger_asks(to, 1000 + nth * MANY + key, is_near, what);
                }
            }
            Trick::AskAs { whom } => {
                let asker = &self.nodes[whom % self.nodes.len()];
                let (node, name) = (asker.id, asker.name.clone());
                self.asks_as(to, (node, name, address), true, JoinPurpose::Membership);
            }
            Trick::Announce { is_fresh, reply } => {
                self.strangers.listening.insert(address, (nth, reply));
                self.stranger_says(to, said(self.stranger(nth), vec![address], is_fresh, false));
            }
            Trick::FalseName { is_fresh } => {
                let (node, address) = (self.stranger(NOBODY + nth), self.stranger_address(to, NOBODY + nth));
                self.stranger_says(to, said(node, vec![address], is_fresh, false));
            }
            Trick::FalseAddress => {
                if self.scenario.windows.is_some() {
                    self.strangers.listening.entry(address).or_insert((nth, Reply::Mute));
                }
                self.stranger_lies(to, whom, said(member, vec![address], false, false));
            }
            Trick::FalseGoodbye => self.stranger_lies(to, whom, said(member, Vec::new(), false, true)),
        }
    }

    /// At join windows all hear it, and who starts later; or one node alone.
    fn stranger_says(&mut self, to: usize, said: DiscoveredNode) {
        if self.scenario.windows.is_none_or(|windows| windows.is_told_apart) {
            return self.hears(to, said);
        }
        for node in 0..self.nodes.len() {
            self.hears(node, said.clone());
        }
        self.strangers.announced.insert(said.node, said);
    }

    /// It says something in a node's name. At join windows all hear it, and the node's own word again soon.
    fn stranger_lies(&mut self, to: usize, whom: usize, said: DiscoveredNode) {
        match self.scenario.windows {
            None => return self.hears(to, said),
            Some(windows) if windows.is_told_apart => self.hears(to, said),
            Some(_) => (0..self.nodes.len()).for_each(|node| self.hears(node, said.clone())),
        }
        self.defend_name(whom);
    }

    fn hears(&mut self, node: usize, said: DiscoveredNode) {
        if said.node != self.nodes[node].id {
            self.input_at(self.now, node, Input::Found(said));
        }
    }

    fn stranger_asks(&mut self, to: usize, nth: usize, is_near: bool, what: JoinPurpose) {
        let name = match self.scenario.windows {
            // Those that are let in are told apart by it.
            Some(_) => format!("{NAME}{nth}"),
            None => NAME.to_owned(),
        };
        let (node, address) = (self.stranger(nth), self.stranger_address(to, nth % MANY));
        self.asks_as(to, (node, name, address), is_near, what);
    }

    fn asks_as(
        &mut self,
        to: usize,
        (node, name, address): (NodeId, String, SocketAddr),
        is_near: bool,
        what: JoinPurpose,
    ) {
        self.attempts += 1;
        let number = self.attempts;
        let remote = SocketAddr::new(address.ip(), 50_000);
        if node == self.nodes[to].id {
            return; // a node hangs up on itself
        }
        let Some(process) = &mut self.nodes[to].process else { return };
        process.asked.insert(ExchangeId(number), number);
        self.strangers.asked.insert(number, node);
        let ask = JoinAsk { name, group: "exo".to_owned(), port: address.port(), what };
        let exchange = ExchangeId(number);
        let words = words_of(number);
        let event = JoinEvent::Asked { exchange, node, remote, is_near, has_code: false, words, ask };
        self.input_at(self.now, to, Input::Joining(event));
    }

    /// What a node answered it, with whose key it asked.
    pub(crate) fn stranger_is_told(&mut self, node: usize, who: NodeId, answer: &JoinAnswer) {
        let view = self.nodes[node].disk.content().trust.view();
        let is_member = view.members().contains_key(&who);
        let may_be_told = match answer {
            JoinAnswer::Welcome(_) => is_member,
            JoinAnswer::Trust(_) => is_member || view.removed().contains_key(&who),
            _ => true,
        };
        if !may_be_told {
            self.fail("strangers_stay_out", format!("n{node} answers a stranger {answer:?}"));
        }
    }

    /// Counts how soon the nodes of a run are one cluster that are to become one.
    pub(crate) fn count_joined(&mut self) {
        let becomes_one = self.scenario.windows.is_some_and(|windows| windows.case.becomes_one());
        if !becomes_one || self.strangers.is_counted {
            return;
        }
        let clusters = self.nodes.iter().map(|node| node.disk.content().trust.cluster());
        if clusters.collect::<BTreeSet<EntryId>>().len() > 1 {
            return;
        }
        self.strangers.is_counted = true;
        let name = match self.now.since(self.scenario.last_start()).as_secs() {
            0..5 => "one cluster within 5 s",
            5..10 => "one cluster within 10 s",
            10..15 => "one cluster within 15 s",
            15..25 => "one cluster within 25 s",
            _ => "one cluster later than 25 s",
        };
        self.fired(name);
    }

    /// Whom a node reaches at an address of the stranger's, and what it is told there.
    pub(crate) fn stranger_at(
        &self,
        address: SocketAddr,
        asker: usize,
        ask: &JoinAsk,
    ) -> Option<(NodeId, Option<JoinAnswer>)> {
        let (nth, reply) = *self.strangers.listening.get(&address)?;
        let key = self.stranger_key(nth);
        let me = founding::node_id(&key);
        let own = || {
            let founding = Statement::founding(me, 7, "mine".to_owned(), NAME.to_owned(), [9; 16]);
            TrustLog::new(founding::sign(&key, founding)).expect("its founder signs it")
        };
        let answer = match reply {
            Reply::Mute => return Some((me, None)),
            Reply::Later => JoinAnswer::Later,
            Reply::Refused => JoinAnswer::Refused(JoinRefusal::NotAnAdmin { admins: vec![NAME.to_owned()] }),
            Reply::Here => JoinAnswer::Here { name: NAME.to_owned(), fresh: true },
            Reply::Welcome => JoinAnswer::Welcome(Box::new(Welcome {
                name: NAME.to_owned(),
                cluster: own().cluster(),
                coordinator: me,
                coordinator_addresses: vec![address],
            })),
            Reply::Elsewhere => {
                let member = self.nodes[(asker + 1) % self.nodes.len()].id;
                JoinAnswer::Elsewhere { node: member, addresses: vec![address] }
            }
            Reply::Trust => JoinAnswer::Trust(self.forged(&key, &own(), &ask.what)),
        };
        Some((me, Some(answer)))
    }

    /// Its own cluster's founding, and entries of the asker's cluster that let it in: in its own name and in
    /// the founder's, behind what the asker said that it knows.
    fn forged(&self, key: &SigningKey, own: &TrustLog, asked: &JoinPurpose) -> Vec<Vec<u8>> {
        let mut entries: Vec<Vec<u8>> = own.entries().map(exo_trust::Entry::encode).collect();
        let JoinPurpose::Trust { cluster, known } = asked else { return entries };
        let me = founding::node_id(key);
        let nothing = EntryId([5; 32]);
        for author in [me, self.nodes[0].id] {
            for after in [known.clone(), vec![*cluster], vec![nothing]] {
                for act in [
                    Act::Admit { node: me, name: NAME.to_owned() },
                    Act::Appoint { node: me, name: NAME.to_owned() },
                    Act::Remove { node: self.nodes[0].id, reason: "mine".to_owned() },
                ] {
                    let (cluster, after) = (Some(*cluster), after.clone());
                    let statement = Statement { cluster, after, author, at_unix_s: 7, act };
                    entries.push(founding::sign(key, statement).encode());
                }
            }
        }
        entries
    }
}

/// What discovery tells of a node.
fn said(node: NodeId, addresses: Vec<SocketAddr>, is_fresh: bool, is_lost: bool) -> DiscoveredNode {
    let (name, group) = (Some(NAME.to_owned()), Some("exo".to_owned()));
    DiscoveredNode { node, addresses, name, group, is_fresh, is_lost }
}
