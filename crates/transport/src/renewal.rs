//! New traffic keys for connections that are old or have carried much, so that a key that leaks opens little
//! of what was said.
//!
//! Both protocols change the keys of a connection while it is used: TLS 1.3 by a message in each direction
//! (RFC 8446, 4.6.3), QUIC by a bit in each packet (RFC 9001, 6). No frame waits for it. The libraries do it
//! by themselves only before a cipher wears out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// When the keys of a connection are renewed: after that time or so many bytes, whichever comes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Renewal {
    /// At the latest after this time.
    pub every: Duration,
    /// Or when so many bytes have been sent.
    pub bytes: u64,
}

impl Default for Renewal {
    fn default() -> Self {
        Self { every: Duration::from_secs(3600), bytes: 64 << 30 }
    }
}

/// How often an endpoint has renewed keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct Renewed(Arc<AtomicU64>);

impl Renewed {
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The age of one connection's keys, and what they have sent.
#[derive(Debug)]
pub(crate) struct Keys {
    limits: Renewal,
    since: Instant,
    sent_bytes: u64,
}

impl Keys {
    pub(crate) fn new(limits: Renewal) -> Self {
        Self { limits, since: Instant::now(), sent_bytes: 0 }
    }

    /// Counts bytes; whether new keys are due. If so, the count begins anew.
    pub(crate) fn sent(&mut self, bytes: u64) -> bool {
        self.sent_bytes = self.sent_bytes.saturating_add(bytes);
        let is_due = self.sent_bytes >= self.limits.bytes || self.since.elapsed() >= self.limits.every;
        if is_due {
            *self = Self::new(self.limits);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_due_by_bytes_or_by_time_and_then_begin_anew() {
        let mut by_bytes = Keys::new(Renewal { every: Duration::MAX, bytes: 100 });
        let due: Vec<bool> = [40, 59, 1, 99, 1].into_iter().map(|bytes| by_bytes.sent(bytes)).collect();
        assert_eq!(due, [false, false, true, false, true]);
        let mut by_time = Keys::new(Renewal { every: Duration::ZERO, bytes: u64::MAX });
        assert!(by_time.sent(0) && by_time.sent(u64::MAX));
        let limits = Renewal::default();
        assert_eq!((limits.every.as_secs(), limits.bytes >> 30), (3600, 64), "what the threat model says");
    }
}
