//! What bounds a test, measured beside its samples.

use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_backend::{AllocError, Buffer, Device, Element, RunError, Stream};
use exo_backend_cpu::probe::{BandwidthProbe, Instruction, peak};

use super::measure::Cost;

/// Of each of the two buffers: far beyond the caches of a card.
const COPY_BYTES_MAX: u64 = 256 << 20;
/// Buffers of a card that has hardly room left; smaller ones would measure its caches.
const COPY_BYTES_MIN: u64 = 16 << 20;
/// Of one look at the rate, as long as a copy is not slower.
const COPY_TIME: Duration = Duration::from_millis(20);
const COPIES_MAX: u32 = 64;
/// No copy takes this long on a device that still works.
const COPY_DEADLINE: Duration = Duration::from_secs(30);

/// Measures what a test could reach at best.
pub enum Limit<'a> {
    /// Reading memory; for products, an instruction's rate.
    Processor { threads: usize, probe: &'a BandwidthProbe, instruction: Option<Instruction> },
    /// A copy within the card's memory. Nothing is known about its arithmetic.
    Card { copy: Option<CopyRate> },
}

impl Limit<'_> {
    /// What it could be now for a test of this cost: bytes or products per second.
    pub fn now(&mut self, cost: &Cost) -> Option<f64> {
        match (self, cost) {
            (Self::Processor { threads, probe, .. }, Cost::Bytes { .. }) => {
                Some(probe.read(*threads).bytes_per_s)
            }
            (Self::Processor { threads, .. }, Cost::Products { instruction, .. }) => {
                instruction.and_then(|i| peak(i, *threads))
            }
            (Self::Card { copy }, Cost::Bytes { .. }) => copy.as_mut()?.bytes_per_s().ok(),
            (Self::Card { .. }, Cost::Products { .. }) => None,
        }
    }

    /// What prefill's products are compared with.
    pub fn instruction(&self) -> Option<Instruction> {
        match self {
            Self::Processor { instruction, .. } => *instruction,
            Self::Card { .. } => None,
        }
    }

    /// Memory of this process it holds.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Processor { probe, .. } => probe.bytes(),
            Self::Card { .. } => 0,
        }
    }
}

/// Copies one buffer of a device to another.
pub struct CopyRate {
    from: Buffer,
    to: Buffer,
    stream: Box<dyn Stream>,
}

/// Takes up to a quarter of what is free for two buffers; `None` if that is too little.
pub fn copy_rate(device: &Arc<dyn Device>) -> Option<CopyRate> {
    let buffer = |bytes: u64| {
        let is_enough = bytes >= COPY_BYTES_MIN;
        is_enough.then(|| device.buffer(Element::F32, bytes as usize / 4))
    };
    let bytes = (device.memory().free_bytes / 8).min(COPY_BYTES_MAX);
    let (from, bytes) = match buffer(bytes)? {
        // As much as its interface lets a buffer have: 128 MiB, in many.
        Err(AllocError::TooLarge { limit_bytes, .. }) => (buffer(limit_bytes)?.ok()?, limit_bytes),
        from => (from.ok()?, bytes),
    };
    let mut rate = CopyRate { from, to: buffer(bytes)?.ok()?, stream: device.stream().ok()? };
    // The first copy meets memory that was never touched.
    rate.seconds(1).ok()?;
    Some(rate)
}

impl CopyRate {
    /// Bytes read and written per second.
    fn bytes_per_s(&mut self) -> Result<f64, RunError> {
        let once = self.seconds(1)?;
        let count = ((COPY_TIME.as_secs_f64() / once) as u32).clamp(1, COPIES_MAX);
        let best = (self.seconds(count)? / f64::from(count)).min(once);
        Ok(2.0 * 4.0 * self.from.len as f64 / best)
    }

    fn seconds(&mut self, count: u32) -> Result<f64, RunError> {
        let began = Instant::now();
        for _ in 0..count {
            self.stream.copy(&self.from, &self.to, self.from.len)?;
        }
        self.stream.synchronize(COPY_DEADLINE)?;
        Ok(began.elapsed().as_secs_f64().max(1e-9))
    }
}
