//! Joining where a person was given a code. Who asks and who lets in prove to each other that they know it,
//! without telling it (the hands do that); so a code works from far away, with the window shut, and for a
//! node that has been used.

use std::collections::BTreeMap;
use std::time::Duration;

use exo_types::{NodeId, Time};

use super::asking::Attempt;
use super::{
    ADDRESSES_MAX, ATTEMPT_SLACK, ConfiguredPeer, Context, EXCHANGE_MAX, JoinAsk, JoinByCode, JoinFailure,
    JoinPurpose, JoinedByCode, Joining, JoiningOutput, NotLetIn, PROOF_NAMED_MAX,
};
use crate::{Answer, Effect, JoinEffect, ReplyId};

const JOIN_MAX: Duration = Duration::from_secs(25);
/// For somebody nearby to be seen.
const SEEN_MAX: Duration = Duration::from_secs(4);

/// A join that a person asked for.
#[derive(Debug)]
pub(super) struct ByCode {
    reply: ReplyId,
    wanted: JoinByCode,
    /// Who was asked; and when again, if it said so.
    tried: BTreeMap<NodeId, Option<Time>>,
    began: Time,
    /// Why each did not let this node in, in order.
    said: Vec<(NodeId, NotLetIn)>,
}

impl Joining {
    /// A person has this node join. Answer [`Answer::Joined`].
    pub fn by_code(
        &mut self,
        ctx: &Context<'_>,
        reply: ReplyId,
        wanted: JoinByCode,
        out: &mut Vec<JoiningOutput>,
    ) {
        let refused = if self.by_code.is_some() { Some(JoinFailure::IsJoining) } else { cannot_move(ctx) };
        if let Some(reason) = refused {
            return out.push(joined(reply, Err(reason)));
        }
        let mut addresses = wanted.addresses.clone();
        addresses.truncate(ADDRESSES_MAX);
        match wanted.with {
            Some(node) if !addresses.is_empty() => {
                self.remember(ctx, node, addresses.clone(), "", false);
                if let Some(stranger) = self.strangers.get_mut(&node) {
                    addresses.into_iter().for_each(|address| stranger.named_at(address));
                }
            }
            Some(_) => {}
            // Who is there shows in a probe.
            None => {
                for text in addresses.iter().map(ToString::to_string) {
                    if !self.peers.iter().any(|peer| peer.text == text) {
                        self.peers.push(ConfiguredPeer {
                            text,
                            node: None,
                            next: ctx.now.time,
                            failures: 0,
                            is_lasting: false,
                        });
                    }
                }
            }
        }
        let (tried, began) = (BTreeMap::new(), ctx.now.time);
        self.by_code = Some(ByCode { reply, wanted, tried, began, said: Vec::new() });
        self.advance(ctx, out);
    }

    /// Asks the next who may have given the code out, or says why no one let this node in.
    pub(super) fn ask_by_code(&mut self, ctx: &Context<'_>, out: &mut Vec<JoiningOutput>) {
        let now = ctx.now.time;
        let is_busy = self.attempt.is_some() || self.grant.is_some() || !self.admissions.is_empty();
        let Some(by_code) = &self.by_code else { return };
        let is_late = now >= by_code.began + JOIN_MAX;
        if is_busy && !is_late {
            return;
        }
        if let Some(reason) = cannot_move(ctx) {
            return self.end_by_code(Err(reason), out);
        }
        match self.next_by_code() {
            Some((node, at)) if at <= now && !is_late => self.ask_with_code(ctx, node, out),
            Some(_) if !is_late => {}
            _ if is_late || now >= by_code.seen_until() => {
                let reason = by_code.why_not(|node| self.strangers.get(&node).map(|s| s.name.clone()));
                self.end_by_code(Err(reason), out);
            }
            _ => {}
        }
    }

    /// Who is asked next, and when: first those who have a cluster.
    fn next_by_code(&self) -> Option<(NodeId, Time)> {
        let by_code = self.by_code.as_ref()?;
        let texts: Vec<String> = by_code.wanted.addresses.iter().map(ToString::to_string).collect();
        let is_at = |node: &NodeId| {
            self.peers.iter().any(|peer| peer.node == Some(*node) && texts.contains(&peer.text))
        };
        let is_meant = |node: &NodeId| match by_code.wanted.with {
            Some(with) => with == *node,
            None => texts.is_empty() || is_at(node),
        };
        let open =
            self.strangers.iter().filter(|(node, stranger)| is_meant(node) && !stranger.addresses.is_empty());
        let ranked = open.filter_map(|(node, stranger)| {
            let at = by_code.tried.get(node).copied().unwrap_or(Some(Time::ZERO))?;
            Some((at, stranger.is_fresh, *node))
        });
        ranked.min().map(|(at, _, node)| (node, at))
    }

