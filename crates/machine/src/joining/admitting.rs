//! Letting others in: the join window, certificates, people's decisions.

use std::net::SocketAddr;
use std::time::Duration;

use exo_cluster::wire::{ControlAsk, ControlRefusal, ControlReply};
use exo_cluster::{Member, Role, State};
use exo_identity::{ClusterId, MemberCert, Statement};
use exo_types::{NodeId, Time};

use super::{Context, JoinAnswer, JoinAsk, Joining, JoiningOutput, Welcome, check_words, known_name, notice};
use crate::{Effect, ExchangeId, JoinEffect, Notice, SignId};

/// Join requests shown at once.
const REQUESTS_MAX: usize = 16;
/// Exchanges that wait for a signature or for the coordinator at once.
const ADMISSIONS_MAX: usize = 64;
/// For the answer to a stranger. The transport ends the exchange after five seconds, and the answer must still get out.
const ANSWER_MAX: Duration = Duration::from_secs(4);
/// How long the coordinator's answer still counts after its exchange was answered [`JoinAnswer::Later`].
const LATE_ANSWER_MAX: Duration = Duration::from_secs(10);
/// Another node seen for no longer than this is pointed to: later on this one has surely asked there by itself.
const ELSEWHERE_MAX: Duration = Duration::from_secs(3);

/// A stranger that asked to join while the window was shut.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// What it says it is called.
    pub name: String,
    /// Where it listens.
    pub listen: SocketAddr,
    last_asked: Time,
    /// Let in by a person; it learns of it when it asks again.
    is_admitted: bool,
}

#[cfg(test)]
impl Request {
    /// A request as the view may see it.
    pub(crate) fn new(name: &str, listen: SocketAddr) -> Self {
        Self { name: name.to_owned(), listen, last_asked: Time::ZERO, is_admitted: false }
    }
}

/// A question from a stranger.
pub(super) struct Asked {
    pub(super) exchange: ExchangeId,
    pub(super) node: NodeId,
    pub(super) remote: SocketAddr,
    /// Whether it is on this machine or on a private network of it.
    pub(super) is_near: bool,
    pub(super) ask: JoinAsk,
}

impl Asked {
    fn listen(&self) -> SocketAddr {
        SocketAddr::new(self.remote.ip(), self.ask.port)
    }
}

/// What becomes of a stranger's question.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Decision {
    /// It is answered at once.
    Answer(JoinAnswer),
    /// The window is shut: a person decides.
    ShowToPeople,
    /// This node's key signs its certificate, then the coordinator records it.
    Certify(Statement),
    /// It is a member that lost its log: the coordinator records it again, with the certificate it has.
    Readmit(Box<Member>),
}

impl Decision {
    fn refuse(reason: &str) -> Self {
        Self::Answer(JoinAnswer::Refused { reason: reason.to_owned() })
    }
}

/// A stranger that is being let in.
#[derive(Debug)]
pub(super) enum Admission {
    /// This node's key signs the certificate.
    Signing { waiting: Waiting, statement: Statement },
    /// The coordinator records the member. `is_answered`: the exchange has been told to ask again.
    Recording { waiting: Waiting, is_answered: bool, member: Box<Member>, welcome: Box<Welcome> },
}

/// An exchange that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    exchange: ExchangeId,
    /// Where the stranger listens.
    listen: SocketAddr,
    until: Time,
}

impl Admission {
    pub(super) fn deadline(&self) -> Time {
        match self {
            Self::Signing { waiting, .. } | Self::Recording { waiting, .. } => waiting.until,
        }
    }
}

impl Joining {
    /// A person lets in a stranger that has asked, whose name this returns. It learns of it when it asks again.
    pub fn invite(&mut self, node: NodeId) -> Option<String> {
        let request = self.requests.get_mut(&node)?;
        request.is_admitted = true;
        Some(request.name.clone())
    }

    pub(super) fn asked(&mut self, ctx: &Context<'_>, asked: Asked, out: &mut Vec<JoiningOutput>) {
        let decision = self.decide(ctx, &asked);
        tracing::trace!(peer = %asked.node, exchange = asked.exchange.0, ?decision, "asked to let a node in");
        let until = ctx.now.time + ANSWER_MAX;
        let waiting = Waiting { exchange: asked.exchange, listen: asked.listen(), until };
        match decision {
            Decision::Answer(with) => answer(out, asked.exchange, with),
            Decision::ShowToPeople => self.show_request(ctx, &asked, out),
            Decision::Certify(_) | Decision::Readmit(_) if self.admissions.len() >= ADMISSIONS_MAX => {
                answer(out, asked.exchange, JoinAnswer::Later);
            }
            Decision::Certify(statement) => {
                self.admission_last += 1;
                let id = SignId(self.admission_last);
                out.push(JoiningOutput::Effect(Effect::Sign { id, statement: statement.clone() }));
                self.admissions.insert(id.0, Admission::Signing { waiting, statement });
            }
            Decision::Readmit(member) => {
                self.admission_last += 1;
                self.record(ctx, self.admission_last, waiting, *member, out);
            }
        }
    }

