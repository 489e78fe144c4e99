//! Bytes a second over the last seconds.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Longer hides that a line became slow, shorter jumps with each chunk.
const WINDOW: Duration = Duration::from_secs(8);
/// Two looks closer together tell nothing.
const APART: Duration = Duration::from_millis(200);

/// What came, and when.
#[derive(Debug, Default)]
pub struct Rate(VecDeque<(Instant, u64)>);

impl Rate {
    /// So many bytes are there now.
    pub fn note(&mut self, now: Instant, bytes: u64) {
        if self.0.back().is_none_or(|(last, _)| now.duration_since(*last) >= APART) {
            self.0.push_back((now, bytes));
        }
        while self.0.len() > 2 && self.0.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= WINDOW) {
            self.0.pop_front();
        }
    }

    /// Nothing comes any more.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Bytes a second from the oldest look to now; `None` before there are two, or while nothing came.
    pub fn bytes_per_s(&self, now: Instant) -> Option<f64> {
        let ((first, before), (_, after)) = (self.0.front()?, self.0.back()?);
        let elapsed = now.duration_since(*first).as_secs_f64();
        let bytes = after.saturating_sub(*before);
        (bytes > 0 && elapsed >= APART.as_secs_f64()).then(|| bytes as f64 / elapsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_that_of_the_last_seconds_and_falls_when_nothing_comes() {
        let (mut rate, start) = (Rate::default(), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert_eq!(rate.bytes_per_s(start), None);
        for second in 0..20 {
            rate.note(at(second * 1000), second * 100);
        }
        let fast = rate.bytes_per_s(at(19_000)).unwrap();
        assert!((fast - 100.0).abs() < 1.0, "{fast}");
        let slow = rate.bytes_per_s(at(27_000)).unwrap();
        assert!(slow < 60.0, "nothing came for eight seconds: {slow}");
        for second in 20..40 {
            rate.note(at(second * 1000), 1900);
        }
        assert_eq!(rate.bytes_per_s(at(40_000)), None);
        rate.clear();
        assert_eq!(rate.bytes_per_s(at(41_000)), None);
    }
}
