//! Bugs that the simulator must find. Only builds with the feature `planted` have them, and no shipped build
//! has that.

use exo_cluster::SchedulerBug;

/// A bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// What the coordinator decided is announced before it is on disk.
    AnsweredEarly,
    /// A command of an older epoch is followed.
    OlderEpoch,
    /// What a scheduler found broken is forgotten with any news of instances.
    ForgottenTrouble,
    /// Entries of the log of trust are told when they are only asked to be written.
    TrustEarly,
    /// Whom an entry lets in may connect, also when the entry is refused.
    Hearsay,
    /// What is submitted again asks for as many tokens as the first time.
    LongAnswer,
    /// An answer that is interrupted fails.
    NoSecondChance,
    /// That a node is gone ends what another run of it has submitted meanwhile.
    LostMeansUnlinked,
    /// An answer says that a second member holds what it says, and waits for none.
    AnsweredAlone,
    /// Elections do not look at the logs, and who was elected goes on with its own.
    LessWins,
    /// What a coordinator sends is written whether it can follow or not.
    Unchecked,
    /// A follower says that it has what is only on its way to its disk.
    SaysPlanned,
    /// A follower that has lost a part of the log is not sent it again.
    NoResend,
    /// An epoch is acted in before it is on disk.
    EpochEarly,
    /// A stage begins the next term without waiting for its engine, which drops nothing.
    NoRewire,
    /// An engine serves another placement with the pages of the one before.
    KeepsPages,
    /// An instance that waits for memory is unloaded.
    GivesUp,
    /// A removed member may connect.
    RemovedStays,
    /// Each submission has another seed.
    OtherSeed,
    /// What is submitted again has lost its last token.
    ShortHistory,
    /// An engine forgets the pages that its stage says outlive the term.
    ForgetsNamed,
    /// That a scheduler gave up is not reported.
    Unreported,
    /// A stage whose engine died is not missed.
    QuietLoss,
    /// The copy of a request has its new tokens in the wrong order.
    CopyReversed,
    /// A write of the log that failed counts as written.
    FailedIsWritten,
    /// The first token behind an interruption is told twice.
    ToldTwice,
    /// The machine asks for its timer at once.
    NeverRests,
    /// Tokens are sent three times.
    ThriceTold,
    /// A snapshot is written, and the coordinator goes on with what it had.
    NotRestored,
    /// Drivers do not hear that a link ended.
    DeafDrivers,
    /// That a node is gone is not told to who coordinates.
    LossUnsaid,
    /// That a node is there is not told to who coordinates.
    UpUnsaid,
    /// A question whose answer is lost is not given up.
    AskedForever,
    /// Who coordinates and cannot write its log goes on.
    LeadsWithoutDisk,
    /// Who asks is let in, whether the window is open or not.
    OpenDoor,
    /// Whoever asks for entries of the log of trust is told them.
    TellsStrangers,
    /// Who asks while the window is open is let in from wherever it asks.
    FarWindow,
    /// The time that nodes run ends no window.
    WindowByClockAlone,
    /// A node that is not new any more asks whom it finds to let it in.
    AlwaysNew,
    /// A coordinator that a majority follows yields to whoever announces a higher epoch.
    YieldsToAnyone,
    /// One of a scheduler.
    Scheduler(SchedulerBug),
}

impl crate::NodeMachine {
    pub(crate) fn has_bug(&self, bug: Bug) -> bool {
        self.config.planted == Some(bug)
    }

    pub(crate) fn scheduler_bug(&self) -> Option<SchedulerBug> {
        match self.config.planted? {
            Bug::Scheduler(bug) => Some(bug),
            _ => None,
        }
    }
}

/// An answer as it is when a second member has it on its disk.
pub(crate) fn held_by_two(mut reply: exo_cluster::wire::ControlReply) -> exo_cluster::wire::ControlReply {
    use exo_cluster::wire::ControlReply::{Done, Placed};
    if let Placed { holders, .. } | Done { holders } = &mut reply {
        *holders = 2;
    }
    reply
}
