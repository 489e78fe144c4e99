//! Connections to the members: which are dialled, which are kept and used, what waits for one.
//!
//! Each pair of members has two links, control and data, and either side may dial. A link carries messages
//! only when both sides have said [`Outgoing::Accept`] on it, so that none is in a link that goes because
//! both dialled:
//!
//! | state | meaning |
//! |---|---|
//! | Dialling | one attempt per peer and purpose; the lower id at once, the other after 1.2 s |
//! | Offered | the link stands; the side that dialled says Accept first, as soon as it stands |
//! | Accepted | this side dialled and has said Accept; the other side's has not arrived |
//! | Contending | the other side has said Accept; this side keeps another link for as long as that one lives |
//! | Open | both have said it: messages flow |
//!
//! The side that did not dial answers an Accept with its own and opens. The lower id answers on one link only
//! and accepts no second one, so it decides which of two links stays; the higher id follows it. A side says
//! Accept on a new link only after it has lost the one before: therefore a newer one that the same side
//! dialled replaces the older.
//!
//! **Invariant:** no time, socket or randomness of its own; waits are jittered by a hash of a seed and a
//! counter.

mod addresses;
mod dialling;
mod handshake;
pub(crate) mod held;
mod incarnations;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use exo_cluster::wire::{ControlMessage, DataMessage};
use exo_types::{NodeId, Time, Transport};

use crate::{DialId, Effect, LinkEnd, LinkId, Outgoing, Purpose};
use addresses::Addresses;
pub use dialling::{ADDRESSES_APART, TRANSPORTS_APART};
use held::HeldMessages;
pub(crate) use incarnations::APART_FOR;
use incarnations::Incarnations;

/// How long the higher id waits for the lower one to dial.
const PATIENCE: Duration = Duration::from_millis(1200);
/// How long a link may stand without being open.
pub(crate) const OFFER_MAX: Duration = Duration::from_secs(3);
/// Each open link is asked for a sign of life this often; all at once, so that the processor wakes once, and
/// with whatever else wakes it.
const PING_EVERY: Duration = Duration::from_secs(1);
/// Longest time from one ping to the next.
const PING_WITHIN: Duration = Duration::from_millis(1100);
/// A ping may come so much before its time.
const EARLY: Duration = Duration::from_millis(100);
/// Control links on which messages come are asked in one of so many rounds only.
const ROUNDS_SPARED: u32 = 4;
/// No sign of life for this long and a link is dead, whatever the transport says.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(6);
/// No sign of life for this long and a link is replaced by one that the peer offers instead.
const DOUBT: Duration = Duration::from_secs(2);
/// No sign of life for this long and a control link is replaced, if the data link to the same member lives:
/// what carries it does not get through any more. Longer than from one ping to the next where no message
/// comes.
pub(crate) const OUTLIVED_MAX: Duration = Duration::from_secs(3);
/// A control link on which nothing comes for so long is missed: signs of life on the data link count then.
const QUIET: Duration = Duration::from_millis(750);
/// This machine itself was held up if its timer comes so late: that is not the peers' silence.
const HELD_UP: Duration = Duration::from_secs(1);
/// Links of one purpose that a peer may offer at a time; one more ends the oldest. It dials all addresses of
/// this node side by side, over both transports, and closes all but the first: on a long way these stand here
/// for a moment, too.
const OFFERS_MAX: usize = 2 * addresses::ADDRESSES_MAX;
/// A link that opens again within this time is no news for the planner.
pub(crate) const UNREACHED_AFTER: Duration = Duration::from_secs(2);
/// Round trips the median is taken over.
const RTT_WINDOW: usize = 9;
/// Later than any deadline.
const NEVER: Time = Time(u64::MAX);

