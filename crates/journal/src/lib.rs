//! The event log: append, hash chain, snapshot, replay.
//!
//! One `redb` file. Entry `seq` has `seq` entries before it and carries the hash of the chain after it, so
//! that two logs with equal [heads](exo_types::LogHead) are equal, and a changed entry is found. A
//! [`Snapshot`] stands for the entries before it; the chain goes on from its head.
//!
//! The chain finds damage and tampering by whoever cannot rewrite the rest of the file. Against whoever can,
//! the head must be known elsewhere too: members compare theirs.
//!
//! Every call touches the disk and waits for it: call from a blocking thread.
//!
//! **Architecture invariant:** entries and states are bytes; their meaning is `cluster`'s.
//!
//! Start reading at [`Journal`].

#![forbid(unsafe_code)]

mod errors;
mod file;
mod head;
mod journal;

pub use errors::{AppendError, ChainBroken, JournalError, SnapshotError, StorageFailure};
pub use journal::{
    BATCH_BYTES_MAX, Journal, Opened, PAYLOAD_BYTES_MAX, READ_BYTES_MAX, Recovered, STATE_BYTES_MAX, Snapshot,
};
