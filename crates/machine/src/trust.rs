//! The log of trust of this node: what is on disk, what is on its way there, what this node is to sign; and
//! how members bring each other up to date.
//!
//! Who may do what is decided by `exo_trust` alone, for each entry, wherever it comes from. Entries travel
//! between any two members: each says what it has when a link opens and every few seconds, who lacks
//! something asks for it. What an entry changes takes effect when it is on disk.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use exo_cluster::CoordinatorInput;
use exo_cluster::wire::ControlMessage;
use exo_trust::{Act, ActError, Entry, EntryId, InsertError, Inserted, Statement, TrustLog, View};
use exo_types::{NodeId, Time};
use serde::{Deserialize, Serialize};

use crate::persist::{ActAsker, Durable, LOG_WRITE_MAX, TrustWrite};
use crate::{ActRefusal, Answer, Effect, NodeMachine, Notice, SignId, WriteFailure};

/// Acts that may wait for their signature; more are refused.
const ACTS_MAX: usize = 64;
/// Bytes of entries in one message.
const ENTRIES_BYTES_MAX: usize = 256 << 10;
/// Ids in one message.
const IDS_MAX: usize = 64;
/// Entries in one message.
const ENTRIES_MAX: usize = 1024;
/// Until a write is tried again of which no one knows whether it will last.
const AGAIN_AFTER: Duration = Duration::from_secs(2);
/// Between two times that a person is told that the log cannot be written: a full disk refuses it every
/// second.
const FAILURE_TOLD_AGAIN: Duration = Duration::from_secs(60);
/// Between two answers to one member that asks for entries: each may be [`ENTRIES_BYTES_MAX`].
const ANSWER_EVERY: Duration = Duration::from_millis(100);

/// Between two times that members are told what is here, beside links that open and entries that are written.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// What members tell each other of their logs of trust.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TrustMessage {
    /// Whose log it is about: a node that joins is told of another's.
    pub cluster: EntryId,
    /// Entries that the sender has: those that no other follows, and some before them.
    pub known: Vec<EntryId>,
    /// Question, answer or entries.
    pub what: TrustNews,
}

/// What a [`TrustMessage`] is for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TrustNews {
    /// Only to say what the sender has.
    Known,
    /// Asks for what the sender lacks.
    Pull,
    /// Entries in their encoding, each after what it follows.
    Entries(Vec<Vec<u8>>),
}

impl TrustMessage {
    /// The message as bytes.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("plain fields in memory always serialise")
    }

    /// Whether it has no more in it than an honest node sends.
    pub(crate) fn is_bounded(&self) -> bool {
        let entries = match &self.what {
            TrustNews::Entries(entries) => entries.as_slice(),
            TrustNews::Known | TrustNews::Pull => &[],
        };
        let bytes: usize = entries.iter().map(Vec::len).sum();
        self.known.len() <= IDS_MAX && entries.len() <= ENTRIES_MAX && bytes <= ENTRIES_BYTES_MAX
    }

    /// Reads [`TrustMessage::encode`]'s bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, postcard::Error> {
        postcard::from_bytes(bytes)
    }
}

/// What this node knows of its cluster's log of trust.
#[derive(Debug)]
pub(crate) struct Trust {
    durable: TrustLog,
    /// With what is on its way there.
    planned: TrustLog,
    /// To be signed, one after the other, so that each follows the one before.
    acts: VecDeque<(ActAsker, Act)>,
    /// Who waits for an act, signed or not, the longest first; since when, by the time in which the node ran.
    asked: VecDeque<(Time, ActAsker)>,
    /// Was written to the last of our knowledge, and may not stay: it is written again, at this time. Until
    /// it is sure, it is neither told to anybody nor taken back.
    unsure: Option<(Time, TrustWrite)>,
    /// When it was last said that the log cannot be written, until it can.
    failure_told: Option<Time>,
    /// Who waits for what is planned and not on its way to disk.
    unwritten: Vec<ActAsker>,
    /// When members were last answered that asked for entries.
    answered: BTreeMap<NodeId, Time>,
    signing: Option<(SignId, ActAsker, Statement)>,
    sign_last: u64,
    /// Admins whose key is in two places, and of whom that was said.
    forked_told: BTreeSet<NodeId>,
    /// When members are told again what is here.
    tell_at: Time,
    #[cfg(feature = "planted")]
    pub(crate) hearsay: BTreeSet<NodeId>,
}

