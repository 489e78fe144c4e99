//! Joining another's cluster: whom to ask, what to make of the answer, moving in.

use std::net::SocketAddr;
use std::time::Duration;

use exo_trust::{Entry, EntryId, TrustLog};
use exo_types::{NodeId, Time};

use super::{
    ADDRESSES_MAX, Context, EXCHANGE_MAX, JoinAnswer, JoinAsk, JoinPurpose, JoinedByCode, Joining,
    JoiningOutput, LOOK_AROUND, MoveIn, NotLetIn, PROOF_MAX, PROOF_NAMED_MAX, Stranger, Welcome, known_name,
    names_of_host, notice,
};
use crate::{Effect, JoinEffect, Notice, TrustMessage, TrustNews};

/// For a fresh node with a higher key to ask, after which this one asks it: it may not be able to. A machine
/// with a public address asks no one that no person named, and what one machine hears of another the other
/// may not hear of it.
const HIGHER_ASKS_WITHIN: Duration = Duration::from_secs(6);
/// A fresh node founds no cluster with another before it has heard of no further one for so long. What one
/// says reaches all within 1.2 s: who has just said something by multicast says it again after a second
/// (RFC 6762). So whoever is unknown by then decides later, when it has heard of the cluster. Two that were
/// founded side by side would stay two.
const NO_OTHER_FOR: Duration = Duration::from_millis(2500);
/// However many there are.
const LOOK_MAX: Duration = Duration::from_secs(5);
/// Between two attempts to join the same node.
const RETRY: Duration = Duration::from_secs(2);
/// After a refusal, and after silence of a node that no person named.
const RETRY_REFUSED: Duration = Duration::from_secs(15);
/// After [`JoinAnswer::Later`].
const RETRY_LATER: Duration = Duration::from_millis(300);
/// Who says so for longer counts as one that refuses: others are not kept apart by it. More than
/// [`EXCHANGE_MAX`], in which who was asked may wait for another, and than an election takes.
const LATER_MAX: Duration = Duration::from_secs(6);
/// A grant that leads to no log within this time is dropped.
const GRANT_MAX: Duration = Duration::from_secs(15);
/// For an attempt to be answered, besides the time of its exchanges.
pub(super) const ATTEMPT_SLACK: Duration = Duration::from_secs(1);

/// After so many attempts at strangers that did not answer, a stranger must prove its key before it is asked.
const ATTEMPTS_FAILED_MAX: u32 = 2;
/// And where there are more strangers than this.
const UNPROVEN_MAX: usize = 32;
/// Addresses remembered that stalled, and how long.
const STALLED_MAX: usize = 64;
const STALL_LASTS: Duration = Duration::from_secs(60);
/// Strangers asked at once who they are.
const PROBES_MAX: usize = 16;

/// A join exchange that this node began.
#[derive(Debug)]
pub(super) struct Attempt {
    with: NodeId,
    is_named: bool,
    /// Counts as failed then.
    pub(super) until: Time,
}

/// What a member told this node when it let it in, until this node lives there.
#[derive(Debug)]
pub(super) struct Grant {
    by: NodeId,
    /// Where that one proved its key.
    at: SocketAddr,
    /// A person named who let this node in.
    is_named: bool,
    welcome: Welcome,
    /// What both sides show.
    words: String,
    step: GrantStep,
}

#[derive(Debug)]
enum GrantStep {
    /// The log of trust is on its way.
    AwaitingTrust {
        /// Dropped then.
        until: Time,
        /// What of it has come.
        log: Box<Option<TrustLog>>,
    },
    /// The log is being written. No deadline: a write cannot be taken back, and it is always answered.
    MovingIn,
}

impl Attempt {
    /// With one that a person named.
    pub(super) fn named(with: NodeId, until: Time) -> Self {
        Self { with, is_named: true, until }
    }

    pub(super) fn is_with(&self, node: NodeId) -> bool {
        self.with == node
    }
}

impl Grant {
    pub(super) fn deadline(&self) -> Option<Time> {
        match self.step {
            GrantStep::AwaitingTrust { until, .. } => Some(until),
            GrantStep::MovingIn => None,
        }
    }
}

