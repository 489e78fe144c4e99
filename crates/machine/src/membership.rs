//! Feeds membership, and does what it decides.

use std::collections::BTreeSet;

use exo_api::NodeStatus;
use exo_cluster::wire::{ControlMessage, DesiredState};
use exo_cluster::{CoordinatorInput, WorkerInput};
use exo_membership::{Input, LogEnd, LossReason, Output};
use exo_types::{Epoch, NodeId};

use crate::{Effect, NodeMachine, Notice};

impl NodeMachine {
    pub(crate) fn tick_membership(&mut self) {
        self.tell_standing();
        self.feed_membership(Input::Tick);
        self.note_cut_off();
        self.members_changed_if_needed();
    }

    /// What elections go by.
    pub(crate) fn tell_standing(&mut self) {
        let instances_served = self.instances.iter().filter(|i| i.is_ready()).count() as u32;
        let mains_power = self.samples.facts.mains_power.unwrap_or(false);
        let log = LogEnd {
            trust: self.trust.log().entries().count() as u64,
            epoch: self.state().epoch_last().map_or(0, |epoch| epoch.counter),
            index: self.log.durable().index,
        };
        #[cfg(feature = "planted")]
        let log =
            if self.config.planted == Some(crate::planted::Bug::LessWins) { LogEnd::default() } else { log };
        self.feed_membership(Input::LocalFacts { instances_served, mains_power, log });
    }

    /// Carrying out an output may feed membership again; what it says then comes after what it said before.
    pub(crate) fn feed_membership(&mut self, input: Input) {
        // All that is fed has it look at who was silent for too long: it hears first of members whose
        // messages are missing, and that live as their data links show. Behind a sleep no one was silent.
        let signs = if matches!(input, Input::Slept) {
            Vec::new()
        } else {
            self.links.heard_on_data_alone(self.now.time)
        };
        if !signs.is_empty() {
            let outputs = self.membership.handle(self.now.time, Input::Signs(signs));
            self.membership_outputs.extend(outputs);
        }
        let outputs = self.membership.handle(self.now.time, input);
        self.membership_outputs.extend(outputs);
        if std::mem::replace(&mut self.membership_busy, true) {
            return;
        }
        while let Some(output) = self.membership_outputs.pop_front() {
            self.membership_output(output);
        }
        self.membership_busy = false;
    }

    fn membership_output(&mut self, output: Output) {
        match output {
            Output::Send { to, message } => {
                self.send_control(to, ControlMessage::Membership(message.encode()));
            }
            #[cfg(feature = "planted")]
            Output::Persist(epoch) if self.has_bug(crate::planted::Bug::EpochEarly) => {
                self.writes.epoch(self.awake.ran(), epoch, &mut self.out);
                let outputs = self.membership.handle(self.now.time, Input::Persisted(epoch));
                self.membership_outputs.extend(outputs);
            }
            Output::Persist(epoch) => self.writes.epoch(self.awake.ran(), epoch, &mut self.out),
            Output::NodeUp(node) => self.node_up(node),
            Output::NodeSuspected(node) => self.set_status(node, NodeStatus::Suspected),
            Output::NodeLost { node, reason } => self.node_lost(node, reason),
            Output::CoordinatorChanged { epoch, coordinator } => self.coordinator_changed(epoch, coordinator),
            Output::Lead { epoch } => self.lead(epoch),
            // Questions for the coordinator wait for the next one.
            Output::CoordinatorLost { .. } => {
                self.leader = None;
                self.view_changed();
            }
            Output::StepDown => {
                self.leads_soon = None;
                self.refuse_waiting_replies();
                self.feed_coordinator(CoordinatorInput::Follow);
            }
            Output::WakeAt(_) => {} // the machine's own ticks come more often
        }
    }

    /// This node leads. What it decides must follow from all entries before, also from those that are on
    /// their way to disk, of its own earlier epoch or of a coordinator that it followed, and from those that
    /// only another member has.
    fn lead(&mut self, epoch: Epoch) {
        let serving = self.coordinator.serving();
        self.feed_coordinator(CoordinatorInput::Follow);
        if self.is_removed() {
            return self.hold_nothing(epoch);
        }
        self.begin_to_catch_up(serving);
        self.leads_soon = Some(epoch);
        self.lead_when_written();
    }

