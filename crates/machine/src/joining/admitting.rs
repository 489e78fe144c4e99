//! Letting others in: the join window, people's decisions, entries of the log of trust.

use std::net::SocketAddr;
use std::time::Duration;

use exo_api::AdminError;
use exo_trust::{Act, View};
use exo_types::{NodeId, Time};

use super::catching_up::trust_for;
use super::requests::RequestNotice;
use super::{
    Context, JoinAnswer, JoinAsk, JoinPurpose, JoinRefusal, Joining, JoiningOutput, NEVER, Stranger, Welcome,
    known_name, notice,
};
use crate::{ActRefusal, Answer, Effect, ExchangeId, JoinEffect, Notice, ReplyId};

/// Exchanges that wait for a signature or the disk at once.
const ADMISSIONS_MAX: usize = 64;
/// For the answer to a stranger. The transport ends the exchange after five seconds, and the answer must
/// still get out.
const ANSWER_MAX: Duration = Duration::from_secs(4);
/// How long an entry is waited for after its exchange was answered [`JoinAnswer::Later`].
const LATE_ANSWER_MAX: Duration = Duration::from_secs(10);
/// Another node seen for no longer than this is pointed to if it was never asked: later on this one, which
/// looks around for five seconds at most, has surely asked there by itself.
const ELSEWHERE_MAX: Duration = Duration::from_secs(8);
/// One that has answered this node is pointed to for so long after its last answer: for as long as this node
/// looks around before it asks it, and longer than the two seconds after which it asks again. So all agree on
/// the lowest one, however long strangers hold it up.
const ANSWERED_LATELY: Duration = Duration::from_secs(5);

/// Admins that a stranger is told of: an exchange carries 4 KiB.
const ADMINS_TOLD_MAX: usize = 4;

/// A question from a stranger.
pub(super) struct AdmissionRequest {
    pub(super) exchange: ExchangeId,
    pub(super) node: NodeId,
    pub(super) remote: SocketAddr,
    /// Whether it is on this machine or on a private network of it.
    pub(super) is_near: bool,
    /// It proved that it knows a code that this node gave out.
    pub(super) has_code: bool,
    /// What both sides show.
    pub(super) words: String,
    pub(super) ask: JoinAsk,
}

impl AdmissionRequest {
    fn listen(&self) -> SocketAddr {
        SocketAddr::new(self.remote.ip(), self.ask.port)
    }
}

/// What becomes of a stranger's question.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Decision {
    /// It is answered at once.
    Answer(JoinAnswer),
    /// No one said that it may, and it does not come in on sight for this: a person decides.
    ShowToPeople(JoinRefusal),
    /// This node's key signs that it is a member.
    Admit {
        name: String,
        /// Because the window is open, and no person said so.
        on_sight: bool,
    },
    /// It is a member that lost its log.
    Welcome,
}

impl Decision {
    fn refuse(why: JoinRefusal) -> Self {
        Self::Answer(JoinAnswer::Refused(why))
    }
}

/// Who waits for an admission.
#[derive(Clone, Copy, Debug)]
enum AdmissionAsker {
    /// The stranger itself.
    Stranger {
        exchange: ExchangeId,
        /// It has been told to ask again.
        is_answered: bool,
    },
    /// A person who lets in a stranger that has asked before.
    Person {
        reply: ReplyId,
        /// It has heard that no one knows whether the entry is on disk.
        is_answered: bool,
    },
}

/// A stranger that is being let in: its entry is being signed and written.
#[derive(Debug)]
pub(super) struct Admission {
    asker: AdmissionAsker,
    node: NodeId,
    name: String,
    on_sight: bool,
    /// It has one of the places of the door that a person has opened.
    has_place: bool,
    /// A person has refused it meanwhile.
    is_refused: bool,
    /// What both sides show.
    words: String,
    listen: SocketAddr,
    until: Time,
}

impl Admission {
    pub(super) fn deadline(&self) -> Time {
        self.until
    }
}

impl Joining {
    /// A person lets in a stranger that has asked; `false` if it has not. The person is answered once its
    /// entry is on disk, and it learns of it when it asks again.
    pub fn invite(&mut self, node: NodeId, reply: ReplyId, out: &mut Vec<JoiningOutput>) -> bool {
        let Some(request) = self.requests.get(node) else { return false };
        let admission = Admission {
            asker: AdmissionAsker::Person { reply, is_answered: false },
            node,
            name: request.name.clone(),
            on_sight: false,
            has_place: false,
            is_refused: false,
            words: request.words.clone(),
            listen: request.listen,
            // Every act comes to an end, and the person is told which.
            until: NEVER,
        };
        self.admit(admission, out);
        true
    }