/// A stranger that this node would join.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Candidate {
    is_unnamed: bool,
    /// Somebody at its address answered with a key and then no more: one host has as many keys as it likes.
    is_stalling: bool,
    rank: Rank,
    node: NodeId,
    /// Not asked before.
    pub(super) ready_at: Time,
}

/// Which of several strangers comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Rank {
    /// A person named it.
    Named,
    /// It has a cluster with members.
    WithMembers,
    /// Of all fresh nodes, this one included, it has the lowest key.
    LowestFresh,
    /// Silent when it was asked, or refused, or at an address that stalls.
    Silent,
    /// It has a higher key, and no one has a lower one: it should have asked.
    Overdue,
}

impl Joining {
    /// Nodes that may connect although the own log does not know them: those who let this node in.
    pub fn members(&self) -> Vec<NodeId> {
        let mut nodes: Vec<_> =
            self.grant.iter().flat_map(|grant| [grant.by, grant.welcome.coordinator]).collect();
        nodes.dedup();
        nodes
    }

    /// The log of trust of the cluster that let this node in, if `node` is to be asked for it: which, and
    /// what of it is here.
    pub fn wants_trust_of(&self, node: NodeId) -> Option<(EntryId, Vec<EntryId>)> {
        let grant = self.grant.as_ref().filter(|grant| grant.by == node)?;
        let GrantStep::AwaitingTrust { log, .. } = &grant.step else { return None };
        Some((grant.welcome.cluster, log.as_ref().as_ref().map(TrustLog::known).unwrap_or_default()))
    }

    /// News about the log of trust of another cluster than this node's.
    pub fn trust_of_other(
        &mut self,
        ctx: &Context<'_>,
        from: NodeId,
        message: TrustMessage,
        out: &mut Vec<JoiningOutput>,
    ) {
        let TrustMessage { cluster, known, what } = message;
        let grant = self.grant.as_mut().filter(|grant| grant.by == from && grant.welcome.cluster == cluster);
        let (Some(grant), TrustNews::Entries(entries)) = (grant, what) else {
            return tracing::trace!(peer = %from, %cluster, "trust of another cluster, which nobody asked for");
        };
        let may_move = ctx.may_move(grant.is_named);
        let GrantStep::AwaitingTrust { log, .. } = &mut grant.step else {
            return tracing::trace!(peer = %from, "more of a log of trust that is complete");
        };
        // Time has passed since it asked.
        let taken = match may_move {
            true => take(log, cluster, &entries),
            false if ctx.is_busy => Err(NotLetIn::Busy),
            false => Err(NotLetIn::InUse),
        };
        let by = grant.by;
        let outcome = taken.and_then(|()| complete(log.as_ref().as_ref(), &known, ctx.me()));
        match outcome {
            Ok(Some(trust)) => {
                grant.step = GrantStep::MovingIn;
                let move_in = MoveIn { trust, by, words: grant.words.clone() };
                out.push(JoiningOutput::MoveIn(Box::new(move_in)));
            }
            Ok(None) => out.push(JoiningOutput::Pull(by)),
            Err(reason) => {
                let (from, at, by) = (grant.by, grant.at, grant.welcome.name.clone());
                self.grant = None;
                match reason {
                    NotLetIn::Busy | NotLetIn::InUse => self.not_by_code(from, reason.clone(), None),
                    _ => self.grant_failed(ctx, (from, at), reason.clone()),
                }
                notice(out, Notice::Refused { by, reason, words: String::new() });
                out.push(JoiningOutput::MembersChanged);
            }
        }
        self.advance(ctx, out);
    }

