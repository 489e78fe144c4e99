//! Results on their way from the device, and places in the queue to wait for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use exo_backend::{Download, FAULT_WORDS, Fence, RunError, complaint};

use crate::device::Shop;
use crate::program::Inner;

/// What a stream and its downloads share.
#[derive(Default, Debug)]
pub(crate) struct Desk {
    /// Buffers that the device copies results to, when nothing is on its way in them.
    spare: Mutex<Vec<wgpu::Buffer>>,
    /// Programs whose kernels may have complained since the last look.
    unseen: Mutex<Vec<Arc<Inner>>>,
}

impl Desk {
    /// Remembers to look what the kernels of `program` complained of.
    pub(crate) fn look_at(&self, program: &Arc<Inner>) {
        let mut unseen = self.unseen.lock().unwrap_or_else(PoisonError::into_inner);
        if !unseen.iter().any(|known| Arc::ptr_eq(known, program)) {
            unseen.push(Arc::clone(program));
        }
    }
}

/// Spare buffers kept; more are only made while more downloads are on their way.
const SPARE_MAX: usize = 4;

/// Bytes on their way, and what kernels complained of until then.
pub(crate) struct Reading {
    shop: Arc<Shop>,
    desk: Arc<Desk>,
    /// Whose complaints are on their way; none once they were seen.
    programs: Vec<Arc<Inner>>,
    staging: wgpu::Buffer,
    /// Bytes asked for; complaints lie behind them.
    wanted: u64,
    total: u64,
    /// Bytes mapped, whole words of eight.
    mapped: u64,
    submitted: wgpu::SubmissionIndex,
    told: mpsc::Receiver<Result<(), wgpu::BufferAsyncError>>,
    is_there: Arc<AtomicBool>,
}

impl Reading {
    /// Queues copies of `parts` (buffer, byte, bytes) and of what kernels complained of since the last look.
    pub(crate) fn queue(
        shop: &Arc<Shop>,
        desk: &Arc<Desk>,
        parts: &[(&wgpu::Buffer, u64, u64)],
    ) -> Result<Self, RunError> {
        shop.memory.health.check_run()?;
        let programs = desk.unseen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let wanted: u64 = parts.iter().map(|(_, _, bytes)| bytes).sum();
        let fault_bytes = 4 * FAULT_WORDS as u64;
        let total = wanted + fault_bytes * programs.len() as u64;
        let staging = staging(shop, &desk.spare, total)?;
        let faults = programs.iter().map(|program| (&program.fault, 0, fault_bytes));
        let submitted = shop.queue.submit(|encoder| {
            let mut to = 0;
            for (from, at, bytes) in parts.iter().copied().chain(faults) {
                if bytes > 0 {
                    encoder.copy_buffer_to_buffer(from, at, &staging, to, bytes);
                }
                to += bytes;
            }
        });
        shop.queue.count_read(total);
        let (tell, told) = mpsc::channel();
        let is_there = Arc::new(AtomicBool::new(false));
        let arrived = Arc::clone(&is_there);
        let mapped = total.max(8).next_multiple_of(8).min(staging.size());
        staging.slice(..mapped).map_async(wgpu::MapMode::Read, move |result| {
            arrived.store(true, Ordering::Release);
            let _ = tell.send(result); // nobody listens after a download was given up
        });
        // Whoever runs one of them from now on puts it there again.
        desk.unseen.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let (shop, desk) = (Arc::clone(shop), Arc::clone(desk));
        Ok(Self { shop, desk, programs, staging, wanted, total, mapped, submitted, told, is_there })
    }

