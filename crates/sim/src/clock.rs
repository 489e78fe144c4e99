//! A node's clocks, which are nobody else's: they begin elsewhere and run faster or slower.

use exo_machine::Now;
use exo_types::Time;

use crate::draw::{DrawFor, Draws};

/// Seconds since 1970 when every run begins.
pub const EPOCH_UNIX_S: u64 = 1_800_000_000;
/// Parts per million that a clock may run wrong: far more than a quartz does.
const DRIFT_PPM_MAX: i64 = 2_000;

/// The clocks of one life of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clock {
    /// The world's time when the process began.
    began: Time,
    /// What its own clock said then, in microseconds.
    offset_us: u64,
    drift_ppm: i64,
    wall_offset_s: i64,
}

impl Clock {
    /// The clock of node `node`, started at `began` for the `life`th time. Drift and wall clock are the
    /// node's, the offset is the process's.
    pub fn new(seed: u64, node: usize, life: u32, began: Time) -> Self {
        let mut own = Draws::new(seed, DrawFor::Clock, node as u64);
        let drift_ppm = own.draw().below(2 * DRIFT_PPM_MAX as u64 + 1) as i64 - DRIFT_PPM_MAX;
        let wall_offset_s = own.draw().below(61) as i64 - 30;
        let mut lives = Draws::new(seed, DrawFor::Clock, 1000 * (node as u64 + 1) + u64::from(life));
        let offset_us = lives.draw().below(1_000_000_000);
        Self { began, offset_us, drift_ppm, wall_offset_s }
    }

    /// The wall clock is set, by so many seconds. Whatever else it counts goes on as before.
    pub fn set_wall(&mut self, by_s: i64) {
        self.wall_offset_s = self.wall_offset_s.saturating_add(by_s);
    }

    /// What it says when the world's time is `at`.
    pub fn now(&self, at: Time) -> Now {
        let passed = at.0.saturating_sub(self.began.0);
        let local = self.offset_us + scaled(passed, 1_000_000 + self.drift_ppm, 1_000_000);
        let unix_s = (EPOCH_UNIX_S + at.0 / 1_000_000).saturating_add_signed(self.wall_offset_s);
        Now { time: Time(local), unix_s }
    }

    /// The first time of the world at which it says `local` or more.
    pub fn when(&self, local: Time) -> Time {
        let ahead = local.0.saturating_sub(self.offset_us);
        if ahead > u64::MAX / 4_000_000 {
            return Time(u64::MAX / 2); // never
        }
        let passed = scaled(ahead, 1_000_000, 1_000_000 + self.drift_ppm);
        let at = |passed: u64| Time(self.began.0 + passed);
        let is_late = |passed: &u64| self.now(at(*passed)).time >= local;
        (passed..).find(is_late).map(at).expect("a clock gets everywhere")
    }
}

fn scaled(value: u64, times: i64, over: i64) -> u64 {
    (u128::from(value) * times as u128 / over as u128) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_met_and_not_early() {
        for node in 0..20 {
            let clock = Clock::new(3, node, 1, Time(500));
            for ahead in [0, 1, 999, 123_456_789] {
                let local = Time(clock.now(Time(500)).time.0 + ahead);
                let at = clock.when(local);
                assert!(clock.now(at).time >= local);
                assert!(at.0 == 500 || clock.now(Time(at.0 - 1)).time < local, "node {node} ahead {ahead}");
            }
        }
    }

    #[test]
    fn a_wall_clock_that_is_set_moves_nothing_else_and_shows_no_time_before_1970() {
        let at = Time(2_000_000);
        let mut clock = Clock::new(3, 1, 0, Time(0));
        let before = clock.now(at);
        clock.set_wall(86_400);
        assert_eq!((clock.now(at).time, clock.now(at).unix_s), (before.time, before.unix_s + 86_400));
        clock.set_wall(-100 * 31_536_000);
        assert_eq!((clock.now(at).time, clock.now(at).unix_s), (before.time, 0));
        clock.set_wall(100 * 31_536_000 - 86_400);
        assert_eq!(clock.now(at), before);
    }

    #[test]
    fn a_deadline_that_never_comes_is_no_overflow() {
        let clock = Clock::new(3, 1, 0, Time(0));
        assert!(clock.when(Time(u64::MAX)) > Time(u64::MAX / 4));
    }
}
