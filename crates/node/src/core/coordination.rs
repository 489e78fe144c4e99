//! The control channel: reports, desired state, requests to the coordinator, and the log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use exo_cluster::wire::{
    ControlAsk, ControlMessage, ControlRefusal, ControlReply, DesiredState, HeldModel, LinkReport,
    LogMessage, NodeReport, Refusal, limits,
};
use exo_cluster::{
    AppendId, CoordinatorInput, CoordinatorOutput, Event, FollowerStep, InstanceView, LeaderStep, Member,
    PlanId, ReplyTo, State, WorkerInput, follow, lead,
};
use exo_types::{DeviceFacts, Epoch, LogHead, NodeId, Time};
use tokio::sync::oneshot;

use super::Core;
use crate::notice::Notice;

/// Reports go out on change and at least this often.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// Entries after which the log is folded into a snapshot: a start replays no more than these.
const SNAPSHOT_EVERY: u64 = 256;
/// Files may vanish or change behind our back.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long the coordinator has for an answer.
const ASK_MAX: Duration = Duration::from_secs(10);

/// Questions to the coordinator that have no answer yet.
#[derive(Default)]
pub(super) struct Asks {
    last: u64,
    open: BTreeMap<u64, (Time, NodeId, oneshot::Sender<ControlReply>)>,
    /// Models that requests asked to have placed.
    pub(super) placing: BTreeMap<exo_types::ModelId, Time>,
}

impl Core {
    /// A message on the control channel, from a member or from this node itself.
    pub(super) fn control(&mut self, from: NodeId, message: ControlMessage) {
        match message {
            ControlMessage::Membership(bytes) => self.membership_message(from, &bytes),
            ControlMessage::Report(report) => self.report(from, *report),
            ControlMessage::Desired(desired) => self.desired(from, desired),
            ControlMessage::Instances { epoch, instances } => self.instances_told(from, epoch, instances),
            ControlMessage::Request { request, ask } => self.asked(from, request, ask),
            ControlMessage::Reply { request, reply } => self.answered(from, request, reply),
            ControlMessage::Log(message) => self.log_message(from, message),
            ControlMessage::Refused(refusal) => tracing::info!(peer = %from, %refusal, "refused"),
            _ => tracing::warn!(peer = %from, "a control message this version does not know"),
        }
    }

    pub(super) fn tick_coordination(&mut self) {
        self.feed_coordinator(CoordinatorInput::Tick);
        self.snapshot_if_due();
        let now = self.now();
        let late = |(asked, ..): &(Time, NodeId, _)| now.since(*asked) > ASK_MAX;
        // Dropping the sender tells the asker that no answer came.
        self.asks.open.retain(|_, ask| !late(ask));
    }

    // ---- the coordinator's machine ----

