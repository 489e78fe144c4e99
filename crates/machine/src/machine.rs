//! The machine: how it starts, where each input goes, and what its parts share.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use exo_cluster::wire::{ControlMessage, DataMessage};
use exo_cluster::{
    Coordinator, CoordinatorInput, EngineId, HeldSteps, MessageKind, Speculation, State, Undeliverable,
    Worker, WorkerInput,
};
use exo_membership::Membership;
use exo_types::{Ancestors, Epoch, LogHead, NodeId, PlacementId, Time};

use crate::awake::Awake;
use crate::backups::Backups;
use crate::bandwidth::Bandwidths;
use crate::boot::{Boot, MachineConfig};
use crate::coordination::{Asks, REPORT_EVERY};
use crate::corrections::StepCorrections;
use crate::joining::{Context, JOIN_WINDOW_S, Joining, JoiningOutput, MoveIn, is_window_open};
use crate::links::{Links, LinksOutput};
use crate::log::Log;
use crate::names::Names;
use crate::persist::{ActAsker, Writes};
use crate::replication::Replication;
use crate::trust::Trust;
use crate::view::ViewInputs;
use crate::waiting::StageWatches;
use crate::warnings::Warnings;
use crate::{
    Answer, DiscoveredNode, Effect, FetchId, Input, LinkEnd, Local, NodeMachine, Notice, Now, Purpose,
    ReplyId, Samples, Scan, Write,
};

/// Time between ticks of the parts that have no deadlines of their own.
const TICK: Duration = Duration::from_millis(100);
/// The same while nothing is under way: a wake costs a sleeping processor far more than the tick itself.
const TICK_AT_REST: Duration = Duration::from_millis(500);
/// Nodes of other clusters that are shown.
const OTHERS_MAX: usize = 8;
/// Of those who do not let this node in, as many say why.
const REFUSALS_SHOWN_MAX: usize = 3;
/// A call that comes so much later than it was asked for says that this process did not run.
const LATE: Duration = Duration::from_secs(1);
/// How long nothing counts as late then: what happened meanwhile waits to be read.
const PAUSE_GRACE: Duration = Duration::from_secs(2);
/// At least so long deadlines are looked at between two of these.
const PAUSE_GRACE_AGAIN: Duration = Duration::from_secs(10);

/// If the wall clock advanced this much more than the monotonic one, which on some systems stops while the
/// machine sleeps, the machine slept. A clock that was merely set costs one question to the members.
const SLEPT_MIN_S: u64 = 5;

/// How much of everything a machine holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct Counts {
    /// Sequences of this node's clients.
    pub drivers: usize,
    /// Schedulers of instances whose first stage is here.
    pub schedulers: usize,
    pub sequences_queued: usize,
    pub sequences_running: usize,
    /// Sequences that the stages here hold, summed over stages.
    pub sequences_open: usize,
    pub engines: usize,
    pub fetches: usize,
    pub held_messages: usize,
    pub pending_writes: usize,
    /// Questions to the coordinator without an answer.
    pub asks: usize,
    /// Own requests of which there is to be a copy elsewhere.
    pub backups_own: usize,
    /// Copies of others' requests.
    pub backups_kept: usize,
    /// Claims of requests without an answer.
    pub claims: usize,
}

