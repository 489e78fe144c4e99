//! Device memory: how much there is, and buffers that fail as values.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_backend::{AllocError, Ledger, Ticket};

use crate::health::Health;

/// Longest wait for work that only prepares something: an upload at load, a cleared buffer.
const SETTLE_MAX: Duration = Duration::from_secs(60);

/// Memory of one device and its books.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) device: wgpu::Device,
    pub(crate) health: Health,
    pub(crate) ledger: Arc<Ledger>,
    /// Bytes that a kernel sees through one binding.
    pub(crate) binding_bytes_max: u64,
}

/// A buffer of the driver. What `wgpu` itself rounds up is not counted.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) buffer: wgpu::Buffer,
    _ticket: Ticket,
}

impl Memory {
    /// Lets the driver go on, or waits as `how` says. A device that fails meanwhile is lost; what does not
    /// fit into that is a timeout.
    pub(crate) fn poll(&self, how: wgpu::PollType) -> Result<(), wgpu::PollError> {
        // A driver that refuses to tell how far it is trips an assertion inside wgpu.
        let polled = std::panic::catch_unwind(AssertUnwindSafe(|| self.device.poll(how)));
        match polled {
            Ok(polled) => polled.map(|_| ()),
            Err(_) => {
                self.health.lost("its driver failed while it was waited for");
                Ok(())
            }
        }
    }

    /// Waits for everything submitted.
    pub(crate) fn settle(&self) -> Result<(), AllocError> {
        self.settle_within(SETTLE_MAX)
    }

    /// Waits for everything submitted; a device that takes longer is lost.
    pub(crate) fn settle_within(&self, at_most: Duration) -> Result<(), AllocError> {
        let started = Instant::now();
        let wait = wgpu::PollType::Wait { submission_index: None, timeout: Some(at_most) };
        if self.poll(wait).is_err() {
            let waited = started.elapsed().as_secs();
            self.health.lost(&format!("it did not finish a copy within {waited} s"));
        }
        self.health.check()
    }

    /// A zeroed buffer of `bytes`, at least four.
    pub(crate) fn raw(
        &self,
        what: &str,
        bytes: u64,
        usage: wgpu::BufferUsages,
    ) -> Result<wgpu::Buffer, AllocError> {
        self.create(what, bytes, usage, false)
    }

    /// A buffer of `bytes` whose content the host writes: mapped.
    pub(crate) fn staging(&self, bytes: u64) -> Result<wgpu::Buffer, AllocError> {
        let usage = wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC;
        self.create("data on its way to the device", bytes, usage, true)
    }

    fn create(
        &self,
        what: &str,
        bytes: u64,
        usage: wgpu::BufferUsages,
        is_mapped: bool,
    ) -> Result<wgpu::Buffer, AllocError> {
        self.health.check()?;
        let refused = |reason: wgpu::Error| match reason {
            wgpu::Error::Validation { .. } if bytes > self.device.limits().max_buffer_size => {
                let limit_bytes = self.device.limits().max_buffer_size;
                AllocError::TooLarge { what: what.to_owned(), needed_bytes: bytes, limit_bytes }
            }
            wgpu::Error::OutOfMemory { .. } | wgpu::Error::Validation { .. } => {
                let free_bytes = self.ledger.report(None).free_bytes;
                AllocError::OutOfMemory { what: what.to_owned(), needed_bytes: bytes, free_bytes }
            }
            other => AllocError::DeviceLost { reason: other.to_string() },
        };
        let size = bytes.max(4).next_multiple_of(4);
        let oom = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let invalid = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(what),
            size,
            usage,
            mapped_at_creation: is_mapped,
        });
        let errors = [pollster::block_on(invalid.pop()), pollster::block_on(oom.pop())];
        match errors.into_iter().flatten().next() {
            Some(error) => Err(refused(error)),
            None => Ok(buffer),
        }
    }

    /// An error if `bytes` are more than one binding takes: no kernel could use them.
    pub(crate) fn check_binding(&self, what: &str, bytes: u64) -> Result<(), AllocError> {
        let limit_bytes = self.binding_bytes_max;
        match bytes <= limit_bytes {
            true => Ok(()),
            false => Err(AllocError::TooLarge { what: what.to_owned(), needed_bytes: bytes, limit_bytes }),
        }
    }

    /// Working memory of `bytes`, in the books until it drops.
    pub(crate) fn booked(&self, what: &str, bytes: u64) -> Result<Allocation, AllocError> {
        let ticket = self.ledger.take(what, bytes)?;
        self.check_binding(what, bytes)?;
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        Ok(Allocation { buffer: self.raw(what, bytes, usage)?, _ticket: ticket })
    }
}
