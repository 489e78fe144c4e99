//! What is announced was on the announcer's disk before.

use std::collections::BTreeMap;

use exo_cluster::wire::{ControlAsk, ControlMessage, ControlReply, LogMessage};
use exo_machine::{Answer, Effect, Input, TrustMessage, TrustNews};
use exo_trust::Entry;
use exo_types::{InstanceId, LogHead};

use super::{Checked, Facts, Observation, SentMessage, Watch, said};
use crate::node::Node;

#[derive(Debug, Default)]
pub(super) struct Durables {
    /// What was asked of a coordinator, by node, asker and number.
    asked: BTreeMap<(usize, usize, u64), DurablePromise>,
}

/// What must be on the disk when a question is answered with `Done`.
#[derive(Clone, Copy, Debug)]
enum DurablePromise {
    Place,
    Remove(InstanceId),
}

/// Replies, replicated entries, desired states and epochs are on the disk of the node that says them.
pub(super) fn announced_is_durable(watch: &mut Watch, facts: &Facts<'_>, seen: &Observation<'_>) -> Checked {
    match *seen {
        Observation::Input { node, input: Input::Control { link, message } } => {
            if let (ControlMessage::Request { request, ask }, Some(peer)) =
                (&**message, facts.peer(node, *link))
            {
                watch.durable.asked.insert((node, peer, *request), asked(ask));
            }
            Ok(())
        }
        Observation::Effects { node, effects } => {
            let own = &facts.nodes[node];
            for said in said(effects) {
                message_is_durable(&watch.durable, facts, own, &said)?;
            }
            answers_are_durable(facts, own, effects)
        }
        _ => Ok(()),
    }
}

fn asked(ask: &ControlAsk) -> DurablePromise {
    match ask {
        ControlAsk::RemoveInstance { instance } => DurablePromise::Remove(*instance),
        _ => DurablePromise::Place,
    }
}

fn message_is_durable(durables: &Durables, facts: &Facts<'_>, own: &Node, said: &SentMessage<'_>) -> Checked {
    let (node, history) = (own.index, own.disk.history());
    if let Some(epoch) = said.epoch.filter(|epoch| !history.epochs.contains(epoch)) {
        return Err(format!("n{node} says epoch {epoch}, which was never on its disk"));
    }
    match said.message {
        ControlMessage::Log(LogMessage::Entries { after_index, after_hash, entries, .. }) => {
            let end = LogHead { index: *after_index, hash: *after_hash }.then_all(entries);
            has_head(own, end, "entries up to")
        }
        ControlMessage::Log(LogMessage::Pull { index, hash }) => {
            has_head(own, LogHead { index: *index, hash: *hash }, "that it has")
        }
        ControlMessage::Report(report) => has_head(own, report.log, "in a report"),
        ControlMessage::Log(
            LogMessage::Snapshot { index, hash, .. } | LogMessage::TailSnapshot { index, hash, .. },
        ) => has_head(own, LogHead { index: *index, hash: *hash }, "a snapshot of"),
        ControlMessage::Desired(desired) => {
            // What is loaded ahead serves nothing before its placement is on the disk.
            let serving = desired.shards.iter().filter(|shard| !shard.is_ahead);
            let keys = serving.map(|shard| shard.placement.id);
            match keys.into_iter().find(|key| !history.placements.contains(key)) {
                Some(key) => Err(format!("n{node} wants {key:?} held, which was never on its disk")),
                None => Ok(()),
            }
        }
        ControlMessage::Trust(bytes) => trust_is_durable(own, bytes),
        ControlMessage::Reply { request, reply } => {
            let peer = facts.peer(node, said.link);
            let asked = peer.and_then(|peer| durables.asked.get(&(node, peer, *request)));
            reply_is_durable(own, asked.copied(), reply)
        }
        _ => Ok(()),
    }
}

/// Whoever asks for entries may name some that it has not written yet; what it tells others it has.
fn trust_is_durable(own: &Node, bytes: &[u8]) -> Checked {
    let Ok(message) = TrustMessage::decode(bytes) else {
        return Err(format!("n{} sends what is no message about trust", own.index));
    };
    let entries = match &message.what {
        TrustNews::Pull => return Ok(()),
        TrustNews::Known => &[][..],
        TrustNews::Entries(entries) => entries,
    };
    let entries = entries.iter().filter_map(|bytes| Entry::decode(bytes).ok()).map(|entry| entry.id());
    match entries.chain(message.known).find(|id| !own.disk.history().trust.contains(id)) {
        Some(id) => Err(format!("n{} tells of entry {id}, which was never on its disk", own.index)),
        None => Ok(()),
    }
}

fn has_head(own: &Node, head: LogHead, what: &str) -> Checked {
    if own.disk.history().heads.contains(&(head.index, head.hash)) {
        return Ok(());
    }
    Err(format!("n{} sends {what} {head}, its disk has {}", own.index, own.durable_head()))
}

fn reply_is_durable(own: &Node, asked: Option<DurablePromise>, reply: &ControlReply) -> Checked {
    let (node, state, history) = (own.index, own.disk.state(), own.disk.history());
    let is_durable = match (reply, asked) {
        (ControlReply::Placed { view, .. }, _) => history.placements.contains(&view.placement.id),
        (ControlReply::Done { .. }, Some(DurablePromise::Remove(instance))) => {
            !state.instances().contains_key(&instance)
        }
        _ => true,
    };
    if is_durable {
        Ok(())
    } else {
        Err(format!("n{node} answers {reply:?} to {asked:?}, which is not on its disk"))
    }
}

/// What a person is told is on some disk.
fn answers_are_durable(facts: &Facts<'_>, own: &Node, effects: &[Effect]) -> Checked {
    for effect in effects {
        let Effect::Reply { answer: Answer::Coordinator(Some(reply)), .. } = effect else { continue };
        let ControlReply::Placed { view, .. } = &**reply else { continue };
        let key = view.placement.id;
        if !facts.nodes.iter().any(|node| node.disk.history().placements.contains(&key)) {
            return Err(format!("n{} says that {key:?} is placed, which is on no disk", own.index));
        }
    }
    Ok(())
}
