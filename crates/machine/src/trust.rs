//! The log of trust of this node: what is on disk, what is on its way there, what this node is to sign; and how members bring each
//! other up to date.
//!
//! Who may do what is decided by `exo_trust` alone, for each entry, wherever it comes from. Entries travel between any two members: each
//! names its heads when a link opens and with its reports, who lacks one asks for what it lacks. What an entry changes takes effect
//! when it is on disk.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use exo_cluster::CoordinatorInput;
use exo_cluster::wire::ControlMessage;
use exo_trust::{Act, Entry, EntryId, Inserted, Statement, TrustLog, View};
use exo_types::NodeId;
use serde::{Deserialize, Serialize};

use crate::persist::{Durable, TrustWrite};
use crate::{Answer, Effect, NodeMachine, Notice, ReplyId, SignId};

/// Acts that may wait for their signature; more are refused.
const ACTS_MAX: usize = 64;
/// Bytes of entries in one message.
const ENTRIES_BYTES_MAX: usize = 256 << 10;
/// Heads in one message. An honest cluster has one, and as many as admins acted apart where halves meet.
const HEADS_MAX: usize = 64;

/// What members tell each other of their logs of trust.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TrustMessage {
    /// Whose log it is about: a node that joins is told of another's.
    pub cluster: EntryId,
    /// The sender's entries that no other follows.
    pub heads: Vec<EntryId>,
    /// What.
    pub what: TrustNews,
}

/// What a [`TrustMessage`] is for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TrustNews {
    /// Only to say the heads.
    Heads,
    /// Asks for what the sender lacks, which knows its heads and what they follow.
    Pull,
    /// Entries in their encoding, each after what it follows.
    Entries(Vec<Vec<u8>>),
}

impl TrustMessage {
    /// The message as bytes.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("plain fields in memory always serialise")
    }

    /// Reads [`TrustMessage::encode`]'s bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, postcard::Error> {
        postcard::from_bytes(bytes)
    }
}

/// Who waits for an act.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ActAsker {
    /// Somebody at the API.
    Client(ReplyId),
    /// A stranger that is being let in.
    Admission(u64),
    /// Nobody.
    Nobody,
}

/// What this node knows of its cluster's log of trust.
#[derive(Debug)]
pub(crate) struct Trust {
    /// What is on disk.
    durable: TrustLog,
    /// With what is on its way there.
    planned: TrustLog,
    /// To be signed, one after the other, so that each follows the one before.
    acts: VecDeque<(ActAsker, Act)>,
    signing: Option<(SignId, ActAsker, Statement)>,
    sign_last: u64,
    /// Admins whose key is in two places, and of whom that was said.
    forked_told: BTreeSet<NodeId>,
    #[cfg(feature = "planted")]
    pub(crate) hearsay: BTreeSet<NodeId>,
}

impl Trust {
    pub(crate) fn new(log: TrustLog) -> Self {
        Self {
            planned: log.clone(),
            durable: log,
            acts: VecDeque::new(),
            signing: None,
            sign_last: 0,
            forked_told: BTreeSet::new(),
            #[cfg(feature = "planted")]
            hearsay: BTreeSet::new(),
        }
    }

    /// The log on disk.
    pub(crate) fn log(&self) -> &TrustLog {
        &self.durable
    }

    /// Who belongs to the cluster.
    pub(crate) fn view(&self) -> &View {
        self.durable.view()
    }
}

fn heads(log: &TrustLog) -> Vec<EntryId> {
    log.heads().iter().copied().take(HEADS_MAX).collect()
}

/// What somebody lacks who knows these, as much as goes into one message.
fn entries_for(log: &TrustLog, known: &[EntryId]) -> Vec<Vec<u8>> {
    let mut bytes = 0;
    let encoded = log.missing(known).map(Entry::encode);
    encoded
        .take_while(|entry| {
            bytes += entry.len();
            bytes <= ENTRIES_BYTES_MAX
        })
        .collect()
}

impl NodeMachine {
    // ---- what this node signs ----