    fn admit(&mut self, admission: Admission, out: &mut Vec<JoiningOutput>) {
        let act = Act::Admit { node: admission.node, name: admission.name.clone() };
        self.admission_last += 1;
        self.admissions.insert(self.admission_last, admission);
        out.push(JoiningOutput::Act { admission: self.admission_last, act });
    }

    /// A person refuses a stranger that has asked, or that is being let in and whose entry is not signed,
    /// whose name this returns. It is neither shown nor let in on sight for a while.
    pub fn refuse(
        &mut self,
        ctx: &Context<'_>,
        node: NodeId,
        out: &mut Vec<JoiningOutput>,
    ) -> Option<String> {
        let mut name = self.requests.get(node).map(|request| request.name.clone());
        for admission in self.admissions.values_mut().filter(|admission| admission.node == node) {
            admission.is_refused = true;
            name = name.or_else(|| Some(admission.name.clone()));
        }
        let name = name?;
        self.requests.refuse(ctx.now.time, node);
        out.push(JoiningOutput::Stale);
        Some(name)
    }

    /// Tells a person that no one knows whether the entry of an admission is on disk. What becomes of it
    /// counts still.
    pub(crate) fn not_sure(&mut self, admission: u64, refusal: ActRefusal, out: &mut Vec<JoiningOutput>) {
        let admission = self.admissions.get_mut(&admission);
        let Some(AdmissionAsker::Person { reply, is_answered }) = admission.map(|a| &mut a.asker) else {
            return;
        };
        *is_answered = true;
        let answer = Answer::Invited(Err(AdminError::from(refusal)));
        out.push(JoiningOutput::Effect(Effect::Reply { reply: *reply, answer }));
    }

    pub(super) fn asked(&mut self, ctx: &Context<'_>, asked: AdmissionRequest, out: &mut Vec<JoiningOutput>) {
        let decision = self.decide(ctx, &asked);
        tracing::trace!(peer = %asked.node, exchange = asked.exchange.0, ?decision, "asked to let a node in");
        match decision {
            Decision::Answer(with) => answer(out, asked.exchange, with),
            Decision::ShowToPeople(why) => self.show_request(ctx, &asked, why, out),
            Decision::Welcome => {
                self.welcome_again(&asked, out);
                answer(out, asked.exchange, welcome(ctx));
            }
            Decision::Admit { .. } if self.admissions.len() >= ADMISSIONS_MAX => {
                answer(out, asked.exchange, JoinAnswer::Later);
            }
            Decision::Admit { name, on_sight } => {
                let (node, listen) = (asked.node, asked.listen());
                let asker = AdmissionAsker::Stranger { exchange: asked.exchange, is_answered: false };
                let has_place = on_sight && self.opened.has_places(ctx.now);
                if has_place && self.opened.take_place() {
                    out.push(JoiningOutput::Stale);
                }
                let (words, until) = (asked.words, ctx.now.time + ANSWER_MAX);
                let is_refused = false;
                let admission =
                    Admission { asker, node, name, on_sight, has_place, is_refused, words, listen, until };
                self.admit(admission, out);
            }
        }
    }

    /// Whether a stranger that is being let in may be recorded still.
    pub fn may_record(&self, ctx: &Context<'_>, admission: u64, view: &View) -> Result<(), ActRefusal> {
        #[cfg(feature = "planted")]
        if ctx.config.planted == Some(crate::planted::Bug::OpenDoor) {
            return Ok(());
        }
        match self.admissions.get(&admission) {
            None => Err(ActRefusal::NotAwaited),
            Some(admission) if admission.is_refused => Err(ActRefusal::Refused),
            Some(admission) if admission.on_sight => {
                let comes_by_door = admission.has_place && self.opened.is_open(ctx.now);
                let may = comes_by_door || ctx.is_window_open_by(view);
                if may { Ok(()) } else { Err(ActRefusal::WindowShut) }
            }
            Some(_) => Ok(()),
        }
    }

