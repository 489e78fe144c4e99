//! The device's queue: commands are written as they come and handed over together, once somebody asks what
//! became of them.
//!
//! A decode step is layers, head and a copy of the logits: one submission. Every stream of a device shares
//! the queue, so one list of commands keeps their order.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use exo_backend::AllocError;

use crate::memory::Memory;
use crate::upload::{PIECE_BYTES, Uploads};
use crate::work_counters::{WorkCounters, WorkDone};

/// Longest wait for the device to take what is on its way: all of a step may be in front of it, which has its
/// own deadline.
const ROOM_MAX: Duration = Duration::from_secs(180);

/// Numbers of a run, as the kernels see them: T, R and two unused.
pub(crate) type RunNumbers = [u32; 4];

/// Commands that were written and not handed over yet.
#[derive(Default, Debug)]
struct Open {
    encoder: Option<wgpu::CommandEncoder>,
    /// The run numbers of the programs that run in them, each once: the device begins with a run while the
    /// next is written.
    runs: Vec<wgpu::Buffer>,
    uploads: Uploads,
}

/// The only queue of a device.
#[derive(Debug)]
pub(crate) struct Queue {
    device: wgpu::Device,
    inner: wgpu::Queue,
    open: Mutex<Open>,
    work: WorkCounters,
}

impl Queue {
    pub(crate) fn new(memory: &Memory, inner: wgpu::Queue) -> Result<Self, AllocError> {
        let open = Open { uploads: Uploads::with_one(memory)?, ..Open::default() };
        Ok(Self {
            device: memory.device.clone(),
            inner,
            open: Mutex::new(open),
            work: WorkCounters::default(),
        })
    }

    /// What runs have cost the processor so far.
    pub(crate) fn work(&self) -> WorkDone {
        self.work.done()
    }

    /// Counts bytes that come back from the device.
    pub(crate) fn count_read(&self, bytes: u64) {
        self.work.read(bytes);
    }

    pub(crate) fn record(&self, write: impl FnOnce(&mut wgpu::CommandEncoder)) {
        write(self.encoder(&mut self.lock()));
    }

    /// Queues a run, or a piece of one: `run` is where its program reads `numbers`. `write` tells how many
    /// dispatches it made.
    pub(crate) fn record_run<T>(
        &self,
        memory: &Memory,
        run: &wgpu::Buffer,
        numbers: RunNumbers,
        write: impl FnOnce(&mut wgpu::CommandEncoder) -> (u64, T),
    ) -> Result<T, AllocError> {
        let mut open = self.lock();
        if open.runs.contains(run) {
            self.submit_open(&mut open);
        }
        let started = Instant::now();
        self.put(&mut open, memory, run, 0, bytemuck::cast_slice(&numbers))?;
        let (dispatches, result) = write(self.encoder(&mut open));
        open.runs.push(run.clone());
        self.work.recorded(dispatches, started.elapsed());
        Ok(result)
    }

    /// Queues commands and hands over everything.
    pub(crate) fn submit(&self, write: impl FnOnce(&mut wgpu::CommandEncoder)) -> wgpu::SubmissionIndex {
        let mut open = self.lock();
        write(self.encoder(&mut open));
        self.submit_open(&mut open)
    }

    /// Hands over everything, and names the place behind it.
    pub(crate) fn flush(&self) -> wgpu::SubmissionIndex {
        self.submit_open(&mut self.lock())
    }

    /// Queues a write to a buffer.
    pub(crate) fn write(
        &self,
        memory: &Memory,
        to: &wgpu::Buffer,
        at: u64,
        data: &[u8],
    ) -> Result<(), AllocError> {
        self.put(&mut self.lock(), memory, to, at, data)
    }

    fn put(
        &self,
        open: &mut Open,
        memory: &Memory,
        to: &wgpu::Buffer,
        at: u64,
        data: &[u8],
    ) -> Result<(), AllocError> {
        for (i, piece) in data.chunks(PIECE_BYTES).enumerate() {
            while !open.uploads.find_room(memory, piece.len())? {
                self.submit_open(open);
                memory.settle_within(ROOM_MAX)?;
            }
            self.encoder(open);
            let Open { encoder: Some(encoder), uploads, .. } = &mut *open else { continue };
            let copied = uploads.copy(encoder, to, at + (i * PIECE_BYTES) as u64, piece);
            // Nothing else that is under way may go on as if it had arrived.
            copied.inspect_err(|error| memory.health.lost(&error.to_string()))?;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn encoder<'a>(&self, open: &'a mut Open) -> &'a mut wgpu::CommandEncoder {
        open.encoder.get_or_insert_with(|| self.device.create_command_encoder(&Default::default()))
    }

    fn submit_open(&self, open: &mut Open) -> wgpu::SubmissionIndex {
        open.runs.clear();
        match open.encoder.take() {
            None => self.inner.submit([]),
            Some(encoder) => {
                let started = Instant::now();
                let uploaded = open.uploads.close();
                let place = self.inner.submit([encoder.finish()]);
                open.uploads.take_back(uploaded);
                self.work.submitted(started.elapsed());
                place
            }
        }
    }
}