impl NodeMachine {
    /// A node that has just started, and what it does first.
    pub fn new(config: MachineConfig, boot: Boot, now: Now) -> (Self, Vec<Effect>) {
        let machine = Self {
            me: config.me,
            now,
            out: Vec::new(),
            local: VecDeque::new(),
            links: Links::new(config.me, config.incarnation, config.seed, boot.addresses),
            bandwidths: Bandwidths::default(),
            joining: Joining::new(&config.peers).staying_out_of(boot.left),
            membership: membership(&config, boot.epoch, now.time),
            membership_outputs: VecDeque::new(),
            membership_busy: false,
            coordinator: coordinator(&config, boot.state),
            worker: Worker::new(boot.samples.memory_bytes.iter().cloned().collect()),
            writes: Writes::default(),
            log: Log::new(boot.base, boot.ancestors, boot.entries, config.log),
            replication: Replication::default(),
            warnings: Warnings::new(now.unix_s, boot.warnings),
            trust: Trust::new(boot.trust),
            asks: Asks::default(),
            backups: Backups::new(now.time),
            early_commands: None,
            leader: None,
            leader_last: None,
            leads_soon: None,
            members: BTreeSet::new(),
            statuses: BTreeMap::from([(config.me, exo_api::NodeStatus::Alive)]),
            gone_since: boot.ended.clone(),
            ended: boot.ended,
            moving_in: None,
            kept_addresses: Vec::new(),
            advertised: None,
            is_told_removed: false,
            pull_at: None,
            samples: boot.samples,
            reports: BTreeMap::new(),
            names: Names::default(),
            reported: BTreeMap::new(),
            report_at: now.time,
            models: boot.models,
            disk_room: boot.disk_room,
            has_new_model: boot.has_new_model,
            models_at: now.time,
            scan: Scan::default(),
            engines: BTreeMap::new(),
            fetches: BTreeMap::new(),
            fetch_last: FetchId(0),
            stages: BTreeMap::new(),
            held_steps: HeldSteps::default(),
            step_corrections: StepCorrections::default(),
            schedulers: BTreeMap::new(),
            pages_left: BTreeMap::new(),
            has_draft: config.speculation == Speculation::Model,
            instance_failures: Vec::new(),
            instances: Arc::default(),
            states_since: BTreeMap::new(),
            stage_watches: StageWatches::default(),
            drivers: BTreeMap::new(),
            refusals_told: Vec::new(),
            window_ends: now.time + Duration::from_secs(JOIN_WINDOW_S).saturating_sub(boot.window_ran),
            shut_window_at: now.time,
            ticked: now.time,
            grace_until: Time::ZERO,
            awake: Awake::new(now.time),
            is_stale_view_news: None,
            is_stopping: false,
            config,
        };
        machine.begin()
    }

    fn begin(mut self) -> (Self, Vec<Effect>) {
        #[cfg(feature = "planted")]
        if self.has_bug(crate::planted::Bug::WindowByClockAlone) {
            self.window_ends = Time(u64::MAX);
        }
        self.tell_standing();
        self.members_changed();
        self.report_now();
        self.deliver_local();
        let effects = self.finish();
        (self, effects)
    }

    /// Takes in what happened and says what to do, in order. `now` never runs backwards.
    pub fn handle(&mut self, now: Now, input: Input) -> Vec<Effect> {
        if self.is_stopping {
            tracing::trace!("an input behind the end");
            return Vec::new();
        }
        let before = self.now;
        // Only of a pause it matters: inputs come by the thousand.
        let is_pause = now.time.since(before.time) > LATE;
        let due = if is_pause { self.next_deadline() } else { now.time };
        let is_late = now.time.since(due) > LATE;
        self.now = Now { time: now.time.max(before.time), unix_s: now.unix_s };
        // A machine that is late again and again must not put its deadlines off for ever.
        if is_late && self.now.time >= self.grace_until + PAUSE_GRACE_AGAIN {
            self.grace_until = self.now.time + PAUSE_GRACE;
        }
        self.awake.pass(before.time, due, self.now.time);
        if slept(before, self.now) {
            self.feed_membership(exo_membership::Input::Slept);
        }
        self.take(input);
        self.deliver_local();
        self.finish()
    }

    /// When to feed [`Input::Timer`] next.
    pub fn next_deadline(&self) -> Time {
        #[cfg(feature = "planted")]
        if self.has_bug(crate::planted::Bug::NeverRests) {
            return self.now.time;
        }
        let tick = match (self.is_at_rest(), self.membership.next_deadline()) {
            (false, _) => self.ticked + TICK,
            (true, Some(of_members)) => of_members.min(self.ticked + TICK_AT_REST),
            (true, None) => self.ticked + TICK_AT_REST,
        };
        tick.min(self.links.next_deadline()).min(self.joining.next_deadline())
    }