    fn ask_with_code(&mut self, ctx: &Context<'_>, with: NodeId, out: &mut Vec<JoiningOutput>) {
        let (Some(by_code), Some(stranger)) = (&mut self.by_code, self.strangers.get(&with)) else { return };
        by_code.tried.insert(with, None);
        let until = ctx.now.time + PROOF_NAMED_MAX + EXCHANGE_MAX + ATTEMPT_SLACK;
        self.attempt = Some(Attempt::named(with, until));
        let (name, group) = (ctx.config.name.clone(), ctx.config.group.clone());
        let ask = JoinAsk { name, group, port: ctx.config.listen.port(), what: JoinPurpose::Membership };
        let (addresses, only_near) = stranger.asked_at();
        let ask = JoinEffect::Ask {
            with,
            addresses,
            only_near,
            proof_within: PROOF_NAMED_MAX,
            code: Some(by_code.wanted.code.clone()),
            ask,
        };
        out.push(JoiningOutput::Effect(Effect::Joining(ask)));
    }

    /// Whether this node was asked with the code of a join that is under way.
    pub(super) fn is_asked_with_code(&self, node: NodeId) -> bool {
        self.by_code.as_ref().is_some_and(|by_code| by_code.tried.contains_key(&node))
    }

    /// Somebody who was asked with the code did not let this node in. It is asked again then, if it said so.
    pub(super) fn not_by_code(&mut self, with: NodeId, reason: NotLetIn, again: Option<Time>) {
        if let Some(by_code) = &mut self.by_code
            && let Some(tried) = by_code.tried.get_mut(&with)
        {
            *tried = again;
            by_code.said.retain(|(node, _)| *node != with);
            by_code.said.push((with, reason));
        }
    }

    pub(super) fn end_by_code(
        &mut self,
        result: Result<JoinedByCode, JoinFailure>,
        out: &mut Vec<JoiningOutput>,
    ) {
        if let Some(by_code) = self.by_code.take() {
            let texts: Vec<String> = by_code.wanted.addresses.iter().map(ToString::to_string).collect();
            self.peers.retain(|peer| peer.is_lasting || !texts.contains(&peer.text));
            out.push(joined(by_code.reply, result));
        }
    }

    /// When time alone brings a join by code on.
    pub(super) fn by_code_deadline(&self) -> Option<Time> {
        let by_code = self.by_code.as_ref()?;
        if self.attempt.is_some() || self.grant.is_some() || !self.admissions.is_empty() {
            return Some(by_code.began + JOIN_MAX);
        }
        Some(self.next_by_code().map_or_else(|| by_code.seen_until(), |(_, at)| at))
    }
}

impl ByCode {
    fn seen_until(&self) -> Time {
        let is_named = self.wanted.with.is_none() && !self.wanted.addresses.is_empty();
        // An address is probed; that takes as long as an exchange.
        self.began + if is_named && self.tried.is_empty() { PROOF_NAMED_MAX } else { SEEN_MAX }
    }

    fn why_not(&self, name: impl Fn(NodeId) -> Option<String>) -> JoinFailure {
        let name = |node: &NodeId| name(*node).unwrap_or_else(|| node.to_string());
        let mut by_reason: Vec<(Vec<String>, NotLetIn)> = Vec::new();
        for (node, reason) in &self.said {
            match by_reason.iter_mut().find(|(_, known)| known == reason) {
                Some((names, _)) => names.push(name(node)),
                None => by_reason.push((vec![name(node)], reason.clone())),
            }
        }
        match (by_reason.is_empty(), self.wanted.addresses.first()) {
            (false, _) => JoinFailure::NotLetIn(by_reason),
            (true, Some(address)) => JoinFailure::Silence(*address),
            (true, None) => JoinFailure::NobodyNear,
        }
    }
}

/// Why this node cannot leave its cluster for another.
fn cannot_move(ctx: &Context<'_>) -> Option<JoinFailure> {
    let view = ctx.trust.view();
    let members = view.members().len();
    if view.removed().contains_key(&ctx.me()) {
        Some(JoinFailure::WasRemoved)
    } else if members > 1 {
        // Itself, and those that have neither ended nor left.
        let reached = 1 + ctx.members.iter().filter(|member| (ctx.is_linked)(**member)).count();
        Some(JoinFailure::IsMember { members, reached })
    } else {
        ctx.is_busy.then_some(JoinFailure::IsBusy)
    }
}

fn joined(reply: ReplyId, result: Result<JoinedByCode, JoinFailure>) -> JoiningOutput {
    JoiningOutput::Effect(Effect::Reply { reply, answer: Answer::Joined(result) })
}