    /// What becomes of a stranger's question. Changes nothing.
    fn decide(&self, ctx: &Context<'_>, asked: &Asked) -> Decision {
        let Asked { node, ask, .. } = asked;
        if ask.group != ctx.config.group {
            return Decision::refuse("it belongs to another group");
        }
        if ask.probe {
            let (name, fresh) = (ctx.config.name.clone(), ctx.is_fresh());
            return Decision::Answer(JoinAnswer::Here { name, fresh });
        }
        if ctx.state.is_removed(*node) {
            let reason = "this node was removed from the cluster, for good; `exo leave` makes it a new one";
            return Decision::refuse(reason);
        }
        if !ask.fresh {
            return Decision::refuse("a node with a cluster of its own cannot join another");
        }
        if self.is_leaving(ctx.me(), *node) {
            return Decision::Answer(JoinAnswer::Later);
        }
        if let Some(elsewhere) = self.elsewhere(ctx, *node) {
            return Decision::Answer(elsewhere);
        }
        if let Some(member) = ctx.state.members().get(node) {
            return Decision::Readmit(Box::new(member.clone()));
        }
        let is_invited = self.requests.get(node).is_some_and(|request| request.is_admitted);
        if is_invited || (asked.is_near && ctx.is_window_open()) {
            certify(ctx, *node, &ask.name)
        } else {
            Decision::ShowToPeople
        }
    }

    /// Points `asker` to where this fresh node and it are both going: a cluster that has members, or else a fresh node lower
    /// than this one. Letting it in here would make a second cluster, and clusters with members never join each other.
    fn elsewhere(&self, ctx: &Context<'_>, asker: NodeId) -> Option<JoinAnswer> {
        let candidates = self.strangers.iter().filter(|(node, s)| **node != asker && !s.has_failed);
        let mut fresh = candidates.clone().filter(|(node, s)| s.is_fresh && **node < ctx.me());
        let mut with_members = candidates.filter(|(_, s)| !s.is_fresh && !s.addresses.is_empty());
        let home = with_members.next().or_else(|| fresh.next());
        let (node, stranger) = home.filter(|_| ctx.is_fresh())?;
        let is_recent = ctx.now.time.since(stranger.first_seen) < ELSEWHERE_MAX;
        is_recent.then(|| JoinAnswer::Elsewhere { node: *node, addresses: stranger.addresses.clone() })
    }

    /// The window is shut: shows the request to people, and tells the asker what to do.
    fn show_request(&mut self, ctx: &Context<'_>, asked: &Asked, out: &mut Vec<JoiningOutput>) {
        let (node, name) = (asked.node, known_name(asked.node, &asked.ask.name));
        let id = node.to_instance_name();
        let reason = format!("its join window is shut; let this node in there with `exo admit {id}`");
        answer(out, asked.exchange, JoinAnswer::Refused { reason });
        let last_asked = ctx.now.time;
        if let Some(request) = self.requests.get_mut(&node) {
            request.last_asked = last_asked;
            return;
        }
        if self.requests.len() >= REQUESTS_MAX {
            // Throw-away keys must not keep the one a person waits for out of sight.
            let others = self.requests.iter().filter(|(_, request)| !request.is_admitted);
            let oldest = others.min_by_key(|(_, request)| request.last_asked).map(|(node, _)| *node);
            oldest.map(|node| self.requests.remove(&node));
        }
        let request = Request { name: name.clone(), listen: asked.listen(), last_asked, is_admitted: false };
        self.requests.insert(node, request);
        out.push(JoiningOutput::Stale);
        notice(out, Notice::Asks { node, name, words: check_words(ctx.me(), node) });
    }

    /// The answer to [`Effect::Sign`].
    pub fn signed(
        &mut self,
        ctx: &Context<'_>,
        id: SignId,
        certificate: Vec<u8>,
        out: &mut Vec<JoiningOutput>,
    ) {
        match self.admissions.remove(&id.0) {
            Some(Admission::Signing { waiting, statement }) => {
                let Statement { node, name, .. } = statement;
                let member = Member { node, name, role: Role::Worker, certificate };
                self.record(ctx, id.0, waiting, member, out);
            }
            Some(recording) => {
                tracing::trace!(sign = id.0, "a second signature");
                self.admissions.insert(id.0, recording);
            }
            None => tracing::trace!(sign = id.0, last = self.admission_last, "a signature too late"),
        }
        self.advance(ctx, out);
    }

    /// Has the coordinator record the member.
    fn record(
        &mut self,
        ctx: &Context<'_>,
        admission: u64,
        waiting: Waiting,
        member: Member,
        out: &mut Vec<JoiningOutput>,
    ) {
        let Some(welcome) = welcome(ctx, &member) else {
            return answer(out, waiting.exchange, JoinAnswer::Later);
        };
        out.push(JoiningOutput::AskCoordinator { admission, ask: ControlAsk::Admit(member.clone()) });
        let (member, welcome) = (Box::new(member), Box::new(welcome));
        self.admissions
            .insert(admission, Admission::Recording { waiting, is_answered: false, member, welcome });
    }

