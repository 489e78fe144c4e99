//! Chunks that a member did not give: they are asked for elsewhere, and it goes on giving its others.

use std::collections::BTreeSet;

use exo_store::ChunkRef;

use super::FetchError;

/// A member of which more chunks than these are refused or wrong, in one fetch, is given up.
const REFUSED_MAX: usize = 8;

/// The chunks that one member did not give in one fetch. It is not asked for them again.
#[derive(Default, Debug)]
pub struct RefusedChunks {
    chunks: BTreeSet<ChunkRef>,
    last: Option<FetchError>,
}

impl RefusedChunks {
    /// Whether the member did not give this one.
    pub fn has(&self, chunk: ChunkRef) -> bool {
        self.chunks.contains(&chunk)
    }

    /// Notes why the member did not give a chunk. An error if that is no matter of this chunk alone, or if
    /// the member did not give too many.
    pub fn note(&mut self, chunk: ChunkRef, error: FetchError) -> Result<(), FetchError> {
        let (holder, reason) = match &error {
            FetchError::Refused { holder, reason } => {
                tracing::debug!(peer = %holder, %chunk, reason, "a member refuses a chunk: it is asked for elsewhere");
                (*holder, reason.clone())
            }
            FetchError::Wrong { holder, reason } => {
                error.report();
                (*holder, reason.clone())
            }
            _ => return Err(error),
        };
        self.chunks.insert(chunk);
        if self.chunks.len() > REFUSED_MAX {
            return Err(FetchError::TooManyRefused { holder, count: self.chunks.len(), reason });
        }
        self.last = Some(error);
        Ok(())
    }

    /// Why the last of them did not come.
    pub fn last(&self) -> Option<&FetchError> {
        self.last.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_refuses_a_few_chunks_is_kept_and_one_that_refuses_many_is_given_up() {
        let holder = exo_types::NodeId([7; 32]);
        let chunk = |index| ChunkRef { file: 0, index };
        let refused = || FetchError::Refused { holder, reason: "damaged".to_owned() };
        let wrong = || FetchError::Wrong { holder, reason: "another hash".to_owned() };
        let mut chunks = RefusedChunks::default();
        for index in 0..REFUSED_MAX as u32 {
            chunks.note(chunk(index), if index % 2 == 0 { refused() } else { wrong() }).unwrap();
        }
        chunks.note(chunk(3), refused()).unwrap();
        assert!(chunks.has(chunk(3)) && !chunks.has(chunk(99)));
        assert!(matches!(chunks.last(), Some(FetchError::Refused { .. })));
        let error = chunks.note(chunk(99), wrong()).unwrap_err();
        assert!(
            error.to_string().contains("9 chunks") && error.to_string().ends_with("another hash"),
            "{error}"
        );
    }

    #[test]
    fn what_is_no_matter_of_one_chunk_is_no_refusal() {
        let mut chunks = RefusedChunks::default();
        let error = FetchError::Disk { reason: "no space left".to_owned() };
        assert!(matches!(chunks.note(ChunkRef { file: 0, index: 1 }, error), Err(FetchError::Disk { .. })));
        assert!(!chunks.has(ChunkRef { file: 0, index: 1 }) && chunks.last().is_none());
    }
}