/// What connections lead to.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum LinksOutput {
    /// To be carried out.
    Effect(Effect),
    /// Messages reach this member and come from it. What waited for the link goes out before.
    Up { node: NodeId, purpose: Purpose },
    /// An open link ended: what was in it may be lost and is not sent again.
    Down {
        node: NodeId,
        purpose: Purpose,
        /// Where its other end was.
        remote: SocketAddr,
        reason: LinkEnd,
        /// Whether it is a control link that was silent while the data link to the member lives.
        is_outlived: bool,
    },
    /// A message was never sent: its link did not open in time, or too much waits.
    Undeliverable {
        to: NodeId,
        message: Box<DataMessage>,
        /// How long it waited for its link; zero if there was no room to wait.
        waited: Duration,
    },
    /// Two processes use the key of this member: neither has a link.
    TwoProcesses { node: NodeId },
    /// A member says that another process uses this node's key.
    KeyElsewhere { by: NodeId },
}

/// The connections of one node.
#[derive(Clone, Debug)]
pub struct Links {
    me: NodeId,
    /// Of this node's process.
    incarnation: u64,
    seed: [u8; 32],
    /// Random numbers drawn so far.
    draws: u64,
    dials_made: u64,
    links_seen: u64,
    addresses: Addresses,
    /// The members to be linked with.
    peers: BTreeMap<NodeId, Peer>,
    links: BTreeMap<LinkId, Link>,
    held: HeldMessages,
    open_data: Arc<BTreeSet<NodeId>>,
    /// When all open links were last pinged; `None` while none is open.
    pinged: Option<Time>,
    ping_rounds: u32,
    deadline: Time,
    /// The same, as it was when time was last looked at: a call so much later means that this node was held
    /// up.
    due: Time,
}

#[derive(Clone, Debug)]
struct Peer {
    control: Slot,
    data: Slot,
    incarnations: Incarnations,
    /// Of the data link, the newest last.
    rtts: VecDeque<Duration>,
    /// When the last one came.
    rtt_at: Time,
}

/// The last round trips over a data link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct RoundTrips {
    pub median: Duration,
    /// Mean difference between one and the next.
    pub jitter: Duration,
    pub count: u32,
    /// Since the last one.
    pub age: Duration,
}

/// The links to one peer for one purpose.
#[derive(Clone, Debug)]
struct Slot {
    open: Option<LinkId>,
    /// Links that stand and are not open, the oldest first.
    offers: Vec<LinkId>,
    dial: Option<Dial>,
    /// Attempts that failed since the last link.
    failures: u32,
    dial_next: Time,
    /// Since when there is no link.
    since: Time,
    /// What did not get through any more while the other link did: dialled last.
    outlived: Option<Transport>,
}

/// An attempt under way.
#[derive(Clone, Copy, Debug)]
struct Dial {
    id: DialId,
    /// When it counts as failed: its answer should have come before.
    until: Time,
    /// This node was held up meanwhile: the answer may wait to be read.
    was_held_up: bool,
}

/// One connection.
#[derive(Clone, Debug)]
struct Link {
    node: NodeId,
    purpose: Purpose,
    via: Transport,
    remote: SocketAddr,
    dialled_here: bool,
    /// Which run of the peer's process said Accept on it.
    incarnation: Option<u64>,
    /// Its number in the order of arrival.
    order: u64,
    state: LinkState,
    /// When it stood.
    since: Time,
    /// The last sign of life.
    heard: Time,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LinkState {
    Offered,
    Accepted,
    Contending,
    Open,
}

impl Peer {
    fn new(now: Time) -> Self {
        let (dial_next, since) = (Time::ZERO, now);
        let slot =
            Slot { open: None, offers: vec![], dial: None, failures: 0, dial_next, since, outlived: None };
        let (control, data) = (slot.clone(), slot);
        Self { control, data, incarnations: Incarnations::default(), rtts: VecDeque::new(), rtt_at: now }
    }

    fn slot(&self, purpose: Purpose) -> &Slot {
        match purpose {
            Purpose::Control => &self.control,
            Purpose::Data => &self.data,
        }
    }

    fn slots_mut(&mut self) -> [&mut Slot; 2] {
        [&mut self.control, &mut self.data]
    }

