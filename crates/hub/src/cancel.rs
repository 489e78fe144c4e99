//! A wish to end or a deadline, and the waits that they end.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a small document is asked for where nobody answers.
pub(crate) const DOCUMENT_TRIES_MAX: u32 = 5;

/// Set once, from any thread, or by its time; every wait in this crate looks at it.
#[derive(Debug, Default)]
pub struct Cancel {
    wished: Mutex<bool>,
    changed: Condvar,
    /// When it ends by itself.
    until: Option<Instant>,
    /// Tries of the question under way that had no answer.
    failed_tries: AtomicU32,
    /// How long the hub asks to wait, while it is waited; else 0.
    asked_wait_s: AtomicU32,
}

impl Cancel {
    /// Ends by itself after so long.
    pub fn within(time: Duration) -> Self {
        Self { until: Some(Instant::now() + time), ..Self::default() }
    }

    /// Why the question under way has no answer yet: how long the hub asks to wait, or that nobody answers
    /// and which try this is; `None` where the first answer is still to come or was one.
    pub fn hold_up(&self) -> Option<String> {
        let asked_s = self.asked_wait_s.load(Ordering::Relaxed);
        if asked_s > 0 {
            return Some(format!("it asks to wait {asked_s} s"));
        }
        let failed = self.failed_tries.load(Ordering::Relaxed);
        (failed > 0).then(|| format!("no answer yet, try {} of {DOCUMENT_TRIES_MAX}", failed + 1))
    }

    /// Waits as the hub asks, in sight of whoever looks; whether it ended.
    pub(crate) fn wait_as_asked(&self, time: Duration) -> bool {
        let asked_s = u32::try_from(time.as_secs().max(1)).unwrap_or(u32::MAX);
        self.asked_wait_s.store(asked_s, Ordering::Relaxed);
        let is_over = self.wait(time);
        self.asked_wait_s.store(0, Ordering::Relaxed);
        is_over
    }

    pub(crate) fn note_failed_tries(&self, failed: u32) {
        self.failed_tries.store(failed, Ordering::Relaxed);
    }

    /// Until it ends by itself.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(Instant::now()))
    }

    fn is_late(&self) -> bool {
        self.time_left().is_some_and(|left| left.is_zero())
    }

    /// Ends what is under way. Verified bytes stay.
    pub fn cancel(&self) {
        *self.lock() = true;
        self.changed.notify_all();
    }

    /// Whether somebody wished to end, or its time is over.
    pub fn is_cancelled(&self) -> bool {
        *self.lock() || self.is_late()
    }

    /// Waits so long, or until it ends; whether it was the latter.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        let until = Instant::now() + self.time_left().map_or(time, |left| left.min(time));
        let mut wished = self.lock();
        while !*wished {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            wished = self.changed.wait_timeout(wished, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *wished || self.is_late()
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.wished.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_ends_waits_as_a_wish_does() {
        let cancel = Cancel::within(Duration::from_millis(30));
        assert!(!cancel.is_cancelled());
        assert!(cancel.wait(Duration::from_secs(3600)) && cancel.is_cancelled());
        assert!(!Cancel::default().wait(Duration::from_millis(1)));
    }
}
