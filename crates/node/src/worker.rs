//! Shards on graphics processors, each in a child process of its own: a driver that crashes or hangs costs
//! its shard.
//!
//! The child is this very program (`exo worker`). Both sides speak the words between a stage and its engine,
//! in frames over the child's standard input and output:
//!
//! | node to worker | worker to node |
//! |---|---|
//! | `Open` a device, verify and measure it | `Opened`, or `Refused` |
//! | `Survey` all that a backend shows | `Listed`, then `Surveyed`, or `Refused` |
//! | `Load` a shard | `Progress`, then `Ready` or `LoadFailed` |
//! | `Step`, one at a time | `Computed` |
//! | `Rewire`: forget sequences, and kept pages but some | `Rewired` |
//! | | `Reading` now and then: memory, sensors |
//! | the end of its input | it frees everything and ends |
//!
//! The worker is ours, its driver is not: whatever arrives that is no frame is taken as the end of it.
//!
//! Start reading at [`host`] for the node's side, at [`serve`] for the child's.

mod ask;
mod frames;
mod guard;
mod host;
mod messages;
mod process;
mod serve;

pub use ask::{AskError, Children, ask};
pub use guard::{Guard, Verdict, WINDOW};
pub use host::WorkerHost;
pub use messages::{LoadShard, WorkerMemory};
pub use process::WorkerProgram;
pub use serve::serve;
