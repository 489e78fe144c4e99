//! Accelerators that this exo, or this machine, has not met: opened, measured and tried, by one process at a
//! time.

use std::path::Path;
use std::time::{Duration, Instant};

use exo_device::{Registry, RegistryError, RegistryLock, Trial};

use crate::VERSION;
use crate::backend_survey::{BackendSurvey, ProbeFailureKind, Surveyor};
use crate::message::{Message, Tell};
use crate::remember::remember;
use crate::survey::{SurveyAsk, SurveyedAccelerator, by_card};

/// For another process that tries what is new: as long as one child may take. What that process has finished
/// by then is noted.
const TURN_MAX: Duration = Duration::from_secs(60);
/// Between two looks whether anybody waits for us.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Where an accelerator is in what drivers showed: the outcome, and its number there.
type At = (usize, usize);

/// Tries what is new in `outcomes` and keeps what came of it in the data folder. What another process tries
/// meanwhile is waited for, and not tried twice.
pub(crate) fn try_all(
    data_dir: &Path,
    outcomes: &mut [BackendSurvey],
    surveyor: &dyn Surveyor,
    tell: Tell<'_>,
) {
    if new(outcomes).is_empty() {
        return;
    }
    let turn = take_turn(data_dir, surveyor, tell);
    let registry = Registry::look(data_dir);
    for at in new(outcomes) {
        if let Some(found) = found_mut(outcomes, at) {
            found.recall(&registry);
        }
    }
    let new = new(outcomes);
    if turn.as_ref().is_err_and(RegistryError::is_late) {
        let seconds = TURN_MAX.as_secs();
        for at in new {
            if let Some(found) = found_mut(outcomes, at) {
                let text = format!(
                    "another exo has tried the cards of this machine for {seconds} s, so it was not tried"
                );
                found.trouble = Some(text);
            }
        }
        return;
    }
    for (at, found) in try_new(data_dir, outcomes, &new, surveyor, tell) {
        if let Some(before) = found_mut(outcomes, at) {
            *before = found;
        }
    }
    drop(turn);
}

fn found_mut(outcomes: &mut [BackendSurvey], (outcome, at): At) -> Option<&mut SurveyedAccelerator> {
    outcomes[outcome].found.as_mut().ok()?.get_mut(at)
}

fn new(outcomes: &[BackendSurvey]) -> Vec<At> {
    let of = |(outcome, of): (usize, &BackendSurvey)| -> Vec<At> {
        let new = of.shown().iter().enumerate().filter(|(_, found)| is_new(found));
        new.map(|(at, _)| (outcome, at)).collect()
    };
    outcomes.iter().enumerate().flat_map(of).collect()
}

/// Waits for whoever tries now. A folder in which there can be no turns has none.
pub fn take_turn(
    data_dir: &Path,
    surveyor: &dyn Surveyor,
    tell: Tell<'_>,
) -> Result<RegistryLock, RegistryError> {
    // One that cannot be made cannot be locked, which says so.
    let _ = std::fs::create_dir_all(data_dir);
    let began = Instant::now();
    let mut taken = Registry::trial_turn(data_dir, Duration::ZERO);
    if taken.as_ref().is_err_and(RegistryError::is_late) {
        let text = "another exo tries the cards of this machine: waits for what comes of it";
        tell(Message::Note(text.to_owned()));
    }
    while taken.as_ref().is_err_and(RegistryError::is_late)
        && began.elapsed() < TURN_MAX
        && !surveyor.is_cancelled()
    {
        taken = Registry::trial_turn(data_dir, LOOK_EVERY);
    }
    taken.inspect_err(|error| tracing::debug!(%error, "no turn to try cards"))
}

