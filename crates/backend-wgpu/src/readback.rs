//! Results on their way from the device, and places in the queue to wait for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use exo_backend::{Download, FAULT_WORDS, RunError, UnreportedFaults, device_fault};

use crate::inner::DeviceInner;
use crate::program::Inner;

/// Spare buffers kept; more are only made while more downloads are on their way.
const SPARE_MAX: usize = 4;
/// For the word that something has arrived which the device is done with: another thread may be about to give
/// it.
const WORD_MAX: Duration = Duration::from_millis(100);

/// What a stream and its downloads share.
#[derive(Default, Debug)]
pub(crate) struct ReadbackQueue {
    /// Programs that ran since faults were last sent for.
    unseen: Mutex<Vec<Arc<Inner>>>,
    /// Readbacks queued so far.
    queued: AtomicU64,
    /// Buffers that the device copies results to, when nothing is on its way in them.
    spare: Mutex<Vec<wgpu::Buffer>>,
    /// What no one waits for any more.
    late: Mutex<Vec<PendingReadback>>,
    unreported: Mutex<UnreportedFaults>,
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

    fn staging(&self, device: &DeviceInner, bytes: u64) -> Result<wgpu::Buffer, RunError> {
        self.collect(0);
        let mut spare = locked(&self.spare);
        if let Some(fitting) = spare.iter().position(|buffer| buffer.size() >= bytes) {
            return Ok(spare.swap_remove(fitting));
        }
        // The smaller ones make room for the one that serves both.
        spare.clear();
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        Ok(device.memory.raw("results on their way", bytes.max(8).next_power_of_two(), usage)?)
    }

    /// Takes back what has completed since, and notes what no one was told. The device is done with readbacks
    /// before `done`.
    fn collect(&self, done: u64) {
        let mut late = locked(&self.late);
        for pending in std::mem::take(&mut *late) {
            let patience = if pending.number < done { WORD_MAX } else { Duration::ZERO };
            match pending.bytes(patience) {
                Ok(bytes) => {
                    let words: Vec<u32> = bytemuck::pod_collect_to_vec(&bytes[pending.wanted..]);
                    locked(&self.unreported).note(pending.number, &words);
                    self.give_back(pending.staging);
                }
                Err(Missing::Yet) => late.push(pending),
                Err(Missing::ForEver(reason)) => {
                    tracing::debug!(reason, "a result was lost that nobody wanted")
                }
            }
        }
    }

    fn give_back(&self, staging: wgpu::Buffer) {
        let mut spare = locked(&self.spare);
        if spare.len() < SPARE_MAX {
            spare.push(staging);
        }
    }
}

/// Where results are on their way to, and the place in the queue behind them.
#[derive(Debug)]
struct PendingReadback {
    /// Of the stream's readbacks.
    number: u64,
    staging: wgpu::Buffer,
    /// Bytes asked for; the faults that kernels reported lie behind them.
    wanted: usize,
    total: usize,
    /// Bytes mapped, whole words of eight.
    mapped: u64,
    submitted: wgpu::SubmissionIndex,
    told: mpsc::Receiver<Result<(), wgpu::BufferAsyncError>>,
}

/// Why there are no bytes.
enum Missing {
    Yet,
    ForEver(String),
}

impl PendingReadback {
    /// What was asked for and the faults, if the driver says within `patience` that they are there. Once.
    fn bytes(&self, patience: Duration) -> Result<Vec<u8>, Missing> {
        let lost = |reason: &dyn std::error::Error| Missing::ForEver(reason.to_string());
        let told = self.told.recv_timeout(patience).map_err(|error| match error {
            RecvTimeoutError::Timeout => Missing::Yet,
            RecvTimeoutError::Disconnected => lost(&error),
        })?;
        told.map_err(|error| lost(&error))?;
        let range = self.staging.slice(..self.mapped).get_mapped_range().map_err(|error| lost(&error))?;
        let bytes = range[..self.total].to_vec();
        drop(range);
        self.staging.unmap();
        Ok(bytes)
    }
}

/// Bytes on their way, and the faults that kernels reported until then.
pub(crate) struct Readback {
    device: Arc<DeviceInner>,
    readbacks: Arc<ReadbackQueue>,
    /// `None` once they have arrived.
    pending: Option<PendingReadback>,
    /// Bytes asked for.
    wanted: u64,
}