    fn slot_mut(&mut self, purpose: Purpose) -> &mut Slot {
        match purpose {
            Purpose::Control => &mut self.control,
            Purpose::Data => &mut self.data,
        }
    }
}

impl Links {
    /// No links yet; `incarnation` tells this run of the process from others, `remembered` is where members
    /// were reached in earlier ones, `seed` makes the jitter of waits.
    pub fn new(
        me: NodeId,
        incarnation: u64,
        seed: [u8; 32],
        remembered: BTreeMap<NodeId, Vec<SocketAddr>>,
    ) -> Self {
        Self {
            me,
            incarnation,
            seed,
            draws: 0,
            dials_made: 0,
            links_seen: 0,
            addresses: Addresses::new(remembered),
            peers: BTreeMap::new(),
            links: BTreeMap::new(),
            held: HeldMessages::default(),
            open_data: Arc::default(),
            pinged: None,
            ping_rounds: 0,
            deadline: NEVER,
            due: NEVER,
        }
    }

    /// The nodes to be linked with: the members, and those who let this node in. Links to others close, and
    /// what waits for others fails; addresses of others are forgotten.
    pub fn set_members(&mut self, now: Time, wanted: &BTreeSet<NodeId>, out: &mut Vec<LinksOutput>) {
        self.begin(now);
        let gone: Vec<_> = self.peers.keys().filter(|node| !wanted.contains(node)).copied().collect();
        for node in gone {
            let links = self.links.iter().filter(|(_, link)| link.node == node);
            for id in links.map(|(id, _)| *id).collect::<Vec<_>>() {
                out.push(close_effect(id, LinkEnd::NoMember));
                self.remove(now, id, LinkEnd::NoMember, out);
            }
            for (since, message) in self.held.take(node) {
                out.push(LinksOutput::Undeliverable { to: node, message, waited: now.since(since) });
            }
            self.peers.remove(&node);
        }
        self.addresses.retain(|node| wanted.contains(&node));
        for node in wanted.iter().filter(|node| **node != self.me) {
            self.peers.entry(*node).or_insert_with(|| Peer::new(now));
        }
        self.dial_and_reschedule(now, out);
    }

    /// A link ended. One that is not known any more changes nothing.
    pub fn down(&mut self, now: Time, link: LinkId, reason: LinkEnd, out: &mut Vec<LinksOutput>) {
        self.begin(now);
        if reason == LinkEnd::TwoProcesses {
            out.extend(self.links.get(&link).map(|link| LinksOutput::KeyElsewhere { by: link.node }));
        }
        self.end(now, link, reason, out);
        self.dial_and_reschedule(now, out);
    }

    /// A pong, or a part of a long frame.
    pub fn heard(&mut self, now: Time, id: LinkId, rtt: Option<Duration>, out: &mut Vec<LinksOutput>) {
        self.begin(now);
        let Some(link) = self.links.get_mut(&id) else {
            tracing::trace!(link = id.0, "a sign of life on a link that is closed");
            return;
        };
        link.heard = now;
        let (node, purpose) = (link.node, link.purpose);
        if let (Purpose::Data, Some(rtt), Some(peer)) = (purpose, rtt, self.peers.get_mut(&node)) {
            if peer.rtts.len() == RTT_WINDOW {
                peer.rtts.pop_front();
            }
            peer.rtts.push_back(rtt);
            peer.rtt_at = now;
        }
        self.lives(now, id, out);
    }

    /// A message arrived. Whose it is, if the link is open or was accepted here.
    pub fn message(&mut self, now: Time, link: LinkId) -> Option<NodeId> {
        self.begin(now);
        let found = self.links.get_mut(&link);
        let Some(found) = found.filter(|l| matches!(l.state, LinkState::Open | LinkState::Accepted)) else {
            tracing::trace!(link = link.0, "a message on a link that is not open");
            return None;
        };
        found.heard = now;
        Some(found.node)
    }

    /// Sends to a member; `false` if the link is not open.
    pub fn send_control(
        &mut self,
        now: Time,
        to: NodeId,
        message: &Arc<ControlMessage>,
        out: &mut Vec<LinksOutput>,
    ) -> bool {
        self.begin(now);
        let Some(link) = self.open_link(to, Purpose::Control) else {
            tracing::trace!(peer = %to, "a control message has no open link");
            return false;
        };
        out.push(send(link, Outgoing::Control(message.clone())));
        true
    }

