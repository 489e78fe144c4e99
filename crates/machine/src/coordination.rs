//! The control channel: reports, desired state, questions to the coordinator, and the log.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use exo_cluster::wire::{
    ControlAsk, ControlMessage, ControlRefusal, ControlReply, DesiredState, Drain, HeldModel, LinkReport,
    LogMessage, NodeReport, NotCoordinator, Refusal,
};
use exo_cluster::{
    AppendId, CoordinatorInput, CoordinatorOutput, Event, InstanceView, LEAVING_FOR, RemoveReason, ReplyTo,
    WorkerInput,
};
use exo_membership::EPOCH_JUMP_MAX;
use exo_trust::Act;
use exo_types::{DiskRoom, Epoch, ModelId, NodeId, Time};

use crate::joining::window_left_s;
use crate::links::RoundTrips;
use crate::persist::{ActAsker, Durable, LOG_WRITE_MAX, OwnAppend, Replaced, Unwritten, Written};
use crate::placement_wait::PlacementWait;
use crate::plausible;
use crate::{Answer, Effect, NodeMachine, Notice, PersistId, ReplyId, WriteFailure};

/// Reports go out on change and with each sample, or a little later.
pub(crate) const REPORT_EVERY: Duration = Duration::from_millis(900);
/// Files may vanish or change behind our back.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long the coordinator has for an answer. Longer than the planner has for a plan.
pub(crate) const ASK_MAX: Duration = Duration::from_secs(40);
/// How long a question waits for somebody who coordinates.
pub(crate) const ELECTION_MAX: Duration = Duration::from_secs(10);
/// Between attempts to record that the join window is over.
const REPEAT_SHUT: Duration = Duration::from_secs(60);
/// Behind a snapshot of the log that the disk did not take: it is large, and may wait.
const FOLD_AGAIN: Duration = Duration::from_secs(60);
/// Questions that wait for a coordinator. Above that they are refused.
const EARLY_MAX: usize = 64;
/// Most models whose placement got no answer and that are checked once they appear; others are checked with
/// `exo models check`.
const UNANSWERED_MAX: usize = 64;
/// A coordinator that has such a question answers it within [`ASK_MAX`], or never; loading shows at once.
const UNANSWERED_FOR: Duration = Duration::from_secs(80);

/// Who waits for the coordinator's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asker {
    /// Somebody at the API.
    Client(ReplyId),
    /// Requests that wait for this model to be placed.
    Placement(ModelId),
}

/// What a coordinator told this node before it followed: the last of each kind.
#[derive(Debug)]
pub(crate) struct EarlyCommands {
    epoch: Epoch,
    from: NodeId,
    desired: Option<DesiredState>,
    instances: Option<Vec<InstanceView>>,
}

/// Questions to the coordinator that have no answer yet.
#[derive(Debug, Default)]
pub(crate) struct Asks {
    last: u64,
    open: BTreeMap<u64, OpenAsk>,
    /// For the coordinator that is being elected.
    early: Vec<EarlyAsk>,
    /// Models that cannot be placed at the moment.
    pub(crate) unplaceable: BTreeMap<ModelId, PlacementWait>,
    /// Models whose placement requests asked for, and when no answer had come: they may be placed all the
    /// same, which shows.
    pub(crate) unanswered: BTreeMap<ModelId, Time>,
    /// Since when others follow a coordinator that this node does not hear.
    pub(crate) cut_off_since: Option<Time>,
    /// When this node last said that it is about to end.
    leaving_said: Option<Time>,
}

#[derive(Debug)]
struct EarlyAsk {
    since: Time,
    asker: Asker,
    ask: ControlAsk,
}

#[derive(Debug)]
struct OpenAsk {
    since: Time,
    /// Only this node's answer counts: the numbers are easily guessed.
    asked: NodeId,
    asker: Asker,
    /// To ask again, should another coordinate by then.
    ask: ControlAsk,
}

impl Asks {
    pub(crate) fn len(&self) -> usize {
        self.open.len() + self.early.len()
    }

    /// Whether the placement of this model is being asked for.
    pub(crate) fn is_placing(&self, model: ModelId) -> bool {
        let mut askers =
            self.open.values().map(|ask| ask.asker).chain(self.early.iter().map(|ask| ask.asker));
        askers.any(|asker| asker == Asker::Placement(model))
    }

