//! Every wait of this crate's machines, with its bound: rows of the table in `docs/failure-model.md`.

use std::time::Duration;

use crate::coordinator::{planning, survey, unblamed};
use crate::driver::{
    LAST_TOKENS_WITHIN, PLACEMENTS_IN_VAIN_MAX, PREFILL_DEADLINE_PER_TOKEN, SUBMIT_AGAIN_AFTER, interrupt,
};
use crate::scheduler::{STEP_PER_TOKEN, opening, outcome, terms};
use crate::stage::held;
use crate::wire::limits::PAGES_OF_TERM_MAX;
use crate::{DriverConfig, worker};

/// A time, to be displayed.
pub fn time(time: Duration) -> String {
    match time.as_millis() {
        ms if ms % 60_000 == 0 => format!("{} min", ms / 60_000),
        ms if ms % 1000 == 0 => format!("{} s", ms / 1000),
        ms => format!("{ms} ms"),
    }
}

/// The bounds of requests, steps, stages, loads and plans: what waits, for how long at most, whose machine
/// watches it, and what happens then.
pub fn rows() -> String {
    [of_requests(), of_steps(), of_instances()].concat()
}

fn of_requests() -> String {
    let driver = DriverConfig::default();
    format!(
        "| a request until it runs (placing, loading, queueing, also again where it was lost in a queue), since it came or loading last moved on, which it does for 15 min while a hub asks to wait | {queue_deadline}; of an answer that a lost node began `stream_pause_max`, where that is longer. Of placements in a row that come no further than one before, {in_vain_max} count as moving on | driver | `Deadline` with what it waits for; streams see it as comment lines all the while |\n\
         | an answer between two signs of progress | {idle_deadline} (first token: + {prefill_deadline_per_token} for each token of its history) | driver | before its first token `Deadline`; behind it the answer is interrupted and computed again, and the third time without a token between them is `Deadline` |\n\
         | an answer that was interrupted once it ran, until its next token, without the time in which it is computed | `stream_pause_max`, {pause_max} unless set | driver | `StageLost` with what was lost and what it waited for; streams see `: interrupted: …` all the while |\n\
         | an interrupted answer whose instance is no more | {gone_max} | driver | `InstanceGone`: somebody unloaded it |\n\
         | failures of an answer's steps other than a lost stage | {setbacks_max} of one kind in one placement without a token between them; of its grammar 1 | driver | the failure's own kind (`Device`, `OutOfMemory`, `Protocol`, `Constraint`) |\n\
         | an answer that was accepted before and finds a queue full | {submit_again_after} | driver | it asks again, within the bounds above |\n\
         | the last tokens after `SequenceEnded` | {last_tokens_within} | driver | `Deadline` with how many arrived |\n\
         | a whole request without its pauses; all texts of one for vectors together, with them | {overall_deadline} | driver | `Deadline` |\n",
        queue_deadline = time(driver.queue_deadline),
        in_vain_max = PLACEMENTS_IN_VAIN_MAX,
        idle_deadline = time(driver.idle_deadline),
        prefill_deadline_per_token = time(PREFILL_DEADLINE_PER_TOKEN),
        pause_max = time(driver.pause_max),
        gone_max = time(interrupt::GONE_MAX),
        setbacks_max = interrupt::SETBACKS_MAX,
        submit_again_after = time(SUBMIT_AGAIN_AFTER),
        last_tokens_within = time(LAST_TOKENS_WITHIN),
        overall_deadline = time(driver.overall_deadline),
    )
}

fn of_steps() -> String {
    format!(
        "| a step at the head of the pipeline | {step_deadline} + {step_per_token} for each token; where four steps of its size came back, 8 times what they took, at least 2 s, or 200 times and at least 6 s where none had come back for 5 s | scheduler | the term ends: running answers are interrupted and queued again, weights stay |\n\
         | a step on a graphics card, once the one in front of it is done | `step_max_s` + {step_per_token} for each token | the card's node | its process is ended and started again: as a lost stage |\n\
         | step 0 of a term, once no stage is being loaded | {opening_max}; sooner where two answers, more than {link_missing_max} apart, name a link that an earlier term had | scheduler | the instance is repaired: its answers stay interrupted meanwhile |\n\
         | pages that outlive a term, until a sequence begins with them | no bound in time, {PAGES_OF_TERM_MAX} pages; the oldest go when a step needs the room | scheduler | their tokens are computed again |\n\
         | step 0 for a stage that is not there yet | {hold_max} | the stage's node | `NotWired`: step 0 comes again after 250 ms |\n\
         | terms without a token | {terms_max} within {within} | scheduler | the instance is repaired |\n",
        step_deadline = time(outcome::STEP_DEADLINE),
        step_per_token = time(STEP_PER_TOKEN),
        opening_max = time(opening::OPENING_MAX),
        link_missing_max = time(opening::LINK_MISSING_MAX),
        hold_max = time(held::HOLD_MAX),
        terms_max = terms::TERMS_MAX,
        within = time(terms::WITHIN),
    )
}

fn of_instances() -> String {
    format!(
        "| a load or fetch without a byte, where no hub asks to wait | {stall_deadline} | worker | it is cancelled and tried again after 1, 2, 4 … 30 s |\n\
         | a stage without progress in loading (15 min more while a hub asks to wait) | {load_deadline} | coordinator | it goes to another device; an instance that never served and has no other is given up with the reason |\n\
         | loads that a device refuses | {failed_loads_max} in a row | coordinator | the same |\n\
         | a device that failed a stage | {avoid_failed}, {avoid_refused} where it refused to load | coordinator | lost stages of that instance may go there again; at once where there is no other device |\n\
         | trouble on the same devices that blames none of them | {troubles_max} times within {within} | coordinator | one of the stages goes elsewhere, where another device takes it |\n\
         | placements of one instance that do not become ready | {replacements_max} in a row, then {look_later} | coordinator | `waiting` with the reason meanwhile; one that never served is given up |\n\
         | an instance that fits nowhere | no bound; looked at after {look_every}, then later and later up to {look_max}, and when a node comes | coordinator | `waiting` with what is missing; `exo unload` ends it; its answers have the bound above |\n\
         | a plan, from the ask on | {plan_deadline} | coordinator | `Refused(NoPlan)`; for a replacement it is tried again after 5 s |\n\
         | members that a new coordinator has not heard | {settle} | coordinator | their stages are lost |\n",
        stall_deadline = time(worker::STALL_DEADLINE),
        load_deadline = time(survey::LOAD_DEADLINE),
        failed_loads_max = survey::FAILED_LOADS_MAX,
        avoid_failed = time(survey::AVOID_FAILED),
        avoid_refused = time(survey::AVOID_REFUSED),
        troubles_max = unblamed::TROUBLES_MAX,
        within = time(unblamed::WITHIN),
        replacements_max = survey::REPLACEMENTS_MAX,
        look_later = time(survey::LOOK_LATER),
        look_every = time(survey::LOOK_EVERY),
        look_max = time(survey::LOOK_MAX),
        plan_deadline = time(planning::PLAN_DEADLINE),
        settle = time(survey::SETTLE),
    )
}
