//! Data messages for links that are not open: they wait a bounded time, in order.
//!
//! A link may open some milliseconds after the first message for it, or come back after it ended. What waits here was
//! never in a link, so it is sent once. What was in a link that ended is not here.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use exo_cluster::wire::{DataMessage, StageCommand};
use exo_types::{NodeId, SequenceSpec, Time};

/// Longer than two nodes that just met need to open their links, short enough for whoever waits for an answer.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(2);
/// Bytes that wait for all peers together.
pub(super) const BYTES_MAX: usize = 8 << 20;
/// Messages that wait for one peer.
pub(super) const MESSAGES_MAX: usize = 64;

/// What waits, by peer.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    peers: BTreeMap<NodeId, VecDeque<Waiting>>,
    bytes: usize,
}

#[derive(Clone, Debug)]
struct Waiting {
    since: Time,
    bytes: usize,
    message: Box<DataMessage>,
}

impl Held {
    /// Keeps a message, or gives it back if there is no room.
    pub(super) fn push(
        &mut self,
        now: Time,
        to: NodeId,
        message: Box<DataMessage>,
    ) -> Result<(), Box<DataMessage>> {
        let bytes = bytes_about(&message);
        let waiting = self.peers.get(&to).map_or(0, VecDeque::len);
        if waiting >= MESSAGES_MAX || self.bytes + bytes > BYTES_MAX {
            tracing::trace!(peer = %to, bytes, waiting, waiting_bytes = self.bytes, "no room for a message to wait");
            return Err(message);
        }
        self.bytes += bytes;
        self.peers.entry(to).or_default().push_back(Waiting { since: now, bytes, message });
        Ok(())
    }

    /// All that waits for `to`, in order, and since when.
    pub(super) fn take(&mut self, to: NodeId) -> impl Iterator<Item = (Time, Box<DataMessage>)> + use<> {
        let waiting = self.peers.remove(&to).unwrap_or_default();
        self.bytes -= waiting.iter().map(|w| w.bytes).sum::<usize>();
        waiting.into_iter().map(|w| (w.since, w.message))
    }

    /// Messages that wait.
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

/// About as many bytes as the message takes: rows and lists; everything else of it is small.
fn bytes_about(message: &DataMessage) -> usize {
    const REST: usize = 256;
    let spec_bytes = |spec: &SequenceSpec| REST + 4 * spec.history.len();
    REST + match message {
        DataMessage::Submit(submission) => spec_bytes(&submission.spec) + 4 * submission.stop_tokens.len(),
        DataMessage::Step(step) => {
            let commands = step.commands.iter().map(|command| match command {
                StageCommand::Open { spec, cached, .. } => spec_bytes(spec) + 8 * cached.len(),
                StageCommand::Keep { pages, .. } => 64 + 16 * pages.len(),
                StageCommand::Forget(pages) => 64 + 8 * pages.len(),
                _ => 64,
            });
            let sequences = step.frame.sequences.iter().map(|s| 128 + 4 * s.tokens.len());
            step.rows.len() + commands.sum::<usize>() + sequences.sum::<usize>() + REST * step.failures.len()
        }
        DataMessage::Tokens(tokens) => {
            let results = tokens.results.iter().map(|r| 64 + 64 * r.tokens.len());
            results.sum::<usize>() + REST * tokens.failures.len()
        }
        _ => 0,
    }
}
