//! Whom to join and whom to let in. Discovery gives addresses; trust comes from the join exchange only.
//!
//! A node is *fresh* while its join window is open, it is alone, and no person has placed or added a model.
//! What a request loaded, the next one loads again elsewhere. Fresh nodes join what they
//! find: a cluster with members first, else the fresh node with the lowest key, so that several fresh nodes
//! starting together end up in one cluster. A node that is alone and not fresh joins whom a person named
//! (`--peer`) and no one else; one with members, no one. A cluster that a person took this node out of
//! (`exo leave`) it joins by a code only.
//!
//! | step of the one who joins | step of the one who lets in |
//! |---|---|
//! | `found`: a stranger is remembered | |
//! | `asking`: a join exchange with the best of them | `admitting`: `decide` |
//! | | its key signs an entry of the log of trust, which is written |
//! | the answer is a [`Welcome`]: both may connect now (`members`) | the answer goes out |
//! | that log comes (`trust_of_other`), is checked entry by entry, and replaces the own one ([`MoveIn`]) | |
//!
//! **Architecture invariant:** the wall clock is only compared with the join window and written into entries
//! of the log of trust.

mod admitting;
mod asking;
mod by_code;
mod catching_up;
mod dials;
mod left;
mod opened;
mod requests;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use exo_cluster::State;
use exo_trust::{Act, TrustLog, View};
use exo_types::{Epoch, NodeId, Time};

pub use crate::join_failures::{JoinFailure, NotLetIn};
pub use crate::join_messages::{
    Code, JoinAnswer, JoinAsk, JoinByCode, JoinPurpose, JoinRefusal, JoinedByCode, Welcome,
};

use crate::{
    DiscoveredNode, Effect, JoinEffect, JoinEvent, LeftCluster, MachineConfig, Notice, Now, ProbeFailure,
};
use admitting::Admission;
use asking::{ATTEMPT_SLACK, Attempt, Grant};
use by_code::ByCode;
use catching_up::TrustPoll;
use dials::Dials;
use left::Left;
use opened::Opened;
pub use requests::Request;
use requests::Requests;

/// How long the join window of a new cluster is open, at most.
pub const JOIN_WINDOW_S: u64 = 600;
/// How far a clock may be behind the one that opened the window: clocks are set by the network.
const CLOCK_SLACK_S: u64 = 60;
/// A fresh node looks around this long before it decides whom to join.
const LOOK_AROUND: Duration = Duration::from_millis(400);
/// Without a stranger for so long, a node begins to look around anew with the next.
const SILENCE: Duration = Duration::from_secs(20);
/// How long a stranger is left alone that did not answer; it doubles each time.
const SILENT_FIRST: Duration = Duration::from_secs(1);
/// It doubles no further.
const SILENT_MAX: Duration = Duration::from_secs(15);
/// Between two probes of an address of `--peer`.
const PROBE_EVERY: Duration = Duration::from_secs(2);
/// Where no one was found so often in a row, the person who named the address hears of it.
const PROBES_FAILED_SAID: u32 = 5;
/// One exchange lasts no longer once the key is proven.
const EXCHANGE_MAX: Duration = Duration::from_secs(5);
/// A stranger that no person named has so long to prove its key, at all of its addresses together.
const PROOF_MAX: Duration = Duration::from_secs(2);
/// One that a person named has longer: it may be far away.
const PROOF_NAMED_MAX: Duration = Duration::from_secs(7);
/// A goodbye in a stranger's name is not believed for so long after it has proven its key.
const PROOF_LASTS: Duration = Duration::from_secs(10);
/// Nodes remembered that are no members.
const STRANGERS_MAX: usize = 64;
/// Addresses remembered of each.
const ADDRESSES_MAX: usize = 16;
/// Longest name of a stranger, in characters.
const NAME_CHARS_MAX: usize = 64;
/// The deadline of a machine that waits for nothing.
const NEVER: Time = Time(u64::MAX);