    /// The cluster as this node sees it.
    pub fn view(&self) -> exo_api::ClusterView {
        let own_load =
            |placement: PlacementId| Some(self.schedulers.get(&placement)?.scheduler.load_report());
        let addresses = |node| self.links.addresses(node).to_vec();
        let data_via = |node| self.links.via(node);
        crate::view::view(&ViewInputs {
            me: self.me,
            names: &self.names,
            listen: self.config.listen,
            state: self.state(),
            trust: self.trust.log(),
            head: self.log.durable(),
            leader: self.leader,
            followed_elsewhere: self.membership.followed_elsewhere(),
            statuses: &self.statuses,
            gone_since: &self.gone_since,
            reports: &self.reports,
            instances: &self.instances,
            own_load: &own_load,
            addresses: &addresses,
            data_via: &data_via,
            requests: self.joining.requests(),
            other_clusters: self.other_clusters(),
            join_window: self.join_window(),
            states_since: &|id| self.states_since.get(&id).map_or(0, |(_, since)| *since),
            stage_progress: &|instance, stage| self.stage_watches.progress(instance, stage, self.awake.now()),
            log_holders: self.log_holders(),
            warnings: self.warning_views(),
        })
    }

    /// How much of everything there is, for tests that nothing is left over.
    pub fn counts(&self) -> Counts {
        let loads = || self.schedulers.values().map(|entry| entry.scheduler.load_report());
        Counts {
            drivers: self.drivers.len(),
            schedulers: self.schedulers.len(),
            sequences_queued: loads().map(|load| load.waiting as usize).sum(),
            sequences_running: loads().map(|load| load.running as usize).sum(),
            sequences_open: self.stages.values().map(|s| s.machine.sequences_open()).sum(),
            engines: self.engines.len(),
            fetches: self.fetches.len(),
            held_messages: self.links.waiting(),
            pending_writes: self.writes.len(),
            asks: self.asks.len(),
            backups_own: self.backup_counts().0,
            backups_kept: self.backup_counts().1,
            claims: self.backup_counts().2,
        }
    }

    /// Who coordinates, as far as this node knows.
    pub fn leader(&self) -> Option<(Epoch, NodeId)> {
        self.leader
    }

    fn take(&mut self, input: Input) {
        let time = self.now.time;
        match input {
            Input::Timer => self.timer(),
            Input::LinkUp { link, peer, purpose, via, remote, dial } => {
                self.with_links(|l, now, out| l.up(now, link, peer, purpose, via, remote, dial, out));
            }
            Input::Refused { peer } => {
                tracing::debug!(%peer, "nothing listens there any more");
                self.feed_membership(exo_membership::Input::Refused(peer));
            }
            Input::DialFailed { dial, reason } => {
                self.with_links(|l, now, out| l.dial_failed(now, dial, &reason, out));
            }
            Input::LinkAccepted { link, incarnation } => {
                self.with_links(|l, now, out| l.accepted(now, link, incarnation, out));
            }
            Input::LinkDown { link, reason } => self.with_links(|l, now, out| l.down(now, link, reason, out)),
            Input::Heard { link, rtt } => self.with_links(|l, now, out| l.heard(now, link, rtt, out)),
            Input::Received { from, received } => self.bandwidths.received(time, from, received),
            Input::Control { link, message } => {
                if let Some(from) = self.links.message(time, link) {
                    self.control(from, *message);
                }
            }
            Input::Data { link, message } => {
                if let Some(from) = self.links.message(time, link) {
                    self.data(from, *message);
                }
            }
            Input::Persisted { id, result } => self.persisted(id, result),
            Input::Planned { id, result } => {
                self.feed_coordinator(CoordinatorInput::Planned { plan: id, result });
            }
            Input::Fetched { fetch, event } => self.fetched(fetch, event),
            Input::Engine { engine, event } => self.engine_event(engine, event),
            Input::Computed { engine, position, term, step, result, busy } => {
                self.computed(engine, position, (term, step), result, busy);
            }
            Input::Draft(event) => self.draft_event(event),
            Input::Signed { id, signature } => self.signed(id, signature),
            Input::Models(models, room) => self.models_scanned(models, room),
            Input::Sampled(samples) => self.sampled(*samples),
            Input::Found(found) => self.found(found),
            Input::Joining(event) => self.with_joining(|j, context, out| j.event(context, event, out)),
            Input::Start { stream, request } => self.start_request(stream, *request),
            Input::Cancel { request, index } => self.cancel_request(request, index),
            Input::Ask { reply, question } => self.question(reply, question),
            Input::Stop => self.stop(),
        }
    }

