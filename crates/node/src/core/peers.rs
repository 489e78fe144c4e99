//! Members as network peers: addresses, links, dialling with backoff.
//!
//! Each pair keeps two links, control and data. The node with the lower id dials; the other one only when nothing
//! came for a while, so that a firewall on one side does not keep a pair apart. If both dialled, both accept only the one
//! that the lower id dialled, and a link carries messages only when both have accepted it ([`crate::links`]). A data message
//! for a peer without such a link waits a little ([`exo_cluster::Outbox`]).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use exo_cluster::wire::{ControlMessage, DataMessage};
use exo_transport::{Channel, Via};
use exo_types::{NodeId, Time};

use super::{Core, CoreEvent, Local};
use crate::links::{Link, PING_EVERY, Purpose};

/// How long a dial may take.
const DIAL_MAX: Duration = Duration::from_secs(3);
/// How long the higher id waits for the lower one to dial.
const PATIENCE: Duration = Duration::from_millis(1200);
/// Between a channel and the peer's word that it keeps it.
const ACCEPT_MAX: Duration = Duration::from_secs(3);
/// Waits between attempts, doubling.
const BACKOFF_MIN: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// Addresses kept per peer; the oldest unproven one goes first.
const ADDRESSES_MAX: usize = 8;
/// Round trips the median is taken over.
const RTT_WINDOW: usize = 9;

/// A member as seen from here.
#[derive(Default)]
pub(super) struct Peer {
    /// Where it may be, best first.
    pub(super) addresses: Vec<SocketAddr>,
    links: BTreeMap<Purpose, Link>,
    dials: BTreeMap<Purpose, Dial>,
    known_since: Option<Time>,
    rtts: Vec<Duration>,
    pinged: Time,
}

#[derive(Default)]
struct Dial {
    under_way: bool,
    failures: u32,
    next: Time,
}

impl Dial {
    /// It came to nothing: the next one waits longer.
    fn fail(&mut self, now: Time) {
        self.failures += 1;
        let wait = BACKOFF_MIN * 2u32.saturating_pow(self.failures.min(10) - 1);
        self.next = now + wait.min(BACKOFF_MAX);
    }
}

impl Peer {
    /// Adds addresses behind those already known.
    pub(super) fn remember(&mut self, addresses: impl IntoIterator<Item = SocketAddr>) {
        for address in addresses {
            if !self.addresses.contains(&address) && self.addresses.len() < ADDRESSES_MAX {
                self.addresses.push(address);
            }
        }
    }

    /// Puts an address that works in front.
    pub(super) fn prefer(&mut self, address: SocketAddr) {
        self.addresses.retain(|a| *a != address);
        self.addresses.insert(0, address);
        self.addresses.truncate(ADDRESSES_MAX);
    }

    /// Median of the last round trips.
    pub(super) fn rtt(&self) -> Option<Duration> {
        let mut sorted = self.rtts.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied()
    }

    /// What carries the tokens.
    pub(super) fn data_via(&self) -> Option<Via> {
        self.open_link(Purpose::Data).map(|l| l.via)
    }

    /// Whether messages reach it.
    pub(super) fn is_linked(&self) -> bool {
        self.open_link(Purpose::Control).is_some()
    }

    fn open_link(&self, purpose: Purpose) -> Option<&Link> {
        self.links.get(&purpose).filter(|link| link.is_open())
    }

    fn is_dialling(&self, purpose: Purpose) -> bool {
        self.dials.get(&purpose).is_some_and(|dial| dial.under_way)
    }

    /// Lets the next dial happen at once.
    pub(super) fn hurry(&mut self) {
        for dial in self.dials.values_mut() {
            (dial.failures, dial.next) = (0, Time::ZERO);
        }
    }
}

impl Core {
    pub(super) fn peer(&mut self, node: NodeId) -> &mut Peer {
        let now = self.now();
        let peer = self.peers.entry(node).or_default();
        peer.known_since.get_or_insert(now);
        peer
    }

