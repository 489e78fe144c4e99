//! What the processor spends on handing work to the device: counted, for those who ask.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts of one device.
#[derive(Default, Debug)]
pub(crate) struct WorkCounters {
    submissions: AtomicU64,
    dispatches: AtomicU64,
    encoding_ns: AtomicU64,
    read_bytes: AtomicU64,
}

/// What work for the device has cost the processor.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WorkDone {
    /// Lists of commands handed to the driver. One list has everything that was queued until a caller wants a
    /// result.
    pub submissions: u64,
    /// Kernels of runs.
    pub dispatches: u64,
    /// Time in which they were written and handed over.
    pub encoding: Duration,
    /// Bytes brought back from the device: results, and the faults of kernels.
    pub read_bytes: u64,
}

impl WorkCounters {
    pub(crate) fn recorded(&self, dispatches: u64, encoding: Duration) {
        self.dispatches.fetch_add(dispatches, Ordering::Relaxed);
        self.encoding_ns.fetch_add(encoding.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn submitted(&self, encoding: Duration) {
        self.submissions.fetch_add(1, Ordering::Relaxed);
        self.encoding_ns.fetch_add(encoding.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn read(&self, bytes: u64) {
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn done(&self) -> WorkDone {
        WorkDone {
            submissions: self.submissions.load(Ordering::Relaxed),
            dispatches: self.dispatches.load(Ordering::Relaxed),
            encoding: Duration::from_nanos(self.encoding_ns.load(Ordering::Relaxed)),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
        }
    }
}
