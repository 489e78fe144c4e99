//! Where jobs are posted, claimed and reported.
//!
//! One word says which job is the newest (its *generation*) and how many workers sleep. Beside it stand two
//! job descriptions, used in turn, so that a worker which reads the previous one late never sees it half
//! overwritten.
//!
//! Each thread has a *slot* with the number of pieces claimed from its share, tagged with the generation.
//! Claiming is a compare-and-swap on that word by whoever wants a piece, and it is all a worker does to take
//! part: no one registers.
//!
//! Why a claimed piece's `work` is alive: the caller leaves a job only when all of its pieces are done. A
//! claim tagged with the job's own generation succeeds only while a piece of that share is unclaimed, hence
//! not done, hence the caller is still there. Once a share is claimed whole its tag is never older than the
//! job: a worker that comes late with an old description finds every share it knows of taken, or tagged by a
//! later job, and touches nothing.

use std::any::Any;
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::Thread;

use super::guarded;
use super::wait::{Patience, until};

/// Pieces of one share.
const SHARE_MAX: usize = (1 << COUNT_BITS) - 1;
/// Width of the count in a slot's word; the tag has the rest.
const COUNT_BITS: u32 = 24;

// The state word: two flags, the sleepers, the generation.
const END: u64 = 1;
const PANICKED: u64 = 1 << 1;
const SLEEPER: u64 = 1 << 4;
const GENERATION: u64 = 1 << COUNT_BITS;
const _: () =
    assert!((super::Pool::THREADS_MAX as u64) < GENERATION / SLEEPER, "sleepers must fit their bits");

/// A waking worker wakes two others, so that a crew is up after as many steps as its number has bits.
const WAKES: usize = 2;

/// Two cache lines: processors fetch them in pairs.
#[repr(align(128))]
struct CachePadded<T>(T);

pub(super) struct Dispatch {
    post: CachePadded<Post>,
    /// Pieces done by workers since the pool was made.
    done: CachePadded<AtomicU64>,
    /// One per thread; the caller's is the first.
    slots: Box<[CachePadded<ThreadSlot>]>,
    /// The first of a job.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

struct Post {
    state: AtomicU64,
    jobs: [Description; 2],
}

/// A job as others may read it while it changes.
struct Description {
    pieces: AtomicUsize,
    work: AtomicPtr<()>,
    call: AtomicPtr<()>,
}

struct ThreadSlot {
    /// The tag above, pieces claimed below.
    claimed: AtomicU64,
    /// Set by the worker before it sleeps, cleared by whoever wakes it.
    asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

/// A job that was read whole.
pub(super) struct PoolJob {
    generation: u64,
    pieces: usize,
    work: *const (),
    call: Call,
}

/// Calls the closure behind the pointer with the number of a piece.
type Call = unsafe fn(*const (), usize);

impl Dispatch {
    pub(super) fn new(threads: usize) -> Self {
        let slot = || {
            let (claimed, asleep) = (AtomicU64::new(0), AtomicBool::new(false));
            CachePadded(ThreadSlot { claimed, asleep, thread: OnceLock::new() })
        };
        let none = || AtomicPtr::new(std::ptr::null_mut());
        let job = || Description { pieces: AtomicUsize::new(0), work: none(), call: none() };
        Self {
            post: CachePadded(Post { state: AtomicU64::new(0), jobs: [job(), job()] }),
            done: CachePadded(AtomicU64::new(0)),
            slots: (0..threads).map(|_| slot()).collect(),
            panic: Mutex::new(None),
        }
    }

    pub(super) fn threads(&self) -> usize {
        self.slots.len()
    }

    /// Posts a job and wakes sleepers. Only by the thread whose turn it is, which must stay until all is
    /// done.
    pub(super) fn publish<F: Fn(usize) + Sync>(&self, generation: u64, pieces: usize, work: &F) -> PoolJob {
        /// # Safety
        /// `work` is a `&F` that is alive.
        unsafe fn call<F: Fn(usize)>(work: *const (), piece: usize) {
            // SAFETY: the caller's promise.
            unsafe { (*work.cast::<F>())(piece) }
        }
        assert!(pieces / self.threads() < SHARE_MAX, "{pieces} pieces are too many: make them larger");
        let job = PoolJob { generation, pieces, work: (&raw const *work).cast(), call: call::<F> };
        let Post { state, jobs } = &self.post.0;
        let slot = &jobs[(generation & 1) as usize];
        // A reader that sees one of the following stores also sees the generation posted before this one, and
        // so knows that the description it was reading is gone.
        fence(Ordering::Release);
        slot.pieces.store(pieces, Ordering::Relaxed);
        slot.work.store(job.work.cast_mut(), Ordering::Relaxed);
        slot.call.store(job.call as *mut (), Ordering::Relaxed);
        // Release: what the job reads. Acquire: which workers sleep.
        let before = state.fetch_add(GENERATION, Ordering::AcqRel);
        if sleepers(before) > 0 {
            self.wake(WAKES);
        }
        job
    }

    /// The description of job `generation`, unless it is over.
    pub(super) fn read(&self, generation: u64) -> Option<PoolJob> {
        let Post { state, jobs } = &self.post.0;
        let slot = &jobs[(generation & 1) as usize];
        let pieces = slot.pieces.load(Ordering::Relaxed);
        let work = slot.work.load(Ordering::Relaxed);
        let call = slot.call.load(Ordering::Relaxed);
        // With the fence in `publish`: had one of these loads seen a later description, the next one sees a
        // later generation.
        fence(Ordering::Acquire);
        if generation_of(state.load(Ordering::Relaxed)) != generation & (u64::MAX >> COUNT_BITS) {
            return None;
        }
        // SAFETY: the three belong together, and `publish` stored a `Call` here.
        let call = unsafe { std::mem::transmute::<*mut (), Call>(call) };
        Some(PoolJob { generation, pieces, work, call })
    }

