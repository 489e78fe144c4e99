//! What must hold in every run, whatever goes wrong: named functions in a list, asked after every event.
//!
//! Each sees inputs before they are fed, effects before they are carried out, starts and ends of processes, a
//! look at the whole cluster twice a second, and the end of the run. It keeps what it needs in its own part
//! of [`Watch`].

mod cluster;
mod doors;
mod durable;
mod epochs;
mod logs;
mod members;
mod pauses;
mod placements;
mod questions;
mod quiet;
mod requests;
mod steps;

use exo_cluster::wire::{ControlMessage, LogMessage};
use exo_machine::{Effect, Input, LinkId, Outgoing};
use exo_membership::{Body, Heartbeat, Message, Role};
use exo_types::{Epoch, NodeId, Time};

use crate::clients::Clients;
use crate::model::Model;
use crate::net::Net;
use crate::node::Node;
use crate::scenario::Scenario;
use crate::shape::Names;

/// Nothing, or how it does not hold.
type Checked = Result<(), String>;

/// Something that must hold.
#[derive(Clone, Copy)]
pub struct Invariant {
    /// Its name.
    pub name: &'static str,
    check: fn(&mut Watch, &Facts<'_>, &Observation<'_>) -> Checked,
}

impl std::fmt::Debug for Invariant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// All invariants.
pub const ALL: &[Invariant] = &[
    Invariant { name: "one_leader_per_epoch", check: epochs::one_leader_per_epoch },
    Invariant { name: "who_cannot_write_steps_aside", check: epochs::who_cannot_write_steps_aside },
    Invariant { name: "a_majority_keeps_its_coordinator", check: epochs::a_majority_keeps_its_coordinator },
    Invariant { name: "announced_is_durable", check: durable::announced_is_durable },
    Invariant { name: "acknowledged_is_kept", check: logs::acknowledged_is_kept },
    Invariant { name: "logs_agree", check: logs::logs_agree },
    Invariant { name: "older_epoch_changes_nothing", check: epochs::older_epoch_changes_nothing },
    Invariant { name: "members_are_signed_in", check: members::members_are_signed_in },
    Invariant { name: "an_open_window_lets_in", check: doors::an_open_window_lets_in },
    Invariant { name: "removed_stay_out", check: doors::removed_stay_out },
    Invariant { name: "only_new_nodes_join", check: doors::only_new_nodes_join },
    Invariant { name: "new_nodes_become_one", check: doors::new_nodes_become_one },
    Invariant { name: "ready_means_open", check: placements::ready_means_open },
    Invariant { name: "no_step_without_outcome", check: steps::no_step_without_outcome },
    Invariant { name: "stages_get_what_fits", check: steps::stages_get_what_fits },
    Invariant { name: "copies_linear_in_batch", check: steps::copies_linear_in_batch },
    Invariant { name: "loaded_once", check: placements::loaded_once },
    Invariant { name: "placed_stays_placed", check: placements::placed_stays_placed },
    Invariant { name: "trouble_leaves_ready_in_5_s", check: placements::trouble_leaves_ready_in_5_s },
    Invariant { name: "loss_leaves_ready_in_6_s", check: placements::loss_leaves_ready_in_6_s },
    Invariant { name: "request_ends_in_bound", check: requests::request_ends_in_bound },
    Invariant { name: "questions_end_in_bound", check: questions::questions_end_in_bound },
    Invariant { name: "text_in_order", check: requests::text_in_order },
    Invariant { name: "answers_go_on", check: requests::answers_go_on },
    Invariant { name: "answers_move", check: pauses::answers_move },
    Invariant { name: "resumed_in_5_s", check: pauses::resumed_in_5_s },
    Invariant { name: "nothing_left_over", check: requests::nothing_left_over },
    Invariant { name: "agrees_and_serves_in_20_s", check: cluster::agrees_and_serves_in_20_s },
    Invariant { name: "quiet_answers_all", check: requests::quiet_answers_all },
    Invariant { name: "quiet_stays_quiet", check: quiet::quiet_stays_quiet },
    Invariant { name: "gone_is_said_once", check: quiet::gone_is_said_once },
    Invariant { name: "timers_rest", check: cluster::timers_rest },
];

/// A broken invariant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Name of the invariant.
    pub invariant: &'static str,
    /// When it broke.
    pub at: Time,
    /// How it broke.
    pub text: String,
}