    /// What becomes of a stranger's question. Changes nothing.
    fn decide(&self, ctx: &Context<'_>, asked: &AdmissionRequest) -> Decision {
        let AdmissionRequest { node, ask, .. } = asked;
        if ask.group != ctx.config.group {
            return Decision::refuse(JoinRefusal::OtherGroup);
        }
        match &ask.what {
            JoinPurpose::Name => {
                let (name, fresh) = (ctx.config.name.clone(), ctx.is_fresh());
                return Decision::Answer(JoinAnswer::Here { name, fresh });
            }
            JoinPurpose::Trust { cluster, known } => {
                return Decision::Answer(trust_for(ctx, *node, *cluster, known));
            }
            JoinPurpose::Membership => {}
        }
        if ctx.trust.view().removed().contains_key(node) {
            return Decision::refuse(JoinRefusal::Removed);
        }
        if self.is_leaving(ctx.me(), *node) {
            return Decision::Answer(JoinAnswer::Later);
        }
        if let Some(elsewhere) = self.elsewhere(ctx, *node).filter(|_| !asked.has_code) {
            return Decision::Answer(elsewhere);
        }
        if ctx.trust.view().members().contains_key(node) {
            return Decision::Welcome;
        }
        if self.admissions.values().any(|admission| admission.node == *node) {
            return Decision::Answer(JoinAnswer::Later); // its entry is on its way to disk
        }
        let is_invited = asked.has_code;
        if !is_invited && self.requests.is_refused(ctx.now.time, *node) {
            return Decision::refuse(JoinRefusal::RefusedByPerson);
        }
        let is_open = ctx.is_window_open() || self.opened.has_places(ctx.now);
        let is_in_window = asked.is_near && is_open;
        #[cfg(feature = "planted")]
        let is_in_window = match ctx.config.planted {
            Some(crate::planted::Bug::OpenDoor) => true,
            Some(crate::planted::Bug::FarWindow) => is_open,
            _ => is_in_window,
        };
        if !is_invited && !is_in_window {
            let admins = if is_admin(ctx) { Vec::new() } else { admins(ctx) };
            return Decision::ShowToPeople(match is_open {
                true => JoinRefusal::NotNear { admins },
                false => JoinRefusal::WindowShut { admins },
            });
        }
        if !is_admin(ctx) {
            return Decision::Answer(to_admin(ctx, is_invited));
        }
        Decision::Admit { name: known_name(*node, &ask.name), on_sight: !is_invited }
    }

    /// Points `asker` to where this fresh node and it are both going: a cluster that has members, or else a
    /// fresh node lower than this one. Letting it in here would make a second cluster, and clusters with
    /// members never join each other. Where strangers must prove their keys it is pointed to none that has
    /// not: among false names there is always a lower one.
    fn elsewhere(&self, ctx: &Context<'_>, asker: NodeId) -> Option<JoinAnswer> {
        if !ctx.is_fresh() {
            return None;
        }
        let is_recent = |s: &Stranger| match s.proven {
            Some(answered) => ctx.now.time.since(answered) < ANSWERED_LATELY,
            None => ctx.now.time.since(s.first_seen) < ELSEWHERE_MAX,
        };
        // Who has just refused this node is no home for the other.
        let may_be_there = |s: &Stranger| is_recent(s) && !self.is_passed_over(ctx, s) && !self.must_prove(s);
        let is_left = |node: NodeId| self.left.of(node).is_some();
        let others = self.strangers.iter().filter(|(node, _)| **node != asker && !is_left(**node));
        let candidates = others.filter(|(_, s)| may_be_there(s));
        let mut fresh = candidates.clone().filter(|(node, s)| s.is_fresh && **node < ctx.me());
        let mut with_members = candidates.filter(|(_, s)| !s.is_fresh && !s.addresses.is_empty());
        let (node, stranger) = with_members.next().or_else(|| fresh.next())?;
        Some(JoinAnswer::Elsewhere { node: *node, addresses: stranger.addresses.clone() })
    }

    /// Shows the request to people, and tells the asker why it is not in yet.
    fn show_request(
        &mut self,
        ctx: &Context<'_>,
        asked: &AdmissionRequest,
        why: JoinRefusal,
        out: &mut Vec<JoiningOutput>,
    ) {
        let (node, name) = (asked.node, known_name(asked.node, &asked.ask.name));
        answer(out, asked.exchange, JoinAnswer::Refused(why));
        match self.requests.asked(ctx.now.time, node, &name, (asked.listen(), &asked.words)) {
            RequestNotice::Known => return,
            RequestNotice::Told => notice(out, Notice::Asks { node, name, words: asked.words.clone() }),
            RequestNotice::Counted => {}
        }
        if self.strangers.get(&node).is_some_and(|stranger| stranger.is_fresh) {
            self.requests.seen(node, true);
        }
        out.push(JoiningOutput::Stale);
    }

    /// Says how many asked of whom no one was told.
    pub(super) fn sum_up_requests(&mut self, ctx: &Context<'_>, out: &mut Vec<JoiningOutput>) {
        if let Some(count) = self.requests.summary(ctx.now.time) {
            notice(out, Notice::ManyAsk { count });
        }
    }