    /// The answer to [`JoiningOutput::MoveIn`]: this node lives there now, or the log could not be written.
    /// With the context after it.
    pub fn moved_in(&mut self, ctx: &Context<'_>, has_moved: bool, out: &mut Vec<JoiningOutput>) {
        let Some(grant) = self.grant.take_if(|grant| matches!(grant.step, GrantStep::MovingIn)) else {
            tracing::trace!(has_moved, "an answer to no move");
            return;
        };
        out.push(JoiningOutput::MembersChanged);
        if has_moved {
            let words = grant.words.clone();
            self.words.insert(grant.by, words.clone());
            self.came_back(ctx.trust.cluster());
            self.strangers.retain(|node, _| ctx.trust.view().members().contains_key(node));
            let name = grant.welcome.name.clone();
            notice(out, Notice::Joined { by: grant.welcome.name, words: words.clone() });
            self.end_by_code(Ok(JoinedByCode { name, words }), out);
        } else {
            self.not_by_code(grant.by, NotLetIn::LogNotWritten, None);
        }
        self.advance(ctx, out);
    }

    /// Whom this node would join. None while it cannot: with members of its own, with an answer or a log on
    /// its way, and while clients wait for answers, because moving in replaces this node's instances.
    pub(super) fn candidates(&self, ctx: &Context<'_>) -> impl Iterator<Item = Candidate> {
        // Who is being let in would be left alone: two nodes that let each other in would swap their
        // clusters.
        let is_still = self.attempt.is_none() && self.grant.is_none() && self.admissions.is_empty();
        let is_free = self.by_code.is_none() && !ctx.config.has_token;
        let can_join = ctx.is_alone() && !ctx.is_busy && is_still && is_free;
        let (me, is_closed) = (ctx.me(), !ctx.is_fresh());
        #[cfg(feature = "planted")]
        let is_closed = is_closed && ctx.config.planted != Some(crate::planted::Bug::AlwaysNew);
        // Who did not answer is not waited for: a dead node's record may last for minutes.
        let may_ask = |s: &Stranger| !self.must_prove(s);
        let is_lowest = |s: &Stranger| s.is_fresh && may_ask(s) && !self.is_passed_over(ctx, s);
        let is_left = |node: &NodeId| self.left.of(*node).is_some();
        let mut fresh = self.strangers.iter().filter(|(node, s)| is_lowest(s) && !is_left(node));
        let lowest = fresh.next().map(|(node, _)| *node);
        let is_lowest_here = lowest.is_none_or(|lowest| lowest > me);
        let all_are_seen_at = self.all_are_seen_at();
        let strangers = self.strangers.iter().filter(move |(_, s)| can_join && !s.addresses.is_empty());
        let strangers =
            strangers.filter(move |(node, s)| s.probe_until.is_none() && may_ask(s) && !is_left(node));
        strangers.filter_map(move |(&node, stranger)| {
            let (rank, asked_from) = match stranger {
                s if s.is_named => (Rank::Named, s.first_seen + LOOK_AROUND),
                _ if is_closed => return None, // only whom a person named
                s if !s.is_fresh && !s.has_failed() => (Rank::WithMembers, s.first_seen + LOOK_AROUND),
                s if s.is_fresh && node >= me && !is_lowest_here => return None, // it joins the lowest as well
                s if s.is_fresh && node >= me => (Rank::Overdue, s.first_seen + HIGHER_ASKS_WITHIN),
                s if self.is_passed_over(ctx, s) => (Rank::Silent, all_are_seen_at),
                _ if lowest == Some(node) => (Rank::LowestFresh, all_are_seen_at),
                _ => return None, // it joins the lowest as well
            };
            let (is_unnamed, is_stalling) = (!stranger.is_named, self.is_stalling(ctx, stranger));
            // A question there may take seconds, in which another new node is told to come later.
            if is_unnamed && is_stalling && lowest.is_some() {
                return None;
            }
            let ready_at = stranger.next.max(asked_from);
            Some(Candidate { is_unnamed, is_stalling, rank, node, ready_at })
        })
    }

    /// Whether others do not wait for it: it did not answer, says no, or somebody at its address stalls.
    pub(super) fn is_passed_over(&self, ctx: &Context<'_>, stranger: &Stranger) -> bool {
        stranger.has_failed() || stranger.refuses(ctx.now.time) || self.is_stalling(ctx, stranger)
    }