    /// Time has passed. Sub-machines with deadlines of their own come when theirs has; the others tick.
    fn timer(&mut self) {
        let now = self.now.time;
        self.with_links(|l, now, out| l.timer(now, out));
        self.with_joining(|j, context, out| j.timer(context, out));
        if now.since(self.ticked) < TICK {
            if self.is_at_rest() && self.membership.next_deadline().is_some_and(|at| at <= now) {
                self.tick_membership();
            }
            return;
        }
        self.ticked = now;
        self.tick_membership();
        if now >= self.grace_until {
            self.tick_coordination();
            self.feed_worker(WorkerInput::Tick);
            self.tick_pipelines();
            self.tick_requests();
            self.tick_backups();
        }
        // A little longer than between two samples, with which it goes.
        self.report_if_due(REPORT_EVERY + TICK_AT_REST / 2);
    }

    /// Whether what this node knows may be of the past: it did not run for a while.
    pub(crate) fn is_unsure(&self) -> bool {
        self.now.time < self.grace_until || self.membership.was_away()
    }

    /// Whether time alone brings nothing on but what membership, links and joining name themselves: no
    /// request, here or of others, no load, no question, no election.
    fn is_at_rest(&self) -> bool {
        self.drivers.is_empty()
            && self.fetches.is_empty()
            && (self.joining.is_quiet() || !self.members.is_empty() && !self.joining.is_under_way())
            && self.writes.len() == 0
            && self.asks.len() == 0
            && self.backup_counts() == (0, 0, 0)
            && self.held_steps.is_empty()
            && self.instance_failures.is_empty()
            && self.pull_at.is_none()
            && !self.owes_log()
            && self.moving_in.is_none()
            && (self.leader.is_some() && self.leads_soon.is_none())
            && self.instances.iter().all(|instance| instance.is_ready() && instance.moving.is_none())
            && self.schedulers.values().all(|entry| entry.scheduler.is_idle())
    }

    /// Delivers messages to this node itself until there are none: each may cause others.
    fn deliver_local(&mut self) {
        #[cfg(feature = "planted")]
        self.plant();
        while let Some(local) = self.local.pop_front() {
            let me = self.me;
            match local {
                Local::Control(message) => self.control(me, message),
                Local::Data(message) => self.data(me, message),
            }
        }
    }

    #[cfg(feature = "planted")]
    fn plant(&mut self) {
        if self.config.planted == Some(crate::planted::Bug::AnsweredEarly)
            && let Some(written) = self.writes.answered_early()
        {
            self.written(written);
        }
    }

    fn finish(&mut self) -> Vec<Effect> {
        if let Some(is_news) = self.is_stale_view_news.take() {
            self.out.push(Effect::Publish { is_news });
        }
        std::mem::take(&mut self.out)
    }

    // ---- what the parts share ----

    /// The durable state of the cluster: what is placed.
    pub(crate) fn state(&self) -> &State {
        self.coordinator.state()
    }

    /// Whether strangers that are near are let in without a question.
    pub(crate) fn is_window_open(&self) -> bool {
        !self.config.trust_closed && is_window_open(self.trust.view(), self.now, self.window_ends)
    }

    /// The same for people, with the door that a person has opened at this node.
    fn join_window(&self) -> exo_api::JoinWindowView {
        let first = self.trust.view().window_until_unix_s().filter(|_| self.is_window_open());
        let until = first.max(self.joining.door_open_until_unix_s(self.now));
        exo_api::JoinWindowView { open: until.is_some(), open_until_unix_s: until }
    }

    /// The last warnings, and what those say who do not let this node in while it is alone.
    fn warning_views(&self) -> Vec<exo_api::WarningView> {
        let mut views = self.warnings.views();
        if self.trust.view().members().len() < 2 && !self.is_removed() {
            let refusals = self.joining.refusals().into_iter().take(REFUSALS_SHOWN_MAX);
            views.extend(refusals.map(|(at_unix_s, notice)| exo_api::WarningView {
                at_unix_s,
                text: exo_types::clean_name(&notice.to_string(), crate::warnings::TEXT_CHARS_MAX),
            }));
        }
        views
    }

