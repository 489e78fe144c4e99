//! Results on their way from the card, and places in the queue to wait for.

use std::sync::Arc;
use std::time::Duration;

use exo_backend::{Arrival, Download, InFlight, RunError};

use crate::api::CallError;
use crate::driver::{DeviceMemory, Pinned};
use crate::inner::DeviceInner;
use crate::program::{FAULT_BYTES, Inner};
use crate::queue::{Marker, Queue};

/// What a stream and its downloads share.
pub(crate) type ReadbackQueue = exo_backend::ReadbackQueue<Inner, PendingReadback>;

/// Where results are on their way to, and the place in the queue behind them.
#[derive(Debug)]
pub(crate) struct PendingReadback {
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

impl InFlight for PendingReadback {
    type Staging = Pinned;

    fn capacity_bytes(memory: &Pinned) -> u64 {
        memory.bytes as u64
    }

    fn arrive(self, _is_done: bool) -> Arrival<Self> {
        match self.end.is_done() {
            Ok(true) => Arrival::Arrived(self.fault_words(), self.memory),
            _ => Arrival::Pending(self),
        }
    }

    /// The card may still write there, and from now on nothing learns when it is done.
    fn abandon(self) {
        if !self.end.is_done().unwrap_or(false) {
            std::mem::forget(self.memory);
        }
    }
}

/// Bytes on their way, and the faults that kernels reported until then.
#[derive(Debug)]
pub(crate) struct Readback {
    device: Arc<DeviceInner>,
    readbacks: Arc<ReadbackQueue>,
    /// Which of the stream's readbacks it is.
    number: u64,
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
        let programs = readbacks.unseen();
        let wanted: u64 = parts.iter().map(|(_, _, bytes)| bytes).sum();
        let total = wanted + FAULT_BYTES * programs.len() as u64;
        let new = || device.context.pinned((total as usize).next_power_of_two());
        let mut memory = readbacks.spare(total).map_or_else(new, Ok).map_err(lost)?;
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
        let pending = PendingReadback { memory, end, wanted: wanted as usize, programs };
        let (number, device, readbacks) = (readbacks.queued(), Arc::clone(device), Arc::clone(readbacks));
        Ok(Self { device, readbacks, number, pending: Some(pending), wanted })
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
        self.readbacks.arrived(self.number, &pending.fault_words(), pending.memory).map(|()| bytes)
    }
}

impl Drop for Readback {
    /// What is on its way arrives, and the faults that kernels reported are told with the next readback.
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.readbacks.give_up(self.number, pending);
        }
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
