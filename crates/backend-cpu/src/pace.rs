//! Rests between ops, where the processor may compute for a part of the time only.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use exo_types::ComputeShare;

/// Shorter rests are saved up: the system wakes a thread some 60 microseconds late, and every rest costs a
/// wake-up.
const REST_MIN: Duration = Duration::from_millis(2);
/// An op that took longer was stopped in its middle: a process that stood still owes nothing for that.
const OP_MAX: Duration = Duration::from_secs(5);
/// A rest that took longer than it should is made good by less rest later, up to so much.
const CREDIT_MAX: Duration = Duration::from_millis(20);

/// What is owed to the rest of the machine. Changed by whose turn the pool is.
#[derive(Debug)]
pub(crate) struct Pace {
    share: ComputeShare,
    owed_ns: AtomicI64,
}

impl Pace {
    pub(crate) fn new(share: ComputeShare) -> Self {
        Self { share, owed_ns: AtomicI64::new(0) }
    }

    /// What an op that took so long owes.
    fn owed_for(&self, took: Duration) -> i64 {
        nanos(self.share.rest_after(took.min(OP_MAX)))
    }

    /// Does `work`, and rests in proportion to what it took.
    pub(crate) fn keep<T>(&self, work: impl FnOnce() -> T) -> T {
        if self.share == ComputeShare::FULL {
            return work();
        }
        let began = Instant::now();
        let done = work();
        let owed = self.owed_for(began.elapsed());
        let owed = self.owed_ns.load(Ordering::Relaxed).saturating_add(owed);
        let paid = if owed >= nanos(REST_MIN) { rest(Duration::from_nanos(owed.unsigned_abs())) } else { 0 };
        self.owed_ns.store((owed - paid).max(-nanos(CREDIT_MAX)), Ordering::Relaxed);
        done
    }
}

/// How long it took.
#[allow(clippy::disallowed_methods, reason = "a thread that computes, which is asked to rest")]
fn rest(length: Duration) -> i64 {
    let began = Instant::now();
    std::thread::sleep(length);
    nanos(began.elapsed())
}

fn nanos(length: Duration) -> i64 {
    i64::try_from(length.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_stood_still_does_not_rest_for_it() {
        let pace = Pace::new("10%".parse().unwrap());
        assert_eq!(pace.owed_for(Duration::from_secs(1)), nanos(Duration::from_secs(9)));
        assert_eq!(pace.owed_for(Duration::from_secs(3600)), pace.owed_for(OP_MAX));
    }

    /// Bounded below only: a busy machine adds to what the rests take.
    #[test]
    fn who_has_a_quarter_rests_three_times_as_long_as_it_works() {
        let (pace, began) = (Pace::new("25%".parse().unwrap()), Instant::now());
        let mut busy = Duration::ZERO;
        for _ in 0..40 {
            busy += pace.keep(|| {
                let began = Instant::now();
                while began.elapsed() < Duration::from_micros(700) {}
                began.elapsed()
            });
        }
        let rested = began.elapsed().saturating_sub(busy);
        assert!(rested + REST_MIN >= busy * 3, "{rested:?} after {busy:?}");
        assert_eq!(Pace::new(ComputeShare::FULL).keep(|| 7), 7);
    }
}
