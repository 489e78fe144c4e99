//! What can go wrong on a device. Misuse by the caller (a foreign handle, a wrong shape) is a panic with a
//! message where it is found at compile time of a program; everything a file, driver or peer can cause is here.

use exo_types::{DType, SourceLost};

use crate::{ExchangeError, OpKind};

/// Memory could not be had. The device stays usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// Not enough.
    #[error("{what} needs {needed_bytes} bytes of device memory, {free_bytes} are free")]
    OutOfMemory {
        /// What it was for.
        what: String,
        /// Bytes asked for.
        needed_bytes: u64,
        /// Bytes free.
        free_bytes: u64,
    },
    /// More than the device takes in one piece, however much is free.
    #[error("{what} needs {needed_bytes} bytes in one piece, the device takes {limit_bytes} at most")]
    TooLarge {
        /// What it was for.
        what: String,
        /// Bytes asked for.
        needed_bytes: u64,
        /// The most that there may be.
        limit_bytes: u64,
    },
    /// The device is gone.
    #[error("the device is lost: {reason}")]
    DeviceLost {
        /// What the driver said.
        reason: String,
    },
}

/// A tensor could not be made into a weight.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WeightError {
    /// The backend has no kernel for the type.
    #[error("{name} is stored as {dtype}, which this device cannot compute on")]
    UnsupportedType {
        /// The tensor.
        name: String,
        /// Its type.
        dtype: DType,
    },
    /// No memory.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The file went away.
    #[error(transparent)]
    SourceLost(#[from] SourceLost),
}

/// A program could not be compiled or a run did not finish.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The device has no kernel for this op on this type.
    #[error("the device cannot run {op:?}{}", .dtype.map(|d| format!(" on {d}")).unwrap_or_default())]
    UnsupportedOp {
        /// The op.
        op: OpKind,
        /// The weight's type, if it has one.
        dtype: Option<DType>,
    },
    /// Cancelled between layers; nothing after that layer ran.
    #[error("cancelled before layer {layer}")]
    Cancelled {
        /// The layer that did not start.
        layer: u32,
    },
    /// An input is out of range: a token id beyond the vocabulary, a page beyond the cache.
    #[error("{op:?}: {what} is {value}, it must be below {limit}")]
    OutOfRange {
        /// The op.
        op: OpKind,
        /// Which input.
        what: &'static str,
        /// Its value.
        value: u64,
        /// First value not allowed.
        limit: u64,
    },
    /// A file behind a weight went away: the result is not to be believed.
    #[error(transparent)]
    SourceLost(#[from] SourceLost),
    /// A member of the tensor-parallel group did not answer.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// No memory.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The run did not finish in its time.
    #[error("the device did not finish within {waited_ms} ms")]
    Deadline {
        /// How long was waited.
        waited_ms: u64,
    },
}
