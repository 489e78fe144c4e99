//! Pauses: where everything that an answer needs is there again, it goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use exo_cluster::InstanceState;
use exo_machine::{Effect, Input, Purpose, Question, SequenceEvent, StreamId};
use exo_types::{RequestId, Time};

use super::{Checked, Facts, Observation, Watch, index};
use crate::clients::Client;
use crate::faults::{Fault, FaultKind};
use crate::shape::stage_nodes;

/// From where a pipeline stands, and everybody hears everybody, to the next token.
const GOES_ON_WITHIN: Duration = Duration::from_secs(8);
/// From the question of a client whose node died to the next token from another one.
const RESUMED_WITHIN: Duration = Duration::from_secs(5);
/// A machine without power refuses nothing: it is missed when it was silent for so long.
const SILENT_MAX: Duration = Duration::from_secs(4);
/// What other faults leave behind is over then: links that are dialled again, and what was lost in them.
const AFTERMATH: Duration = Duration::from_secs(10);
/// A device that has so much to do still is not waited for.
const BUSY: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub(super) struct Pauses {
    /// Answers: the last token, or the last time that something was missing.
    since: BTreeMap<StreamId, Time>,
    /// Those of them that have a token.
    begun: BTreeSet<StreamId>,
    /// Requests whose clients ask a node for the rest, while all that they need has been there: which node,
    /// and since when.
    claimed: BTreeMap<RequestId, (usize, Time)>,
    /// Until then a machine that lost its power need not be missed.
    silent_until: Time,
}

