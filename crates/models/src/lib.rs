//! Model architectures, each in terms of the backend contract.
//!
//! [`record_layers`] and [`record_head`] write the forward pass of a shard as a
//! [`Recording`](exo_backend::Recording): plain data that a device compiles once and runs at every step.
//! Token ids, positions and page tables are read from [`StepBuffers`] at each run. One file per architecture
//! says where the architecture comes from and what sets it apart; what they share is `decoder`.
//!
//! **Architecture invariant:** names no device and reads no file. What a stage exchanges with others is an
//! [`Exchange`](exo_backend::Exchange) it is handed; alone, nothing of it is recorded.
//!
//! Start reading at [`record_layers`].

#![forbid(unsafe_code)]

mod architecture;
mod block;
mod buffers;
mod decoder;
mod llama;
mod mistral;
mod qwen2;
mod qwen3;
mod weights;

pub use architecture::block;
pub use block::{Block, ModelError};
pub use buffers::{HeadBuffers, StepBuffers, StepLimits};
pub use decoder::{record_head, record_layers, record_norm};
pub use weights::{
    HeadWeights, LayerWeights, QkNorm, QkvBias, ShardWeights, op_on, rope_frequencies, tensor_shape,
};
