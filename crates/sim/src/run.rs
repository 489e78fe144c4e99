//! One run: a choice, a world, a report.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::invariants::{ALL, Failure};
use crate::scenario::{RunSelection, Scenario};
use crate::world::{Options, Report, World};

/// Runs a choice with all invariants.
pub fn run(choice: &RunSelection) -> Report {
    run_with(choice, Options::default())
}

/// Runs a choice with all invariants. A panic, of a machine or of the simulator, is a failure like others.
pub fn run_with(choice: &RunSelection, options: Options) -> Report {
    let mut world = World::new(Scenario::new(choice), options, ALL);
    match catch_unwind(AssertUnwindSafe(|| world.run())) {
        Ok(report) => report,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            let text = text.unwrap_or_else(|| "a panic without words".to_owned());
            let mut report = world.report();
            report.failure = Some(Failure { invariant: "nothing_panics", at: report.until, text });
            report
        }
    }
}
