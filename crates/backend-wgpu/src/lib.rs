//! Graphics processors as devices, through `wgpu`: Vulkan, Metal and Direct3D 12.
//!
//! Every op of the contract is one WGSL file in `shaders/`, each with its contract; a file of `weights/`
//! reads the blocks of a stored type, in the layout that `layout.rs` makes at load. A program is a list of
//! dispatches, fewer than ops where `fuse.rs` finds some that go together, encoded anew for each run (only
//! the number of rows changes) and handed to the driver together with whatever else is queued when a result
//! is asked for. Nothing is read back but what is asked for.
//!
//! **Batch invariance** holds as the contract asks: both matrix products add in the same order, attention
//! works in blocks of positions that do not depend on the batch. Between two adapters or drivers results may
//! differ in the last bits.
//!
//! Nothing a driver does ends the process: allocations run in error scopes, other errors and a lost device
//! become [`exo_backend::RunError`]s. A driver that crashes inside a call cannot be caught here; that is why
//! the first use of a driver belongs into a child process.
//!
//! **Architecture invariant:** knows no model, no file and no network.
//!
//! Start reading at [`WgpuDevice::open`].

mod adapter;
mod device;
mod disk_cache;
mod dispatch;
mod fuse;
mod health;
mod heap;
mod inner;
mod layout;
mod memory;
mod pipelines;
mod place;
mod program;
mod queue;
mod readback;
mod shader;
mod split;
mod storage;
mod stream;
mod upload;
mod weight;
mod work_counters;

pub use adapter::{Adapter, Api, ListError, list};
pub use device::{OpenError, WgpuDevice, WgpuOptions};
pub use work_counters::WorkDone;
