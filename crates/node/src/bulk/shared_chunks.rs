//! Chunks that several members are asked for at once, each of one of them at a time.
//!
//! Whoever is faster takes more of them. A member that fails, or refuses a chunk, loses only what it was
//! asked for: that waits again, for a member that is asked afterwards.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use exo_store::ChunkRef;

/// Members that are asked at once: more share the same line of this node, and each holds answers in memory.
pub const SOURCES_MAX: usize = 3;
/// A member that gave nothing for this long is waited for no longer where another has what it was asked for.
/// Longer than a member waits for room to answer.
const STALLED_AFTER: Duration = Duration::from_secs(5);
/// Between two looks at how the others are doing.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The chunks that are to come.
pub struct SharedChunks {
    /// In order.
    all: Vec<ChunkRef>,
    state: Mutex<ShareState>,
}

struct ShareState {
    /// Neither here nor asked of a member.
    waiting: BTreeSet<ChunkRef>,
    sources: Vec<SourceState>,
    /// Whether a chunk did not come from the member that was asked for it.
    came_back: bool,
}

struct SourceState {
    /// What it has of the chunks, in order.
    offered: Vec<ChunkRef>,
    /// How many of them were looked at.
    looked_at: usize,
    under_way: BTreeSet<ChunkRef>,
    was_asked: bool,
    /// When something was asked of it or came last.
    heard: Instant,
    /// The longest that it took for an answer.
    slowest: Duration,
    /// Whether it gave all that it was asked for.
    has_ended: bool,
}

impl SharedChunks {
    pub fn new(chunks: &[ChunkRef]) -> Self {
        let waiting: BTreeSet<ChunkRef> = chunks.iter().copied().collect();
        let all = waiting.iter().copied().collect();
        Self { all, state: Mutex::new(ShareState { waiting, sources: Vec::new(), came_back: false }) }
    }

    /// The share of one more member: nothing until it is known what it [has](ChunkShare::offer).
    pub fn share(&self) -> ChunkShare<'_> {
        let mut state = self.lock();
        state.sources.push(SourceState {
            offered: Vec::new(),
            looked_at: 0,
            under_way: BTreeSet::new(),
            was_asked: false,
            heard: Instant::now(),
            slowest: Duration::ZERO,
            has_ended: false,
        });
        ChunkShare { shared: self, source: state.sources.len() - 1 }
    }

    /// The share of a member that has them all.
    pub fn whole(&self) -> ChunkShare<'_> {
        let share = self.share();
        share.offer(|_| true);
        share
    }

    /// Whether a chunk did not come from the member that was asked for it: another may have it.
    pub fn came_back(&self) -> bool {
        self.lock().came_back
    }

    fn is_over(&self) -> bool {
        let state = self.lock();
        state.waiting.is_empty() && state.sources.iter().all(|source| source.under_way.is_empty())
    }

    fn lock(&self) -> MutexGuard<'_, ShareState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one member is asked for. Without it, what the member did not give waits again.
pub struct ChunkShare<'a> {
    shared: &'a SharedChunks,
    source: usize,
}

