//! Why a model that requests wait for is not placed, and since when.

use std::time::Duration;

use exo_cluster::wire::{ControlRefusal, Undecided};
use exo_types::Time;

use crate::cut_off::CUT_OFF_AFTER;

/// What cannot be placed at the moment is asked for again after this long.
const PLACE_AGAIN: Duration = Duration::from_secs(1);

/// What requests for a model wait for that cannot be placed at the moment.
#[derive(Debug)]
pub(crate) struct PlacementWait {
    /// When it is asked for again.
    pub(crate) again_at: Time,
    /// What its requests are told meanwhile.
    pub(crate) why: String,
    /// Since when each answer was that it fits only over two members without a data link.
    apart_since: Option<Time>,
}

impl PlacementWait {
    /// The coordinator refused it, as before or for the first time.
    pub(crate) fn new(now: Time, refusal: &ControlRefusal, why: String, before: Option<&Self>) -> Self {
        let is_apart = matches!(refusal, ControlRefusal::NoPlan { why: Undecided::Apart { .. }, .. });
        let apart_since = is_apart.then(|| before.and_then(|before| before.apart_since).unwrap_or(now));
        Self { again_at: now + PLACE_AGAIN, why, apart_since }
    }

    /// Whether a link that is missing for it does not open in a moment.
    pub(crate) fn is_apart_for_long(&self, now: Time) -> bool {
        self.apart_since.is_some_and(|since| now.since(since) >= CUT_OFF_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use exo_types::NodeId;

    use super::*;

    #[test]
    fn only_what_is_apart_all_the_while_is_given_up() {
        let no_plan = |why| ControlRefusal::NoPlan { model_name: Some("m".to_owned()), why };
        let apart = no_plan(Undecided::Apart { a: NodeId([1; 32]), b: NodeId([2; 32]) });
        let late = no_plan(Undecided::Late { seconds: 30 });
        let at = |seconds: u64| Time::from_millis(1000 * seconds);
        let long = CUT_OFF_AFTER.as_secs();
        let given_up = |refusal_of: &dyn Fn(u64) -> ControlRefusal| {
            let mut wait: Option<PlacementWait> = None;
            (0..3 * long).find(|second| {
                let next =
                    PlacementWait::new(at(*second), &refusal_of(*second), String::new(), wait.as_ref());
                wait.insert(next).is_apart_for_long(at(*second))
            })
        };
        assert_eq!(given_up(&|_| apart.clone()), Some(long));
        assert_eq!(given_up(&|_| late.clone()), None, "it may be placed yet");
        let now_and_then = |second: u64| if second == 5 { late.clone() } else { apart.clone() };
        assert_eq!(given_up(&now_and_then), Some(6 + long), "it begins anew");
    }
}