    pub(crate) fn note_unanswered(&mut self, model: ModelId, now: Time) {
        self.unanswered.insert(model, now);
        if self.unanswered.len() > UNANSWERED_MAX {
            let oldest = self.unanswered.iter().min_by_key(|(_, since)| **since).map(|(model, _)| *model);
            oldest.into_iter().for_each(|model| self.forget_unanswered(model));
        }
    }

    /// What shows later was placed by somebody else, who has it checked.
    fn forget_old_unanswered(&mut self, now: Time) {
        let is_old = |since: &Time| now.since(*since) > UNANSWERED_FOR;
        let old: Vec<ModelId> =
            self.unanswered.iter().filter(|(_, since)| is_old(since)).map(|(model, _)| *model).collect();
        old.into_iter().for_each(|model| self.forget_unanswered(model));
    }

    fn forget_unanswered(&mut self, model: ModelId) {
        self.unanswered.remove(&model);
        tracing::trace!(target: "events::model_check", %model, "no longer looked for: asked for without an answer");
    }
}

impl NodeMachine {
    /// A message on the control channel, from a member or from this node itself.
    pub(crate) fn control(&mut self, from: NodeId, message: ControlMessage) {
        match message {
            ControlMessage::Membership(bytes) => self.membership_message(from, &bytes),
            ControlMessage::Trust(bytes) => self.trust_message(from, &bytes),
            ControlMessage::Report(report) => self.report(from, *report),
            ControlMessage::Desired(desired) => self.desired(from, desired),
            ControlMessage::Instances { epoch, instances } => self.instances_told(from, epoch, instances),
            ControlMessage::Request { request, ask } => self.asked(from, request, ask),
            ControlMessage::Reply { request, reply } => self.answered(from, request, Some(reply)),
            ControlMessage::Log(message) => self.log_message(from, message),
            ControlMessage::Backup(message) => self.backup_message(from, message),
            ControlMessage::Refused(refusal) => tracing::info!(peer = %from, %refusal, "refused"),
        }
    }

    pub(crate) fn tick_coordination(&mut self) {
        self.feed_coordinator(CoordinatorInput::Tick);
        self.snapshot_if_due();
        self.shut_window_when_over();
        self.write_trust_again();
        self.give_up_acts();
        self.advertise();
        if let Some(waited) = self.writes.slow(self.awake.ran()) {
            let seconds = waited.as_secs();
            self.notice(Notice::Warning(format!("the disk has not answered a write for {seconds} s")));
        }
        self.step_aside_if_late();
        let now = self.now.time;
        self.give_up_asks(|ask| now.since(ask.since) > ASK_MAX);
        self.asks.forget_old_unanswered(now);
        self.lead_when_written();
        self.release_replies();
        self.answer_early();
        self.ask_early();
    }

    /// A disk that does not answer is no better than one that fails: what this node decided, or must have
    /// before it leads, would be waited for without end. What it writes in the end are entries like others.
    fn step_aside_if_late(&mut self) {
        if !self.writes.is_log_late(self.awake.ran()) {
            return;
        }
        let led = self.is_leading();
        self.feed_membership(exo_membership::Input::StepAside);
        if led && !self.is_leading() {
            let seconds = LOG_WRITE_MAX.as_secs();
            self.notice(Notice::Warning(format!(
                "the journal was not written within {seconds} s, so this node leaves the lead to others until the disk answers"
            )));
        }
    }

    /// A join window that is over stays over, whatever clocks say after the next start.
    fn shut_window_when_over(&mut self) {
        // A clock that is behind shuts it for now; that may be mended.
        let is_over =
            |until: u64| until > 0 && (until <= self.now.unix_s || window_left_s(until, self.now.unix_s) > 0);
        let is_over = self.trust.view().window_until_unix_s().is_some_and(is_over);
        if !is_over || self.is_window_open() || !self.is_admin() || self.now.time < self.shut_window_at {
            return;
        }
        self.shut_window_at = self.now.time + REPEAT_SHUT;
        self.change_members(ActAsker::Nobody, Act::Window { until_unix_s: 0 });
    }

    // ---- the coordinator's machine ----

