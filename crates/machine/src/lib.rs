//! One node's logic as a pure machine: inputs in, effects out.
//!
//! [`NodeMachine`] composes what a node decides: membership, the coordinator, the worker's reconcile loop,
//! drivers, schedulers and stages, links, joining, the log. [`NodeMachine::handle`] takes in what happened
//! and says what to do; [`NodeMachine::next_deadline`] says when time alone changes something. The process
//! (`node`) carries effects out and brings their answers back; the simulator (`sim`) does the same with an
//! invented world.
//!
//! | part | decides |
//! |---|---|
//! | [`links`] | which connections are dialled, kept and used; what waits for one |
//! | [`joining`] | whom to join, whom to let in |
//! | `membership` | what follows from who is alive and who leads |
//! | `coordination` | what follows from reports, commands, asks; what followers get of the log |
//! | `trust` | who belongs to the cluster: what is signed, written, and told between members |
//! | `log` | where the log ends, planned and durable, and its last entries |
//! | `persist` | what follows from a write, once it is on disk |
//! | `corrections` | what this node's own steps teach of its devices |
//! | `worker` | what is fetched, loaded, wired and freed |
//! | `pipelines` | where steps, tokens and failures go; which scheduler runs |
//! | `requests` | the drivers of this node's clients |
//! | `questions` | what the API is answered |
//! | `view` | what people see |
//!
//! [`links`] and [`joining`] keep their state to themselves and name their own deadlines; the machines of
//! `membership` and `cluster` keep theirs and tick. The other parts are pages of [`NodeMachine`] and share
//! its fields.
//!
//! **Architecture invariant:** no clock, file, socket, thread, task, global or randomness of its own. What
//! must be on disk before it is announced waits for its [`Input::Persisted`]: see `persist`. What only a
//! driver knows, the states of devices, is not decided here; it comes with [`Input::Sampled`].
//!
//! Start reading at [`Input`] and [`Effect`], then [`NodeMachine::handle`].

#![forbid(unsafe_code)]

mod awake;
mod backups;
mod bandwidth;
pub mod bounds;
mod coordination;
mod corrections;
mod effect;
mod input;
pub mod joining;
pub mod links;
mod log;
mod machine;
mod membership;
mod names;
mod notice;
mod persist;
mod pipelines;
#[cfg(feature = "planted")]
pub mod planted;
mod plausible;
mod questions;
mod replication;
mod requests;
mod telemetry;
mod trust;
mod view;
mod waiting;
mod warnings;
mod watched;
mod worker;

pub use backups::BackupStart;
pub use bandwidth::Received;
pub use effect::*;
pub use input::*;
pub use log::LogLimits;
pub use machine::{Boot, Counts, MachineConfig, NodeMachine};
pub use notice::Notice;
pub use trust::{TrustMessage, TrustNews};
pub use view::{empty_view, prediction_view};