    pub(super) fn feed_coordinator(&mut self, input: CoordinatorInput) {
        let mut inputs = std::collections::VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let now = self.now();
            for output in self.p.coordinator.handle(now, input) {
                inputs.extend(self.coordinator_output(output));
            }
        }
    }

    fn coordinator_output(&mut self, output: CoordinatorOutput) -> Option<CoordinatorInput> {
        match output {
            CoordinatorOutput::Append { append, events } => return Some(self.append(append, &events)),
            CoordinatorOutput::Plan { plan, request } => self.plan(plan, request),
            CoordinatorOutput::SendDesired { to, desired } => {
                self.send_control(to, ControlMessage::Desired(desired));
            }
            CoordinatorOutput::Reply { to, reply } => {
                // The state may have changed with what is answered: members must be current before the asker acts.
                self.members_changed_if_needed();
                self.send_control(to.node, ControlMessage::Reply { request: to.request, reply });
            }
            CoordinatorOutput::InstanceChanged(_) => self.view_stale = true,
            CoordinatorOutput::Instances { epoch, instances } => self.tell_instances(epoch, instances),
        }
        None
    }

    /// Plans on another thread; the answer comes back as an event.
    fn plan(&self, plan: PlanId, request: Arc<exo_planner::PlanRequest>) {
        let core = self.p.sender.clone();
        tokio::task::spawn_blocking(move || {
            let result = exo_planner::plan(&request);
            core.post(super::CoreEvent::Planned { plan, result });
        });
    }

    fn append(&mut self, append: AppendId, events: &[Event]) -> CoordinatorInput {
        let before = self.log_head();
        let entries: Vec<Vec<u8>> = events.iter().map(Event::encode).collect();
        match tokio::task::block_in_place(|| self.p.journal.append(&entries)) {
            Ok(_) => {
                self.replicate(before, entries);
                self.snapshot_due = true;
                CoordinatorInput::Appended(append)
            }
            Err(error) => {
                let reason = crate::engine_host::chain(&error);
                self.notice(Notice::Warning(format!("the journal cannot be written: {reason}")));
                CoordinatorInput::AppendFailed { append, reason }
            }
        }
    }

    fn replicate(&mut self, before: LogHead, entries: Vec<Vec<u8>>) {
        let Some((epoch, _)) = self.leader else { return };
        let message =
            LogMessage::Entries { epoch, after_index: before.index, after_hash: before.hash, entries };
        for node in self.other_members() {
            self.send_control(node, ControlMessage::Log(message.clone()));
        }
    }

    fn tell_instances(&mut self, epoch: Epoch, instances: Vec<InstanceView>) {
        for node in self.other_members() {
            self.send_control(node, ControlMessage::Instances { epoch, instances: instances.clone() });
        }
        self.instances_now(instances);
    }

    pub(super) fn other_members(&self) -> Vec<NodeId> {
        let members = self.p.coordinator.state().members().keys().copied();
        members.filter(|n| *n != self.me).collect()
    }

    /// Follows the member list of the state, which an append, entries or a snapshot may have changed.
    fn members_changed_if_needed(&mut self) {
        let current = self.other_members();
        let same =
            current.len() == self.p.members.len() && current.iter().all(|n| self.p.members.contains(*n));
        if !same {
            self.members_changed();
        }
    }

    // ---- reports ----

    fn report(&mut self, from: NodeId, report: NodeReport) {
        if report.facts.node != from {
            tracing::warn!(peer = %from, got = %report.facts.node, "a report in another node's name");
            return;
        }
        self.view_stale = true;
        self.learn_addresses(from, &report.reached);
        self.reports.insert(from, report.clone());
        if self.is_leading() {
            self.feed_coordinator(CoordinatorInput::Report { from, report: Box::new(report) });
        }
    }

    pub(super) fn report_if_due(&mut self) {
        if self.now().since(self.held_at) >= LOOK_EVERY {
            self.refresh_models();
        }
        if self.now().since(self.report_sent) >= REPORT_EVERY {
            self.report_now();
        }
    }

    /// Tells every member how this node is: the coordinator decides by it, the others show it.
    pub(super) fn report_now(&mut self) {
        self.report_sent = self.now();
        let report = self.own_report();
        for node in self.other_members() {
            self.send_control(node, ControlMessage::Report(Box::new(report.clone())));
        }
        self.report(self.me, report);
    }

    fn own_report(&mut self) -> NodeReport {
        self.p.facts.devices = self.p.compute.facts(self.computes_on(&exo_types::DeviceId::cpu()));
        let free =
            |device: &DeviceFacts| self.p.compute.free_bytes(&device.id, &self.worker_memory(&device.id));
        let free: Vec<_> = self.p.facts.devices.iter().map(free).collect();
        for (device, free_bytes) in self.p.facts.devices.iter_mut().zip(free) {
            device.memory_free_bytes = free_bytes.unwrap_or(device.memory_free_bytes);
        }
        let links = self.peers.iter().filter_map(|(node, peer)| {
            let rtt_us = u32::try_from(peer.rtt()?.as_micros()).unwrap_or(u32::MAX);
            Some(LinkReport { peer: *node, rtt_us, bytes_per_s: None })
        });
        NodeReport {
            facts: self.p.facts.clone(),
            models: self.held.clone(),
            process_bytes: self.p.host.process_bytes(),
            reached: self.reached(),
            stages: self.stage_reports(),
            links: links.collect(),
            desired: self.p.worker.desired_revision(),
            troubles: self.troubles.clone(),
            devices: self.device_reports(),
            card_events: self.card_events.iter().cloned().collect(),
        }
    }

    /// Looks at the models on disk at once: at the start, and when a person changed them.
    pub(super) fn look_at_models(&mut self) {
        let store = self.p.library.store().clone();
        self.held = tokio::task::block_in_place(|| held_models(&store));
    }

    /// Looks at them in the background, so that a slow disk does not hold up the core.
    pub(super) fn refresh_models(&mut self) {
        if std::mem::replace(&mut self.held_under_way, true) {
            return;
        }
        self.held_at = self.now();
        let (store, core) = (self.p.library.store().clone(), self.p.sender.clone());
        tokio::task::spawn_blocking(move || core.post(super::CoreEvent::Held(held_models(&store))));
    }

    // ---- commands of the coordinator ----

    fn desired(&mut self, from: NodeId, desired: DesiredState) {
        if !self.leads(desired.epoch, from) {
            return self.refuse_epoch(from, desired.epoch);
        }
        self.feed_worker_from(from, WorkerInput::Desired(desired));
    }

    fn instances_told(&mut self, from: NodeId, epoch: Epoch, instances: Vec<InstanceView>) {
        if self.leads(epoch, from) {
            self.instances_now(instances);
        } else {
            self.refuse_epoch(from, epoch);
        }
    }

    // ---- asking the coordinator ----

    /// Asks the coordinator, which may be this node. The receiver fails when no answer comes in time.
    pub(super) fn ask(&mut self, ask: ControlAsk) -> oneshot::Receiver<ControlReply> {
        let (tx, rx) = oneshot::channel();
        self.asks.last += 1;
        let request = self.asks.last;
        let now = self.now();
        match self.leader {
            Some((_, node)) => {
                self.asks.open.insert(request, (now, node, tx));
                self.send_control(node, ControlMessage::Request { request, ask });
            }
            None => {
                let message = "the cluster is electing a coordinator".to_owned();
                let _ = tx.send(ControlReply::Refused { refusal: ControlRefusal::NotCoordinator, message });
            }
        }
        rx
    }

    /// An answer counts only from whom was asked: the numbers are easily guessed.
    fn answered(&mut self, from: NodeId, request: u64, reply: ControlReply) {
        let asked = self.asks.open.get(&request).map(|(_, asked, _)| *asked);
        if asked != Some(from) {
            return tracing::trace!(peer = %from, got = request, ?asked, last = self.asks.last, "an answer nobody waits for");
        }
        if let Some((_, _, tx)) = self.asks.open.remove(&request) {
            let _ = tx.send(reply);
        }
    }

    /// Whether `from` is the coordinator this node follows, in that very epoch. Membership hears of a new reign on
    /// the same ordered link before anything else is said in it, so a command in another epoch is stale or forged.
    fn leads(&self, epoch: Epoch, from: NodeId) -> bool {
        self.leader == Some((epoch, from))
    }

    fn refuse_epoch(&mut self, from: NodeId, got: Epoch) {
        let (own, leader) = self.leader.map_or((None, None), |(epoch, node)| (Some(epoch), Some(node)));
        tracing::trace!(peer = %from, %got, ?own, ?leader, "a command of another epoch");
        if let Some((seen, _)) = self.leader.filter(|(seen, _)| got < *seen) {
            self.send_control(from, ControlMessage::Refused(Refusal::StaleEpoch { got, seen }));
        }
    }

    fn asked(&mut self, from: NodeId, request: u64, ask: ControlAsk) {
        let reply = ReplyTo { node: from, request };
        if matches!(ask, ControlAsk::Place(_)) && !self.p.membership.may_place() {
            let message = "the coordinator hears none of its members; it places when it does".to_owned();
            return self.refuse(reply, ControlRefusal::NotCoordinator, message);
        }
        let input = self.is_leading().then(|| self.checked(from, reply, ask));
        match input {
            Some(Ok(input)) => self.feed_coordinator(input),
            Some(Err(message)) => self.refuse(reply, ControlRefusal::Invalid, message),
            None => {
                self.refuse(reply, ControlRefusal::NotCoordinator, format!("{} does not coordinate", self.me))
            }
        }
    }

    fn refuse(&mut self, to: ReplyTo, refusal: ControlRefusal, message: String) {
        let reply = ControlReply::Refused { refusal, message };
        self.send_control(to.node, ControlMessage::Reply { request: to.request, reply });
    }

    /// What a member may ask. The sender is authenticated; administration needs an admin.
    fn checked(&self, from: NodeId, reply: ReplyTo, ask: ControlAsk) -> Result<CoordinatorInput, String> {
        let admin = self.p.coordinator.state().admins().any(|n| n == from);
        let only_admin = |input| {
            if admin { Ok(input) } else { Err(format!("{from} is not an admin of this cluster")) }
        };
        match ask {
            ControlAsk::Place(request) => Ok(CoordinatorInput::Place { reply, request }),
            ControlAsk::RemoveInstance { instance } => {
                let reason = format!("unloaded by {}", self.name_of(from));
                Ok(CoordinatorInput::Remove { reply, instance, reason })
            }
            ControlAsk::Admit(member) => {
                self.check_certificate(&member)?;
                only_admin(CoordinatorInput::AdmitMember { reply, member })
            }
            ControlAsk::RemoveMember { node, reason } => {
                only_admin(CoordinatorInput::RemoveMember { reply, node, reason })
            }
            _ => Err("this version does not know that request".to_owned()),
        }
    }

    fn check_certificate(&self, member: &Member) -> Result<(), String> {
        let certificate = exo_identity::MemberCert::decode(&member.certificate).map_err(|e| e.to_string())?;
        let state = self.p.coordinator.state();
        if certificate.statement.node != member.node
            || state.cluster().is_none_or(|(id, _)| id.0 != certificate.statement.cluster.0)
        {
            return Err("the certificate is for another node or cluster".to_owned());
        }
        certificate.verify(|key| state.admins().any(|n| n == *key)).map_err(|e| e.to_string())
    }

    // ---- the log ----

    pub(super) fn log_head(&self) -> LogHead {
        self.p.journal.head()
    }

    /// Asks for what this node's log lacks, if `node` is who to ask.
    pub(super) fn pull_log_from(&mut self, node: NodeId) {
        if self.pull_for_join(node) {
            return;
        }
        if self.leader.is_some_and(|(_, leader)| leader == node) && node != self.me {
            let LogHead { index, hash } = self.log_head();
            self.send_control(node, ControlMessage::Log(LogMessage::Pull { index, hash }));
        }
    }

    fn log_message(&mut self, from: NodeId, message: LogMessage) {
        if let LogMessage::Pull { index, hash } = message {
            return self.log_pulled(from, LogHead { index, hash });
        }
        if self.join_log(from, &message) {
            return;
        }
        let (LogMessage::Entries { epoch, .. } | LogMessage::Snapshot { epoch, .. }) = &message else {
            return;
        };
        if from == self.me || !self.leads(*epoch, from) {
            return self.refuse_epoch(from, *epoch);
        }
        let seen = self.leader.map(|(epoch, _)| epoch);
        let step = follow(self.log_head(), seen, message);
        match step {
            FollowerStep::Append(entries) => self.log_append(entries),
            FollowerStep::Restore { head, state } => self.log_restore(head, &state),
            FollowerStep::Pull => self.pull_log_from(from),
            FollowerStep::Nothing => {}
            FollowerStep::Refuse(refusal) => {
                self.send_control(from, ControlMessage::Refused(refusal));
            }
        }
    }

    fn log_append(&mut self, entries: Vec<Vec<u8>>) {
        let events: Result<Vec<_>, _> = entries.iter().map(|e| Event::decode(e)).collect();
        let events = match events {
            Ok(events) => events,
            Err(error) => return tracing::warn!(%error, "the coordinator sent an entry that is no event"),
        };
        match tokio::task::block_in_place(|| self.p.journal.append(&entries)) {
            Ok(_) => {
                self.feed_coordinator(CoordinatorInput::Replicated(events));
                self.snapshot_due = true;
                self.members_changed_if_needed();
            }
            Err(error) => self.notice(Notice::Warning(format!("the journal cannot be written: {error}"))),
        }
    }

    /// Folds the log into a snapshot now and then, once the state holds all of it.
    fn snapshot_if_due(&mut self) {
        let head = self.p.journal.head();
        let base = self.p.journal.base().index;
        if !std::mem::take(&mut self.snapshot_due) || head.index.saturating_sub(base) < SNAPSHOT_EVERY {
            return;
        }
        let state = self.p.coordinator.state().encode();
        if let Err(error) = tokio::task::block_in_place(|| self.p.journal.snapshot(head, &state)) {
            tracing::warn!(%error, "the journal is not folded; it goes on growing");
        }
    }

    /// Replaces this node's log and state by another's.
    pub(super) fn log_restore(&mut self, head: LogHead, bytes: &[u8]) {
        let state = match State::decode(bytes) {
            Ok(state) => state,
            Err(error) => return tracing::warn!(%error, "the coordinator sent a snapshot that is none"),
        };
        // Removals merge by union: what this side removed while it was apart is asked for again.
        let ours = self.p.coordinator.state();
        let same = state.cluster().map(|(id, _)| id) == ours.cluster().map(|(id, _)| id);
        let missing = if same { state.removals_missing(ours) } else { Vec::new() };
        let snapshot = exo_journal::Snapshot { head, state: bytes.to_vec() };
        match tokio::task::block_in_place(|| self.p.journal.install_snapshot(&snapshot, &[])) {
            Ok(_) => {
                self.feed_coordinator(CoordinatorInput::Restored(Box::new(state)));
                self.members_changed_if_needed();
                for event in missing {
                    if let Event::MemberRemoved { node, reason } = event {
                        drop(self.ask(ControlAsk::RemoveMember { node, reason }));
                    }
                }
            }
            Err(error) => self.notice(Notice::Warning(format!("the journal cannot be written: {error}"))),
        }
    }

    fn log_pulled(&mut self, from: NodeId, follower: LogHead) {
        if !self.is_leading() {
            return;
        }
        let (Some((epoch, _)), head) = (self.leader, self.log_head()) else { return };
        let step = lead(head, follower, |index| self.p.journal.hash_at(index).ok().flatten());
        let message = match step {
            LeaderStep::SendEntries { after_index } => self.entries_after(epoch, after_index, follower.hash),
            LeaderStep::SendSnapshot => {
                let state = self.p.coordinator.state().encode();
                Some(LogMessage::Snapshot { epoch, index: head.index, hash: head.hash, state })
            }
            LeaderStep::Nothing => None,
        };
        if let Some(message) = message {
            self.send_control(from, ControlMessage::Log(message));
        }
    }

    fn entries_after(&self, epoch: Epoch, after_index: u64, after_hash: [u8; 32]) -> Option<LogMessage> {
        match self.p.journal.read_from(after_index, limits::LOG_ENTRIES_MAX) {
            Ok(entries) => {
                let entries = entries.into_iter().map(|(_, bytes)| bytes).collect();
                Some(LogMessage::Entries { epoch, after_index, after_hash, entries })
            }
            Err(error) => {
                tracing::error!(%error, "the journal cannot be read");
                None
            }
        }
    }
}

fn held_models(store: &exo_store::Store) -> Vec<HeldModel> {
    let records = store.list().unwrap_or_default();
    let held = records.into_iter().filter(|r| r.problem.is_none()).map(|r| HeldModel {
        model: r.id,
        name: r.name,
        bytes: r.bytes,
        complete: r.complete,
    });
    held.take(limits::MODELS_MAX).collect()
}