    /// Who is near and has a cluster of its own. Who is fresh joins or is asked to wait, which is no news: of
    /// it only those are shown who said no.
    fn other_clusters(&self) -> Vec<exo_api::OtherClusterView> {
        let removed = self.trust.view().removed();
        if self.is_removed() {
            return Vec::new();
        }
        let may_be_shown = |node: &NodeId| {
            !removed.contains_key(node) && (self.advertised == Some(false) || self.joining.has_refused(*node))
        };
        let others = self.joining.others().into_iter();
        let others = others.filter(|(node, ..)| may_be_shown(node)).take(OTHERS_MAX);
        let view = |(node, name, address): (NodeId, &str, SocketAddr)| exo_api::OtherClusterView {
            node: node.to_full(),
            name: name.to_owned(),
            address: address.to_string(),
        };
        others.map(view).collect()
    }

    pub(crate) fn view_changed(&mut self) {
        self.is_stale_view_news = Some(true);
    }

    /// Something was measured again.
    pub(crate) fn view_wavered(&mut self) {
        self.is_stale_view_news.get_or_insert(false);
    }

    pub(crate) fn notice(&mut self, notice: Notice) {
        tracing::info!(%notice, "notice");
        self.out.push(Effect::Notice(notice));
    }

    pub(crate) fn reply(&mut self, reply: ReplyId, answer: Answer) {
        self.out.push(Effect::Reply { reply, answer });
    }

    /// What a node is called.
    pub(crate) fn name_of(&self, node: NodeId) -> String {
        self.names.of(node)
    }

    /// Sends to a member or to this node. `false` if the link is not open: the machines' deadlines cover the
    /// loss.
    pub(crate) fn send_control(&mut self, to: NodeId, message: ControlMessage) -> bool {
        if to == self.me {
            self.local.push_back(Local::Control(message));
            return true;
        }
        let message = Arc::new(message);
        self.with_links(|links, now, out| links.send_control(now, to, &message, out))
    }

    /// Sends to a member or to this node. A message for a link that is not open waits for it.
    pub(crate) fn send_data(&mut self, to: NodeId, message: DataMessage) {
        if to == self.me {
            self.local.push_back(Local::Data(message));
        } else {
            self.with_links(|links, now, out| links.send_data(now, to, Box::new(message), out));
        }
    }

    // ---- links ----

    pub(crate) fn with_links<R>(
        &mut self,
        act: impl FnOnce(&mut Links, Time, &mut Vec<LinksOutput>) -> R,
    ) -> R {
        let mut outputs = Vec::new();
        let result = act(&mut self.links, self.now.time, &mut outputs);
        let mut news = Vec::new();
        // Effects first: news may cause messages on the same links.
        for output in outputs {
            match output {
                LinksOutput::Effect(effect) => self.out.push(effect),
                other => news.push(other),
            }
        }
        news.into_iter().for_each(|output| self.link_news(output));
        result
    }

    fn link_news(&mut self, output: LinksOutput) {
        match output {
            LinksOutput::Effect(effect) => self.out.push(effect),
            LinksOutput::Up { node, purpose } => self.link_up(node, purpose),
            LinksOutput::Down { node, purpose, remote, reason, is_outlived } => {
                // A control link that falls silent beside a data link that lives is no reset: what carries it
                // is cut.
                self.link_down(node, purpose, remote, &reason, !is_outlived);
            }
            LinksOutput::Undeliverable { to, message, waited } => {
                let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
                self.undeliverable(Undeliverable { to, kind: MessageKind::of(&message), waited_ms });
            }
            LinksOutput::TwoProcesses { node } => self.warn_of_two_processes(node),
            LinksOutput::KeyElsewhere { by } => self.warn_of_another_process(by),
        }
    }

    fn link_up(&mut self, node: NodeId, purpose: Purpose) {
        tracing::debug!(peer = %node, ?purpose, "link open");
        self.keep_addresses();
        if purpose == Purpose::Data {
            self.links_changed();
        }
        // The end of either link was a reset for membership: while control messages get through, either one
        // takes it back.
        if !self.links.is_open(node, Purpose::Control) {
            return;
        }
        self.feed_membership(exo_membership::Input::LinkUp(node));
        self.tell_trust_known(node);
        self.pull_trust_of(node);
        self.pull_log_from(node);
        if purpose == Purpose::Control {
            self.claims_reach(node);
        }
        self.report_now();
    }

