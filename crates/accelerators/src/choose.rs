//! What a node computes on where no one says so (`--backend auto`, decision 0023).
//!
//! All backends are asked at once and only list what they show. An accelerator that is new here, or whose
//! driver or whose exo is, is then opened: verified, measured, and asked something whose answer is known;
//! what came of it is kept in the registry of the data folder, so that the next start only lists. What may be
//! used is put in order by [`rank`](crate::rank()), and the node opens the first that can be opened.

use std::path::Path;

use exo_device::{Calibration, GraphicsCard, Trial};

use crate::ask_all::ask_all;
use crate::backend_survey::{BackendSurvey, ProbeFailureKind, Surveyor};
use crate::message::{Message, Tell};
use crate::processor::{ProcessorOptions, rates};
use crate::rank::{ChooseError, ListedDevice, rank};
use crate::ranking::{LeftOut, Ranking};
use crate::remember::remember_drivers;
use crate::survey::{SurveyAsk, SurveyedAccelerator};
use crate::{System, fresh};

/// Of a software adapter: it computes on the processor, with more work.
pub(crate) const SOFTWARE: &str = "it is a software adapter";

/// Asks the drivers, tries what is new, and puts in order what they show. With `wanted`, only what has that
/// name or place counts. Blocks, for as long as drivers take within their bounds.
pub fn choose(
    surveyor: &dyn Surveyor,
    data_dir: &Path,
    processor: &ProcessorOptions,
    wanted: &str,
    tell: Tell<'_>,
) -> Result<Ranking, ChooseError> {
    let data = Some(data_dir.as_os_str().to_owned());
    let ask = |backend| SurveyAsk { data_dir: data.clone(), list_only: true, ..SurveyAsk::of(backend) };
    let mut outcomes = ask_all(surveyor, &ask);
    fresh::try_all(data_dir, &mut outcomes, surveyor, tell);
    remember_drivers(data_dir, &outcomes, tell);
    warnings(&outcomes).into_iter().for_each(|warning| tell(Message::Warning(warning)));
    let cards = exo_device::graphics_cards(Path::new("/"));
    let measured = || if surveyor.is_cancelled() { None } else { rates(data_dir, processor) };
    ranking(measured, &cards, &outcomes, wanted)
}

/// Puts in order what the drivers showed, beside a processor whose rates are asked for when there is
/// something to compare them with.
pub fn ranking(
    processor: impl FnOnce() -> Option<Calibration>,
    cards: &[GraphicsCard],
    outcomes: &[BackendSurvey],
    wanted: &str,
) -> Result<Ranking, ChooseError> {
    let seen: Vec<ListedDevice> = outcomes.iter().flat_map(BackendSurvey::shown).map(seen).collect();
    let is_open = seen.iter().any(|seen| seen.obstacle.is_none() || seen.is_quarantined);
    let processor = if is_open { processor() } else { None };
    let silent: Vec<LeftOut> = outcomes.iter().filter_map(silent).collect();
    let mut ranking = rank(System::own(), &seen, processor, wanted).map_err(|mut error| {
        for out in &silent {
            error.there = format!("{}; {}", error.there, out.reason);
        }
        error
    })?;
    ranking.left_out.extend(silent);
    let is_shown = |card: &GraphicsCard| {
        seen.iter().any(|seen| seen.identity.pci_address.as_deref() == Some(&card.pci_address))
    };
    let idle = cards.iter().filter(|card| !is_shown(card)).map(|card| LeftOut {
        label: format!("{} graphics at {}", card.vendor_name().unwrap_or("unknown"), card.pci_address),
        reason: "no driver shows it, `exo devices` says what to install".to_owned(),
    });
    ranking.left_out.extend(idle);
    Ok(ranking)
}

/// What is wrong with a backend, if something is.
fn silent(outcome: &BackendSurvey) -> Option<LeftOut> {
    let reason = outcome.trouble().map(|failure| failure.reason.clone());
    let reason =
        reason.or_else(|| (!outcome.descriptions.is_empty()).then(|| outcome.descriptions.join("; ")));
    Some(LeftOut { label: format!("what {} would show", outcome.backend), reason: reason? })
}

fn seen(found: &SurveyedAccelerator) -> ListedDevice {
    ListedDevice {
        backend: found.backend,
        index: found.index,
        identity: found.identity.clone(),
        rates: found.rates(),
        obstacle: obstacle(found),
        is_quarantined: is_quarantined(found),
    }
}

/// Whether an accelerator would be chosen but for a quarantine.
fn is_quarantined(found: &SurveyedAccelerator) -> bool {
    let has_passed = found.trial.as_ref().is_some_and(|trial| trial.failed.is_none());
    found.told.quarantine.is_some() && !found.is_software && has_passed
}

