//! Requests: the right text in order, an end in time, and nothing left behind.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use exo_cluster::DriverStart;
use exo_cluster::wire::EndReason;
use exo_machine::{Effect, Input, SequenceEvent, StreamId};
use exo_types::{FailureKind, RequestId};

use super::{Checked, Facts, Observation, Watch};
use crate::clients::ClientEnd;
use crate::model::{Question, solo};

use crate::shape::{CONTEXT_TOKENS, LAYERS};

/// From start to end, whatever happens: queueing, one stalled answer, noticing.
const ENDS_WITHIN: Duration = Duration::from_secs(200);
/// A node that stood still, and whose clock is slow, has so much more.
const BESIDES: Duration = Duration::from_secs(15);

#[derive(Debug, Default)]
pub(super) struct Requests {
    texts: BTreeMap<(StreamId, u16), Text>,
    cancelled: BTreeSet<RequestId>,
}

/// What a choice must be told.
#[derive(Debug)]
struct Text {
    request: RequestId,
    expected: Vec<u32>,
    max_tokens: u32,
    told: usize,
    is_over: bool,
}

/// Each client gets the text of the model alone, in order, without gap or repetition, and all of it if it
/// ends well.
pub(super) fn text_in_order(watch: &mut Watch, facts: &Facts<'_>, seen: &Observation<'_>) -> Checked {
    let requests = &mut watch.requests;
    match *seen {
        Observation::Input { input: Input::Start { stream, request }, .. } => {
            for start in &request.starts {
                let text = text(facts, start);
                let given = &start.spec.history[start.spec.prompt_tokens as usize..];
                if !text.expected.starts_with(given) {
                    return Err(format!(
                        "client {}: the copy of its answer has other tokens: {given:?}",
                        stream.0
                    ));
                }
                requests.texts.insert((*stream, start.spec.sequence.index), text);
            }
            Ok(())
        }
        Observation::Input { input: Input::Cancel { request, .. }, .. } => {
            requests.cancelled.insert(*request);
            Ok(())
        }
        Observation::Effects { node, effects } => effects.iter().try_for_each(|effect| match effect {
            Effect::Emit { stream, event } => told(requests, *stream, event)
                .map_err(|wrong| format!("n{node}, client {}: {wrong}", stream.0)),
            _ => Ok(()),
        }),
        _ => Ok(()),
    }
}

fn text(facts: &Facts<'_>, start: &DriverStart) -> Text {
    let question = Question {
        prompt: &start.spec.history[..start.spec.prompt_tokens as usize],
        sampling: &start.spec.sampling,
        max_tokens: start.max_tokens,
        context_tokens: CONTEXT_TOKENS,
    };
    Text {
        request: start.spec.sequence.request,
        expected: solo(facts.model, LAYERS, &question),
        max_tokens: start.max_tokens,
        told: start.spec.history.len() - start.spec.prompt_tokens as usize,
        is_over: false,
    }
}

