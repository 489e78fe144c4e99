//! Chunks that a member did not give: they are asked for elsewhere, and it goes on giving its others.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use exo_store::ChunkRef;

use super::FetchError;

/// A member of which more chunks than these are refused or wrong, in one fetch, is given up.
const REFUSED_MAX: usize = 8;
/// A chunk that a member refuses and goes on listing is asked of it again after this: it has thrown the chunk
/// away and has it again since the last look, or cannot read it.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// So long a chunk is left to the member that refused it. One that fetches it again says so by then.
const REPAIR_BEGINS_MAX: Duration = Duration::from_secs(2);

/// The chunks that one member did not give in one fetch. It is asked again for each once at most, and only
/// after it refused it: what comes wrong it believes to be right.
#[derive(Default, Debug)]
pub struct RefusedChunks {
    chunks: BTreeMap<ChunkRef, ChunkState>,
    last: Option<FetchError>,
}

/// Of a chunk that a member did not give.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ChunkState {
    /// It refused it then.
    Refused(Instant),
    /// It refused it then, and does not list it any more.
    Dropped(Instant),
    /// It is to be asked for it again, or was and gave it.
    Again,
    /// It is not asked for it any more.
    Over,
}

impl RefusedChunks {
    /// Whether the member did not give this one, and is not to be asked for it now.
    pub fn has(&self, chunk: ChunkRef) -> bool {
        self.chunks.get(&chunk).is_some_and(|state| *state != ChunkState::Again)
    }

    /// Whether the member refused this one a moment ago, and may be about to fetch it again.
    pub fn may_come(&self, now: Instant, chunk: ChunkRef) -> bool {
        match self.chunks.get(&chunk) {
            Some(ChunkState::Refused(at) | ChunkState::Dropped(at)) => {
                now.saturating_duration_since(*at) < REPAIR_BEGINS_MAX
            }
            _ => false,
        }
    }

    /// Takes in what the member lists now: what it has again is to be asked for once more.
    pub fn note_list(&mut self, now: Instant, is_listed: impl Fn(ChunkRef) -> bool) {
        for (chunk, state) in &mut self.chunks {
            *state = match (*state, is_listed(*chunk)) {
                (ChunkState::Refused(at), false) => ChunkState::Dropped(at),
                (ChunkState::Dropped(_), true) => ChunkState::Again,
                (ChunkState::Refused(at), true) if now.saturating_duration_since(at) >= AGAIN_AFTER => {
                    ChunkState::Again
                }
                (same, _) => same,
            };
        }
    }

    /// Notes why the member did not give a chunk. An error if that is no matter of this chunk alone, or if
    /// the member did not give too many.
    pub fn note(&mut self, now: Instant, chunk: ChunkRef, error: FetchError) -> Result<(), FetchError> {
        let (holder, reason, state) = match &error {
            FetchError::Refused { holder, reason } => {
                tracing::debug!(peer = %holder, %chunk, reason, "a member refuses a chunk: it is asked for elsewhere");
                (*holder, reason.clone(), ChunkState::Refused(now))
            }
            FetchError::Wrong { holder, reason } => {
                error.report();
                (*holder, reason.clone(), ChunkState::Over)
            }
            _ => return Err(error),
        };
        self.chunks.entry(chunk).and_modify(|state| *state = ChunkState::Over).or_insert(state);
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
        let (mut chunks, now) = (RefusedChunks::default(), Instant::now());
        for index in 0..REFUSED_MAX as u32 {
            chunks.note(now, chunk(index), if index % 2 == 0 { refused() } else { wrong() }).unwrap();
        }
        chunks.note(now, chunk(3), refused()).unwrap();
        assert!(chunks.has(chunk(3)) && !chunks.has(chunk(99)));
        assert!(matches!(chunks.last(), Some(FetchError::Refused { .. })));
        let error = chunks.note(now, chunk(99), wrong()).unwrap_err();
        assert!(
            error.to_string().contains("9 chunks") && error.to_string().ends_with("another hash"),
            "{error}"
        );
    }

    #[test]
    fn a_chunk_that_a_member_has_again_is_asked_of_it_once_more_and_one_that_came_wrong_is_not() {
        let (holder, now) = (exo_types::NodeId([7; 32]), Instant::now());
        let [dropped, listed, wrong] = [1, 2, 3].map(|index| ChunkRef { file: 0, index });
        let refused = || FetchError::Refused { holder, reason: "damaged".to_owned() };
        let mut chunks = RefusedChunks::default();
        chunks.note(now, dropped, refused()).unwrap();
        chunks.note(now, listed, refused()).unwrap();
        let other = FetchError::Wrong { holder, reason: "another hash".to_owned() };
        chunks.note(now, wrong, other).unwrap();
        chunks.note_list(now, |chunk| chunk != dropped);
        assert!([dropped, listed, wrong].iter().all(|chunk| chunks.has(*chunk)), "nothing came of it yet");
        let may_come = |chunks: &RefusedChunks, at| [dropped, listed, wrong].map(|c| chunks.may_come(at, c));
        assert_eq!(may_come(&chunks, now + REPAIR_BEGINS_MAX / 2), [true, true, false]);
        assert_eq!(may_come(&chunks, now + REPAIR_BEGINS_MAX), [false; 3]);

        chunks.note_list(now, |_| true);
        assert_eq!([dropped, listed].map(|chunk| chunks.has(chunk)), [false, true]);
        chunks.note_list(now + AGAIN_AFTER, |_| true);
        assert_eq!([dropped, listed, wrong].map(|chunk| chunks.has(chunk)), [false, false, true]);
        // Once.
        chunks.note(now, dropped, refused()).unwrap();
        for is_listed in [false, true] {
            chunks.note_list(now + 2 * AGAIN_AFTER, |_| is_listed);
            assert!(chunks.has(dropped) && !chunks.may_come(now, dropped));
        }
    }

    #[test]
    fn what_is_no_matter_of_one_chunk_is_no_refusal() {
        let mut chunks = RefusedChunks::default();
        let error = FetchError::Disk { reason: "no space left".to_owned() };
        assert!(matches!(
            chunks.note(Instant::now(), ChunkRef { file: 0, index: 1 }, error),
            Err(FetchError::Disk { .. })
        ));
        assert!(!chunks.has(ChunkRef { file: 0, index: 1 }) && chunks.last().is_none());
    }
}
