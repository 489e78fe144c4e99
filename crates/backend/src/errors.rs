//! What can go wrong on a device. Misuse by the caller (a foreign handle, a wrong shape) is a panic with a
//! message where it is found at compile time of a program; everything a file, driver or peer can cause is
//! here.

#![allow(missing_docs)] // the messages say what the fields are

use exo_types::{DType, SourceLost};

use crate::OpKind;

/// A member of a tensor-parallel group did not deliver its partial sums.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the exchange of partial sums failed: {reason}")]
pub struct ExchangeError {
    pub reason: String,
}

/// Memory could not be had. The device stays usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    #[error("{what} needs {needed_bytes} bytes of device memory, {}", left(*needed_bytes, *free_bytes))]
    OutOfMemory {
        what: String,
        needed_bytes: u64,
        /// Bytes free by our books, or as the driver tells. If they are enough, it was the driver that gave
        /// none.
        free_bytes: u64,
    },
    /// More than the device takes in one piece, however much is free.
    #[error("{what} needs {needed_bytes} bytes in one piece, the device takes {limit_bytes} at most")]
    TooLarge { what: String, needed_bytes: u64, limit_bytes: u64 },
    #[error("the device is lost: {reason}")]
    DeviceLost { reason: String },
}

fn left(needed_bytes: u64, free_bytes: u64) -> String {
    match free_bytes >= needed_bytes {
        true => format!(
            "which its driver refused, though {free_bytes} of those that exo may take are not taken: other programs may \
             hold them, or they lie in pieces"
        ),
        false => format!("{free_bytes} are free"),
    }
}

/// A tensor could not be made into a weight.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WeightError {
    #[error("{name} is stored as {dtype}, which this device cannot compute on")]
    UnsupportedType { name: String, dtype: DType },
    #[error(transparent)]
    Alloc(#[from] AllocError),
    #[error(transparent)]
    SourceLost(#[from] SourceLost),
}

/// A program could not be compiled or a run did not finish.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    #[error("the device cannot run {op:?}{}", .dtype.map(|d| format!(" on {d}")).unwrap_or_default())]
    UnsupportedOp {
        op: OpKind,
        /// The weight's type, if it has one.
        dtype: Option<DType>,
    },
    /// Cancelled between layers; nothing after that layer ran.
    #[error("cancelled before layer {layer}")]
    Cancelled { layer: u32 },
    /// An input is out of range: a token id beyond the vocabulary, a page beyond the cache.
    #[error("{op:?}: {what} is {value}, it must be below {limit}")]
    OutOfRange { op: OpKind, what: &'static str, value: u64, limit: u64 },
    /// A file behind a weight went away: the result is not to be believed.
    #[error(transparent)]
    SourceLost(#[from] SourceLost),
    /// A member of the tensor-parallel group did not answer.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    #[error(transparent)]
    Alloc(#[from] AllocError),
    #[error("the device did not finish within {waited_ms} ms")]
    Deadline { waited_ms: u64 },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_memory_says_whose_it_is() {
        let told = |free_bytes| {
            AllocError::OutOfMemory { what: "w".to_owned(), needed_bytes: 8, free_bytes }.to_string()
        };
        assert_eq!(told(7), "w needs 8 bytes of device memory, 7 are free");
        assert_eq!(
            told(8),
            "w needs 8 bytes of device memory, which its driver refused, though 8 of those that exo may take are not taken: \
             other programs may hold them, or they lie in pieces"
        );
    }
}