impl Trust {
    pub(crate) fn new(log: TrustLog) -> Self {
        Self {
            planned: log.clone(),
            durable: log,
            acts: VecDeque::new(),
            asked: VecDeque::new(),
            unsure: None,
            failure_told: None,
            unwritten: Vec::new(),
            answered: BTreeMap::new(),
            signing: None,
            sign_last: 0,
            forked_told: BTreeSet::new(),
            tell_at: Time::ZERO,
            #[cfg(feature = "planted")]
            hearsay: BTreeSet::new(),
        }
    }

    /// The log on disk.
    pub(crate) fn log(&self) -> &TrustLog {
        &self.durable
    }

    /// Who will belong to the cluster by what is signed here and taken in from others, on disk or not.
    pub(crate) fn planned_view(&self) -> &View {
        self.planned.view()
    }

    fn message(&self, what: TrustNews) -> TrustMessage {
        TrustMessage { cluster: self.durable.cluster(), known: self.durable.known(), what }
    }

    /// Who belongs to the cluster.
    pub(crate) fn view(&self) -> &View {
        self.durable.view()
    }

    /// Ends a wait; whether somebody still waited.
    fn is_awaited(&mut self, asker: ActAsker) -> bool {
        let at = self.asked.iter().position(|(_, waiting)| *waiting == asker);
        at.is_some_and(|at| self.asked.remove(at).is_some())
    }

    /// Drops an act that is not signed; `false` if it is, and may be on disk.
    fn drop_unsigned(&mut self, asker: ActAsker) -> bool {
        let at = self.acts.iter().position(|(waiting, _)| *waiting == asker);
        at.is_some_and(|at| self.acts.remove(at).is_some())
            || self.signing.take_if(|(_, signing, _)| *signing == asker).is_some()
    }

    /// Else acts wait, of which there are only so many.
    fn may_sign(&self) -> bool {
        self.signing.is_none() && self.unsure.is_none() && self.unwritten.len() < ACTS_MAX
    }
}

/// What somebody lacks who knows these, as much as goes into one message.
fn entries_for(log: &TrustLog, known: &[EntryId]) -> Vec<Vec<u8>> {
    let mut bytes = 0;
    let encoded = log.missing(known).map(Entry::encode);
    encoded
        .take(ENTRIES_MAX)
        .take_while(|entry| {
            bytes += entry.len();
            bytes <= ENTRIES_BYTES_MAX
        })
        .collect()
}

impl NodeMachine {
    // ---- what this node signs ----

    /// Has this node's key sign a change of the members, if it may. Whoever asks hears when it is on disk, or
    /// why it is not, or before long that no one knows.
    pub(crate) fn change_members(&mut self, asker: ActAsker, act: Act) {
        self.trust.asked.push_back((self.awake.ran(), asker));
        if self.trust.acts.len() >= ACTS_MAX {
            return self.acted(asker, Err(ActRefusal::TooMany { max: ACTS_MAX }));
        }
        self.trust.acts.push_back((asker, act));
        self.sign_next();
    }

    /// Has the next act signed, if none is, this node stays where it is, and the disk keeps up.
    pub(crate) fn sign_next(&mut self) {
        // What a move that came to nothing held up.
        if self.moving_in.is_none() && !self.trust.unwritten.is_empty() {
            self.write_trust(None);
        }
        while self.trust.may_sign() && self.moving_in.is_none() {
            let Some((asker, act)) = self.trust.acts.pop_front() else { return };
            let may = self.may_act(asker);
            let statement = || {
                let statement = self.trust.planned.statement(self.me, self.now.unix_s, act);
                statement.map_err(|error| self.impossible(error))
            };
            match may.and_then(|()| statement()) {
                Err(refusal) => self.acted(asker, Err(refusal)),
                Ok(statement) => {
                    self.trust.sign_last += 1;
                    let id = SignId(self.trust.sign_last);
                    self.out.push(Effect::Sign { id, bytes: statement.to_sign() });
                    self.trust.signing = Some((id, asker, statement));
                }
            }
        }
    }

    fn may_act(&mut self, asker: ActAsker) -> Result<(), ActRefusal> {
        match asker {
            // The window may have shut since the stranger asked, also by what is on its way to disk.
            ActAsker::Admission(admission) => {
                let view = self.trust.planned.view().clone();
                self.with_joining(|joining, context, _| joining.may_record(context, admission, &view))
            }
            ActAsker::Client(_) => self.check_admin(),
            ActAsker::Nobody => Ok(()),
        }
    }

