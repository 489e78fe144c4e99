//! Results on their way from the card, and places in the queue to wait for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use exo_backend::{Download, RunError, UnreportedFaults, device_fault};

use crate::api::{Call, CallError};
use crate::driver::{DeviceMemory, Pinned};
use crate::inner::DeviceInner;
use crate::program::{FAULT_BYTES, Inner};
use crate::queue::{Marker, Queue};

/// Spare memory kept; more is only made while more downloads are on their way.
const SPARE_MAX: usize = 4;

/// What a stream and its downloads share.
#[derive(Default, Debug)]
pub(crate) struct ReadbackQueue {
    /// Programs that ran since faults were last sent for.
    unseen: Mutex<Vec<Arc<Inner>>>,
    /// Readbacks queued so far.
    queued: AtomicU64,
    /// What the card copies results to, when nothing is on its way in it.
    spare: Mutex<Vec<Pinned>>,
    /// Where results are on their way to that no one waits for any more: the card may still write there.
    late: Mutex<Vec<PendingReadback>>,
    unreported: Mutex<UnreportedFaults>,
}

/// Where results are on their way to, and the place in the queue behind them.
#[derive(Debug)]
struct PendingReadback {
    /// Of the stream's readbacks.
    number: u64,
    memory: Pinned,
    end: Marker,
    /// Bytes asked for; the faults that kernels reported lie behind them.
    wanted: usize,
    /// Whose kernels.
    programs: Vec<Arc<Inner>>,
}

impl PendingReadback {
    /// What came with the bytes, once the end is reached.
    fn fault_words(&self) -> Vec<u32> {
        let mut bytes = vec![0; FAULT_BYTES as usize * self.programs.len()];
        self.memory.read(&mut bytes, self.wanted);
        bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
    }
}

impl Drop for ReadbackQueue {
    fn drop(&mut self) {
        let is_pending = |pending: &PendingReadback| !pending.end.is_done().unwrap_or(false);
        let late = std::mem::take(&mut *locked(&self.late));
        // No one asks any more, so no one will know when it is safe to give these back.
        late.into_iter().filter(is_pending).for_each(|pending| std::mem::forget(pending.memory));
    }
}

fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ReadbackQueue {
    /// Remembers to look for faults that the kernels of `program` reported.
    pub(crate) fn look_at(&self, program: &Arc<Inner>) {
        let mut unseen = locked(&self.unseen);
        if !unseen.iter().any(|known| Arc::ptr_eq(known, program)) {
            unseen.push(Arc::clone(program));
        }
    }

    fn memory(&self, device: &DeviceInner, bytes: usize) -> Call<Pinned> {
        self.collect();
        let mut spare = locked(&self.spare);
        if let Some(fitting) = spare.iter().position(|memory| memory.bytes >= bytes) {
            return Ok(spare.swap_remove(fitting));
        }
        // The smaller ones make room for the one that serves both.
        spare.clear();
        device.context.pinned(bytes.next_power_of_two())
    }

    /// Takes back what has completed since, and notes what no one was told.
    fn collect(&self) {
        let mut late = locked(&self.late);
        let all = std::mem::take(&mut *late);
        let (completed, others): (Vec<_>, _) =
            all.into_iter().partition(|pending| pending.end.is_done().unwrap_or(false));
        *late = others;
        for pending in completed {
            locked(&self.unreported).note(pending.number, &pending.fault_words());
            self.give_back(pending.memory);
        }
    }

    fn give_back(&self, memory: Pinned) {
        let mut spare = locked(&self.spare);
        if spare.len() < SPARE_MAX {
            spare.push(memory);
        }
    }
}

/// Bytes on their way, and the faults that kernels reported until then.
#[derive(Debug)]
pub(crate) struct Readback {
    device: Arc<DeviceInner>,
    readbacks: Arc<ReadbackQueue>,
    /// `None` once they have arrived.
    pending: Option<PendingReadback>,
    /// Bytes asked for.
    wanted: u64,
}

impl Readback {
    /// Queues copies of `parts` (memory, byte, bytes) and of faults that kernels reported since the one
    /// before. Behind its copy their place is cleared: the faults of what runs from now on come with the
    /// readback that is queued next.
    pub(crate) fn queue(
        device: &Arc<DeviceInner>,
        readbacks: &Arc<ReadbackQueue>,
        queue: &Queue,
        parts: &[(&DeviceMemory, u64, u64)],
    ) -> Result<Self, RunError> {
        device.context.check()?;
        let lost = |error: CallError| device.context.lost_run(&error);
        let programs = locked(&readbacks.unseen).clone();
        let wanted: u64 = parts.iter().map(|(_, _, bytes)| bytes).sum();
        let total = wanted + FAULT_BYTES * programs.len() as u64;
        let mut memory = readbacks.memory(device, total as usize).map_err(lost)?;
        let faults = programs.iter().map(|program| (&program.fault, 0, FAULT_BYTES));
        let mut to = 0;
        let copied = parts.iter().copied().chain(faults).try_for_each(|(from, at, bytes)| {
            let copied = queue.download(from, at, &mut memory, to, bytes);
            to += bytes as usize;
            copied
        });
        let cleared = copied.and_then(|()| {
            programs.iter().try_for_each(|program| queue.clear(&program.fault, 0, FAULT_BYTES))
        });
        let end = match cleared.and_then(|()| queue.mark()) {
            Ok(end) => end,
            Err(error) => {
                // Some of the copies may be under way.
                std::mem::forget(memory);
                return Err(lost(error));
            }
        };
        // Whoever runs one of them from now on puts it there again.
        locked(&readbacks.unseen).clear();
        let number = readbacks.queued.fetch_add(1, Ordering::Relaxed);
        let pending = PendingReadback { number, memory, end, wanted: wanted as usize, programs };
        Ok(Self {
            device: Arc::clone(device),
            readbacks: Arc::clone(readbacks),
            pending: Some(pending),
            wanted,
        })
    }

    /// Waits and gives the bytes. A fault that a kernel reported is the error.
    pub(crate) fn wait(mut self, deadline: Duration) -> Result<Vec<u8>, RunError> {
        let lost = |device: &DeviceInner, error: CallError| device.context.lost_run(&error);
        let Some(pending) = self.pending.take() else { return Ok(Vec::new()) };
        let waited = pending.end.wait(deadline);
        if !matches!(waited, Ok(true)) {
            self.pending = Some(pending);
            waited.map_err(|error| lost(&self.device, error))?;
            return Err(RunError::Deadline { waited_ms: deadline.as_millis() as u64 });
        }
        let mut bytes = vec![0; pending.wanted];
        pending.memory.read(&mut bytes, 0);
        let (number, own) = (pending.number, device_fault(&pending.fault_words()));
        self.readbacks.give_back(pending.memory);
        self.readbacks.collect();
        locked(&self.readbacks.unreported).before(number).and(own).map(|()| bytes)
    }
}

impl Drop for Readback {
    /// What is on its way arrives, and the faults that kernels reported are told with the next readback.
    fn drop(&mut self) {
        locked(&self.readbacks.late).extend(self.pending.take());
    }
}

impl Download for Readback {
    fn finish(self: Box<Self>, into: &mut [f32], deadline: Duration) -> Result<(), RunError> {
        assert!(self.wanted == size_of_val(into) as u64, "{} bytes were asked for", self.wanted);
        let bytes = self.wait(deadline)?;
        bytemuck::cast_slice_mut(into).copy_from_slice(&bytes);
        Ok(())
    }
}
