//! Which chunks of a file are held, who fetches which, and how many fetch at once. Shared by the threads of
//! one download.

use std::collections::BTreeMap;
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use exo_stdx::Mutex;

use crate::HubError;
use crate::chunk_bits::ChunkBits;
use crate::overdue::{CLAIM_KEPT_MAX, SourcePace};

/// Chunks that wait to be synchronised: what a power cut costs beside those in flight.
const UNSYNCED_MAX: usize = 24;
/// So many are synchronised at once, where they come fast: each time is two commits of the file system. Eight
/// fetchers write as many more meanwhile before they wait.
const SYNCED_MIN: usize = 8;
/// And after so long what there is.
const SYNCED_AFTER: Duration = Duration::from_millis(200);
/// What is taken of another's claim: of less, most is on its way already and would come twice.
const TAKEN_BYTES_MIN: u64 = 1 << 20;
/// Between two looks whether something is to be asked of who is near.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Bytes that one request asks for: few requests, and still enough left to share.
const RUN_BYTES_MAX: u64 = 64 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Chunk {
    Missing,
    /// Somebody near may give it.
    Nearby,
    /// Somebody near brings it from the hub, and is asked for it later.
    Elsewhere,
    InFlight,
    /// In the file and in the map, and not synchronised yet: a killed process keeps it, a power cut may not.
    Written,
    Held,
}

/// The chunks that a fetcher has promised to bring: the next one, and the end.
pub(crate) type Claim = (u32, u32);

pub(crate) struct ChunkQueue {
    size: u64,
    chunk_bytes: u64,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    size: u64,
    chunk_bytes: u64,
    run_chunks_max: usize,
    chunks: Vec<Chunk>,
    claims: Vec<Option<Claim>>,
    held_bytes: u64,
    unsynced: Vec<u32>,
    /// Bytes that came over the network, kept or not.
    received_bytes: u64,
    /// Of the chunk that each fetcher is bringing, what has come.
    in_flight: Vec<u64>,
    /// Since when each fetcher asks, or waits to ask again, without a byte of an answer.
    quiet_since: Vec<Option<Instant>>,
    /// How long each fetcher takes for a chunk.
    paces: Vec<SourcePace>,
    /// How long who is near takes for one.
    nearby_pace: SourcePace,
    fetchers: usize,
    not_before: Option<Instant>,
    held_off: Duration,
    is_nearby_giving: bool,
    is_over: bool,
    failure: Option<HubError>,
}

