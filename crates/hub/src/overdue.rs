//! When a source that has nothing left to do asks for what another one is bringing as well. This is the one
//! rule for ranges of a hub, for members, and between a hub and members.
//!
//! Whoever brings a chunk first counts, and the other one is ended. So a source that trickles holds up
//! nothing that another has, and what comes twice are a few chunks at the end.

use std::time::{Duration, Instant};

/// An answer that takes so long is slow, whatever was asked for. Longer than a member waits for room to
/// answer.
const SLOW_AFTER: Duration = Duration::from_secs(5);
/// After so long without a byte of the hub a fetcher keeps only what it has begun, and no other node is to
/// wait for what it has claimed.
pub(crate) const CLAIM_KEPT_MAX: Duration = SLOW_AFTER;
/// What is asked for twice must be here so much earlier.
const GAIN_MIN: Duration = Duration::from_secs(2);

/// How long the answers of one source take: of a range, of a member, of the hub.
#[derive(Clone, Debug)]
pub struct SourcePace {
    /// When something was asked of it or came last.
    heard: Instant,
    /// How long an answer takes, of which those that came last count most.
    each: Option<Duration>,
    slowest: Duration,
}

impl SourcePace {
    /// Of a source that was asked for nothing yet.
    pub fn new(now: Instant) -> Self {
        Self { heard: now, each: None, slowest: Duration::ZERO }
    }

    /// Of a source that took so long for an answer before.
    pub fn known(now: Instant, each: Option<Duration>) -> Self {
        Self { each, ..Self::new(now) }
    }

    /// It is asked for something, and owes nothing else.
    pub fn ask(&mut self, now: Instant) {
        self.heard = now;
    }

    /// It answered.
    pub fn answer(&mut self, now: Instant) {
        let took = self.silence(now);
        self.each = Some(self.each.map_or(took, |each| (each * 3 + took) / 4));
        self.slowest = self.slowest.max(took);
        self.heard = now;
    }

    /// How long an answer takes; `None` before the first.
    pub fn each(&self) -> Option<Duration> {
        self.each
    }

    /// Whether it is slow, of itself: what it has not begun is better asked of another.
    pub fn is_slow(&self, now: Instant) -> bool {
        self.each.unwrap_or_default().max(self.silence(now)) >= SLOW_AFTER
    }

    /// Whether it gives nothing any more.
    pub fn is_stalled(&self, now: Instant) -> bool {
        self.each.is_none() || self.silence(now) >= SLOW_AFTER.max(self.slowest * 2)
    }

    /// Whether an idle source, one that takes `each` for an answer, is to bring as well what comes of this
    /// one after `ahead` other answers. Of its next answer the part `came` (0 to 1) is here. An idle one of
    /// which nothing is known is tried where this one is silent.
    pub fn is_overdue(&self, now: Instant, (ahead, came): (usize, f64), each: Option<Duration>) -> bool {
        let silence = self.silence(now);
        let Some(each) = each else { return silence >= SLOW_AFTER };
        let missing = 1.0 - came.clamp(0.0, 1.0);
        let at_this_rate = match missing < 1.0 {
            false => seconds(silence),
            // As long as it took for what came, once that is longer than the idle one takes for all of it:
            // the first bytes of an answer say little of the others.
            true if silence >= each => seconds(silence) * missing / (1.0 - missing),
            true => 0.0,
        };
        let left = at_this_rate.max(seconds(self.each.unwrap_or_default()) * (ahead as f64 + missing));
        left >= seconds(each) * 2.0 + seconds(GAIN_MIN)
    }

    fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.heard)
    }
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A source that took so long for each of eight answers, and when the last one came.
    fn source(each: Duration) -> (SourcePace, Instant) {
        let mut now = Instant::now();
        let mut pace = SourcePace::new(now);
        for _ in 0..8 {
            now += each;
            pace.answer(now);
        }
        (pace, now)
    }

    #[test]
    fn what_a_slow_source_brings_last_is_overdue_for_a_fast_one_and_not_for_one_that_is_as_slow() {
        let (slow, now) = source(400 * MS);
        assert!(slow.is_overdue(now, (7, 0.0), Some(20 * MS)), "after 3.2 s");
        assert!(!slow.is_overdue(now, (1, 0.0), Some(20 * MS)), "after 0.8 s");
        assert!(!slow.is_overdue(now, (3, 0.0), Some(400 * MS)), "after 1.6 s");
        let (very_slow, now) = source(4000 * MS);
        assert!(
            very_slow.is_overdue(now, (0, 0.0), Some(400 * MS))
                && !very_slow.is_overdue(now, (0, 0.0), Some(4000 * MS))
        );
    }

    #[test]
    fn a_source_that_falls_silent_is_overdue_and_for_one_of_which_nothing_is_known_later() {
        let (pace, now) = source(10 * MS);
        let at = |ms: u32| now + ms * MS;
        assert!(
            !pace.is_overdue(at(2000), (0, 0.0), Some(10 * MS))
                && pace.is_overdue(at(2030), (0, 0.0), Some(10 * MS))
        );
        assert!(!pace.is_overdue(at(4999), (0, 0.0), None) && pace.is_overdue(at(5000), (0, 0.0), None));
        assert!(!pace.is_slow(at(4999)) && pace.is_slow(at(5000)));
    }

    #[test]
    fn of_an_answer_that_is_nearly_here_no_second_one_is_asked_for() {
        let (pace, now) = source(2000 * MS);
        let after = |ms: u32, came: f64| pace.is_overdue(now + ms * MS, (0, came), Some(2000 * MS));
        assert!(after(6000, 0.0) && after(6000, 0.5), "it takes as long again");
        assert!(!after(6000, 0.6), "4 s more");
        assert!(after(10_000, 0.6));
        assert!(!after(1999, 0.01) && after(2000, 0.01), "sooner than the idle one nothing is late");
    }

    #[test]
    fn a_source_stalls_when_it_gave_nothing_at_all_or_nothing_for_twice_its_longest_answer() {
        let now = Instant::now();
        assert!(SourcePace::new(now).is_stalled(now));
        let (pace, now) = source(10_000 * MS);
        assert!(!pace.is_stalled(now + 19_999 * MS) && pace.is_stalled(now + 20_000 * MS));
        let (pace, now) = source(10 * MS);
        assert!(!pace.is_stalled(now + 4999 * MS) && pace.is_stalled(now + 5000 * MS));
    }
}
