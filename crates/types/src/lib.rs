//! The words every room shares: identifiers, element types, shards, placements, steps, device facts.
//!
//! Plain values with `serde`, no behaviour beyond arithmetic on themselves, and the few functions that make
//! text of strangers safe to show. A type belongs here when two rooms that must not know each other both need
//! it.
//!
//! **Architecture invariant:** depends on no other room, and knows neither clock, socket, file nor thread.

#![forbid(unsafe_code)]

mod device;
mod disk;
mod dtype;
mod encode;
mod enums;
mod ids;
mod kv;
mod list;
mod log;
mod network;
mod pin;
mod prompt;
mod sampling;
mod shape;
mod shard;
mod share;
mod step;
mod tensor;
mod text;
mod time;
mod transport;

pub use device::{
    Correction, Corrections, DeviceFacts, DeviceId, DeviceKind, DeviceState, KvRates, LayerRates,
    MemoryDomain, Monitor, NodeFacts, Provenance, SupportClass, TypeRates,
};
pub use disk::DiskRoom;
pub use dtype::DType;
pub use encode::{hex, percent_encoded};
pub use ids::{
    Attempt, Epoch, InstanceId, ModelId, NodeId, ParseIdError, PlacementId, Principal, RequestId, SequenceId,
    Term,
};
pub use kv::{KvDType, ParseKvDTypeError};
pub use list::{DEVICES_MAX, LAYERS_MAX, SEQUENCES_MAX, SHARDS_MAX, STAGES_MAX, TOP_MAX, TYPES_MAX, list};
pub use log::{Ancestors, LogHead};
pub use network::Network;
pub use pin::{Exclusion, Pin, PinLayers};
pub use prompt::{Pooling, PromptQuery, PromptReport, SharedReport, TokenScore};
pub use sampling::{Constraint, GRAMMAR_BYTES_MAX, SampledToken, SamplingParams, SamplingParamsError};
pub use shape::{LayerShape, ModelShape, TypeBytes, WeightTypes};
pub use shard::{CacheShape, LayerRange, PlacedShard, Placement, Shard, ShardPosition, ShardSpec, Stage};
pub use share::{ComputeShare, ParseShareError};
pub use step::{DRAFTS_MAX, FailureKind, PageKey, SequenceSpec, StepFrame, StepSequence, WireDType};
pub use tensor::{ByteSource, SourceLost, TensorView};
pub use text::{
    clean_name, file_name_refusal, is_terminal_control, printable, printable_lines, refused_character,
    shell_word, size, size_up,
};
pub use time::Time;
pub use transport::{PacketCounts, Transport};
