//! Placements: ready only with open ways, never loaded again, not ready for long without a scheduler.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use exo_cluster::wire::ControlMessage;
use exo_cluster::{Event, InstanceState, RemoveReason};
use exo_machine::{Effect, Purpose, Write};
use exo_types::{Epoch, InstanceId, Placement, PlacementId, ShardSpec, Time};

use super::{Checked, Facts, Observation, Watch, index, said};
use crate::clients::AskWhat;
use crate::node::Node;
use crate::shape::stage_nodes;

/// A way that ended so long ago need not have been noticed: links close after 6 s of silence, nodes freeze.
const NOTICED_WITHIN: Duration = Duration::from_secs(10);
/// A pipeline that stands has a scheduler within this; a look more, because looks are half a second apart.
const SCHEDULER_WITHIN: Duration = Duration::from_millis(5600);
/// A member that is silent for 4 s is lost, and what it held is placed anew; looks are half a second apart.
const LOST_WITHIN: Duration = Duration::from_secs(6);

#[derive(Debug, Default)]
pub(super) struct Placements {
    /// What each node said to be ready the last time.
    ready: BTreeMap<usize, BTreeSet<PlacementId>>,
    /// What was ever said to be ready.
    served: BTreeSet<InstanceId>,
    /// What each node last reported to be broken.
    troubles: BTreeMap<usize, BTreeSet<PlacementId>>,
    /// Nodes that stood still at the last look, and since when.
    still: BTreeMap<usize, Time>,
    /// Pipelines that stand without a scheduler, and since when: by leader and first stage.
    without: BTreeMap<(usize, usize, PlacementId), Time>,
    /// Ready ones of which a node is gone, and since when: by leader, epoch and that node.
    lacking: BTreeMap<(usize, Epoch, usize, PlacementId), Time>,
}

/// When an instance becomes ready, every way between its stages is open, or was a moment ago. Time in which
/// the node that says so stood still does not count: what it handles when it goes on was sent before.
pub(super) fn ready_means_open(watch: &mut Watch, facts: &Facts<'_>, seen: &Observation<'_>) -> Checked {
    let placements = &mut watch.placements;
    let (node, effects) = match *seen {
        Observation::Effects { node, effects } => (node, effects),
        Observation::Look => {
            let before = std::mem::take(&mut placements.still);
            let since = |node: usize| (node, before.get(&node).copied().unwrap_or(facts.now));
            let stands = |node: &&Node| node.process.is_some() && !node.is_awake();
            placements.still = facts.nodes.iter().filter(stands).map(|node| since(node.index)).collect();
            return Ok(());
        }
        _ => return Ok(()),
    };
    let views = said(effects).find_map(|said| match said.message {
        ControlMessage::Instances { instances, .. } => Some(instances),
        _ => None,
    });
    let Some(views) = views else { return Ok(()) };
    let ready = || views.iter().filter(|view| view.is_ready());
    let since = placements.still.get(&node).copied().unwrap_or(facts.now);
    let before = placements.ready.entry(node).or_default();
    for view in ready().filter(|view| !before.contains(&view.placement.id)) {
        ways_are_open(facts, &view.placement, since)?;
    }
    *before = ready().map(|view| view.placement.id).collect();
    Ok(())
}

fn ways_are_open(facts: &Facts<'_>, placement: &Placement, at: Time) -> Checked {
    let since = Time(at.0.saturating_sub(NOTICED_WITHIN.as_micros() as u64));
    let nodes: Vec<usize> =
        stage_nodes(placement).into_iter().filter_map(|node| index(facts, node)).collect();
    let next = nodes.iter().cycle().skip(1);
    for (&from, &to) in nodes.iter().zip(next).filter(|(from, to)| from != to) {
        if !facts.net.was_open(from, to, Purpose::Data, since) {
            let key = placement.id;
            return Err(format!("{key:?} is ready and has no open link from n{from} to n{to}"));
        }
    }
    Ok(())
}

