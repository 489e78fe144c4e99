//! What a member says of the members that is not so. It has a key of its own and all that the cluster's nodes
//! know, and is no admin.

use std::sync::Arc;

use ed25519_dalek::{Signer, SigningKey};
use exo_cluster::wire::{ControlMessage, LogMessage};
use exo_cluster::{Event, RemoveReason, State};
use exo_machine::{LinkId, Outgoing, Purpose, TrustMessage, TrustNews};
use exo_membership::{Body, Heartbeat, LogEnd, Message, Rank, Role};
use exo_trust::{Act, Entry, EntryId, Statement, TrustLog};
use exo_types::{Epoch, InstanceId, LogHead, NodeId};

use crate::net::EndState;
use crate::node::Node;
use crate::world::World;

/// What is said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// "I am an admin", signed by the liar.
    Appointed,
    /// "The founder is out", signed by the liar.
    RemovedFounder,
    /// "This stranger is in", signed by the liar.
    AdmittedStranger,
    /// The same in the founder's name, signed by the liar.
    ForgedHand,
    /// The same behind an entry that nobody has.
    Gap,
    /// A founding of the liar's own, in which it is the admin, with what it then signs.
    OtherCluster,
    /// All entries there are, the last first.
    Reordered,
    /// To know entries that nobody has.
    KnowsNothing,
    /// No bytes of any message.
    Garbage,
    /// "This is what is placed: nothing", without being the coordinator.
    Snapshot,
    /// As coordinator: an entry that cannot follow the log, or is none.
    BadEntry,
    /// To have a log longer than all others'.
    LongLog,
    /// To all that it leads, in a later epoch than any: by runs of its own.
    TakesLead,
    /// The same behind the word that it looks for a coordinator in a later epoch than any, for which the
    /// coordinator begins another: in that one, and in one after what is begun.
    SeeksAndTakesLead,
}

impl Lie {
    /// Those that are drawn.
    pub const ALL: [Self; 12] = [
        Self::Appointed,
        Self::RemovedFounder,
        Self::AdmittedStranger,
        Self::ForgedHand,
        Self::Gap,
        Self::OtherCluster,
        Self::Reordered,
        Self::KnowsNothing,
        Self::Garbage,
        Self::Snapshot,
        Self::BadEntry,
        Self::LongLog,
    ];
}

/// An entry as its maker wants it: nothing is checked.
fn entry(key: &SigningKey, statement: Statement) -> Entry {
    let signature = key.sign(&statement.to_sign()).to_bytes();
    statement.signed(signature)
}

impl World {
    /// A node that is not the founder tells another a lie, if both run and a control link between them is
    /// open.
    pub(crate) fn lie(&mut self, liar: usize, to: usize, lie: Lie) {
        let Some(link) = self.link_to_lie(liar, to, Purpose::Control) else { return };
        for message in self.lie_in_messages(liar, lie) {
            self.send(liar, link, Outgoing::Control(Arc::new(message)));
        }
    }