    /// Nothing that was placed in a cluster is of use to a node that is removed from it: its memory is free
    /// again.
    fn hold_nothing(&mut self, epoch: Epoch) {
        let nothing = DesiredState { epoch, revision: u64::MAX, shards: Vec::new() };
        self.feed_worker_from(self.me, WorkerInput::Desired(nothing));
    }

    pub(crate) fn lead_when_written(&mut self) {
        if self.leads_soon.is_none() || self.writes.is_log_busy() || self.continue_catch_up() {
            return;
        }
        if let Some(epoch) = self.leads_soon.take() {
            self.announce_log_head(epoch);
            // What members said while another one led counts: who reported holds what it said.
            for (from, report) in self.reports.clone() {
                self.feed_coordinator(CoordinatorInput::Report { from, report: Box::new(report) });
            }
            self.feed_coordinator(CoordinatorInput::Lead { epoch });
            self.ask_early();
        }
    }

    /// A membership message in its own encoding.
    pub(crate) fn membership_message(&mut self, from: NodeId, bytes: &[u8]) {
        match exo_membership::Message::decode(bytes) {
            Ok(message) => self.feed_membership(Input::Message { from, message }),
            Err(error) => tracing::warn!(peer = %from, %error, "a membership message that is none"),
        }
    }

    fn node_up(&mut self, node: NodeId) {
        let before = self.statuses.insert(node, NodeStatus::Alive);
        if node != self.me && (self.gone_since.remove(&node).is_some() || before.is_none()) {
            let name = self.name_of(node);
            self.notice(Notice::Up { name });
        }
        if self.ended.remove(&node).is_some() {
            self.keep_ended();
        }
        self.view_changed();
        #[cfg(feature = "planted")]
        if self.has_bug(crate::planted::Bug::UpUnsaid) {
            return;
        }
        self.feed_coordinator(CoordinatorInput::NodeUp(node));
    }

    fn set_status(&mut self, node: NodeId, status: NodeStatus) {
        self.statuses.insert(node, status);
        self.view_changed();
    }

    fn node_lost(&mut self, node: NodeId, reason: LossReason) {
        // Of one that was removed nothing is kept: no one is told that it is away.
        let is_member = self.members_known().contains(&node);
        if is_member {
            let has_ended = self.note_goodbye(node, reason);
            self.set_status(node, if has_ended { NodeStatus::Left } else { NodeStatus::Lost });
        }
        // A node that is only suspected in between was not here: it went once.
        let is_news = !self.gone_since.contains_key(&node);
        if is_news {
            if is_member {
                self.gone_since.insert(node, self.now.unix_s);
            }
            // Who was put out sees no one any more: the others are where they were.
            if !self.is_removed() {
                let name = self.name_of(node);
                self.notice(Notice::Lost { name, reason: reason.to_string() });
            }
        }
        self.reports.remove(&node);
        self.holder_lost(node);
        self.requests_lost(node);
        #[cfg(feature = "planted")]
        if self.has_bug(crate::planted::Bug::LossUnsaid) {
            return;
        }
        self.feed_coordinator(CoordinatorInput::NodeLost(node));
    }

    /// Whether a member that is gone said goodbye, in this run or in an earlier one since which it was not
    /// there.
    fn note_goodbye(&mut self, node: NodeId, reason: LossReason) -> bool {
        let is_known = self.ended.contains_key(&node);
        match reason {
            LossReason::NeverSeen => return is_known,
            LossReason::Left if is_known => return true,
            LossReason::Left => {
                self.ended.insert(node, self.now.unix_s);
            }
            _ if !is_known => return false,
            // It came back while this node was not there, and was lost then. In the run that heard its
            // goodbye it is known to be gone.
            _ => {
                self.ended.remove(&node);
                if !self.statuses.contains_key(&node) {
                    self.gone_since.remove(&node);
                }
            }
        }
        self.keep_ended();
        reason == LossReason::Left
    }

