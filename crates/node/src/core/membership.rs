//! Feeds the membership machine and carries out what it decides.

use exo_api::NodeStatus;
use exo_cluster::CoordinatorInput;
use exo_cluster::wire::ControlMessage;
use exo_membership::{Input, Output};
use exo_types::{Epoch, NodeId};

use super::Core;
use crate::notice::Notice;

impl Core {
    pub(super) fn tick_membership(&mut self) {
        let serving = self.instances.iter().filter(|i| i.is_ready()).count() as u32;
        let mains_power = self.p.facts.mains_power.unwrap_or(false);
        self.feed_membership(Input::LocalFacts { instances_served: serving, mains_power });
        self.feed_membership(Input::Tick);
    }

    /// Who belongs to the cluster changed: transport, membership and discovery must know.
    pub(super) fn members_changed(&mut self) {
        let members: std::collections::BTreeSet<NodeId> =
            self.p.coordinator.state().members().keys().copied().chain([self.me]).collect();
        let others = members.iter().copied().filter(|n| *n != self.me);
        self.p.members.replace(others.chain(self.joining_members()));
        let joining = self.joining_members();
        self.peers.retain(|node, _| members.contains(node) || joining.contains(node));
        self.data_links_changed();
        self.statuses.retain(|node, _| members.contains(node));
        self.reports.retain(|node, _| members.contains(node));
        self.feed_membership(Input::Members(members));
        self.announce();
        self.keep_addresses();
        self.view_stale = true;
    }

    /// The control link to a member is open.
    pub(super) fn control_up(&mut self, node: NodeId) {
        self.feed_membership(Input::LinkUp(node));
        self.pull_log_from(node);
        self.report_now();
    }

    /// A link to a member was reset: suspicion at once.
    pub(super) fn control_down(&mut self, node: NodeId) {
        self.feed_membership(Input::LinkReset(node));
    }

    /// A membership message in its own encoding.
    pub(super) fn membership_message(&mut self, from: NodeId, bytes: &[u8]) {
        match exo_membership::Message::decode(bytes) {
            Ok(message) => self.feed_membership(Input::Message { from, message }),
            Err(error) => tracing::warn!(peer = %from, %error, "a membership message that is none"),
        }
    }

    /// Carrying out an output may feed the machine again; what it says then comes after what it said before.
    pub(super) fn feed_membership(&mut self, input: Input) {
        let now = self.now();
        self.membership_outputs.extend(self.p.membership.handle(now, input));
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
            Output::Persist(epoch) => {
                if !self.persist(epoch) {
                    // What follows would announce an epoch that a restart forgets.
                    self.membership_outputs.clear();
                }
            }
            Output::NodeUp(node) => self.node_up(node),
            Output::NodeSuspected(node) => self.set_status(node, NodeStatus::Suspected),
            Output::NodeSuspended { node, .. } => self.set_status(node, NodeStatus::Suspended),
            Output::NodeLost { node, reason } => self.node_lost(node, &reason.to_string()),
            Output::CoordinatorChanged { epoch, coordinator } => self.coordinator_changed(epoch, coordinator),
            Output::Lead { epoch } => self.feed_coordinator(CoordinatorInput::Lead { epoch }),
            Output::CoordinatorLost { .. } => self.coordinator_lost(),
            Output::StepDown => self.feed_coordinator(CoordinatorInput::Follow),
            Output::WakeAt(_) => {} // ticks come ten times a second
        }
    }

    fn persist(&mut self, epoch: Epoch) -> bool {
        let kept = tokio::task::block_in_place(|| self.p.data.set_epoch(epoch));
        if let Err(error) = &kept {
            // Announcing what a restart would forget could give two coordinators one epoch: better to stop.
            tracing::error!(%error, "the epoch cannot be kept; this node stops");
            self.notice(Notice::Warning(format!("the epoch cannot be kept, this node stops: {error}")));
            self.stopping = true;
        }
        kept.is_ok()
    }

    fn node_up(&mut self, node: NodeId) {
        let before = self.statuses.insert(node, NodeStatus::Alive);
        if node != self.me && before.is_none_or(|b| b == NodeStatus::Lost) {
            self.notice(Notice::Up { name: self.name_of(node) });
        }
        self.view_stale = true;
        self.feed_coordinator(CoordinatorInput::NodeUp(node));
    }

    fn set_status(&mut self, node: NodeId, status: NodeStatus) {
        self.statuses.insert(node, status);
        self.view_stale = true;
    }

    fn node_lost(&mut self, node: NodeId, reason: &str) {
        self.set_status(node, NodeStatus::Lost);
        self.notice(Notice::Lost { name: self.name_of(node), reason: reason.to_owned() });
        self.reports.remove(&node);
        self.requests_lost(node);
        self.feed_coordinator(CoordinatorInput::NodeLost(node));
    }

    fn coordinator_changed(&mut self, epoch: Epoch, coordinator: NodeId) {
        let before = self.leader.replace((epoch, coordinator));
        self.view_stale = true;
        if before.is_some_and(|(_, node)| node != coordinator) {
            self.notice(Notice::Coordinator { name: self.name_of(coordinator) });
        }
        if coordinator != self.me {
            self.pull_log_from(coordinator);
        }
        self.report_now();
    }

    /// Nobody leads: requests to the coordinator wait for the next one.
    fn coordinator_lost(&mut self) {
        self.leader = None;
        self.view_stale = true;
    }

    pub(super) fn say_goodbye(&mut self) {
        self.feed_membership(Input::Leave);
    }

    /// Whether this node coordinates.
    pub(super) fn is_leading(&self) -> bool {
        self.leader.is_some_and(|(_, node)| node == self.me)
    }
}
