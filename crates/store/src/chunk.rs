//! Chunks: the unit of fetching and of verification.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// One chunk of one file of a model.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ChunkRef {
    /// Index into [`crate::Manifest::files`], which is also the index into `exo_formats::Model::files`.
    pub file: u32,
    /// Which chunk of the file, from 0.
    pub index: u32,
}

impl fmt::Display for ChunkRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chunk {} of file {}", self.index, self.file)
    }
}

/// Indices of the chunks that `start..end` touches. Empty for an empty range.
pub(crate) fn touched(start: u64, end: u64, chunk_bytes: u32) -> Range<u32> {
    if end <= start {
        return 0..0;
    }
    let size = u64::from(chunk_bytes.max(1));
    let index = |i: u64| u32::try_from(i).unwrap_or(u32::MAX);
    index(start / size)..index(end.div_ceil(size))
}

#[cfg(test)]
mod tests {
    use super::touched;

    #[test]
    fn a_range_touches_every_chunk_it_has_a_byte_in_and_no_other() {
        assert_eq!(touched(0, 1, 10), 0..1);
        assert_eq!(touched(9, 11, 10), 0..2);
        assert_eq!(touched(10, 20, 10), 1..2);
        assert_eq!(touched(5, 5, 10), 0..0);
    }
}