/// What a node holds is not loaded again.
pub(super) fn loaded_once(_: &mut Watch, facts: &Facts<'_>, seen: &Observation<'_>) -> Checked {
    let Observation::Effects { node, effects } = *seen else { return Ok(()) };
    let loads = effects.iter().filter_map(|effect| match effect {
        Effect::Load { engine, spec } => Some((engine, &**spec)),
        _ => None,
    });
    for (engine, spec) in loads {
        let Some(process) = &facts.nodes[node].process else { continue };
        let is_held = |held: &ShardSpec| held == spec;
        let twice = process.engines.iter().find(|(_, held)| held.engine.is_some() && is_held(&held.spec));
        if let Some((held, _)) = twice {
            return Err(format!("n{node} loads {spec:?} as {engine:?} and holds it as {held:?}"));
        }
    }
    Ok(())
}

/// A pipeline whose stages are all loaded has a scheduler: when that gave up its instance is placed anew soon
/// after, if its coordinator can hear of it.
pub(super) fn trouble_leaves_ready_in_5_s(
    watch: &mut Watch,
    facts: &Facts<'_>,
    seen: &Observation<'_>,
) -> Checked {
    match *seen {
        Observation::Began { node } => {
            watch.placements.troubles.remove(&node);
            Ok(())
        }
        Observation::Effects { node, effects } => {
            troubles_are_kept(&mut watch.placements, facts, node, effects)
        }
        Observation::Look => pipelines_have_schedulers(&mut watch.placements, facts),
        _ => Ok(()),
    }
}

/// What a node reported to be broken it reports until its instance is placed anew: who coordinates may not
/// have heard it.
fn troubles_are_kept(
    placements: &mut Placements,
    facts: &Facts<'_>,
    node: usize,
    effects: &[Effect],
) -> Checked {
    let report = said(effects).find_map(|said| match said.message {
        ControlMessage::Report(report) => Some(report),
        _ => None,
    });
    let (Some(report), Some(process)) = (report, &facts.nodes[node].process) else { return Ok(()) };
    let now: BTreeSet<PlacementId> = report.instance_failures.iter().map(|t| t.placement).collect();
    let before = placements.troubles.insert(node, now.clone()).unwrap_or_default();
    let known = process.machine.placements();
    let is_forgotten =
        |key: &&PlacementId| !now.contains(key) && known.iter().any(|(known, _)| known == *key);
    match before.iter().find(is_forgotten) {
        Some(key) => {
            Err(format!("n{node} has forgotten what is wrong with {key:?}, which is not placed anew"))
        }
        None => Ok(()),
    }
}

fn pipelines_have_schedulers(placements: &mut Placements, facts: &Facts<'_>) -> Checked {
    let mut without = BTreeMap::new();
    for leader in facts.nodes.iter().filter(|node| node.is_awake()) {
        let Some(process) = &leader.process else { continue };
        let Some((epoch, _)) = process.machine.leader().filter(|(_, id)| *id == leader.id) else { continue };
        let stands = |state: &InstanceState| matches!(state, InstanceState::Ready | InstanceState::Wiring);
        for (key, _) in process.machine.placements().into_iter().filter(|(_, state)| stands(state)) {
            let Some(first) = first_stage(facts, leader.index, key) else { continue };
            if lacks_scheduler(facts, leader.index, first, key, epoch) {
                let since = placements.without.get(&(leader.index, first, key));
                without.insert((leader.index, first, key), since.copied().unwrap_or(facts.now));
            }
        }
    }
    placements.without = without;
    let late = |since: &Time| facts.now.since(*since) > SCHEDULER_WITHIN;
    match placements.without.iter().find(|(_, since)| late(since)) {
        Some(((leader, first, key), since)) => {
            let since = crate::world::seconds(*since);
            Err(format!(
                "{key:?} is loaded for its coordinator n{leader}, and n{first} runs no scheduler since {since:.3} s"
            ))
        }
        None => Ok(()),
    }
}