/// What joining needs to know of the rest of the node. When anything in it but `now` has changed,
/// [`Joining::timer`] is called, so that what waited for it goes on.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The time of this input.
    pub now: Now,
    /// What this node is.
    pub config: &'a MachineConfig,
    /// What is placed in this node's cluster.
    pub state: &'a State,
    /// Who belongs to it.
    pub trust: &'a TrustLog,
    /// Who may connect, without this node.
    pub members: &'a BTreeSet<NodeId>,
    /// Who coordinates.
    pub leader: Option<(Epoch, NodeId)>,
    /// When the join window is over by the time that nodes have run with it open.
    pub window_ends: Time,
    /// Whether a model came to this node's disk since then.
    pub has_new_model: bool,
    /// Whether requests of this node's clients run: moving to another cluster would end them.
    pub is_busy: bool,
    /// Where a member may be reached, best first.
    pub addresses: &'a dyn Fn(NodeId) -> Vec<SocketAddr>,
    /// Whether control messages reach a node.
    pub is_linked: &'a dyn Fn(NodeId) -> bool,
}

impl Context<'_> {
    /// Whether this node is alone in a cluster of its own.
    pub fn is_alone(&self) -> bool {
        self.trust.view().members().keys().eq([&self.me()])
    }

    /// Whether this node may still move to a cluster that it finds, without a person's word: nothing would be
    /// lost.
    pub fn is_fresh(&self) -> bool {
        self.is_alone() && !self.state.is_used() && !self.has_new_model && self.is_window_open()
    }

    /// Whether this node may leave its own cluster for another now; `is_named`: a person named who lets it
    /// in.
    fn may_move(&self, is_named: bool) -> bool {
        self.is_alone() && !self.is_busy && (is_named || self.is_fresh())
    }

    /// Whether strangers on the local network join on sight: neither the wall clock nor the time that nodes
    /// have run has ended that.
    pub fn is_window_open(&self) -> bool {
        self.is_window_open_by(self.trust.view())
    }

    /// The same, by what will be on disk.
    fn is_window_open_by(&self, view: &View) -> bool {
        !self.config.trust_closed && is_window_open(view, self.now, self.window_ends)
    }

    fn me(&self) -> NodeId {
        self.config.me
    }
}

/// What joining wants done, in order.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum JoiningOutput {
    /// Something for the world.
    Effect(Effect),
    /// Sign and write this, if [`Joining::may_record`] still says so. Answer [`Joining::recorded`].
    Act {
        /// Comes back with the answer.
        admission: u64,
        act: Act,
    },
    /// A member may be at these addresses as well: remember them behind those known and dial without waiting
    /// longer.
    Learn {
        node: NodeId,
        addresses: Vec<SocketAddr>,
        /// Also beyond the networks that this machine is on: a person let it in there.
        is_vouched: bool,
    },
    /// A member was reached there: try this address first.
    Prefer { node: NodeId, address: SocketAddr },
    /// The cluster's members or [`Joining::members`] have changed, and with them who may connect.
    MembersChanged,
    /// Ask this node for its log of trust if its control link is open. If not, [`Joining::wants_trust_of`]
    /// says so then.
    Pull(NodeId),
    /// Somebody has sent entries of this cluster's log of trust: check them and take them in.
    Entries { from: NodeId, entries: Vec<Vec<u8>> },
    /// Replace the log of trust by that of another cluster, and forget the own placements. Answer
    /// [`Joining::moved_in`].
    MoveIn(Box<MoveIn>),
    /// What the view shows of joining has changed.
    Stale,
    /// No one is found at an address of `--peer`, which is as the person wrote it: they should know this
    /// until somebody is.
    PeerSilent { peer: String, text: String },
    /// Somebody is, at last.
    PeerFound { peer: String },
}