/// An answer stands still no longer than it takes to notice that it may go on; before its first token, where
/// none is queued. Losses that nobody tells of are noticed late, and then all is well but the answer.
pub(super) fn answers_move(watch: &mut Watch, facts: &Facts<'_>, seen: &Observation<'_>) -> Checked {
    let Pauses { since, begun, .. } = &mut watch.pauses;
    match *seen {
        Observation::Effects { effects, .. } => {
            for effect in effects {
                match effect {
                    Effect::Emit { stream, event: SequenceEvent::Token { .. } } => {
                        since.insert(*stream, facts.now);
                        begun.insert(*stream);
                    }
                    Effect::Emit { stream, .. } => {
                        since.entry(*stream).and_modify(|at| *at = facts.now);
                    }
                    _ => {}
                }
            }
            Ok(())
        }
        Observation::Look => {
            let open: BTreeMap<_, _> =
                facts.clients.open().map(|(client, run)| (client.stream(), run.node)).collect();
            since.retain(|stream, _| open.contains_key(stream));
            begun.retain(|stream| open.contains_key(stream));
            for stream in open.keys() {
                since.entry(*stream).or_insert(facts.now);
            }
            for (stream, since) in since.iter_mut() {
                let node = open[stream];
                if !is_well(facts, node, begun.contains(stream)) {
                    *since = facts.now;
                } else if facts.now.since(*since) > GOES_ON_WITHIN {
                    let since = crate::world::seconds(*since);
                    return Err(format!(
                        "the answer to client {} on n{node} stands still since {since:.3} s, and lacks nothing",
                        stream.0
                    ));
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// A client whose node died, with nothing on it that the answer needs, has the next token from another one in
/// time. What needs more than that has the bounds of `answers_move`.
pub(super) fn resumed_in_5_s(watch: &mut Watch, facts: &Facts<'_>, seen: &Observation<'_>) -> Checked {
    let Pauses { claimed, silent_until, .. } = &mut watch.pauses;
    match *seen {
        Observation::Input { node, input: Input::Ask { question: Question::Claim { request, .. }, .. } } => {
            claimed.insert(*request, (node, facts.now.max(*silent_until)));
        }
        Observation::Ended { node } => {
            // It may be one that they need.
            claimed.clear();
            if !facts.nodes[node].has_power {
                *silent_until = facts.now + SILENT_MAX;
            }
        }
        Observation::Effects { effects, .. } => {
            for effect in effects {
                let Effect::Emit { stream, event: SequenceEvent::Token { .. } } = effect else { continue };
                let client = facts.clients.by_stream(*stream).map(|(client, _)| client);
                let Some(client) = client.filter(|client| client.is_resumed()) else { continue };
                if let Some((node, since)) = claimed.remove(&client.name()) {
                    check_resumed(facts, client, node, since)?;
                }
            }
        }
        Observation::Look => {
            claimed.retain(|_, (node, _)| is_well(facts, *node, false));
            for (client, _) in facts.clients.open().filter(|(client, _)| client.is_resumed()) {
                if let Some((node, since)) = claimed.get(&client.name()) {
                    check_resumed(facts, client, *node, *since)?;
                }
            }
        }
        _ => {}
    }
    Ok(())
}

fn check_resumed(facts: &Facts<'_>, client: &Client, node: usize, since: Time) -> Checked {
    let is_in_the_way = |fault: &Fault| {
        let is_end = matches!(fault.kind, FaultKind::Crash { .. } | FaultKind::KillCoordinator { .. });
        !is_end && fault.at <= facts.now && since <= fault.over() + AFTERMATH
    };
    let took = facts.now.since(since);
    if took <= RESUMED_WITHIN || facts.scenario.faults.iter().any(is_in_the_way) {
        return Ok(());
    }
    let since = crate::world::seconds(since);
    Err(format!("client {} asks n{node} for the rest since {since:.3} s: {took:?} to a token", client.index))
}

/// Whether nothing is in the way of the answers of a node: the pipeline of each instance stands, computes and
/// is reached. One that has not begun may wait for others.
fn is_well(facts: &Facts<'_>, node: usize, has_begun: bool) -> bool {
    let machine = |at: usize| {
        let process = facts.nodes[at].process.as_ref().filter(|_| facts.nodes[at].is_awake());
        process.map(|process| &process.machine)
    };
    let Some((epoch, leader)) = machine(node).and_then(exo_machine::NodeMachine::leader) else {
        return false;
    };
    let Some(leader) = index(facts, leader).filter(|at| facts.is_connected(node, *at)) else { return false };
    let follows =
        |at: usize| machine(at).and_then(exo_machine::NodeMachine::leader).is_some_and(|(e, _)| e == epoch);
    let Some(coordinates) = machine(leader).filter(|_| follows(leader)) else { return false };
    let states = coordinates.placements();
    let instances = facts.nodes[leader].disk.state().instances();
    !instances.is_empty()
        && instances.values().all(|instance| {
            let key = instance.placement.id;
            let is_ready = states.iter().any(|(of, state)| *of == key && *state == InstanceState::Ready);
            let stages: Option<Vec<usize>> =
                stage_nodes(&instance.placement).into_iter().map(|of| index(facts, of)).collect();
            let Some(stages) = stages.filter(|stages| is_ready && !stages.is_empty()) else { return false };
            let is_scheduled = machine(stages[0]).is_some_and(|first| {
                let may_wait = !has_begun && first.counts().sequences_queued > 0;
                !may_wait && first.scheduled().iter().any(|(of, _)| *of == key)
            });
            let nodes = || stages.iter().chain([&node]);
            is_scheduled
                && nodes().all(|&at| follows(at) && facts.is_connected(at, leader) && is_at_rest(facts, at))
                && nodes().all(|&a| nodes().all(|&b| talks(facts, a, b)))
        })
}

fn talks(facts: &Facts<'_>, a: usize, b: usize) -> bool {
    a == b || (facts.net.has_open(a, b, Purpose::Data) && !facts.net.is_apart(a, b))
}

fn is_at_rest(facts: &Facts<'_>, at: usize) -> bool {
    let process = facts.nodes[at].process.as_ref();
    process.is_some_and(|process| {
        let engines = process.engines.values().map(|loaded| loaded.free_at);
        engines.chain([process.device_free_at]).all(|free_at| free_at <= facts.now + BUSY)
    })
}