/// An instance does not stay ready when the node of a stage is gone, or its coordinator does not hear it any
/// more. One that hears no member that follows decides nothing.
pub(super) fn loss_leaves_ready_in_6_s(
    watch: &mut Watch,
    facts: &Facts<'_>,
    seen: &Observation<'_>,
) -> Checked {
    if !matches!(seen, Observation::Look) {
        return Ok(());
    }
    let before = std::mem::take(&mut watch.placements.lacking);
    for leader in facts.nodes.iter().filter(|node| node.is_awake()) {
        let Some(process) = &leader.process else { continue };
        let Some((epoch, _)) = process.machine.leader().filter(|(_, id)| *id == leader.id) else { continue };
        let hears = |node: usize| {
            let has_way = facts.net.has_open(leader.index, node, Purpose::Control);
            let is_linked = has_way && !facts.net.is_cut(node, leader.index);
            facts.nodes[node].is_awake() && (node == leader.index || is_linked)
        };
        let follows = |node: &Node| {
            let known = node.process.as_ref().and_then(|process| process.machine.leader());
            node.index != leader.index && hears(node.index) && known.is_some_and(|(of, _)| of == epoch)
        };
        if !facts.nodes.iter().any(follows) {
            continue;
        }
        let ready = process.machine.placements().into_iter().filter(|(_, s)| *s == InstanceState::Ready);
        for (key, _) in ready {
            for node in nodes_of(facts, leader.index, key).into_iter().filter(|node| !hears(*node)) {
                let id = (leader.index, epoch, node, key);
                let since = before.get(&id).copied().unwrap_or(facts.now);
                // What was held back on another connection than the one that is gone is a sign of life, too.
                let since = facts.net.released(node, leader.index).map_or(since, |at| at.max(since));
                if facts.now.since(since) > LOST_WITHIN {
                    let (leader, since) = (leader.index, crate::world::seconds(since));
                    return Err(format!(
                        "{key:?} is ready for its coordinator n{leader}, which does not hear n{node} since {since:.3} s"
                    ));
                }
                watch.placements.lacking.insert(id, since);
            }
        }
    }
    Ok(())
}

/// The node of the first stage, by the log of the coordinator.
fn first_stage(facts: &Facts<'_>, leader: usize, key: PlacementId) -> Option<usize> {
    nodes_of(facts, leader, key).first().copied()
}

/// The nodes of the stages, by the log of the coordinator.
fn nodes_of(facts: &Facts<'_>, leader: usize, key: PlacementId) -> Vec<usize> {
    let state = facts.nodes[leader].disk.state();
    let mut placements = state.instances().values().map(|instance| &instance.placement);
    let placement = placements.find(|placement| placement.id == key);
    placement.into_iter().flat_map(stage_nodes).filter_map(|node| index(facts, node)).collect()
}

/// Whether a node that hears the coordinator does not run the scheduler of a placement that begins there.
fn lacks_scheduler(
    facts: &Facts<'_>,
    leader: usize,
    first: usize,
    key: PlacementId,
    epoch: exo_types::Epoch,
) -> bool {
    let Some(process) = facts.nodes[first].process.as_ref().filter(|_| facts.nodes[first].is_awake()) else {
        return false;
    };
    let follows = process.machine.leader().is_some_and(|(of, _)| of == epoch);
    // A device that hangs takes its new wiring when it goes on.
    let hangs = process.engines.values().any(|loaded| loaded.free_at > facts.now);
    follows
        && !hangs
        && facts.is_connected(leader, first)
        && !process.machine.scheduled().iter().any(|(placement, _)| *placement == key)
}

/// What has served stays placed until somebody unloads it, whatever is lost.
pub(super) fn placed_stays_placed(watch: &mut Watch, facts: &Facts<'_>, seen: &Observation<'_>) -> Checked {
    let Observation::Effects { node, effects } = *seen else { return Ok(()) };
    // A node that was put out has nothing to wait for.
    if facts.scenario.asks.iter().any(|ask| matches!(ask.what, AskWhat::RemoveNode { .. })) {
        return Ok(());
    }
    let served = &mut watch.placements.served;
    for said in said(effects) {
        if let ControlMessage::Instances { instances, .. } = said.message {
            served.extend(instances.iter().filter(|view| view.is_ready()).map(|view| view.instance()));
        }
    }
    for effect in effects {
        let Effect::Persist { write: Write::Append { entries, .. }, .. } = effect else { continue };
        for event in entries.iter().filter_map(|entry| Event::decode(entry).ok()) {
            if let Event::InstanceRemoved { instance, reason } = event
                && served.contains(&instance)
                && !matches!(reason, RemoveReason::Asked { .. })
            {
                return Err(format!("n{node} gives up {instance}, which has served: {reason}"));
            }
        }
    }
    Ok(())
}
