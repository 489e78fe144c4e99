//! Whole clusters of [`NodeMachine`](exo_machine::NodeMachine)s in one thread, under simulated time, network
//! and disk.
//!
//! A [`Scenario`] is decided before a run: how many nodes, what goes wrong, who asks. A [`World`] runs it: it
//! feeds the machines what happens and carries out their effects, and shows every input and every effect to
//! the [`invariants`]. One seed is one run, and prints the command that repeats it when something is broken;
//! [`shrink`] makes it smaller.
//!
//! | part | plays |
//! |---|---|
//! | [`net`] | connections that delay, fall silent, are reset |
//! | [`disk`] | writes that take their time, and crashes that lose some |
//! | [`engine`], [`model`] | engines whose text shows every mistake |
//! | [`clock`] | clocks that differ |
//! | [`clients`] | who asks, how they read, and how it went |
//! | [`faults`] | what goes wrong |
//! | [`strangers`], [`windows`] | who is not let in, and until when some are |
//! | [`planted`] | bugs of the machine that seeds must find (feature `planted`) |
//! | [`invariants`] | what must hold |
//!
//! What stands for the process around a machine is not `node`'s: its run loop, hands, files, transport and
//! devices are not simulated.
//!
//! **Architecture invariant:** no thread, no clock, no file; chance comes from the seed. Nothing that is
//! shipped knows it.
//!
//! Start reading at [`run`], then [`World`].

#![forbid(unsafe_code)]

pub mod clients;
pub mod clock;
mod compute;
mod dialling;
pub mod disk;
pub mod draw;
pub mod engine;
pub mod faults;
pub mod founding;
mod hands;
pub mod invariants;
mod joins;
pub mod lies;
mod lies_of_data;
pub mod model;
pub mod net;
mod node;
mod people;
pub mod planted;
mod run;
pub mod scenario;
pub mod shape;
pub mod shrink;
pub mod strangers;
mod trace;
mod upheaval;
pub mod windows;
mod world;

pub use invariants::{ALL, Failure, Invariant};
pub use run::{run, run_with};
pub use scenario::{Kind, RunSelection, Scenario};
pub use world::{Options, Report, Rewrite, World, seconds};
