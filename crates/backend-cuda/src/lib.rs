//! NVIDIA cards as devices, through the CUDA driver; with the feature `hip`, AMD's through theirs.
//!
//! Every op of the contract is one file of CUDA C in `kernels/`, each with its contract; `cargo xtask ptx`
//! compiles them ahead of time to the PTX in `ptx/`, compressed, which is part of the program. The driver's
//! library is opened at run time: building needs no CUDA, and a machine without it gets an error that says
//! what to install.
//!
//! **Batch invariance** holds as the contract asks: all products of a type add slices or blocks of K in one
//! order, attention works in blocks and spans of positions that do not depend on the batch. F16 and BF16
//! weights go through tensor cores from compute capability 8.0 on and through plain kernels before: two
//! kernel families, whose bits may differ.
//!
//! A decode step that comes again with the same number of rows is captured once as a CUDA graph and launched
//! as one.
//!
//! What was run where is written in `docs/platforms.md`: the kernels' own sources on a processor, never a
//! card.
//!
//! AMD's driver has the same functions under other names (`api.rs`). Its compiler, a library beside the
//! driver, makes the kernels from their sources when they are first used (`hip.rs`).
//!
//! **Architecture invariant:** knows no model, no file and no network. All calls into drivers are in
//! `api.rs`, `driver.rs`, `queue.rs` and `hip.rs`.
//!
//! Start reading at [`list`], then [`CudaDevice::open`].

mod api;
mod card;
mod device;
mod driver;
mod graph;
mod inner;
mod kernels;
mod launch;
mod layout;
mod program;
mod queue;
mod readback;
mod storage;
mod stream;
mod weight;

pub use api::{Api, CallError};
#[cfg(feature = "hip")]
pub use card::list_amd;
pub use card::{Card, ListError, list};
pub use device::{CudaDevice, CudaOptions, OpenError};