/// The cluster that let this node in.
#[derive(Clone, PartialEq, Debug)]
pub struct MoveIn {
    /// Its log of trust: complete, every entry checked, with this node among the members.
    pub trust: TrustLog,
    /// Who let this node in.
    pub by: NodeId,
    /// The four words both sides show.
    pub words: String,
}

/// Who else is out there, whom this node asks to be let in, and who asks it.
#[derive(Debug)]
pub struct Joining {
    strangers: BTreeMap<NodeId, Stranger>,
    /// When the first of them was heard of, after a time without any.
    looking_since: Time,
    /// When one was heard of last.
    heard_at: Option<Time>,
    peers: Vec<ConfiguredPeer>,
    attempt: Option<Attempt>,
    /// Attempts at strangers that no person named, and that brought no answer.
    attempts_failed: u32,
    /// There were more strangers than there is room for.
    is_crowded: bool,
    /// Dials of strangers that no person named.
    dials: Dials,
    /// Dials of members that were announced: of their own, or a flood of the others would be one of these
    /// (decision 0078).
    member_dials: Dials,
    /// Addresses at which a key was proven and that held this node up, until when that counts.
    stalled: BTreeMap<IpAddr, Time>,
    grant: Option<Grant>,
    /// Clusters that this node left.
    left: Left,
    /// Strangers that asked while the window was shut.
    requests: Requests,
    /// The door that a person has opened at this node.
    opened: Opened,
    admissions: BTreeMap<u64, Admission>,
    /// Number of the last admission.
    admission_last: u64,
    /// A join that a person asked for.
    by_code: Option<ByCode>,
    /// Nodes that may know more of the log of trust and are not reached as members; when each is asked.
    trust_polls: BTreeMap<NodeId, TrustPoll>,
    /// Whose refusals the view shows.
    shown_refusals: BTreeSet<NodeId>,
    /// Words shown at admissions.
    words: BTreeMap<NodeId, String>,
    deadline: Time,
}

/// A node that is no member, as discovery, a probe or another node described it.
#[derive(Debug)]
struct Stranger {
    addresses: Vec<SocketAddr>,
    /// The addresses at which it was asked last.
    asked: Vec<SocketAddr>,
    name: String,
    is_fresh: bool,
    /// Discovery sees it, and takes it back when it is gone.
    is_discovered: bool,
    /// Configured with `--peer`: joined whatever its key.
    is_named: bool,
    /// Where it is by a person's word. What others say of it leads nowhere else.
    named_at: Vec<SocketAddr>,
    /// How often in a row it did not answer when it was asked.
    failures: u32,
    /// Refused when it was asked, as one that waits for a person does.
    has_refused: bool,
    /// Its last answer was a refusal.
    is_refusing: bool,
    /// Since when it answers that it should be asked later, and where it last did. Silence in between ends
    /// nothing: who is silent now and then would have its time anew each time, and hold up whoever waits for
    /// it.
    later: Option<(Time, IpAddr)>,
    /// How it refused when a person was last told.
    told: Option<Notice>,
    /// When that was, in seconds since 1970.
    told_unix_s: u64,
    /// When it last answered with its key.
    proven: Option<Time>,
    /// It is being asked who it is, and counts as failed then.
    probe_until: Option<Time>,
    first_seen: Time,
    /// Not asked before.
    next: Time,
}

impl Stranger {
    /// Whether it would refuse now: others do not wait for it.
    fn refuses(&self, now: Time) -> bool {
        self.has_refused && now < self.next
    }

    /// How it refuses this node, as far as is known: nothing where it is silent since, or says something
    /// else.
    fn refusal(&self) -> Option<&Notice> {
        self.told.as_ref().filter(|_| self.is_refusing && !self.has_failed())
    }

    /// Whether it did not answer when it was asked: others come first.
    fn has_failed(&self) -> bool {
        self.failures > 0
    }

    /// A person said that it is there.
    fn named_at(&mut self, address: SocketAddr) {
        if !self.named_at.contains(&address) && self.named_at.len() < ADDRESSES_MAX {
            self.named_at.push(address);
        }
    }

