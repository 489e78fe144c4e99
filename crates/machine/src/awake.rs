//! The time without what this process stood still, asleep or stopped.
//!
//! What is waited for through this node goes by it: requests, pipelines, copies of answers. What others
//! believe of this node goes by the clock, and what its own disk owes it by the time in which it ran.

use std::time::Duration;

use exo_types::Time;

/// A pause of this process that is no mere delay.
const STILL_MIN: Duration = Duration::from_secs(5);
/// At least so long between two pauses that count: a process that is stopped again and again must not put its
/// deadlines off for ever.
const STILL_AGAIN: Duration = Duration::from_secs(60);
/// So much of each pause counts as time in which this process ran: what waits ends where it is stopped all
/// the time, too.
const RAN_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Awake {
    now: Time,
    /// Without any pause, however short and often they are.
    ran: Time,
    /// The end of the last pause that counted.
    paused_at: Option<Time>,
}

impl Awake {
    pub(crate) fn new(now: Time) -> Self {
        Self { now, ran: now, paused_at: None }
    }

    pub(crate) fn now(&self) -> Time {
        self.now
    }

    /// The time in which this process ran: an answer that it could not read meanwhile may be there.
    pub(crate) fn ran(&self) -> Time {
        self.ran
    }

    /// From one look at the clock to the next. Between them there was something to do at `due`.
    pub(crate) fn pass(&mut self, before: Time, due: Time, now: Time) {
        let still = now.since(before.max(due));
        let is_rested = self.paused_at.is_none_or(|at| now.since(at) >= STILL_AGAIN + still);
        self.now = self.now + now.since(before);
        self.ran = self.ran + now.since(before).saturating_sub(still) + still.min(RAN_MAX);
        if still >= STILL_MIN && is_rested {
            let still_ms = u64::try_from(still.as_millis()).unwrap_or(u64::MAX);
            tracing::info!(target: "events::clock", still_ms, "this machine stood still");
            (self.now, self.paused_at) = (self.now - still, Some(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Time {
        Time::from_millis(seconds * 1000)
    }

    #[test]
    fn of_pauses_in_a_row_a_moment_each_counts_as_time_that_ran() {
        let mut awake = Awake::new(s(10));
        awake.pass(s(10), s(10), s(16));
        awake.pass(s(16), s(16), s(22));
        assert_eq!(awake.ran(), s(12));
        assert_eq!(awake.now(), s(16), "the second of them counts, as it is so soon");
        awake.pass(s(22), s(25), s(25));
        assert_eq!(awake.ran(), s(15), "a wait is no pause");
        awake.pass(s(25), s(27), s(60));
        assert_eq!(awake.ran(), s(18));
    }

    #[test]
    fn a_sleep_does_not_count_and_what_is_late_again_and_again_does() {
        let mut awake = Awake::new(s(10));
        awake.pass(s(10), s(11), s(12));
        assert_eq!(awake.now(), s(12), "a delay is no pause");
        awake.pass(s(12), s(13), s(143));
        assert_eq!(awake.now(), s(13));
        for at in 0..20 {
            awake.pass(s(143 + 7 * at), s(144 + 7 * at), s(150 + 7 * at));
        }
        // 140 s, of which two pauses of 6 s.
        assert_eq!(awake.now(), s(13 + 140 - 12));
        // An hour's sleep right behind a pause counts for nothing, and the next one for all of it.
        let before = awake.now();
        awake.pass(s(283), s(284), s(3884));
        awake.pass(s(3884), s(3974), s(3974));
        awake.pass(s(3974), s(3975), s(7575));
        assert!(awake.now().since(before) < Duration::from_secs(3800), "{:?}", awake.now());
    }
}
