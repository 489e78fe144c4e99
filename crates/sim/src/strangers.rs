//! A machine on the LAN that nobody has let in: it has as many keys as it likes, says what it likes by
//! discovery, asks for whatever there is to ask, and answers whoever asks it. All doors are shut in these
//! runs, so nothing of it may come of anything.

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
use crate::world::World;

/// Keys that nobody has let in are numbered from here.
const OUTSIDER: usize = 99;
/// How many it asks with at once.
const MANY: usize = 40;
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
    /// Asks to become a member with many keys at once.
    AskWithManyKeys,
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
            3 => Self::AskWithManyKeys,
            4 => Self::FalseAddress,
            5 => Self::FalseGoodbye,
            rest => Self::Announce { is_fresh: rest == 6, reply },
        }
    }
}

/// What the world keeps of it.
#[derive(Debug, Default)]
pub(crate) struct Strangers {
    /// Where it listens: with which key, and what it answers.
    listening: BTreeMap<SocketAddr, (usize, Reply)>,
    /// Its questions without an answer.
    asked: BTreeSet<u64>,
}

impl Strangers {
    /// Whether a question was its own.
    pub(crate) fn take_asked(&mut self, exchange: ExchangeId) -> bool {
        self.asked.remove(&exchange.0)
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

    fn stranger_address(&self, near: usize, nth: usize) -> SocketAddr {
        SocketAddr::from(([10, 0, self.scenario.lans[near], HOST + nth as u8], PORT))
    }

    /// It plays a trick on a node. `nth` is its key.
    pub(crate) fn trick(&mut self, to: usize, nth: usize, trick: Trick) {
        let member = self.nodes[(to + 1 + nth) % self.nodes.len()].id;
        let address = self.stranger_address(to, nth);
        let name = Some(NAME.to_owned());
        let group = Some("exo".to_owned());
        match trick {
            Trick::AskToJoin { is_near } => self.stranger_asks(to, nth, is_near, JoinPurpose::Membership),
            Trick::AskForTrust => {
                let (cluster, known) = (self.nodes[to].disk.content().trust.cluster(), Vec::new());
                self.stranger_asks(to, nth, true, JoinPurpose::Trust { cluster, known });
            }
            Trick::AskWithManyKeys => {
                for key in 0..MANY {
                    self.stranger_asks(to, 1000 + nth * MANY + key, true, JoinPurpose::Membership);
                }
            }
            Trick::Announce { is_fresh, reply } => {
                self.strangers.listening.insert(address, (nth, reply));
                let (node, addresses, is_lost) = (self.stranger(nth), vec![address], false);
                self.stranger_says(to, DiscoveredNode { node, addresses, name, group, is_fresh, is_lost });
            }
            Trick::FalseAddress => {
                let (addresses, is_fresh, is_lost) = (vec![address], false, false);
                let said = DiscoveredNode { node: member, addresses, name, group, is_fresh, is_lost };
                self.stranger_says(to, said);
            }
            Trick::FalseGoodbye => {
                let (addresses, is_fresh, is_lost) = (Vec::new(), false, true);
                let said = DiscoveredNode { node: member, addresses, name, group, is_fresh, is_lost };
                self.stranger_says(to, said);
            }
        }
    }

    fn stranger_says(&mut self, to: usize, said: DiscoveredNode) {
        if said.node != self.nodes[to].id {
            self.input_at(self.now, to, Input::Found(said));
        }
    }

    fn stranger_asks(&mut self, to: usize, nth: usize, is_near: bool, what: JoinPurpose) {
        self.attempts += 1;
        let (number, node) = (self.attempts, self.stranger(nth));
        let remote = SocketAddr::new(self.stranger_address(to, nth % MANY).ip(), 50_000);
        let Some(process) = &mut self.nodes[to].process else { return };
        process.asked.insert(ExchangeId(number), number);
        self.strangers.asked.insert(number);
        let ask = JoinAsk { name: NAME.to_owned(), group: "exo".to_owned(), port: PORT, what };
        let exchange = ExchangeId(number);
        let words = words_of(number);
        let event = JoinEvent::Asked { exchange, node, remote, is_near, has_code: false, words, ask };
        self.input_at(self.now, to, Input::Joining(event));
    }

    /// What a node answered it.
    pub(crate) fn stranger_is_told(&mut self, node: usize, answer: &JoinAnswer) {
        if matches!(answer, JoinAnswer::Welcome(_) | JoinAnswer::Trust(_)) {
            self.fail("strangers_stay_out", format!("n{node} answers a stranger {answer:?}"));
        }
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
