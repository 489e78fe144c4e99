//! The contract between exo and an accelerator.
//!
//! A [`Device`] gives out [`Buffer`]s, [`Weight`]s and [`KvCache`]s, all freed on drop and counted, and
//! compiles a recorded list of [`Op`]s into a [`Program`]. A [`Stream`] uploads inputs, runs programs and
//! downloads results. Everything that changes from step to step (token ids, positions, page tables) lives in
//! buffers, so one program serves every step of its shape bucket; see decision 0002.
//!
//! **Batch invariance.** Within one device, instruction set and kernel family a row's result is *bitwise*
//! independent of the rows, sequences, chunks, threads and pages computed beside it. The op oracle checks it.
//!
//! A backend is right when [`oracle::run`] and [`conformance::run`] pass on it; both are for tests only.
//!
//! **Architecture invariant:** nothing here knows a model, a file or a network; no crate above `backend-*`
//! names a concrete device.
//!
//! Start reading at [`Device`].

#![forbid(unsafe_code)]

mod activations;
mod check;
pub mod conformance;
mod device;
mod download;
mod errors;
mod faults;
mod handles;
pub mod kv_rows;
mod kv_values;
mod ledger;
mod op;
mod op_kind;
pub mod oracle;
mod owner;
mod random;
mod readbacks;
mod report;
mod rig;
mod stored;
mod stream;

pub use activations::Activations;
pub use check::{Capacity, check_op, same_buffer};
pub use device::{Device, MemoryReport, Residence, Support};
pub use download::{Arrived, Download};
pub use errors::{AllocError, ExchangeError, RunError, WeightError};
pub use exo_types::{KvDType, Monitor};
pub use faults::{FAULT_OF_KV_WRITE, FAULT_WORDS, FAULTS};
pub use handles::{Buffer, Element, KvCache, KvShape, Weight};
pub use ledger::{Ledger, Ticket};
pub use op::{AttentionBatch, Op, Recording, RopeStyle, Rows};
pub use op_kind::OpKind;
pub use owner::{DeviceOwned, Owner, Storage};
pub use readbacks::{Arrival, InFlight, ReadbackQueue};
pub use report::{CaseOutcome, CaseResult, Report};
pub use stored::{assert_whole, scales_and_minima, vector_of};
pub use stream::{Alone, CancelToken, Exchange, Program, RunShape, Stream};