impl ChunkQueue {
    /// For a file in chunks of `chunk_bytes`, of which those of `held` need not be fetched.
    pub(crate) fn new(
        size: u64,
        chunk_bytes: u64,
        held: impl Iterator<Item = u32>,
        fetchers_max: usize,
    ) -> Self {
        let chunk_bytes = chunk_bytes.max(1);
        let mut chunks = vec![Chunk::Missing; size.div_ceil(chunk_bytes) as usize];
        let mut held_bytes = 0;
        for index in held {
            chunks[index as usize] = Chunk::Held;
            let (start, end) = range(index, chunk_bytes, size);
            held_bytes += end - start;
        }
        let state = State {
            size,
            chunk_bytes,
            run_chunks_max: (RUN_BYTES_MAX / chunk_bytes).max(1) as usize,
            chunks,
            claims: vec![None; fetchers_max],
            held_bytes,
            unsynced: Vec::new(),
            received_bytes: 0,
            in_flight: vec![0; fetchers_max],
            quiet_since: vec![None; fetchers_max],
            paces: vec![SourcePace::new(Instant::now()); fetchers_max],
            nearby_pace: SourcePace::new(Instant::now()),
            fetchers: fetchers_max,
            not_before: None,
            held_off: Duration::ZERO,
            is_nearby_giving: false,
            is_over: false,
            failure: None,
        };
        Self { size, chunk_bytes, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Start and end of a chunk.
    pub(crate) fn range(&self, index: u32) -> (u64, u64) {
        range(index, self.chunk_bytes, self.size)
    }

    /// Whether nothing is left to fetch.
    pub(crate) fn is_all_held(&self) -> bool {
        self.state.lock().chunks.iter().all(|chunk| *chunk == Chunk::Held)
    }

    /// Leaves all that is missing to who is near, until [`ChunkQueue::end_nearby`].
    pub(crate) fn begin_nearby(&self) {
        let mut state = self.state.lock();
        state.is_nearby_giving = true;
        state.nearby_pace.ask(Instant::now());
        let is_missing = |chunk: &&mut Chunk| matches!(**chunk, Chunk::Missing | Chunk::Elsewhere);
        state.chunks.iter_mut().filter(is_missing).for_each(|chunk| *chunk = Chunk::Nearby);
    }

    /// Somebody near brings this chunk from the hub: no fetcher of this work asks for it before
    /// [`ChunkQueue::begin_nearby`].
    pub(crate) fn leave_elsewhere(&self, index: u32) {
        let mut state = self.state.lock();
        if let Some(chunk) = state.chunks.get_mut(index as usize).filter(|chunk| **chunk == Chunk::Nearby) {
            *chunk = Chunk::Elsewhere;
        }
    }

    /// Nobody near gives anything more for now.
    pub(crate) fn pause_nearby(&self) {
        let mut state = self.state.lock();
        state.is_nearby_giving = false;
        state.chunks.iter_mut().filter(|c| **c == Chunk::Nearby).for_each(|chunk| *chunk = Chunk::Missing);
        state.is_over |= state.failure.is_some();
        self.changed.notify_all();
    }

    /// The chunks that are left to who is near; without any those that fetchers bring too slowly.
    pub(crate) fn left_to_nearby(&self) -> Vec<u32> {
        let state = self.state.lock();
        let left = (0u32..).zip(&state.chunks).filter(|(_, c)| **c == Chunk::Nearby);
        let left: Vec<u32> = left.map(|(index, _)| index).collect();
        if left.is_empty() { state.slow_in_flight(Instant::now()) } else { left }
    }

    /// After so long waits until nobody fetches some chunk here, or a fetcher brings one too slowly; false as
    /// soon as the work ends.
    pub(crate) fn is_missing_after(&self, time: Duration) -> bool {
        let (mut state, until) = (self.state.lock(), Instant::now() + time);
        while !state.is_over {
            let left = until.saturating_duration_since(Instant::now());
            let is_missing = |chunk: &Chunk| matches!(chunk, Chunk::Missing | Chunk::Elsewhere);
            let is_any =
                || state.chunks.iter().any(is_missing) || !state.slow_in_flight(Instant::now()).is_empty();
            if left.is_zero() && is_any() {
                return true;
            }
            state = self.wait_with(state, if left.is_zero() { LOOK_EVERY } else { left });
        }
        false
    }

    /// Nobody near gives this chunk.
    pub(crate) fn free(&self, index: u32) {
        let mut state = self.state.lock();
        if let Some(chunk) = state.chunks.get_mut(index as usize).filter(|chunk| **chunk == Chunk::Nearby) {
            *chunk = Chunk::Missing;
            self.changed.notify_all();
        }
    }

    /// Nobody near gives anything more, nor is waited for.
    pub(crate) fn end_nearby(&self) {
        // What others were to bring is missing, too, from now on.
        self.begin_nearby();
        self.pause_nearby();
    }

    /// The chunks that are in the file, and those that fetchers bring: not what one has claimed that has
    /// waited for long.
    pub(crate) fn bits(&self) -> (ChunkBits, ChunkBits) {
        let (state, now) = (self.state.lock(), Instant::now());
        let bring = (0..state.claims.len()).filter(|fetcher| !state.is_held_up(*fetcher, now));
        let claims: Vec<Claim> = bring.filter_map(|fetcher| state.claims[fetcher]).collect();
        let count = u32::try_from(state.chunks.len()).unwrap_or(u32::MAX);
        let is_coming = |index: u32| {
            !state.is_here(index) && claims.iter().any(|(next, end)| (*next..*end).contains(&index))
        };
        (ChunkBits::of(count, |index| state.is_here(index)), ChunkBits::of(count, is_coming))
    }

    /// Whether a chunk is in the file.
    pub(crate) fn is_here(&self, index: u32) -> bool {
        self.state.lock().is_here(index)
    }

    /// The claim of a fetcher, or a new one; `None` when there is nothing to fetch now.
    pub(crate) fn claim(&self, fetcher: usize) -> Option<Claim> {
        let (mut state, now) = (self.state.lock(), Instant::now());
        let is_to_wait = state.is_to_wait(now);
        let is_idle = state.is_over || state.failure.is_some() || fetcher >= state.fetchers || is_to_wait;
        if fetcher >= state.fetchers {
            // There may be fewer fetchers for long: others take what it had.
            self.give_back(&mut state, fetcher);
        } else if is_to_wait {
            self.give_back_if_held_up(&mut state, fetcher, now);
        }
        if is_idle {
            return None;
        }
        if state.claims[fetcher].is_none() {
            let taken_min = u32::try_from(TAKEN_BYTES_MIN.div_ceil(self.chunk_bytes)).unwrap_or(u32::MAX);
            let claim = state.missing_run().or_else(|| state.half_of_another(taken_min));
            state.claims[fetcher] = claim.or_else(|| state.take_overdue(now));
            state.paces[fetcher].ask(now);
        }
        state.claims[fetcher]
    }

    /// The claim as it is now: others may have taken its end.
    pub(crate) fn claimed(&self, fetcher: usize) -> Option<Claim> {
        self.state.lock().claims[fetcher]
    }

    /// Gives back what is not fetched.
    pub(crate) fn release(&self, fetcher: usize) {
        self.give_back(&mut self.state.lock(), fetcher);
    }

    /// A fetcher asks, and goes on doing so until a byte comes.
    pub(crate) fn note_asked(&self, fetcher: usize) {
        self.state.lock().quiet_since[fetcher].get_or_insert_with(Instant::now);
    }

    /// A fetcher waits before it asks again. What it has not begun is missing meanwhile, if it has been
    /// without a byte for long.
    pub(crate) fn wait_to_ask(&self, fetcher: usize) {
        self.give_back_if_held_up(&mut self.state.lock(), fetcher, Instant::now());
    }

    fn give_back_if_held_up(&self, state: &mut State, fetcher: usize, now: Instant) {
        let Some((next, end)) = state.claims[fetcher].filter(|_| state.is_held_up(fetcher, now)) else {
            return;
        };
        let kept = next + u32::from(state.in_flight[fetcher] > 0);
        if kept < end {
            state.claims[fetcher] = Some((next, kept)).filter(|(next, kept)| next < kept);
            state.miss(kept..end);
            self.changed.notify_all();
        }
    }

    fn give_back(&self, state: &mut State, fetcher: usize) {
        if let Some((next, end)) = state.claims[fetcher].take() {
            state.miss(next..end);
            self.changed.notify_all();
        }
    }

    /// The next chunk of a claim is in the file. Waits while too many are not synchronised.
    pub(crate) fn write(&self, fetcher: usize, index: u32) {
        let mut state = self.state.lock();
        state.held_off = Duration::ZERO;
        state.paces[fetcher].answer(Instant::now());
        self.note_written(state, index);
    }

    /// A chunk that somebody near gave is in the file. Waits as [`ChunkQueue::write`] does.
    pub(crate) fn write_given(&self, index: u32) {
        let mut state = self.state.lock();
        state.nearby_pace.answer(Instant::now());
        self.note_written(state, index);
    }

    /// Takes note of chunks that came by another way than this work.
    pub(crate) fn note_here(&self, is_here: &dyn Fn(u32) -> bool) {
        let mut state = self.state.lock();
        let count = u32::try_from(state.chunks.len()).unwrap_or(u32::MAX);
        for index in 0..count {
            if !state.is_here(index) && is_here(index) {
                state.note_written(index);
            }
        }
        self.changed.notify_all();
    }

    fn note_written(&self, mut state: MutexGuard<'_, State>, index: u32) {
        state.note_written(index);
        self.changed.notify_all();
        // Each of the others may write one more before it waits.
        while state.unsynced.len() + state.fetchers > UNSYNCED_MAX && !state.is_over {
            state = self.wait_with(state, Duration::from_millis(200));
        }
    }

    /// Chunks that are written and not synchronised; waits a moment for some.
    pub(crate) fn unsynced(&self) -> Vec<u32> {
        let (mut state, until) = (self.state.lock(), Instant::now() + SYNCED_AFTER);
        while state.unsynced.len() < SYNCED_MIN && !state.is_over {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.wait_with(state, left);
        }
        state.unsynced.clone()
    }

    /// Chunks that are written and not counted yet.
    pub(crate) fn written(&self) -> Vec<u32> {
        self.state.lock().unsynced.clone()
    }

    /// These are safe on disk.
    pub(crate) fn hold(&self, synced: &[u32]) {
        let mut state = self.state.lock();
        state.unsynced.retain(|index| !synced.contains(index));
        for index in
            synced.iter().map(|i| *i as usize).filter(|i| *i < state.chunks.len()).collect::<Vec<_>>()
        {
            if state.chunks[index] == Chunk::Written {
                let (start, end) = self.range(index as u32);
                state.chunks[index] = Chunk::Held;
                state.held_bytes += end - start;
            }
        }
        self.changed.notify_all();
    }

    /// A chunk that was held is not what it should be.
    pub(crate) fn lose(&self, index: u32) {
        let (start, end) = self.range(index);
        let mut state = self.state.lock();
        if state.chunks[index as usize] == Chunk::Held {
            state.chunks[index as usize] = Chunk::Missing;
            state.held_bytes -= end - start;
        }
        self.changed.notify_all();
    }

    /// Whether a fetcher should go on with its claim.
    pub(crate) fn is_wanted(&self, fetcher: usize) -> bool {
        let state = self.state.lock();
        !state.is_over && state.failure.is_none() && fetcher < state.fetchers
    }

    pub(crate) fn receive(&self, fetcher: usize, bytes: u64) {
        let mut state = self.state.lock();
        state.received_bytes += bytes;
        state.in_flight[fetcher] += bytes;
        state.quiet_since[fetcher] = None;
    }

    /// What came of a fetcher's chunk is no chunk in flight any more: it is whole, or another fetcher brings
    /// it.
    pub(crate) fn clear_in_flight(&self, fetcher: usize) {
        self.state.lock().in_flight[fetcher] = 0;
    }

    /// What has come of chunks that are not written.
    pub(crate) fn in_flight_bytes(&self) -> u64 {
        self.state.lock().in_flight_bytes()
    }

    /// What has come and is not held yet.
    pub(crate) fn coming_bytes(&self) -> u64 {
        let state = self.state.lock();
        let lens = state.unsynced.iter().map(|index| self.range(*index)).map(|(start, end)| end - start);
        lens.sum::<u64>() + state.in_flight_bytes()
    }

    /// Nobody asks before this long has passed. How long that is in all since a chunk last came.
    pub(crate) fn hold_off(&self, time: Duration) -> Duration {
        let mut state = self.state.lock();
        let (now, time) =
            (Instant::now(), time.clamp(Duration::from_millis(100), Duration::from_secs(1 << 20)));
        let before = state.not_before.filter(|t| *t > now).unwrap_or(now);
        let until = before.max(now + time);
        state.held_off += until - before;
        state.not_before = Some(until);
        state.paces.iter_mut().for_each(|pace| pace.ask(until)); // a wait is no slowness
        state.fetchers = (state.fetchers / 2).max(1);
        state.held_off
    }

    /// Whether the hub has asked to wait, and the wait is not over.
    pub(crate) fn is_to_wait(&self, now: Instant) -> bool {
        self.state.lock().is_to_wait(now)
    }

    pub(crate) fn set_fetchers(&self, count: usize) {
        let mut state = self.state.lock();
        state.fetchers = count.clamp(1, state.claims.len());
        self.changed.notify_all();
    }

    pub(crate) fn fetchers(&self) -> usize {
        self.state.lock().fetchers
    }

    /// How many fetch at the moment: none while only who is near gives.
    pub(crate) fn ranges(&self) -> usize {
        let state = self.state.lock();
        let is_of_hub = |chunk: &Chunk| matches!(chunk, Chunk::Missing | Chunk::InFlight);
        if state.chunks.iter().any(is_of_hub) { state.fetchers } else { 0 }
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        self.state.lock().held_bytes
    }

    pub(crate) fn received_bytes(&self) -> u64 {
        self.state.lock().received_bytes
    }

    /// Ends the work of everyone; the first reason counts.
    pub(crate) fn end(&self, failure: Option<HubError>) {
        let mut state = self.state.lock();
        state.is_over = true;
        if state.failure.is_none() {
            state.failure = failure;
        }
        self.changed.notify_all();
    }

    /// The hub gives nothing more. What somebody near gives still comes, and then the work ends. A range that
    /// is ended because the work is over is no failure of it.
    pub(crate) fn fail(&self, failure: HubError) {
        let mut state = self.state.lock();
        if state.is_over {
            return;
        }
        if state.failure.is_none() {
            state.failure = Some(failure);
        }
        state.is_over |= !state.is_nearby_giving;
        self.changed.notify_all();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().is_over
    }

    pub(crate) fn take_failure(&self) -> Option<HubError> {
        self.state.lock().failure.take()
    }

    /// Waits until something changes, or so long.
    pub(crate) fn wait(&self, time: Duration) {
        let state = self.state.lock();
        if !state.is_over {
            drop(self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Waits until a chunk can be read; false when the work ends before.
    pub(crate) fn wait_for(&self, index: u32) -> bool {
        let mut state = self.state.lock();
        while !matches!(state.chunks[index as usize], Chunk::Written | Chunk::Held) {
            if state.is_over {
                return false;
            }
            // The controller ends the work by its deadlines; this only looks whether it has.
            state = self.wait_with(state, Duration::from_millis(200));
        }
        true
    }

    fn wait_with<'a>(&self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }
}

impl State {
    fn missing_run(&mut self) -> Option<Claim> {
        let missing = self.chunks.iter().filter(|c| **c == Chunk::Missing).count();
        // Runs become shorter towards the end: all end at about the same time, and the reader, which reads in
        // order, has little left then.
        let share = (missing / (2 * self.fetchers.max(1))).clamp(1, self.run_chunks_max);
        let first = self.chunks.iter().position(|c| *c == Chunk::Missing)?;
        let run = self.chunks[first..].iter().take(share).take_while(|c| **c == Chunk::Missing).count();
        self.chunks[first..first + run].fill(Chunk::InFlight);
        Some((first as u32, (first + run) as u32))
    }

    /// At the end of a file, who is done takes half of what the slowest still has to fetch, if that is so
    /// many chunks.
    fn half_of_another(&mut self, taken_min: u32) -> Option<Claim> {
        let longest = self.claims.iter_mut().flatten().max_by_key(|(next, end)| end - next)?;
        let (next, end) = *longest;
        let middle = next + (end - next).div_ceil(2);
        if end - middle < taken_min {
            return None;
        }
        longest.1 = middle;
        Some((middle, end))
    }

    /// What another brings too slowly, for a fetcher that has nothing else to do: of what is left to who is
    /// near the last chunk; of a fetcher's the half that it has not begun, or the chunk that it is bringing.
    fn take_overdue(&mut self, now: Instant) -> Option<Claim> {
        let each = self.paces.iter().filter_map(SourcePace::each).min();
        if self.nearby_pace.is_slow(now)
            && self.nearby_pace.is_overdue(now, (0, 0.0), each)
            && let Some(last) = self.chunks.iter().rposition(|chunk| *chunk == Chunk::Nearby)
        {
            self.chunks[last] = Chunk::InFlight;
            return Some((last as u32, last as u32 + 1));
        }
        // All ask the same host: before anything came of it none of them is slow.
        each?;
        let overdue: Vec<Claim> = (0..self.claims.len())
            .filter_map(|fetcher| {
                let (next, end) = self.claims[fetcher]?;
                self.is_overdue(fetcher, now, each, end - next - 1).then_some((next, end))
            })
            .collect();
        let brings = |claim: &&Claim, index: u32| (claim.0..claim.1).contains(&index);
        // One that two bring already waits until both are too slow.
        let is_of_slow_alone = |claim: &&Claim| {
            let all = self.claims.iter().flatten().filter(|other| brings(other, claim.1 - 1)).count();
            all == overdue.iter().filter(|other| brings(other, claim.1 - 1)).count()
        };
        let (next, end) = *overdue.iter().filter(is_of_slow_alone).max_by_key(|(next, end)| end - next)?;
        let middle = next + (end - next) / 2;
        if middle > next
            && let Some(claim) = self.claims.iter_mut().flatten().find(|claim| **claim == (next, end))
        {
            claim.1 = middle;
        }
        Some((middle, end))
    }

    /// Whether the chunk that stands so many behind the one that a fetcher is bringing comes too slowly.
    fn is_overdue(&self, fetcher: usize, now: Instant, each: Option<Duration>, behind: u32) -> bool {
        let bringing = self.claims[fetcher].map_or(0, |(next, _)| next);
        let (start, end) = range(bringing, self.chunk_bytes, self.size); // the last chunk may be a small one
        let came = self.in_flight[fetcher] as f64 / end.saturating_sub(start).max(1) as f64;
        self.paces[fetcher].is_overdue(now, (behind as usize, came), each)
    }

    /// Whether a fetcher has been without a byte for so long that no one is to wait for what it has claimed.
    fn is_held_up(&self, fetcher: usize, now: Instant) -> bool {
        let since = self.quiet_since[fetcher];
        since.is_some_and(|since| now.saturating_duration_since(since) >= CLAIM_KEPT_MAX)
    }

    /// The chunks of fetchers that are slower than who is near, or wait to ask at all.
    fn slow_in_flight(&self, now: Instant) -> Vec<u32> {
        let each = self.nearby_pace.each();
        let is_slow = |fetcher: &usize| {
            let is_slow = self.paces[*fetcher].is_slow(now) && self.is_overdue(*fetcher, now, each, 0);
            is_slow || self.is_held_up(*fetcher, now)
        };
        let slow = (0..self.claims.len()).filter(is_slow).filter_map(|fetcher| self.claims[fetcher]);
        let mut chunks: Vec<u32> = slow.flat_map(|(next, end)| next..end).collect();
        chunks.sort_unstable();
        chunks.dedup(); // two may bring one
        chunks
    }

    /// Of a chunk that two bring, what the one has that is further.
    fn in_flight_bytes(&self) -> u64 {
        let mut came = BTreeMap::<u32, u64>::new();
        let bring = self.claims.iter().zip(&self.in_flight);
        for (next, bytes) in bring.filter_map(|(claim, bytes)| Some((claim.as_ref()?.0, *bytes))) {
            let most = came.entry(next).or_default();
            *most = bytes.max(*most);
        }
        came.values().sum()
    }

    fn is_to_wait(&self, now: Instant) -> bool {
        self.not_before.is_some_and(|until| now < until)
    }

    fn is_here(&self, index: u32) -> bool {
        matches!(self.chunks.get(index as usize), Some(Chunk::Written | Chunk::Held))
    }

    /// The chunk is in the file: whoever else was bringing it brings it no more. Of one that came twice the
    /// first counts.
    fn note_written(&mut self, index: u32) {
        self.withdraw(index);
        if !self.is_here(index) {
            self.chunks[index as usize] = Chunk::Written;
            self.unsynced.push(index);
        }
    }

    /// Takes a chunk that is here out of all claims. What stood behind it in one is missing.
    fn withdraw(&mut self, index: u32) {
        for fetcher in 0..self.claims.len() {
            let Some((next, end)) = self.claims[fetcher].filter(|(next, end)| (*next..*end).contains(&index))
            else {
                continue;
            };
            if next == index {
                self.claims[fetcher] = Some((next + 1, end)).filter(|(next, end)| next < end);
                self.in_flight[fetcher] = 0; // it counts as written from now on
            } else {
                self.claims[fetcher] = Some((next, index));
                self.miss(index + 1..end);
            }
        }
    }

    /// Nobody brings these any more, but for what another fetcher has claimed as well.
    fn miss(&mut self, indices: std::ops::Range<u32>) {
        for index in indices {
            let is_claimed = self.claims.iter().flatten().any(|(next, end)| (*next..*end).contains(&index));
            if !is_claimed && self.chunks[index as usize] == Chunk::InFlight {
                self.chunks[index as usize] = Chunk::Missing;
            }
        }
    }
}

fn range(index: u32, chunk_bytes: u64, size: u64) -> (u64, u64) {
    let start = u64::from(index) * chunk_bytes;
    (start, (start + chunk_bytes).min(size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk_map::CHUNK_BYTES;

    #[test]
    fn every_chunk_is_claimed_once_and_the_end_is_shared() {
        let work = ChunkQueue::new(CHUNK_BYTES * 13, CHUNK_BYTES, [0].into_iter(), 2);
        assert_eq!(work.claim(0), Some((1, 4)));
        assert_eq!(work.claim(1), Some((4, 6)));
        work.write(1, 4);
        work.write(1, 5);
        for (index, next) in (6..13).map(|index| (index, index + 1)) {
            let next = if index == 12 { (3, 4) } else { (next, next + 1) };
            if index == 6 {
                assert_eq!(work.claim(1), Some((6, 7)));
            }
            work.write(1, index);
            assert_eq!(work.claim(1), Some(next));
        }
        assert_eq!(work.claimed(0), Some((1, 3)));
        for (fetcher, index) in [(1, 3), (0, 1), (0, 2)] {
            work.write(fetcher, index);
        }
        assert_eq!(
            (work.held_bytes(), work.claim(0)),
            (CHUNK_BYTES, None),
            "what is not synchronised does not count"
        );
        work.hold(&work.unsynced());
        assert_eq!(work.held_bytes(), CHUNK_BYTES * 13);
    }

    #[test]
    fn a_few_small_chunks_of_another_are_left_to_it() {
        let chunk_bytes = TAKEN_BYTES_MIN / 16;
        let taken = |chunks: u32| {
            // The other half is here.
            let held = chunks..2 * chunks;
            let work = ChunkQueue::new(chunk_bytes * 2 * u64::from(chunks), chunk_bytes, held, 2);
            let mut state = work.state.lock();
            state.chunks[..chunks as usize].fill(Chunk::InFlight);
            state.claims[0] = Some((0, chunks));
            drop(state);
            work.claim(1)
        };
        assert_eq!(taken(32), Some((16, 32)));
        assert_eq!(taken(31), None);
    }

    #[test]
    fn a_fetcher_beyond_their_number_gives_back_what_it_had() {
        let work = ChunkQueue::new(CHUNK_BYTES * 8, CHUNK_BYTES, std::iter::empty(), 2);
        let had = work.claim(1).unwrap();
        assert_eq!(had, (0, 2));
        work.set_fetchers(1);
        assert_eq!((work.claim(1), work.claimed(1)), (None, None));
        assert_eq!(work.claim(0).map(|(next, _)| next), Some(had.0));
    }

    #[test]
    fn what_is_given_back_or_lost_is_missing_again() {
        let work = ChunkQueue::new(CHUNK_BYTES * 4, CHUNK_BYTES, std::iter::empty(), 1);
        assert_eq!(work.claim(0), Some((0, 2)));
        work.write(0, 0);
        work.release(0);
        assert_eq!(work.claim(0), Some((1, 2)));
        work.write(0, 1);
        work.hold(&work.unsynced());
        work.lose(0);
        assert_eq!((work.claim(0), work.held_bytes()), (Some((0, 1)), CHUNK_BYTES));
    }

    #[test]
    fn what_is_left_to_who_is_near_is_claimed_by_nobody_and_comes_though_the_hub_fails() {
        let work = ChunkQueue::new(CHUNK_BYTES * 4, CHUNK_BYTES, [0].into_iter(), 1);
        work.begin_nearby();
        assert_eq!((work.left_to_nearby(), work.claim(0), work.ranges()), (vec![1, 2, 3], None, 0));
        work.free(1);
        assert_eq!((work.claim(0), work.ranges()), (Some((1, 2)), 1));
        work.fail(HubError::Cancelled);
        assert!(!work.is_over() && !work.is_wanted(0));
        work.write_given(2);
        work.end_nearby();
        assert!(work.is_over() && work.written() == [2] && !work.is_missing_after(Duration::ZERO));
    }

    #[test]
    fn what_somebody_near_is_to_bring_is_fetched_by_nobody_here_until_that_is_over() {
        let work = ChunkQueue::new(CHUNK_BYTES * 3, CHUNK_BYTES, [0].into_iter(), 1);
        work.begin_nearby();
        work.leave_elsewhere(2);
        work.pause_nearby();
        assert_eq!((work.claim(0), work.is_missing_after(Duration::ZERO)), (Some((1, 2)), true));
        let (held, coming) = work.bits();
        let bits: Vec<_> = (0..3).map(|index| (held.has(index), coming.has(index))).collect();
        assert_eq!(bits, [(true, false), (false, true), (false, false)]);
        work.write(0, 1);
        assert_eq!((work.claim(0), work.is_here(1), work.is_here(2)), (None, true, false));
        work.begin_nearby();
        assert_eq!(work.left_to_nearby(), [2]);
        work.leave_elsewhere(2);
        work.end_nearby();
        assert_eq!(work.claim(0), Some((2, 3)));
    }

    /// Of two fetchers of two chunks the first one took so long for its own, and the second one is
    /// silent for so long with its; of that it has this part.
    fn with_a_slow_one(took: Duration, silence: Duration, came: u64) -> ChunkQueue {
        with_a_slow_last(CHUNK_BYTES, took, silence, came)
    }

    /// The same where the second chunk has so many bytes.
    fn with_a_slow_last(last: u64, took: Duration, silence: Duration, came: u64) -> ChunkQueue {
        let work = ChunkQueue::new(CHUNK_BYTES + last, CHUNK_BYTES, std::iter::empty(), 2);
        assert_eq!((work.claim(0), work.claim(1)), (Some((0, 1)), Some((1, 2))));
        let now = Instant::now();
        work.state.lock().paces[0].ask(now - took);
        work.write(0, 0);
        work.receive(1, came);
        work.state.lock().paces[1].ask(now - silence);
        work
    }

    #[test]
    fn what_a_fetcher_brings_too_slowly_at_the_end_an_idle_one_brings_too_and_the_first_counts() {
        let (second, part) = (Duration::from_secs(1), CHUNK_BYTES / 10);
        assert_eq!(with_a_slow_one(second, 2 * second, 0).claim(0), None, "it is about as fast");
        assert_eq!(with_a_slow_one(second, 10 * second, 9 * part).claim(0), None, "it is nearly done");
        let work = with_a_slow_one(second, 10 * second, part);
        assert_eq!((work.claim(0), work.claimed(1)), (Some((1, 2)), Some((1, 2))));
        work.write(0, 1);
        assert_eq!((work.claimed(0), work.claimed(1), work.is_here(1)), (None, None, true));
        work.write(1, 1);
        work.hold(&work.unsynced());
        work.release(1);
        assert_eq!((work.held_bytes(), work.is_all_held()), (2 * CHUNK_BYTES, true), "it counts once");
        // And if the second one fails, the first goes on.
        let work = with_a_slow_one(second, 10 * second, part);
        work.claim(0);
        work.release(0);
        assert_eq!((work.ranges(), work.claimed(1)), (2, Some((1, 2))));
    }

    #[test]
    fn of_a_chunk_that_two_bring_what_has_come_counts_once_until_it_is_written_and_then_until_it_is_held() {
        let (second, part) = (Duration::from_secs(1), CHUNK_BYTES / 10);
        let work = with_a_slow_one(second, 10 * second, part);
        assert_eq!(work.coming_bytes(), CHUNK_BYTES + part, "the first is written");
        assert_eq!(work.claim(0), Some((1, 2)));
        work.receive(0, part / 2);
        assert_eq!(work.coming_bytes(), CHUNK_BYTES + part);
        work.receive(0, CHUNK_BYTES - part / 2);
        assert_eq!(work.coming_bytes(), 2 * CHUNK_BYTES, "it is being written");
        work.write(0, 1);
        assert_eq!((work.coming_bytes(), work.in_flight_bytes()), (2 * CHUNK_BYTES, 0));
        work.hold(&work.unsynced());
        assert_eq!((work.held_bytes(), work.coming_bytes()), (2 * CHUNK_BYTES, 0));
    }

    #[test]
    fn a_small_last_chunk_that_is_about_to_be_written_is_not_asked_for_again() {
        let (short, silence) = (Duration::from_millis(1), Duration::from_millis(10));
        assert_eq!(with_a_slow_last(17, short, silence, 17).claim(0), None, "all of it is here");
        assert_eq!(with_a_slow_one(2 * silence, silence, 17).claim(0), None, "it has just begun to come");
    }

    #[test]
    fn what_a_trickling_neighbour_has_the_hub_brings_from_the_end_and_the_other_way_round() {
        let work = ChunkQueue::new(CHUNK_BYTES * 4, CHUNK_BYTES, [0].into_iter(), 1);
        let long_ago = |seconds| Instant::now() - Duration::from_secs(seconds);
        work.begin_nearby();
        assert_eq!(work.claim(0), None);
        work.state.lock().nearby_pace.ask(long_ago(6));
        assert_eq!((work.claim(0), work.left_to_nearby()), (Some((3, 4)), vec![1, 2]));
        work.write(0, 3);
        assert_eq!(work.claim(0), Some((2, 3)));
        work.write_given(1);
        assert_eq!(work.left_to_nearby(), [0; 0]);
        // Now the hub is the one that trickles.
        work.state.lock().paces[0].ask(long_ago(20));
        assert_eq!((work.is_missing_after(Duration::ZERO), work.left_to_nearby()), (true, vec![2]));
        work.write_given(2);
        assert_eq!((work.claimed(0), work.is_here(2)), (None, true));
    }

    #[test]
    fn of_a_claim_the_middle_of_which_is_here_the_end_is_missing_again() {
        let work = ChunkQueue::new(CHUNK_BYTES * 8, CHUNK_BYTES, std::iter::empty(), 1);
        assert_eq!(work.claim(0), Some((0, 4)));
        work.note_here(&|index| index == 1);
        assert_eq!((work.claimed(0), work.is_here(1)), (Some((0, 1)), true));
        work.write(0, 0);
        assert_eq!(work.claim(0).map(|(next, _)| next), Some(2));
    }

    #[test]
    fn what_is_ended_because_the_work_is_over_is_no_failure_of_it() {
        let work = ChunkQueue::new(CHUNK_BYTES, CHUNK_BYTES, [0].into_iter(), 1);
        work.end(None);
        work.fail(HubError::Cancelled);
        assert!(work.take_failure().is_none());
    }

    #[test]
    fn what_a_fetcher_that_waits_for_long_has_not_begun_is_missing_and_what_it_has_claimed_no_promise() {
        let work = ChunkQueue::new(CHUNK_BYTES * 8, CHUNK_BYTES, std::iter::empty(), 1);
        let coming = || {
            let (_, coming) = work.bits();
            (0..8).filter(|index| coming.has(*index)).collect::<Vec<u32>>()
        };
        let is_quiet_for_long =
            || work.state.lock().quiet_since[0] = Instant::now().checked_sub(CLAIM_KEPT_MAX);
        assert_eq!(work.claim(0), Some((0, 4)));
        work.note_asked(0);
        work.hold_off(Duration::from_secs(60));
        assert_eq!((work.claim(0), work.claimed(0)), (None, Some((0, 4))));
        assert_eq!(coming(), [0, 1, 2, 3]);
        is_quiet_for_long();
        assert_eq!((work.claim(0), work.claimed(0)), (None, None));
        // It claims anew, and others wait for that once it comes.
        work.state.lock().not_before = None;
        work.note_asked(0);
        assert_eq!((work.claim(0), coming()), (Some((0, 4)), vec![]));
        work.receive(0, 1);
        assert_eq!(coming(), [0, 1, 2, 3]);
        // What it has begun stays its own where nothing answers, and who is near may bring that as well.
        is_quiet_for_long();
        work.wait_to_ask(0);
        assert_eq!((work.claimed(0), coming()), (Some((0, 1)), vec![]));
        work.begin_nearby();
        assert_eq!(work.left_to_nearby(), (1..8).collect::<Vec<u32>>());
        (1..8).for_each(|index| work.write_given(index));
        assert_eq!((work.is_missing_after(Duration::ZERO), work.left_to_nearby()), (true, vec![0]));
        work.write_given(0);
        assert_eq!((work.claimed(0), work.is_here(0)), (None, true));
    }

    #[test]
    fn a_wait_that_the_hub_asks_for_holds_for_all() {
        let work = ChunkQueue::new(CHUNK_BYTES * 2, CHUNK_BYTES, std::iter::empty(), 2);
        assert_eq!(work.hold_off(Duration::from_secs(60)).as_secs(), 60);
        assert_eq!(work.hold_off(Duration::from_secs(60)).as_secs(), 60, "both were told the same");
        assert_eq!((work.claim(0), work.fetchers()), (None, 1));
    }
}
