//! The running node: the one home of tasks and timers.
//!
//! [`start`] opens the data folder, the journal, the network and the devices, and runs the **loop**: one task
//! that has the node's machine ([`exo_machine::NodeMachine`]), feeds it time and inputs, and has its effects
//! carried out by the **hands**. Dialling, writing, planning, fetching, loading and computing happen in other
//! tasks and threads and come back as events. What HTTP needs of a node is [`exo_api::Facade`].
//!
//! What a node decides about its cluster, the machine decides. Decided here is what needs drivers, children
//! or files: which devices are opened at the start, and when one that was lost is used again (`compute`,
//! `hands::devices`).
//!
//! **Architecture invariant:** no globals, no signal handlers, no `exit`; what the system provides comes
//! through [`Host`], so that an app can embed it. The loop never waits for anything but the next event.
//!
//! Start reading at [`start`], then the `run_loop` module.

#![forbid(unsafe_code)]

mod adding;
mod background;
mod ballast;
mod bulk;
mod bulk_answers;
mod cache;
mod cards;
mod check_words;
mod checking;
mod checks;
mod choice;
mod clock;
mod compute;
mod config;
mod constrain;
pub mod described;
mod details;
mod device;
mod dialling;
mod doctor;
mod downloads;
mod draft;
mod draft_mismatch;
mod engine_host;
mod engine_start_error;
mod engine_thread;
mod events;
mod exchange_error;
mod facade;
mod file_copies;
mod file_looks;
mod files;
pub mod fits;
mod generate;
mod grammar;
mod hands;
mod heads;
mod host;
mod hub_bytes;
mod library;
mod library_error;
mod listen;
mod log_capture;
mod logs;
mod member_checks;
mod meters;
mod node;
mod obtain;
mod open_device;
mod outlet;
mod packets;
mod pairing;
mod peer_lines;
pub mod planning;
mod prediction_events;
mod progress;
mod questions;
mod reference_error;
mod refusals;
mod run_loop;
mod running;
mod sample_pace;
mod signs;
mod smaller;
mod source_bytes;
mod start;
mod telemetry;
mod token_check;
mod tokens;
mod tool_calls;
mod turn_rules;
mod turns;
mod window;
mod worker;

pub use background::lower_priority;
pub use cache::{CacheError, cache_pages, check_context};
pub use config::{DeviceChoice, NodeConfig};
pub use device::{asking_drivers, choose_devices, open as open_device, processor_options};
pub use doctor::Doctor;
pub use downloads::{
    check_opens, comes_in_layers, found_model_view, found_repo_view, repo_view, waiting_downloads,
};
pub use draft::DraftFacts;
pub use exo_accelerators::{DEMO_MODEL, Message as DeviceMessage};
pub use exo_cluster::{Speculation, UnknownSpeculation};
pub use exo_machine::Notice;
pub use exo_telemetry::RULES as ALERT_RULES;
pub use files::{DataDir, FilesError, RunningApi, running_api};
pub use heads::HeadReader;
pub use host::{Host, SystemHost};
pub use log_capture::{LogCapture, is_free_of_secrets};
pub use logs::LogsError;
pub use node::Node;
pub use pairing::check_code;
pub use smaller::smaller;
pub use start::{StartError, start};
pub use worker::{AskError, WorkerProgram, serve as serve_worker};
