//! The coordinator: decides what is placed where, keeps it so, and answers who asks.
//!
//! Every node has one over its copy of the log; it acts between [`CoordinatorInput::Lead`] and
//! [`CoordinatorInput::Follow`]. It keeps two states: the durable one, from which workers and members are
//! told, and the planned one with the appends on their way, from which it decides. After each input it
//! surveys all instances: what lost a stage is repaired at once, or planned again, or waits for what is
//! missing. Planning takes its time elsewhere.
//!
//! Start reading at [`Coordinator::handle`]; `survey` keeps the promises, `repair` replaces what is lost,
//! `log` has the handshake with the journal, `planning` that with the planner, `dry_run` what both it and
//! members that only plan go by.

mod asks;
pub(crate) mod dry_run;
mod hop_cost;
mod link_changes;
mod log;
mod moving;
mod place;
pub(crate) mod planning;
mod reach;
mod repair;
mod replan;
pub(crate) mod survey;
mod tell;
#[cfg(test)]
mod tests;
mod throttling;
mod types;
pub(crate) mod unblamed;
mod unloading;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use exo_types::{DeviceId, Epoch, InstanceId, NodeId, Time};

use self::asks::refused;
pub use self::dry_run::{DryRun, DryRunError, dry_run};
pub use self::hop_cost::hop_seconds;
use self::link_changes::LinkChanges;
use self::log::Pending;
pub use self::moving::LEAVING_FOR;
pub use self::place::{disk_rooms, link_facts};
use self::planning::PlanQueue;
use self::replan::Usable;
use self::survey::{Avoided, SETTLE, Watch};
use self::tell::{Published, SentState};
use self::throttling::ThrottledDevices;
pub use self::types::{AppendId, CoordinatorInput, CoordinatorOutput, PlanId, ReplyTo};
use crate::wire::{ControlRefusal, NodeReport, NotCoordinator};
use crate::{InstanceState, InstanceView, State};

/// The coordinator's machine. Every node has one; it acts between `Lead` and `Follow`.
#[derive(Clone, Debug)]
pub struct Coordinator {
    me: NodeId,
    unload_idle_after: Option<Duration>,
    /// What is in the log.
    state: State,
    /// Who belongs to the cluster, and what they are called.
    members: BTreeMap<NodeId, String>,
    alive: BTreeSet<NodeId>,
    /// Said to be gone, and not back since.
    lost: BTreeSet<NodeId>,
    /// The latest report of each member alive.
    reports: BTreeMap<NodeId, NodeReport>,
    /// When each of them reported first.
    heard_at: BTreeMap<NodeId, Time>,
    /// Since when their devices are slowed down.
    throttling: ThrottledDevices,
    leading: Option<Leading>,
    /// They go on if it leads that epoch again.
    numbers_last: Option<Numbers>,
    is_paused: bool,
}

/// The last that a coordinator gave in an epoch.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    epoch: Epoch,
    placement: u32,
    revision: u64,
    plan: u64,
}

/// What a coordinator keeps while it leads.
#[derive(Clone, Debug)]
struct Leading {
    epoch: Epoch,
    since: Time,
    /// The state with all appends on their way.
    planned: State,
    appends: BTreeMap<AppendId, Pending>,
    append_last: AppendId,
    plans: PlanQueue,
    watches: BTreeMap<InstanceId, Watch>,
    /// Devices that failed a stage: no lost stage goes there for a while.
    avoided: BTreeMap<(InstanceId, NodeId, DeviceId), Avoided>,
    /// Nodes that are about to end, and when they said so last.
    leaving: BTreeMap<NodeId, Time>,
    /// When a disk that answers again last made what waits look.
    disks_back: BTreeMap<NodeId, Time>,
    /// The devices that stages may be on, and since when they are those; nothing before the first look.
    usable: Option<Usable>,
    /// What the links are that plans are made with.
    links: LinkChanges,
    /// What each worker was told.
    told: BTreeMap<NodeId, SentState>,
    revision: u64,
    /// The last number given to a placement.
    placement_last: u32,
    published: Published,
    /// No event about a drained node before this time: the log has just failed.
    forget_at: Time,
}