    pub(crate) fn keep_ended(&mut self) {
        self.writes.ended(self.awake.ran(), &self.ended, &mut self.out);
    }

    fn coordinator_changed(&mut self, epoch: Epoch, coordinator: NodeId) {
        self.leader = Some((epoch, coordinator));
        let before = self.leader_last.replace(coordinator);
        self.view_changed();
        // Who was put out leads itself alone, which is no cluster.
        if before.is_some_and(|node| node != coordinator) && !self.is_removed() {
            let name = self.name_of(coordinator);
            self.notice(Notice::Coordinator { name });
        }
        if coordinator != self.me {
            self.pull_log_from(coordinator);
        }
        self.follow_early();
        self.report_now();
    }

    pub(crate) fn is_leading(&self) -> bool {
        self.leader.is_some_and(|(_, node)| node == self.me)
    }

    /// Who belongs to the cluster changed: transport, links, membership and discovery must know.
    pub(crate) fn members_changed(&mut self) {
        if self.is_removed() && !std::mem::replace(&mut self.is_told_removed, true) {
            let removal = self.trust.view().removed().get(&self.me);
            let by = removal.map_or_else(String::new, |removal| self.name_of(removal.by));
            self.notice(Notice::Removed { by });
            self.leads_soon = None;
            self.refuse_waiting_replies();
            self.feed_coordinator(CoordinatorInput::Follow);
            self.end_requests();
            if let Some((epoch, _)) = self.leader.filter(|(_, leader)| *leader == self.me) {
                self.hold_nothing(epoch);
            }
        } else if !self.is_removed() && std::mem::take(&mut self.is_told_removed) {
            // Who signed that had been removed itself, and this node had not heard of it.
            self.feed_worker(WorkerInput::Moved);
            if self.is_leading() {
                self.feed_membership(Input::Renew);
            }
        }
        let members = self.members_known();
        let connected = self.to_connect();
        self.statuses.retain(|node, _| members.contains(node));
        self.reports.retain(|node, _| members.contains(node));
        self.reported.retain(|node, _| members.contains(node));
        self.names.set_members(self.trust.log().view().members());
        if connected != self.members {
            self.members.clone_from(&connected);
            self.out.push(Effect::SetMembers(connected.clone()));
        }
        self.with_links(|links, now, out| links.set_members(now, &connected, out));
        self.feed_membership(Input::Members(members.clone()));
        // Behind what was fed: who is removed while it is gone went once.
        self.gone_since.retain(|node, _| members.contains(node));
        let ended = self.ended.len();
        self.ended.retain(|node, _| members.contains(node));
        if self.ended.len() < ended {
            self.keep_ended();
        }
        self.tell_members();
        self.advertise();
        self.keep_addresses();
        self.view_changed();
    }

    /// Says to those who look whether this node is fresh, when that has changed.
    pub(crate) fn advertise(&mut self) {
        let is_fresh = self.with_joining(|_, context, _| context.is_fresh());
        if self.advertised.replace(is_fresh) != Some(is_fresh) {
            self.out.push(Effect::Advertise { is_fresh });
            self.view_changed();
        }
    }

    /// Follows who may connect, which joining may have changed.
    pub(crate) fn members_changed_if_needed(&mut self) {
        if self.to_connect() != self.members {
            self.members_changed();
        }
    }

    /// This node and those that the log of trust names. Once this node is removed, itself alone: the others
    /// refuse it.
    fn members_known(&self) -> BTreeSet<NodeId> {
        if self.is_removed() {
            return BTreeSet::from([self.me]);
        }
        self.trust.view().members().keys().copied().chain([self.me]).collect()
    }

    /// Who may connect: the members, and those who let this node in.
    fn to_connect(&self) -> BTreeSet<NodeId> {
        let mut nodes = self.members_known();
        nodes.extend(self.joining.members());
        #[cfg(feature = "planted")]
        nodes.extend(&self.trust.hearsay);
        #[cfg(feature = "planted")]
        if self.has_bug(crate::planted::Bug::RemovedStays) {
            nodes.extend(self.trust.view().removed().keys());
        }
        nodes.remove(&self.me);
        nodes
    }
}
