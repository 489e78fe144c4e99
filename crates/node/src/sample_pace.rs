//! When the next sample of this machine is taken: with messages that go out anyway, so that neither this
//! machine nor those that hear of the sample wake once more for it.

use std::time::Duration;

use tokio::time::Instant;

/// From a sample on, the first wake that sends something takes the next one. Four heartbeats of a coordinator
/// at rest are a second, and the network delays some.
const WITH_MESSAGES_AFTER: Duration = Duration::from_millis(980);
/// Without a message the next sample is this late: a heartbeat was due before it.
const WITHIN: Duration = Duration::from_millis(1250);

/// See the module.
pub struct SamplePace {
    /// When the next sample is taken at the latest.
    pub by: Instant,
}

impl SamplePace {
    /// The first sample is due at once.
    pub fn new(now: Instant) -> Self {
        Self { by: now }
    }

    /// Whether a sample is taken in this wake, which has sent messages or has not. If so, the next one's time
    /// begins.
    pub fn is_due(&mut self, now: Instant, has_sent: bool) -> bool {
        let early = if has_sent { WITHIN - WITH_MESSAGES_AFTER } else { Duration::ZERO };
        let is_due = now + early >= self.by;
        if is_due {
            self.by = now + WITHIN;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Milliseconds at which samples are taken by a node that wakes at these times and sends at some of them.
    fn samples(wakes: impl Iterator<Item = (u64, bool)>) -> Vec<u64> {
        let start = Instant::now();
        let mut pace = SamplePace::new(start);
        let taken = |(ms, has_sent)| pace.is_due(start + Duration::from_millis(ms), has_sent).then_some(ms);
        wakes.filter_map(taken).collect()
    }

    #[test]
    fn samples_fall_in_with_heartbeats_and_stay_with_them() {
        // Heartbeats each 251 ms, off the beginning by 100, and a wake each millisecond in between.
        let heartbeat = |ms: u64| ms % 251 == 100;
        let taken = samples((0..20_000).map(|ms| (ms, heartbeat(ms))));
        assert_eq!(taken[0], 0, "the first at once");
        assert!(taken[1..].iter().all(|ms| heartbeat(*ms)), "{taken:?}");
        assert!(taken.windows(2).all(|pair| (980..=1250).contains(&(pair[1] - pair[0]))), "{taken:?}");
        assert!(taken[2..].windows(2).all(|pair| pair[1] - pair[0] == 4 * 251), "{taken:?}");
    }

    #[test]
    fn a_node_that_sends_nothing_samples_all_the_same_and_one_that_always_sends_no_more_often() {
        let silent = samples((0..5000).map(|ms| (ms, false)));
        assert_eq!(silent, [0, 1250, 2500, 3750]);
        let busy = samples((0..3000).map(|ms| (ms, true)));
        assert_eq!(busy, [0, 980, 1960, 2940]);
    }
}
