//! Who holds how many bytes of the device: counted when given out, returned when the last handle drops.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::AllocError;

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

    /// Bytes it may give out in all.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Bytes given out now.
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes.load(Ordering::Relaxed)
    }

    /// Bookings not yet returned.
    pub fn live(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
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
        assert_eq!((ledger.allocated_bytes(), ledger.live()), (0, 0));
        assert!(ledger.take("overflow", u64::MAX).is_err());
    }
}
