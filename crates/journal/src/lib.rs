//! The event log: append, hash chain, snapshot, replay.
