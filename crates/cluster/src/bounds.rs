//! Every wait of this crate's machines, with its bound: rows of the table in `docs/failure-model.md`.

use std::time::Duration;

use crate::coordinator::{survey, unblamed};
use crate::driver::{LAST_TOKENS_WITHIN, SUBMIT_AGAIN_AFTER, interrupt};
use crate::scheduler::{STEP_PER_TOKEN, opening, terms};
use crate::stage::held;
use crate::wire::limits::PAGES_OF_TERM_MAX;
use crate::{CoordinatorConfig, DriverConfig, SchedulerConfig, WorkerConfig};

/// A state that something can be in, and what ends it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bound {
    /// What waits.
    pub what: &'static str,
    /// For how long at most.
    pub bound: String,
    /// Whose machine watches it.
    pub owner: &'static str,
    /// What happens then, and what the user sees.
    pub then: &'static str,
}

impl Bound {
    /// A row.
    pub fn new(what: &'static str, bound: String, owner: &'static str, then: &'static str) -> Self {
        Self { what, bound, owner, then }
    }
}

/// A time, to be displayed.
pub fn time(time: Duration) -> String {
    match time.as_millis() {
        ms if ms % 60_000 == 0 => format!("{} min", ms / 60_000),
        ms if ms % 1000 == 0 => format!("{} s", ms / 1000),
        ms => format!("{ms} ms"),
    }
}

/// The bounds of requests, steps, stages, loads and plans.
pub fn bounds() -> Vec<Bound> {
    [of_requests(), of_steps(), of_instances()].concat()
}

fn of_requests() -> Vec<Bound> {
    let driver = DriverConfig::default();
    let idle = format!(
        "{} (first token: + {} for each token of its history)",
        time(driver.idle_deadline),
        time(driver.prefill_deadline_per_token)
    );
    let setbacks = format!(
        "{} of one kind in one placement without a token between them; of its grammar 1",
        interrupt::SETBACKS_MAX
    );
    vec![
        Bound::new(
            "a request until it runs (placing, loading, queueing, also again where it was lost in a queue), since it came or loading \
             last moved on, which it does for 15 min while a hub asks to wait",
            format!(
                "{}; of an answer that a lost node began `stream_pause_max`, where that is longer",
                time(driver.queue_deadline)
            ),
            "driver",
            "`Deadline` with what it waits for; streams see it as comment lines all the while",
        ),
        Bound::new(
            "an answer between two signs of progress",
            idle,
            "driver",
            "before its first token `Deadline`; behind it the answer is interrupted and computed again, and the third time without a \
             token between them is `Deadline`",
        ),
        Bound::new(
            "an answer that was interrupted once it ran, until its next token, without the time in which it is computed",
            format!("`stream_pause_max`, {} unless set", time(driver.pause_max)),
            "driver",
            "`StageLost` with what was lost and what it waited for; streams see `: interrupted: …` all the while",
        ),
        Bound::new(
            "an interrupted answer whose instance is no more",
            time(interrupt::GONE_MAX),
            "driver",
            "`InstanceGone`: somebody unloaded it",
        ),
        Bound::new(
            "failures of an answer's steps other than a lost stage",
            setbacks,
            "driver",
            "the failure's own kind (`Device`, `OutOfMemory`, `Protocol`, `Constraint`)",
        ),
        Bound::new(
            "an answer that was accepted before and finds a queue full",
            time(SUBMIT_AGAIN_AFTER),
            "driver",
            "it asks again, within the bounds above",
        ),
        Bound::new(
            "the last tokens after `SequenceEnded`",
            time(LAST_TOKENS_WITHIN),
            "driver",
            "`Deadline` with how many arrived",
        ),
        Bound::new(
            "a whole request without its pauses; all texts of one for vectors together, with them",
            time(driver.overall_deadline),
            "driver",
            "`Deadline`",
        ),
    ]
}

