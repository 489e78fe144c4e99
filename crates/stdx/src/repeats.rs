//! What happens again and again, in a log.

use std::time::{Duration, Instant};

/// Counts what may happen many times a second, for a line now and then that says how often.
#[derive(Debug)]
pub struct Repeats {
    every: Duration,
    told_at: Option<Instant>,
    count: u64,
}

impl Repeats {
    /// Lines are at least this far apart.
    pub const fn new(every: Duration) -> Self {
        Self { every, told_at: None, count: 0 }
    }

    /// It happens once more: how often since the last line, if it is time for another.
    pub fn again(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        if self.told_at.is_some_and(|at| now.saturating_duration_since(at) < self.every) {
            return None;
        }
        self.told_at = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_told_at_once_and_the_next_line_counts_the_others() {
        let (mut repeats, began) = (Repeats::new(Duration::from_secs(10)), Instant::now());
        let told: Vec<_> = (0..25_000)
            .step_by(50)
            .filter_map(|ms| repeats.again(began + Duration::from_millis(ms)))
            .collect();
        assert_eq!(told, [1, 200, 200]);
    }
}
