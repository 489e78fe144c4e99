//! The clocks of this machine: one that only moves forward, and the one on the wall.

use std::time::{Duration, Instant};

use exo_machine::Now;
use exo_stdx::unix_s;
use exo_types::Time;

/// Both clocks of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
}

impl Clock {
    /// Time runs from here on.
    pub fn start() -> Self {
        Self { started: Instant::now() }
    }

    /// The present, by both clocks.
    pub fn now(&self) -> Now {
        Now { time: self.time(), unix_s: unix_s() }
    }

    pub(crate) fn time(&self) -> Time {
        Time(u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    pub(crate) fn at(&self, time: Time) -> tokio::time::Instant {
        // A deadline that never comes is a year away.
        let since_start = Duration::from_micros(time.0).min(Duration::from_secs(366 * 24 * 3600));
        tokio::time::Instant::from_std(self.started + since_start)
    }
}
