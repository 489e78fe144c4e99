//! Epochs: one leader each, and what is older changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use exo_cluster::InstanceState;
use exo_cluster::wire::ControlMessage;
use exo_machine::{Effect, Input, Outgoing, PersistId, Write};
use exo_trust::EntryId;
use exo_types::{Epoch, NodeId, PlacementId, Time};

use super::{Checked, Facts, Observation, Watch, epoch_of, said};
use crate::node::Node;

#[derive(Debug, Default)]
pub(super) struct Epochs {
    /// Who led in each epoch: node and life.
    leaders: BTreeMap<Epoch, (usize, u32)>,
    /// The last epoch that each node has said, and in which cluster.
    spoken: BTreeMap<usize, (EntryId, Epoch)>,
    /// The node that was just told something in an older epoch.
    stale: Option<Stale>,
    /// What nodes want to append to their logs.
    appends: BTreeSet<(usize, PersistId)>,
    /// Who could not write in an epoch that it leads in, and since when somebody else could.
    unwritten: BTreeMap<usize, (Epoch, Time)>,
    /// Who led when a member first said that it does.
    kept: Option<NodeId>,
}

/// For an election, with a disk that answers late.
const ASIDE_WITHIN: Duration = Duration::from_secs(3);

/// A command of an older epoch, about to be fed.
#[derive(Debug)]
struct Stale {
    node: usize,
    epoch: Epoch,
    what: &'static str,
    /// What the node knew of placements before.
    placements: Vec<(PlacementId, InstanceState)>,
}

fn cluster(node: &Node) -> EntryId {
    node.disk.content().trust.cluster()
}

/// Nobody leads in an epoch but the node whose key it bears, and that in one life only.
pub(super) fn one_leader_per_epoch(watch: &mut Watch, facts: &Facts<'_>, seen: &Observation<'_>) -> Checked {
    let Observation::Effects { node, effects } = *seen else { return Ok(()) };
    let life = facts.nodes[node].life;
    for said in said(effects).filter(|said| said.as_leader) {
        let Some(epoch) = said.epoch else {
            return Err(format!("n{node} leads without an epoch: {:?}", said.message));
        };
        if epoch.key != facts.nodes[node].id {
            return Err(format!("n{node} leads in epoch {epoch}, which is another's: {:?}", said.message));
        }
        let leader = *watch.epochs.leaders.entry(epoch).or_insert((node, life));
        if leader != (node, life) {
            return Err(format!(
                "n{node} leads in epoch {epoch} in its life {life}, and did in life {}",
                leader.1
            ));
        }
    }
    Ok(())
}

/// Who leads and cannot write its log leaves that to another, if one is there.
pub(super) fn who_cannot_write_steps_aside(
    watch: &mut Watch,
    facts: &Facts<'_>,
    seen: &Observation<'_>,
) -> Checked {
    let epochs = &mut watch.epochs;
    let leads_in = |node: usize| {
        let (epoch, leader) = facts.nodes[node].process.as_ref()?.machine.leader()?;
        (leader == facts.nodes[node].id).then_some(epoch)
    };
    match *seen {
        Observation::Effects { node, effects } => {
            epochs.appends.extend(effects.iter().filter_map(|e| match e {
                Effect::Persist { id, write: Write::Append { .. } } => Some((node, *id)),
                _ => None,
            }))
        }
        Observation::Input { node, input: Input::Persisted { id, result } } => {
            match (epochs.appends.remove(&(node, *id)), result, leads_in(node)) {
                (true, Err(_), Some(epoch)) => {
                    epochs.unwritten.entry(node).or_insert((epoch, facts.now));
                }
                // What it follows is asked for again, and came.
                (true, Ok(()), _) => _ = epochs.unwritten.remove(&node),
                _ => {}
            }
        }
        Observation::Ended { node } => {
            epochs.appends.retain(|(asked, _)| *asked != node);
            epochs.unwritten.remove(&node);
        }
        Observation::Look => {
            epochs.unwritten.retain(|node, (epoch, _)| leads_in(*node) == Some(*epoch));
            for (node, (epoch, since)) in &mut epochs.unwritten {
                let is_other = |other: &&Node| other.index != *node && other.is_awake();
                let mut others = facts.nodes.iter().filter(is_other);
                let is_heard = others.any(|other| facts.is_connected(*node, other.index));
                if !facts.nodes[*node].is_awake() || !is_heard {
                    *since = facts.now;
                }
                if facts.now.since(*since) > ASIDE_WITHIN {
                    return Err(format!("n{node} leads on in {epoch}, and could not write its log"));
                }
            }
        }
        _ => {}
    }
    Ok(())
}