    fn link_down(
        &mut self,
        node: NodeId,
        purpose: Purpose,
        remote: SocketAddr,
        reason: &LinkEnd,
        is_reset: bool,
    ) {
        tracing::debug!(peer = %node, ?purpose, %reason, "link closed");
        self.view_changed();
        if purpose == Purpose::Data {
            // Steps and tokens that were in it do not come again.
            self.data_link_lost(node);
            self.links_changed();
        } else {
            self.asks_lost(node);
            self.backups_doubt(node);
        }
        if is_reset {
            self.feed_membership(exo_membership::Input::LinkReset(node));
        }
        // A process that ended is told from a link that broke: its system refuses connections. Only where the
        // link came from: other addresses of a node are hints, and may be another host's.
        let is_only = purpose == Purpose::Data || !self.links.is_open(node, Purpose::Data);
        let mut addresses = self.links.addresses(node).to_vec();
        addresses.retain(|address| address.ip().to_canonical() == remote.ip().to_canonical());
        if matches!(reason, LinkEnd::Reset(_)) && is_only && !addresses.is_empty() {
            self.out.push(Effect::Probe { peer: node, addresses });
        }
    }

    /// Remembers where members were reached, for the next start.
    pub(crate) fn keep_addresses(&mut self) {
        let known: Vec<_> =
            self.links.known().into_iter().filter(|(n, _)| self.members.contains(n)).collect();
        if self.kept_addresses != known {
            self.kept_addresses.clone_from(&known);
            self.writes.addresses(self.awake.ran(), Write::Addresses(known), &mut self.out);
        }
    }

    // ---- joining ----

