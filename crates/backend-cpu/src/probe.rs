//! What this machine's memory and arithmetic can do at best: the yardsticks beside a benchmark.
//!
//! A machine's speed changes from second to second, with other guests of the same host and with its own
//! clock, so a rate means something only beside a probe taken at the same moment. [`BandwidthProbe`] reads
//! memory with the fastest of several loops, from 4 KiB or 2 MiB pages; [`peak`] repeats one multiply-add in
//! registers. Each takes about a tenth of a second, short enough to stand before and after every sample.
//!
//! Start reading at [`BandwidthProbe::read`] and [`peak`].

mod bandwidth;
mod peak;
mod products;
mod team;

pub use bandwidth::{BandwidthProbe, ProbeError, ReadRate};
pub use peak::{Instruction, peak};
pub use products::{ProductsError, ProductsProbe};

pub use crate::memory::PageSize;