    /// The answer to [`JoiningOutput::Act`].
    pub fn recorded(
        &mut self,
        ctx: &Context<'_>,
        admission: u64,
        result: Result<(), ActRefusal>,
        out: &mut Vec<JoiningOutput>,
    ) {
        let Some(admission) = self.admissions.remove(&admission) else {
            return tracing::trace!(admission, last = self.admission_last, "an answer too late");
        };
        match &result {
            Ok(()) => self.admitted(&admission, out),
            Err(refusal) => tracing::warn!(peer = %admission.node, %refusal, "a node could not be let in"),
        }
        match admission.asker {
            AdmissionAsker::Stranger { is_answered: true, .. } => {
                tracing::trace!(peer = %admission.node, "recorded too late for its exchange");
            }
            AdmissionAsker::Stranger { exchange, is_answered: false } => {
                let refused = |refusal: ActRefusal| JoinAnswer::Refused(JoinRefusal::from(&refusal));
                answer(out, exchange, result.map_or_else(refused, |()| welcome(ctx)));
            }
            AdmissionAsker::Person { is_answered: true, .. } => {
                tracing::trace!(peer = %admission.node, "recorded after its person heard that this is not sure");
            }
            AdmissionAsker::Person { reply, is_answered: false } => {
                let answer = Answer::Invited(result.map(|()| admission.name).map_err(AdminError::from));
                out.push(JoiningOutput::Effect(Effect::Reply { reply, answer }));
            }
        }
        self.advance(ctx, out);
    }

    /// A member is recorded because it asked here. It may connect before it hears of it, and where a person
    /// let it in that may be long after.
    fn admitted(&mut self, admission: &Admission, out: &mut Vec<JoiningOutput>) {
        let node = admission.node;
        if self.requests.remove(node) {
            out.push(JoiningOutput::Stale);
        }
        self.strangers.remove(&node);
        out.push(JoiningOutput::MembersChanged);
        out.push(JoiningOutput::Prefer { node, address: admission.listen });
        let words = admission.words.clone();
        self.words.insert(node, words.clone());
        notice(out, Notice::Admitted { node, name: admission.name.clone(), words });
    }

    /// Somebody who was let in did not hear of it in time, and asks again: the words are those of the
    /// exchange in which it does.
    fn welcome_again(&mut self, asked: &AdmissionRequest, out: &mut Vec<JoiningOutput>) {
        if let Some(words) = self.words.get_mut(&asked.node).filter(|words| **words != asked.words) {
            words.clone_from(&asked.words);
            let (node, name) = (asked.node, known_name(asked.node, &asked.ask.name));
            notice(out, Notice::Admitted { node, name, words: asked.words.clone() });
        }
    }

    /// Answers exchanges whose time is over. What becomes of the entry still counts for a while: it may be
    /// written all the same.
    pub(super) fn expire_admissions(&mut self, ctx: &Context<'_>, out: &mut Vec<JoiningOutput>) {
        let now = ctx.now.time;
        self.admissions.retain(|number, admission| {
            if now < admission.until {
                return true;
            }
            tracing::trace!(admission = number, ?admission, "an admission takes too long");
            let AdmissionAsker::Stranger { exchange, is_answered } = &mut admission.asker else {
                return true;
            };
            let is_over = std::mem::replace(is_answered, true);
            if !is_over {
                answer(out, *exchange, JoinAnswer::Later);
                admission.until = now + LATE_ANSWER_MAX;
            }
            !is_over
        });
    }
}

/// Only an admin signs who is a member: whom the window lets in goes to one that this node reaches.
fn to_admin(ctx: &Context<'_>, is_invited: bool) -> JoinAnswer {
    let mut reached = ctx.trust.view().admins().filter(|admin| (ctx.is_linked)(*admin));
    let node = reached.find(|admin| !(ctx.addresses)(*admin).is_empty());
    match node.filter(|_| !is_invited) {
        Some(node) => JoinAnswer::Elsewhere { node, addresses: (ctx.addresses)(node) },
        None => JoinAnswer::Refused(JoinRefusal::NotAnAdmin { admins: admins(ctx) }),
    }
}

fn is_admin(ctx: &Context<'_>) -> bool {
    ctx.trust.view().admins().any(|admin| admin == ctx.me())
}

/// Who lets nodes in, as they were called when they came.
fn admins(ctx: &Context<'_>) -> Vec<String> {
    let view = ctx.trust.view();
    let names = view.admins().filter_map(|admin| Some(view.members().get(&admin)?.name.clone()));
    names.take(ADMINS_TOLD_MAX).collect()
}

/// What a new member needs to know; it asks again while no one coordinates.
fn welcome(ctx: &Context<'_>) -> JoinAnswer {
    let Some((_, coordinator)) = ctx.leader else { return JoinAnswer::Later };
    // If this node coordinates, the new member has just reached it.
    let is_own = coordinator == ctx.me();
    JoinAnswer::Welcome(Box::new(Welcome {
        name: ctx.config.name.clone(),
        cluster: ctx.trust.cluster(),
        coordinator,
        coordinator_addresses: if is_own { Vec::new() } else { (ctx.addresses)(coordinator) },
    }))
}

fn answer(out: &mut Vec<JoiningOutput>, exchange: ExchangeId, answer: JoinAnswer) {
    out.push(JoiningOutput::Effect(Effect::Joining(JoinEffect::Answer { exchange, answer })));
}
