//! Which of the links that stand is kept: who says Accept when, and what an Accept does to the other links.

use std::net::SocketAddr;
use std::sync::Arc;

use exo_types::{NodeId, Time, Transport};

use super::{
    DOUBT, Link, LinkState, Links, LinksOutput, OFFER_MAX, OFFERS_MAX, OUTLIVED_MAX, SILENCE_MAX,
    close_effect, send,
};
use crate::{DialId, LinkEnd, LinkId, Outgoing, Purpose};

impl Links {
    /// A link stands; `dial` is our attempt, if it was one.
    pub fn up(
        &mut self,
        now: Time,
        id: LinkId,
        node: NodeId,
        purpose: Purpose,
        via: Transport,
        remote: SocketAddr,
        dial: Option<DialId>,
        out: &mut Vec<LinksOutput>,
    ) {
        self.begin(now);
        let Some(slot) = self.peers.get_mut(&node).map(|peer| peer.slot_mut(purpose)) else {
            tracing::trace!(peer = %node, ?purpose, "a link to a node that is no member");
            out.push(close_effect(id, LinkEnd::NoMember));
            return;
        };
        let is_awaited = dial.is_some() && slot.dial.map(|d| d.id) == dial;
        if is_awaited {
            slot.dial = None;
        }
        if dial.is_some() && (!is_awaited || slot.open.is_some()) {
            tracing::trace!(peer = %node, ?purpose, is_awaited, "a dialled link comes too late");
            out.push(close_effect(id, LinkEnd::Replaced));
        } else {
            slot.offers.push(id);
            self.links_seen += 1;
            let (dialled_here, order) = (dial.is_some(), self.links_seen);
            let state = if dialled_here { LinkState::Accepted } else { LinkState::Offered };
            let link = Link {
                node,
                purpose,
                via,
                remote,
                dialled_here,
                incarnation: None,
                order,
                state,
                since: now,
                heard: now,
            };
            self.links.insert(id, link);
            if dialled_here {
                self.prefer(node, remote);
                out.push(send(id, Outgoing::Accept { incarnation: self.incarnation }));
            } else if via == Transport::Quic {
                // The socket that listens dials over QUIC, also where a member is elsewhere than it was.
                let from = SocketAddr::new(remote.ip().to_canonical(), remote.port());
                self.addresses.learn(node, &[from]);
            }
            self.bound_offers(now, node, purpose, out);
        }
        self.dial_and_reschedule(now, out);
    }

    /// The Accept of this run of the peer's process has arrived.
    pub fn accepted(&mut self, now: Time, id: LinkId, incarnation: u64, out: &mut Vec<LinksOutput>) {
        self.begin(now);
        let Some(link) = self.links.get_mut(&id) else {
            tracing::trace!(link = id.0, "an Accept on a link that is closed");
            return;
        };
        link.heard = now;
        let state = link.state;
        match state {
            _ if !self.may_use(now, id, incarnation, out) => {}
            LinkState::Accepted => self.open(now, id, out),
            LinkState::Offered => self.answer(now, id, out),
            state => tracing::trace!(link = id.0, ?state, "a second Accept"),
        }
        self.dial_and_reschedule(now, out);
    }

    /// The peer, which dialled, keeps this link: so does this side, unless it decides between links and has
    /// another.
    fn answer(&mut self, now: Time, id: LinkId, out: &mut Vec<LinksOutput>) {
        let Some(link) = self.links.get(&id) else { return };
        let (node, purpose, order) = (link.node, link.purpose, link.order);
        let decides = self.me < node;
        let others = self.links.values().filter(|l| (l.node, l.purpose) == (node, purpose));
        let open = others.clone().find(|l| l.state == LinkState::Open);
        let is_accepting = others.clone().any(|l| l.state == LinkState::Accepted);
        match open {
            Some(open) if !open.dialled_here && open.order > order => {
                tracing::trace!(peer = %node, ?purpose, "an Accept from before the open link");
                self.close(now, id, LinkEnd::Replaced, out);
            }
            Some(open) if open.dialled_here && decides => self.contend(id),
            None if is_accepting && decides => self.contend(id),
            _ => self.take(now, id, out),
        }
    }

