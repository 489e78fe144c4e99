//! The processor as a device.
//!
//! Weights are taken to memory in large pages, matrices of quantised types repacked for the kernels on the
//! way, or stay in their mapped file where [`CpuOptions::mmap`] says so or memory is short; then they are
//! repacked as they are used, so that the numbers are the same. Quantised weights are multiplied by rows
//! rounded to eight bits with integer instructions, BF16 weights by rows rounded to sixteen, other floats by
//! the rows as they are. Vectors (norms, biases, rotary frequencies) become f32 when taken in. Work is done
//! when a call returns: a [`CpuStream`] has no queue, so its deadlines cannot pass.
//!
//! **Batch invariance** comes from one rule: every sum along a reduced dimension runs in fixed lanes and a
//! fixed tree that depend on the length of that dimension alone, whatever the number of rows. Tiles, chunks
//! and threads only choose *which* sums run.
//!
//! **Architecture invariant:** knows no model, no file and no network; nothing above it names it but the
//! binary.
//!
//! Start reading at [`CpuDevice::open`], then `ops::matmul`.

mod activation_block;
mod device;
mod evict;
mod freed_memory;
mod inner;
mod isa;
mod kv;
mod load;
mod math;
mod memory;
mod ops;
mod pace;
mod packed;
mod pool;
pub mod probe;
mod products;
mod program;
pub mod quant;
mod repack;
mod rounded;
mod scales_6_bit;
mod simd;
mod storage;
mod stream;
mod weight_rows;

pub use device::{CpuDevice, CpuOptions, OpenError, Packing};
pub use freed_memory::{give_freed_memory_back, return_freed_memory};
pub use isa::{Isa, UnknownIsa};
pub use load::weight_bytes;
pub use memory::large_pages;
pub use program::CpuProgram;
pub use stream::CpuStream;