/// Why an accelerator must not be chosen, if it must not.
fn obstacle(found: &SurveyedAccelerator) -> Option<String> {
    if found.is_software {
        return Some(SOFTWARE.to_owned());
    }
    if let Some(trouble) = &found.trouble {
        return Some(trouble.clone());
    }
    match &found.trial {
        Some(Trial { failed: Some(reason), .. }) => {
            Some(format!("{reason}; it is asked again after hours, or after `exo devices --retry`"))
        }
        Some(_) => None,
        None => Some("it has not given a known answer yet; the next start of a node asks it".to_owned()),
    }
}

/// What the user should know of drivers that are there and cannot be asked. Of one that is not asked the
/// reason tells.
fn warnings(outcomes: &[BackendSurvey]) -> Vec<String> {
    let of = |kind: &ProbeFailureKind| -> Vec<&str> {
        let silent =
            outcomes.iter().filter_map(BackendSurvey::trouble).filter(|failure| failure.kind == *kind);
        silent.map(|failure| &*failure.reason).collect()
    };
    let (mut broken, hung) = (of(&ProbeFailureKind::Broken), of(&ProbeFailureKind::Hung));
    broken.extend(outcomes.iter().flat_map(|outcome| &outcome.descriptions).map(String::as_str));
    let broken = (!broken.is_empty()).then(|| {
        format!(
            "{}: install that driver again or another version of it; `exo devices` asks it once more, and --backend cpu asks \
             none",
            broken.join("; ")
        )
    });
    let hung = (!hung.is_empty()).then(|| {
        format!(
            "{}: install that driver again or another version of it; the next starts do not wait for it, for {} hours; \
             `exo devices --retry` asks it at once, and --backend cpu asks none",
            hung.join("; "),
            exo_device::QUARANTINE_S / 3600
        )
    });
    broken.into_iter().chain(hung).collect()
}

#[cfg(test)]
mod tests {
    use exo_device::Quarantine;

    use super::*;
    use crate::backend_survey::ProbeFailure;
    use crate::survey::tests::found;
    use crate::{Backend, VERSION};

    fn tried(trial: Option<Trial>) -> SurveyedAccelerator {
        SurveyedAccelerator { trial, ..found(Backend::Cuda, 0, None) }
    }

    #[test]
    fn only_what_has_given_the_known_answer_is_chosen() {
        assert_eq!(obstacle(&tried(Some(Trial::new(VERSION, None, 1)))), None);
        let why = |found: &SurveyedAccelerator| obstacle(found).unwrap();
        assert!(why(&tried(None)).contains("the next start of a node asks it"));
        let failed = tried(Some(Trial::new(VERSION, Some("it gave another text"), 1)));
        assert!(why(&failed).starts_with("it gave another text; it is asked again"), "{}", why(&failed));
        let software = SurveyedAccelerator { is_software: true, ..tried(Some(Trial::new(VERSION, None, 1))) };
        assert_eq!(why(&software), SOFTWARE);
        let quarantined = SurveyedAccelerator { trouble: Some("in quarantine".to_owned()), ..software };
        assert_eq!(why(&SurveyedAccelerator { is_software: false, ..quarantined }), "in quarantine");
    }

    #[test]
    fn a_missing_driver_is_no_warning_and_broken_ones_are_one() {
        let outcome = |(kind, reason): (ProbeFailureKind, &str)| {
            BackendSurvey::new(Backend::Cuda, Err(ProbeFailure::new(kind, reason.to_owned())))
        };
        let missing = outcome((ProbeFailureKind::Absent, "there is no driver"));
        assert!(silent(&missing).is_none() && warnings(std::slice::from_ref(&missing)).is_empty());
        let nowhere = BackendSurvey { descriptions: vec!["a.json names nothing".to_owned()], ..missing };
        assert_eq!(silent(&nowhere).unwrap().reason, "a.json names nothing");
        assert!(warnings(&[nowhere])[0].starts_with("a.json names nothing: install that driver again"));
        let quarantined = ProbeFailureKind::Quarantined(Quarantine::new("it did not answer", 1));
        let told = warnings(&[
            outcome((ProbeFailureKind::Broken, "vulkan crashed")),
            outcome((ProbeFailureKind::Hung, "cuda hung")),
            outcome((ProbeFailureKind::Broken, "metal crashed")),
            outcome((quarantined, "hip is in quarantine")),
        ]);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].starts_with("vulkan crashed; metal crashed: install"), "{told:?}");
        assert!(told[1].starts_with("cuda hung: install") && told[1].contains("for 6 hours"), "{told:?}");
    }
}