    /// Has this node's key sign a change of the members, if it may. Whoever asks hears when it is on disk, or why it is not.
    pub(crate) fn change_members(&mut self, asker: ActAsker, act: Act) {
        if self.trust.acts.len() >= ACTS_MAX {
            let message = format!("{ACTS_MAX} changes of the members wait already; try again");
            return self.acted(asker, Err(message));
        }
        self.trust.acts.push_back((asker, act));
        self.sign_next();
    }

    fn sign_next(&mut self) {
        while self.trust.signing.is_none() && self.moving_in.is_none() {
            let Some((asker, act)) = self.trust.acts.pop_front() else { return };
            let may = match asker {
                // The window may have shut since the stranger asked.
                ActAsker::Admission(admission) => {
                    self.with_joining(|joining, context, _| joining.may_record(context, admission))
                }
                ActAsker::Client(_) | ActAsker::Nobody => Ok(()),
            };
            let statement = || {
                let statement = self.trust.planned.statement(self.me, self.now.unix_s, act);
                statement.map_err(|error| error.to_string())
            };
            match may.and_then(|()| statement()) {
                Err(message) => self.acted(asker, Err(message)),
                Ok(statement) => {
                    self.trust.sign_last += 1;
                    let id = SignId(self.trust.sign_last);
                    self.out.push(Effect::Sign { id, bytes: statement.to_sign() });
                    self.trust.signing = Some((id, asker, statement));
                }
            }
        }
    }

    /// The answer to [`Effect::Sign`].
    pub(crate) fn signed(&mut self, id: SignId, signature: [u8; 64]) {
        let Some((_, asker, statement)) = self.trust.signing.take_if(|(signing, ..)| *signing == id) else {
            return tracing::trace!(
                sign = id.0,
                last = self.trust.sign_last,
                "a signature that nobody waits for"
            );
        };
        match self.trust.planned.insert(statement.signed(signature)) {
            Ok(_) => self.write_trust(Some(asker)),
            Err(error) => self.acted(asker, Err(error.to_string())),
        }
        self.sign_next();
    }

    fn acted(&mut self, asker: ActAsker, result: Result<(), String>) {
        match asker {
            ActAsker::Client(reply) => self.reply(reply, Answer::Acted(result)),
            ActAsker::Admission(admission) => {
                self.with_joining(|joining, context, out| {
                    joining.recorded(context, admission, result, out);
                });
            }
            ActAsker::Nobody => {
                if let Err(reason) = result {
                    tracing::info!(reason, "a change of the members that nobody asked for was not made");
                }
            }
        }
    }

    // ---- the disk ----

    fn write_trust(&mut self, asker: Option<ActAsker>) {
        let log = self.trust.planned.clone();
        #[cfg(feature = "planted")]
        if self.config.planted == Some(crate::planted::Bug::TrustEarly) {
            let entries = entries_for(&log, &heads(&self.trust.durable));
            for node in self.other_members() {
                self.tell_trust(node, TrustNews::Entries(entries.clone()));
            }
        }
        self.writes.trust(self.now.time, TrustWrite { log, asker }, &mut self.out);
    }

    /// Moves to another cluster: its log of trust in place of this node's.
    pub(crate) fn write_other_trust(&mut self, log: TrustLog) {
        self.writes.trust(self.now.time, TrustWrite { log, asker: None }, &mut self.out);
    }

    /// Entries are on disk: they count from now on, and others are told.
    pub(crate) fn trust_written(&mut self, written: Durable<TrustWrite>) {
        let TrustWrite { log, asker } = written.into_inner();
        let is_other = log.cluster() != self.trust.durable.cluster();
        let known = heads(&self.trust.durable);
        if is_other {
            self.trust = Trust::new(log);
            return self.moved_in();
        }
        let entries = entries_for(&log, &known);
        self.trust.durable = log;
        // Before the members change: who is removed by this still hears of it.
        let told: BTreeSet<NodeId> =
            self.other_members().into_iter().chain(self.members.iter().copied()).collect();
        for node in told {
            self.tell_trust(node, TrustNews::Entries(entries.clone()));
        }
        self.warn_of_forks();
        self.members_changed();
        if let Some(asker) = asker {
            self.acted(asker, Ok(()));
        }
    }