    /// A node says to all that it leads, or first that it seeks. Only beside a coordinator that most members
    /// follow: where there is none, anybody may come to lead.
    pub(crate) fn take_lead(&mut self, liar: usize, seeks: bool) {
        let Some(epoch) = self.led_by_most().filter(|epoch| epoch.key != self.nodes[liar].id) else { return };
        let Some(began) = self.nodes[liar].process.as_ref().map(|process| process.began) else { return };
        let own = &self.nodes[liar];
        let log = LogEnd { trust: u64::MAX, epoch: epoch.counter + 1, index: u64::MAX };
        let rank = Rank { majority: true, served: u32::MAX, log, uptime_class: u8::MAX, mains_power: true };
        let beat = |role| Heartbeat { role, rank, table: Vec::new() };
        let (seeking, leads) = (Body::Heartbeat(beat(Role::Seeking)), beat(Role::Leading));
        let leading =
            |above: u64| [(above, Body::Announce(leads.clone())), (above, Body::Heartbeat(leads.clone()))];
        // For one above its own, the coordinator begins the next but one.
        let said: Vec<(u64, Body)> = match seeks {
            true => std::iter::once((1, seeking)).chain(leading(1)).chain(leading(3)).collect(),
            false => leading(1).into(),
        };
        let (key, incarnation) = (own.id, own.incarnation(began));
        let message = |(above, body): (u64, Body)| {
            let claimed = Epoch { counter: epoch.counter + above, key };
            Message { epoch: Some(claimed), incarnation, body }.encode()
        };
        let messages: Vec<Vec<u8>> = said.into_iter().map(message).collect();
        for to in (0..self.nodes.len()).filter(|to| *to != liar) {
            let Some(link) = self.link_to_lie(liar, to, Purpose::Control) else { continue };
            for bytes in &messages {
                let message = ControlMessage::Membership(bytes.clone());
                self.send(liar, link, Outgoing::Control(Arc::new(message)));
            }
        }
        self.fired(if seeks { "lead claimed by one that seeks" } else { "lead claimed" });
    }

    /// The last epoch of the coordinator that most members follow, if there is one. Some of them may be in
    /// its epoch before.
    fn led_by_most(&self) -> Option<Epoch> {
        let led = |node: &Node| Some(node.process.as_ref()?.machine.leader()?.0);
        let epochs: Vec<Epoch> = self.nodes.iter().filter_map(led).collect();
        let followed = |epoch: &Epoch| epochs.iter().filter(|other| other.key == epoch.key).count();
        let epoch = epochs.iter().copied().max_by_key(|epoch| (followed(epoch), *epoch))?;
        let members = self.nodes[self.names.index(epoch.key)?].disk.content().trust.view().members().len();
        // Among those that follow may be the liar.
        (2 * (followed(&epoch) - 1) > members).then_some(epoch)
    }

    /// An open link between two that run.
    pub(crate) fn link_to_lie(&self, liar: usize, to: usize, purpose: Purpose) -> Option<LinkId> {
        let own_end = |wire: &usize| {
            let wire = self.net.wire(*wire);
            let is_open = wire.purpose == purpose && wire.ends.iter().all(|e| e.state == EndState::Open);
            wire.ends.iter().find(|end| is_open && end.node == liar).map(|end| end.link)
        };
        let run = self.nodes[liar].process.is_some() && self.nodes[to].process.is_some();
        self.net.between(liar, to).iter().find_map(own_end).filter(|_| run)
    }

    fn lie_in_messages(&self, liar: usize, lie: Lie) -> Vec<ControlMessage> {
        let own = &self.nodes[liar];
        let log = &own.disk.content().trust;
        let heads: Vec<EntryId> = log.heads().iter().copied().collect();
        let signed = |author: NodeId, after: &[EntryId], act: Act| {
            let (cluster, after) = (Some(log.cluster()), after.to_vec());
            entry(&own.key, Statement { cluster, after, author, at_unix_s: 7, act })
        };
        let told = |entries: &[Entry]| {
            let (cluster, known) = (log.cluster(), entries.iter().map(Entry::id).collect());
            let what = TrustNews::Entries(entries.iter().map(Entry::encode).collect());
            vec![ControlMessage::Trust(TrustMessage { cluster, known, what }.encode())]
        };
        let (founder, nothing) = (self.nodes[0].id, EntryId([liar as u8; 32]));
        let stranger = || Act::Admit { node: self.stranger(0), name: "stranger".to_owned() };
        match lie {
            Lie::Appointed => {
                told(&[signed(own.id, &heads, Act::Appoint { node: own.id, name: own.name.clone() })])
            }
            Lie::RemovedFounder => {
                told(&[signed(own.id, &heads, Act::Remove { node: founder, reason: "mine".to_owned() })])
            }
            Lie::AdmittedStranger => told(&[signed(own.id, &heads, stranger())]),
            Lie::ForgedHand => told(&[signed(founder, &heads, stranger())]),
            Lie::Gap => told(&[signed(own.id, &[nothing], stranger())]),
            Lie::OtherCluster => self.told_of_own_cluster(liar, log),
            Lie::Reordered => {
                let mut entries: Vec<Entry> = log.entries().cloned().collect();
                entries.reverse();
                told(&entries)
            }
            Lie::KnowsNothing => [TrustNews::Known, TrustNews::Pull, TrustNews::Entries(Vec::new())]
                .map(|what| TrustMessage { cluster: log.cluster(), known: vec![nothing], what })
                .map(|message| ControlMessage::Trust(message.encode()))
                .into(),
            Lie::Garbage => vec![ControlMessage::Trust(vec![0xff; 40])],
            Lie::Snapshot => self.snapshot_of_nothing(liar),
            Lie::BadEntry => self.bad_entry(liar),
            Lie::TakesLead | Lie::SeeksAndTakesLead => Vec::new(), // see `take_lead`
            Lie::LongLog => vec![
                ControlMessage::Log(LogMessage::Pull { index: 1 << 20, hash: [9; 32] }),
                ControlMessage::Log(LogMessage::Tail {
                    after_index: 0,
                    after_hash: [0; 32],
                    entries: vec![vec![7]],
                }),
            ],
        }
    }

