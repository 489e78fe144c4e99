//! The cluster as a whole: it agrees and serves again, and it rests while nothing happens.

use std::collections::{BTreeMap, BTreeSet};

use exo_machine::Input;
use exo_types::{Epoch, NodeId};

use super::{Checked, Facts, Observation, Watch};
use crate::clients::{ClientEnd, is_probe};
use crate::upheaval::SERVES_WITHIN;

/// Timers of one node between two looks, half a second apart: more is a machine whose deadline does not move.
const TIMERS_MAX: u32 = 500;

#[derive(Debug, Default)]
pub(super) struct Cluster {
    is_checked: bool,
    timers: BTreeMap<usize, u32>,
}

/// So long after the last fault all that run follow the same coordinator, who runs, and a request was
/// answered.
pub(super) fn agrees_and_serves_in_20_s(
    watch: &mut Watch,
    facts: &Facts<'_>,
    seen: &Observation<'_>,
) -> Checked {
    // At join windows some stay alone, and some members are strangers that no link leads to.
    let is_due = facts.scenario.windows.is_none()
        && matches!(seen, Observation::Look | Observation::End)
        && facts.now > facts.scenario.calm_from() + SERVES_WITHIN;
    if !is_due || std::mem::replace(&mut watch.cluster.is_checked, true) {
        return Ok(());
    }
    // Who was removed has no part in it any more, and knows that, or will when it meets the others.
    let removed: BTreeSet<NodeId> = facts
        .nodes
        .iter()
        .flat_map(|node| node.disk.content().trust.view().removed().keys().copied())
        .collect();
    let running = || facts.nodes.iter().filter(|node| node.is_awake() && !removed.contains(&node.id));
    let leader_of = |node: &crate::node::Node| node.process.as_ref().and_then(|p| p.machine.leader());
    let leaders: Vec<(usize, Option<(Epoch, NodeId)>)> =
        running().map(|node| (node.index, leader_of(node))).collect();
    let first = leaders.first().and_then(|(_, leader)| *leader);
    let leads = running().any(|node| first.is_some_and(|(_, leader)| leader == node.id));
    if !leads || leaders.iter().any(|(_, leader)| *leader != first) {
        return Err(format!("the nodes follow {leaders:?}"));
    }
    let members = |node: &crate::node::Node| node.disk.content().trust.view().members().len();
    if let Some(node) = running().find(|node| members(node) + removed.len() != facts.nodes.len()) {
        let (known, all) = (members(node), facts.nodes.len() - removed.len());
        return Err(format!("n{} knows {known} members of {all}", node.index));
    }
    let probes = || facts.clients.all().filter(|(client, _)| is_probe(client));
    if !probes().any(|(_, run)| matches!(run.ended, Some((_, ClientEnd::Answered)))) {
        let ends: Vec<_> =
            probes().map(|(client, run)| (client.index, run.node, run.ended.clone())).collect();
        return Err(format!("no request was answered: {ends:?}"));
    }
    Ok(())
}

/// A machine does not ask for its timer again and again.
pub(super) fn timers_rest(watch: &mut Watch, _: &Facts<'_>, seen: &Observation<'_>) -> Checked {
    match seen {
        Observation::Input { node, input: Input::Timer } => {
            let timers = watch.cluster.timers.entry(*node).or_default();
            *timers += 1;
            match *timers > TIMERS_MAX {
                true => Err(format!("n{node} had its timer {timers} times in half a second")),
                false => Ok(()),
            }
        }
        Observation::Look => {
            watch.cluster.timers.clear();
            Ok(())
        }
        _ => Ok(()),
    }
}
