//! Weights leave the caches before they are measured, and the device is awake when they come back.

use std::time::{Duration, Instant};

use exo_backend::{Device, KvCache, RunError, Stream};

use super::{Bench, CalibrationError, WEIGHT_BYTES_MIN};

/// For [`WEIGHT_BYTES_MIN`]: a window still has ten passes and more. One Xeon needs 2.4 ms; what needs more
/// than this waits for each line.
const EVICT_MAX: Duration = Duration::from_millis(10);
/// Another program may stop one, and weights that were just made are written back first.
const EVICT_TRIES: usize = 3;
/// Of products before the clock: 64 threads wake one after the other in an estimated 0.35 ms.
const WAKING: Duration = Duration::from_micros(500);

/// Puts weights out of the caches of a device, where that is quick.
pub(super) struct Evictor<'a> {
    device: &'a dyn Device,
    stream: Box<dyn Stream>,
    /// What wakes the device, with weights that are never evicted later.
    waking: &'a Bench,
    works: bool,
}

impl<'a> Evictor<'a> {
    pub(super) fn new(device: &'a dyn Device, waking: &'a Bench) -> Result<Self, CalibrationError> {
        let part = waking.weight_bytes as f64 / WEIGHT_BYTES_MIN as f64;
        let (mut is_able, mut works) = (false, false);
        for _ in 0..EVICT_TRIES {
            let start = Instant::now();
            is_able = waking.evict(device);
            works = is_able && start.elapsed() <= EVICT_MAX.mul_f64(part);
            if works || !is_able {
                break;
            }
        }
        if is_able && !works {
            let (bytes, ms_max) = (waking.weight_bytes, EVICT_MAX.mul_f64(part).as_secs_f64() * 1e3);
            tracing::info!(bytes, ms_max, "caches give weights up too slowly: measured beyond the last one");
        }
        Ok(Self { device, stream: device.stream()?, waking, works })
    }

    /// Whether what is evicted comes from memory.
    pub(super) fn works(&self) -> bool {
        self.works
    }

    /// Puts a bench's weights out of the caches. Threads fall asleep meanwhile, so products of one row with
    /// other weights wake them again.
    pub(super) fn evict(&mut self, bench: &Bench) -> Result<(), RunError> {
        if !self.works {
            return Ok(());
        }
        bench.evict(self.device);
        self.wake()
    }

    /// The same with keys and values. Where caches do not give up what they hold, the weights of a step have
    /// put these out of them.
    pub(super) fn evict_kv<'k>(&mut self, all: impl Iterator<Item = &'k KvCache>) -> Result<(), RunError> {
        if !self.works {
            return Ok(());
        }
        all.for_each(|kv| {
            self.device.evict_kv(kv);
        });
        self.wake()
    }

    fn wake(&mut self) -> Result<(), RunError> {
        let start = Instant::now();
        loop {
            self.waking.rows(&mut *self.stream, 1)?;
            if start.elapsed() >= WAKING {
                return Ok(());
            }
        }
    }
}