    /// Where it is asked, and whether only where that is near: beyond that a person's word counts alone.
    fn asked_at(&self) -> (Vec<SocketAddr>, bool) {
        match self.named_at.as_slice() {
            [] => (self.addresses.clone(), true),
            named => (named.to_vec(), false),
        }
    }

    /// Nothing came from the addresses at which it was asked. Those that were heard of meanwhile are tried at
    /// once: announcements of one node come in several packets. The others are tried again soon, since one
    /// packet that was lost or came late says little, and then ever more seldom.
    fn not_answered(&mut self, now: Time) {
        let were_all_asked = self.addresses.iter().all(|address| self.asked.contains(address));
        self.failures = if were_all_asked { self.failures.saturating_add(1) } else { 0 };
        let times = 1 << self.failures.clamp(1, 8).saturating_sub(1);
        self.next = if were_all_asked { now + (SILENT_FIRST * times).min(SILENT_MAX) } else { now };
    }
}

/// An address of `--peer`.
#[derive(Debug)]
struct ConfiguredPeer {
    /// `host:port`.
    text: String,
    /// Who proved its key there.
    node: Option<NodeId>,
    next: Time,
    /// How often in a row no one was found there.
    failures: u32,
    /// Of the settings, not of one join.
    is_lasting: bool,
}

impl Joining {
    /// Knows no one yet. `peers` are the addresses of `--peer`, `host:port`. Call [`Joining::timer`] to
    /// begin.
    pub fn new(peers: &[String]) -> Self {
        let peers = peers.iter().map(|text| ConfiguredPeer {
            text: text.clone(),
            node: None,
            next: Time::ZERO,
            failures: 0,
            is_lasting: true,
        });
        Self {
            strangers: BTreeMap::new(),
            looking_since: Time::ZERO,
            heard_at: None,
            peers: peers.collect(),
            attempt: None,
            attempts_failed: 0,
            is_crowded: false,
            dials: Dials::default(),
            member_dials: Dials::default(),
            stalled: BTreeMap::new(),
            grant: None,
            left: Left::default(),
            requests: Requests::default(),
            opened: Opened::default(),
            admissions: BTreeMap::new(),
            admission_last: 0,
            by_code: None,
            trust_polls: BTreeMap::new(),
            shown_refusals: BTreeSet::new(),
            words: BTreeMap::new(),
            deadline: Time::ZERO,
        }
    }

    /// Joins the clusters that this node left by a code only.
    pub fn staying_out_of(self, left: Vec<LeftCluster>) -> Self {
        Self { left: Left::new(left), ..self }
    }

    /// Discovery saw a node, or sees it no more.
    pub fn found(&mut self, ctx: &Context<'_>, found: DiscoveredNode, out: &mut Vec<JoiningOutput>) {
        let DiscoveredNode { node, addresses, name, group, is_fresh, is_lost } = found;
        let is_other_group = group.is_some_and(|group| group != ctx.config.group);
        if node == ctx.me() || is_other_group {
            tracing::trace!(peer = %node, is_other_group, "discovery of this node itself or of another group");
        } else if is_lost {
            // Anybody can say goodbye in another's name. Who has just proven its key is gone when it does not
            // answer.
            let is_proven = |at: Time| ctx.now.time.since(at) < PROOF_LASTS;
            match self.strangers.get(&node) {
                Some(stranger) if stranger.proven.is_some_and(is_proven) => {
                    tracing::trace!(peer = %node, "a goodbye in the name of who has just proven its key");
                }
                _ => drop(self.strangers.remove(&node)),
            }
        } else {
            if self.requests.seen(node, is_fresh) {
                tracing::trace!(peer = %node, "who asked to join has a cluster by now, as is said in its name");
            }
            let is_member = ctx.members.contains(&node);
            // Who let this node in is asked again if no log comes of it.
            if !is_member || self.members().contains(&node) {
                self.remember(ctx, node, addresses.clone(), &name.unwrap_or_default(), is_fresh);
                self.strangers.entry(node).and_modify(|stranger| stranger.is_discovered = true);
            }
            if is_member && self.member_dials.take(ctx.now.time) {
                out.push(JoiningOutput::Learn { node, addresses, is_vouched: false });
            } else if is_member {
                tracing::trace!(peer = %node, ?addresses, "too many addresses of members are announced");
            }
        }
        self.advance(ctx, out);
    }