    /// When this node has heard of all others that were started together with it, if it hears of no more: of
    /// fresh ones, and of a cluster that they could join instead of founding one.
    fn all_are_seen_at(&self) -> Time {
        let counts = |s: &&Stranger| !s.has_failed() && !self.must_prove(s);
        let wait = |s: &Stranger| s.first_seen + if s.is_fresh { NO_OTHER_FOR } else { LOOK_AROUND };
        let last = self.strangers.values().filter(counts).map(wait).max();
        last.unwrap_or(self.looking_since + LOOK_AROUND).min(self.looking_since + LOOK_MAX)
    }

    /// When a candidate is asked at the earliest.
    pub(super) fn may_ask_at(&self, candidate: &Candidate) -> Time {
        match self.costs_a_dial(candidate) {
            true => self.dials.ready_at(candidate.ready_at),
            false => candidate.ready_at,
        }
    }

    /// Who has proven its key waits behind no name that has not: one at a time is asked, and it is known to
    /// be there.
    fn costs_a_dial(&self, candidate: &Candidate) -> bool {
        let stranger = self.strangers.get(&candidate.node);
        candidate.is_unnamed && stranger.is_none_or(|stranger| stranger.proven.is_none())
    }

    /// Asks the best of the strangers to let this node in.
    pub(super) fn ask_best(&mut self, ctx: &Context<'_>, out: &mut Vec<JoiningOutput>) {
        let now = ctx.now.time;
        let Some(best) = self.candidates(ctx).filter(|c| c.ready_at <= now).min() else { return };
        if self.costs_a_dial(&best) && !self.dials.take(now) {
            return;
        }
        let Some(stranger) = self.strangers.get_mut(&best.node) else { return };
        stranger.next = now + RETRY;
        stranger.asked.clone_from(&stranger.addresses);
        let (addresses, only_near) = stranger.asked_at();
        let is_named = stranger.is_named;
        let proof_within = if is_named { PROOF_NAMED_MAX } else { PROOF_MAX };
        let until = now + proof_within + EXCHANGE_MAX + ATTEMPT_SLACK;
        self.attempt = Some(Attempt { with: best.node, is_named, until });
        let ask = JoinAsk {
            name: ctx.config.name.clone(),
            group: ctx.config.group.clone(),
            port: ctx.config.listen.port(),
            what: JoinPurpose::Membership,
        };
        let ask = JoinEffect::Ask { with: best.node, addresses, only_near, proof_within, code: None, ask };
        out.push(JoiningOutput::Effect(Effect::Joining(ask)));
    }

    /// Whether this stranger has to say who it is before it is asked. Names cost nothing, and one attempt at
    /// a time is needed lest this node joins two clusters: so a network with many silent names would cost the
    /// time of each. But many may be asked at once who they are, since nothing follows from that. Where
    /// no one plays tricks, the attempts that fail are few and this costs no time. More names than there is
    /// room for count as failed attempts: the one that is asked first, the lowest, would be another before it
    /// is asked.
    pub(super) fn must_prove(&self, stranger: &Stranger) -> bool {
        let has_proven = stranger.proven.is_some() && !stranger.has_failed();
        let is_crowded = self.is_crowded || self.strangers.len() > UNPROVEN_MAX;
        (self.attempts_failed >= ATTEMPTS_FAILED_MAX || is_crowded) && !stranger.is_named && !has_proven
    }

    /// Strangers that this node would join if they proved their keys, and when they may be asked to.
    fn unproven(&self, ctx: &Context<'_>) -> impl Iterator<Item = (NodeId, &Stranger, Time)> {
        let (me, can_join) = (ctx.me(), ctx.is_fresh() && !ctx.is_busy && self.grant.is_none());
        let strangers = self.strangers.iter().map(|(node, stranger)| (*node, stranger));
        // Names that are yet to prove their keys do not count: in a flood there is always one, and who is
        // known to this node may not hear of it.
        let mut lower = self.strangers.range(..me);
        let has_lower = lower.any(|(_, s)| s.is_fresh && !s.has_failed() && !self.must_prove(s));
        strangers.filter_map(move |(node, s)| {
            let is_sought = can_join && self.must_prove(s) && !s.addresses.is_empty();
            let is_sought = is_sought && self.left.of(node).is_none();
            let is_open = s.probe_until.is_some() || self.attempt.as_ref().is_some_and(|a| a.is_with(node));
            let ready_at = match !s.is_fresh || node < me {
                // The rest of its addresses may come in another announcement.
                true => s.next.max(s.first_seen + LOOK_AROUND),
                false if has_lower => return None,
                false => s.next.max(s.first_seen + HIGHER_ASKS_WITHIN),
            };
            (is_sought && !is_open).then_some((node, s, ready_at))
        })
    }

