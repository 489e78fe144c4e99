//! A stored tensor, by reference: its type, its shape and where its bytes are.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::DType;

/// Bytes that live elsewhere, usually a mapped file.
pub trait ByteSource: Send + Sync {
    /// All bytes of the source. Reading them never faults; after a loss they may read as zeros.
    fn bytes(&self) -> &[u8];

    /// Whether the bytes read so far were the real ones: a file truncated under its mapping is lost.
    /// Ask after a step and before believing its result.
    fn check(&self) -> Result<(), SourceLost>;

    /// Whether most of `range` is in memory, so that reading it waits for no disk.
    fn is_warm(&self, range: Range<usize>) -> bool {
        let _ = range; // what is no mapped file has no disk to wait for
        true
    }

    /// The caller has copied `range` and will hardly read it again: a mapped file gives the memory of its
    /// pages back. They stay readable.
    fn release(&self, range: Range<usize>) {
        let _ = range; // what is no mapped file has nothing to give back
    }
}

/// The bytes behind a tensor went away while in use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} became shorter or unreadable while it was in use")]
pub struct SourceLost {
    /// The file.
    pub name: String,
}

/// One tensor of a model file. A matrix has `rows` outputs and `cols` inputs; a vector has one row.
#[derive(Clone)]
pub struct TensorView {
    /// The checkpoint's own name for it, for messages.
    pub name: String,
    /// How elements are stored.
    pub dtype: DType,
    /// Outputs of a matrix, tokens of an embedding table, 1 for a vector.
    pub rows: u64,
    /// Contiguous elements of a row.
    pub cols: u64,
    /// Where the bytes live.
    pub source: Arc<dyn ByteSource>,
    /// Which of the source's bytes.
    pub range: Range<usize>,
}

impl TensorView {
    /// The tensor's bytes: rows one after the other.
    pub fn bytes(&self) -> &[u8] {
        &self.source.bytes()[self.range.clone()]
    }

    /// Bytes of one row. Panics if a row does not fill whole blocks: `formats` refuses such tensors.
    pub fn row_bytes(&self) -> usize {
        let bytes = self.dtype.bytes_of(self.cols);
        bytes.unwrap_or_else(|| panic!("{} has rows of {} {}", self.name, self.cols, self.dtype)) as usize
    }
}

impl fmt::Debug for TensorView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}[{}, {}]", self.name, self.dtype, self.rows, self.cols)
    }
}

/// Bytes in memory, for tests and for tensors made at run time.
impl ByteSource for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn check(&self) -> Result<(), SourceLost> {
        Ok(())
    }
}
