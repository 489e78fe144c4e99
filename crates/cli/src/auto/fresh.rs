//! Devices that this exo, or this machine, has not met: opened, measured and tried, each in a child of its own, by one process
//! at a time.

use std::path::Path;
use std::time::Duration;

use exo_device::{Registry, RegistryError, Trial, Turn};

use super::{VERSION, seen};
use crate::commands::devices::{Ask, Found, Outcome, Silence, Silent, ask_in_child, by_card, remember};
use crate::ui;

/// For another process that tries what is new: as long as one child may take. What that process has finished by then is noted.
const TURN_MAX: Duration = Duration::from_secs(60);

/// Where a device is in what drivers showed: the source, and its place there.
type At = (usize, usize);

/// Tries what is new in `outcomes` and keeps what came of it in the data folder. What another process tries meanwhile is
/// waited for, and not tried twice.
pub async fn try_all(data_dir: &Path, outcomes: &mut [Outcome]) {
    if new(outcomes).is_empty() {
        return;
    }
    let turn = turn(data_dir).await;
    let registry = Registry::look(data_dir);
    for at in new(outcomes) {
        if let Some(found) = device(outcomes, at) {
            found.recall(&registry);
        }
    }
    let new = new(outcomes);
    if turn.as_ref().is_err_and(RegistryError::is_late) {
        let seconds = TURN_MAX.as_secs();
        for at in new {
            if let Some(found) = device(outcomes, at) {
                let text = format!(
                    "another exo has tried the cards of this machine for {seconds} s, so it was not tried"
                );
                found.trouble = Some(text);
            }
        }
        return;
    }
    for (at, found) in try_new(data_dir, outcomes, &new).await {
        if let Some(before) = device(outcomes, at) {
            *before = found;
        }
    }
    drop(turn);
}

fn device(outcomes: &mut [Outcome], (source, at): At) -> Option<&mut Found> {
    outcomes[source].found.as_mut().ok()?.get_mut(at)
}

fn new(outcomes: &[Outcome]) -> Vec<At> {
    let of = |(source, outcome): (usize, &Outcome)| -> Vec<At> {
        let found = outcome.found.iter().flatten().enumerate().filter(|(_, found)| is_new(found));
        found.map(|(at, _)| (source, at)).collect()
    };
    outcomes.iter().enumerate().flat_map(of).collect()
}

/// Waits for whoever tries now. A folder in which there can be no turns has none.
pub async fn turn(data_dir: &Path) -> Result<Turn, RegistryError> {
    let folder = data_dir.to_owned();
    let take = move || {
        // One that cannot be made cannot be locked, which says so.
        let _ = std::fs::create_dir_all(&folder);
        match Registry::trial_turn(&folder, Duration::ZERO) {
            Err(error) if error.is_late() => {
                ui::note("another exo tries the cards of this machine: waits for what comes of it");
                Registry::trial_turn(&folder, TURN_MAX)
            }
            taken => taken,
        }
    };
    // On a thread of its own: whoever waits here may be told to stop.
    let taken = tokio::task::spawn_blocking(take).await;
    let taken = taken.unwrap_or_else(|broke| std::panic::resume_unwind(broke.into_panic()));
    taken.inspect_err(|error| tracing::debug!(%error, "no turn to try cards"))
}

/// Opens, tries and notes what is new, the ways to one card one after the other so that they measure it alone, cards at once.
async fn try_new(data_dir: &Path, outcomes: &[Outcome], new: &[At]) -> Vec<(At, Found)> {
    let found = |(source, at): At| outcomes[source].found.as_ref().ok()?.get(at);
    let slot = |at: &At| found(*at).and_then(|found| found.identity.pci_address.clone());
    let cards = by_card(&new.iter().map(slot).collect::<Vec<_>>());
    let tried = futures_util::future::join_all(cards.into_iter().map(async |card| {
        let mut tried = Vec::new();
        for at in card.into_iter().map(|place| new[place]) {
            if let Some(before) = found(at)
                && let Some(found) = try_one(data_dir, &outcomes[at.0], before).await
            {
                remember::all(data_dir, &[&found]);
                tried.push((at, found));
            }
        }
        tried
    }));
    tried.await.into_iter().flatten().collect()
}

/// Whether a device must be opened before it can be chosen.
fn is_new(found: &Found) -> bool {
    let is_measured = found.told.read_bytes_per_s.is_some() && found.told.flops_per_s.is_some();
    let has_failed = found.trial.as_ref().is_some_and(|trial| trial.failed.is_some());
    let is_known = has_failed || (is_measured && found.trial.is_some());
    !found.is_software && found.trouble.is_none() && !is_known
}

/// Opens one device in a child: verified, measured, and asked something whose answer is known. `None` if somebody ended
/// that: it stays as new as it was.
async fn try_one(data_dir: &Path, outcome: &Outcome, before: &Found) -> Option<Found> {
    let label = seen(before).label();
    ui::note(&format!("{label} is new here: measured and tried, once"));
    let ask = Ask {
        registry: Some(data_dir),
        measure: true,
        only: Some(before.index),
        trial: true,
        ..Ask::default()
    };
    let failed = match ask_in_child(outcome.source, ask).await.found.map(|mut found| found.pop()) {
        Ok(Some(found)) if found.identity == before.identity => return Some(found),
        Ok(_) => "it is gone".to_owned(),
        Err(Silence { kind: Silent::Stopped, reason }) => {
            ui::warning(&format!("{label} was not tried to the end, so the next start tries it: {reason}"));
            return None;
        }
        // It ended the child, or did not answer: what may happen at every start must not cost every start its bound.
        Err(silence) => silence.reason,
    };
    // Where turns cannot be taken another process may have got further: that it passed there counts more.
    let mut now = before.clone();
    now.recall(&Registry::look(data_dir));
    if !is_new(&now) {
        return Some(now);
    }
    let trial = Trial::new(VERSION, Some(&failed), exo_device::unix_s());
    Some(Found { trial: Some(trial), ..before.clone() })
}

#[cfg(test)]
mod tests {
    use super::super::tests::found;
    use super::*;

    #[test]
    fn what_is_new_is_tried_and_what_is_known_is_not() {
        let passed = found(Some(Trial::new(VERSION, None, 1)));
        assert!(is_new(&found(None)) && !is_new(&passed));
        let unmeasured = |mut found: Found| {
            found.told.flops_per_s = None;
            found
        };
        assert!(is_new(&unmeasured(passed)));
        let failed = unmeasured(found(Some(Trial::new(VERSION, Some("no"), 1))));
        assert!(!is_new(&failed) && !is_new(&Found { is_software: true, ..found(None) }));
    }
}