    /// Works on `job` until every piece is claimed: first this slot's share, then the others'. Returns how
    /// many pieces this thread did.
    ///
    /// # Safety
    /// `job` is as [`Dispatch::publish`] or [`Dispatch::read`] gave it, and its caller returns only when all
    /// pieces are done.
    pub(super) unsafe fn take_part(&self, slot: usize, job: &PoolJob) -> u64 {
        let done = Cell::new(0);
        let work = || {
            for owner in (slot..self.threads()).chain(0..slot) {
                while let Some(piece) = self.claim(owner, job) {
                    done.set(done.get() + 1);
                    // SAFETY: the piece is claimed and not reported, so the caller is still there: see above.
                    unsafe { (job.call)(job.work, piece) }
                }
            }
        };
        // After a panic the rest goes on: every piece runs, and counts.
        while let Err(panic) = guarded(work) {
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            self.post.0.state.fetch_or(PANICKED, Ordering::Relaxed);
        }
        done.get()
    }

    /// The next piece of the share of `owner`, if there is one.
    fn claim(&self, owner: usize, job: &PoolJob) -> Option<usize> {
        let share = share(job.pieces, owner, self.threads());
        if share.is_empty() {
            return None;
        }
        let word = &self.slots[owner].0.claimed;
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            let taken = match job.age_of(seen >> COUNT_BITS) {
                0 => seen as usize & SHARE_MAX,
                1.. => 0,
                ..0 => return None,
            };
            if taken == share.len() {
                return None;
            }
            let next = job.generation << COUNT_BITS | (taken + 1) as u64;
            match word.compare_exchange_weak(seen, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(share.start + taken),
                Err(now) => seen = now,
            }
        }
    }

    /// A worker did `pieces` pieces; the caller may see their results.
    pub(super) fn report(&self, pieces: u64) {
        if pieces > 0 {
            self.done.0.fetch_add(pieces, Ordering::Release);
        }
    }

    /// Waits until workers have done `pieces` pieces since the pool was made.
    pub(super) fn wait_done(&self, pieces: u64) {
        until(|| self.done.0.load(Ordering::Acquire) == pieces);
    }

    /// What a piece of the last job threw.
    pub(super) fn take_panic(&self) -> Option<Box<dyn Any + Send>> {
        let state = &self.post.0.state;
        if state.load(Ordering::Relaxed) & PANICKED == 0 {
            return None;
        }
        state.fetch_and(!PANICKED, Ordering::Relaxed);
        self.panic.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Waits for a job newer than `seen`: awake for as long as `patience` says, then asleep. `None` when the
    /// pool ends.
    pub(super) fn next_job(&self, slot: usize, seen: u64, patience: Patience) -> Option<u64> {
        let state = &self.post.0.state;
        loop {
            let mut word = 0;
            let is_news = patience.watch(|| {
                word = state.load(Ordering::Acquire);
                word & END != 0 || generation_of(word) != seen
            });
            if !is_news {
                self.sleep(slot, seen);
                continue;
            }
            return (word & END == 0).then_some(generation_of(word));
        }
    }

    /// Sleeps until a job newer than `seen` or the end is posted.
    fn sleep(&self, slot: usize, seen: u64) {
        let (state, slot) = (&self.post.0.state, &self.slots[slot].0);
        slot.thread.get_or_init(std::thread::current);
        slot.asleep.store(true, Ordering::Relaxed);
        // Counted only if nothing has happened; whoever posts next then sees the count, and with it the flag.
        let count = |word: u64| (word & END == 0 && generation_of(word) == seen).then_some(word + SLEEPER);
        if state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, count).is_err() {
            slot.asleep.store(false, Ordering::Relaxed);
            return;
        }
        while slot.asleep.load(Ordering::Acquire) {
            std::thread::park();
        }
        let before = state.fetch_sub(SLEEPER, Ordering::AcqRel);
        if sleepers(before) > 1 {
            self.wake(WAKES);
        }
    }

    /// Wakes up to `count` sleepers.
    fn wake(&self, count: usize) {
        let asleep = |slot: &&CachePadded<ThreadSlot>| {
            let flag = &slot.0.asleep;
            flag.load(Ordering::Relaxed) && flag.swap(false, Ordering::AcqRel)
        };
        for slot in self.slots.iter().filter(asleep).take(count) {
            if let Some(thread) = slot.0.thread.get() {
                thread.unpark();
            }
        }
    }

    pub(super) fn end(&self) {
        self.post.0.state.fetch_or(END, Ordering::AcqRel);
        self.wake(usize::MAX);
    }
}

impl PoolJob {
    /// How many generations ago `tag` was, negative for one still to come. Wrong only for a share that no job
    /// has touched for 2^39 jobs: 15 hours of nothing but empty jobs with fewer pieces than threads.
    fn age_of(&self, tag: u64) -> i64 {
        (self.generation.wrapping_sub(tag) << COUNT_BITS) as i64
    }
}

fn generation_of(state: u64) -> u64 {
    state >> COUNT_BITS
}

fn sleepers(state: u64) -> u64 {
    (state % GENERATION) / SLEEPER
}

/// The pieces that belong to slot `owner`: neighbours, and as many as everybody else's.
fn share(pieces: usize, owner: usize, threads: usize) -> Range<usize> {
    let bound = |slot: usize| (pieces as u128 * slot as u128 / threads as u128) as usize;
    bound(owner)..bound(owner + 1)
}