    /// Sends to a member or to this node. `false` if there is no link: the machines' deadlines cover the loss.
    pub(super) fn send_control(&mut self, to: NodeId, message: ControlMessage) -> bool {
        if to == self.me {
            self.queue.push_back(Local::Control(message));
            return true;
        }
        self.send_bytes(to, Purpose::Control, || message.encode())
    }

    /// Like [`Core::send_control`] for the other link. Without an open link the message waits for it a little.
    pub(super) fn send_data(&mut self, to: NodeId, message: DataMessage) {
        if to == self.me {
            return self.queue.push_back(Local::Data(message));
        }
        if self.data_links.contains(&to) {
            // Refused, the link is cut, and with it goes everything that was in it.
            self.send_bytes(to, Purpose::Data, || message.encode());
        } else if let Err(undeliverable) = self.outbox.push(self.now(), to, &message) {
            self.undeliverable(undeliverable);
        }
    }

    /// The data link to `to` is open: what waited for it goes first.
    fn send_waiting(&mut self, to: NodeId) {
        for bytes in self.outbox.take(to) {
            if !self.send_bytes(to, Purpose::Data, || bytes) {
                return;
            }
        }
    }

    /// Follows which data links are open.
    pub(super) fn data_links_changed(&mut self) {
        let linked = self.peers.iter().filter(|(_, peer)| peer.data_via().is_some());
        let linked: BTreeSet<NodeId> = linked.map(|(node, _)| *node).collect();
        if *self.data_links != linked {
            self.data_links = Arc::new(linked);
            self.links_told();
        }
    }

    fn send_bytes(&mut self, to: NodeId, purpose: Purpose, bytes: impl FnOnce() -> Vec<u8>) -> bool {
        let Some(link) = self.peers.get(&to).and_then(|p| p.open_link(purpose)) else { return false };
        let (id, sent) = (link.id, link.send(bytes()));
        if !sent {
            self.link_closed(to, purpose, id, "the peer takes no more messages");
        }
        sent
    }

    /// A member opened a channel to us.
    pub(super) fn incoming(&mut self, channel: Channel) {
        match Purpose::from_byte(channel.purpose) {
            Some(Purpose::Bulk) => {
                tokio::spawn(crate::bulk::serve(channel, self.p.library.store().clone()));
            }
            Some(purpose) => self.add_link(channel, purpose),
            None => {
                tracing::warn!(peer = %channel.peer, purpose = channel.purpose, "a channel of unknown purpose")
            }
        }
    }

    /// Keeps a new channel, or drops it: of two that were dialled at once only the lower id's stays.
    fn add_link(&mut self, channel: Channel, purpose: Purpose) {
        let (node, me, now) = (channel.peer, self.me, self.now());
        let opened_by_lower = (channel.initiator && me < node) || (!channel.initiator && node < me);
        let old = self.peers.get(&node).and_then(|p| p.links.get(&purpose)).map(|l| (l.id, l.initiator));
        match old {
            // One side has one dial of a purpose under way: opening it again, it has lost the first.
            Some((id, initiator)) if initiator == channel.initiator => {
                self.link_closed(node, purpose, id, "the peer opened it anew");
            }
            Some(_) if !opened_by_lower => return, // both dialled; the other one stays
            Some((id, _)) => self.link_closed(node, purpose, id, "both dialled; the lower id's link stays"),
            None => {}
        }
        let peer = self.peer(node);
        if channel.initiator {
            peer.prefer(channel.remote);
        }
        self.links_opened += 1;
        let mut link = Link::start(self.links_opened, now, channel, purpose, self.p.sender.clone());
        tracing::debug!(peer = %node, ?purpose, via = %link.via, "a channel is there");
        let peer = self.peer(node);
        // Our own dial, which would stay, may still succeed: this one waits for how it ends.
        if opened_by_lower || !peer.is_dialling(purpose) {
            link.accept();
        }
        peer.links.insert(purpose, link);
    }

    /// The peer keeps a link. With our own word it is open.
    pub(super) fn link_accepted(&mut self, node: NodeId, purpose: Purpose, id: u64) {
        let Some(link) = self.peers.get_mut(&node).and_then(|p| p.links.get_mut(&purpose)) else { return };
        if link.id != id {
            return tracing::trace!(peer = %node, ?purpose, got = id, own = link.id, "a link that is gone is accepted");
        }
        link.accepted();
        self.link_may_be_open(node, purpose);
    }

