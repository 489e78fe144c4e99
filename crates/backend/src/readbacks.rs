//! What a stream of a graphics processor and its downloads share: programs whose faults were not sent for
//! yet, the memory that results go through, and results that no one waits for any more.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::RunError;
use crate::faults::{UnreportedFaults, device_fault};

/// Spare memory kept; more is only made while more downloads are on their way.
const SPARE_MAX: usize = 4;

/// A result on its way to the host, and the place in the queue behind it.
pub trait InFlight: Sized {
    /// Host memory that the device copies results to.
    type Staging;

    /// Bytes that such memory has room for.
    fn capacity_bytes(staging: &Self::Staging) -> u64;

    /// Whether it is there. `is_done`: the device is done with it, and word of that is a moment away at most.
    fn arrive(self, is_done: bool) -> Arrival<Self>;

    /// Nothing will ask for it any more.
    fn abandon(self) {}
}

/// What became of a result that no one waits for.
pub enum Arrival<F: InFlight> {
    /// The faults that came with it, [`FAULT_WORDS`](crate::FAULT_WORDS) a program, and its memory.
    Arrived(Vec<u32>, F::Staging),
    /// It is still on its way.
    Pending(F),
    /// It will never come.
    Lost,
}

/// The readbacks of one stream, by number; `P` is a compiled program.
pub struct ReadbackQueue<P, F: InFlight> {
    /// Programs that ran since faults were last sent for.
    unseen: Mutex<Vec<Arc<P>>>,
    /// Readbacks queued so far.
    queued: AtomicU64,
    /// Memory in which nothing is on its way.
    spare: Mutex<Vec<F::Staging>>,
    /// What no one waits for any more, by number.
    late: Mutex<Vec<(u64, F)>>,
    unreported: Mutex<UnreportedFaults>,
}

fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<P, F: InFlight> ReadbackQueue<P, F> {
    /// Remembers to look for faults that the kernels of `program` reported.
    pub fn look_at(&self, program: &Arc<P>) {
        let mut unseen = locked(&self.unseen);
        if !unseen.iter().any(|known| Arc::ptr_eq(known, program)) {
            unseen.push(Arc::clone(program));
        }
    }

    /// Programs whose faults the next readback brings.
    pub fn unseen(&self) -> Vec<Arc<P>> {
        locked(&self.unseen).clone()
    }

    /// Memory with room for `bytes`, if there is any to spare.
    pub fn spare(&self, bytes: u64) -> Option<F::Staging> {
        self.collect(0);
        let mut spare = locked(&self.spare);
        let fitting = spare.iter().position(|staging| F::capacity_bytes(staging) >= bytes);
        if fitting.is_none() {
            // The smaller ones make room for the one that serves both.
            spare.clear();
        }
        fitting.map(|fitting| spare.swap_remove(fitting))
    }

    /// The number of a readback that was queued with the faults of all unseen programs. Whatever runs one of
    /// them from now on has to look at it again.
    pub fn queued(&self) -> u64 {
        locked(&self.unseen).clear();
        self.queued.fetch_add(1, Ordering::Relaxed)
    }

    /// No one waits for readback `number` any more. What it brings is told with the next one.
    pub fn give_up(&self, number: u64, pending: F) {
        locked(&self.late).push((number, pending));
    }

    /// Readback `number` has arrived with `faults`. The error is the first fault that no one was told so far.
    pub fn arrived(&self, number: u64, faults: &[u32], staging: F::Staging) -> Result<(), RunError> {
        self.give_back(staging);
        self.collect(number);
        locked(&self.unreported).before(number).and(device_fault(faults))
    }

    /// Takes back what has arrived since. The device is done with readbacks before `done`.
    fn collect(&self, done: u64) {
        let mut late = locked(&self.late);
        for (number, pending) in std::mem::take(&mut *late) {
            match pending.arrive(number < done) {
                Arrival::Arrived(faults, staging) => {
                    locked(&self.unreported).note(number, &faults);
                    self.give_back(staging);
                }
                Arrival::Pending(pending) => late.push((number, pending)),
                Arrival::Lost => {}
            }
        }
    }

    fn give_back(&self, staging: F::Staging) {
        let mut spare = locked(&self.spare);
        if spare.len() < SPARE_MAX {
            spare.push(staging);
        }
    }
}

impl<P, F: InFlight> Default for ReadbackQueue<P, F> {
    fn default() -> Self {
        Self {
            unseen: Mutex::default(),
            queued: AtomicU64::default(),
            spare: Mutex::default(),
            late: Mutex::default(),
            unreported: Mutex::default(),
        }
    }
}

impl<P, F: InFlight> fmt::Debug for ReadbackQueue<P, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadbackQueue").field("queued", &self.queued).finish_non_exhaustive()
    }
}

impl<P, F: InFlight> Drop for ReadbackQueue<P, F> {
    fn drop(&mut self) {
        let late = std::mem::take(&mut *locked(&self.late));
        late.into_iter().for_each(|(_, pending)| pending.abandon());
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    /// Arrives once the device is done with it, with these faults.
    struct Fake {
        faults: [u32; 4],
        abandoned: Rc<Cell<u32>>,
    }

    impl InFlight for Fake {
        type Staging = u64;

        fn capacity_bytes(staging: &u64) -> u64 {
            *staging
        }

        fn arrive(self, is_done: bool) -> Arrival<Self> {
            match is_done {
                true => Arrival::Arrived(self.faults.to_vec(), 8),
                false => Arrival::Pending(self),
            }
        }

        fn abandon(self) {
            self.abandoned.set(self.abandoned.get() + 1);
        }
    }

    #[test]
    fn what_was_given_up_is_told_behind_it_and_its_memory_used_again() {
        let readbacks = ReadbackQueue::<(), Fake>::default();
        let abandoned = Rc::new(Cell::new(0));
        let result = |faults| Fake { faults, abandoned: Rc::clone(&abandoned) };
        let program = Arc::new(());
        readbacks.look_at(&program);
        readbacks.look_at(&program);
        assert_eq!(readbacks.unseen().len(), 1);
        let first = readbacks.queued();
        assert!(readbacks.unseen().is_empty());
        readbacks.give_up(first, result([1, 1, 30, 5]));
        assert_eq!(readbacks.spare(4), None, "it is still on its way");
        let second = readbacks.queued();
        let told = readbacks.arrived(second, &[0, 0, 0, 0], 4);
        assert!(matches!(told, Err(RunError::OutOfRange { value: 30, .. })), "{told:?}");
        assert_eq!(readbacks.spare(8), Some(8));
        assert_eq!(readbacks.spare(8), None, "the smaller one makes room");
        assert_eq!(readbacks.spare(4), None);
        readbacks.give_up(readbacks.queued(), result([0; 4]));
        drop(readbacks);
        assert_eq!(abandoned.get(), 1);
    }
}
