//! Runs seeds against bugs that are planted in the machine, to see that each is found.
//!
//! Without feature `planted` the machine has none, and there is nothing to run.

use crate::invariants::Failure;
use crate::run::run_with;
use crate::scenario::{Kind, RunSelection};
use crate::world::Options;

/// A planted bug, and what finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Planted {
    /// Its name.
    pub name: &'static str,
    /// What the machine does wrong.
    pub what: &'static str,
    #[cfg(feature = "planted")]
    bug: exo_machine::planted::Bug,
    /// The invariants that it breaks. Another one that breaks first finds it as well.
    pub invariants: &'static [&'static str],
    /// What the runs are about in which it is sought.
    pub kind: Kind,
}

/// The bugs.
pub const PLANTED: &[Planted] = &[
    Planted {
        name: "cancelled-by-anyone",
        what: "whoever names a sequence may cancel it",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::Scheduler(exo_cluster::SchedulerBug::CancelledByAnyone),
        invariants: &["quiet_stays_quiet", "text_in_order"],
        kind: Kind::Wire,
    },
    Planted {
        name: "returned-by-anyone",
        what: "any member may say what came of a step",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::Scheduler(exo_cluster::SchedulerBug::ReturnedByAnyone),
        invariants: &["text_in_order", "quiet_stays_quiet"],
        kind: Kind::Wire,
    },
    Planted {
        name: "any-token",
        what: "a token that is none of the model goes into the pipeline",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::Scheduler(exo_cluster::SchedulerBug::AnyToken),
        invariants: &["quiet_stays_quiet", "stages_get_what_fits"],
        kind: Kind::Wire,
    },
    Planted {
        name: "asked-forever",
        what: "a question whose answer is lost is not given up",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::AskedForever,
        invariants: &["questions_end_in_bound"],
        kind: Kind::Faults,
    },
    Planted {
        name: "leads-without-disk",
        what: "who coordinates and cannot write its log goes on",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::LeadsWithoutDisk,
        invariants: &["who_cannot_write_steps_aside"],
        kind: Kind::Faults,
    },
    Planted {
        name: "announce-early",
        what: "`Writes` hands out `Durable` before `Persisted`",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::AnsweredEarly,
        invariants: &["announced_is_durable"],
        kind: Kind::Faults,
    },
    Planted {
        name: "older-epoch",
        what: "`leads()` takes an older epoch",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::OlderEpoch,
        invariants: &["older_epoch_changes_nothing"],
        kind: Kind::Faults,
    },
    Planted {
        name: "forget-trouble",
        what: "`instance_failures` are cleared by any `Instances` message",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::ForgottenTrouble,
        invariants: &["trouble_leaves_ready_in_5_s"],
        kind: Kind::Faults,
    },
    Planted {
        name: "trust-early",
        what: "entries of the log of trust are told before they are on disk",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::TrustEarly,
        invariants: &["announced_is_durable"],
        kind: Kind::Join,
    },
    Planted {
        name: "hearsay",
        what: "whom a refused entry lets in may connect",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::Hearsay,
        invariants: &["members_are_signed_in"],
        kind: Kind::Lies,
    },
    Planted {
        name: "long-answer",
        what: "what is submitted again asks for as many tokens as the first time",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::LongAnswer,
        invariants: &["text_in_order"],
        kind: Kind::Faults,
    },
    Planted {
        name: "no-second-chance",
        what: "an answer that is interrupted fails",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::NoSecondChance,
        invariants: &["answers_go_on"],
        kind: Kind::Faults,
    },
    Planted {
        name: "lost-means-unlinked",
        what: "that a node is gone ends what another run of it has submitted meanwhile",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::LostMeansUnlinked,
        invariants: &["answers_move", "answers_go_on"],
        kind: Kind::Faults,
    },
    Planted {
        name: "answered-alone",
        what: "an answer waits for no second member and says that one holds it",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::AnsweredAlone,
        invariants: &["acknowledged_is_kept"],
        kind: Kind::Faults,
    },
    Planted {
        name: "less-wins",
        what: "elections do not look at the logs, and who was elected goes on with its own",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::LessWins,
        invariants: &["acknowledged_is_kept", "placed_stays_placed", "answers_go_on"],
        kind: Kind::Faults,
    },
    Planted {
        name: "unchecked",
        what: "what a coordinator sends is written whether it can follow or not",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::Unchecked,
        invariants: &["log_stays_whole"],
        kind: Kind::Lies,
    },
    Planted {
        name: "says-planned",
        what: "a follower says that it has what is only on its way to its disk",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::SaysPlanned,
        invariants: &["announced_is_durable"],
        kind: Kind::Faults,
    },
    Planted {
        name: "open-door",
        what: "who asks is let in, whether the window is open or not",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::OpenDoor,
        invariants: &["members_are_signed_in"],
        kind: Kind::Strangers,
    },
    Planted {
        name: "tells-strangers",
        what: "whoever asks for entries of the log of trust is told them",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::TellsStrangers,
        invariants: &["strangers_stay_out"],
        kind: Kind::Strangers,
    },
    Planted {
        name: "far-window",
        what: "who asks while the window is open is let in from wherever it asks",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::FarWindow,
        invariants: &["an_open_window_lets_in"],
        kind: Kind::Window,
    },
    Planted {
        name: "window-by-clock-alone",
        what: "the time that nodes run ends no window",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::WindowByClockAlone,
        invariants: &["an_open_window_lets_in", "only_new_nodes_join"],
        kind: Kind::Window,
    },
    Planted {
        name: "always-new",
        what: "a node that is not new any more asks whom it finds to let it in",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::AlwaysNew,
        invariants: &["only_new_nodes_join"],
        kind: Kind::Window,
    },
    Planted {
        name: "yields-to-anyone",
        what: "a coordinator that a majority follows yields to whoever announces a higher epoch",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::YieldsToAnyone,
        invariants: &["a_majority_keeps_its_coordinator"],
        kind: Kind::Lies,
    },
    Planted {
        name: "no-resend",
        what: "a follower that has lost a part of the log is not sent it again",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::NoResend,
        invariants: &["logs_agree"],
        kind: Kind::Faults,
    },
    Planted {
        name: "epoch-early",
        what: "an epoch is acted in before it is on disk",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::EpochEarly,
        invariants: &["announced_is_durable"],
        kind: Kind::Faults,
    },
    Planted {
        name: "no-rewire",
        what: "a stage begins the next term without waiting for its engine, which drops nothing",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::NoRewire,
        invariants: &["engines_get_what_fits", "text_in_order"],
        kind: Kind::Faults,
    },
    Planted {
        name: "keeps-pages",
        what: "an engine serves another placement with the pages of the one before",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::KeepsPages,
        invariants: &["engines_get_what_fits", "text_in_order"],
        kind: Kind::Faults,
    },
    Planted {
        name: "gives-up",
        what: "an instance that waits for memory is unloaded",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::GivesUp,
        invariants: &["placed_stays_placed"],
        kind: Kind::Faults,
    },
    Planted {
        name: "removed-stays",
        what: "a removed member may connect",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::RemovedStays,
        invariants: &["members_are_signed_in"],
        kind: Kind::Lies,
    },
    Planted {
        name: "other-seed",
        what: "what is submitted again is sampled with another seed",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::OtherSeed,
        invariants: &["text_in_order"],
        kind: Kind::Faults,
    },
    Planted {
        name: "short-history",
        what: "what is submitted again has lost its last token",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::ShortHistory,
        invariants: &["text_in_order", "answers_go_on"],
        kind: Kind::Faults,
    },
    Planted {
        name: "forgets-named",
        what: "an engine forgets the pages that its stage says outlive the term",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::ForgetsNamed,
        invariants: &["engines_get_what_fits"],
        kind: Kind::Faults,
    },
    Planted {
        name: "unreported",
        what: "that a scheduler gave up is not reported",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::Unreported,
        invariants: &["trouble_leaves_ready_in_5_s"],
        kind: Kind::Faults,
    },
    Planted {
        name: "quiet-loss",
        what: "a stage whose engine died is not missed",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::QuietLoss,
        invariants: &["agrees_and_serves_in_20_s", "answers_go_on"],
        kind: Kind::Faults,
    },
    Planted {
        name: "copy-reversed",
        what: "the copy of a request has its new tokens in the wrong order",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::CopyReversed,
        invariants: &["text_in_order"],
        kind: Kind::Faults,
    },
    Planted {
        name: "failed-is-written",
        what: "a write of the log that failed counts as written",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::FailedIsWritten,
        invariants: &["announced_is_durable", "logs_agree"],
        kind: Kind::Faults,
    },
    Planted {
        name: "told-twice",
        what: "the first token behind an interruption is told twice",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::ToldTwice,
        invariants: &["text_in_order"],
        kind: Kind::Faults,
    },
    Planted {
        name: "never-rests",
        what: "the machine asks for its timer at once",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::NeverRests,
        invariants: &["timers_rest"],
        kind: Kind::Faults,
    },
    Planted {
        name: "thrice-told",
        what: "tokens are sent three times",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::ThriceTold,
        invariants: &["copies_linear_in_batch"],
        kind: Kind::Faults,
    },
    Planted {
        name: "not-restored",
        what: "a snapshot is written, and the coordinator goes on with what it had",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::NotRestored,
        invariants: &["agrees_and_serves_in_20_s", "logs_agree"],
        kind: Kind::Faults,
    },
    Planted {
        name: "deaf-drivers",
        what: "drivers do not hear that a link ended",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::DeafDrivers,
        invariants: &["answers_move", "answers_go_on", "request_ends_in_bound"],
        kind: Kind::Faults,
    },
    Planted {
        name: "loss-unsaid",
        what: "that a node is gone is not told to who coordinates",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::LossUnsaid,
        invariants: &["loss_leaves_ready_in_6_s"],
        kind: Kind::Faults,
    },
    Planted {
        name: "up-unsaid",
        what: "that a node is there is not told to who coordinates",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::UpUnsaid,
        invariants: &["agrees_and_serves_in_20_s"],
        kind: Kind::Faults,
    },
    Planted {
        name: "believes-all-named",
        what: "every page that step 0 names counts as kept, also where a stage lacks it",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::Scheduler(exo_cluster::SchedulerBug::BelievesAllNamed),
        invariants: &["stages_get_what_fits"],
        kind: Kind::Faults,
    },
    Planted {
        name: "believes-rebuilt",
        what: "pages that a stage lacks since it was loaded anew count as there",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::Scheduler(exo_cluster::SchedulerBug::BelievesRebuilt),
        invariants: &["stages_get_what_fits"],
        kind: Kind::Faults,
    },
    Planted {
        name: "adopts-unasked",
        what: "pages that stages offer to a scheduler on another node count as kept by all of them",
        #[cfg(feature = "planted")]
        bug: exo_machine::planted::Bug::Scheduler(exo_cluster::SchedulerBug::AdoptsUnasked),
        invariants: &["engines_get_what_fits", "stages_get_what_fits"],
        kind: Kind::Faults,
    },
];