    /// A join exchange moved on.
    pub fn event(&mut self, ctx: &Context<'_>, event: JoinEvent, out: &mut Vec<JoiningOutput>) {
        match event {
            JoinEvent::Asked { exchange, node, remote, is_near, has_code, words, ask } => {
                self.asked(
                    ctx,
                    admitting::AdmissionRequest { exchange, node, remote, is_near, has_code, words, ask },
                    out,
                );
            }
            JoinEvent::Answered { with, address, words, answer } => {
                self.answered(ctx, (with, address, words), answer, out);
            }
            JoinEvent::Probed { text, found } => match found {
                Ok((address, node, answer)) => self.probed(ctx, &text, address, (node, answer), out),
                Err(failure) => self.probed_in_vain(&text, &failure, out),
            },
        }
        self.advance(ctx, out);
    }

    /// The deadline has come, or something in the context has changed. Too often does no harm.
    pub fn timer(&mut self, ctx: &Context<'_>, out: &mut Vec<JoiningOutput>) {
        self.advance(ctx, out);
    }

    /// When time alone brings something on, with the context of the last call; far away if nothing does.
    pub fn next_deadline(&self) -> Time {
        self.deadline
    }

    /// Strangers that asked while the window was shut, to be displayed.
    pub fn requests(&self) -> &BTreeMap<NodeId, Request> {
        self.requests.all()
    }

    /// Nodes that discovery sees and that have a cluster of their own, as they say: who, its name, where.
    /// Names are free: of each host one, and first those that have proven their keys.
    pub fn others(&self) -> Vec<(NodeId, &str, SocketAddr)> {
        let others = self.strangers.iter().filter(|(_, s)| s.is_discovered && !s.is_fresh);
        let mut others: Vec<_> = others
            .filter_map(|(node, s)| Some((s.proven.is_none(), *node, s, *s.addresses.first()?)))
            .collect();
        others.sort_by_key(|(is_unproven, node, ..)| (*is_unproven, *node));
        let mut hosts = BTreeSet::new();
        others.retain(|(.., address)| hosts.insert(address.ip()));
        others.into_iter().map(|(_, node, s, address)| (node, s.name.as_str(), address)).collect()
    }

    /// What a node is called that discovery sees and that has a cluster of its own, as it says.
    pub fn in_other_cluster(&self, node: NodeId) -> Option<&str> {
        let stranger = self.strangers.get(&node).filter(|s| s.is_discovered && !s.is_fresh)?;
        Some(&stranger.name)
    }

    /// Whether a node nearby said no when this one asked to be let in, and nothing else since, and answers.
    pub fn has_refused(&self, node: NodeId) -> bool {
        self.strangers.get(&node).is_some_and(|stranger| stranger.refusal().is_some())
    }

    /// What those say who do not let this node in, the newest first, each with its time in seconds since
    /// 1970.
    pub fn refusals(&self) -> Vec<(u64, &Notice)> {
        let strangers = self.strangers.values();
        let mut said: Vec<_> =
            strangers.filter_map(|stranger| Some((stranger.told_unix_s, stranger.refusal()?))).collect();
        said.sort_by_key(|(at_unix_s, _)| std::cmp::Reverse(*at_unix_s));
        said
    }

