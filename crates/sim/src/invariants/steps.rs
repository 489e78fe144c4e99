//! Steps: each fits and has an outcome, and costs no more messages than its batch has sequences.

use std::collections::BTreeMap;
use std::time::Duration;

use exo_cluster::ComputeResult;
use exo_cluster::wire::{DataMessage, PipelineBreak};
use exo_machine::{Effect, Input, Outgoing, SequenceEvent};
use exo_types::{DRAFTS_MAX, FailureKind, PlacementId, Term, Time};

use super::{Checked, Facts, Observation, Watch};

/// The longest deadline of a step, without its tokens; and a look.
const OUTCOME_WITHIN: Duration = Duration::from_millis(32_000);
const OUTCOME_PER_TOKEN: Duration = Duration::from_millis(250);
/// Steps and tokens that one handled input may send besides those for each sequence: the next step of each
/// stage.
const MESSAGES_BESIDES: usize = 4;

/// One term of a placement's pipeline.
type Pipeline = (PlacementId, Term);

#[derive(Debug, Default)]
pub(super) struct Steps {
    /// Steps under way, by the node of their first stage.
    open: BTreeMap<(usize, Pipeline, u64), Step>,
    /// The batch of what was just fed.
    batch: Option<(usize, usize)>,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    life: u32,
    since: Time,
    tokens: u32,
}