    /// Waits and gives the bytes. A complaint of a kernel is the error.
    pub(crate) fn wait(mut self, deadline: Duration) -> Result<Vec<u8>, RunError> {
        let started = Instant::now();
        poll_until(&self.shop, &self.submitted, deadline)?;
        let left = deadline.saturating_sub(started.elapsed()).max(Duration::from_millis(1));
        let mapped = self.told.recv_timeout(left);
        let health = &self.shop.memory.health;
        health.check_run()?;
        let lost = |reason: &dyn std::error::Error| {
            health.lost(&reason.to_string());
            health.check_run().map(|()| Vec::new())
        };
        match mapped {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return lost(&error),
            Err(_) => return Err(late(started)),
        }
        let mut bytes = match self.staging.slice(..self.mapped).get_mapped_range() {
            Ok(range) => range[..self.total as usize].to_vec(),
            Err(error) => return lost(&error),
        };
        self.staging.unmap();
        let mut spare = self.desk.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < SPARE_MAX {
            spare.push(self.staging.clone());
        }
        drop(spare);
        let complaints: Vec<u32> = bytemuck::pod_collect_to_vec(&bytes.split_off(self.wanted as usize));
        let programs = std::mem::take(&mut self.programs);
        let found = complaints.chunks(FAULT_WORDS).map(complaint);
        let mut first = Ok(());
        for (program, told) in programs.iter().zip(found) {
            if told.is_err() {
                self.shop.queue.write_before(&program.fault, 0, &[0; 4 * FAULT_WORDS]);
            }
            first = first.and(told);
        }
        first.map(|()| bytes)
    }
}

impl Drop for Reading {
    /// Complaints that nobody saw are looked for again.
    fn drop(&mut self) {
        self.programs.iter().for_each(|program| self.desk.look_at(program));
    }
}

fn staging(shop: &Shop, spare: &Mutex<Vec<wgpu::Buffer>>, bytes: u64) -> Result<wgpu::Buffer, RunError> {
    let mut spare = spare.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(fitting) = spare.iter().position(|buffer| buffer.size() >= bytes) {
        return Ok(spare.swap_remove(fitting));
    }
    // The smaller ones make room for the one that serves both.
    spare.clear();
    let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
    Ok(shop.memory.raw("results on their way", bytes.max(8).next_power_of_two(), usage)?)
}

fn late(started: Instant) -> RunError {
    RunError::Deadline { waited_ms: started.elapsed().as_millis() as u64 }
}

/// Waits until the device has done what was submitted until then.
fn poll_until(shop: &Shop, submitted: &wgpu::SubmissionIndex, deadline: Duration) -> Result<(), RunError> {
    let started = Instant::now();
    let wait = wgpu::PollType::Wait { submission_index: Some(submitted.clone()), timeout: Some(deadline) };
    match shop.memory.poll(wait) {
        Err(wgpu::PollError::Timeout) => Err(late(started)),
        _ => shop.memory.health.check_run(),
    }
}

/// Lets the driver tell what it has done, without waiting.
fn look(shop: &Shop) -> Result<(), RunError> {
    let _ = shop.memory.poll(wgpu::PollType::Poll); // a lost device shows in its health
    shop.memory.health.check_run()
}

impl Download for Reading {
    fn is_ready(&self) -> Result<bool, RunError> {
        look(&self.shop)?;
        Ok(self.is_there.load(Ordering::Acquire))
    }

    fn finish(self: Box<Self>, into: &mut [f32], deadline: Duration) -> Result<(), RunError> {
        assert!(self.wanted == size_of_val(into) as u64, "{} bytes were asked for", self.wanted);
        let bytes = self.wait(deadline)?;
        bytemuck::cast_slice_mut(into).copy_from_slice(&bytes);
        Ok(())
    }
}

/// A place in the queue.
pub(crate) struct Place {
    shop: Arc<Shop>,
    submitted: wgpu::SubmissionIndex,
    is_done: Arc<AtomicBool>,
}

impl Place {
    /// Behind everything queued.
    pub(crate) fn now(shop: &Arc<Shop>) -> Self {
        let submitted = shop.queue.flush();
        let is_done = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&is_done);
        shop.queue.on_done(move || done.store(true, Ordering::Release));
        Self { shop: Arc::clone(shop), submitted, is_done }
    }

    /// Whether it is a place in this device's queue.
    pub(crate) fn is_of(&self, shop: &Arc<Shop>) -> bool {
        Arc::ptr_eq(&self.shop, shop)
    }
}

impl Fence for Place {
    fn is_done(&self) -> Result<bool, RunError> {
        look(&self.shop)?;
        Ok(self.is_done.load(Ordering::Acquire))
    }

    fn wait(&self, deadline: Duration) -> Result<(), RunError> {
        poll_until(&self.shop, &self.submitted, deadline)
    }
}