/// Opens, tries and notes what is new, the ways to one card one after the other so that they measure it
/// alone, cards at once.
fn try_new(
    data_dir: &Path,
    outcomes: &[BackendSurvey],
    new: &[At],
    surveyor: &dyn Surveyor,
    tell: Tell<'_>,
) -> Vec<(At, SurveyedAccelerator)> {
    let found = |(outcome, at): At| outcomes[outcome].shown().get(at);
    let slot = |at: &At| found(*at).and_then(|found| found.identity.pci_address.clone());
    let cards = by_card(&new.iter().map(slot).collect::<Vec<_>>());
    let try_card = |card: Vec<usize>| {
        let mut tried = Vec::new();
        for at in card.into_iter().map(|number| new[number]) {
            let now = found(at).and_then(|before| try_one(data_dir, before, surveyor, tell));
            if let Some(now) = now {
                remember(data_dir, &[&now], tell);
                tried.push((at, now));
            }
        }
        tried
    };
    let try_card = &try_card;
    std::thread::scope(|scope| {
        let trying: Vec<_> = cards.into_iter().map(|card| scope.spawn(move || try_card(card))).collect();
        // Of one that panicked nothing is known.
        trying.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    })
}

/// Whether an accelerator must be opened before it can be chosen.
fn is_new(found: &SurveyedAccelerator) -> bool {
    let has_failed = found.trial.as_ref().is_some_and(|trial| trial.failed.is_some());
    let is_known = has_failed || (found.rates().is_some() && found.trial.is_some());
    !found.is_software && found.trouble.is_none() && !is_known
}

/// Opens one: verified, measured, and asked something whose answer is known. `None` if somebody ended that:
/// it stays as new as it was.
fn try_one(
    data_dir: &Path,
    before: &SurveyedAccelerator,
    surveyor: &dyn Surveyor,
    tell: Tell<'_>,
) -> Option<SurveyedAccelerator> {
    let label = before.label();
    tell(Message::Note(format!("{label} is new here: measured and tried, once")));
    let ask = SurveyAsk {
        data_dir: Some(data_dir.as_os_str().to_owned()),
        measure: true,
        only: Some(before.index),
        trial: true,
        ..SurveyAsk::of(before.backend)
    };
    let failed = match surveyor.survey(&ask).map(|mut survey| survey.found.pop()) {
        Ok(Some(found)) if found.identity == before.identity => return Some(found),
        Ok(_) => "it is gone".to_owned(),
        Err(_) if surveyor.is_cancelled() => return None,
        Err(failure) if failure.kind == ProbeFailureKind::Stopped => {
            tell(Message::Warning(format!(
                "{label} was not tried to the end, so the next start tries it: {failure}"
            )));
            return None;
        }
        // It ended the child, or did not answer: what may happen at every start must not cost every start its
        // bound.
        Err(failure) => failure.reason,
    };
    // Where turns cannot be taken another process may have got further: that it passed there counts more.
    let mut now = before.clone();
    now.recall(&Registry::look(data_dir));
    if !is_new(&now) {
        return Some(now);
    }
    let trial = Trial::new(VERSION, Some(&failed), exo_stdx::unix_s());
    Some(SurveyedAccelerator { trial: Some(trial), ..before.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Backend;
    use crate::survey::tests::found;

    fn measured(trial: Option<Trial>) -> SurveyedAccelerator {
        let mut found = SurveyedAccelerator { trial, ..found(Backend::Cuda, 0, None) };
        (found.told.read_bytes_per_s, found.told.flops_per_s) = (Some(1e12), Some(1e14));
        found
    }

    #[test]
    fn what_is_new_is_tried_and_what_is_known_is_not() {
        let passed = measured(Some(Trial::new(VERSION, None, 1)));
        assert!(is_new(&measured(None)) && !is_new(&passed));
        let unmeasured = |mut found: SurveyedAccelerator| {
            found.told.flops_per_s = None;
            found
        };
        assert!(is_new(&unmeasured(passed)));
        let failed = unmeasured(measured(Some(Trial::new(VERSION, Some("no"), 1))));
        assert!(!is_new(&failed) && !is_new(&SurveyedAccelerator { is_software: true, ..measured(None) }));
    }
}
