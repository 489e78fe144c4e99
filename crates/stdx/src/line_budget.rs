//! How many lines of a log one source may cause.

use std::time::{Duration, Instant};

/// So many lines at once, and so many a minute behind them.
#[derive(Clone, Debug)]
pub struct LineBudget {
    lines_max: f64,
    per_s: f64,
    left: f64,
    at: Instant,
}

impl LineBudget {
    /// All of it, at this time.
    pub fn new(now: Instant, lines_max: u32, per_minute: u32) -> Self {
        let (lines_max, per_s) = (f64::from(lines_max), f64::from(per_minute) / 60.0);
        Self { lines_max, per_s, left: lines_max, at: now }
    }

    /// One more line; whether it is within the budget.
    pub fn take(&mut self, now: Instant) -> bool {
        self.refill(now);
        let is_within = self.left >= 1.0;
        if is_within {
            self.left -= 1.0;
        }
        is_within
    }

    /// Whether as much is left as there was at first.
    pub fn is_full(&mut self, now: Instant) -> bool {
        self.refill(now);
        self.left >= self.lines_max
    }

    fn refill(&mut self, now: Instant) {
        let passed: Duration = now.saturating_duration_since(self.at);
        self.left = (self.left + passed.as_secs_f64() * self.per_s).min(self.lines_max);
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_lets_a_burst_through_and_then_so_many_a_minute() {
        let begun = Instant::now();
        let mut budget = LineBudget::new(begun, 240, 120);
        let mut taken = |s: u64| (0..1000).filter(|_| budget.take(begun + Duration::from_secs(s))).count();
        assert_eq!([0, 30, 31, 31, 30].map(&mut taken), [240, 60, 2, 0, 0]);
        assert_eq!(taken(3600), 240, "no more than at first");
        assert!(!budget.is_full(begun + Duration::from_secs(3600)));
        assert!(budget.is_full(begun + Duration::from_secs(3720)));
    }
}