/// A member that says that it leads has nobody follow it, and the coordinator leads on. (Nothing else goes
/// wrong in such runs.)
pub(super) fn a_majority_keeps_its_coordinator(
    watch: &mut Watch,
    facts: &Facts<'_>,
    seen: &Observation<'_>,
) -> Checked {
    let is_claimed = || facts.scenario.lead_claimed_from().is_some_and(|from| facts.now >= from);
    if !matches!(seen, Observation::Look | Observation::End) || !is_claimed() {
        return Ok(());
    }
    for node in facts.nodes {
        let Some((epoch, leader)) = node.process.as_ref().and_then(|process| process.machine.leader()) else {
            return Err(format!("n{} follows nobody", node.index));
        };
        let before = *watch.epochs.kept.get_or_insert(leader);
        if before != leader {
            return Err(format!("n{} follows {leader} in {epoch}, and {before} led", node.index));
        }
    }
    Ok(())
}

/// Commands of an epoch before the one that a node has acted in make it do nothing.
pub(super) fn older_epoch_changes_nothing(
    watch: &mut Watch,
    facts: &Facts<'_>,
    seen: &Observation<'_>,
) -> Checked {
    let epochs = &mut watch.epochs;
    match seen {
        Observation::Began { node } => {
            epochs.spoken.remove(node);
        }
        Observation::Input { node, input: Input::Control { link, message } } => {
            epochs.stale = stale(epochs, facts, *node, *link, message);
        }
        Observation::Input { .. } => epochs.stale = None,
        Observation::Effects { node, effects } => {
            if let Some(stale) = epochs.stale.take().filter(|stale| stale.node == *node) {
                nothing_changed(facts, &stale, effects)?;
            }
            let now = cluster(&facts.nodes[*node]);
            for epoch in said(effects).filter_map(|said| said.epoch) {
                epochs.spoken.insert(*node, (now, epoch));
            }
        }
        _ => {}
    }
    Ok(())
}

/// Whether a message is a command of an older epoch of this node's own cluster.
fn stale(
    epochs: &Epochs,
    facts: &Facts<'_>,
    node: usize,
    link: exo_machine::LinkId,
    message: &ControlMessage,
) -> Option<Stale> {
    let what = match message {
        ControlMessage::Desired(_) => "a desired state",
        ControlMessage::Instances { .. } => "instances",
        ControlMessage::Log(_) => "a part of the log",
        _ => return None,
    };
    let epoch = epoch_of(message).0?;
    let (of, seen) = epochs.spoken.get(&node)?;
    let own = &facts.nodes[node];
    let from = facts.nodes[facts.peer(node, link)?].id;
    let is_ours = *of == cluster(own) && own.disk.content().trust.view().members().contains_key(&from);
    let placements = own.process.as_ref()?.machine.placements();
    (is_ours && epoch < *seen).then_some(Stale { node, epoch, what, placements })
}

fn nothing_changed(facts: &Facts<'_>, stale: &Stale, effects: &[Effect]) -> Checked {
    let Stale { node, epoch, what, placements } = stale;
    let changes = |effect: &&Effect| match effect {
        Effect::Persist { .. }
        | Effect::Load { .. }
        | Effect::Unload(_)
        | Effect::Rewire { .. }
        | Effect::Compute { .. }
        | Effect::Fetch { .. }
        | Effect::CancelFetch(_)
        | Effect::Plan { .. }
        | Effect::SetMembers(_)
        | Effect::Emit { .. } => true,
        Effect::Send { message: Outgoing::Data(_), .. } => true,
        Effect::Send { message: Outgoing::Control(message), .. } => {
            !matches!(**message, ControlMessage::Refused(_) | ControlMessage::Membership(_))
        }
        _ => false,
    };
    if let Some(effect) = effects.iter().find(changes) {
        return Err(format!("{what} of the older epoch {epoch} made n{node} want {effect:?}"));
    }
    let now = facts.nodes[*node].process.as_ref().map(|process| process.machine.placements());
    if now.as_ref().is_some_and(|now| now != placements) {
        return Err(format!(
            "{what} of the older epoch {epoch} made n{node} know {now:?} instead of {placements:?}"
        ));
    }
    Ok(())
}