    pub(crate) fn with_joining<R>(
        &mut self,
        act: impl FnOnce(&mut Joining, &Context<'_>, &mut Vec<JoiningOutput>) -> R,
    ) -> R {
        let links = &self.links;
        let addresses = |node| links.addresses(node).to_vec();
        let is_linked = |node| links.is_open(node, Purpose::Control);
        let context = Context {
            now: self.now,
            config: &self.config,
            state: self.coordinator.state(),
            trust: self.trust.log(),
            members: &self.members,
            leader: self.leader,
            window_ends: self.window_ends,
            has_new_model: self.has_new_model,
            is_busy: !self.drivers.is_empty(),
            addresses: &addresses,
            is_linked: &is_linked,
        };
        let mut outputs = Vec::new();
        let result = act(&mut self.joining, &context, &mut outputs);
        outputs.into_iter().for_each(|output| self.joining_news(output));
        result
    }

    /// Whether an address is on a network of this machine: beyond these no one makes this node knock anywhere
    /// who is neither an admin nor named by a person.
    pub(crate) fn is_on_link(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        ip.is_loopback() || self.samples.networks.iter().any(|network| network.leads_to(ip))
    }

    fn joining_news(&mut self, output: JoiningOutput) {
        match output {
            JoiningOutput::Effect(effect) => self.out.push(effect),
            JoiningOutput::Act { admission, act } => self.change_members(ActAsker::Admission(admission), act),
            JoiningOutput::Learn { node, mut addresses, is_vouched } => {
                addresses.retain(|address| {
                    let is_taken = is_vouched || self.is_on_link(*address);
                    if !is_taken {
                        tracing::trace!(peer = %node, %address, "an address on none of this machine's networks");
                    }
                    is_taken
                });
                self.links.learn(node, &addresses);
                self.links.hurry(node);
            }
            JoiningOutput::Prefer { node, address } => {
                self.links.prefer(node, address);
            }
            JoiningOutput::MembersChanged => self.members_changed(),
            JoiningOutput::Pull(node) => self.pull_trust_of(node),
            JoiningOutput::Entries { from, entries } => {
                if self.trust_entries(from, &entries) {
                    self.with_joining(|joining, context, _| joining.trust_taken(context, from));
                }
            }
            JoiningOutput::MoveIn(move_in) => self.move_in(*move_in),
            JoiningOutput::Stale => self.view_changed(),
            JoiningOutput::PeerSilent { peer, text } => self.warn_about(Some(peer), text),
            JoiningOutput::PeerFound { peer } => self.warn_no_more(&peer),
        }
    }

    fn found(&mut self, found: DiscoveredNode) {
        self.with_joining(|j, context, out| j.found(context, found, out));
    }

    /// Another cluster let this node in, and its log of trust is here. First the own placements go, then that
    /// log is written: it is this node's once it is on disk.
    fn move_in(&mut self, move_in: MoveIn) {
        self.feed_coordinator(CoordinatorInput::Follow);
        self.feed_worker(WorkerInput::Moved);
        self.refuse_waiting_replies();
        (self.leader, self.leads_soon) = (None, None);
        self.replace_log(LogHead::EMPTY, Ancestors::default(), State::default());
        self.moving_in = Some(move_in);
    }

    /// The other cluster's log could not be written: this node stays where it is.
    pub(crate) fn move_failed(&mut self) {
        if self.moving_in.take().is_some() {
            let epoch = self.membership.epoch();
            self.leader = epoch.zip(self.membership.coordinator());
            if let Some(epoch) = epoch.filter(|_| self.membership.is_leading()) {
                self.feed_coordinator(CoordinatorInput::Lead { epoch });
            }
            self.with_joining(|j, context, out| j.moved_in(context, false, out));
            self.sign_next();
        }
    }

    /// The other cluster's log is on disk.
    pub(crate) fn moved_in(&mut self) {
        (self.moving_in, self.leader_last, self.is_told_removed) = (None, None, false);
        self.backups_moved();
        // The members are fed as the new home, not as a change of the old one.
        let members = self.trust.view().members().keys().copied().collect();
        self.feed_membership(exo_membership::Input::Joined(members));
        self.with_joining(|j, context, out| j.moved_in(context, true, out));
        self.members_changed();
        let is_linked = |node: &NodeId| self.links.is_open(*node, Purpose::Control);
        let linked: Vec<NodeId> = self.members.iter().copied().filter(is_linked).collect();
        for node in linked {
            self.feed_membership(exo_membership::Input::LinkUp(node));
        }
        self.report_now();
    }

    // ---- samples, the end ----

    fn sampled(&mut self, samples: Samples) {
        for (device, bytes) in &samples.memory_bytes {
            self.worker.set_memory(device.clone(), *bytes);
        }
        let is_other = self
            .samples
            .devices
            .iter()
            .map(|d| (&d.device, d.state))
            .ne(samples.devices.iter().map(|d| (&d.device, d.state)))
            || self.samples.card_events != samples.card_events;
        self.samples = samples;
        if is_other {
            self.report_now();
        } else {
            // Between samples nothing that is reported has changed; and what is due soon is done in this
            // wake.
            self.report_if_due(REPORT_EVERY);
        }
        self.with_links(|links, now, out| links.ping_early(now, out));
    }

    /// Says goodbye, frees everything, and is deaf from then on.
    pub(crate) fn stop(&mut self) {
        self.feed_membership(exo_membership::Input::Leave);
        self.deliver_local();
        self.drivers.clear();
        let engines: Vec<EngineId> = self.engines.keys().copied().collect();
        self.out.extend(engines.into_iter().map(Effect::Unload));
        let fetches: Vec<FetchId> = self.fetches.keys().copied().collect();
        self.out.extend(fetches.into_iter().map(Effect::CancelFetch));
        self.out.push(Effect::Stop);
        self.is_stopping = true;
    }
}

fn coordinator(config: &MachineConfig, state: State) -> Coordinator {
    Coordinator::new(config.me, config.unload_idle_after, state)
}

fn membership(config: &MachineConfig, epoch: Option<Epoch>, now: Time) -> Membership {
    let run = exo_membership::Config {
        incarnation: config.incarnation,
        #[cfg(feature = "planted")]
        yields: config.planted == Some(crate::planted::Bug::YieldsToAnyone),
    };
    Membership::new(run, config.me, exo_membership::Persisted { epoch }, now)
}

fn slept(before: Now, now: Now) -> bool {
    let own_s = now.time.since(before.time).as_secs();
    now.unix_s.saturating_sub(before.unix_s) > own_s + SLEPT_MIN_S
}
