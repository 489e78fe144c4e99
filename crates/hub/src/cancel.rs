//! A wish to end, and the waits that it ends.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Set once, from any thread; every wait in this crate looks at it.
#[derive(Debug, Default)]
pub struct Cancel {
    wished: Mutex<bool>,
    changed: Condvar,
}

impl Cancel {
    /// Ends what is under way. Verified bytes stay.
    pub fn cancel(&self) {
        *self.lock() = true;
        self.changed.notify_all();
    }

    /// Whether somebody wished to end.
    pub fn is_cancelled(&self) -> bool {
        *self.lock()
    }

    /// Waits so long, or until somebody wishes to end; whether it was the latter.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut wished = self.lock();
        while !*wished {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            wished = self.changed.wait_timeout(wished, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *wished
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.wished.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
