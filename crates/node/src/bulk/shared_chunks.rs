//! Chunks that several members are asked for at once, each of one of them at a time.
//!
//! Whoever is faster takes more of them. A member that fails, or refuses a chunk, loses only what it was
//! asked for: that waits again, for any other that has it. At the end an idle member brings as
//! well what another brings [too slowly](SourcePace::is_overdue): the first one counts, and of a member that
//! owes nothing else any more the rest is not waited for.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use exo_hub::SourcePace;
use exo_stdx::Mutex;
use exo_store::ChunkRef;

/// For a member without anything to do to see what others do not bring: it hangs up after a minute.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// Between two looks at how the others are doing.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Chunks of slow members that another source takes at once before they are asked for them.
const LEFT_LYING_MAX: usize = 8;

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
    /// What it was asked for and no one has brought, in the order of the questions.
    under_way: Vec<ChunkRef>,
    was_asked: bool,
    /// Whether it is not known yet what it has.
    is_to_begin: bool,
    pace: SourcePace,
}

impl SourceState {
    fn ask(&mut self, now: Instant, chunk: ChunkRef) {
        if self.under_way.is_empty() {
            self.pace.ask(now);
        }
        self.under_way.push(chunk);
        self.was_asked = true;
    }

    fn has(&self, chunk: ChunkRef) -> bool {
        self.offered.binary_search(&chunk).is_ok()
    }
}

impl ShareState {
    /// Of what a source `has` that takes `each` for a chunk, what others bring too slowly, the last first.
    /// What they were not asked for yet is left to them, unless all that have it are slow of themselves.
    fn overdue(
        &self,
        source: Option<usize>,
        now: Instant,
        each: Option<Duration>,
        has: impl Fn(ChunkRef) -> bool,
    ) -> Vec<ChunkRef> {
        let others = || {
            let all = self.sources.iter().enumerate();
            all.filter(move |(index, _)| Some(*index) != source).map(|(_, other)| other)
        };
        let is_overdue = |chunk: &ChunkRef| {
            others().all(|other| {
                let ahead = other.under_way.iter().position(|asked| asked == chunk);
                ahead.is_none_or(|ahead| other.pace.is_overdue(now, (ahead, 0.0), each))
            })
        };
        let is_slow = |other: &SourceState| !other.under_way.is_empty() && other.pace.is_slow(now);
        let is_left_lying = |chunk: &ChunkRef| {
            let busy = others().filter(|other| !other.under_way.is_empty() && other.has(*chunk));
            let slow = busy.map(|other| is_slow(other) && other.pace.is_overdue(now, (0, 0.0), each));
            slow.reduce(|all, one| all && one).unwrap_or(false)
        };
        let under_way = others().flat_map(|other| other.under_way.iter().rev());
        let mut overdue: Vec<ChunkRef> = Vec::new();
        for chunk in under_way.copied().filter(|chunk| has(*chunk) && is_overdue(chunk)) {
            if !overdue.contains(&chunk) {
                overdue.push(chunk);
            }
        }
        if others().any(is_slow) {
            let left = self.waiting.iter().rev().filter(|chunk| has(**chunk) && is_left_lying(chunk));
            overdue.extend(left.take(LEFT_LYING_MAX));
        }
        overdue
    }

    fn overdue_for(&self, source: usize, now: Instant, each: Option<Duration>) -> Vec<ChunkRef> {
        self.overdue(Some(source), now, each, |chunk| self.sources[source].has(chunk))
    }

    /// The sources that owe something, and whether each is slow.
    fn busy(&self, now: Instant) -> impl Iterator<Item = bool> {
        let busy = self.sources.iter().filter(|source| !source.under_way.is_empty());
        busy.map(move |source| source.pace.is_slow(now))
    }

    /// A chunk that did not come waits again, unless another source brings it as well. Who has looked at it
    /// before looks again.
    fn wait_again(&mut self, chunk: ChunkRef) {
        if self.sources.iter().any(|source| source.under_way.contains(&chunk)) {
            return;
        }
        self.waiting.insert(chunk);
        self.came_back = true;
        for source in &mut self.sources {
            if let Ok(at) = source.offered.binary_search(&chunk) {
                source.looked_at = source.looked_at.min(at);
            }
        }
    }
}