    /// A founding entry of the liar's, told as the beginning of its cluster and as a part of this one.
    fn told_of_own_cluster(&self, liar: usize, log: &TrustLog) -> Vec<ControlMessage> {
        let own = &self.nodes[liar];
        let founding = Statement::founding(own.id, 7, "mine".to_owned(), own.name.clone(), [7; 16]);
        let mut other = TrustLog::new(entry(&own.key, founding)).expect("its founder signs it");
        let act = Act::Admit { node: self.stranger(0), name: "stranger".to_owned() };
        let statement = other.statement(own.id, 7, act).expect("the founder may");
        other.insert(entry(&own.key, statement)).expect("the founder may");
        let message = |cluster: EntryId| {
            let entries = other.entries().map(Entry::encode).collect();
            let known = other.known();
            ControlMessage::Trust(TrustMessage { cluster, known, what: TrustNews::Entries(entries) }.encode())
        };
        vec![message(other.cluster()), message(log.cluster())]
    }

    /// In the epoch of the coordinator that the liar follows.
    fn snapshot_of_nothing(&self, liar: usize) -> Vec<ControlMessage> {
        let leader = self.nodes[liar].process.as_ref().and_then(|process| process.machine.leader());
        let Some((epoch, _)) = leader.filter(|(_, leader)| *leader != self.nodes[liar].id) else {
            return Vec::new();
        };
        let state = State::default().encode();
        let (index, hash) = (1 << 20, [9; 32]);
        let own = self.nodes[liar].durable_head().hash;
        // Whoever was elected is told, unasked, that this goes on where its log ends.
        vec![
            ControlMessage::Log(LogMessage::TailSnapshot {
                index,
                hash,
                ancestors: vec![own],
                state: state.clone(),
            }),
            ControlMessage::Log(LogMessage::Snapshot { epoch, index, hash, ancestors: Vec::new(), state }),
        ]
    }

    /// Of a coordinator: nothing is removed, or no event, exactly at the end of its log.
    fn bad_entry(&self, liar: usize) -> Vec<ControlMessage> {
        let leader = self.nodes[liar].process.as_ref().and_then(|process| process.machine.leader());
        let Some((epoch, _)) = leader.filter(|(_, leader)| *leader == self.nodes[liar].id) else {
            return Vec::new();
        };
        let LogHead { index, hash } = self.nodes[liar].durable_head();
        let reason = RemoveReason::Unused { seconds: 1 };
        let nothing = Event::InstanceRemoved { instance: InstanceId(1 << 40), reason };
        let entries = vec![if index % 2 == 0 { nothing.encode() } else { vec![7; 9] }];
        vec![ControlMessage::Log(LogMessage::Entries {
            epoch,
            after_index: index,
            after_hash: hash,
            entries,
        })]
    }
}
