//! How long a step may stay away, learned from the steps that came back.
//!
//! A lost step is to be noticed soon, and a slow one must never be taken for lost: a false alarm costs every
//! sequence of the instance. So only steps that are alike are compared (tokens and depth within a factor of
//! two), a slow step counts at once and is forgotten slowly, and nothing is concluded from less than a few
//! steps. After a pause weights may have left the memory: then a step has the time in which a slow disk
//! brings back what memory gave in a step. The times are those from sending to coming back, so they hold the
//! round trips of the links.

use std::collections::BTreeMap;
use std::time::Duration;

/// Steps of a size before they say anything.
const STEPS_MIN: u32 = 4;
/// A step is late after so many times what its like took.
const TIMES: u32 = 8;
/// And never before this: a busy system may keep a thread waiting, and a radio link a packet, for a second.
const DEADLINE_MIN: Duration = Duration::from_secs(2);
/// The pause after which weights may be on disk.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Then a step is late after so many times what its like took: memory gives some 20 GB/s, a slow disk a
/// hundredth.
const TIMES_AFTER_PAUSE: u32 = 200;
/// And never before this.
const AFTER_PAUSE_MIN: Duration = Duration::from_secs(6);
/// Of a quicker step, the share that counts.
const FORGET: u32 = 16;
/// Up to this depth attention costs little beside the weights.
const DEPTH_MIN: u32 = 4096;

/// What the time of a step depends on, in powers of two.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct StepSize {
    tokens: u32,
    depth: u32,
}

impl StepSize {
    /// Of a step with so many tokens, the last of which is `depth` positions into its sequence.
    pub(super) fn new(tokens: u32, depth: u32) -> Self {
        let bits = |n: u32| u32::BITS - n.leading_zeros();
        Self { tokens: bits(tokens), depth: bits(depth.max(DEPTH_MIN) - 1) }
    }
}

/// Times of steps by their size.
#[derive(Clone, Debug, Default)]
pub(super) struct StepTimes {
    sizes: BTreeMap<StepSize, Learned>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Learned {
    steps: u32,
    took: Duration,
}

impl StepTimes {
    /// A step came back whole after `took`.
    pub(super) fn learn(&mut self, size: StepSize, took: Duration) {
        let learned = self.sizes.entry(size).or_default();
        learned.steps = learned.steps.saturating_add(1);
        let quicker_by = learned.took.saturating_sub(took);
        learned.took = took.max(learned.took - quicker_by / FORGET);
    }

    /// How long a step of this size may take that was sent `pause` after the last one came back; `at_most`
    /// where not enough is known.
    pub(super) fn deadline(&self, size: StepSize, pause: Duration, at_most: Duration) -> Duration {
        match self.sizes.get(&size) {
            Some(learned) if learned.steps >= STEPS_MIN => {
                let (times, least) = match pause <= PAUSE_MAX {
                    true => (TIMES, DEADLINE_MIN),
                    false => (TIMES_AFTER_PAUSE, AFTER_PAUSE_MIN),
                };
                learned.took.saturating_mul(times).max(least).min(at_most)
            }
            Some(_) | None => at_most,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_MOST: Duration = Duration::from_secs(31);
    const DECODE: (u32, u32) = (1, 100);

    fn size((tokens, depth): (u32, u32)) -> StepSize {
        StepSize::new(tokens, depth)
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Steps of one token that took so many milliseconds.
    fn after(took: &[u64]) -> StepTimes {
        let mut times = StepTimes::default();
        took.iter().for_each(|&took| times.learn(size(DECODE), ms(took)));
        times
    }

    fn deadline(times: &StepTimes, of: (u32, u32)) -> Duration {
        times.deadline(size(of), Duration::ZERO, AT_MOST)
    }

    #[test]
    fn a_fast_model_is_waited_for_two_seconds_and_a_slow_one_eight_times_its_step() {
        assert_eq!(deadline(&after(&[1; 4]), DECODE), ms(2000));
        assert_eq!(deadline(&after(&[600; 4]), DECODE), ms(4800));
        assert_eq!(deadline(&after(&[6000; 4]), DECODE), AT_MOST, "never longer than without");
    }

    #[test]
    fn three_steps_prove_nothing() {
        assert_eq!(deadline(&after(&[1; 3]), DECODE), AT_MOST);
    }

    #[test]
    fn a_step_unlike_those_that_came_back_has_the_whole_time() {
        let times = after(&[1; 100]);
        assert_eq!(deadline(&times, (2, 100)), AT_MOST, "more tokens");
        assert_eq!(deadline(&times, (1, 5000)), AT_MOST, "deeper");
        assert_eq!(deadline(&times, (1, 4000)), ms(2000), "no deeper than matters");
    }

    #[test]
    fn a_slow_step_counts_at_once_and_is_forgotten_slowly() {
        let mut times = after(&[1; 100]);
        times.learn(size(DECODE), ms(1000));
        assert_eq!(deadline(&times, DECODE), ms(8000));
        (0..10).for_each(|_| times.learn(size(DECODE), ms(1)));
        assert!((ms(4000)..ms(8000)).contains(&deadline(&times, DECODE)));
        (0..100).for_each(|_| times.learn(size(DECODE), ms(1)));
        assert_eq!(deadline(&times, DECODE), ms(2000));
    }

    #[test]
    fn after_a_pause_a_step_has_the_time_of_a_slow_disk() {
        let times = after(&[1; 100]);
        assert_eq!(times.deadline(size(DECODE), ms(5000), AT_MOST), ms(2000));
        assert_eq!(
            times.deadline(size(DECODE), ms(5001), AT_MOST),
            ms(6000),
            "well under ten seconds for a fast model"
        );
        assert_eq!(after(&[100; 4]).deadline(size(DECODE), ms(5001), AT_MOST), ms(20_000));
        assert_eq!(after(&[500; 4]).deadline(size(DECODE), ms(5001), AT_MOST), AT_MOST);
    }
}
