//! Data messages for links that are not open: they wait a bounded time, in order.
//!
//! A link may open some milliseconds after the first message for it, or come back after it ended. What waits
//! here was never in a link, so it is sent once. What was in a link that ended is not here.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use exo_cluster::wire::DataMessage;
use exo_types::{NodeId, Time};

/// Longer than two nodes that just met need to open their links, short enough for whoever waits for an
/// answer.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(2);
/// What waited while this node was held up waits so long at least from then on: its link may be about to
/// open.
const AFTER_PAUSE_MIN: Duration = Duration::from_secs(1);
/// Bytes that wait for all peers together.
pub(super) const BYTES_MAX: usize = 8 << 20;
/// Messages that wait for one peer.
pub(super) const MESSAGES_MAX: usize = 64;

/// What waits, by peer.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldMessages {
    peers: BTreeMap<NodeId, VecDeque<Waiting>>,
    bytes: usize,
}

#[derive(Clone, Debug)]
struct Waiting {
    since: Time,
    bytes: usize,
    message: Box<DataMessage>,
    /// This node was held up meanwhile.
    was_held_up: bool,
}

impl HeldMessages {
    /// Keeps a message, or gives it back if there is no room.
    pub(super) fn push(
        &mut self,
        now: Time,
        to: NodeId,
        message: Box<DataMessage>,
    ) -> Result<(), Box<DataMessage>> {
        let bytes = message.bytes_about();
        let waiting = self.peers.get(&to).map_or(0, VecDeque::len);
        if waiting >= MESSAGES_MAX || self.bytes + bytes > BYTES_MAX {
            tracing::trace!(peer = %to, bytes, waiting, waiting_bytes = self.bytes, "no room for a message to wait");
            return Err(message);
        }
        self.bytes += bytes;
        self.peers.entry(to).or_default().push_back(Waiting {
            since: now,
            bytes,
            message,
            was_held_up: false,
        });
        Ok(())
    }

    /// All that waits for `to`, in order, and since when.
    pub(super) fn take(&mut self, to: NodeId) -> impl Iterator<Item = (Time, Box<DataMessage>)> + use<> {
        let waiting = self.peers.remove(&to).unwrap_or_default();
        self.bytes -= waiting.iter().map(|w| w.bytes).sum::<usize>();
        waiting.into_iter().map(|w| (w.since, w.message))
    }

    /// This node itself did not run for so long, and opened no link meanwhile.
    pub(super) fn held_up(&mut self, now: Time, late: Duration) {
        for waiting in self.peers.values_mut().flatten() {
            // It may have come while the node was already late.
            waiting.since = (waiting.since + late).min(now);
            if !std::mem::replace(&mut waiting.was_held_up, true) {
                waiting.since = waiting.since.max(now + AFTER_PAUSE_MIN - WAIT_MAX);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.peers.values().map(VecDeque::len).sum()
    }

    /// What has waited as long as it may.
    pub(super) fn expire(&mut self, now: Time) -> Vec<(NodeId, Time, Box<DataMessage>)> {
        let mut expired = Vec::new();
        for (&to, waiting) in &mut self.peers {
            while let Some(front) = waiting.pop_front_if(|w| now >= w.since + WAIT_MAX) {
                self.bytes -= front.bytes;
                tracing::trace!(peer = %to, bytes = front.bytes, "a message waited in vain for its link");
                expired.push((to, front.since, front.message));
            }
        }
        self.peers.retain(|_, waiting| !waiting.is_empty());
        expired
    }

    /// When the next one has waited as long as it may.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.peers.values().filter_map(|waiting| waiting.front()).map(|w| w.since + WAIT_MAX).min()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use exo_cluster::wire::{Submission, TokenResult, TokensMessage};
    use exo_types::{
        Attempt, Constraint, Epoch, PlacementId, Principal, PromptQuery, PromptReport, RequestId,
        SampledToken, SamplingParams, SequenceId, SequenceSpec, Term,
    };

    use super::*;

    const PEER: NodeId = NodeId([2; 32]);
    const SEQUENCE: SequenceId = SequenceId { request: RequestId(1), index: 0 };

    fn placement() -> PlacementId {
        PlacementId { epoch: Epoch { counter: 1, key: PEER }, number: 1 }
    }

    /// How many of it may wait together.
    fn room_for(message: &DataMessage) -> usize {
        let mut held = HeldMessages::default();
        let is_room = |_: &usize| held.push(Time::ZERO, PEER, Box::new(message.clone())).is_ok();
        (0..MESSAGES_MAX).take_while(is_room).count()
    }

    #[test]
    fn grammars_that_wait_are_counted() {
        let grammar = "x".repeat(1 << 20);
        let constraint = Constraint { grammar, engine: String::new(), vocabulary: [0; 32] };
        let submission = |constraint: Option<Constraint>| {
            let sampling =
                SamplingParams { constraint: constraint.map(Arc::new), ..SamplingParams::greedy() };
            let (sequence, principal, driver, query) =
                (SEQUENCE, Principal::LOCAL, PEER, PromptQuery::Nothing);
            let (history, prompt_tokens) = (vec![1, 2], 2);
            let spec = SequenceSpec { sequence, principal, driver, sampling, history, prompt_tokens, query };
            let (placement, attempt, max_tokens) = (placement(), Attempt::FIRST, 1);
            let (stop_tokens, ignore_eos, speculate) = (vec![], false, false);
            let submission =
                Submission { placement, attempt, spec, max_tokens, stop_tokens, ignore_eos, speculate };
            DataMessage::Submit(submission)
        };
        assert_eq!(room_for(&submission(None)), MESSAGES_MAX);
        assert_eq!(room_for(&submission(Some(constraint))), BYTES_MAX / (1 << 20) - 1);
    }

    #[test]
    fn reports_on_prompts_that_wait_are_counted() {
        let report = PromptReport::Embedding(vec![0.0; 1 << 18]);
        let token = SampledToken { prompt: Some(Arc::new(report)), ..SampledToken::bare(7) };
        let (sequence, attempt, position, drafts) = (SEQUENCE, Attempt::FIRST, 2, 0);
        let result = TokenResult { sequence, attempt, position, tokens: vec![token], drafts, forced: vec![] };
        let tokens = TokensMessage {
            placement: placement(),
            term: Term::FIRST,
            step: 1,
            results: vec![result],
            failures: vec![],
            pages: vec![],
            kept: vec![],
            rebuilds: None,
            computed_us: vec![],
        };
        assert_eq!(room_for(&DataMessage::Tokens(tokens)), BYTES_MAX / (1 << 20) - 1);
    }
}