/// A step that its first stage computes comes back as tokens or a failure, or its scheduler ends, in time.
pub(super) fn no_step_without_outcome(
    watch: &mut Watch,
    facts: &Facts<'_>,
    seen: &Observation<'_>,
) -> Checked {
    let open = &mut watch.steps.open;
    match *seen {
        Observation::Effects { node, effects } => {
            for effect in effects {
                began(open, facts, node, effect);
            }
            Ok(())
        }
        Observation::Input { node, input } => {
            ended(open, facts, node, input);
            Ok(())
        }
        Observation::Look => {
            open.retain(|(node, key, _), step| still_counts(facts, *node, *key, step));
            let late =
                |step: &Step| facts.now.since(step.since) > OUTCOME_WITHIN + OUTCOME_PER_TOKEN * step.tokens;
            match open.iter().find(|(_, step)| late(step)) {
                Some(((node, key, step), at)) => {
                    let since = crate::world::seconds(at.since);
                    Err(format!("step {step} of {key:?} on n{node} has no outcome since {since:.3} s"))
                }
                None => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

fn began(open: &mut BTreeMap<(usize, Pipeline, u64), Step>, facts: &Facts<'_>, node: usize, effect: &Effect) {
    let Effect::Compute { engine, position, job } = effect else { return };
    let own = &facts.nodes[node];
    let is_first = own.process.as_ref().and_then(|process| process.engines.get(engine));
    if is_first.is_some_and(|loaded| loaded.spec.embedding) {
        let (life, since, tokens) = (own.life, facts.now, job.frame.token_count() as u32);
        let pipeline = (position.placement, job.frame.term);
        open.insert((node, pipeline, job.frame.step), Step { life, since, tokens });
    }
}

fn ended(open: &mut BTreeMap<(usize, Pipeline, u64), Step>, facts: &Facts<'_>, node: usize, input: &Input) {
    match input {
        Input::Data { link, message } => match &**message {
            // Others' are lies.
            DataMessage::Tokens(tokens) if is_last(facts, facts.peer(node, *link), tokens.placement) => {
                open.remove(&(node, (tokens.placement, tokens.term), tokens.step));
            }
            DataMessage::PipelineBroken { placement, term, .. } => {
                open.retain(|(of, key, _), _| (*of, *key) != (node, (*placement, *term)));
            }
            _ => {}
        },
        Input::Computed { engine, position, term, step, .. } => {
            let process = facts.nodes[node].process.as_ref();
            let loaded = process.and_then(|process| process.engines.get(engine));
            if loaded.is_some_and(|loaded| loaded.spec.head) {
                open.remove(&(node, (position.placement, *term), *step));
            }
        }
        _ => {}
    }
}

/// Whether a node has the last stage of a placement.
fn is_last(facts: &Facts<'_>, node: Option<usize>, placement: PlacementId) -> bool {
    let placements = facts.nodes.iter().flat_map(|node| node.disk.state().instances().values());
    let mut named = placements.map(|i| &i.placement).filter(|p| p.id == placement);
    let last = named.find_map(|placement| placement.stages.last());
    // A placement that is gone needs no outcome.
    last.is_none_or(|stage| node.is_some_and(|node| stage.leader().node == facts.nodes[node].id))
}

/// Whether the step's scheduler still runs, in the same term. Time in which it cannot act does not count.
fn still_counts(facts: &Facts<'_>, node: usize, key: Pipeline, step: &mut Step) -> bool {
    let own = &facts.nodes[node];
    let Some(process) = own.process.as_ref().filter(|_| own.life == step.life) else { return false };
    if process.frozen > 0 {
        step.since = facts.now;
        return true;
    }
    process.machine.scheduled().contains(&key)
}

/// Every step that a stage takes fits what it holds. A gap in their numbers may be a link's that ended.
pub(super) fn stages_get_what_fits(_: &mut Watch, _: &Facts<'_>, seen: &Observation<'_>) -> Checked {
    let Observation::Effects { node, effects } = *seen else { return Ok(()) };
    let broken = effects.iter().find_map(|effect| match effect {
        Effect::Send { message: Outgoing::Data(message), .. } => match &**message {
            DataMessage::PipelineBroken { stage, kind: FailureKind::Protocol, why, .. } => {
                Some((stage, why)).filter(|(_, why)| !matches!(why, PipelineBreak::Order { .. }))
            }
            _ => None,
        },
        _ => None,
    });
    match broken {
        Some((stage, why)) => Err(format!("n{node} says that stage {stage} broke: {why}")),
        None => Ok(()),
    }
}

/// What one step makes a node send grows no faster than its batch.
pub(super) fn copies_linear_in_batch(watch: &mut Watch, _: &Facts<'_>, seen: &Observation<'_>) -> Checked {
    let steps = &mut watch.steps;
    match *seen {
        Observation::Input { node, input } => {
            steps.batch = batch(input).map(|batch| (node, batch));
            Ok(())
        }
        Observation::Effects { node, effects } => match steps.batch.take().filter(|(fed, _)| *fed == node) {
            Some((_, batch)) => sends_few(node, batch, effects),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

/// Sequences in what comes of a step; `None` for other inputs.
fn batch(input: &Input) -> Option<usize> {
    match input {
        Input::Computed { result: ComputeResult::Tokens(results), .. } => Some(results.len()),
        Input::Data { message, .. } => match &**message {
            DataMessage::Tokens(tokens) => Some(tokens.results.len()),
            _ => None,
        },
        _ => None,
    }
}

fn sends_few(node: usize, batch: usize, effects: &[Effect]) -> Checked {
    let (mut messages, mut results, mut tokens) = (0, 0, 0);
    for effect in effects {
        match effect {
            Effect::Send { message: Outgoing::Data(message), .. } => match &**message {
                DataMessage::Tokens(sent) => {
                    messages += 1;
                    results += sent.results.len();
                }
                DataMessage::Step(_) => messages += 1,
                _ => {}
            },
            Effect::Emit { event: SequenceEvent::Token { .. }, .. } => tokens += 1,
            _ => {}
        }
    }
    // A result carries one token and those of its guesses that were right.
    let tokens_max = batch * (DRAFTS_MAX as usize + 1);
    if results > 2 * batch || messages > batch + MESSAGES_BESIDES || tokens > tokens_max {
        return Err(format!(
            "a step of {batch} sequences made n{node} send {results} results in {messages} messages, and tell {tokens} tokens"
        ));
    }
    Ok(())
}
