//! What was acknowledged is kept while one holder of it is there.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use exo_cluster::Event;
use exo_cluster::wire::{ControlAsk, ControlMessage, ControlReply};
use exo_machine::{Answer, Effect, Input, Write};
use exo_types::{InstanceId, LogHead, Time};

use super::{Checked, Facts, Observation, Watch, said};
use crate::node::Node;
use crate::upheaval::SERVES_WITHIN;

/// A coordinator that has been connected with a holder for so long has what it holds.
const LEARNED_WITHIN: Duration = Duration::from_secs(6);

/// Behind the last fault, followers have what their coordinator has within this.
const COPIED_WITHIN: Duration = Duration::from_secs(5);

/// The end of a log, as a key.
type Head = (u64, [u8; 32]);

/// Something that whoever asked was told is done, and held by a second member.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Fact {
    Placed(InstanceId),
    Removed(InstanceId),
}

#[derive(Debug, Default)]
pub(super) struct Logs {
    /// Every end that a log ever had: the one before it, and what the entry between says.
    entries: BTreeMap<Head, (Head, Option<Fact>)>,
    /// Those of them behind which a coordinator decided something by itself.
    unasked: BTreeSet<Head>,
    /// What was asked of a coordinator, by node, asker and number.
    asked: BTreeMap<(usize, usize, u64), InstanceId>,
    /// By the end of the log in which it was acknowledged: an instance may be another one in another log.
    acknowledged: BTreeSet<(Head, Fact)>,
    /// Coordinators that lack something although they are connected with a holder, and since when.
    lacking: BTreeMap<(usize, usize, Head), Time>,
    /// Followers whose log is not their coordinator's, and since when.
    behind: BTreeMap<usize, Time>,
}

fn key(head: LogHead) -> Head {
    (head.index, head.hash)
}

/// Nothing that was acknowledged, with two holders, is lost: whoever coordinates has it, unless it cannot
/// reach a holder or two halves had a coordinator each. And no log is cut off where another could go on.
pub(super) fn acknowledged_is_kept(watch: &mut Watch, facts: &Facts<'_>, seen: &Observation<'_>) -> Checked {
    let logs = &mut watch.logs;
    match *seen {
        Observation::Input { node, input: Input::Control { link, message } } => {
            if let (
                ControlMessage::Request { request, ask: ControlAsk::RemoveInstance { instance } },
                Some(peer),
            ) = (&**message, facts.peer(node, *link))
            {
                logs.asked.insert((node, peer, *request), *instance);
            }
            Ok(())
        }
        Observation::Effects { node, effects } => {
            logs.note_entries(effects);
            logs.takes_nothing_back(facts, node, effects)?;
            logs.note_acknowledged(facts, node, effects)
        }
        Observation::Look => logs.look(facts),
        _ => Ok(()),
    }
}

/// When nothing goes wrong any more, followers have the log of whom they follow.
pub(super) fn logs_agree(watch: &mut Watch, facts: &Facts<'_>, seen: &Observation<'_>) -> Checked {
    if !matches!(seen, Observation::Look) || facts.now < facts.scenario.calm_from() + SERVES_WITHIN {
        return Ok(());
    }
    let mut behind = BTreeMap::new();
    for node in facts.nodes.iter().filter(|node| node.is_awake()) {
        let leader = node
            .process
            .as_ref()
            .and_then(|p| p.machine.leader())
            .and_then(|(_, id)| super::index(facts, id));
        let Some(leader) = leader.filter(|leader| facts.nodes[*leader].is_awake()) else { continue };
        let (own, wanted) = (node.durable_head(), facts.nodes[leader].durable_head());
        if own == wanted {
            continue;
        }
        let since = watch.logs.behind.get(&node.index).copied().unwrap_or(facts.now);
        if facts.now.since(since) > COPIED_WITHIN {
            return Err(format!(
                "the log of n{} ends at {own}, that of n{leader}, whom it follows, at {wanted}",
                node.index
            ));
        }
        behind.insert(node.index, since);
    }
    watch.logs.behind = behind;
    Ok(())
}

impl Logs {
    fn note_entries(&mut self, effects: &[Effect]) {
        for effect in effects {
            let Effect::Persist { write: Write::Append { after, entries }, .. } = effect else { continue };
            let mut head = *after;
            for entry in entries {
                let event = Event::decode(entry);
                let fact = match &event {
                    Ok(Event::InstancePlaced { placement, .. }) => Some(Fact::Placed(placement.instance)),
                    Ok(Event::InstanceRemoved { instance, .. }) => Some(Fact::Removed(*instance)),
                    _ => None,
                };
                let after = head.then(entry);
                if event.is_ok_and(|event| event.unasked().is_some()) {
                    self.unasked.insert(key(after));
                }
                self.entries.insert(key(after), (key(head), fact));
                head = after;
            }
        }
    }

