//! The accelerators of this machine: graphics processors and cards, each as one backend shows it.
//!
//! One room for what is done with them: [`list`] and open ([`Accelerator`]), check and measure
//! ([`survey()`]), ask something whose answer is known ([`trial`]), remember (in `exo_device::Registry`), put
//! in order ([`rank()`]), choose ([`choose()`]) and report ([`report`]). A node that chooses by itself, the
//! worker that computes, `exo devices` and an app that embeds a node all go through here, so they say the
//! same of a device.
//!
//! Drivers crash and hang. So whoever asks one does it through a [`Surveyor`], which may be a child process.
//!
//! **Architecture invariant:** starts no process, prints nothing, and knows no cluster. What a user should
//! hear goes to [`Tell`].
//!
//! Start reading at [`Accelerator`], then [`choose()`].

#![forbid(unsafe_code)]

mod accelerator;
mod ask_all;
mod asked;
mod backend;
mod backend_survey;
mod choose;
mod fresh;
mod message;
mod processor;
mod rank;
mod ranking;
mod remember;
pub mod report;
mod steps;
mod survey;
pub mod trial;

pub use accelerator::{Accelerator, ListError, NotThere, OpenError, list};
pub use ask_all::ask_backends;
pub use asked::{DeviceAsk, DeviceError, DeviceInfo, examine, open};
pub use backend::{AUTO, Backend, BackendError, System};
pub use backend_survey::{BackendSurvey, InProcess, ProbeFailure, ProbeFailureKind, Surveyor};
pub use choose::{choose, ranking};
pub use fresh::take_turn;
pub use message::{Message, Tell};
pub use processor::{ProcessorOptions, TYPE_BYTES_MIN, known_rates, known_types, measure_types, rates};
pub use rank::{ChooseError, is_place, rank};
pub use ranking::{
    Candidate, CardSelection, LeftOut, NamedFailed, OtherCard, Ranking, Tried, chain, open_all, seconds,
};
pub use remember::{remember, remember_drivers};
pub use steps::StepCost;
pub use survey::{Abilities, AcceleratorFacts, Survey, SurveyAsk, SurveyedAccelerator, Times, survey};

/// The model that the program carries, a GGUF file: what accelerators are tried with, and what there is to
/// run before any download.
pub const DEMO_MODEL: &[u8] = include_bytes!("../../../demo-model/exo-demo-Q8_0.gguf");

/// A trial counts for the exo that made it.
const VERSION: &str = env!("CARGO_PKG_VERSION");