    /// Both sides may have accepted the link just now.
    fn link_may_be_open(&mut self, node: NodeId, purpose: Purpose) {
        let peer = self.peer(node);
        let Some(via) = peer.open_link(purpose).map(|link| link.via) else { return };
        peer.dials.entry(purpose).or_default().failures = 0;
        tracing::debug!(peer = %node, ?purpose, %via, "link open");
        if purpose == Purpose::Data {
            self.send_waiting(node); // in front of what is sent because the link is open
            self.data_links_changed();
        }
        if self.peer(node).is_linked() {
            self.control_up(node);
        }
    }

    /// Our dial ended.
    pub(super) fn dialled(&mut self, node: NodeId, purpose: Purpose, outcome: Result<Channel, String>) {
        let now = self.now();
        let dial = self.peer(node).dials.entry(purpose).or_default();
        dial.under_way = false;
        match outcome {
            Ok(channel) => self.add_link(channel, purpose),
            Err(reason) => {
                dial.fail(now);
                tracing::debug!(peer = %node, ?purpose, reason, "dial failed");
                // The peer's own channel waited for this.
                if let Some(link) = self.peer(node).links.get_mut(&purpose) {
                    link.accept();
                    self.link_may_be_open(node, purpose);
                }
            }
        }
    }

    /// A link ended. An earlier link than the present one changes nothing.
    pub(super) fn link_closed(&mut self, node: NodeId, purpose: Purpose, id: u64, reason: &str) {
        let now = self.now();
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let own = peer.links.get(&purpose).map(|link| link.id);
        let Some(link) = peer.links.get(&purpose).filter(|link| link.id == id) else {
            return tracing::trace!(peer = %node, ?purpose, got = id, ?own, reason, "an earlier link ended");
        };
        let was_open = link.is_open();
        tracing::debug!(peer = %node, ?purpose, was_open, reason, "link closed");
        peer.links.remove(&purpose);
        let dial = peer.dials.entry(purpose).or_default();
        if !was_open {
            // Nothing was in it, and nobody was told of it.
            return dial.fail(now);
        }
        dial.next = now + BACKOFF_MIN;
        peer.known_since = Some(now);
        match purpose {
            Purpose::Control => self.control_down(node),
            Purpose::Data => {
                // What was in the link is lost: steps and tokens do not come again.
                self.data_links_changed();
                self.unreachable(node);
                self.control_down(node);
            }
            Purpose::Bulk => {}
        }
    }

    /// Dials what is missing, pings what is there.
    pub(super) fn tick_peers(&mut self) {
        let (now, me) = (self.now(), self.me);
        let joining = self.joining_members();
        let members: BTreeSet<_> = self
            .p
            .coordinator
            .state()
            .members()
            .keys()
            .copied()
            .chain(joining)
            .filter(|n| *n != me)
            .collect();
        for node in members {
            self.ping(node, now);
            self.drop_unaccepted(node, now);
            for purpose in [Purpose::Control, Purpose::Data] {
                if self.should_dial(node, purpose, now) {
                    self.dial(node, purpose);
                }
            }
        }
    }

    fn ping(&mut self, node: NodeId, now: Time) {
        let peer = self.peer(node);
        if now.since(peer.pinged) >= PING_EVERY {
            peer.pinged = now;
            peer.links.values().for_each(Link::ping);
        }
    }

    /// A peer that says nothing on a new channel is too old for this protocol, or has dropped it.
    fn drop_unaccepted(&mut self, node: NodeId, now: Time) {
        let is_late = |link: &Link| !link.is_open() && now.since(link.since) >= ACCEPT_MAX;
        let links = self.peer(node).links.iter().filter(|(_, link)| is_late(link));
        let late: Vec<_> = links.map(|(purpose, link)| (*purpose, link.id)).collect();
        for (purpose, id) in late {
            self.link_closed(node, purpose, id, "the peer did not accept it within 3 s");
        }
    }

