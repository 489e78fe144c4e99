//! The threads that compute: fork and join many thousand times a second, and silence in between.
//!
//! A forward pass is a few hundred pieces of parallel work of 1 µs to 10 ms with a few microseconds between
//! them. Waking a sleeping thread takes 25 to 60 µs, so workers watch for the next job for up to 50 µs
//! ([`wait`]), then sleep. The calling thread takes part. A job is a number of pieces; each thread has a
//! share of neighbouring pieces (one stream of memory per thread), and whoever is done takes pieces from the
//! shares of others. So a thread that sleeps or was preempted holds up no one but by the one piece it is in,
//! and which thread ran a piece never shows in a result.
//!
//! Workers are pinned, one to a core, only where the user named the cores: unnamed, the workers of two nodes
//! would be pinned to the same ones (decision 0027).
//!
//! **Invariant:** a piece never uses a pool: [`Pool::turn`] refuses it.
//!
//! Start reading at [`PoolGuard::run`], then `dispatch`.

mod dispatch;
mod wait;

use std::any::Any;
use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use dispatch::Dispatch;
use exo_device::CoreList;
use wait::Patience;

thread_local! {
    /// Whether this thread is inside a piece, of whichever pool.
    static IN_PIECE: Cell<bool> = const { Cell::new(false) };
}

/// Worker threads that wait for jobs. Dropping it ends them.
pub(crate) struct Pool {
    dispatch: Arc<Dispatch>,
    workers: Vec<JoinHandle<()>>,
    /// What the thread whose turn it is keeps count of.
    turn: Mutex<Books>,
}

/// Jobs so far.
#[derive(Default)]
struct Books {
    generation: u64,
    /// Pieces that workers (not callers) have done since the pool was made.
    done_by_workers: u64,
}

/// Exclusive use of a pool's workers. Neither `Send` nor `Sync`, so that no piece can use it.
pub(crate) struct PoolGuard<'a> {
    dispatch: &'a Dispatch,
    books: std::cell::RefCell<MutexGuard<'a, Books>>,
    _not_sync: PhantomData<*const ()>,
}

impl Pool {
    /// Threads of one pool: more than any machine has cores, and what the dispatch can count.
    pub(crate) const THREADS_MAX: usize = 1024;

    /// `threads` threads with the caller among them: starts one less. Where `cores` are given each is kept to
    /// one of them, the caller excepted: several streams may call. Fails if the system gives no thread.
    /// Panics unless `threads` is from 1 to [`Pool::THREADS_MAX`].
    pub(crate) fn new(threads: usize, cores: Option<CoreList>) -> io::Result<Self> {
        assert!((1..=Self::THREADS_MAX).contains(&threads), "a pool of {threads} threads");
        let dispatch = Arc::new(Dispatch::new(threads));
        let mut pool = Self { dispatch, workers: Vec::new(), turn: Mutex::default() };
        let patience = Patience { crowded: threads > exo_device::cores() };
        for slot in 1..threads {
            let dispatch = Arc::clone(&pool.dispatch);
            let builder = std::thread::Builder::new().name(format!("exo-cpu-{slot}"));
            let cores = cores.clone();
            pool.workers.push(builder.spawn(move || {
                // Refused where the cores were taken away meanwhile: then the thread runs where the system
                // lets it.
                let _refused = cores.map(|cores| cores.pin(slot));
                work(&dispatch, slot, patience);
            })?);
        }
        Ok(pool)
    }

    /// Threads that take part in a job.
    pub(crate) fn threads(&self) -> usize {
        self.dispatch.threads()
    }

    /// Waits until no one else uses the workers. Panics inside a piece: it would wait for itself.
    pub(crate) fn turn(&self) -> PoolGuard<'_> {
        assert!(!IN_PIECE.get(), "a piece of parallel work asked for a pool");
        // A piece that panicked left the books in order: see `PoolGuard::run`.
        let books = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        PoolGuard { dispatch: &self.dispatch, books: books.into(), _not_sync: PhantomData }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.dispatch.end();
        for worker in self.workers.drain(..) {
            let _ = worker.join(); // it catches what a piece throws and has nothing else to say
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} threads)", self.threads())
    }
}

