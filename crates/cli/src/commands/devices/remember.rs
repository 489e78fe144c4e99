//! What asking the drivers showed, kept for the next start.

use std::path::Path;

use exo_device::{Known, Quarantine, Registry};

use super::probe::{Found, Outcome, PROBE_MAX, Silent, Source};
use crate::ui;

/// Notes devices that a driver showed in the registry of the data folder. What goes wrong is a warning: the next start
/// measures again.
pub fn all(data_dir: &Path, found: &[&Found]) {
    if found.is_empty() {
        return;
    }
    let now = exo_device::unix_s();
    let note = || -> anyhow::Result<Option<String>> {
        std::fs::create_dir_all(data_dir)?;
        let ((), warning) = Registry::change(data_dir, |registry| {
            // Those in quarantine were not opened.
            for found in found.iter().filter(|found| found.told.quarantine.is_none()) {
                registry.note(&found.identity, &found.api, known(found, now), now);
            }
        })?;
        Ok(warning)
    };
    match note() {
        Ok(warning) => warning.iter().for_each(|warning| ui::warning(warning)),
        Err(error) => ui::warning(&format!(
            "what was learnt of the graphics processors is not kept in {}: {error:#}",
            data_dir.display()
        )),
    }
}

/// Notes which drivers did not answer, so that the next start does not wait for them, and which do again.
pub fn drivers(data_dir: &Path, outcomes: &[Outcome]) {
    let is = |outcome: &Outcome, is_so: fn(&Silent) -> bool| {
        outcome.found.as_ref().is_err_and(|silence| is_so(&silence.kind))
    };
    let hung = outcomes.iter().filter(|outcome| is(outcome, |kind| *kind == Silent::Hung));
    let hung: Vec<Source> = hung.map(|outcome| outcome.source).collect();
    if hung.is_empty() && Registry::look(data_dir).has_no_drivers() {
        return;
    }
    let note = || -> anyhow::Result<Option<String>> {
        std::fs::create_dir_all(data_dir)?;
        let ((), warning) = Registry::change(data_dir, |registry| {
            let was_asked = |outcome: &&Outcome| {
                !is(outcome, |kind| matches!(kind, Silent::KeptOff(_) | Silent::Stopped))
            };
            let asked = outcomes.iter().filter(was_asked);
            asked.for_each(|outcome| registry.driver_answered(outcome.source.name()));
            for source in &hung {
                let reason = format!("it did not answer within {} s", PROBE_MAX.as_secs());
                let quarantine = Quarantine::new(&reason, exo_device::unix_s());
                registry.keep_off_driver(source.name(), driver_files(*source), quarantine);
            }
        })?;
        Ok(warning)
    };
    match note() {
        Ok(warning) => warning.iter().for_each(|warning| ui::warning(warning)),
        Err(error) => ui::warning(&format!(
            "that a driver did not answer is not kept in {}, so the next start asks it again: {error:#}",
            data_dir.display()
        )),
    }
}

/// Which driver a source has at present.
pub fn driver_files(source: Source) -> Vec<String> {
    exo_device::driver_files(Path::new("/"), source.name(), &|name| std::env::var_os(name))
}

fn known(found: &Found, now_unix_s: u64) -> Known {
    // What was only listed computed nothing.
    let is_verified = found.trouble.is_none() && found.times.check_ms > 0.0;
    Known {
        driver: found.told.driver.clone(),
        memory_bytes: found.told.memory_bytes,
        read_bytes_per_s: found.told.read_bytes_per_s,
        flops_per_s: found.told.flops_per_s,
        verified_unix_s: is_verified.then_some(now_unix_s),
        trouble: found.trouble.clone(),
        quarantine: None,
        trial: found.trial.clone(),
    }
}