    /// Sends to a member, now or when the link opens.
    pub fn send_data(
        &mut self,
        now: Time,
        to: NodeId,
        message: Box<DataMessage>,
        out: &mut Vec<LinksOutput>,
    ) {
        self.begin(now);
        if let Some(link) = self.open_link(to, Purpose::Data) {
            out.push(send(link, Outgoing::Data(message)));
        } else if let Err(message) = self.held.push(now, to, message) {
            out.push(LinksOutput::Undeliverable { to, message, waited: Duration::ZERO });
        } else {
            self.deadline = self.deadline.min(now + held::WAIT_MAX);
        }
    }

    /// Something is due, or was before a sign of life moved it.
    pub fn timer(&mut self, now: Time, out: &mut Vec<LinksOutput>) {
        self.begin(now);
        for (to, since, message) in self.held.expire(now) {
            out.push(LinksOutput::Undeliverable { to, message, waited: now.since(since) });
        }
        self.close_overdue(now, out);
        self.give_up_dials(now);
        if self.pinged.is_some_and(|pinged| now >= pinged + PING_WITHIN) {
            self.ping(now, out);
        }
        self.dial_and_reschedule(now, out);
    }

    /// This node is awake: pings that are due soon go now.
    pub fn ping_early(&mut self, now: Time, out: &mut Vec<LinksOutput>) {
        self.begin(now);
        if self.pinged.is_some_and(|pinged| now >= pinged + PING_EVERY - EARLY) {
            self.ping(now, out);
            self.dial_and_reschedule(now, out);
        }
    }

    fn ping(&mut self, now: Time, out: &mut Vec<LinksOutput>) {
        (self.pinged, self.ping_rounds) = (None, self.ping_rounds.wrapping_add(1)); // set again if a link is open
        // What comes on a link is a sign of life, and round trips of control links are of no use.
        let is_spared = |link: &Link| {
            link.purpose == Purpose::Control
                && now.since(link.heard) < PING_EVERY
                && !self.ping_rounds.is_multiple_of(ROUNDS_SPARED)
        };
        let open = self.links.iter().filter(|(_, link)| link.state == LinkState::Open && !is_spared(link));
        out.extend(open.map(|(id, _)| send(*id, Outgoing::Ping)));
    }

    /// When to call [`Links::timer`] next, if nothing else happens before.
    pub fn next_deadline(&self) -> Time {
        self.deadline
    }

    /// Messages that wait for a link.
    pub fn waiting(&self) -> usize {
        self.held.len()
    }

    /// Whether messages reach a member over this link at once.
    pub fn is_open(&self, node: NodeId, purpose: Purpose) -> bool {
        self.open_link(node, purpose).is_some()
    }

    /// The members whose data link is open.
    pub fn open_data(&self) -> &Arc<BTreeSet<NodeId>> {
        &self.open_data
    }

    /// Members of which nothing comes on a control link for a moment, but on the data link: when each gave
    /// its last sign of life there.
    pub fn heard_on_data_alone(&self, now: Time) -> Vec<(NodeId, Time)> {
        let alone = |node: &NodeId| {
            let heard = |purpose| Some(self.links.get(&self.open_link(*node, purpose)?)?.heard);
            let data = heard(Purpose::Data)?;
            let is_alone = heard(Purpose::Control).is_none_or(|at| now.since(at) >= QUIET && data > at);
            is_alone.then_some((*node, data))
        };
        self.open_data.iter().filter_map(alone).collect()
    }

    /// Where a node may be reached, best first.
    pub fn addresses(&self, node: NodeId) -> &[SocketAddr] {
        self.addresses.of(node)
    }

    /// Members to whom there has been no data link for a moment.
    pub fn unreached(&self, now: Time) -> Vec<NodeId> {
        let is_missing = |slot: &Slot| slot.open.is_none() && now.since(slot.since) >= UNREACHED_AFTER;
        self.peers.iter().filter(|(_, peer)| is_missing(&peer.data)).map(|(node, _)| *node).collect()
    }

    /// For how long there has been no data link to a member; nothing while it is open, or no one is to dial.
    pub fn unreached_for(&self, now: Time, node: NodeId) -> Option<Duration> {
        let slot = &self.peers.get(&node)?.data;
        slot.open.is_none().then(|| now.since(slot.since))
    }