impl PoolGuard<'_> {
    /// Threads that take part in a job.
    pub(crate) fn threads(&self) -> usize {
        self.dispatch.threads()
    }

    /// Calls `work(i)` once for each `i` below `pieces`, on all threads, and returns when all are done.
    ///
    /// A piece should be worth a microsecond or more (64 KiB of weights are); neighbouring pieces should read
    /// neighbouring memory. A panic in a piece is raised here when no other piece runs any more.
    pub(crate) fn run<F: Fn(usize) + Sync>(&self, pieces: usize, work: &F) {
        let _inside = Inside::enter();
        if pieces < 2 || self.dispatch.threads() == 1 {
            return (0..pieces).for_each(work);
        }
        let mut books = self.books.borrow_mut();
        books.generation += 1;
        let job = self.dispatch.publish(books.generation, pieces, work);
        // SAFETY: `work` lives until this function returns, which is after all pieces are done: `take_part`
        // returns when all are claimed, panics included, and `wait_done` when those the workers claimed are
        // done.
        let mine = unsafe { self.dispatch.take_part(0, &job) };
        books.done_by_workers = books.done_by_workers.wrapping_add(pieces as u64 - mine);
        self.dispatch.wait_done(books.done_by_workers);
        drop(books);
        if let Some(panic) = self.dispatch.take_panic() {
            resume_unwind(panic);
        }
    }

    /// Calls `work(i, chunk)` for each run of `chunk_len` elements of `data`, the last one possibly shorter.
    pub(crate) fn chunks_mut<T, F>(&self, data: &mut [T], chunk_len: usize, work: F)
    where
        T: Send,
        F: Fn(usize, &mut [T]) + Sync,
    {
        assert!(chunk_len > 0, "chunks of no elements");
        let (len, start) = (data.len(), SendPtr::new(data));
        self.run(len.div_ceil(chunk_len), &|i| {
            let first = i * chunk_len;
            let count = chunk_len.min(len - first);
            // SAFETY: pieces are numbered once each and `first < len`, so these are `count` elements of
            // `data` that no other piece touches; `data` is borrowed mutably until every piece is done, and
            // `T: Send` lets another thread have it.
            work(i, unsafe { std::slice::from_raw_parts_mut(start.get().add(first), count) });
        });
    }
}

/// A pointer that pieces may take to their threads; each keeps to its own elements.
pub(crate) struct SendPtr<T>(*mut T);

// SAFETY: using the pointer is unsafe, and whoever does keeps pieces to elements of their own.
unsafe impl<T: Send> Sync for SendPtr<T> {}

impl<T> SendPtr<T> {
    /// To the first element.
    pub(crate) fn new(data: &mut [T]) -> Self {
        Self(data.as_mut_ptr())
    }

    /// A method, so that closures capture the whole pointer and not its field.
    pub(crate) fn get(&self) -> *mut T {
        self.0
    }
}

/// Marks this thread as inside a piece, until dropped.
struct Inside;

impl Inside {
    fn enter() -> Self {
        IN_PIECE.set(true);
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        IN_PIECE.set(false);
    }
}

/// The life of a worker.
fn work(dispatch: &Dispatch, slot: usize, patience: Patience) {
    let _inside = Inside::enter();
    let mut seen = 0;
    while let Some(generation) = dispatch.next_job(slot, seen, patience) {
        seen = generation;
        if let Some(job) = dispatch.read(generation) {
            // SAFETY: `job` was read whole, so a piece that can still be claimed keeps its caller waiting.
            let done = unsafe { dispatch.take_part(slot, &job) };
            dispatch.report(done);
        }
    }
}

/// Runs `work` and keeps what it throws.
fn guarded(work: impl FnOnce()) -> Result<(), Box<dyn Any + Send>> {
    catch_unwind(AssertUnwindSafe(work))
}

#[cfg(test)]
mod tests;
