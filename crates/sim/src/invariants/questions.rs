//! Questions: each is answered in time, and who waits for an answer to a request hears of it meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use exo_machine::{Effect, Input, Question, ReplyId, SequenceEvent, StreamId};
use exo_types::Time;

use super::{Checked, Facts, Observation, Watch};

/// A question waits 40 s for a coordinator; and a look, and what a clock that is slow adds.
const ANSWERED_WITHIN: Duration = Duration::from_secs(45);
/// Copies of a request are asked for 8 s.
const CLAIMED_WITHIN: Duration = Duration::from_secs(12);
/// A client that waits is told every 20 s that it does.
const HEARD_WITHIN: Duration = Duration::from_secs(25);

#[derive(Debug, Default)]
pub(super) struct Questions {
    open: BTreeMap<(usize, ReplyId), Waits>,
    clients: BTreeMap<StreamId, (usize, Waits)>,
    looked: Time,
}

/// Something that has to come while its node runs: what stands still answers nobody.
#[derive(Debug)]
struct Waits {
    within: Duration,
    ran: Duration,
}

impl Waits {
    fn at_most(within: Duration) -> Self {
        Self { within, ran: Duration::ZERO }
    }
}

/// Whatever is lost, each question is answered.
pub(super) fn questions_end_in_bound(
    watch: &mut Watch,
    facts: &Facts<'_>,
    seen: &Observation<'_>,
) -> Checked {
    let questions = &mut watch.questions;
    match *seen {
        Observation::Input { node, input: Input::Ask { reply, question } } => {
            let is_claim = matches!(question, Question::Claim { .. });
            let within = if is_claim { CLAIMED_WITHIN } else { ANSWERED_WITHIN };
            questions.open.insert((node, *reply), Waits::at_most(within));
        }
        Observation::Input { node, input: Input::Start { stream, .. } } => {
            questions.clients.insert(*stream, (node, Waits::at_most(HEARD_WITHIN)));
        }
        Observation::Effects { node, effects } => {
            effects.iter().for_each(|effect| questions.told(node, effect))
        }
        Observation::Ended { node } => {
            questions.open.retain(|(asked, _), _| *asked != node);
            questions.clients.retain(|_, (asked, _)| *asked != node);
        }
        Observation::Look => return questions.look(facts),
        _ => {}
    }
    Ok(())
}

impl Questions {
    fn told(&mut self, node: usize, effect: &Effect) {
        match effect {
            Effect::Reply { reply, .. } => _ = self.open.remove(&(node, *reply)),
            // A reason to wait is none to believe that somebody watches the time.
            Effect::Emit { event: SequenceEvent::Queued(_), .. } => {}
            Effect::Emit { stream, .. } => {
                self.clients.entry(*stream).and_modify(|(_, waits)| waits.ran = Duration::ZERO);
            }
            _ => {}
        }
    }

    fn look(&mut self, facts: &Facts<'_>) -> Checked {
        let passed = facts.now.since(std::mem::replace(&mut self.looked, facts.now));
        let is_open =
            |stream: &StreamId| facts.clients.by_stream(*stream).is_some_and(|(_, run)| run.ended.is_none());
        self.clients.retain(|stream, _| is_open(stream));
        let asked =
            self.open.iter_mut().map(|((node, reply), waits)| (*node, format!("question {reply:?}"), waits));
        let clients = self.clients.iter_mut();
        let clients = clients.map(|(stream, (node, waits))| (*node, format!("client {}", stream.0), waits));
        for (node, who, waits) in asked.chain(clients) {
            if facts.nodes[node].is_awake() {
                waits.ran += passed;
            }
            if waits.ran > waits.within {
                let s = waits.ran.as_secs();
                return Err(format!("{who} on n{node} has heard nothing while its node ran for {s} s"));
            }
        }
        Ok(())
    }
}