    fn contend(&mut self, id: LinkId) {
        if let Some(link) = self.links.get_mut(&id) {
            tracing::trace!(peer = %link.node, purpose = ?link.purpose, "both dialled; another link is kept");
            link.state = LinkState::Contending;
        }
    }

    /// Says Accept to a peer that has said it.
    fn take(&mut self, now: Time, id: LinkId, out: &mut Vec<LinksOutput>) {
        self.close_others(now, id, out);
        out.push(send(id, Outgoing::Accept { incarnation: self.incarnation }));
        self.open(now, id, out);
    }

    /// Both have said Accept.
    fn open(&mut self, now: Time, id: LinkId, out: &mut Vec<LinksOutput>) {
        self.close_others(now, id, out);
        let Some(link) = self.links.get_mut(&id) else { return };
        link.state = LinkState::Open;
        let (node, purpose) = (link.node, link.purpose);
        tracing::debug!(peer = %node, ?purpose, via = %link.via, dialled_here = link.dialled_here, "link open");
        if let Some(slot) = self.peers.get_mut(&node).map(|peer| peer.slot_mut(purpose)) {
            slot.offers.retain(|offer| *offer != id);
            (slot.open, slot.outlived) = (Some(id), None);
        }
        out.push(send(id, Outgoing::Ping));
        if purpose == Purpose::Data {
            Arc::make_mut(&mut self.open_data).insert(node);
            out.extend(self.held.take(node).map(|(_, message)| send(id, Outgoing::Data(message))));
        }
        out.push(LinksOutput::Up { node, purpose });
    }

    /// Ends the other links of the same purpose on which either side has said Accept. One without may be a
    /// newer one.
    fn close_others(&mut self, now: Time, id: LinkId, out: &mut Vec<LinksOutput>) {
        let Some(kept) = self.links.get(&id) else { return };
        let (node, purpose) = (kept.node, kept.purpose);
        let others = self.links.iter().filter(|(other, link)| {
            **other != id && (link.node, link.purpose) == (node, purpose) && link.state != LinkState::Offered
        });
        for other in others.map(|(other, _)| *other).collect::<Vec<_>>() {
            out.push(close_effect(other, LinkEnd::Replaced));
            self.remove(now, other, LinkEnd::Replaced, out);
        }
    }

    /// A peer that offers ever more links without a word has lost the older ones.
    fn bound_offers(&mut self, now: Time, node: NodeId, purpose: Purpose, out: &mut Vec<LinksOutput>) {
        let Some(peer) = self.peers.get(&node) else { return };
        let is_offered = |id: &&LinkId| self.links.get(id).is_some_and(|l| l.state == LinkState::Offered);
        let offered: Vec<_> = peer.slot(purpose).offers.iter().filter(is_offered).copied().collect();
        if offered.len() > OFFERS_MAX {
            tracing::trace!(peer = %node, ?purpose, offers = offered.len(), "too many offers");
            self.close(now, offered[0], LinkEnd::Replaced, out);
        }
    }

    /// Closes what has been silent, or was not accepted, for too long.
    pub(super) fn close_overdue(&mut self, now: Time, out: &mut Vec<LinksOutput>) {
        let overdue: Vec<_> =
            self.links.iter().filter(|(_, link)| now >= self.overdue_at(link)).map(|(id, _)| *id).collect();
        for id in overdue {
            let Some(link) = self.links.get(&id) else { continue };
            let reason = match link.state {
                LinkState::Open => LinkEnd::Silent,
                _ => LinkEnd::NotAccepted,
            };
            let (node, purpose, via) = (link.node, link.purpose, link.via);
            // Another link that is offered replaces it sooner: then its transport may get through.
            if now >= link.heard + OUTLIVED_MAX
                && self.is_outlived(link)
                && let Some(peer) = self.peers.get_mut(&node)
            {
                tracing::debug!(peer = %node, ?purpose, %via, "silent while the other link lives");
                peer.slot_mut(purpose).outlived = Some(via);
            }
            self.close(now, id, reason, out);
        }
    }

