//! `--backend auto`: what a node computes on where nobody says so.
//!
//! All sources of devices are asked at once, each in a child with a bound, and only list what they show. A device that is
//! new here, or whose driver or whose exo is, is then opened in a child of its own: verified, measured, and asked something
//! whose answer is known ([`trial`]); what came of it is kept in the registry of the data folder, so that the next start
//! only lists. What may be used is put in order by [`rank`], and the node opens the first that can be opened.

mod fresh;
mod processor;
pub mod rank;
pub mod trial;

use std::path::Path;

use anyhow::Context;
use exo_device::{Calibration, GraphicsCard, Trial};
use exo_node::{DeviceChoice, LeftOut, NodeConfig, Ranking};

use crate::commands::devices::{Ask, Found, Outcome, Silent, ask_all, remember};
use crate::config::Config;
use crate::ui;
pub use fresh::turn;
pub use processor::{known as known_processor_rates, rates as processor_rates};
use rank::{Seen, System};

/// Of the setting `backend`.
pub const NAME: &str = "auto";
/// Of a program that plays a card: it computes on the processor, with more work.
pub const SOFTWARE: &str = "it plays a card in software";
/// Trials count for the exo that made them.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Finds out what there is to choose from, if the settings leave that open, and notes it in `settings`.
pub async fn resolve(config: &Config, settings: &mut NodeConfig, warns: bool) -> anyhow::Result<()> {
    if config.text("backend") == NAME {
        let chosen = choose(settings, config.text("device"), warns).await?;
        settings.device = DeviceChoice::Best(Box::new(chosen));
    }
    Ok(())
}

/// Asks the drivers and puts in order what they show.
async fn choose(settings: &NodeConfig, wanted: &str, warns: bool) -> anyhow::Result<Ranking> {
    let data_dir = settings.data_dir.clone();
    let mut outcomes = ask_all(Ask { registry: Some(&data_dir), list_only: true, ..Ask::default() }).await;
    fresh::try_all(&data_dir, &mut outcomes).await;
    remember::drivers(&data_dir, &outcomes);
    if warns {
        warnings(&outcomes).iter().for_each(|warning| ui::warning(warning));
    }
    let settings = settings.clone();
    let cards = exo_device::graphics_cards(Path::new("/"));
    let ranked = tokio::task::spawn_blocking({
        let wanted = wanted.to_owned();
        move || ranking(&settings, &cards, &outcomes, &wanted)
    });
    ranked.await.context("the choice of a device broke off")?
}

/// Puts in order what the drivers showed. Blocks while the processor is measured, where there is something to compare it
/// with and it was not measured before.
pub fn ranking(
    settings: &NodeConfig,
    cards: &[GraphicsCard],
    outcomes: &[Outcome],
    wanted: &str,
) -> anyhow::Result<Ranking> {
    ranking_beside(|| processor::rates(settings), cards, outcomes, wanted)
}

/// As [`ranking`], beside a processor whose rates are told when there is something to compare it with.
pub fn ranking_beside(
    processor: impl FnOnce() -> Option<Calibration>,
    cards: &[GraphicsCard],
    outcomes: &[Outcome],
    wanted: &str,
) -> anyhow::Result<Ranking> {
    let found = outcomes.iter().flat_map(|outcome| outcome.found.as_deref().unwrap_or_default());
    let seen: Vec<Seen> = found.map(seen).collect();
    let is_open = seen.iter().any(|seen| seen.obstacle.is_none() || seen.is_kept_off);
    let processor = if is_open { processor() } else { None };
    let silent: Vec<LeftOut> = outcomes.iter().filter_map(silent).collect();
    let mut ranking = rank::rank(System::own(), &seen, processor, wanted).map_err(|error| {
        let silent: Vec<&str> = silent.iter().map(|out| &*out.reason).collect();
        if silent.is_empty() { error } else { anyhow::anyhow!("{error}; {}", silent.join("; ")) }
    })?;
    ranking.left_out.extend(silent);
    let is_shown = |card: &GraphicsCard| {
        seen.iter().any(|seen| seen.identity.pci_address.as_deref() == Some(&card.pci_address))
    };
    let idle = cards.iter().filter(|card| !is_shown(card)).map(|card| LeftOut {
        label: format!("{} graphics at {}", card.maker().unwrap_or("unknown"), card.pci_address),
        reason: "no driver shows it, `exo devices` says what to install".to_owned(),
    });
    ranking.left_out.extend(idle);
    Ok(ranking)
}