    /// A person opens the door of this node, which is an admin's, for so long. Nothing on disk remembers it.
    pub fn open_door(&mut self, ctx: &Context<'_>, lasting: Duration, out: &mut Vec<JoiningOutput>) {
        self.opened.open(ctx.now, lasting);
        out.push(JoiningOutput::Stale);
        self.advance(ctx, out);
    }

    /// Shuts it.
    pub fn shut_door(&mut self, ctx: &Context<'_>, out: &mut Vec<JoiningOutput>) {
        if self.opened.shut() {
            out.push(JoiningOutput::Stale);
        }
        self.advance(ctx, out);
    }

    /// Until when a door that a person has opened lets strangers in, in seconds since 1970.
    pub fn door_open_until_unix_s(&self, now: Now) -> Option<u64> {
        self.opened.until_unix_s(now)
    }

    /// The words that both sides showed when a member was let in, by member.
    pub fn words(&self) -> &BTreeMap<NodeId, String> {
        &self.words
    }

    /// Whether no one was found, is sought, or is being let in.
    pub fn is_quiet(&self) -> bool {
        !self.is_under_way() && self.peers.is_empty() && self.strangers.is_empty()
    }

    /// Whether somebody is being joined or let in.
    pub fn is_under_way(&self) -> bool {
        self.attempt.is_some() || self.grant.is_some() || !self.admissions.is_empty()
    }

    fn remember(
        &mut self,
        ctx: &Context<'_>,
        node: NodeId,
        mut addresses: Vec<SocketAddr>,
        name: &str,
        is_fresh: bool,
    ) {
        if !self.strangers.contains_key(&node) && !self.make_room() {
            tracing::trace!(peer = %node, strangers_max = STRANGERS_MAX, "too many strangers");
            return;
        }
        addresses.truncate(ADDRESSES_MAX);
        // A goodbye is anybody's word: who takes names back again and again must not put the decision off.
        let is_silence = |at: Time| ctx.now.time.since(at) > SILENCE;
        if self.strangers.is_empty() && self.heard_at.is_none_or(is_silence) {
            self.looking_since = ctx.now.time;
        }
        self.heard_at = Some(ctx.now.time);
        let stranger = self.strangers.entry(node).or_insert_with(|| Stranger {
            addresses: Vec::new(),
            asked: Vec::new(),
            name: String::new(),
            is_fresh,
            is_discovered: false,
            is_named: false,
            named_at: Vec::new(),
            failures: 0,
            has_refused: false,
            is_refusing: false,
            later: None,
            told: None,
            told_unix_s: 0,
            proven: None,
            probe_until: None,
            first_seen: ctx.now.time,
            next: Time::ZERO,
        });
        // An address that was not tried is a reason to ask at once; a refusal was its key's.
        if addresses.iter().any(|address| !stranger.asked.contains(address)) {
            stranger.failures = 0;
            if !stranger.refuses(ctx.now.time) {
                stranger.next = Time::ZERO;
            }
        }
        if stranger.is_fresh && !is_fresh {
            stranger.next = Time::ZERO; // it has a cluster now: worth asking at once
        }
        (stranger.addresses, stranger.name, stranger.is_fresh) =
            (addresses, known_name(node, name), is_fresh);
    }

    /// Makes room for one more stranger, if need be in the place of another. Names are free, so first go
    /// those of the host that has most of them; of these those that did not answer, then those never asked,
    /// the oldest first: a name that is real is announced again. Keys that answered come last, the one silent
    /// for longest first. Whom a person named and who is being asked stay.
    fn make_room(&mut self) -> bool {
        if self.strangers.len() < STRANGERS_MAX {
            return true;
        }
        self.is_crowded = true;
        let stays = |node: &NodeId| {
            let is_asked = self.attempt.as_ref().is_some_and(|attempt| attempt.is_with(*node));
            is_asked || self.peers.iter().any(|peer| peer.node == Some(*node))
        };
        let others = self.strangers.iter().filter(|(node, _)| !stays(node));
        let of_hosts = self.names_of_hosts();
        let worth = |s: &Stranger| {
            let names = std::cmp::Reverse(names_of_host(&of_hosts, s));
            (s.proven.is_some(), names, s.proven, !s.has_failed(), s.first_seen)
        };
        let least = others.min_by_key(|(_, stranger)| worth(stranger)).map(|(node, _)| *node);
        least.is_some_and(|node| self.strangers.remove(&node).is_some())
    }