    /// The answer to [`Effect::Sign`]. What nobody has seen yet may still be left undone: a person may have
    /// refused the stranger meanwhile.
    pub(crate) fn signed(&mut self, id: SignId, signature: [u8; 64]) {
        let Some((_, asker, statement)) = self.trust.signing.take_if(|(signing, ..)| *signing == id) else {
            return tracing::trace!(
                sign = id.0,
                last = self.trust.sign_last,
                "a signature that nobody waits for"
            );
        };
        if self.moving_in.is_some() {
            return self.acted(asker, Err(ActRefusal::Moving));
        }
        match self.may_act(asker) {
            Err(refusal) => self.acted(asker, Err(refusal)),
            Ok(()) => match self.trust.planned.insert(statement.signed(signature)) {
                Ok(_) => self.write_trust(Some(asker)),
                Err(error) => self.acted(asker, Err(error.into())),
            },
        }
        self.sign_next();
    }

    /// As the person who asked for it knows the node that it is about.
    fn impossible(&self, error: ActError) -> ActRefusal {
        let called = error.node().map_or_else(String::new, |node| {
            let (name, id) = (self.name_of(node), node.to_string());
            if name == id { id } else { format!("{name} ({id})") }
        });
        ActRefusal::Impossible { error, called }
    }

    fn acted(&mut self, asker: ActAsker, result: Result<(), ActRefusal>) {
        let is_awaited = self.trust.is_awaited(asker);
        match asker {
            ActAsker::Client(reply) if is_awaited => self.reply(reply, Answer::Acted(result)),
            ActAsker::Client(reply) => {
                tracing::trace!(
                    reply = reply.0,
                    ?result,
                    "of a change whose asker heard that this is not sure"
                );
            }
            ActAsker::Admission(admission) => {
                self.with_joining(|joining, context, out| {
                    joining.recorded(context, admission, result, out);
                });
            }
            ActAsker::Nobody => {
                if let Err(reason) = result {
                    tracing::info!(%reason, "a change of the members that nobody asked for was not made");
                }
            }
        }
    }

    /// Tells whoever has waited for long what is known. What is not signed is not signed any more; what is
    /// signed is written until the disk is sure.
    pub(crate) fn give_up_acts(&mut self) {
        let ran = self.awake.ran();
        let (within, mut is_any_dropped) = (LOG_WRITE_MAX, false);
        while let Some((_, asker)) = self.trust.asked.pop_front_if(|(since, _)| ran.since(*since) >= within) {
            if self.trust.drop_unsigned(asker) {
                // It is waited for once more, for this answer.
                self.trust.asked.push_front((ran, asker));
                self.acted(asker, Err(ActRefusal::NotSigned { within }));
                is_any_dropped = true;
                continue;
            }
            let refusal = ActRefusal::NotSure { within };
            match asker {
                ActAsker::Client(reply) => self.reply(reply, Answer::Acted(Err(refusal))),
                ActAsker::Admission(admission) => {
                    self.with_joining(|joining, _, out| joining.not_sure(admission, refusal, out));
                }
                ActAsker::Nobody => {}
            }
        }
        // It may have been the key that gave no answer.
        if is_any_dropped {
            self.sign_next();
        }
    }

    // ---- the disk ----

    /// Writes what is planned. One write at a time: what comes meanwhile goes with the next.
    fn write_trust(&mut self, asker: Option<ActAsker>) {
        self.trust.unwritten.extend(asker);
        if self.writes.is_trust_busy() || self.trust.unsure.is_some() {
            return;
        }
        let log = self.trust.planned.clone();
        #[cfg(feature = "planted")]
        if self.config.planted == Some(crate::planted::Bug::TrustEarly) {
            let entries = entries_for(&log, &self.trust.durable.known());
            for node in self.other_members() {
                self.tell_trust(node, TrustNews::Entries(entries.clone()));
            }
        }
        let askers = std::mem::take(&mut self.trust.unwritten);
        self.writes.trust(
            self.awake.ran(),
            TrustWrite { log, askers, is_move: false, is_repeated: false },
            &mut self.out,
        );
    }

    /// Moves to another cluster: its log of trust in place of this node's.
    pub(crate) fn write_other_trust(&mut self, log: TrustLog) {
        self.writes.trust(
            self.awake.ran(),
            TrustWrite { log, askers: Vec::new(), is_move: true, is_repeated: false },
            &mut self.out,
        );
    }

