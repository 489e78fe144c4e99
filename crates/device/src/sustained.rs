//! What a device keeps up, not what it reaches for a moment.
//!
//! A cgroup that gives a program half a core lets it run at full speed and stops it in each period of 100 ms;
//! another program takes whole slices of some milliseconds. Either is in the mean over several periods, and
//! in no best pass.

use std::time::{Duration, Instant};

/// Mean seconds of a pass over a window that is not shorter than `window`, however long one pass takes.
pub(crate) fn seconds_per_pass<E>(
    window: Duration,
    mut pass: impl FnMut() -> Result<(), E>,
) -> Result<f64, E> {
    let start = Instant::now();
    let mut passes = 0u32;
    loop {
        pass()?;
        passes = passes.saturating_add(1);
        let elapsed = start.elapsed();
        if elapsed >= window {
            return Ok((elapsed.as_secs_f64() / f64::from(passes)).max(1e-9));
        }
    }
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
        let seconds = seconds_per_pass(Duration::from_millis(160), pass).unwrap();
        // At full speed a pass takes little more than 1 ms; a busy machine only adds to it.
        assert!(seconds >= 0.0018, "{seconds}");
    }
}