    /// Asks strangers who they are, several at once: first those at addresses with few names, and of these
    /// those never asked.
    pub(super) fn probe_strangers(&mut self, ctx: &Context<'_>, out: &mut Vec<JoiningOutput>) {
        let now = ctx.now.time;
        for (peer, stranger) in &mut self.strangers {
            if stranger.probe_until.take_if(|until| now >= *until).is_some() {
                tracing::debug!(%peer, asked = ?stranger.asked, "a stranger did not say in time who it is");
                stranger.not_answered(now);
            }
        }
        let ready = self.unproven(ctx).filter(|(_, _, ready_at)| *ready_at <= now);
        let of_hosts = self.names_of_hosts();
        let rank = |s: &Stranger| (names_of_host(&of_hosts, s), s.has_failed(), s.next);
        let mut ready: Vec<_> = ready.map(|(node, s, _)| (rank(s), node)).collect();
        ready.sort();
        for (_, with) in ready.into_iter().take(PROBES_MAX.saturating_sub(self.probes_open())) {
            if !self.dials.take(now) {
                return;
            }
            let Some(stranger) = self.strangers.get_mut(&with) else { continue };
            stranger.probe_until = Some(now + PROOF_MAX + ATTEMPT_SLACK);
            stranger.asked.clone_from(&stranger.addresses);
            let (addresses, group) = (stranger.addresses.clone(), ctx.config.group.clone());
            let ask = JoinAsk { name: String::new(), group, port: 0, what: JoinPurpose::Name };
            let (only_near, proof_within) = (true, PROOF_MAX);
            let ask = JoinEffect::Ask { with, addresses, only_near, proof_within, code: None, ask };
            out.push(JoiningOutput::Effect(Effect::Joining(ask)));
        }
    }

    fn probes_open(&self) -> usize {
        self.strangers.values().filter(|s| s.probe_until.is_some()).count()
    }

    /// When time alone ends a probe of a stranger or begins one.
    pub(super) fn probe_deadline(&self, ctx: &Context<'_>) -> Option<Time> {
        let ends = self.strangers.values().filter_map(|s| s.probe_until);
        let has_room = self.probes_open() < PROBES_MAX;
        let begins =
            self.unproven(ctx).filter(|_| has_room).map(|(.., ready_at)| self.dials.ready_at(ready_at));
        ends.chain(begins).min()
    }

    /// The answer of a stranger that was asked who it is, which may come late. `false` if it was not.
    fn stranger_probed(
        &mut self,
        ctx: &Context<'_>,
        with: NodeId,
        answer: &Result<JoinAnswer, String>,
    ) -> bool {
        let now = ctx.now.time;
        let is_attempt = self.attempt.as_ref().is_some_and(|attempt| attempt.is_with(with));
        let is_late = matches!(answer, Ok(JoinAnswer::Here { .. })) && !is_attempt;
        let is_answer = |s: &&mut Stranger| s.probe_until.is_some() || is_late;
        let Some(stranger) = self.strangers.get_mut(&with).filter(is_answer) else { return false };
        stranger.probe_until = None;
        match answer {
            Ok(JoinAnswer::Here { fresh, .. }) => {
                (stranger.proven, stranger.is_fresh) = (Some(now), *fresh);
                (stranger.failures, stranger.next) = (0, now);
            }
            // It is of another group, or no node that this one knows how to join: no one waits for it.
            Ok(_) => {
                (stranger.proven, stranger.has_refused) = (Some(now), true);
                (stranger.failures, stranger.next) = (0, now + RETRY_REFUSED);
            }
            Err(reason) => {
                tracing::debug!(peer = %with, asked = ?stranger.asked, reason, "a stranger did not say who it is");
                stranger.not_answered(now);
            }
        }
        true
    }