/// What is wrong with a source, if something is.
fn silent(outcome: &Outcome) -> Option<LeftOut> {
    let reason = outcome.trouble().map(|silence| silence.reason.clone());
    let reason =
        reason.or_else(|| (!outcome.descriptions.is_empty()).then(|| outcome.descriptions.join("; ")));
    Some(LeftOut { label: format!("what {} would show", outcome.source), reason: reason? })
}

fn seen(found: &Found) -> Seen {
    let rates = found.told.read_bytes_per_s.zip(found.told.flops_per_s);
    Seen {
        backend: found.api.clone(),
        index: found.index,
        identity: found.identity.clone(),
        rates: rates.map(|(read_bytes_per_s, flops_per_s)| Calibration { read_bytes_per_s, flops_per_s }),
        obstacle: obstacle(found),
        is_kept_off: is_kept_off(found),
    }
}

/// Whether a device would be chosen but for a quarantine.
fn is_kept_off(found: &Found) -> bool {
    let has_passed = found.trial.as_ref().is_some_and(|trial| trial.failed.is_none());
    found.told.quarantine.is_some() && !found.is_software && has_passed
}

/// Why a device must not be chosen, if it must not.
fn obstacle(found: &Found) -> Option<String> {
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

/// What the user should know of drivers that are there and cannot be asked. Of one that is not asked the reason tells.
fn warnings(outcomes: &[Outcome]) -> Vec<String> {
    let of = |kind: &Silent| -> Vec<&str> {
        let silent = outcomes.iter().filter_map(Outcome::trouble).filter(|silence| silence.kind == *kind);
        silent.map(|silence| &*silence.reason).collect()
    };
    let (mut broken, hung) = (of(&Silent::Broken), of(&Silent::Hung));
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
            "{}: install that driver again or another version of it; until then the next starts do not wait for it, for {} \
             hours; `exo devices --retry` asks it at once, and --backend cpu asks none",
            hung.join("; "),
            exo_device::QUARANTINE_S / 3600
        )
    });
    broken.into_iter().chain(hung).collect()
}

#[cfg(test)]
mod tests {
    use exo_device::{Identity, Quarantine};

    use super::*;
    use crate::commands::devices::Source;

    pub fn found(trial: Option<Trial>) -> Found {
        let identity =
            Identity { name: "Card".to_owned(), vendor: 1, device: 1, pci_address: None, uuid: None };
        let mut found = Found::listed("cuda", 0, identity, "12.0".to_owned());
        (found.told.read_bytes_per_s, found.told.flops_per_s) = (Some(1e12), Some(1e14));
        found.trial = trial;
        found
    }

    #[test]
    fn only_what_has_given_the_known_answer_is_chosen() {
        assert_eq!(obstacle(&found(Some(Trial::new(VERSION, None, 1)))), None);
        let why = |found: &Found| obstacle(found).unwrap();
        assert!(why(&found(None)).contains("the next start of a node asks it"));
        let failed = found(Some(Trial::new(VERSION, Some("it gave another text"), 1)));
        assert!(why(&failed).starts_with("it gave another text; it is asked again"), "{}", why(&failed));
        let software = Found { is_software: true, ..found(Some(Trial::new(VERSION, None, 1))) };
        assert_eq!(why(&software), SOFTWARE);
        let kept_off = Found { trouble: Some("in quarantine".to_owned()), ..software };
        assert_eq!(why(&Found { is_software: false, ..kept_off }), "in quarantine");
    }

    #[test]
    fn a_missing_driver_is_no_warning_and_broken_ones_are_one() {
        let outcome = |(kind, reason): (Silent, &str)| {
            Outcome::silent(Source::Maker(exo_backend_cuda::Api::Cuda), kind, reason.to_owned())
        };
        let missing = outcome((Silent::Absent, "there is no driver"));
        assert!(silent(&missing).is_none() && warnings(std::slice::from_ref(&missing)).is_empty());
        let nowhere = Outcome { descriptions: vec!["a.json names nothing".to_owned()], ..missing };
        assert_eq!(silent(&nowhere).unwrap().reason, "a.json names nothing");
        assert!(warnings(&[nowhere])[0].starts_with("a.json names nothing: install that driver again"));
        let kept_off = Silent::KeptOff(Quarantine::new("it did not answer", 1));
        let told = warnings(&[
            outcome((Silent::Broken, "vulkan crashed")),
            outcome((Silent::Hung, "cuda hung")),
            outcome((Silent::Broken, "metal crashed")),
            outcome((kept_off, "hip is in quarantine")),
        ]);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].starts_with("vulkan crashed; metal crashed: install"), "{told:?}");
        assert!(told[1].starts_with("cuda hung: install") && told[1].contains("for 6 hours"), "{told:?}");
    }
}
