//! The running node: the one home of tasks and timers.
//!
//! [`start`] opens the data folder, the journal, the network and the devices, and runs the **core**: one task that
//! owns every state machine (`membership`, `cluster`) and feeds them time, messages and results. Dialling, fetching,
//! loading and computing happen in other tasks and threads and come back as events. What HTTP needs of a node is
//! [`exo_api::Facade`].
//!
//! **Architecture invariant:** a library. No globals, no signal handlers, no `exit`; what the system provides comes
//! through [`Host`], so that an app can embed it.
//!
//! Start reading at [`start`], then the `core` module.

#![forbid(unsafe_code)]

mod bulk;
mod cache;
mod cards;
mod choice;
mod compute;
mod config;
mod core;
mod details;
mod device;
mod draft;
mod engine_host;
mod facade;
mod files;
mod generate;
#[cfg_attr(not(test), expect(dead_code, reason = "the core hands its writes over with the effects"))]
mod hands;
mod host;
mod library;
mod links;
mod node;
mod notice;
mod outlet;
mod ranking;
mod start;
mod worker;

pub use cache::{CacheError, cache_pages};
pub use config::NodeConfig;
pub use device::{DeviceChoice, UnknownBackend, open as open_device};
pub use draft::DraftFacts;
pub use exo_cluster::{Speculation, UnknownSpeculation};
pub use files::{FilesError, running_api};
pub use host::{Host, SystemHost};
pub use node::Node;
pub use notice::Notice;
pub use ranking::{Candidate, LeftOut, Ranking, seconds};
pub use start::{DEMO_MODEL, StartError, start};
pub use worker::{WorkerProgram, serve as serve_worker};