    /// When a link has to be open, or is silent for too long: sooner if the peer offers another instead.
    pub(super) fn overdue_at(&self, link: &Link) -> Time {
        if link.state != LinkState::Open {
            return link.since + OFFER_MAX;
        }
        let slot = self.peers.get(&link.node).map(|peer| peer.slot(link.purpose));
        let is_contended = slot.is_some_and(|slot| slot.offers.iter().any(|id| self.is_contending(id)));
        let max = match () {
            () if is_contended => DOUBT,
            () if self.is_outlived(link) => OUTLIVED_MAX,
            () => SILENCE_MAX,
        };
        link.heard + max
    }

    /// Whether a control link is silent and the data link to the same member is not.
    fn is_outlived(&self, link: &Link) -> bool {
        let data = self.open_link(link.node, Purpose::Data).and_then(|id| self.links.get(&id));
        link.purpose == Purpose::Control
            && link.state == LinkState::Open
            && data.is_some_and(|data| data.heard >= link.heard + DOUBT)
    }

    fn is_contending(&self, id: &LinkId) -> bool {
        self.links.get(id).is_some_and(|link| link.state == LinkState::Contending)
    }

    /// Closes a link from here.
    pub(super) fn close(&mut self, now: Time, id: LinkId, reason: LinkEnd, out: &mut Vec<LinksOutput>) {
        out.push(close_effect(id, reason.clone()));
        self.end(now, id, reason, out);
    }

    /// A link is gone: the one that contends with it takes its turn.
    pub(super) fn end(&mut self, now: Time, id: LinkId, reason: LinkEnd, out: &mut Vec<LinksOutput>) {
        let Some(link) = self.remove(now, id, reason, out) else {
            tracing::trace!(link = id.0, "a link ended that was closed already");
            return;
        };
        // Who lives shows it on the data link before the end of the control link counts for a loss.
        if link.purpose == Purpose::Control
            && link.state == LinkState::Open
            && let Some(data) = self.open_link(link.node, Purpose::Data)
        {
            out.push(send(data, Outgoing::Ping));
        }
        let Some(slot) = self.peers.get(&link.node).map(|peer| peer.slot(link.purpose)) else { return };
        let is_kept = |id: &LinkId| self.links.get(id).is_some_and(|l| l.state == LinkState::Accepted);
        if slot.open.is_none() && !slot.offers.iter().any(is_kept) {
            let next = slot.offers.iter().rev().find(|id| self.is_contending(id)).copied();
            if let Some(next) = next {
                self.take(now, next, out);
            }
        }
    }

    pub(super) fn remove(
        &mut self,
        now: Time,
        id: LinkId,
        reason: LinkEnd,
        out: &mut Vec<LinksOutput>,
    ) -> Option<Link> {
        let is_outlived =
            reason == LinkEnd::Silent && self.links.get(&id).is_some_and(|link| self.is_outlived(link));
        let link = self.links.remove(&id)?;
        let (node, purpose, state) = (link.node, link.purpose, link.state);
        tracing::debug!(peer = %node, ?purpose, ?state, %reason, "link closed");
        let chance = self.chance();
        if let Some(slot) = self.peers.get_mut(&node).map(|peer| peer.slot_mut(purpose)) {
            slot.offers.retain(|offer| *offer != id);
            if state == LinkState::Open {
                slot.open = None;
                slot.lost(now, chance);
            } else if link.dialled_here {
                slot.dial_failed(now, chance);
            }
        }
        if state == LinkState::Open {
            if purpose == Purpose::Data {
                Arc::make_mut(&mut self.open_data).remove(&node);
            }
            out.push(LinksOutput::Down { node, purpose, remote: link.remote, reason, is_outlived });
        }
        Some(link)
    }
}
