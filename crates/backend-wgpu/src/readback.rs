//! Results on their way from the device, and places in the queue to wait for.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use exo_backend::{AllocError, Arrival, Download, FAULT_WORDS, InFlight, RunError};

use crate::inner::DeviceInner;
use crate::program::Inner;

/// For the word that something has arrived which the device is done with: another thread may be about to give
/// it.
const WORD_MAX: Duration = Duration::from_millis(100);

/// What a stream and its downloads share.
pub(crate) type ReadbackQueue = exo_backend::ReadbackQueue<Inner, PendingReadback>;

/// Where results are on their way to, and the place in the queue behind them.
#[derive(Debug)]
pub(crate) struct PendingReadback {
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

impl InFlight for PendingReadback {
    type Staging = wgpu::Buffer;

    fn capacity_bytes(staging: &wgpu::Buffer) -> u64 {
        staging.size()
    }

    fn arrive(self, is_done: bool) -> Arrival<Self> {
        match self.bytes(if is_done { WORD_MAX } else { Duration::ZERO }) {
            Ok(bytes) => Arrival::Arrived(bytemuck::pod_collect_to_vec(&bytes[self.wanted..]), self.staging),
            Err(Missing::Yet) => Arrival::Pending(self),
            Err(Missing::ForEver(reason)) => {
                tracing::debug!(reason, "a result was lost that nobody wanted");
                Arrival::Lost
            }
        }
    }
}

fn staging(device: &DeviceInner, readbacks: &ReadbackQueue, bytes: u64) -> Result<wgpu::Buffer, AllocError> {
    let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
    let new = || device.memory.raw("results on their way", bytes.max(8).next_power_of_two(), usage);
    readbacks.spare(bytes).map_or_else(new, Ok)
}

/// Bytes on their way, and the faults that kernels reported until then.
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
    /// Queues copies of `parts` (buffer, byte, bytes) and of faults that kernels reported since the one
    /// before. Behind its copy their place is cleared: the faults of what runs from now on come with the
    /// readback that is queued next.
    pub(crate) fn queue(
        device: &Arc<DeviceInner>,
        readbacks: &Arc<ReadbackQueue>,
        parts: &[(&wgpu::Buffer, u64, u64)],
    ) -> Result<Self, RunError> {
        device.memory.health.check_run()?;
        let programs = readbacks.unseen();
        let wanted: u64 = parts.iter().map(|(_, _, bytes)| bytes).sum();
        let fault_bytes = 4 * FAULT_WORDS as u64;
        let total = wanted + fault_bytes * programs.len() as u64;
        let staging = staging(device, readbacks, total)?;
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
        let total = total as usize;
        let pending = PendingReadback { staging, wanted: wanted as usize, total, mapped, submitted, told };
        let (number, device, readbacks) = (readbacks.queued(), Arc::clone(device), Arc::clone(readbacks));
        Ok(Self { device, readbacks, number, pending: Some(pending), wanted })
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
        let faults: Vec<u32> = bytemuck::pod_collect_to_vec(&bytes.split_off(pending.wanted));
        self.readbacks.arrived(self.number, &faults, pending.staging).map(|()| bytes)
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
