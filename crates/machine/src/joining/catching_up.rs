//! Learning what the log of trust has by now from whom no link leads to.
//!
//! A member that was away may meet only members that joined meanwhile: neither side's transport lets the
//! other connect, since its log does not name this one or the other way round. One that was removed while it
//! was away is refused by all. Of two that removed each other while they were apart, each may be alone by its
//! own log. All learn it in a join exchange. Entries prove themselves, so it does not matter who sends them.

use std::time::Duration;

use exo_trust::{Entry, EntryId};
use exo_types::{NodeId, Time};

use super::{
    ATTEMPT_SLACK, Context, EXCHANGE_MAX, JoinAnswer, JoinAsk, JoinPurpose, JoinRefusal, Joining,
    JoiningOutput, PROOF_MAX,
};
use crate::{Effect, JoinEffect};

/// A node that no link leads to is asked after this time: links need a moment to come up.
const FIRST: Duration = Duration::from_secs(3);
/// And again.
const AGAIN: Duration = Duration::from_secs(30);
/// When it had more than one answer carries.
const MORE: Duration = Duration::from_secs(1);
/// Questions under way at once.
const ASKS_MAX: usize = 4;
/// Entries in an answer: an exchange carries 4 KiB.
const ANSWER_BYTES_MAX: usize = 3 << 10;

/// When a node is asked; while it is, until when.
#[derive(Debug)]
pub(super) struct TrustPoll {
    at: Time,
    is_asked: bool,
}

/// What a member gets of the log of trust, and a former one up to its removal: who came later is no concern
/// of its.
pub(super) fn trust_for(ctx: &Context<'_>, node: NodeId, cluster: EntryId, known: &[EntryId]) -> JoinAnswer {
    let view = ctx.trust.view();
    let is_member = view.members().contains_key(&node);
    #[cfg(feature = "planted")]
    let is_member = is_member || ctx.config.planted == Some(crate::planted::Bug::TellsStrangers);
    let is_former = !is_member && view.removed().contains_key(&node);
    if cluster != ctx.trust.cluster() || !(is_member || is_former) {
        return JoinAnswer::Refused(JoinRefusal::OtherCluster);
    }
    let mut bytes = 0;
    let mut fits = |entry: &Vec<u8>| {
        bytes += entry.len();
        bytes <= ANSWER_BYTES_MAX
    };
    let encoded: Vec<Vec<u8>> = if is_former {
        let entries = ctx.trust.missing_up_to_removal(node, known);
        entries.map(Entry::encode).take_while(&mut fits).collect()
    } else {
        ctx.trust.missing(known).map(Entry::encode).take_while(&mut fits).collect()
    };
    JoinAnswer::Trust(encoded)
}

impl Joining {
    /// Members and clusters nearby that no link leads to. Who is alone asks those that it knows as removed:
    /// they may have removed it as well.
    fn out_of_reach(&self, ctx: &Context<'_>) -> Vec<NodeId> {
        let view = ctx.trust.view();
        if self.grant.is_some() || view.removed().contains_key(&ctx.me()) {
            return Vec::new();
        }
        let members = view.members().keys().copied().filter(|node| *node != ctx.me());
        let may_know = |node: &NodeId| !ctx.is_alone() || view.removed().contains_key(node);
        let strangers = self.strangers.iter().filter(|(node, s)| !s.is_fresh && may_know(node));
        members.chain(strangers.map(|(node, _)| *node)).filter(|node| !(ctx.is_linked)(*node)).collect()
    }

    pub(super) fn catch_up(&mut self, ctx: &Context<'_>, out: &mut Vec<JoiningOutput>) {
        let now = ctx.now.time;
        let wanted = self.out_of_reach(ctx);
        for asked in self.trust_polls.values_mut().filter(|asked| asked.is_asked && asked.at <= now) {
            (asked.is_asked, asked.at) = (false, now + AGAIN); // no answer came
        }
        self.trust_polls.retain(|node, asked| asked.is_asked || wanted.contains(node));
        for node in wanted {
            self.trust_polls.entry(node).or_insert(TrustPoll { at: now + FIRST, is_asked: false });
        }
        // Whoever was not asked for longest comes first, members before strangers: silent ones keep no one
        // out.
        let due = self.trust_polls.iter().filter(|(_, asked)| !asked.is_asked && asked.at <= now);
        let mut due: Vec<_> =
            due.map(|(node, asked)| (self.strangers.contains_key(node), asked.at, *node)).collect();
        due.sort();
        for (is_stranger, _, node) in due {
            let (addresses, only_near) = match self.strangers.get(&node) {
                Some(stranger) => stranger.asked_at(),
                None => ((ctx.addresses)(node), false),
            };
            let has_room = self.trust_asks() < ASKS_MAX;
            let Some(asked) = self.trust_polls.get_mut(&node) else { continue };
            if addresses.is_empty() {
                asked.at = now + AGAIN;
            } else if is_stranger && has_room && !self.dials.take(now) {
                asked.at = self.dials.ready_at(now);
            } else if has_room {
                (asked.is_asked, asked.at) = (true, now + PROOF_MAX + EXCHANGE_MAX + ATTEMPT_SLACK);
                out.push(ask(ctx, node, addresses, only_near));
            }
        }
    }

    fn trust_asks(&self) -> usize {
        self.trust_polls.values().filter(|asked| asked.is_asked).count()
    }

    /// When time alone brings a question on, or ends one.
    pub(super) fn catch_up_deadline(&self) -> Option<Time> {
        let has_room = self.trust_asks() < ASKS_MAX;
        self.trust_polls.values().filter(|asked| asked.is_asked || has_room).map(|asked| asked.at).min()
    }

    /// What a node sent was new: there may be more.
    pub fn trust_taken(&mut self, ctx: &Context<'_>, from: NodeId) {
        if let Some(asked) = self.trust_polls.get_mut(&from) {
            asked.at = ctx.now.time + MORE;
        }
    }

    /// The answer of a node that was asked for the log of trust. `false` if it was not.
    pub(super) fn trust_asked(
        &mut self,
        ctx: &Context<'_>,
        with: NodeId,
        answer: &Result<JoinAnswer, String>,
        out: &mut Vec<JoiningOutput>,
    ) -> bool {
        let is_attempt = self.attempt.as_ref().is_some_and(|attempt| attempt.is_with(with));
        if is_attempt && !matches!(answer, Ok(JoinAnswer::Trust(_))) {
            return false;
        }
        let Some(asked) = self.trust_polls.get_mut(&with).filter(|asked| asked.is_asked) else {
            return false;
        };
        (asked.is_asked, asked.at) = (false, ctx.now.time + AGAIN);
        match answer {
            Ok(JoinAnswer::Trust(entries)) if !entries.is_empty() => {
                out.push(JoiningOutput::Entries { from: with, entries: entries.clone() });
            }
            answer => {
                tracing::trace!(peer = %with, ?answer, "asked for the log of trust, and got nothing new")
            }
        }
        true
    }
}

fn ask(
    ctx: &Context<'_>,
    with: NodeId,
    addresses: Vec<std::net::SocketAddr>,
    only_near: bool,
) -> JoiningOutput {
    let what = JoinPurpose::Trust { cluster: ctx.trust.cluster(), known: ctx.trust.known() };
    let ask = JoinAsk { name: String::new(), group: ctx.config.group.clone(), port: 0, what };
    let ask = JoinEffect::Ask { with, addresses, only_near, proof_within: PROOF_MAX, code: None, ask };
    JoiningOutput::Effect(Effect::Joining(ask))
}
