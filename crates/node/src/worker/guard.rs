//! How often a device may be lost before it is used no more.

use std::collections::VecDeque;
use std::time::Duration;

use exo_types::Time;

/// Losses within [`WINDOW`] after which it is tried once more.
const LOSSES_MAX: usize = 3;
/// What lies further back is forgiven.
pub const WINDOW: Duration = Duration::from_secs(600);

/// What is done about a loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The device is verified after this wait (a driver may need a moment to recover), and used again.
    Verify { wait: Duration },
    /// It has been lost this often.
    GiveUp { losses: usize },
}

/// The losses of one device.
#[derive(Clone, Default, Debug)]
pub struct Guard {
    losses: VecDeque<Time>,
}

impl Guard {
    pub fn lost(&mut self, now: Time) -> Verdict {
        self.losses.retain(|at| now.since(*at) < WINDOW);
        self.losses.push_back(now);
        match self.losses.len() {
            losses if losses > LOSSES_MAX => Verdict::GiveUp { losses },
            losses => Verdict::Verify { wait: Duration::from_secs(losses as u64 - 1) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(at_s: &[u64]) -> Vec<Option<u64>> {
        let mut guard = Guard::default();
        let verdict = |at: &u64| match guard.lost(Time(at * 1_000_000)) {
            Verdict::Verify { wait } => Some(wait.as_secs()),
            Verdict::GiveUp { .. } => None,
        };
        at_s.iter().map(verdict).collect()
    }

    #[test]
    fn the_fourth_loss_within_ten_minutes_is_the_last() {
        assert_eq!(verdicts(&[0, 1, 2, 3]), [Some(0), Some(1), Some(2), None]);
        assert_eq!(verdicts(&[0, 200, 400, 599]), [Some(0), Some(1), Some(2), None]);
    }

    #[test]
    fn a_loss_now_and_then_is_forgiven() {
        assert_eq!(verdicts(&[0, 300, 600, 900, 1200]), [Some(0), Some(1), Some(1), Some(1), Some(1)]);
    }
}
