//! A wish to end or a deadline, and the waits that they end.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, PoisonError};
use std::time::{Duration, Instant};

use exo_stdx::Mutex;

use crate::overdue::CLAIM_KEPT_MAX;

/// How often a small document is asked for where nobody answers.
pub(crate) const DOCUMENT_TRIES_MAX: u32 = 5;

/// A day is as good as any longer time.
const ASKED_WAIT_MAX: Duration = Duration::from_secs(24 * 3600);

/// Set once, from any thread, or by its time; every wait in this crate looks at it.
#[derive(Debug, Default)]
pub struct Cancel {
    wished: Mutex<bool>,
    changed: Condvar,
    /// When it ends by itself.
    until: Option<Instant>,
    /// Tries of the question under way that had no answer.
    failed_tries: AtomicU32,
    /// How many seconds the hub asks to wait, and until when that is.
    asked_wait: Mutex<Option<(u64, Instant)>>,
}

impl Cancel {
    /// Ends by itself after so long.
    pub fn within(time: Duration) -> Self {
        Self { until: Some(Instant::now() + time), ..Self::default() }
    }

    /// Why the question under way has no answer yet: how long the hub asks to wait, or that nobody answers
    /// and which try this is; `None` where the first answer is still to come or was one.
    pub fn hold_up(&self) -> Option<String> {
        let asked = *self.asked_wait.lock();
        if let Some((asked_s, _)) = asked.filter(|(_, until)| Instant::now() < *until) {
            return Some(format!("it asks to wait {asked_s} s"));
        }
        let failed = self.failed_tries.load(Ordering::Relaxed);
        (failed > 0).then(|| format!("no answer yet, try {} of {DOCUMENT_TRIES_MAX}", failed + 1))
    }

    /// How long the hub still asks to wait, where it asks for so long that no one is to wait for what would
    /// come here.
    pub fn long_wait_left(&self) -> Option<Duration> {
        let (asked_s, until) = (*self.asked_wait.lock())?;
        let left = until.saturating_duration_since(Instant::now());
        (asked_s > CLAIM_KEPT_MAX.as_secs() && !left.is_zero()).then_some(left)
    }

    /// Waits as the hub asks, in sight of whoever looks; whether it ended.
    pub(crate) fn wait_as_asked(&self, time: Duration) -> bool {
        self.note_asked_wait(time);
        let is_over = self.wait(time);
        *self.asked_wait.lock() = None;
        is_over
    }

    /// Notes such a wait, in which no one may wait here.
    pub(crate) fn note_asked_wait(&self, time: Duration) {
        let until = Instant::now() + time.min(ASKED_WAIT_MAX);
        let asked = Some((time.as_secs().max(1), until));
        *self.asked_wait.lock() = asked;
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
        *self.wished.lock() = true;
        self.changed.notify_all();
    }

    /// Whether somebody wished to end, or its time is over.
    pub fn is_cancelled(&self) -> bool {
        *self.wished.lock() || self.is_late()
    }

    /// Waits so long, or until it ends; whether it was the latter.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        let until = Instant::now() + self.time_left().map_or(time, |left| left.min(time));
        let mut wished = self.wished.lock();
        while !*wished {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            wished = self.changed.wait_timeout(wished, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *wished || self.is_late()
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