    pub(crate) fn feed_coordinator(&mut self, input: CoordinatorInput) {
        self.coordinator.pause(self.is_unsure());
        let mut inputs = std::collections::VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            for output in self.coordinator.handle(self.now.time, input) {
                inputs.extend(self.coordinator_output(output));
            }
        }
    }

    fn coordinator_output(&mut self, output: CoordinatorOutput) -> Option<CoordinatorInput> {
        match output {
            CoordinatorOutput::Append { append, events } => return self.append(append, events),
            CoordinatorOutput::SendDesired { to, desired } => {
                self.send_control(to, ControlMessage::Desired(desired));
            }
            CoordinatorOutput::Reply { to, reply } => self.reply_when_held(to, reply),
            CoordinatorOutput::Plan { plan, request } => self.out.push(Effect::Plan { id: plan, request }),
            CoordinatorOutput::InstanceChanged(view) => {
                let state = view.state.text(&|node| self.name_of(node));
                tracing::info!(target: "events::instance", instance = %view.instance(), state, "changed");
                self.view_changed();
            }
            #[cfg(feature = "planted")]
            CoordinatorOutput::Instances { instances, .. }
                if self.has_bug(crate::planted::Bug::GivesUp)
                    && instances
                        .iter()
                        .any(|i| matches!(i.state, exo_cluster::InstanceState::Waiting { .. })) =>
            {
                let instance = instances[0].instance();
                let reply = ReplyTo { node: self.me, request: 0 };
                let reason = RemoveReason::Unused { seconds: 0 };
                return Some(CoordinatorInput::Remove { reply, instance, reason });
            }
            CoordinatorOutput::Instances { epoch, instances } => self.tell_instances(epoch, instances),
        }
        None
    }

    /// The coordinator's decision goes to disk; everything that follows from it waits for that.
    fn append(&mut self, append: AppendId, events: Vec<Event>) -> Option<CoordinatorInput> {
        let refused =
            |reason: &str| Some(CoordinatorInput::AppendFailed { append, reason: reason.to_owned() });
        if !self.log.takes_entries() {
            return refused("the write before it has just failed");
        }
        let Some((epoch, _)) = self.leader.filter(|(_, node)| *node == self.me) else {
            return refused("this node does not coordinate any more");
        };
        let before = self.log.planned();
        let entries: Vec<Vec<u8>> = events.iter().map(Event::encode).collect();
        let after = self.log.plan(&entries);
        let append = OwnAppend { append, epoch, before, after, entries, events };
        self.writes.own(self.awake.ran(), append, &mut self.out);
        None
    }

    fn tell_instances(&mut self, epoch: Epoch, instances: Vec<InstanceView>) {
        let message = Arc::new(ControlMessage::Instances { epoch, instances: instances.clone() });
        self.send_to_members(&message);
        self.instances_now(instances);
    }

    /// The same to every other member, encoded once.
    pub(crate) fn send_to_members(&mut self, message: &Arc<ControlMessage>) {
        for node in self.other_members() {
            self.with_links(|links, now, out| {
                links.send_control(now, node, message, out);
            });
        }
    }

    pub(crate) fn other_members(&self) -> Vec<NodeId> {
        self.trust.view().members().keys().copied().filter(|n| *n != self.me).collect()
    }

    // ---- what was written, and what was not ----

    pub(crate) fn persisted(&mut self, id: PersistId, result: Result<(), WriteFailure>) {
        match self.writes.answered(id, result) {
            Some(Ok(written)) => self.written(written),
            Some(Err((unwritten, failure))) => self.unwritten(unwritten, &failure),
            None => {}
        }
        self.lead_when_written();
    }

    pub(crate) fn written(&mut self, written: Written) {
        match written {
            Written::Epoch(epoch) => {
                self.feed_membership(exo_membership::Input::Persisted(epoch.into_inner()));
            }
            Written::Own(append) => self.own_written(append),
            Written::Followed(append) => self.followed_written(append.into_inner()),
            Written::Replaced(replaced) => self.replaced(replaced),
            Written::Trust(trust) => self.trust_written(trust),
            Written::Snapshot(head) => self.log.folded(head),
            Written::Ended(ended) if ended != self.ended => self.keep_ended(),
            Written::Addresses | Written::Ended(_) => {}
        }
    }

    /// Entries of this coordinator are on disk: members get them, askers their answers. If the epoch in which
    /// they were decided is over, they are entries of the log like others, and nothing is announced.
    fn own_written(&mut self, append: Durable<OwnAppend>) {
        let is_over = self.leader != Some((append.get().epoch, self.me));
        if !is_over {
            self.replicate(&append);
        }
        let OwnAppend { append, epoch, after, entries, events, .. } = append.into_inner();
        self.log.written(after, entries);
        if is_over {
            tracing::trace!(%epoch, leader = ?self.leader, "entries of an epoch that is over were written");
            self.feed_coordinator(CoordinatorInput::Replicated(events));
        } else {
            self.feed_coordinator(CoordinatorInput::Appended(append));
        }
    }

    fn replicate(&mut self, append: &Durable<OwnAppend>) {
        let OwnAppend { epoch, before, entries, .. } = append.get();
        let (epoch, after_index, after_hash, entries) = (*epoch, before.index, before.hash, entries.clone());
        let message = LogMessage::Entries { epoch, after_index, after_hash, entries };
        self.send_to_members(&Arc::new(ControlMessage::Log(message)));
    }

    fn replaced(&mut self, replaced: Durable<Replaced>) {
        let Replaced { head, ancestors, state } = replaced.into_inner();
        self.log.replaced(head, ancestors, !self.writes.is_log_busy());
        #[cfg(feature = "planted")]
        if self.has_bug(crate::planted::Bug::NotRestored) {
            return;
        }
        self.feed_coordinator(CoordinatorInput::Restored(Box::new(state)));
        self.tell_log_end();
        // The last of them is the one that the move asked for.
        if let Some(move_in) = self.moving_in.as_ref().filter(|_| !self.writes.is_replacing()) {
            self.write_other_trust(move_in.trust.clone());
        }
    }

    fn unwritten(&mut self, unwritten: Unwritten, failure: &WriteFailure) {
        let reason = failure.reason.as_str();
        let what = match unwritten {
            Unwritten::Epoch(epoch) => {
                // Announcing what a restart would forget could give two coordinators one epoch: nothing is
                // done in it.
                tracing::error!(%epoch, reason, "the epoch cannot be kept");
                self.feed_membership(exo_membership::Input::NotPersisted(epoch));
                "who coordinates cannot be kept, so this node neither leads nor follows until it can"
            }
            #[cfg(feature = "planted")]
            Unwritten::Own(own) if self.has_bug(crate::planted::Bug::FailedIsWritten) => {
                return self.feed_coordinator(CoordinatorInput::Appended(own.append));
            }
            Unwritten::Own(OwnAppend { append, .. }) => {
                self.log.fall_back(!self.writes.is_log_busy());
                let failed = CoordinatorInput::AppendFailed { append, reason: reason.to_owned() };
                self.feed_coordinator(failed);
                #[cfg(feature = "planted")]
                if self.has_bug(crate::planted::Bug::LeadsWithoutDisk) {
                    return;
                }
                self.feed_membership(exo_membership::Input::StepAside);
                "the journal cannot be written"
            }
            Unwritten::Followed(_) | Unwritten::Replaced(_) => {
                self.log.fall_back(!self.writes.is_log_busy());
                if !self.writes.is_replacing() {
                    self.move_failed();
                }
                self.pull_at = Some(self.now.time + Duration::from_secs(1));
                "the journal cannot be written"
            }
            Unwritten::Trust(write) => return self.trust_unwritten(write, failure),
            Unwritten::Snapshot(_) => {
                self.log.not_folded(self.now.time + FOLD_AGAIN);
                "the journal is not folded; it goes on growing"
            }
            Unwritten::Addresses => "addresses are not remembered",
            Unwritten::Ended(_) => "which members have ended is not remembered",
        };
        self.notice(Notice::Warning(format!("{what}: {reason}")));
    }

    // ---- reports ----

    fn report(&mut self, from: NodeId, mut report: NodeReport) {
        if report.facts.node != from {
            tracing::warn!(peer = %from, claimed = %report.facts.node, "a report in another node's name");
            return;
        }
        self.note_reported(from, &report);
        self.names.tell(from, &report.facts.name, self.trust.log().view().members());
        report.facts.name = self.names.of(from); // as the coordinator's reasons have it, too
        if from != self.me {
            self.learn_reached(from, &report.reached);
        }
        if let Some(before) = self.reports.get(&from) {
            if has_computed(before, &report) {
                self.bandwidths.computed(self.now.time);
            }
            plausible::keep_links(&before.links, &mut report.links);
            plausible::keep_rates(&before.facts.devices, &mut report.facts.devices);
        }
        match self.reports.get(&from) {
            Some(before) if is_alike(before, &report) => self.view_wavered(),
            _ => self.view_changed(),
        }
        let before = self.reports.insert(from, report.clone());
        self.log_reported(from, before.as_ref(), report.log);
        if self.is_leading() {
            self.feed_coordinator(CoordinatorInput::Report { from, report: Box::new(report) });
        }
    }

    /// A member says where it reaches others: beyond the networks of this machine only an admin is believed.
    pub(crate) fn learn_reached(&mut self, from: NodeId, reached: &[(NodeId, SocketAddr)]) {
        let is_admin = self.trust.log().view().admins().any(|admin| admin == from);
        let reached = reached.iter().copied();
        let reached: Vec<_> = reached.filter(|(_, at)| is_admin || self.is_on_link(*at)).collect();
        self.links.learn_from(from, &reached);
    }

    /// Reports if it is so long since the last time.
    pub(crate) fn report_if_due(&mut self, every: Duration) {
        let now = self.now.time;
        if now.since(self.models_at) >= LOOK_EVERY {
            self.scan_models();
        }
        if let Some(node) =
            self.leader.map(|(_, node)| node).filter(|_| self.pull_at.is_some_and(|at| now >= at))
        {
            self.pull_at = None;
            self.pull_log_from(node);
        }
        if now.since(self.report_at) >= every {
            self.report_now();
            self.measure_if_due();
        }
    }

    /// Asks a member for a burst, if that is due and no stream runs.
    fn measure_if_due(&mut self) {
        let is_busy = !self.drivers.is_empty() || !self.fetches.is_empty();
        if is_busy || self.members.is_empty() {
            return;
        }
        let (now, me, open) = (self.now.time, self.me, self.links.open_data().clone());
        if let Some(from) = self.bandwidths.due(now, me, &open) {
            let addresses = self.links.addresses(from).to_vec();
            self.out.push(Effect::Burst { from, addresses });
        }
    }

    /// Tells every member how this node is: the coordinator decides by it, the others show it.
    pub(crate) fn report_now(&mut self) {
        self.report_at = self.now.time;
        let report = self.own_report();
        self.send_to_members(&Arc::new(ControlMessage::Report(Box::new(report.clone()))));
        self.tell_trust_known_if_due();
        self.report(self.me, report);
    }

    fn own_report(&self) -> NodeReport {
        let now = self.now.time;
        let links = self.members.iter().filter_map(|node| {
            let RoundTrips { median, jitter, count, age } = self.links.round_trips(now, *node)?;
            let us = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
            Some(LinkReport {
                peer: *node,
                rtt_us: us(median),
                rtt_count: count,
                rtt_age_ms: u32::try_from(age.as_millis()).unwrap_or(u32::MAX),
                jitter_us: us(jitter),
                inbound: self.bandwidths.of(now, *node),
                traffic: self.samples.measured.traffic.get(node).copied(),
                is_wireless: self.samples.measured.wireless.get(node).copied(),
            })
        });
        let mut facts = self.samples.facts.clone();
        let cluster = self.trust.log().cluster();
        for device in &mut facts.devices {
            device.corrections = self.step_corrections.of(device);
            device.memory_domain = device.memory_domain.map(|domain| domain.within(&cluster.0));
        }
        NodeReport {
            facts,
            models: self.models.clone(),
            disk_room: self.disk_room,
            process_bytes: self.samples.process_bytes,
            reached: self.links.reached(),
            stages: self.stage_reports(),
            links: links.collect(),
            unreached: self.links.unreached(self.now.time),
            desired: self.worker.desired_revision(),
            instance_failures: self.instance_failures.clone(),
            devices: self.samples.devices.clone(),
            card_events: self.samples.card_events.clone(),
            measured: self.measured(),
            log: self.log.durable(),
            is_leaving: self.asks.leaving_said.is_some_and(|at| now.since(at) <= LEAVING_FOR),
            is_disk_hung: self.writes.is_log_late(self.awake.ran()),
        }
    }

    /// This node's own word that it is about to end goes to all members, and not only to who coordinates:
    /// that one may end in the same moment, and no one waits for a node that ends as well.
    pub(crate) fn note_leaving(&mut self, ask: &ControlAsk) {
        let before = self.asks.leaving_said;
        match ask {
            ControlAsk::Drain { node, drain: Drain::Leaving } if *node == self.me => {
                self.asks.leaving_said = Some(self.now.time);
            }
            ControlAsk::Drain { node, drain: Drain::Over } if *node == self.me => {
                self.asks.leaving_said = None
            }
            _ => return,
        }
        if self.asks.leaving_said.is_some() != before.is_some() {
            self.report_now();
        }
    }

    /// Has the models on disk looked at.
    pub(crate) fn scan_models(&mut self) {
        self.models_at = self.now.time;
        if !std::mem::replace(&mut self.scan.is_under_way, true) {
            self.out.push(Effect::ScanModels);
        }
    }

    pub(crate) fn models_scanned(&mut self, models: Vec<HeldModel>, room: DiskRoom) {
        (self.scan.is_under_way, self.disk_room) = (false, room);
        let known: BTreeSet<ModelId> = self.models.iter().map(|held| held.model).collect();
        self.has_new_model |= models.iter().any(|held| !known.contains(&held.model));
        if self.models != models {
            self.models = models;
            self.report_now();
        }
        if std::mem::take(&mut self.scan.again) {
            return self.scan_models();
        }
        for reply in std::mem::take(&mut self.scan.waiting) {
            let models = self.models_held();
            self.reply(reply, Answer::Models(models));
        }
    }

    // ---- commands of the coordinator ----

    fn desired(&mut self, from: NodeId, desired: DesiredState) {
        if !self.leads(desired.epoch, from) {
            if let Some(early) = self.early(from, desired.epoch) {
                early.desired = Some(desired);
                return;
            }
            return self.refuse_epoch(from, desired.epoch, "desired shards");
        }
        self.feed_worker_from(from, WorkerInput::Desired(desired));
    }

    fn instances_told(&mut self, from: NodeId, epoch: Epoch, instances: Vec<InstanceView>) {
        if self.is_removed() {
            tracing::trace!(peer = %from, "instances of a cluster that this node was removed from");
            return;
        }
        if !self.leads(epoch, from) {
            if let Some(early) = self.early(from, epoch) {
                early.instances = Some(instances);
                return;
            }
            return self.refuse_epoch(from, epoch, "instances");
        }
        self.instances_now(instances);
    }

    /// Where commands of a later epoch wait until this node follows it: its announcement came before them on
    /// the same link, but is followed only when the epoch is on the disk. Only the last epoch's wait.
    fn early(&mut self, from: NodeId, epoch: Epoch) -> Option<&mut EarlyCommands> {
        let jump = epoch.counter.saturating_sub(self.leader.map_or(0, |(seen, _)| seen.counter));
        if epoch.key != from || jump > EPOCH_JUMP_MAX {
            tracing::trace!(peer = %from, %epoch, own = ?self.leader, "a command of an epoch that is not the sender's, or cannot be next");
            return None;
        }
        let known = self.leader.map(|(seen, _)| seen).max(self.early_commands.as_ref().map(|e| e.epoch));
        let is_same =
            self.early_commands.as_ref().is_some_and(|early| (early.epoch, early.from) == (epoch, from));
        if known.is_some_and(|seen| epoch <= seen) && !is_same {
            return None;
        }
        tracing::trace!(peer = %from, %epoch, own = ?self.leader, "a command of an epoch that is not followed yet");
        if !is_same {
            if let Some(EarlyCommands { epoch, from, .. }) = &self.early_commands {
                tracing::trace!(peer = %from, %epoch, "commands that wait make room for those of a later epoch");
            }
            self.early_commands = Some(EarlyCommands { epoch, from, desired: None, instances: None });
        }
        self.early_commands.as_mut()
    }

    /// This node follows an epoch from now on: what was told in it already counts.
    pub(crate) fn follow_early(&mut self) {
        let Some(early) = self.early_commands.take() else { return };
        if let Some(instances) = early.instances {
            self.instances_told(early.from, early.epoch, instances);
        }
        if let Some(desired) = early.desired {
            self.desired(early.from, desired);
        }
    }

    /// Whether `from` is the coordinator that this node follows, in that very epoch.
    pub(crate) fn leads(&self, epoch: Epoch, from: NodeId) -> bool {
        #[cfg(feature = "planted")]
        if self.config.planted == Some(crate::planted::Bug::OlderEpoch) {
            return epoch.key == from;
        }
        self.leader == Some((epoch, from))
    }

    pub(crate) fn refuse_epoch(&mut self, from: NodeId, got: Epoch, what: &str) {
        tracing::trace!(peer = %from, %got, own = ?self.leader, what, "a command of another epoch");
        if let Some((seen, _)) = self.leader.filter(|(seen, _)| got < *seen) {
            self.send_control(from, ControlMessage::Refused(Refusal::StaleEpoch { got, seen }));
        }
    }

    // ---- asking the coordinator ----

    /// Asks the coordinator, which may be this node. While one is being elected the question waits. The asker
    /// hears in any case: an answer, or that none came.
    pub(crate) fn ask(&mut self, asker: Asker, ask: ControlAsk) {
        self.ask_since(self.now.time, asker, ask);
    }

    fn ask_since(&mut self, since: Time, asker: Asker, ask: ControlAsk) {
        // A coordinator that waits for its disk has no answers yet.
        let Some((_, asked)) = self.leader.filter(|_| self.leads_soon.is_none()) else {
            let reason = self.cut_off().unwrap_or(NotCoordinator::Electing);
            return self.ask_later(since, asker, ask, reason);
        };
        self.asks.last += 1;
        let request = self.asks.last;
        if self.send_control(asked, ControlMessage::Request { request, ask: ask.clone() }) {
            self.asks.open.insert(request, OpenAsk { since, asked, asker, ask });
        } else {
            self.ask_later(since, asker, ask, NotCoordinator::NoLink { to: asked });
        }
    }

    /// Asks again soon, unless the question has waited for long, or too many do.
    fn ask_later(&mut self, since: Time, asker: Asker, ask: ControlAsk, reason: NotCoordinator) {
        if self.now.time.since(since) > ELECTION_MAX
            || self.cut_off().is_some()
            || self.asks.early.len() >= EARLY_MAX
        {
            let refusal = ControlRefusal::NotCoordinator(reason);
            return self.answer(asker, Some(ControlReply::Refused(refusal)));
        }
        self.asks.early.push(EarlyAsk { since, asker, ask });
    }

    /// What waited for a coordinator is asked now, or goes on waiting.
    pub(crate) fn ask_early(&mut self) {
        for EarlyAsk { since, asker, ask } in std::mem::take(&mut self.asks.early) {
            self.ask_since(since, asker, ask);
        }
    }

    fn answered(&mut self, from: NodeId, request: u64, reply: Option<ControlReply>) {
        let asked = self.asks.open.get(&request).map(|ask| ask.asked);
        if asked != Some(from) {
            return tracing::trace!(peer = %from, ?asked, request, "an answer to no question");
        }
        let Some(OpenAsk { since, asker, ask, .. }) = self.asks.open.remove(&request) else { return };
        match reply {
            Some(ControlReply::Refused(ControlRefusal::NotCoordinator(reason))) => {
                self.ask_later(since, asker, ask, reason);
            }
            reply => self.answer(asker, reply),
        }
    }

    /// The control link to `node` ended: what was asked of it, or its answer, may be lost with the link.
    pub(crate) fn asks_lost(&mut self, node: NodeId) {
        self.give_up_asks(|ask| ask.asked == node);
    }

    fn give_up_asks(&mut self, is_over: impl Fn(&OpenAsk) -> bool) {
        #[cfg(feature = "planted")]
        if self.has_bug(crate::planted::Bug::AskedForever) {
            return;
        }
        let over = self.asks.open.iter().filter(|(_, ask)| is_over(ask));
        let over: Vec<_> = over.map(|(request, ask)| (*request, ask.asked)).collect();
        for (request, asked) in over {
            tracing::trace!(request, peer = %asked, "no answer of the coordinator");
            self.answered(asked, request, None);
        }
    }

    fn answer(&mut self, asker: Asker, reply: Option<ControlReply>) {
        match asker {
            Asker::Client(id) => {
                self.reply(id, Answer::Coordinator(reply.map(Box::new)));
            }
            Asker::Placement(model) => self.placed(model, reply),
        }
    }

    fn asked(&mut self, from: NodeId, request: u64, ask: ControlAsk) {
        let reply = ReplyTo { node: from, request };
        let is_unsure = match ask {
            ControlAsk::Place(_) | ControlAsk::PlannerInputs { .. } => !self.membership.may_place(),
            _ => self.membership.was_away(),
        };
        if is_unsure {
            return self.does_not_coordinate(reply, NotCoordinator::Alone);
        }
        if !self.is_leading() {
            return self.does_not_coordinate(reply, NotCoordinator::Member { node: self.me });
        }
        self.feed_coordinator(match ask {
            ControlAsk::Place(request) => CoordinatorInput::Place { reply, request },
            ControlAsk::RemoveInstance { instance } => {
                let reason = RemoveReason::Asked { by: from };
                CoordinatorInput::Remove { reply, instance, reason }
            }
            ControlAsk::Drain { node, drain } => CoordinatorInput::Drain { reply, node, drain },
            ControlAsk::PlannerInputs { model, replaced } => {
                CoordinatorInput::PlannerInputs { reply, model, replaced }
            }
            ControlAsk::Replan { instance, carry_out } => {
                CoordinatorInput::Replan { reply, instance, carry_out }
            }
        });
    }

    pub(crate) fn does_not_coordinate(&mut self, to: ReplyTo, why: NotCoordinator) {
        self.send_reply(to, ControlReply::Refused(ControlRefusal::NotCoordinator(why)));
    }

    /// Folds the log into a snapshot now and then. The state holds all that is durable, and nothing else.
    fn snapshot_if_due(&mut self) {
        if self.log.is_snapshot_due(self.now.time) && !self.writes.is_log_busy() {
            let (head, state) = (self.log.durable(), self.state().clone());
            self.log.folding();
            self.writes.snapshot(self.awake.ran(), head, state, &mut self.out);
        }
    }
}