/// The one of this name.
pub fn named(name: &str) -> Result<&'static Planted, String> {
    PLANTED.iter().find(|bug| bug.name == name).ok_or_else(|| {
        let known: Vec<&str> = PLANTED.iter().map(|bug| bug.name).collect();
        format!("{name} is no planted bug; there are {}", known.join(", "))
    })
}

/// What seeds made of a bug.
#[derive(Clone, PartialEq, Debug)]
pub struct HuntResult {
    /// Seeds that were run.
    pub seeds: u64,
    /// The seed and what it broke; `None` if no seed broke anything.
    pub broken: Option<(u64, Failure)>,
}

/// Runs seeds with a bug from `from` on until one breaks what it does not break without, `seeds_max` at most.
pub fn hunt(bug: &Planted, from: u64, seeds_max: u64) -> HuntResult {
    for seed in from..from + seeds_max {
        let choice = RunSelection::all(seed, bug.kind);
        let Some(failure) = run_with(&choice, bug.options()).failure else { continue };
        let without = run_with(&choice, Options::default()).failure;
        if without.is_none_or(|without| without.invariant != failure.invariant) {
            return HuntResult { seeds: seed - from + 1, broken: Some((seed, failure)) };
        }
    }
    HuntResult { seeds: seeds_max, broken: None }
}

impl Planted {
    /// Options of a run in which every machine has the bug.
    pub fn options(&self) -> Options {
        Options {
            #[cfg(feature = "planted")]
            planted: Some(self.bug),
            ..Options::default()
        }
    }
}