    /// Does what the time or the context allows by now, and says when time will allow more.
    fn advance(&mut self, ctx: &Context<'_>, out: &mut Vec<JoiningOutput>) {
        self.expire_admissions(ctx, out);
        if self.opened.expire(ctx.now) {
            out.push(JoiningOutput::Stale);
        }
        self.sum_up_requests(ctx, out);
        self.expire_grant(ctx, out);
        self.expire_attempt(ctx);
        self.forget_members(ctx, out);
        self.probe_peers(ctx, out);
        self.tell_of_left(ctx, out);
        self.probe_strangers(ctx, out);
        self.ask_by_code(ctx, out);
        self.ask_best(ctx, out);
        self.catch_up(ctx, out);
        self.show_refusals(out);
        self.deadline = self.deadline_of(ctx);
    }

    /// A refusal that holds no longer, or again, is news for the view, whatever ended it.
    fn show_refusals(&mut self, out: &mut Vec<JoiningOutput>) {
        let refusing = self.strangers.iter().filter(|(_, stranger)| stranger.refusal().is_some());
        let refusing: BTreeSet<NodeId> = refusing.map(|(node, _)| *node).collect();
        if refusing != self.shown_refusals {
            self.shown_refusals = refusing;
            out.push(JoiningOutput::Stale);
        }
    }

    /// How many strangers that have proven no key say that they are at an address.
    fn names_of_hosts(&self) -> BTreeMap<IpAddr, usize> {
        let mut names = BTreeMap::new();
        let unproven = self.strangers.values().filter(|stranger| stranger.proven.is_none());
        for address in unproven.filter_map(|stranger| stranger.addresses.first()) {
            *names.entry(address.ip()).or_default() += 1;
        }
        names
    }

    /// Strangers that have become members, maybe by another's word: where they are is worth knowing still.
    fn forget_members(&mut self, ctx: &Context<'_>, out: &mut Vec<JoiningOutput>) {
        let members = ctx.trust.view().members();
        for (node, stranger) in self.strangers.extract_if(.., |node, _| members.contains_key(node)) {
            for address in stranger.named_at.into_iter().rev() {
                out.push(JoiningOutput::Prefer { node, address });
            }
            let addresses = stranger.addresses;
            out.push(JoiningOutput::Learn { node, addresses, is_vouched: false });
        }
        if self.requests.forget(ctx.now.time, |node| members.contains_key(&node)) {
            out.push(JoiningOutput::Stale);
        }
    }

    fn deadline_of(&self, ctx: &Context<'_>) -> Time {
        let admissions = self.admissions.values().map(Admission::deadline);
        let probes = self.peers.iter().filter(|p| p.is_sought(ctx)).map(|p| p.next);
        let candidates = self.candidates(ctx).map(|c| self.may_ask_at(&c));
        let own = self.grant.iter().filter_map(Grant::deadline).chain(self.attempt.iter().map(|a| a.until));
        let strangers = self
            .probe_deadline(ctx)
            .into_iter()
            .chain(self.catch_up_deadline())
            .chain(self.by_code_deadline())
            .chain(self.requests.deadline())
            .chain(self.opened.deadline());
        admissions.chain(probes).chain(candidates).chain(own).chain(strangers).min().unwrap_or(NEVER)
    }

