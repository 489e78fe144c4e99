//! Weights come to memory while they are used already: a device answers from the file at once and is as fast
//! as it will be within seconds ([`WeightRows::move_part`]).
//!
//! Threads of their own move them, in the order in which they were taken in, which is that of a step. There
//! are some only while there is something to move. They share the processor with steps as equals: niced by
//! 10, they took 13.5 s and not 1 for 1.2 GB beside a decode on one core, for a first token after 0.33 s and
//! not 0.47. Whoever drops a weight waits for the part at hand; so does whoever drops the device.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use exo_device::CoreList;

use crate::load::Places;
use crate::weight_rows::{Moved, WeightRows};

/// Threads at most: as many as fill the bandwidth of a processor, each with a part that memory holds twice.
const THREADS_MAX: usize = 8;

/// Moves weights. Dropping it ends its threads.
#[derive(Debug)]
pub(crate) struct Repacker {
    queue: Arc<Queue>,
    threads_max: usize,
    cores: Option<CoreList>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Queue {
    state: Mutex<QueueState>,
    /// Wakes threads that rest, at the end.
    ended: Condvar,
    places: Arc<Places>,
    /// After each part.
    rest: Duration,
}

#[derive(Debug, Default)]
struct QueueState {
    /// Weights, the first one next. One that was dropped is no one's.
    waiting: VecDeque<Weak<WeightRows>>,
    /// These, and those that are being moved.
    promised: Vec<Weak<WeightRows>>,
    threads: usize,
    /// Which cores are taken, in the order of the list.
    cores_taken: [bool; THREADS_MAX],
    is_over: bool,
}

impl Repacker {
    /// For a device of `threads` threads on these cores. A thread rests for `rest` after each part.
    pub(crate) fn new(places: Arc<Places>, threads: usize, cores: Option<CoreList>, rest: Duration) -> Self {
        let queue = Queue { state: Mutex::default(), ended: Condvar::new(), places, rest };
        let (queue, threads_max) = (Arc::new(queue), threads.min(THREADS_MAX));
        Self { queue, threads_max, cores, threads: Mutex::default() }
    }

    /// Moves `place` when those before it are moved. Where the system gives no thread, it is in memory when
    /// this returns.
    pub(crate) fn add(&self, place: &Arc<WeightRows>) {
        let core = {
            let mut state = self.queue.lock();
            state.waiting.push_back(Arc::downgrade(place));
            state.promised.retain(|place| place.strong_count() > 0);
            state.promised.push(Arc::downgrade(place));
            if state.threads == self.threads_max {
                return;
            }
            state.threads += 1;
            let free = state.cores_taken.iter().position(|is_taken| !is_taken).unwrap_or(0);
            state.cores_taken[free] = true;
            free
        };
        let (queue, cores) = (Arc::clone(&self.queue), self.cores.clone());
        let thread = std::thread::Builder::new().name(format!("exo-repack-{core}")).spawn(move || {
            // Refused where the cores were taken away meanwhile: then the thread runs where the system lets
            // it.
            let _refused = cores.map(|cores| cores.pin(core));
            queue.work(core);
        });
        let Ok(thread) = thread else { return self.queue.work(core) };
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
    }

    /// Memory that is taken for what is not moved yet, and not touched.
    pub(crate) fn promised_bytes(&self) -> u64 {
        let (mut state, mut sum) = (self.queue.lock(), 0);
        state.promised.retain(|place| {
            let waiting = place.upgrade().map_or(0, |place| place.unpacked_bytes());
            sum += waiting;
            waiting > 0
        });
        sum
    }
}

impl Drop for Repacker {
    fn drop(&mut self) {
        self.queue.lock().is_over = true;
        self.queue.ended.notify_all();
        let threads = self.threads.get_mut().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            let _ = thread.join(); // it catches what moving throws and has nothing else to say
        }
    }
}

impl Queue {
    /// Moves weights until there are none.
    fn work(&self, core: usize) {
        while let Some(place) = self.next(core) {
            while let Some(place) = place.upgrade() {
                let moved = catch_unwind(AssertUnwindSafe(|| place.move_part(&self.places)));
                if moved.is_err() {
                    place.fail(&self.places, "moving it to memory panicked; the log has the place");
                }
                drop(place);
                let is_over = self.rest();
                if is_over || !matches!(moved, Ok(Moved::Part)) {
                    break;
                }
            }
        }
    }

    /// The next weight. `None` ends the thread, which is not counted any more and leaves its core.
    fn next(&self, core: usize) -> Option<Weak<WeightRows>> {
        let mut state = self.lock();
        let next = if state.is_over { None } else { state.waiting.pop_front() };
        if next.is_none() {
            state.threads -= 1;
            state.cores_taken[core] = false;
        }
        next
    }

    /// Rests after a part. Says whether the end has come.
    fn rest(&self) -> bool {
        let rest = self.ended.wait_timeout_while(self.lock(), self.rest, |state| !state.is_over);
        rest.unwrap_or_else(PoisonError::into_inner).0.is_over
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