    /// Whether this node asks another than `node` at the moment, or has been let in: it is about to leave its
    /// cluster.
    pub(super) fn is_leaving(&self, me: NodeId, node: NodeId) -> bool {
        // Two fresh nodes that ask each other: the lower key lets the other one in.
        let asks = self.attempt.as_ref().is_some_and(|attempt| attempt.with != node || me > node);
        asks || self.grant.is_some()
    }

    pub(super) fn answered(
        &mut self,
        ctx: &Context<'_>,
        (with, address, words): (NodeId, SocketAddr, String),
        answer: Result<JoinAnswer, String>,
        out: &mut Vec<JoiningOutput>,
    ) {
        if self.trust_asked(ctx, with, &answer, out) || self.stranger_probed(ctx, with, &answer) {
            return;
        }
        let Some(Attempt { is_named, .. }) = self.attempt.take_if(|attempt| attempt.with == with) else {
            tracing::trace!(peer = %with, asked = ?self.attempt, "an answer to no question");
            return;
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(reason) => {
                self.note_stall(ctx, address, STALL_LASTS);
                return self.attempt_failed(ctx, with, NotLetIn::Broken(reason));
            }
        };
        if let JoinAnswer::Later = answer {
            self.not_by_code(with, NotLetIn::Later, Some(ctx.now.time + RETRY_LATER));
        }
        let is_put_off = self.is_put_off(with, &answer);
        let puts_off = is_put_off && self.is_put_off_for_long(ctx, (with, address));
        let is_refusal = matches!(answer, JoinAnswer::Refused(_));
        let is_welcome = matches!(answer, JoinAnswer::Welcome(_));
        let wait = match answer {
            JoinAnswer::Welcome(welcome) => {
                self.welcomed(ctx, (with, is_named), (address, words), *welcome, out);
                None
            }
            JoinAnswer::Elsewhere { node, addresses } if node != ctx.me() => {
                self.told_of(ctx, node, &addresses);
                // One that is new itself is not there yet.
                let is_of_it = self.strangers.get(&with).is_some_and(|stranger| !stranger.is_fresh);
                if let Some(cluster) = self.left.of(node).filter(|_| is_of_it && self.by_code.is_none()) {
                    self.stay_away(with, cluster, out);
                }
                self.sent_elsewhere(ctx, (with, is_named, words), &addresses, out)
            }
            JoinAnswer::Refused(refusal) => {
                let reason = NotLetIn::Refused { refusal, asker: ctx.me() };
                self.not_by_code(with, reason.clone(), None);
                if let Some(stranger) = self.strangers.get_mut(&with) {
                    let refused = Notice::Refused { by: stranger.name.clone(), reason, words };
                    // It is asked again and again, and says the same.
                    if stranger.told.as_ref() != Some(&refused) {
                        (stranger.told, stranger.told_unix_s) = (Some(refused.clone()), ctx.now.unix_s);
                        notice(out, refused);
                        out.push(JoiningOutput::Stale);
                    }
                }
                Some(RETRY_REFUSED)
            }
            JoinAnswer::Later
            | JoinAnswer::Elsewhere { .. }
            | JoinAnswer::Here { .. }
            | JoinAnswer::Trust(_) => Some(RETRY_LATER),
        };
        let wait = if puts_off { Some(RETRY_REFUSED) } else { wait };
        if let Some(stranger) = self.strangers.get_mut(&with) {
            stranger.failures = 0;
            (stranger.is_refusing, stranger.has_refused) = (is_refusal, is_refusal || puts_off);
            // What a person was told is remembered: the same refusal is told of once, whatever comes between.
            stranger.told = stranger.told.take().filter(|_| !is_welcome);
            stranger.later = stranger.later.filter(|_| is_put_off && !puts_off);
            stranger.proven = Some(ctx.now.time);
            stranger.next = wait.map_or(stranger.next, |wait| ctx.now.time + wait);
        }
    }

