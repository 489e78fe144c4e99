//! The join window: who comes in by it and until when, who is out for good, and who joins by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use exo_machine::joining::{JoinAnswer, JoinPurpose};
use exo_machine::{Effect, ExchangeId, Input, JoinEffect, JoinEvent, Write};
use exo_trust::{Act, Entry, EntryId};
use exo_types::{NodeId, Time};

use super::{Checked, Facts, Observation, Watch};

/// A window lets in so many, all members that were let in before counted.
const ADMITTED_MAX: usize = 16;
/// It is open for no longer, and for a little more by clocks that differ.
const OPEN_MAX_S: u64 = 600 + 60;
/// From a decision to what is written, signed or asked by it.
const DECIDED_WITHIN: Duration = Duration::from_secs(1);
/// New nodes are one cluster so long after the last of them started, whatever strangers of one host say:
/// they look around for five seconds at most, that host holds them up for six and a forged announcement
/// hides one for three; between two questions there are two.
const ONE_CLUSTER_WITHIN: Duration = Duration::from_secs(20);
/// Each further host, or what one node alone is told, holds them up for so much longer: an address that
/// stalls, or that puts off, is passed over for so long.
const FURTHER_HOST: Duration = Duration::from_secs(15);

#[derive(Debug, Default)]
pub(super) struct Doors {
    /// Since when the window of each node is shut.
    shut_since: BTreeMap<usize, Time>,
    /// Who asked each node from its own network to become a member.
    near: BTreeSet<(usize, NodeId)>,
    /// Who asked each node in which exchange.
    asking: BTreeMap<(usize, ExchangeId), NodeId>,
    /// Admissions that were looked at.
    checked: BTreeSet<EntryId>,
}

/// Whom a node lets in by itself asks from nearby, while the window is open: by the wall clock, by the time
/// that nodes run, before the first removal, and as one of sixteen.
pub(super) fn an_open_window_lets_in(
    watch: &mut Watch,
    facts: &Facts<'_>,
    seen: &Observation<'_>,
) -> Checked {
    if facts.scenario.windows.is_none() {
        return Ok(());
    }
    let doors = &mut watch.doors;
    match *seen {
        Observation::Began { node } => {
            doors.shut_since.remove(&node);
            doors.look(facts, node);
        }
        Observation::Input { node, input } => {
            doors.look(facts, node);
            doors.hear(node, input);
        }
        Observation::Effects { node, effects } => {
            for effect in effects {
                if let Effect::Persist { write: Write::Trust(entries), .. } = effect {
                    doors.written(facts, node, entries)?;
                }
            }
        }
        _ => {}
    }
    Ok(())
}

/// Nobody welcomes whom its own log of trust has removed.
pub(super) fn removed_stay_out(watch: &mut Watch, facts: &Facts<'_>, seen: &Observation<'_>) -> Checked {
    let Observation::Effects { node, effects } = *seen else { return Ok(()) };
    for effect in effects {
        let Effect::Joining(JoinEffect::Answer { exchange, answer }) = effect else { continue };
        let Some(who) = watch.doors.asking.remove(&(node, *exchange)) else { continue };
        let removed = facts.nodes[node].disk.content().trust.view().removed();
        if matches!(answer, JoinAnswer::Welcome(_)) && removed.contains_key(&who) {
            return Err(format!("n{node} welcomes {who}, which was removed"));
        }
    }
    Ok(())
}

/// Who has members, or whose window is shut, asks nobody by itself to let it in, and moves nowhere.
pub(super) fn only_new_nodes_join(watch: &mut Watch, facts: &Facts<'_>, seen: &Observation<'_>) -> Checked {
    let Observation::Effects { node, effects } = *seen else { return Ok(()) };
    if facts.scenario.windows.is_none() {
        return Ok(());
    }
    let own = &facts.nodes[node];
    let trust = &own.disk.content().trust;
    let is_new = trust.view().members().keys().eq([&own.id]) && !watch.doors.is_shut(node, facts.now);
    for effect in effects {
        let what = match effect {
            Effect::Joining(JoinEffect::Ask { with, code: None, ask, .. })
                if ask.what == JoinPurpose::Membership =>
            {
                format!("asks {with} to let it in")
            }
            Effect::Persist { write: Write::Trust(entries), .. } if is_of_other(trust.cluster(), entries) => {
                "moves to another cluster".to_owned()
            }
            _ => continue,
        };
        if !is_new {
            return Err(format!("n{node}, which is not new any more, {what}"));
        }
    }
    Ok(())
}

