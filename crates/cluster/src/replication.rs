//! Who sends which part of the log: decisions only, the entries and hashes live in the journal.

use exo_types::Epoch;

use crate::wire::{LogMessage, Refusal};

/// The end of a log: how many entries, and the chain hash after them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogHead {
    /// Number of entries.
    pub index: u64,
    /// Chain hash after them; all zeros for an empty log unless the journal says otherwise.
    pub hash: [u8; 32],
}

/// What a follower does with a message of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FollowerStep {
    /// Append these entries to the journal (verify that each is an [`crate::Event`] first), then feed them to the
    /// coordinator as `Replicated`.
    Append(Vec<Vec<u8>>),
    /// Replace the journal by this snapshot (decode it with [`crate::State::decode`] first), then feed it as
    /// `Restored`.
    Restore {
        /// Number of entries folded into it.
        index: u64,
        /// Chain hash after them.
        hash: [u8; 32],
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
pub fn follow(_head: LogHead, _seen: Option<Epoch>, _message: LogMessage) -> FollowerStep {
    FollowerStep::Nothing
}

/// Decides what a coordinator whose log ends at `head` answers to a pull from `follower`. `hash_at` looks up the
/// chain hash after that many entries; `None` where the journal has compacted them away.
pub fn lead(_head: LogHead, _follower: LogHead, _hash_at: impl Fn(u64) -> Option<[u8; 32]>) -> LeaderStep {
    LeaderStep::Nothing
}