    /// Another node says where one is that lets in. What that one announced of itself stays: an announcement
    /// is reported once, so whoever is asked could have this node lose any other. Of what others say the last
    /// comes first: there is room for so many addresses.
    fn told_of(&mut self, ctx: &Context<'_>, node: NodeId, told: &[SocketAddr]) {
        let known = self.strangers.get(&node).map(|s| {
            (
                s.addresses.clone(),
                s.name.clone(),
                s.is_fresh && s.is_discovered,
                s.is_discovered || s.is_named,
            )
        });
        let (known, name, is_fresh, is_its_own) = known.unwrap_or_default();
        let (first, then) = if is_its_own { (known.as_slice(), told) } else { (told, known.as_slice()) };
        let mut addresses = Vec::new();
        for address in first.iter().chain(then) {
            if addresses.len() < ADDRESSES_MAX && !addresses.contains(address) {
                addresses.push(*address);
            }
        }
        self.remember(ctx, node, addresses, &name, is_fresh);
    }

    /// Whether an answer says neither yes nor no, nor who says yes: a new node that points elsewhere is one
    /// that others wait for.
    fn is_put_off(&self, with: NodeId, answer: &JoinAnswer) -> bool {
        match answer {
            JoinAnswer::Later | JoinAnswer::Here { .. } | JoinAnswer::Trust(_) => true,
            JoinAnswer::Elsewhere { .. } => self.strangers.get(&with).is_some_and(|with| with.is_fresh),
            JoinAnswer::Welcome(_) | JoinAnswer::Refused(_) => false,
        }
    }

    /// Whether a node has said nothing else for so long that it counts as a refusal, by whatever key it has:
    /// one host has as many as it likes.
    fn is_put_off_for_long(&mut self, ctx: &Context<'_>, (with, at): (NodeId, SocketAddr)) -> bool {
        let Some(stranger) = self.strangers.get_mut(&with) else { return false };
        let since = stranger.later.map_or(ctx.now.time, |(since, _)| since);
        stranger.later = Some((since, at.ip()));
        let is_long = ctx.now.time.since(since) > LATER_MAX;
        if is_long {
            self.note_stall(ctx, at, RETRY_REFUSED);
        }
        is_long
    }

    /// Another node lets this one in, says `with`. Who is not fresh goes only to whom a person named, and
    /// tells the person once.
    fn sent_elsewhere(
        &mut self,
        ctx: &Context<'_>,
        (with, is_named, words): (NodeId, bool, String),
        addresses: &[SocketAddr],
        out: &mut Vec<JoiningOutput>,
    ) -> Option<Duration> {
        let stranger = self.strangers.get_mut(&with)?;
        if let Some(&address) = addresses.first().filter(|_| is_named && !ctx.is_fresh()) {
            let reason = NotLetIn::Elsewhere { address };
            let refused = Notice::Refused { by: stranger.name.clone(), reason, words };
            if stranger.told.as_ref() != Some(&refused) {
                (stranger.told, stranger.told_unix_s) = (Some(refused.clone()), ctx.now.unix_s);
                notice(out, refused);
            }
        }
        (!stranger.is_fresh).then_some(RETRY_REFUSED)
    }

    /// Somebody proved a key at this address, if there is one, and held this node up. Others who put this
    /// node off meanwhile may have been held up by the same one: their time begins anew. What counts is where
    /// they proved their keys: anybody may announce them at an address that stalls.
    fn note_stall(&mut self, ctx: &Context<'_>, address: SocketAddr, lasting: Duration) {
        let (now, host) = (ctx.now.time, address.ip());
        self.stalled.retain(|_, until| *until > now);
        if host.is_unspecified() || self.stalled.len() >= STALLED_MAX {
            return;
        }
        if !self.stalled.contains_key(&host) {
            for other in self.strangers.values_mut() {
                other.later = other.later.filter(|(_, at)| *at == host);
            }
        }
        let until = self.stalled.entry(host).or_insert(now + lasting);
        *until = (now + lasting).max(*until);
    }

    fn is_stalling(&self, ctx: &Context<'_>, stranger: &Stranger) -> bool {
        let stalls =
            |address: &SocketAddr| self.stalled.get(&address.ip()).is_some_and(|until| *until > ctx.now.time);
        stranger.addresses.iter().all(stalls)
    }

