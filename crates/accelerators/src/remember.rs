//! What asking the drivers showed, kept for the next start.

use std::path::Path;

use exo_device::{BackendRecord, MeasuredAt, Quarantine, Registry};

use crate::message::{Message, Tell};
use crate::{BackendSurvey, ProbeFailureKind, SurveyedAccelerator};

/// Notes accelerators that a driver showed in the registry of a data folder. What goes wrong is a warning:
/// the next start measures again.
pub fn remember(data_dir: &Path, found: &[&SurveyedAccelerator], tell: Tell<'_>) {
    if found.is_empty() {
        return;
    }
    let now = exo_stdx::unix_s();
    let note = |registry: &mut Registry| {
        // Those in quarantine were not opened.
        for found in found.iter().filter(|found| found.told.quarantine.is_none()) {
            registry.note(&found.identity, found.backend.name(), known(found, now), now);
        }
    };
    change(data_dir, note, tell, |folder| {
        format!("what was learnt of the graphics processors is not kept in {folder}")
    });
}

/// Notes which drivers did not answer, so that the next start does not wait for them, and which do again.
pub fn remember_drivers(data_dir: &Path, outcomes: &[BackendSurvey], tell: Tell<'_>) {
    let kind = |outcome: &BackendSurvey| outcome.found.as_ref().err().map(|failure| failure.kind.clone());
    if !outcomes.iter().any(BackendSurvey::has_hung) && Registry::look(data_dir).has_no_drivers() {
        return;
    }
    let note = |registry: &mut Registry| {
        for outcome in outcomes {
            let name = outcome.backend.name();
            match (kind(outcome), &outcome.found) {
                (Some(ProbeFailureKind::Quarantined(_) | ProbeFailureKind::Stopped), _) => {}
                (Some(ProbeFailureKind::Hung), Err(failure)) => {
                    let reason = failure.cause.as_deref().unwrap_or(&failure.reason);
                    registry.set_driver_quarantine(name, Quarantine::new(reason, exo_stdx::unix_s()));
                }
                _ => registry.driver_answered(name),
            }
        }
    };
    change(data_dir, note, tell, |folder| {
        format!("that a driver did not answer is not kept in {folder}, so the next start asks it again")
    });
}

fn change(
    data_dir: &Path,
    note: impl FnOnce(&mut Registry),
    tell: Tell<'_>,
    what: impl FnOnce(std::path::Display<'_>) -> String,
) {
    let warning = match std::fs::create_dir_all(data_dir) {
        Err(error) => Some(format!("{}: {error}", what(data_dir.display()))),
        Ok(()) => match Registry::change(data_dir, note) {
            Ok(((), warning)) => warning,
            Err(error) => Some(format!("{}: {}", what(data_dir.display()), crate::chain(&error))),
        },
    };
    warning.into_iter().for_each(|warning| tell(Message::Warning(warning)));
}

fn known(found: &SurveyedAccelerator, now_unix_s: u64) -> BackendRecord {
    // What was only listed computed nothing.
    let is_verified = found.trouble.is_none() && found.times.check_ms > 0.0;
    // What the registry knew keeps its date there.
    let is_new = found.times.measure_ms.is_some();
    let measured = found.told.rates_measured.filter(|_| is_new);
    BackendRecord {
        driver: found.told.driver.clone(),
        memory_bytes: found.told.memory_bytes,
        read_bytes_per_s: found.told.read_bytes_per_s,
        flops_per_s: found.told.flops_per_s,
        layer: found.told.layer_rates,
        measured: measured.map(|measured| MeasuredAt { unix_s: now_unix_s, passes: measured.count }),
        verified_unix_s: is_verified.then_some(now_unix_s),
        trouble: found.trouble.clone(),
        trial: found.trial.clone(),
        ..BackendRecord::default()
    }
}