    /// The answer to [`JoiningOutput::AskCoordinator`]; `None` if the coordinator gave none in time.
    pub fn admission_answered(
        &mut self,
        ctx: &Context<'_>,
        admission: u64,
        reply: Option<ControlReply>,
        out: &mut Vec<JoiningOutput>,
    ) {
        match self.admissions.remove(&admission) {
            Some(Admission::Recording { waiting, is_answered, member, welcome }) => {
                let with = match reply {
                    Some(ControlReply::Done) => {
                        self.admitted(ctx, &member, waiting.listen, out);
                        JoinAnswer::Welcome(welcome)
                    }
                    Some(ControlReply::Refused { refusal: ControlRefusal::NotCoordinator, .. }) => {
                        JoinAnswer::Later // another one coordinates, or is being elected
                    }
                    Some(ControlReply::Refused { message, .. }) => JoinAnswer::Refused { reason: message },
                    _ => JoinAnswer::Later,
                };
                if is_answered {
                    tracing::trace!(admission, peer = %member.node, "the coordinator's answer comes too late");
                } else {
                    answer(out, waiting.exchange, with);
                }
            }
            Some(signing) => {
                tracing::trace!(admission, "an answer to a question not asked yet");
                self.admissions.insert(admission, signing);
            }
            None => tracing::trace!(admission, last = self.admission_last, "an answer too late"),
        }
        self.advance(ctx, out);
    }

    /// A member is recorded because it asked here. It may connect before it hears of it.
    fn admitted(
        &mut self,
        ctx: &Context<'_>,
        member: &Member,
        listen: SocketAddr,
        out: &mut Vec<JoiningOutput>,
    ) {
        let node = member.node;
        if self.requests.remove(&node).is_some() {
            out.push(JoiningOutput::Stale);
        }
        self.strangers.remove(&node);
        out.push(JoiningOutput::MembersChanged);
        out.push(JoiningOutput::Prefer { node, address: listen });
        let words = check_words(ctx.me(), node);
        self.words.insert(node, words.clone());
        notice(out, Notice::Admitted { node, name: member.name.clone(), words });
    }

    /// Answers exchanges whose time is over. What the coordinator says about them still counts for a while: it may
    /// record the member all the same.
    pub(super) fn expire_admissions(&mut self, ctx: &Context<'_>, out: &mut Vec<JoiningOutput>) {
        let now = ctx.now.time;
        self.admissions.retain(|number, admission| {
            if now < admission.deadline() {
                return true;
            }
            tracing::trace!(admission = number, ?admission, "an admission takes too long");
            match admission {
                Admission::Signing { waiting, .. } => {
                    answer(out, waiting.exchange, JoinAnswer::Later);
                    false
                }
                Admission::Recording { waiting, is_answered, .. } => {
                    let is_over = std::mem::replace(is_answered, true);
                    if !is_over {
                        answer(out, waiting.exchange, JoinAnswer::Later);
                        waiting.until = now + LATE_ANSWER_MAX;
                    }
                    !is_over
                }
            }
        });
    }
}

/// What this node's key would sign for a stranger, if it may.
fn certify(ctx: &Context<'_>, node: NodeId, name: &str) -> Decision {
    let me = ctx.me();
    if !ctx.state.admins().any(|admin| admin == me) {
        return Decision::refuse("it is not an admin of its cluster; ask the founder's node");
    }
    let Some((cluster, _)) = ctx.state.cluster() else {
        return Decision::refuse("it has no cluster yet");
    };
    let name = known_name(node, name);
    let (cluster, role) = (ClusterId(cluster.0), exo_identity::Role::Worker);
    Decision::Certify(Statement::new(me, cluster, node, &name, role, ctx.now.unix_s))
}

/// Whether an admin of this cluster certified the member: what the coordinator checks before it records one.
pub fn check_certificate(state: &State, member: &Member) -> Result<(), String> {
    let certificate = MemberCert::decode(&member.certificate).map_err(|e| e.to_string())?;
    let Statement { node, cluster, .. } = certificate.statement;
    if node != member.node || state.cluster().is_none_or(|(id, _)| id.0 != cluster.0) {
        return Err("the certificate is for another node or cluster".to_owned());
    }
    certificate.verify(|key| state.admins().any(|admin| admin == *key)).map_err(|e| e.to_string())
}

/// What a new member needs to know; `None` while no one coordinates.
fn welcome(ctx: &Context<'_>, member: &Member) -> Option<Welcome> {
    let (_, coordinator) = ctx.leader?;
    let (cluster, _) = ctx.state.cluster()?;
    // If this node coordinates, the new member has just reached it.
    let is_own = coordinator == ctx.me();
    Some(Welcome {
        name: ctx.config.name.clone(),
        cluster: cluster.0,
        certificate: member.certificate.clone(),
        coordinator,
        coordinator_addresses: if is_own { Vec::new() } else { (ctx.addresses)(coordinator) },
    })
}

fn answer(out: &mut Vec<JoiningOutput>, exchange: ExchangeId, answer: JoinAnswer) {
    out.push(JoiningOutput::Effect(Effect::Joining(JoinEffect::Answer { exchange, answer })));
}