    /// A log that goes on where the coordinator's ends is not cut off there, unless nobody was told of what
    /// follows: a half may have placed anew, for itself, what served under the coordinator all the while.
    fn takes_nothing_back(&self, facts: &Facts<'_>, node: usize, effects: &[Effect]) -> Checked {
        let own = &facts.nodes[node];
        for effect in effects {
            let Effect::Persist { write: Write::Replace { head, .. }, .. } = effect else { continue };
            let (before, after) = (key(own.durable_head()), key(*head));
            if *head != LogHead::EMPTY && before != after && self.goes_on(before, after) {
                return Err(format!(
                    "n{node} cuts its log off at {head}, it went on to {}",
                    own.durable_head()
                ));
            }
        }
        Ok(())
    }

    /// Notes what a coordinator answers to others and to its own person, and that it is so.
    fn note_acknowledged(&mut self, facts: &Facts<'_>, node: usize, effects: &[Effect]) -> Checked {
        let own = &facts.nodes[node];
        let mut told = Vec::new();
        for said in said(effects) {
            let ControlMessage::Reply { request, reply } = said.message else { continue };
            let Some(peer) = facts.peer(node, said.link) else { continue };
            let removed = self.asked.get(&(node, peer, *request)).copied();
            told.extend(acknowledged(reply, removed));
        }
        for effect in effects {
            let leads =
                own.process.as_ref().and_then(|p| p.machine.leader()).is_some_and(|(_, l)| l == own.id);
            if let Effect::Reply { answer: Answer::Coordinator(Some(reply)), .. } = effect
                && leads
            {
                told.extend(acknowledged(reply, None));
            }
        }
        if told.is_empty() {
            return Ok(());
        }
        let head = key(own.durable_head());
        for fact in told {
            let Some(at) = self.find(head, fact) else { continue };
            let has = |node: &&Node| self.extends(key(node.durable_head()), at);
            let holders = facts.nodes.iter().filter(has).count();
            if holders < 2 {
                return Err(format!("n{node} says of {fact:?} that a second member holds it, and none does"));
            }
            let is_split = facts.nodes.iter().any(|n| n.index != node && n.is_awake() && leads(n));
            if !is_split {
                self.acknowledged.insert((at, fact));
            }
        }
        Ok(())
    }

    fn look(&mut self, facts: &Facts<'_>) -> Checked {
        let mut lacking = BTreeMap::new();
        let mut excused = BTreeSet::new();
        let is_split = facts.nodes.iter().filter(|node| node.is_awake() && leads(node)).count() > 1;
        for leader in facts.nodes.iter().filter(|node| node.is_awake() && leads(node)) {
            let head = key(leader.durable_head());
            for (at, fact) in self.acknowledged.iter().filter(|(at, _)| !self.extends(head, *at)) {
                let is_holder = |node: &&Node| {
                    node.is_awake()
                        && facts.is_connected(leader.index, node.index)
                        && self.extends(key(node.durable_head()), *at)
                };
                if is_split || !facts.nodes.iter().any(|node| is_holder(&node)) {
                    excused.insert((*at, *fact));
                    continue;
                }
                let id = (leader.index, leader.life as usize, *at);
                let since = self.lacking.get(&id).copied().unwrap_or(facts.now);
                if facts.now.since(since) > LEARNED_WITHIN {
                    return Err(format!(
                        "n{} leads, is connected with a holder, and lacks {fact:?}",
                        leader.index
                    ));
                }
                lacking.insert(id, since);
            }
        }
        self.lacking = lacking;
        // Who leads without hearing a holder may go on without it, and of two halves one gives up what it
        // decided.
        self.acknowledged.retain(|fact| !excused.contains(fact));
        let on_a_disk = |at: Head| facts.nodes.iter().any(|n| self.extends(key(n.durable_head()), at));
        match self.acknowledged.iter().find(|(at, _)| !on_a_disk(*at)) {
            Some((_, fact)) => Err(format!("{fact:?} was acknowledged with two holders and is on no disk")),
            None => Ok(()),
        }
    }

    /// Whether the log that ends at `head` goes on behind `after` with anything that somebody asked for.
    fn goes_on(&self, head: Head, after: Head) -> bool {
        let mut at = head;
        let mut is_asked = false;
        while at != after {
            let Some((before, _)) = self.entries.get(&at) else { return false };
            is_asked |= !self.unasked.contains(&at);
            at = *before;
        }
        is_asked
    }

    /// Where in the log that ends at `head` the fact became one.
    fn find(&self, head: Head, wanted: Fact) -> Option<Head> {
        let mut at = head;
        while let Some((before, fact)) = self.entries.get(&at) {
            if *fact == Some(wanted) {
                return Some(at);
            }
            at = *before;
        }
        None
    }

    /// Whether the log that ends at `head` goes through `at`.
    fn extends(&self, head: Head, at: Head) -> bool {
        let mut head = head;
        while head != at && head.0 > at.0 {
            let Some((before, _)) = self.entries.get(&head) else { return false };
            head = *before;
        }
        head == at
    }
}

fn acknowledged(reply: &ControlReply, removed: Option<InstanceId>) -> Option<Fact> {
    match reply {
        ControlReply::Placed { view, holders, .. } if *holders > 1 => Some(Fact::Placed(view.instance())),
        ControlReply::Done { holders } if *holders > 1 => removed.map(Fact::Removed),
        _ => None,
    }
}

fn leads(node: &Node) -> bool {
    node.process.as_ref().and_then(|p| p.machine.leader()).is_some_and(|(_, leader)| leader == node.id)
}
