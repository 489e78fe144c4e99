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
    /// Passes in the window.
    pub(crate) count: u32,
}

/// Passes for a time that is not shorter than `window`, however long one takes. What runs `before` each
/// takes of that time and is in none of them; it says whether it did more than it usually does.
pub(crate) fn passes<E>(
    window: Duration,
    mut before: impl FnMut() -> Result<bool, E>,
    mut pass: impl FnMut() -> Result<(), E>,
) -> Result<Passes, E> {
    let began = Instant::now();
    let (mut each, mut usual, mut longer) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        let start = Instant::now();
        let did_more = before()?;
        let between = Instant::now();
        pass()?;
        let end = Instant::now();
        each.push((end - between).as_secs_f64());
        let befores = if did_more { &mut longer } else { &mut usual };
        befores.push((between - start).as_secs_f64());
        if end - began >= window {
            return Ok(Passes::new(each, [usual, longer]));
        }
    }
}

impl Passes {
    /// A stop falls into a pass or into what runs before one, as it happens. So the whole window, by what it
    /// would have taken at the medians, is what a device loses, and passes lose as much as the rest.
    fn new(each: Vec<f64>, befores: [Vec<f64>; 2]) -> Self {
        let (mut taken_s, mut unstopped_s) = (0.0, 0.0);
        for of_a_kind in [&each, &befores[0], &befores[1]] {
            taken_s += of_a_kind.iter().sum::<f64>();
            unstopped_s += of_a_kind.len() as f64 * median(of_a_kind.clone());
        }
        let count = u32::try_from(each.len()).unwrap_or(u32::MAX);
        let median_s = median(each);
        Self { mean_s: (median_s * taken_s / unstopped_s).max(SECONDS_MIN), median_s, count }
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
        let Passes { mean_s, .. } = passes(Duration::from_millis(160), || Ok(false), pass).unwrap();
        // At full speed a pass takes little more than 1 ms; a busy machine only adds to it.
        assert!(mean_s >= 0.0018, "{mean_s}");
    }

    #[test]
    fn what_runs_before_a_pass_does_not_count() {
        let wait = |ms| {
            std::thread::sleep(Duration::from_millis(ms));
            Ok::<(), ()>(())
        };
        let before = || wait(200).map(|()| false);
        let found = passes(Duration::from_millis(5), before, || wait(1)).unwrap();
        assert!(found.mean_s < 0.1 && found.median_s < 0.1, "{found:?}");
        assert_eq!(found.count, 1, "the first takes the whole window with what is before it");
    }

    #[test]
    fn a_stop_that_falls_between_passes_slows_them_as_one_within() {
        let wait = |ms| std::thread::sleep(Duration::from_millis(ms));
        let mut n = 0;
        // Each fourth time the device is stopped for 30 ms, and never in a pass.
        let before = || {
            n += 1;
            wait(if n % 4 == 0 { 31 } else { 1 });
            Ok::<_, ()>(false)
        };
        let pass = || {
            wait(1);
            Ok(())
        };
        let Passes { mean_s, median_s, .. } = passes(Duration::from_millis(160), before, pass).unwrap();
        assert!(mean_s > 1.3 * median_s, "{mean_s} {median_s}");
    }

    #[test]
    fn it_does_not_matter_where_a_stop_falls_and_what_does_more_is_none() {
        let ms = |all: &[f64]| all.iter().map(|ms| ms / 1e3).collect::<Vec<f64>>();
        let (more, none) = (ms(&[9.0, 9.0]), Vec::new());
        let within = Passes::new(ms(&[4.0, 4.0, 54.0, 4.0]), [ms(&[3.0, 3.0]), more.clone()]);
        let between = Passes::new(ms(&[4.0; 4]), [ms(&[3.0, 3.0, 53.0]), ms(&[9.0])]);
        let longer = Passes::new(ms(&[4.0; 4]), [ms(&[3.0, 3.0]), more]);
        let alone = Passes::new(ms(&[4.0, 4.0, 54.0, 4.0]), [none.clone(), none]);
        let mean_ms = [within, between, longer, alone].map(|passes| round(passes.mean_s * 1e3));
        // Of 40 and 34 ms that would have been needed, 50 more; nothing more; 50 more of 16.
        assert_eq!(mean_ms, [9.0, round(4.0 * 84.0 / 34.0), 4.0, 16.5]);
    }

    fn round(ms: f64) -> f64 {
        (ms * 1e6).round() / 1e6
    }
}
