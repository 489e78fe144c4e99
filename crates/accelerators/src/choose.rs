//! What a node computes on where no one says so (`--backend auto`, decision 0023).
//!
//! All backends are asked at once and only list what they show. An accelerator that is new here, or whose
//! driver or whose exo is, is then opened: verified, measured, and asked something whose answer is known;
//! what came of it is kept in the registry of the data folder, so that the next start only lists. What may be
//! used is put in order by [`rank`](crate::rank()), and the node opens the first that can be opened.

use std::path::Path;

use exo_device::{Calibration, GraphicsCard};

use crate::ask_all::ask_all;
use crate::backend_survey::{BackendSurvey, ProbeFailureKind, Surveyor};
use crate::message::{Message, Tell};
use crate::processor::{ProcessorOptions, rates};
use crate::rank::{ChooseError, rank};
use crate::ranking::{LeftOut, Ranking};
use crate::remember::remember_drivers;
use crate::survey::{SurveyAsk, SurveyedAccelerator};
use crate::{System, fresh};

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
    let seen: Vec<&SurveyedAccelerator> = outcomes.iter().flat_map(BackendSurvey::shown).collect();
    let is_open = seen.iter().any(|seen| seen.obstacle().is_none() || seen.is_quarantined());
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
    use crate::Backend;
    use crate::backend_survey::ProbeFailure;

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