    /// Entries are on disk: they count from now on, and others are told.
    pub(crate) fn trust_written(&mut self, written: Durable<TrustWrite>) {
        let TrustWrite { log, askers, is_move, is_repeated: _ } = written.into_inner();
        let known = self.trust.durable.known();
        if is_move {
            let mut former = std::mem::replace(&mut self.trust, Trust::new(log));
            self.trust.asked = std::mem::take(&mut former.asked);
            let signing = former.signing.map(|(_, asker, _)| asker);
            let waiting = former.acts.into_iter().map(|(asker, _)| asker).chain(signing);
            let unsure = former.unsure.into_iter().flat_map(|(_, write)| write.askers);
            for asker in waiting.chain(former.unwritten).chain(unsure) {
                self.acted(asker, Err(ActRefusal::Moving));
            }
            return self.moved_in();
        }
        let entries = entries_for(&log, &known);
        (self.trust.durable, self.trust.failure_told) = (log, None);
        // Before the members change: who is removed by this still hears of it.
        let told: BTreeSet<NodeId> =
            self.other_members().into_iter().chain(self.members.iter().copied()).collect();
        for node in told {
            self.tell_trust(node, TrustNews::Entries(entries.clone()));
        }
        self.warn_of_forks();
        self.members_changed();
        for asker in askers {
            self.acted(asker, Ok(()));
        }
        if self.trust.planned != self.trust.durable && self.moving_in.is_none() {
            self.write_trust(None);
        }
        self.sign_next();
    }

    /// Entries were not written. If it is sure that they are not there, members are asked for theirs again,
    /// and what this node signed is as if it had not. Else a restart may find them: to forget them could be
    /// to sign two entries after the same one, and to tell of them could be to tell what no restart knows.
    pub(crate) fn trust_unwritten(&mut self, write: TrustWrite, failure: &WriteFailure) {
        let reason = &failure.reason;
        let now = self.now.time;
        if self.trust.failure_told.is_none_or(|at| now >= at + FAILURE_TOLD_AGAIN) {
            self.trust.failure_told = Some(now);
            self.notice(Notice::Warning(format!(
                "the log of trust cannot be written: {reason}; it is tried again until it can"
            )));
        }
        if failure.may_be_there || write.is_repeated {
            let write = TrustWrite { is_repeated: true, ..write };
            let former = self.trust.unsure.replace((self.now.time + AGAIN_AFTER, write));
            // Only a move comes after what is unsure, and it is tried until it is done.
            for asker in former.into_iter().flat_map(|(_, write)| write.askers) {
                self.acted(asker, Err(ActRefusal::Moving));
            }
            return;
        }
        if write.is_move {
            return self.move_failed();
        }
        self.trust.planned = self.trust.durable.clone();
        let waiting = std::mem::take(&mut self.trust.unwritten);
        for asker in write.askers.into_iter().chain(waiting) {
            self.acted(asker, Err(ActRefusal::NotWritten { reason: reason.clone() }));
        }
        self.sign_next();
    }

    /// Writes what may not stay once more. This cluster's log waits for a move to be over: behind it, it
    /// would undo it.
    pub(crate) fn write_trust_again(&mut self) {
        if self.writes.is_trust_busy() {
            return;
        }
        let (now, is_moving) = (self.now.time, self.moving_in.is_some());
        let is_due = |(at, write): &mut (Time, TrustWrite)| *at <= now && (write.is_move || !is_moving);
        if let Some((_, write)) = self.trust.unsure.take_if(is_due) {
            self.writes.trust(self.awake.ran(), write, &mut self.out);
        }
    }

    fn warn_of_forks(&mut self) {
        let forked = self.trust.durable.forked().difference(&self.trust.forked_told);
        for node in forked.copied().collect::<Vec<_>>() {
            self.trust.forked_told.insert(node);
            let (name, id) = (self.name_of(node), node.to_instance_name());
            self.notice(Notice::Forked { node: id, name });
        }
    }

    // ---- between members ----

    fn tell_trust(&mut self, to: NodeId, what: TrustNews) {
        let message = self.trust.message(what);
        self.send_control(to, ControlMessage::Trust(message.encode()));
    }

    /// Says to a member what is here: when its link opens.
    pub(crate) fn tell_trust_known(&mut self, to: NodeId) {
        self.tell_trust(to, TrustNews::Known);
    }

    /// Says it to all now and then: no one can hold an entry back for longer than one member reaches another.
    pub(crate) fn tell_trust_known_if_due(&mut self) {
        let now = self.now.time;
        if now < self.trust.tell_at {
            return;
        }
        self.trust.tell_at = now + TELL_EVERY;
        let message = self.trust.message(TrustNews::Known);
        self.send_to_members(&Arc::new(ControlMessage::Trust(message.encode())));
    }

    /// Asks who let this node in for all of its cluster's log of trust, or for what of it has not come yet.
    pub(crate) fn pull_trust_of(&mut self, node: NodeId) {
        if let Some((cluster, known)) = self.joining.wants_trust_of(node) {
            let message = TrustMessage { cluster, known, what: TrustNews::Pull };
            self.send_control(node, ControlMessage::Trust(message.encode()));
        }
    }

