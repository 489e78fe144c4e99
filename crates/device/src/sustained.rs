//! What a device keeps up, not what it reaches for a moment.
//!
//! A cgroup that gives a program half a core lets it run at full speed and stops it in each period of 100 ms;
//! another program takes whole slices of some milliseconds. Either is in the mean over several periods, and
//! in no best pass.

use std::time::{Duration, Instant};

/// No clock tells less apart, and rates are divided by it.
const SECONDS_MIN: f64 = 1e-9;

/// Seconds of a pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passes {
    /// What the device keeps up.
    pub(crate) mean_s: f64,
    /// What half of the passes do better than.
    pub(crate) median_s: f64,
}

/// Passes for a time that is not shorter than `window`, however long one takes. What runs `before` each
/// takes of that time, and is in none of them.
pub(crate) fn passes<E>(
    window: Duration,
    mut before: impl FnMut() -> Result<(), E>,
    mut pass: impl FnMut() -> Result<(), E>,
) -> Result<Passes, E> {
    let (began, mut all, mut each) = (Instant::now(), Duration::ZERO, Vec::new());
    loop {
        before()?;
        let start = Instant::now();
        pass()?;
        let took = start.elapsed();
        all += took;
        each.push(took.as_secs_f64());
        if began.elapsed() >= window {
            let mean_s = (all.as_secs_f64() / each.len() as f64).max(SECONDS_MIN);
            return Ok(Passes { mean_s, median_s: median(each) });
        }
    }
}

/// The later of the middle two where there are two; never 0.
pub(crate) fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_unstable_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied().unwrap_or_default().max(SECONDS_MIN)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a pass that waits, on a thread of the test")]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_stopped_for_half_of_each_period_has_half_its_speed() {
        let started = Instant::now();
        let pass = || {
            std::thread::sleep(Duration::from_millis(1));
            // The second half of each 40 ms is somebody else's.
            while started.elapsed().as_millis() % 40 >= 20 {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok::<(), ()>(())
        };
        let Passes { mean_s, .. } = passes(Duration::from_millis(160), || Ok(()), pass).unwrap();
        // At full speed a pass takes little more than 1 ms; a busy machine only adds to it.
        assert!(mean_s >= 0.0018, "{mean_s}");
    }

    #[test]
    fn what_runs_before_a_pass_does_not_count() {
        let wait = |ms| {
            std::thread::sleep(Duration::from_millis(ms));
            Ok::<(), ()>(())
        };
        let found = passes(Duration::from_millis(5), || wait(200), || wait(1)).unwrap();
        assert!(found.mean_s < 0.1 && found.median_s < 0.1, "{found:?}");
    }
}