impl SharedChunks {
    pub fn new(chunks: &[ChunkRef]) -> Self {
        let waiting: BTreeSet<ChunkRef> = chunks.iter().copied().collect();
        let all = waiting.iter().copied().collect();
        Self { all, state: Mutex::new(ShareState { waiting, sources: Vec::new(), came_back: false }) }
    }

    /// The share of one more member: nothing until it is known what it [has](ChunkShare::offer).
    pub fn share(&self) -> ChunkShare<'_> {
        self.share_of(None)
    }

    /// The same of a member that took so long for a chunk when it gave some last.
    pub fn share_of(&self, each: Option<Duration>) -> ChunkShare<'_> {
        let mut state = self.state.lock();
        state.sources.push(SourceState {
            offered: Vec::new(),
            looked_at: 0,
            under_way: Vec::new(),
            was_asked: false,
            is_to_begin: true,
            pace: SourcePace::known(Instant::now(), each),
        });
        ChunkShare { shared: self, source: state.sources.len() - 1 }
    }

    /// The share of a member that has them all.
    pub fn whole(&self) -> ChunkShare<'_> {
        let share = self.share();
        share.offer(|_| true);
        share
    }

    /// Whether a chunk did not come from who was asked for it, and some wait: another may have them.
    pub fn came_back(&self) -> bool {
        let state = self.state.lock();
        state.came_back && !state.waiting.is_empty()
    }

    /// Whether a chunk that a member `has` waits for someone to be asked for it.
    pub fn has_waiting(&self, has: impl Fn(ChunkRef) -> bool) -> bool {
        self.state.lock().waiting.iter().any(|chunk| has(*chunk))
    }

    /// Whether others bring something too slowly that a member `has`, which gives nothing of these at the
    /// moment and took `each` for a chunk before.
    pub fn has_overdue(&self, now: Instant, each: Option<Duration>, has: impl Fn(ChunkRef) -> bool) -> bool {
        !self.state.lock().overdue(None, now, each, has).is_empty()
    }

    /// How many members owe something and are slow.
    pub fn slow_sources(&self, now: Instant) -> usize {
        self.state.lock().busy(now).filter(|is_slow| *is_slow).count()
    }

    /// Whether all that owe something are slow.
    pub fn is_slow(&self, now: Instant) -> bool {
        let state = self.state.lock();
        state.busy(now).reduce(|all, one| all && one).unwrap_or(false)
    }

    fn is_over(&self) -> bool {
        let state = self.state.lock();
        state.waiting.is_empty() && state.sources.iter().all(|source| source.under_way.is_empty())
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
        let mut state = self.shared.state.lock();
        let source = &mut state.sources[self.source];
        (source.offered, source.is_to_begin) = (offered, false);
        is_any
    }

    /// The next chunk that the member is to be asked for: one that no one else is, or at the end one that
    /// another brings too slowly.
    pub fn take_next(&self, now: Instant) -> Option<ChunkRef> {
        let mut state = self.shared.state.lock();
        let ShareState { waiting, sources, .. } = &mut *state;
        let source = &mut sources[self.source];
        while let Some(chunk) = source.offered.get(source.looked_at).copied() {
            source.looked_at += 1;
            if waiting.remove(&chunk) {
                source.ask(now, chunk);
                return Some(chunk);
            }
        }
        if !source.under_way.is_empty() {
            return None;
        }
        let each = source.pace.each();
        let chunk = *state.overdue_for(self.source, now, each).first()?;
        state.waiting.remove(&chunk);
        state.sources[self.source].ask(now, chunk);
        Some(chunk)
    }

    /// The same for a source that brings several at once and takes `each` for a chunk: what others bring too
    /// slowly, and what these slow ones were not asked for yet.
    pub fn take_overdue(&self, now: Instant, each: Option<Duration>, chunks_max: usize) -> Vec<ChunkRef> {
        let mut state = self.shared.state.lock();
        let mut overdue = state.overdue_for(self.source, now, each);
        overdue.truncate(chunks_max);
        for chunk in &overdue {
            state.waiting.remove(chunk);
            state.sources[self.source].ask(now, *chunk);
        }
        overdue
    }

    /// Whether the member owes this chunk: no one else has brought it.
    pub fn owes(&self, chunk: ChunkRef) -> bool {
        self.shared.state.lock().sources[self.source].under_way.contains(&chunk)
    }

    /// The member answered for a chunk that another has brought meanwhile.
    pub fn answered_late(&self, now: Instant) {
        self.shared.state.lock().sources[self.source].pace.answer(now);
    }

    /// The member answered, and the chunk is here or waits again. Whether it is here of this member.
    pub fn answered(&self, now: Instant, chunk: ChunkRef, is_here: bool) -> bool {
        let mut state = self.shared.state.lock();
        let source = &mut state.sources[self.source];
        source.pace.answer(now);
        let was_owed = source.under_way.contains(&chunk);
        if is_here {
            state.sources.iter_mut().for_each(|source| source.under_way.retain(|other| *other != chunk));
            return was_owed;
        }
        source.under_way.retain(|other| *other != chunk);
        if let Ok(at) = source.offered.binary_search(&chunk) {
            source.offered.remove(at);
            source.looked_at = source.looked_at.saturating_sub(1);
        }
        if was_owed {
            state.wait_again(chunk);
        }
        false
    }

    /// Whether no other member was asked for anything: what came says how fast the path is.
    pub fn is_alone(&self) -> bool {
        let state = self.shared.state.lock();
        let mut others = state.sources.iter().enumerate().filter(|(index, _)| *index != self.source);
        !others.any(|(_, other)| other.was_asked)
    }

    /// Until all chunks are here.
    pub async fn over(&self) {
        while !self.shared.is_over() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// The next chunk for a member that owes nothing, as soon as another fails to bring one or brings it too
    /// slowly; `None` when that cannot be any more.
    pub async fn next_overdue(&self) -> Option<ChunkRef> {
        let until = Instant::now() + IDLE_MAX;
        loop {
            let chunk = self.take_next(Instant::now());
            if chunk.is_some() || !self.may_help() || Instant::now() >= until {
                return chunk;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Whether others bring something that this member has. One that was not asked yet comes first, as the
    /// rest may be its own.
    fn may_help(&self) -> bool {
        let state = self.shared.state.lock();
        let source = &state.sources[self.source];
        let is_others_turn = !state.waiting.is_empty() && state.sources.iter().any(|s| s.is_to_begin);
        let mut under_way = state.sources.iter().flat_map(|other| &other.under_way);
        !is_others_turn && under_way.any(|chunk| source.has(*chunk))
    }

    /// Until others have brought all that this member was asked for and has not answered; whether it gave
    /// nothing meanwhile.
    pub async fn relieved(&self, asked: &VecDeque<ChunkRef>) -> bool {
        while asked.iter().any(|chunk| self.owes(*chunk)) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        self.shared.state.lock().sources[self.source].pace.is_stalled(Instant::now())
    }
}

impl Drop for ChunkShare<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        let source = &mut state.sources[self.source];
        source.is_to_begin = false;
        // One member may have many shares of what takes long, one after the other.
        source.offered = Vec::new();
        let not_given = std::mem::take(&mut source.under_way);
        not_given.into_iter().for_each(|chunk| state.wait_again(chunk));
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
        for chunk in &left {
            third.answered(now, *chunk, true);
        }
        assert!(shared.is_over());
    }

    #[test]
    fn of_a_share_that_is_over_nothing_is_kept_that_grows_with_the_chunks() {
        let (all, now) = (chunks(4), Instant::now());
        let shared = SharedChunks::new(&all);
        for _ in 0..3 {
            assert_eq!(shared.whole().take_next(now), Some(all[0]), "it waits again");
        }
        let kept = shared.state.lock().sources.iter().map(|source| source.offered.capacity()).sum::<usize>();
        assert_eq!((kept, shared.came_back()), (0, true));
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

    /// Of four chunks the second member has brought three, each within so long; it owes nothing. The first
    /// owes one. When that was.
    fn one_is_left<'a>(
        shared: &'a SharedChunks,
        all: &[ChunkRef],
        each: Duration,
    ) -> (ChunkShare<'a>, ChunkShare<'a>, Instant) {
        let (slow, fast, mut now) = (shared.whole(), shared.whole(), Instant::now());
        assert_eq!(slow.take_next(now), Some(all[0]));
        for chunk in &all[1..] {
            assert_eq!(fast.take_next(now), Some(*chunk));
            now += each;
            assert!(fast.answered(now, *chunk, true));
        }
        (slow, fast, now)
    }

    #[tokio::test]
    async fn what_one_brings_too_slowly_at_the_end_an_idle_one_brings_too_and_the_first_counts() {
        let (all, each) = (chunks(4), Duration::from_millis(300));
        let shared = SharedChunks::new(&all);
        let (slow, fast, now) = one_is_left(&shared, &all, each);
        assert_eq!(fast.take_next(now), None, "0.9 s are not too slow");
        let later = now + Duration::from_secs(2);
        assert_eq!((fast.take_next(later), fast.take_next(later)), (Some(all[0]), None));
        assert!(slow.owes(all[0]) && !shared.is_over());
        assert!(fast.answered(later + each, all[0], true));
        assert!(!slow.owes(all[0]) && shared.is_over());
        let asked = VecDeque::from([all[0]]);
        assert!(slow.relieved(&asked).await, "it gave nothing at all");
        assert!(!slow.answered(later + each, all[0], true), "and what comes of it now came before");
        assert_eq!((fast.next_overdue().await, shared.came_back()), (None, false));
    }

    #[test]
    fn a_chunk_that_two_bring_waits_again_only_when_both_have_failed() {
        let all = chunks(4);
        let shared = SharedChunks::new(&all);
        let (slow, fast, now) = one_is_left(&shared, &all, Duration::from_millis(1));
        let later = now + Duration::from_secs(10);
        assert_eq!(fast.take_next(later), Some(all[0]));
        drop(slow);
        assert!(!shared.came_back() && fast.owes(all[0]));
        assert!(!fast.answered(later, all[0], false));
        assert!(shared.came_back());
        let third = shared.whole();
        assert_eq!(third.take_next(later), Some(all[0]));
    }

    #[tokio::test]
    async fn what_a_member_did_not_bring_an_idle_one_brings_at_once() {
        let (all, now) = (chunks(4), Instant::now());
        let shared = SharedChunks::new(&all);
        let (fails, slow, idle) = (shared.whole(), shared.whole(), shared.whole());
        assert_eq!([fails.take_next(now), fails.take_next(now)], [Some(all[0]), Some(all[1])]);
        assert_eq!([slow.take_next(now), idle.take_next(now)], [Some(all[2]), Some(all[3])]);
        idle.answered(now, all[3], true);
        assert_eq!(idle.take_next(now), None);
        fails.answered(now, all[1], false);
        assert_eq!(idle.next_overdue().await, Some(all[1]), "it had looked at it before");
        idle.answered(now, all[1], true);
        assert!(!shared.came_back(), "none waits");
        drop(fails);
        assert!(shared.came_back());
        assert_eq!((idle.take_next(now), slow.take_next(now)), (Some(all[0]), None));
    }

    #[tokio::test]
    async fn who_answers_later_than_others_has_given_something() {
        let all = chunks(4);
        let shared = SharedChunks::new(&all);
        let (slow, fast, _) = one_is_left(&shared, &all, Duration::from_millis(1));
        let later = Instant::now() + Duration::from_secs(3);
        assert_eq!(fast.take_next(later), Some(all[0]));
        fast.answered(later, all[0], true);
        slow.answered_late(later);
        assert!(!slow.relieved(&VecDeque::from([all[0]])).await);
    }

    #[test]
    fn a_member_that_trickles_is_left_neither_what_it_was_asked_for_nor_what_it_was_not() {
        let (all, now) = (chunks(40), Instant::now());
        let shared = SharedChunks::new(&all);
        let (member, hub) = (shared.whole(), shared.whole());
        let asked: Vec<ChunkRef> = (0..8).filter_map(|_| member.take_next(now)).collect();
        let each = Some(Duration::from_millis(100));
        let at = |ms| now + Duration::from_millis(ms);
        assert!(hub.take_overdue(at(2000), each, 8).is_empty());
        let taken = hub.take_overdue(at(2300), each, 8);
        assert_eq!(taken, asked.iter().rev().copied().collect::<Vec<_>>(), "the last first");
        taken.iter().for_each(|chunk| _ = hub.answered(at(2400), *chunk, true));
        assert!(asked.iter().all(|chunk| !member.owes(*chunk)));
        // It owes nothing: it is asked for more before anything else is looked at.
        assert!(hub.take_overdue(at(9000), each, 8).is_empty());
        assert_eq!(member.take_next(at(9000)), Some(all[8]));
        let late = hub.take_overdue(at(15_000), each, 8);
        assert_eq!((late[0], late[1], late.len()), (all[8], all[39], 8));
        let left: Vec<ChunkRef> = std::iter::from_fn(|| member.take_next(at(15_000))).collect();
        assert_eq!((left[0], left.len()), (all[9], 24), "all others but those of the hub");
    }

    #[test]
    fn one_that_has_a_chunk_by_now_is_needed_when_the_one_that_was_asked_is_too_slow_and_then_brings_it() {
        let (all, now) = (chunks(2), Instant::now());
        let shared = SharedChunks::new(&all);
        let slow = shared.share();
        slow.offer(|chunk| chunk.index == 0);
        assert_eq!(slow.take_next(now), Some(all[0]));
        let [first, second] = [0, 1].map(|index| move |chunk: ChunkRef| chunk.index == index);
        assert!(shared.has_waiting(second) && !shared.has_waiting(first));
        let at = |ms| now + Duration::from_millis(ms);
        let each = Some(Duration::from_millis(100));
        let is_needed = |ms, each| shared.has_overdue(at(ms), each, first);
        assert!(!is_needed(2000, each) && is_needed(2300, each));
        assert!(!is_needed(4000, None) && is_needed(6000, None), "one of which nothing is known, later");
        assert!(!shared.has_overdue(at(60_000), each, second), "no one was asked for that");
        assert_eq!((shared.slow_sources(at(4000)), shared.is_slow(at(4000))), (0, false));
        assert_eq!((shared.slow_sources(at(6000)), shared.is_slow(at(6000))), (1, true));
        let late = shared.share_of(each);
        late.offer(first);
        assert_eq!(late.take_next(at(2300)), Some(all[0]), "what it took before counts");
        assert!(late.answered(at(2400), all[0], true) && !slow.owes(all[0]));
        assert!(!slow.answered(at(9000), all[0], true), "it came before");
    }

    #[test]
    fn what_a_slow_member_was_not_asked_for_yet_one_brings_that_has_the_first_of_it_alone() {
        let (all, now) = (chunks(40), Instant::now());
        let shared = SharedChunks::new(&all);
        let slow = shared.whole();
        (0..8).for_each(|_| _ = slow.take_next(now));
        let has_ninth = |chunk: ChunkRef| chunk.index == 8;
        let late = now + Duration::from_secs(6);
        assert!(shared.has_overdue(late, None, has_ninth) && !shared.has_overdue(now, None, has_ninth));
    }

    #[test]
    fn who_has_not_begun_is_not_kept_waiting_by_one_that_is_idle() {
        let (all, now) = (chunks(3), Instant::now());
        let shared = SharedChunks::new(&all);
        let (busy, idle, next) = (shared.share(), shared.share(), shared.share());
        assert!(busy.offer(|chunk| chunk.index < 2) && idle.offer(|chunk| chunk.index < 2));
        assert_eq!((busy.take_next(now), busy.take_next(now)), (Some(all[0]), Some(all[1])));
        assert!(!idle.may_help(), "the third chunk may be of who has not begun");
        assert!(next.offer(|chunk| chunk.index == 2) && idle.may_help());
        assert!(!next.may_help(), "it has nothing that others bring");
        drop(busy);
        assert!(!idle.may_help());
    }
}
