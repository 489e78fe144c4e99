//! How long a thread watches for something before it sleeps, and what it does meanwhile.

use std::hint::spin_loop;
use std::time::{Duration, Instant};

/// From the end of a job to sleep. Twice what waking takes: longer gaps cost little by waking, shorter ones
/// nothing.
const WATCH_MAX: Duration = Duration::from_micros(50);
/// The part of it in which the core is kept. After it, each look is followed by an offer of the core to
/// whoever waits for it: when several nodes share a machine, the one that works must not wait for one that
/// watches.
const KEEP_CORE: Duration = Duration::from_micros(5);
/// Looks between two looks at the clock.
const LOOKS: u32 = 32;

/// How a worker waits for its next job.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    /// There are more threads than cores: the core is offered from the start.
    pub(super) crowded: bool,
}

impl Patience {
    /// Looks until `is_there` or the time is up; returns which.
    pub(super) fn watch(self, mut is_there: impl FnMut() -> bool) -> bool {
        let mut start = None;
        loop {
            for _ in 0..LOOKS {
                if is_there() {
                    return true;
                }
                spin_loop();
            }
            let waited = start.get_or_insert_with(Instant::now).elapsed();
            if waited > WATCH_MAX {
                return false;
            }
            if self.crowded || waited > KEEP_CORE {
                std::thread::yield_now();
            }
        }
    }
}

/// Waits for `is_there`, which another thread is busy with. Bounded by the length of a piece.
pub(super) fn until(mut is_there: impl FnMut() -> bool) {
    let mut start = None;
    loop {
        for _ in 0..LOOKS {
            if is_there() {
                return;
            }
            spin_loop();
        }
        if start.get_or_insert_with(Instant::now).elapsed() > KEEP_CORE {
            std::thread::yield_now();
        }
    }
}