    /// Entries could not be written: they are asked for again, and what this node signed is as if it had not.
    pub(crate) fn trust_unwritten(&mut self, asker: Option<ActAsker>, reason: &str) {
        if !self.writes.is_trust_busy() {
            self.trust.planned = self.trust.durable.clone();
        }
        if let Some(asker) = asker {
            self.acted(asker, Err(format!("the log of trust cannot be written: {reason}")));
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
        let (cluster, heads) = (self.trust.durable.cluster(), heads(&self.trust.durable));
        let message = TrustMessage { cluster, heads, what };
        self.send_control(to, ControlMessage::Trust(message.encode()));
    }

    /// Names the heads to a member: when its link opens.
    pub(crate) fn tell_heads(&mut self, to: NodeId) {
        self.tell_trust(to, TrustNews::Heads);
    }

    /// Names the heads to all: nobody can hold an entry back for longer than one member reaches another.
    pub(crate) fn tell_heads_to_all(&mut self) {
        let (cluster, heads) = (self.trust.durable.cluster(), heads(&self.trust.durable));
        let message = TrustMessage { cluster, heads, what: TrustNews::Heads };
        self.send_to_members(&Arc::new(ControlMessage::Trust(message.encode())));
    }

    /// Asks who let this node in for all of its cluster's log of trust, or for what of it has not come yet.
    pub(crate) fn pull_trust_of(&mut self, node: NodeId) {
        if let Some((cluster, heads)) = self.joining.wants_trust_of(node) {
            let message = TrustMessage { cluster, heads, what: TrustNews::Pull };
            self.send_control(node, ControlMessage::Trust(message.encode()));
        }
    }

    pub(crate) fn trust_message(&mut self, from: NodeId, bytes: &[u8]) {
        let message = match TrustMessage::decode(bytes) {
            Ok(message) => message,
            Err(error) => return tracing::warn!(peer = %from, %error, "a message about trust that is none"),
        };
        if message.cluster != self.trust.durable.cluster() {
            return self
                .with_joining(|joining, context, out| joining.trust_of_other(context, from, message, out));
        }
        match message.what {
            TrustNews::Pull => {
                let entries = entries_for(&self.trust.durable, &message.heads);
                self.tell_trust(from, TrustNews::Entries(entries));
            }
            TrustNews::Heads => self.pull_what_is_missing(from, &message.heads),
            TrustNews::Entries(entries) => {
                self.trust_entries(from, &entries);
                self.pull_what_is_missing(from, &message.heads);
            }
        }
    }

    /// Takes in what is right of entries that somebody sent, and writes what is new.
    pub(crate) fn trust_entries(&mut self, from: NodeId, entries: &[Vec<u8>]) {
        if self.take_entries(from, entries) {
            self.write_trust(None);
        }
    }

    fn pull_what_is_missing(&mut self, from: NodeId, theirs: &[EntryId]) {
        if self.moving_in.is_none() && theirs.iter().any(|id| !self.trust.planned.contains(*id)) {
            let (cluster, heads) = (self.trust.durable.cluster(), heads(&self.trust.planned));
            let message = TrustMessage { cluster, heads, what: TrustNews::Pull };
            self.send_control(from, ControlMessage::Trust(message.encode()));
        }
    }

    /// Whether one of them was new.
    fn take_entries(&mut self, from: NodeId, entries: &[Vec<u8>]) -> bool {
        let mut is_new = false;
        if self.moving_in.is_some() {
            tracing::trace!(peer = %from, "entries of a cluster that this node is about to leave");
            return false;
        }
        for bytes in entries {
            let entry = Entry::decode(bytes).map_err(|error| error.to_string());
            #[cfg(feature = "planted")]
            if self.config.planted == Some(crate::planted::Bug::Hearsay)
                && let Ok(Act::Admit { node, .. }) = entry.as_ref().map(|entry| &entry.statement().act)
            {
                self.trust.hearsay.insert(*node);
            }
            let inserted =
                entry.and_then(|e| self.trust.planned.insert(e).map_err(|error| error.to_string()));
            match inserted {
                Ok(inserted) => is_new |= inserted == Inserted::New,
                Err(error) => tracing::warn!(peer = %from, error, "an entry of the log of trust is refused"),
            }
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