    pub(crate) fn trust_message(&mut self, from: NodeId, bytes: &[u8]) {
        let message = match TrustMessage::decode(bytes) {
            Ok(message) if message.is_bounded() => message,
            Ok(_) => {
                return tracing::warn!(peer = %from, bytes = bytes.len(), "a message about trust that is too long");
            }
            Err(error) => return tracing::warn!(peer = %from, %error, "a message about trust that is none"),
        };
        if message.cluster != self.trust.durable.cluster() {
            return self
                .with_joining(|joining, context, out| joining.trust_of_other(context, from, message, out));
        }
        match message.what {
            TrustNews::Pull => self.trust_pulled(from, &message.known),
            TrustNews::Known => self.pull_what_is_missing(from, &message.known),
            TrustNews::Entries(entries) => {
                // What of it no one takes would come again and again.
                if self.trust_entries(from, &entries) {
                    self.pull_what_is_missing(from, &message.known);
                }
            }
        }
    }

    fn trust_pulled(&mut self, from: NodeId, known: &[EntryId]) {
        let now = self.now.time;
        if self.trust.answered.get(&from).is_some_and(|at| now.since(*at) < ANSWER_EVERY) {
            return tracing::trace!(peer = %from, "asks for entries again at once");
        }
        self.trust.answered.retain(|_, at| now.since(*at) < ANSWER_EVERY);
        self.trust.answered.insert(from, now);
        let entries = entries_for(&self.trust.durable, known);
        self.tell_trust(from, TrustNews::Entries(entries));
    }

    fn pull_what_is_missing(&mut self, from: NodeId, theirs: &[EntryId]) {
        if self.moving_in.is_none() && theirs.iter().any(|id| !self.trust.planned.contains(*id)) {
            let (cluster, known) = (self.trust.durable.cluster(), self.trust.planned.known());
            let message = TrustMessage { cluster, known, what: TrustNews::Pull };
            self.send_control(from, ControlMessage::Trust(message.encode()));
        }
    }

    /// Takes in what is right of entries that somebody sent, and writes what is new. Whether something was.
    pub(crate) fn trust_entries(&mut self, from: NodeId, entries: &[Vec<u8>]) -> bool {
        let is_new = self.take_entries(from, entries);
        if is_new {
            self.write_trust(None);
        }
        is_new
    }

    /// Whether one of them was new. An entry that finds no room here, or that follows one of these, is passed
    /// over: what takes the rights of who filled the log comes behind it.
    fn take_entries(&mut self, from: NodeId, entries: &[Vec<u8>]) -> bool {
        let (mut is_new, mut passed_over) = (false, None);
        if self.moving_in.is_some() {
            tracing::trace!(peer = %from, "entries of a cluster that this node is about to leave");
            return false;
        }
        for bytes in entries {
            let entry = match Entry::decode(bytes) {
                Ok(entry) => entry,
                Err(error) => {
                    tracing::warn!(peer = %from, %error, "an entry of the log of trust is none");
                    break;
                }
            };
            #[cfg(feature = "planted")]
            if self.config.planted == Some(crate::planted::Bug::Hearsay)
                && let Act::Admit { node, .. } = &entry.statement().act
            {
                self.trust.hearsay.insert(*node);
            }
            match self.trust.planned.insert(entry) {
                Ok(inserted) => is_new |= inserted == Inserted::New,
                Err(
                    error @ (InsertError::Full { .. } | InsertError::Late { .. } | InsertError::Gap { .. }),
                ) => passed_over = passed_over.or(Some(error)),
                // Those behind it are as bad.
                Err(error) => {
                    tracing::warn!(peer = %from, %error, "an entry of the log of trust is refused");
                    break;
                }
            }
        }
        if let Some(error) = passed_over {
            tracing::warn!(peer = %from, %error, "entries of the log of trust find no room: this is the first");
        }
        is_new
    }

    // ---- what follows from it ----

    /// Whether this node may sign.
    pub(crate) fn is_admin(&self) -> bool {
        self.trust.view().admins().any(|admin| admin == self.me)
    }

    /// Whether the cluster of this node has put it out.
    pub(crate) fn is_removed(&self) -> bool {
        self.trust.view().removed().contains_key(&self.me)
    }

    /// Tells the coordinator who is a member.
    pub(crate) fn tell_members(&mut self) {
        let members = self.trust.view().members().iter();
        let members = members.map(|(node, member)| (*node, member.name.clone())).collect();
        self.feed_coordinator(CoordinatorInput::Members(members));
    }
}