/// However many strangers say whatever they like meanwhile.
pub(super) fn new_nodes_become_one(_: &mut Watch, facts: &Facts<'_>, seen: &Observation<'_>) -> Checked {
    let becomes_one = facts.scenario.windows.is_some_and(|windows| windows.case.becomes_one());
    let further = facts.scenario.windows.map_or(0, |w| w.hosts as u32 - 1 + u32::from(w.is_told_apart));
    let within = ONE_CLUSTER_WITHIN + FURTHER_HOST * further;
    let is_due = facts.now >= facts.scenario.last_start() + within;
    if !becomes_one || !is_due || !matches!(seen, Observation::Look | Observation::End) {
        return Ok(());
    }
    let clusters: BTreeSet<EntryId> =
        facts.nodes.iter().map(|node| node.disk.content().trust.cluster()).collect();
    match clusters.len() {
        1 => Ok(()),
        count => Err(format!("{} new nodes are {count} clusters: {clusters:?}", facts.nodes.len())),
    }
}

impl Doors {
    fn look(&mut self, facts: &Facts<'_>, node: usize) {
        if is_open(facts, node) {
            self.shut_since.remove(&node);
        } else {
            self.shut_since.entry(node).or_insert(facts.now);
        }
    }

    /// Whether the window of a node was shut when it decided what it does now.
    fn is_shut(&self, node: usize, now: Time) -> bool {
        self.shut_since.get(&node).is_some_and(|since| now.since(*since) > DECIDED_WITHIN)
    }

    fn hear(&mut self, node: usize, input: &Input) {
        let Input::Joining(JoinEvent::Asked { exchange, node: who, is_near, ask, .. }) = input else {
            return;
        };
        if ask.what == JoinPurpose::Membership {
            self.asking.insert((node, *exchange), *who);
            if *is_near {
                self.near.insert((node, *who));
            }
        }
    }

    /// Looks at the admissions that a node has signed and that are new.
    fn written(&mut self, facts: &Facts<'_>, node: usize, entries: &[Vec<u8>]) -> Checked {
        let (own, mut admitted) = (&facts.nodes[node], BTreeSet::new());
        let before = &own.disk.content().trust;
        for entry in entries.iter().filter_map(|entry| Entry::decode(entry).ok()) {
            let Act::Admit { node: who, .. } = &entry.statement().act else { continue };
            admitted.insert(*who);
            let is_own = entry.statement().author == own.id && !before.contains(entry.id());
            if !is_own || !self.checked.insert(entry.id()) {
                continue;
            }
            if !self.near.contains(&(node, *who)) {
                return Err(format!("n{node} lets in {who}, which did not ask from nearby"));
            }
            if self.is_shut(node, facts.now) {
                return Err(format!("n{node} lets in {who}, though its window is shut"));
            }
        }
        match admitted.len() {
            0..=ADMITTED_MAX => Ok(()),
            count => Err(format!("n{node} writes that {count} nodes were let in")),
        }
    }
}

/// Whether the window of a node's cluster is open, by what is on its disk and by its clocks.
fn is_open(facts: &Facts<'_>, node: usize) -> bool {
    let node = &facts.nodes[node];
    let Some(process) = &node.process else { return false };
    let (here, mut until_unix_s, mut admitted) = (process.clock.now(facts.now), None, BTreeSet::new());
    for entry in node.disk.content().trust.entries() {
        match &entry.statement().act {
            Act::Window { until_unix_s: until } => {
                until_unix_s = Some(until_unix_s.map_or(*until, |before: u64| before.min(*until)));
            }
            Act::Admit { node, .. } => {
                admitted.insert(*node);
            }
            Act::Remove { .. } => return false,
            Act::Found { .. } | Act::Appoint { .. } | Act::Dismiss { .. } => {}
        }
    }
    let left_s = until_unix_s.unwrap_or(0).saturating_sub(here.unix_s);
    let is_in_time = (1..=OPEN_MAX_S).contains(&left_s) && here.time < process.window_ends;
    is_in_time && admitted.len() < ADMITTED_MAX
}

/// Whether a log of trust is that of another cluster.
fn is_of_other(cluster: EntryId, entries: &[Vec<u8>]) -> bool {
    let mut decoded = entries.iter().filter_map(|entry| Entry::decode(entry).ok());
    decoded.all(|entry| entry.id() != cluster)
}