fn told(requests: &mut Requests, stream: StreamId, event: &SequenceEvent) -> Checked {
    match event {
        SequenceEvent::Token { index, token } => {
            let Some(text) = requests.texts.get_mut(&(stream, *index)) else {
                return Err(format!("a token for choice {index}, which nobody asked for"));
            };
            let expected = text.expected.get(text.told).copied();
            if text.is_over || expected != Some(token.token) {
                let (at, got) = (text.told, token.token);
                return Err(format!("token {at} of choice {index} is {got} instead of {expected:?}"));
            }
            text.told += 1;
            Ok(())
        }
        SequenceEvent::Ended { index, reason, .. } => {
            let Some(text) = requests.texts.get_mut(&(stream, *index)) else {
                return Err(format!("an end of choice {index}, which nobody asked for"));
            };
            let is_again = std::mem::replace(&mut text.is_over, true);
            let is_cancelled = requests.cancelled.contains(&text.request);
            let is_whole = text.told == text.expected.len();
            let is_right = match reason {
                EndReason::Cancelled => is_cancelled,
                EndReason::MaxTokens => is_whole && text.told as u32 == text.max_tokens,
                EndReason::StopToken => is_whole && text.expected.last() == Some(&crate::model::STOP_TOKEN),
                _ => is_whole,
            };
            if is_again || !is_right {
                let (told, all) = (text.told, text.expected.len());
                return Err(format!("choice {index} ends for {reason:?} after {told} of {all} tokens"));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// No answer fails because something was lost: it goes on. Faults are shorter than an answer may stand still.
/// (With the keys of two nodes a thief makes clusters whose members do not reach each other: what they are
/// asked may never begin, and is told so in its time.)
pub(super) fn answers_go_on(_: &mut Watch, facts: &Facts<'_>, seen: &Observation<'_>) -> Checked {
    let Observation::Effects { node, effects } = *seen else { return Ok(()) };
    let lost = |kind: &FailureKind| match kind {
        FailureKind::StageLost | FailureKind::Protocol => true,
        FailureKind::Deadline => !facts.scenario.has_thief(),
        _ => false,
    };
    let failed = effects.iter().find_map(|effect| match effect {
        Effect::Emit { stream, event: SequenceEvent::Failed { kind, message, .. } } if lost(kind) => {
            Some((stream.0, kind, message))
        }
        _ => None,
    });
    match failed {
        Some((client, kind, message)) if facts.clients.by_stream(StreamId(client)).is_some() => {
            Err(format!("n{node} tells client {client}: {kind:?}: {message}"))
        }
        _ => Ok(()),
    }
}

/// Every request ends in time.
pub(super) fn request_ends_in_bound(_: &mut Watch, facts: &Facts<'_>, seen: &Observation<'_>) -> Checked {
    if !matches!(seen, Observation::Look | Observation::End) {
        return Ok(());
    }
    let is_late =
        |run: &crate::clients::RequestRecord| facts.now.since(run.started_at) > ENDS_WITHIN + BESIDES;
    match facts.clients.open().find(|(_, run)| is_late(run)) {
        Some((client, run)) => {
            let since = crate::world::seconds(run.started_at);
            Err(format!(
                "the request of client {} on n{} has no end since {since:.3} s",
                client.index, run.node
            ))
        }
        None => Ok(()),
    }
}

/// When all requests have ended, no node has anything of them.
pub(super) fn nothing_left_over(_: &mut Watch, facts: &Facts<'_>, seen: &Observation<'_>) -> Checked {
    if !matches!(seen, Observation::End) {
        return Ok(());
    }
    for node in facts.nodes.iter().filter(|node| node.is_awake()) {
        let Some(process) = &node.process else { continue };
        let counts = process.machine.counts();
        let sequences = counts.sequences_queued + counts.sequences_running + counts.sequences_open;
        if counts.drivers + counts.backups_own + counts.claims + sequences + counts.held_messages > 0
            || counts.pending_writes != node.disk.unanswered()
        {
            return Err(format!("n{} still has {counts:?}, its disk {}", node.index, node.disk.unanswered()));
        }
        let is_removed = node.disk.content().trust.view().removed().contains_key(&node.id);
        if is_removed && counts.engines > 0 {
            return Err(format!("n{} was removed and still has {} engines", node.index, counts.engines));
        }
    }
    Ok(())
}

/// Where nothing goes wrong every request is answered, whatever a member says of the members.
pub(super) fn quiet_answers_all(_: &mut Watch, facts: &Facts<'_>, seen: &Observation<'_>) -> Checked {
    if !matches!(seen, Observation::End) || facts.scenario.is_disturbed() {
        return Ok(());
    }
    let failed = facts.clients.all().find_map(|(client, run)| match &run.ended {
        Some((at, ClientEnd::Failed(why))) => Some((client, *at, why.clone())),
        Some((at, ClientEnd::NodeDied)) => Some((client, *at, "its node died".to_owned())),
        Some(_) => None,
        None => Some((client, facts.now, "it has no end".to_owned())),
    });
    match failed {
        Some((client, at, why)) => {
            let at = crate::world::seconds(at);
            Err(format!("client {} was not answered: {why} at {at:.3} s", client.index))
        }
        None => Ok(()),
    }
}
