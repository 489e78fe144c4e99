//! Who sends which part of the log: decisions only, the entries live in the journal.

use exo_types::{Ancestors, Epoch, LogHead};

use crate::wire::{LogMessage, Refusal};

/// What a follower does with a message of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FollowerStep {
    /// Append these entries to the journal (verify that each is an [`crate::Event`] first), then feed them to
    /// the coordinator as `Replicated`.
    Append(Vec<Vec<u8>>),
    /// Replace the journal by this snapshot (decode it with [`crate::State::decode`] first), then feed it as
    /// `Restored`.
    Restore {
        /// The end of the log that is folded into it.
        head: LogHead,
        /// The ends that this log had before.
        ancestors: Ancestors,
        /// The state's bytes.
        state: Vec<u8>,
    },
    /// Send [`LogMessage::Pull`] with this node's head to the coordinator.
    Pull,
    /// Nothing: the entries are here already.
    Nothing,
    /// Send the refusal back.
    Refuse(Refusal),
}

/// What a coordinator does with a pull.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaderStep {
    /// Send the entries behind `after_index` (at most [`crate::wire::limits::LOG_ENTRIES_MAX`]).
    SendEntries {
        /// Number of entries the follower has.
        after_index: u64,
    },
    /// The follower's log is not a beginning of this one: send a snapshot.
    SendSnapshot,
    /// Nothing: it has everything.
    Nothing,
}

/// Decides what a follower whose log ends at `head` and who has seen `seen` does with `message`.
pub fn follow(head: LogHead, seen: Option<Epoch>, message: LogMessage) -> FollowerStep {
    let (LogMessage::Entries { epoch, .. } | LogMessage::Snapshot { epoch, .. }) = message else {
        return FollowerStep::Nothing;
    };
    if let Some(seen) = seen.filter(|&seen| epoch < seen) {
        return FollowerStep::Refuse(Refusal::StaleEpoch { got: epoch, seen });
    }
    match message {
        LogMessage::Entries { after_index, after_hash, entries, .. } => {
            follow_entries(head, LogHead { index: after_index, hash: after_hash }, entries)
        }
        LogMessage::Snapshot { index, hash, .. } if head == (LogHead { index, hash }) => {
            FollowerStep::Nothing
        }
        LogMessage::Snapshot { index, hash, ancestors, state, .. } => {
            let (head, ancestors) = (LogHead { index, hash }, Ancestors::new(ancestors));
            FollowerStep::Restore { head, ancestors, state }
        }
        _ => FollowerStep::Nothing,
    }
}

/// Entries fit only exactly at the end: anything else is settled by a pull, which compares the hashes. An
/// empty message at the end is the coordinator's heartbeat of the log.
fn follow_entries(head: LogHead, after: LogHead, entries: Vec<Vec<u8>>) -> FollowerStep {
    match (after == head, entries.is_empty()) {
        (true, true) => FollowerStep::Nothing,
        (true, false) => FollowerStep::Append(entries),
        (false, _) => FollowerStep::Pull,
    }
}

/// Decides what a coordinator whose log ends at `head` answers to a pull from `follower`. `hash_at` looks up
/// the chain hash after that many entries; `None` where the journal has compacted them away.
pub fn lead(head: LogHead, follower: LogHead, hash_at: impl Fn(u64) -> Option<[u8; 32]>) -> LeaderStep {
    if follower == head {
        return LeaderStep::Nothing;
    }
    if follower.index < head.index && hash_at(follower.index) == Some(follower.hash) {
        return LeaderStep::SendEntries { after_index: follower.index };
    }
    LeaderStep::SendSnapshot
}

#[cfg(test)]
mod tests {
    use exo_types::NodeId;

    use super::*;

    fn epoch(counter: u64) -> Epoch {
        Epoch { counter, key: NodeId([1; 32]) }
    }

    fn head(index: u64, tag: u8) -> LogHead {
        LogHead { index, hash: [tag; 32] }
    }

    fn entries(after: LogHead, counter: u64) -> LogMessage {
        let (epoch, entries) = (epoch(counter), vec![vec![1]]);
        LogMessage::Entries { epoch, after_index: after.index, after_hash: after.hash, entries }
    }

    #[test]
    fn a_follower_appends_only_what_continues_its_log() {
        let (here, seen) = (head(3, 7), Some(epoch(2)));
        assert_eq!(follow(here, seen, entries(head(3, 7), 2)), FollowerStep::Append(vec![vec![1]]));
        assert_eq!(follow(here, seen, entries(head(4, 9), 2)), FollowerStep::Pull, "a gap");
        assert_eq!(follow(here, seen, entries(head(3, 8), 2)), FollowerStep::Pull, "another history");
        let refused = FollowerStep::Refuse(Refusal::StaleEpoch { got: epoch(1), seen: epoch(2) });
        assert_eq!(follow(here, seen, entries(head(3, 7), 1)), refused);
    }

    #[test]
    fn a_leader_sends_the_tail_of_a_shared_history_and_a_snapshot_otherwise() {
        let hash_at = |index| (index >= 2).then_some([index as u8; 32]);
        assert_eq!(lead(head(5, 5), head(3, 3), hash_at), LeaderStep::SendEntries { after_index: 3 });
        assert_eq!(lead(head(5, 5), head(3, 4), hash_at), LeaderStep::SendSnapshot, "another history");
        assert_eq!(lead(head(5, 5), head(1, 1), hash_at), LeaderStep::SendSnapshot, "compacted away");
        assert_eq!(lead(head(5, 5), head(9, 9), hash_at), LeaderStep::SendSnapshot, "longer than ours");
        assert_eq!(lead(head(5, 5), head(5, 5), hash_at), LeaderStep::Nothing);
    }
}