impl Coordinator {
    /// A following coordinator over what the journal holds; tell it the members. What a request loaded it
    /// unloads when none has used it for so long; `None` never does.
    pub fn new(me: NodeId, unload_idle_after: Option<Duration>, state: State) -> Self {
        let (alive, lost) = (BTreeSet::from([me]), BTreeSet::new());
        let (members, reports, heard_at) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self {
            me,
            unload_idle_after,
            state,
            members,
            alive,
            lost,
            reports,
            heard_at,
            throttling: ThrottledDevices::default(),
            leading: None,
            numbers_last: None,
            is_paused: false,
        }
    }

    /// Takes in what happened and says what to do. Outputs are in order.
    pub fn handle(&mut self, now: Time, input: CoordinatorInput) -> Vec<CoordinatorOutput> {
        let mut out = Vec::new();
        match input {
            CoordinatorInput::Tick => self.expire_plans(now, &mut out),
            CoordinatorInput::Lead { epoch } => self.lead(now, epoch, &mut out),
            CoordinatorInput::Follow => self.step_down(&mut out),
            CoordinatorInput::NodeUp(node) => self.node_up(now, node),
            CoordinatorInput::NodeLost(node) => self.node_lost(node),
            CoordinatorInput::Report { from, report } => self.report(now, from, *report),
            CoordinatorInput::Place { reply, request } => self.place(now, reply, request, &mut out),
            CoordinatorInput::Remove { reply, instance, reason } => {
                self.remove(reply, instance, reason, &mut out);
            }
            CoordinatorInput::Drain { reply, node, drain } => self.drain(now, reply, node, drain, &mut out),
            CoordinatorInput::Replan { reply, instance, carry_out } => {
                self.replan(now, reply, instance, carry_out, &mut out);
            }
            CoordinatorInput::PlannerInputs { reply, model, replaced } => {
                self.planner_inputs(now, reply, model, replaced, &mut out);
            }
            // The survey moves the stages of those who left: a stage on no member is gone.
            CoordinatorInput::Members(members) => self.members = members,
            CoordinatorInput::Appended(append) => self.appended(now, append, &mut out),
            CoordinatorInput::AppendFailed { append, reason } => {
                self.append_failed(now, append, &reason, &mut out);
            }
            CoordinatorInput::Planned { plan, result } => self.planned(now, plan, result, &mut out),
            CoordinatorInput::Replicated(events) => self.replicated(&events),
            CoordinatorInput::Restored(state) => self.restored(*state),
        }
        if self.leading.is_some() {
            if !self.is_paused {
                self.forget_drained(now, &mut out);
                self.survey(now, &mut out);
                self.unload_idle(now, &mut out);
                self.review(now);
                self.ask_planner(now, &mut out);
            }
            self.publish(now, &mut out);
            self.tell_workers(now, &mut out);
        }
        out
    }