impl Readback {
    /// Queues copies of `parts` (buffer, byte, bytes) and of faults that kernels reported since the one
    /// before. Behind its copy their place is cleared: the faults of what runs from now on come with the
    /// readback that is queued next.
    pub(crate) fn queue(
        device: &Arc<DeviceInner>,
        readbacks: &Arc<ReadbackQueue>,
        parts: &[(&wgpu::Buffer, u64, u64)],
    ) -> Result<Self, RunError> {
        device.memory.health.check_run()?;
        let programs = locked(&readbacks.unseen).clone();
        let wanted: u64 = parts.iter().map(|(_, _, bytes)| bytes).sum();
        let fault_bytes = 4 * FAULT_WORDS as u64;
        let total = wanted + fault_bytes * programs.len() as u64;
        let staging = readbacks.staging(device, total)?;
        let faults = programs.iter().map(|program| (&program.fault, 0, fault_bytes));
        let submitted = device.queue.submit(|encoder| {
            let mut to = 0;
            for (from, at, bytes) in parts.iter().copied().chain(faults) {
                if bytes > 0 {
                    encoder.copy_buffer_to_buffer(from, at, &staging, to, bytes);
                }
                to += bytes;
            }
            programs.iter().for_each(|program| encoder.clear_buffer(&program.fault, 0, None));
        });
        device.queue.count_read(total);
        let (tell, told) = mpsc::channel();
        let mapped = total.max(8).next_multiple_of(8).min(staging.size());
        staging.slice(..mapped).map_async(wgpu::MapMode::Read, move |result| {
            let _ = tell.send(result); // no one listens once the stream is gone
        });
        // Whoever runs one of them from now on puts it there again.
        locked(&readbacks.unseen).clear();
        let (number, total) = (readbacks.queued.fetch_add(1, Ordering::Relaxed), total as usize);
        let pending =
            PendingReadback { number, staging, wanted: wanted as usize, total, mapped, submitted, told };
        let (device, readbacks) = (Arc::clone(device), Arc::clone(readbacks));
        Ok(Self { device, readbacks, pending: Some(pending), wanted })
    }

    /// Waits and gives the bytes. A fault that a kernel reported is the error.
    pub(crate) fn wait(mut self, deadline: Duration) -> Result<Vec<u8>, RunError> {
        let Some(pending) = self.pending.take() else { return Ok(Vec::new()) };
        let mut bytes = match arrived(&self.device, &pending, deadline) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.pending = Some(pending);
                return Err(error);
            }
        };
        let own = device_fault(&bytemuck::pod_collect_to_vec(&bytes.split_off(pending.wanted)));
        self.readbacks.give_back(pending.staging);
        self.readbacks.collect(pending.number);
        locked(&self.readbacks.unreported).before(pending.number).and(own).map(|()| bytes)
    }
}

impl Drop for Readback {
    /// What is on its way arrives, and the faults that kernels reported are told with the next readback.
    fn drop(&mut self) {
        locked(&self.readbacks.late).extend(self.pending.take());
    }
}

/// Waits for what is on its way.
fn arrived(device: &DeviceInner, pending: &PendingReadback, deadline: Duration) -> Result<Vec<u8>, RunError> {
    let (started, health) = (Instant::now(), &device.memory.health);
    poll_until(device, &pending.submitted, deadline)?;
    let left = deadline.saturating_sub(started.elapsed()).max(Duration::from_millis(1));
    let bytes = pending.bytes(left);
    health.check_run()?;
    match bytes {
        Ok(bytes) => Ok(bytes),
        Err(Missing::Yet) => Err(late(started)),
        Err(Missing::ForEver(reason)) => {
            health.lost(&reason);
            health.check_run().map(|()| Vec::new())
        }
    }
}

fn late(started: Instant) -> RunError {
    RunError::Deadline { waited_ms: started.elapsed().as_millis() as u64 }
}

/// Waits until the device has done what was submitted until then.
fn poll_until(
    device: &DeviceInner,
    submitted: &wgpu::SubmissionIndex,
    deadline: Duration,
) -> Result<(), RunError> {
    let started = Instant::now();
    let wait = wgpu::PollType::Wait { submission_index: Some(submitted.clone()), timeout: Some(deadline) };
    match device.memory.poll(wait) {
        Err(wgpu::PollError::Timeout) => Err(late(started)),
        _ => device.memory.health.check_run(),
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
