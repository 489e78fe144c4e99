//! What is made of measurements: an hour of them ([`Series`]), what is wrong and what to do about it
//! ([`Alerts`]), and the last lines of a log ([`LogRing`]).
//!
//! Values in, values out: the views of a node come in once a second with their time, and questions are
//! answered from what is kept. Everything that is kept has a bound.
//!
//! **Architecture invariant:** no clock, file, socket, thread or lock of its own; nothing here decides what
//! the cluster does.
//!
//! Start reading at [`Alerts::observe`].

#![forbid(unsafe_code)]

mod alerts;
mod logs;
mod series;

pub use alerts::{AlertInputs, Alerts, DifferingModel, OwnFacts, RULES, Rule, SilenceError};
pub use logs::{LogFilter, LogLine, LogRing};
pub use series::{POINTS, STEP_S, Series, Subject};