    /// While it is paused nothing is decided that nobody asks for: what it knows may be of the past.
    pub fn pause(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    /// The durable state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The instances that serve under this coordinator; none while it does not lead.
    pub fn serving(&self) -> BTreeSet<InstanceId> {
        let watches = self.leading.iter().flat_map(|leading| &leading.watches);
        watches.filter(|(_, watch)| watch.state == InstanceState::Ready).map(|(id, _)| *id).collect()
    }

    /// All instances as now known; while following, without the stages' progress.
    pub fn instances(&self) -> Vec<InstanceView> {
        self.state.instances().keys().filter_map(|&instance| self.view(instance)).collect()
    }

    fn lead(&mut self, now: Time, epoch: Epoch, out: &mut Vec<CoordinatorOutput>) {
        if self.leading.as_ref().is_some_and(|r| r.epoch >= epoch) {
            return;
        }
        self.step_down(out);
        // Whoever led before may have seen it serve.
        let watch = |(&id, entry)| (id, Watch::new(now, entry, true, 0));
        let watches = self.state.instances().iter().map(watch).collect();
        let none = Numbers { epoch, placement: 0, revision: 0, plan: 0 };
        let last = self.numbers_last.filter(|last| last.epoch == epoch).unwrap_or(none);
        self.leading = Some(Leading {
            epoch,
            since: now,
            planned: self.state.clone(),
            appends: BTreeMap::new(),
            append_last: AppendId(0),
            plans: PlanQueue::behind(last.plan),
            watches,
            avoided: BTreeMap::new(),
            leaving: BTreeMap::new(),
            disks_back: BTreeMap::new(),
            usable: None,
            links: LinkChanges::default(),
            told: BTreeMap::new(),
            revision: last.revision,
            placement_last: last.placement,
            published: Published::default(),
            forget_at: now,
        });
    }

    /// Leads no more: whoever waits for an answer is told to ask elsewhere.
    fn step_down(&mut self, out: &mut Vec<CoordinatorOutput>) {
        let Some(leading) = self.leading.take() else { return };
        let Leading { epoch, placement_last, revision, .. } = leading;
        self.numbers_last =
            Some(Numbers { epoch, placement: placement_last, revision, plan: leading.plans.last() });
        // What they reported is of the past when this node leads again.
        self.reports.clear();
        self.heard_at.clear();
        self.throttling.clear();
        let appends = leading.appends.into_values().flat_map(|pending| pending.replies);
        let waiting = appends.map(|(to, _)| to).chain(leading.plans.into_replies());
        out.extend(waiting.map(not_coordinator));
    }

    fn node_up(&mut self, now: Time, node: NodeId) {
        self.lost.remove(&node);
        if self.alive.insert(node)
            && let Some(leading) = &mut self.leading
        {
            leading.told.remove(&node);
            leading.published.outdated = true;
            leading.look_again(now);
        }
    }

    fn node_lost(&mut self, node: NodeId) {
        if node == self.me {
            return;
        }
        self.alive.remove(&node);
        self.lost.insert(node);
        self.reports.remove(&node);
        self.heard_at.remove(&node);
        self.throttling.forget(node);
        if let Some(leading) = &mut self.leading {
            leading.told.remove(&node);
            leading.leaving.remove(&node);
            leading.disks_back.remove(&node);
        }
    }

    /// Members report about themselves only.
    fn report(&mut self, now: Time, from: NodeId, report: NodeReport) {
        if report.facts.node == from && self.members.contains_key(&from) && !self.lost.contains(&from) {
            self.follow_links(now, from, &report.links);
            self.throttling.follow(now, from, &report.devices);
            let is_disk_hung = report.is_disk_hung;
            let before = self.reports.insert(from, report);
            self.heard_at.entry(from).or_insert(now);
            let Some(leading) = &mut self.leading else { return };
            let is_news = match before {
                None => true,
                Some(before) => before.is_disk_hung && !is_disk_hung && leading.note_disk_back(now, from),
            };
            if is_news {
                leading.look_again(now);
            }
        } else {
            tracing::trace!(peer = %from, of = %report.facts.node, "a report of who is no member, is lost, or speaks for another");
        }
    }

    /// Whether the node can hold nothing any more. Right after an election, members nobody has spoken of yet
    /// are given time to appear.
    fn is_gone(&self, leading: &Leading, now: Time, node: NodeId) -> bool {
        let settled = now.since(leading.since) >= SETTLE;
        let unseen = settled && !self.alive.contains(&node);
        self.lost.contains(&node) || !self.members.contains_key(&node) || unseen
    }

    /// The node's display name.
    fn name_of(&self, node: NodeId) -> String {
        self.members.get(&node).map_or_else(|| node.to_string(), |name| format!("{name} ({node})"))
    }
}

fn not_coordinator(to: ReplyTo) -> CoordinatorOutput {
    refused(to, ControlRefusal::NotCoordinator(NotCoordinator::SteppedDown))
}