/// The world as it is.
pub struct Facts<'a> {
    /// The time.
    pub now: Time,
    /// What was decided before the run.
    pub scenario: &'a Scenario,
    /// The nodes.
    pub nodes: &'a [Node],
    /// The network.
    pub net: &'a Net,
    /// The requests.
    pub clients: &'a Clients,
    /// Which node is which.
    pub names: &'a Names,
    /// What is computed.
    pub model: &'a dyn Model,
}

impl Facts<'_> {
    /// The node at the other end of a link.
    pub fn peer(&self, node: usize, link: LinkId) -> Option<usize> {
        let (wire, side) = self.net.of_link(node, link)?;
        Some(self.net.wire(wire).ends[1 - side].node)
    }

    /// Whether two nodes have a control link on which messages get through.
    pub fn is_connected(&self, a: usize, b: usize) -> bool {
        a == b || (self.net.has_clear(a, b, exo_machine::Purpose::Control) && !self.net.is_apart(a, b))
    }
}

/// What happened, or is about to.
pub enum Observation<'a> {
    /// A machine is about to be fed.
    Input {
        /// The node.
        node: usize,
        /// With what.
        input: &'a Input,
    },
    /// What a machine wants, about to be carried out.
    Effects {
        /// The node.
        node: usize,
        /// In order.
        effects: &'a [Effect],
    },
    /// A process began. Its effects follow.
    Began {
        /// Index of the node.
        node: usize,
    },
    /// A process ended.
    Ended {
        /// Index of the node.
        node: usize,
    },
    /// Time for a look at the whole.
    Look,
    /// The run is over.
    End,
}

/// A control message that a machine sends, with what it says of epochs.
pub(crate) struct SentMessage<'a> {
    pub(crate) link: LinkId,
    pub(crate) message: &'a ControlMessage,
    /// In which epoch it is said.
    pub(crate) epoch: Option<Epoch>,
    /// Whether only who leads says such a thing.
    pub(crate) as_leader: bool,
}

/// The control messages among effects.
fn said(effects: &[Effect]) -> impl Iterator<Item = SentMessage<'_>> {
    effects.iter().filter_map(|effect| match effect {
        Effect::Send { link, message: Outgoing::Control(message) } => {
            let (epoch, as_leader) = epoch_of(message);
            Some(SentMessage { link: *link, message, epoch, as_leader })
        }
        _ => None,
    })
}

/// In which epoch a message is said, and whether only who leads says it.
fn epoch_of(message: &ControlMessage) -> (Option<Epoch>, bool) {
    match message {
        ControlMessage::Membership(bytes) => match Message::decode(bytes) {
            Ok(Message { epoch, body, .. }) => {
                let leads = matches!(
                    body,
                    Body::Announce(_) | Body::Heartbeat(Heartbeat { role: Role::Leading, .. })
                );
                (epoch, leads)
            }
            Err(_) => (None, false),
        },
        ControlMessage::Desired(desired) => (Some(desired.epoch), true),
        ControlMessage::Instances { epoch, .. } => (Some(*epoch), true),
        ControlMessage::Log(LogMessage::Entries { epoch, .. } | LogMessage::Snapshot { epoch, .. }) => {
            (Some(*epoch), true)
        }
        _ => (None, false),
    }
}

/// What the invariants remember, each its own.
#[derive(Debug, Default)]
pub struct Watch {
    epochs: epochs::Epochs,
    durable: durable::Durables,
    logs: logs::Logs,
    members: members::Members,
    doors: doors::Doors,
    placements: placements::Placements,
    questions: questions::Questions,
    quiet: quiet::Quiet,
    steps: steps::Steps,
    requests: requests::Requests,
    pauses: pauses::Pauses,
    cluster: cluster::Cluster,
}

impl Watch {
    /// Asks all invariants.
    pub fn see(
        &mut self,
        invariants: &[Invariant],
        facts: &Facts<'_>,
        seen: &Observation<'_>,
    ) -> Result<(), Failure> {
        for invariant in invariants {
            (invariant.check)(self, facts, seen).map_err(|text| Failure {
                invariant: invariant.name,
                at: facts.now,
                text,
            })?;
        }
        Ok(())
    }
}

fn index(facts: &Facts<'_>, node: NodeId) -> Option<usize> {
    facts.names.index(node)
}