    fn attempt_failed(&mut self, ctx: &Context<'_>, with: NodeId, reason: NotLetIn) {
        tracing::debug!(peer = %with, %reason, "join attempt failed");
        self.not_by_code(with, reason, None);
        if let Some(stranger) = self.strangers.get_mut(&with) {
            self.attempts_failed = self.attempts_failed.saturating_add(u32::from(!stranger.is_named));
            stranger.not_answered(ctx.now.time);
            // Whom a person named is tried for as long as that takes.
            if stranger.is_named {
                stranger.next = stranger.next.min(ctx.now.time + RETRY);
            }
        }
    }

    pub(super) fn expire_attempt(&mut self, ctx: &Context<'_>) {
        if let Some(attempt) = self.attempt.take_if(|attempt| ctx.now.time >= attempt.until) {
            self.attempt_failed(ctx, attempt.with, NotLetIn::NoAnswer);
        }
    }

    fn welcomed(
        &mut self,
        ctx: &Context<'_>,
        (by, is_named): (NodeId, bool),
        (address, words): (SocketAddr, String),
        mut welcome: Welcome,
        out: &mut Vec<JoiningOutput>,
    ) {
        welcome.name = known_name(by, &welcome.name);
        if self.stays_out_of(by, welcome.cluster) {
            return self.stay_away(by, welcome.cluster, out);
        }
        tracing::debug!(peer = %by, coordinator = %welcome.coordinator, "let in; fetching its log of trust");
        // As of a member: its loopback is ours only if it is reached over loopback itself.
        let is_useful = |told: &&SocketAddr| address.ip().is_loopback() || !told.ip().is_loopback();
        let addresses = welcome.coordinator_addresses.iter().filter(is_useful).copied().collect();
        let coordinator = welcome.coordinator;
        let step = GrantStep::AwaitingTrust { until: ctx.now.time + GRANT_MAX, log: Box::new(None) };
        self.grant = Some(Grant { by, at: address, is_named, welcome, words, step });
        out.push(JoiningOutput::MembersChanged);
        out.push(JoiningOutput::Prefer { node: by, address });
        out.push(JoiningOutput::Learn { node: coordinator, addresses, is_vouched: is_named });
        out.push(JoiningOutput::Pull(by));
    }

    pub(super) fn expire_grant(&mut self, ctx: &Context<'_>, out: &mut Vec<JoiningOutput>) {
        let is_over = |grant: &mut Grant| grant.deadline().is_some_and(|until| ctx.now.time >= until);
        if let Some(grant) = self.grant.take_if(is_over) {
            tracing::debug!(peer = %grant.by, coordinator = %grant.welcome.coordinator, "let in, but no log came");
            self.grant_failed(ctx, (grant.by, grant.at), NotLetIn::NoLog);
            out.push(JoiningOutput::MembersChanged);
        }
    }

    /// Who let this node in brought it into no cluster: others come first, or it would do so again and again.
    fn grant_failed(&mut self, ctx: &Context<'_>, (by, at): (NodeId, SocketAddr), reason: NotLetIn) {
        self.note_stall(ctx, at, STALL_LASTS);
        self.attempt_failed(ctx, by, reason);
    }
}

/// Takes in entries of the log that `cluster` begins. Whoever sends them, each is checked.
fn take(log: &mut Option<TrustLog>, cluster: EntryId, entries: &[Vec<u8>]) -> Result<(), NotLetIn> {
    for bytes in entries {
        let entry = Entry::decode(bytes)?;
        match log {
            Some(log) => drop(log.insert(entry)?),
            None if entry.id() == cluster => *log = Some(TrustLog::new(entry)?),
            None => return Err(NotLetIn::LogBegins),
        }
    }
    Ok(())
}

/// The log once all of it is here, and names this node.
fn complete(log: Option<&TrustLog>, known: &[EntryId], me: NodeId) -> Result<Option<TrustLog>, NotLetIn> {
    let Some(log) = log else { return Err(NotLetIn::EmptyLog) };
    if !known.iter().all(|id| log.contains(*id)) {
        return Ok(None);
    }
    if !log.view().members().contains_key(&me) {
        return Err(NotLetIn::LogWithoutMe);
    }
    Ok(Some(log.clone()))
}
