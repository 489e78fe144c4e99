//! How many strangers are dialled that no person named: addresses are what strangers say, so whoever names
//! many must not make this node knock at all of them.

use std::time::Duration;

use exo_types::Time;

/// Dials in a row: enough that sixty silent names cost a new node less than fifteen seconds.
const BURST: u32 = 24;
/// After them, one in so much time.
const ONE_IN: Duration = Duration::from_millis(250);

/// The dials that may be made.
#[derive(Debug, Default)]
pub(super) struct Dials {
    /// Of the burst, before those that time has given back.
    used: u32,
    since: Time,
}

impl Dials {
    /// Takes one, if there is one.
    pub(super) fn take(&mut self, now: Time) -> bool {
        let given_back = self.given_back(now);
        let used = self.used.saturating_sub(given_back);
        if used >= BURST {
            return false;
        }
        // What has passed of the next one's time is not lost.
        let since = if used == 0 { now } else { self.since + ONE_IN.saturating_mul(given_back) };
        (self.used, self.since) = (used + 1, since);
        true
    }

    /// When there is one, not before `at`.
    pub(super) fn ready_at(&self, at: Time) -> Time {
        if self.used < BURST { at } else { at.max(self.since + ONE_IN.saturating_mul(self.used + 1 - BURST)) }
    }

    /// How many time has given back by `now`.
    fn given_back(&self, now: Time) -> u32 {
        u32::try_from(now.since(self.since).as_millis() / ONE_IN.as_millis()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_burst_there_are_four_a_second() {
        let mut dials = Dials::default();
        let taken = (0..10_000).filter(|ms| dials.take(Time::from_millis(1000 + ms))).count();
        assert_eq!(
            taken,
            BURST as usize + 39,
            "one less than four a second: the first is given back after 250 ms"
        );
        let now = Time::from_millis(10_900); // the last one was given back at 10,750
        let at = dials.ready_at(now);
        assert!(at > now && at <= now + ONE_IN && dials.take(at) && !dials.take(at));
        assert_eq!(dials.ready_at(Time::from_millis(90_000)), Time::from_millis(90_000));
    }
}
