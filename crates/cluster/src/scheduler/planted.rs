//! Bugs of a scheduler that the simulator must find. Only builds with the feature `planted` have them.

use super::Scheduler;

/// A bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SchedulerBug {
    /// Every page that step 0 names counts as kept, whatever comes back.
    BelievesAllNamed,
    /// Pages that a stage lacks count as there.
    BelievesRebuilt,
    /// Pages that stages offer count as kept by all of them.
    AdoptsUnasked,
    /// Whoever names a sequence may cancel it.
    CancelledByAnyone,
    /// Any member may say what came of a step.
    ReturnedByAnyone,
    /// Tokens of a prompt are not looked at.
    AnyToken,
}

impl Scheduler {
    pub(super) fn has_bug(&self, bug: SchedulerBug) -> bool {
        self.config.planted == Some(bug)
    }
}