    /// Asks who is at the configured addresses, for as long as no member is.
    fn probe_peers(&mut self, ctx: &Context<'_>, out: &mut Vec<JoiningOutput>) {
        let now = ctx.now.time;
        for peer in self.peers.iter_mut().filter(|p| now >= p.next && p.is_sought(ctx)) {
            peer.next = now + PROBE_EVERY;
            let group = ctx.config.group.clone();
            let ask = JoinAsk { name: String::new(), group, port: 0, what: JoinPurpose::Name };
            let probe = JoinEffect::Probe { text: peer.text.clone(), ask };
            out.push(JoiningOutput::Effect(Effect::Joining(probe)));
        }
    }

    fn probed(
        &mut self,
        ctx: &Context<'_>,
        text: &str,
        address: SocketAddr,
        (node, answer): (NodeId, JoinAnswer),
        out: &mut Vec<JoiningOutput>,
    ) {
        if node == ctx.me() {
            tracing::trace!(%address, "an address of --peer is this node's own");
            return;
        }
        for peer in self.peers.iter_mut().filter(|p| p.text == text) {
            if peer.failures >= PROBES_FAILED_SAID {
                out.push(JoiningOutput::PeerFound { peer: peer.text.clone() });
            }
            (peer.node, peer.failures) = (Some(node), 0);
        }
        if ctx.members.contains(&node) {
            out.push(JoiningOutput::Prefer { node, address });
            return;
        }
        let JoinAnswer::Here { name, fresh } = answer else {
            tracing::trace!(peer = %node, %address, ?answer, "a probe was answered by something else");
            return;
        };
        self.remember(ctx, node, vec![address], &name, fresh);
        if let Some(stranger) = self.strangers.get_mut(&node) {
            stranger.is_named = true;
            stranger.named_at(address);
            stranger.proven = Some(ctx.now.time);
        }
    }

    /// Says once that no one is found where a setting says, and asks on.
    fn probed_in_vain(&mut self, text: &str, failure: &ProbeFailure, out: &mut Vec<JoiningOutput>) {
        for peer in self.peers.iter_mut().filter(|peer| peer.text == text && peer.is_lasting) {
            peer.failures = peer.failures.saturating_add(1);
            if peer.failures == PROBES_FAILED_SAID {
                let text = format!(
                    "--peer {text}: {failure}; this node asks on. See that exo runs there, that name and port are right, \
                     and that UDP to this port is let through"
                );
                out.push(JoiningOutput::PeerSilent { peer: peer.text.clone(), text });
            }
        }
    }
}

impl ConfiguredPeer {
    fn is_sought(&self, ctx: &Context<'_>) -> bool {
        self.node.is_none_or(|node| !ctx.members.contains(&node))
    }
}

/// Whether the join window is open, if nodes have run long enough with it at `ends`.
pub fn is_window_open(view: &View, now: Now, ends: Time) -> bool {
    let left_s = view.window_until_unix_s().map_or(0, |until| window_left_s(until, now.unix_s));
    left_s > 0 && now.time < ends
}

/// For how many seconds more a join window is open by the wall clock. One that was set back by more than a
/// minute does not open it again.
pub fn window_left_s(until_unix_s: u64, now_unix_s: u64) -> u64 {
    let left = until_unix_s.saturating_sub(now_unix_s);
    if left <= JOIN_WINDOW_S + CLOCK_SLACK_S { left.min(JOIN_WINDOW_S) } else { 0 }
}

/// How many names there are where this stranger says it is.
fn names_of_host(of_hosts: &BTreeMap<IpAddr, usize>, stranger: &Stranger) -> usize {
    let address = stranger.addresses.first();
    address.and_then(|address| of_hosts.get(&address.ip())).copied().unwrap_or(0)
}

fn notice(out: &mut Vec<JoiningOutput>, notice: Notice) {
    out.push(JoiningOutput::Effect(Effect::Notice(notice)));
}

/// What a stranger is called here: what it says, cleaned and cut, else the beginning of its id.
fn known_name(node: NodeId, name: &str) -> String {
    let name = exo_types::clean_name(name, NAME_CHARS_MAX);
    if name.is_empty() { node.to_string() } else { name }
}