    /// The last round trips over the data link, while it is open.
    pub fn round_trips(&self, now: Time, node: NodeId) -> Option<RoundTrips> {
        self.open_link(node, Purpose::Data)?;
        let peer = self.peers.get(&node)?;
        let mut sorted: Vec<_> = peer.rtts.iter().copied().collect();
        sorted.sort_unstable();
        let median = *sorted.get(sorted.len() / 2)?;
        let steps = peer.rtts.iter().zip(peer.rtts.iter().skip(1)).map(|(a, b)| a.abs_diff(*b));
        let jitter = steps.sum::<Duration>() / (peer.rtts.len().saturating_sub(1).max(1) as u32);
        Some(RoundTrips { median, jitter, count: peer.rtts.len() as u32, age: now.since(peer.rtt_at) })
    }

    /// What carries the tokens.
    pub fn via(&self, node: NodeId) -> Option<Transport> {
        let link = self.open_link(node, Purpose::Data)?;
        self.links.get(&link).map(|link| link.via)
    }

    /// Where the members with an open control link are, for members that have not met them.
    pub fn reached(&self) -> Vec<(NodeId, SocketAddr)> {
        let linked = self.peers.iter().filter_map(|(node, peer)| Some((*node, peer.control.open?)));
        linked.filter_map(|(node, link)| Some((node, self.listens_at(node, link)?))).collect()
    }

    /// Where a member with this link has proven its key, or an address that others told of the host that the
    /// link comes from. Nothing else of what others told is told on.
    fn listens_at(&self, node: NodeId, link: LinkId) -> Option<SocketAddr> {
        let from = self.links.get(&link)?.remote.ip();
        let mut told = self.addresses(node).iter().copied().filter(|address| address.ip() == from);
        self.addresses.proven(node).next().or_else(|| told.next())
    }

    /// Where members have proven their keys, for the next run: what others said of them may be told again.
    pub fn known(&self) -> Vec<(NodeId, Vec<SocketAddr>)> {
        let known = self.peers.keys().map(|node| (*node, self.addresses.proven(*node).collect::<Vec<_>>()));
        known.filter(|(_, addresses)| !addresses.is_empty()).collect()
    }

    /// A machine that was held up itself has not heard its peers because it did not listen. Nor has it read
    /// how its dials ended, or which link came up for what waits.
    fn begin(&mut self, now: Time) {
        let late = now.since(self.due);
        if late <= HELD_UP {
            return;
        }
        tracing::debug!(late_ms = late.as_millis() as u64, "this node was held up");
        for link in self.links.values_mut() {
            (link.since, link.heard) = (link.since + late, link.heard + late);
        }
        for peer in self.peers.values_mut() {
            peer.incarnations.held_up(late);
            peer.slots_mut().into_iter().for_each(|slot| slot.held_up(now, late));
        }
        self.held.held_up(now, late);
        (self.deadline, self.due) = (now, now);
    }

    /// Dials what is due and sees when something is due next.
    fn dial_and_reschedule(&mut self, now: Time, out: &mut Vec<LinksOutput>) {
        self.dial_due(now, out);
        if self.pinged.is_none() && self.links.values().any(|link| link.state == LinkState::Open) {
            self.pinged = Some(now);
        }
        let links = self.links.values().map(|link| self.overdue_at(link));
        let pings = self.pinged.map(|pinged| pinged + PING_WITHIN);
        let dials = self.dials_at().chain(self.dials_until());
        let all = links.chain(pings).chain(self.held.deadline()).chain(dials);
        self.deadline = all.min().unwrap_or(NEVER);
        self.due = self.deadline.max(now); // what is overdue is so since now
    }

    fn open_link(&self, node: NodeId, purpose: Purpose) -> Option<LinkId> {
        self.peers.get(&node)?.slot(purpose).open
    }
}

fn send(link: LinkId, message: Outgoing) -> LinksOutput {
    LinksOutput::Effect(Effect::Send { link, message })
}

fn close_effect(link: LinkId, reason: LinkEnd) -> LinksOutput {
    LinksOutput::Effect(Effect::CloseLink { link, reason })
}