fn of_steps() -> Vec<Bound> {
    let scheduler = SchedulerConfig::default();
    let step = format!(
        "{} + {} for each token; where four steps of its size came back, 8 times what they took, at least 2 s, or 200 times and \
         at least 6 s where none had come back for 5 s",
        time(scheduler.step_deadline),
        time(scheduler.step_deadline_per_token)
    );
    let in_vain = format!("{} within {}", terms::TERMS_MAX, time(terms::WITHIN));
    vec![
        Bound::new(
            "a step at the head of the pipeline",
            step,
            "scheduler",
            "the term ends: running answers are interrupted and queued again, weights stay",
        ),
        Bound::new(
            "a step on a graphics card, once the one in front of it is done",
            format!("`step_max_s` + {} for each token", time(STEP_PER_TOKEN)),
            "the card's node",
            "its process is ended and started again: as a lost stage",
        ),
        Bound::new(
            "step 0 of a term, once no stage is being loaded",
            format!(
                "{}; sooner where two answers, more than {} apart, name a link that an earlier term had",
                time(opening::OPENING_MAX),
                time(opening::LINK_MISSING_MAX)
            ),
            "scheduler",
            "the instance is repaired: its answers stay interrupted meanwhile",
        ),
        Bound::new(
            "pages that outlive a term, until a sequence begins with them",
            format!("no bound in time, {PAGES_OF_TERM_MAX} pages; the oldest go when a step needs the room"),
            "scheduler",
            "their tokens are computed again",
        ),
        Bound::new(
            "step 0 for a stage that is not there yet",
            time(held::HOLD_MAX),
            "the stage's node",
            "`NotWired`: step 0 comes again after 250 ms",
        ),
        Bound::new("terms without a token", in_vain, "scheduler", "the instance is repaired"),
    ]
}

fn of_instances() -> Vec<Bound> {
    let (coordinator, worker) = (CoordinatorConfig::default(), WorkerConfig::default());
    let again = format!("{} in a row, then {}", coordinator.replacements_max, time(survey::LOOK_LATER));
    vec![
        Bound::new(
            "a load or fetch without a byte, where no hub asks to wait",
            time(worker.stall_deadline),
            "worker",
            "it is cancelled and tried again after 1, 2, 4 … 30 s",
        ),
        Bound::new(
            "a stage without progress in loading (15 min more while a hub asks to wait)",
            time(coordinator.load_deadline),
            "coordinator",
            "it goes to another device; an instance that never served and has no other is given up with the reason",
        ),
        Bound::new(
            "loads that a device refuses",
            format!("{} in a row", coordinator.failed_loads_max),
            "coordinator",
            "the same",
        ),
        Bound::new(
            "a device that failed a stage",
            format!(
                "{}, {} where it refused to load",
                time(survey::AVOID_FAILED),
                time(survey::AVOID_REFUSED)
            ),
            "coordinator",
            "lost stages of that instance may go there again; at once where there is no other device",
        ),
        Bound::new(
            "trouble on the same devices that blames none of them",
            format!("{} times within {}", unblamed::TROUBLES_MAX, time(unblamed::WITHIN)),
            "coordinator",
            "one of the stages goes elsewhere, where another device takes it",
        ),
        Bound::new(
            "placements of one instance that do not become ready",
            again,
            "coordinator",
            "`waiting` with the reason meanwhile; one that never served is given up",
        ),
        Bound::new(
            "an instance that fits nowhere",
            format!(
                "no bound; looked at after {}, then later and later up to {}, and when a node comes",
                time(survey::LOOK_EVERY),
                time(survey::LOOK_MAX)
            ),
            "coordinator",
            "`waiting` with what is missing; `exo unload` ends it; its answers have the bound above",
        ),
        Bound::new(
            "a plan, from the ask on",
            time(coordinator.plan_deadline),
            "coordinator",
            "`Refused(NoPlan)`; for a replacement it is tried again after 5 s",
        ),
        Bound::new(
            "members that a new coordinator has not heard",
            time(coordinator.settle),
            "coordinator",
            "their stages are lost",
        ),
    ]
}