    fn should_dial(&mut self, node: NodeId, purpose: Purpose, now: Time) -> bool {
        let first = self.me < node;
        let peer = self.peer(node);
        if peer.links.contains_key(&purpose) || peer.addresses.is_empty() {
            return false;
        }
        let waited = now.since(peer.known_since.unwrap_or(now));
        let dial = peer.dials.entry(purpose).or_default();
        !dial.under_way && now >= dial.next && (first || waited >= PATIENCE)
    }

    fn dial(&mut self, node: NodeId, purpose: Purpose) {
        let peer = self.peer(node);
        let addresses = peer.addresses.clone();
        peer.dials.entry(purpose).or_default().under_way = true;
        let (endpoint, core) = (self.p.endpoint.clone(), self.p.sender.clone());
        let order = if purpose == Purpose::Control { [Via::Quic, Via::Tcp] } else { [Via::Tcp, Via::Quic] };
        tokio::spawn(async move {
            let mut outcome = Err("no address".to_owned());
            'all: for via in order {
                for address in &addresses {
                    match endpoint.dial(node, *address, via, purpose.byte(), DIAL_MAX).await {
                        Ok(channel) => {
                            outcome = Ok(channel);
                            break 'all;
                        }
                        Err(error) => outcome = Err(crate::engine_host::chain(&error)),
                    }
                }
            }
            core.post(CoreEvent::Dialled { peer: node, purpose, outcome });
        });
    }

    /// A ping came back.
    pub(super) fn round_trip(&mut self, node: NodeId, purpose: Purpose, rtt: Duration) {
        if purpose != Purpose::Data {
            return;
        }
        let peer = self.peer(node);
        if peer.rtts.len() == RTT_WINDOW {
            peer.rtts.remove(0);
        }
        peer.rtts.push(rtt);
    }

    /// A message from a member: decoded with every bound checked, or the link is cut.
    pub(super) fn frame(&mut self, node: NodeId, purpose: Purpose, bytes: &[u8]) {
        if !self.p.members.contains(node) {
            let members = self.p.members.len();
            return tracing::trace!(peer = %node, ?purpose, members, "a message of one who was removed meanwhile");
        }
        let error = match purpose {
            Purpose::Control => match ControlMessage::decode(bytes) {
                Ok(message) => return self.control(node, message),
                Err(error) => error,
            },
            _ => match DataMessage::decode(bytes) {
                Ok(message) => return self.data(node, message),
                Err(error) => error,
            },
        };
        tracing::warn!(peer = %node, ?purpose, %error, "a message that is none; cutting the link");
        if let Some(id) = self.peers.get(&node).and_then(|p| p.links.get(&purpose)).map(|l| l.id) {
            self.link_closed(node, purpose, id, "the peer broke the protocol");
        }
    }

    /// Where linked members are, for members that have not met them.
    pub(super) fn reached(&self) -> Vec<(NodeId, SocketAddr)> {
        let linked = self.peers.iter().filter(|(_, p)| p.is_linked());
        linked.filter_map(|(node, peer)| Some((*node, *peer.addresses.first()?))).collect()
    }

    /// What a member says of others' addresses. Its loopback is ours only if we reach it over loopback.
    pub(super) fn learn_addresses(&mut self, from: NodeId, reached: &[(NodeId, SocketAddr)]) {
        if from == self.me {
            return;
        }
        let near =
            self.peers.get(&from).and_then(|p| p.addresses.first()).is_some_and(|a| a.ip().is_loopback());
        for (node, address) in reached {
            let useful = near || !address.ip().is_loopback();
            if *node != self.me && useful && self.p.members.contains(*node) {
                self.peer(*node).remember([*address]);
            }
        }
    }

    /// Remembers where members were reached, for the next start.
    pub(super) fn keep_addresses(&self) {
        let known: BTreeMap<NodeId, Vec<SocketAddr>> = self
            .peers
            .iter()
            .filter(|(node, peer)| self.p.members.contains(**node) && !peer.addresses.is_empty())
            .map(|(node, peer)| (*node, peer.addresses.clone()))
            .collect();
        if let Err(error) = tokio::task::block_in_place(|| self.p.data.set_peers(&known)) {
            tracing::warn!(%error, "addresses are not remembered");
        }
    }
}