impl ChunkShare<'_> {
    /// Notes what the member has; false if that is nothing.
    pub fn offer(&self, has: impl Fn(ChunkRef) -> bool) -> bool {
        let offered: Vec<ChunkRef> = self.shared.all.iter().copied().filter(|chunk| has(*chunk)).collect();
        let is_any = !offered.is_empty();
        self.shared.lock().sources[self.source].offered = offered;
        is_any
    }

    /// The next chunk that the member is to be asked for, and no one else then.
    pub fn take_next(&self, now: Instant) -> Option<ChunkRef> {
        let mut state = self.shared.lock();
        let ShareState { waiting, sources, .. } = &mut *state;
        let source = &mut sources[self.source];
        while let Some(chunk) = source.offered.get(source.looked_at).copied() {
            source.looked_at += 1;
            if waiting.remove(&chunk) {
                if source.under_way.is_empty() {
                    source.heard = now;
                }
                source.under_way.insert(chunk);
                source.was_asked = true;
                return Some(chunk);
            }
        }
        None
    }

    /// The member answered, and the chunk is here or waits again.
    pub fn answered(&self, now: Instant, chunk: ChunkRef, is_here: bool) {
        let mut state = self.shared.lock();
        let source = &mut state.sources[self.source];
        source.under_way.remove(&chunk);
        source.slowest = source.slowest.max(now.saturating_duration_since(source.heard));
        source.heard = now;
        if is_here {
            return;
        }
        if let Ok(at) = source.offered.binary_search(&chunk) {
            source.offered.remove(at);
            source.looked_at = source.looked_at.saturating_sub(1);
        }
        state.waiting.insert(chunk);
        state.came_back = true;
    }

    /// The member has nothing more to give.
    pub fn end(&self) {
        self.shared.lock().sources[self.source].has_ended = true;
    }

    /// Whether no other member was asked for anything: what came says how fast the path is.
    pub fn is_alone(&self) -> bool {
        let state = self.shared.lock();
        let mut others = state.sources.iter().enumerate().filter(|(index, _)| *index != self.source);
        !others.any(|(_, other)| other.was_asked)
    }

    /// Until all chunks are here.
    pub async fn over(&self) {
        while !self.shared.is_over() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Until the member is waited for no longer.
    pub async fn stalled(&self) {
        while !self.is_stalled(Instant::now()) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Whether the member gives nothing while another that has done its part has what is asked of it. One
    /// that is as slow as that other does not stall.
    fn is_stalled(&self, now: Instant) -> bool {
        let state = self.shared.lock();
        let source = &state.sources[self.source];
        let silence = now.saturating_duration_since(source.heard);
        state.sources.iter().any(|other| {
            let has = |chunk: &ChunkRef| other.offered.binary_search(chunk).is_ok();
            other.has_ended
                && silence >= STALLED_AFTER.max(other.slowest * 2)
                && source.under_way.iter().any(has)
        })
    }
}

impl Drop for ChunkShare<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let ShareState { waiting, sources, came_back } = &mut *state;
        let not_given = std::mem::take(&mut sources[self.source].under_way);
        *came_back |= !not_given.is_empty();
        waiting.extend(not_given);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(count: u32) -> Vec<ChunkRef> {
        (0..count).map(|index| ChunkRef { file: 0, index }).collect()
    }

    #[test]
    fn each_chunk_is_asked_of_one_member_and_what_one_does_not_give_waits_again() {
        let (all, now) = (chunks(4), Instant::now());
        let shared = SharedChunks::new(&all);
        let (first, second) = (shared.whole(), shared.whole());
        assert_eq!([first.take_next(now), second.take_next(now)], [Some(all[0]), Some(all[1])]);
        assert!(!first.is_alone() && !shared.came_back());
        first.answered(now, all[0], true);
        assert_eq!([first.take_next(now), first.take_next(now)], [Some(all[2]), Some(all[3])]);
        assert_eq!([first.take_next(now), second.take_next(now)], [None, None]);
        second.answered(now, all[1], false);
        assert!(shared.came_back() && !shared.is_over());
        first.answered(now, all[2], true);
        drop(first);
        let third = shared.whole();
        let left: Vec<ChunkRef> = std::iter::from_fn(|| third.take_next(now)).collect();
        assert_eq!(left, [all[1], all[3]], "what was refused, and what was under way");
        left.iter().for_each(|chunk| third.answered(now, *chunk, true));
        assert!(shared.is_over());
    }

    #[test]
    fn a_member_that_has_a_part_is_asked_for_that_alone() {
        let (all, now) = (chunks(4), Instant::now());
        let shared = SharedChunks::new(&all);
        let (some, none) = (shared.share(), shared.share());
        assert!(some.offer(|chunk| chunk.index % 2 == 1) && !none.offer(|_| false));
        let taken: Vec<ChunkRef> = std::iter::from_fn(|| some.take_next(now)).collect();
        assert_eq!((taken.as_slice(), none.take_next(now)), ([all[1], all[3]].as_slice(), None));
        assert!(some.is_alone() && !none.is_alone());
    }

    #[test]
    fn a_member_stalls_when_another_could_give_what_it_does_not() {
        let (all, now) = (chunks(3), Instant::now());
        let shared = SharedChunks::new(&all);
        let (silent, other) = (shared.whole(), shared.share());
        silent.take_next(now);
        let later = now + STALLED_AFTER;
        assert!(!silent.is_stalled(later), "there is nobody else");
        other.offer(|chunk| chunk != all[0]);
        other.end();
        assert!(!silent.is_stalled(later), "the other has not got it");
        silent.take_next(now);
        assert!(silent.is_stalled(later) && !silent.is_stalled(later - Duration::from_millis(1)));
        silent.answered(now + Duration::from_secs(1), all[0], true);
        assert!(!silent.is_stalled(later), "it gave something since");
        assert!(!other.is_stalled(later), "nothing is asked of it");
    }

    #[test]
    fn a_member_that_is_as_slow_as_the_other_does_not_stall() {
        let (all, now) = (chunks(2), Instant::now());
        let shared = SharedChunks::new(&all);
        let (one, other) = (shared.whole(), shared.whole());
        one.take_next(now);
        other.take_next(now);
        other.answered(now + STALLED_AFTER, all[1], true);
        other.end();
        assert!(!one.is_stalled(now + STALLED_AFTER) && one.is_stalled(now + STALLED_AFTER * 2));
    }
}
