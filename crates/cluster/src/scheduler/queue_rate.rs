//! How fast answers end here, and so when a queue that is full has room again. No clock: times are fed in.

use exo_types::Time;

use crate::wire::limits::RETRY_S_MAX;

/// What to say before any answer has ended.
const RETRY_UNMEASURED_S: u32 = 5;
/// After so many answers a measurement counts half: load and lengths of answers change.
const MEMORY_ANSWERS: f64 = 16.0;

/// Answers that ended, over the time somebody was being answered; older ones count less.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QueueRate {
    answers: f64,
    seconds: f64,
    /// When the last answer ended, or the first began after a pause.
    since: Time,
}

impl QueueRate {
    /// After a pause somebody is answered again.
    pub(super) fn begin(&mut self, now: Time) {
        self.since = now;
    }

    /// An answer came to its own end.
    pub(super) fn ended(&mut self, now: Time) {
        let keep = 0.5f64.powf(1.0 / MEMORY_ANSWERS);
        self.answers = self.answers * keep + 1.0;
        self.seconds = self.seconds * keep + now.since(self.since).as_secs_f64();
        self.since = now;
    }

    /// When half of those `waiting` should have had their turn: whoever is refused comes back to a queue with
    /// room, not to its last free place.
    pub(super) fn retry_after_s(&self, now: Time, waiting: u32) -> u32 {
        if self.answers == 0.0 {
            return RETRY_UNMEASURED_S;
        }
        // Answers often end together: only a silence that as many as count would have filled makes them
        // slower.
        let silent = now.since(self.since).as_secs_f64() / MEMORY_ANSWERS;
        let each = (self.seconds / self.answers).max(silent);
        // However slow they are, room may come sooner: somebody gives up.
        ((each * f64::from(waiting) / 2.0).ceil() as u32).clamp(1, RETRY_S_MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    /// Four slots whose answers end together, every `every_ms`.
    fn busy(queue_rate: &mut QueueRate, from_ms: u64, every_ms: u64, rounds: u64) -> u64 {
        queue_rate.begin(at(from_ms));
        for round in 1..=rounds {
            (0..4).for_each(|_| queue_rate.ended(at(from_ms + round * every_ms)));
        }
        from_ms + rounds * every_ms
    }

    #[test]
    fn before_the_first_answer_a_guess_is_given() {
        assert_eq!(QueueRate::default().retry_after_s(at(9), 64), RETRY_UNMEASURED_S);
    }

    #[test]
    fn half_the_queue_has_its_turn_in_the_time_that_is_given() {
        // 64 wait, four are answered at a time: 32 have had their turn after eight rounds.
        for (every_ms, expected_s) in [(5, 1), (1000, 8), (3000, 24), (60_000, RETRY_S_MAX)] {
            let mut queue_rate = QueueRate::default();
            let end = busy(&mut queue_rate, 0, every_ms, 10);
            let given_s = queue_rate.retry_after_s(at(end), 64);
            assert!(given_s.abs_diff(expected_s) <= 1, "{every_ms} ms: {given_s}, not {expected_s}");
        }
    }

    #[test]
    fn a_pause_is_not_answering_and_a_silence_is() {
        let mut queue_rate = QueueRate::default();
        let end = busy(&mut queue_rate, 0, 1000, 10);
        let later = busy(&mut queue_rate, end + 3_600_000, 1000, 1);
        assert!(queue_rate.retry_after_s(at(later), 64) <= 9, "nobody was answered for an hour");
        assert!(queue_rate.retry_after_s(at(later + 20_000), 64) >= 20, "answers have become longer");
    }

    #[test]
    fn the_newest_answers_count_most() {
        let mut queue_rate = QueueRate::default();
        let end = busy(&mut queue_rate, 0, 4000, 30);
        let end = busy(&mut queue_rate, end, 500, 30);
        assert!(queue_rate.retry_after_s(at(end), 64) <= 6);
    }
}