/// Whether two reports of a member differ only in what wavers: measurements, memory, rates, load.
fn is_alike(before: &NodeReport, now: &NodeReport) -> bool {
    let devices = |report: &NodeReport| {
        let facts = report.facts.devices.iter();
        let facts = facts.map(|device| (device.id.clone(), device.support, device.support_reason.clone()));
        let states = report.devices.iter().map(|device| {
            let texts = (device.reason.clone(), device.driver.clone());
            (device.device.clone(), device.state, texts, device.monitor.throttled)
        });
        (facts.collect::<Vec<_>>(), states.collect::<Vec<_>>())
    };
    let stages = |report: &NodeReport| {
        let stages = report.stages.iter();
        stages.map(|stage| (stage.engine, stage.serves, stage.status.clone())).collect::<Vec<_>>()
    };
    let peers = |report: &NodeReport| report.links.iter().map(|link| link.peer).collect::<Vec<_>>();
    let about = |report: &NodeReport| {
        let facts = &report.facts;
        (facts.name.clone(), facts.version.clone(), facts.mains_power, report.desired)
    };
    about(before) == about(now)
        && devices(before) == devices(now)
        && stages(before) == stages(now)
        && peers(before) == peers(now)
        && before.models == now.models
        && before.unreached == now.unreached
        && before.instance_failures == now.instance_failures
        && (before.is_leaving, before.is_disk_hung) == (now.is_leaving, now.is_disk_hung)
        && before.card_events == now.card_events
}

/// Whether a shard of the member has computed since its last report.
fn has_computed(before: &NodeReport, now: &NodeReport) -> bool {
    now.stages.iter().any(|stage| {
        let before = before.stages.iter().find(|s| s.engine == stage.engine);
        stage.busy_us > before.map_or(0, |before| before.busy_us)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placements_without_an_answer_are_looked_for_for_a_while_and_not_without_bound() {
        let (mut asks, at) = (Asks::default(), |seconds: u64| Time(seconds * 1_000_000));
        for number in 0..=UNANSWERED_MAX as u8 {
            asks.note_unanswered(ModelId([number; 32]), at(u64::from(number)));
        }
        assert_eq!(asks.unanswered.len(), UNANSWERED_MAX);
        assert!(!asks.unanswered.contains_key(&ModelId([0; 32])), "the oldest is gone");
        asks.forget_old_unanswered(at(10) + UNANSWERED_FOR);
        assert_eq!(asks.unanswered.first_key_value().map(|(model, _)| *model), Some(ModelId([10; 32])));
        asks.forget_old_unanswered(at(1_000));
        assert!(asks.unanswered.is_empty());
    }
}
