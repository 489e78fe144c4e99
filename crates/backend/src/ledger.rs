//! Who holds how many bytes of the device: counted when given out, returned when the last handle drops.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{AllocError, MemoryReport};

/// The books of one device: every backend that counts for itself keeps them here.
#[derive(Debug)]
pub struct Ledger {
    limit_bytes: u64,
    allocated_bytes: AtomicU64,
    live: AtomicU64,
}

impl Ledger {
    /// Books of a device that may give out `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Arc<Self> {
        Arc::new(Self { limit_bytes, allocated_bytes: AtomicU64::new(0), live: AtomicU64::new(0) })
    }

    /// Bytes given out now.
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes.load(Ordering::Relaxed)
    }

    /// What it holds. `device_free_bytes` is what the system says of the device, of which other programs may
    /// have taken some since it was opened; `None` where nothing tells.
    pub fn report(&self, device_free_bytes: Option<u64>) -> MemoryReport {
        let allocated_bytes = self.allocated_bytes();
        let own = self.limit_bytes.saturating_sub(allocated_bytes);
        MemoryReport {
            total_bytes: self.limit_bytes,
            free_bytes: device_free_bytes.map_or(own, |free| free.min(own)),
            allocated_bytes,
            live_allocations: self.live.load(Ordering::Relaxed),
        }
    }

    /// Books `bytes`, or says how many are free. The ticket returns them.
    pub fn take(self: &Arc<Self>, what: &str, bytes: u64) -> Result<Ticket, AllocError> {
        let add = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= self.limit_bytes);
        match self.allocated_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            Ok(_) => {
                self.live.fetch_add(1, Ordering::Relaxed);
                Ok(Ticket { ledger: Arc::clone(self), bytes })
            }
            Err(held) => Err(AllocError::OutOfMemory {
                what: what.to_owned(),
                needed_bytes: bytes,
                free_bytes: self.limit_bytes.saturating_sub(held),
            }),
        }
    }
}

/// A booking. Dropping it returns the bytes.
#[derive(Debug)]
pub struct Ticket {
    ledger: Arc<Ledger>,
    bytes: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.ledger.allocated_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.ledger.live.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_byte_can_be_had_and_one_more_cannot() {
        let ledger = Ledger::new(100);
        let all = ledger.take("all", 100).unwrap();
        let error = ledger.take("one more", 1).unwrap_err();
        assert_eq!(
            error,
            AllocError::OutOfMemory { what: "one more".to_owned(), needed_bytes: 1, free_bytes: 0 }
        );
        drop(all);
        let report = ledger.report(Some(40));
        assert_eq!((report.allocated_bytes, report.live_allocations, report.free_bytes), (0, 0, 40));
        assert_eq!((ledger.report(None).free_bytes, ledger.report(Some(400)).free_bytes), (100, 100));
        assert!(ledger.take("overflow", u64::MAX).is_err());
    }
}
