//! Which of the devices that drivers show a node tries, in what order, and why it leaves the others: a pure
//! function.
//!
//! Decision 0023 has the reasons and the numbers.

use exo_device::{Calibration, Trial};

use crate::{Candidate, LeftOut, Ranking, SurveyedAccelerator, System, seconds};

/// Of a software adapter: it computes on the processor, with more work.
pub(crate) const SOFTWARE: &str = "it is a software adapter";

/// The work that devices are compared by: reading a prompt and giving an answer with a model of a billion
/// weights in Q8_0.
const WEIGHTS: f64 = 1e9;
/// Stored bytes of one weight of Q8_0.
const BYTES_PER_WEIGHT: f64 = 34.0 / 32.0;
const PROMPT_TOKENS: f64 = 512.0;
const ANSWER_TOKENS: f64 = 128.0;
/// By how much a backend must be faster than one that stands before it in the system's order. Two
/// measurements of one card differ by less.
const CLEARLY: f64 = 1.1;

/// Seconds for a prompt and an answer, less is better:
///
/// `answer tokens · weights · bytes of a weight / read rate + prompt tokens · weights · 2 / matrix rate`
///
/// Each token of an answer reads every weight once; each token of a prompt multiplies and adds with every
/// weight once.
pub fn estimate_s(rates: Calibration) -> f64 {
    let answer = ANSWER_TOKENS * WEIGHTS * BYTES_PER_WEIGHT / rates.read_bytes_per_s;
    let prompt = PROMPT_TOKENS * WEIGHTS * 2.0 / rates.flops_per_s;
    answer + prompt
}

/// Nothing that may be chosen has the name that was wanted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no graphics processor to choose is called `{wanted}` or stands there ({there}); with --backend auto, --device takes a \
     part of a name, or a place such as cuda:0 as `exo devices` shows it; several cards are named with their backend, as in --backend cuda \
     --device 0,1"
)]
pub struct ChooseError {
    /// The name, or the place.
    pub wanted: String,
    /// What there is, and what is wrong with the rest.
    pub there: String,
}

impl ChooseError {
    /// Stable, for whoever chooses by it.
    pub const fn code(&self) -> &'static str {
        "accelerator_not_named"
    }
}

/// Whether a word is a number in the list of a backend that is not named: a short one. Names have longer
/// numbers in them.
pub fn is_place(word: &str) -> bool {
    word.len() < 3 && word.bytes().all(|b| b.is_ascii_digit())
}

impl SurveyedAccelerator {
    /// Whether it would be chosen but for a quarantine.
    pub(crate) fn is_quarantined(&self) -> bool {
        let has_passed = self.trial.as_ref().is_some_and(|trial| trial.failed.is_none());
        self.told.quarantine.is_some() && !self.is_software && has_passed
    }

    /// Why it must not be chosen, if it must not.
    pub(crate) fn obstacle(&self) -> Option<String> {
        if self.is_software {
            return Some(SOFTWARE.to_owned());
        }
        if let Some(trouble) = &self.trouble {
            return Some(trouble.clone());
        }
        match &self.trial {
            Some(Trial { failed: Some(reason), .. }) => {
                Some(format!("{reason}; it is asked again after hours, or after `exo devices --retry`"))
            }
            Some(_) => None,
            None => Some("it has not given a known answer yet; the next start of a node asks it".to_owned()),
        }
    }

    fn is_named(&self, wanted: &str) -> bool {
        let is_in_name = || self.identity.name.to_lowercase().contains(&wanted.to_lowercase());
        self.place() == wanted || (!is_place(wanted) && is_in_name())
    }

    /// Whether both are the same card. Where one tells no slot, the name decides: two backends then show one
    /// card, and never two.
    fn is_same_card(&self, other: &Self) -> bool {
        match (&self.identity.pci_address, &other.identity.pci_address) {
            (Some(a), Some(b)) => a == b,
            _ => self.backend != other.backend && self.identity.name == other.identity.name,
        }
    }

    /// Whether it tells no slot, and something of its name does: it may be any of those.
    fn is_vague_beside(&self, all: &[&Self]) -> bool {
        let is_clearer = |other: &&Self| other.identity.pci_address.is_some() && self.is_same_card(other);
        self.identity.pci_address.is_none() && all.iter().any(is_clearer)
    }
}

/// Puts what was `seen` in order. With `wanted`, only what has that name or place counts, and the processor
/// does not.
pub fn rank(
    system: System,
    all: &[&SurveyedAccelerator],
    processor: Option<Calibration>,
    wanted: &str,
) -> Result<Ranking, ChooseError> {
    let mut ranking = Ranking { processor_s: processor.map(estimate_s), ..Ranking::default() };
    let mut usable = Vec::new();
    for &seen in all {
        match (seen.obstacle(), seen.rates()) {
            (None, _) if seen.is_vague_beside(all) => {
                let reason =
                    "another backend shows a card of that name, and tells which one it is".to_owned();
                ranking.left_out.push(LeftOut { label: seen.label(), reason });
            }
            (Some(reason), _) => {
                ranking.left_out.push(LeftOut { label: seen.label(), reason });
            }
            (None, None) => {
                let reason = "what it can do could not be measured".to_owned();
                ranking.left_out.push(LeftOut { label: seen.label(), reason });
            }
            (None, Some(rates)) => usable.push((seen, estimate_s(rates))),
        }
    }
    ranking.is_named = !wanted.is_empty();
    if ranking.is_named {
        usable = named(usable, wanted, &ranking.left_out)?;
    }
    for (number, card) in cards(system, &usable).into_iter().enumerate() {
        for (seen, own_s) in card {
            let label = seen.label();
            match ranking.processor_s.filter(|processor_s| own_s >= *processor_s && !ranking.is_named) {
                Some(processor_s) => {
                    let (own, other) = (seconds(own_s), seconds(processor_s));
                    let reason = format!("slower than the processor: {own} for what takes that {other}");
                    ranking.left_out.push(LeftOut { label, reason });
                }
                None => ranking.candidates.push(candidate(seen, label, number, own_s)),
            }
        }
    }
    if !ranking.is_named {
        ranking.quarantined = quarantined(system, all, &usable, ranking.processor_s);
    }
    Ok(ranking)
}

/// The best way to each card that would be used but for a quarantine, and is used through no other backend.
fn quarantined(
    system: System,
    seen: &[&SurveyedAccelerator],
    usable: &[(&SurveyedAccelerator, f64)],
    processor_s: Option<f64>,
) -> Vec<Candidate> {
    let is_faster = |own_s: f64| processor_s.is_none_or(|processor_s| own_s < processor_s);
    let is_used = |seen: &SurveyedAccelerator| {
        usable.iter().any(|(other, own_s)| is_faster(*own_s) && other.is_same_card(seen))
    };
    let quarantined = seen.iter().copied().filter(|seen| seen.is_quarantined() && !is_used(seen));
    let quarantined = quarantined.filter_map(|seen| Some((seen, estimate_s(seen.rates()?))));
    let faster: Vec<(&SurveyedAccelerator, f64)> =
        quarantined.filter(|(_, own_s)| is_faster(*own_s)).collect();
    let ways = cards(system, &faster).into_iter().filter_map(|card| card.first().copied()).enumerate();
    ways.map(|(number, (seen, own_s))| candidate(seen, seen.label(), number, own_s)).collect()
}

/// What has the name or place that is wanted.
fn named<'a>(
    usable: Vec<(&'a SurveyedAccelerator, f64)>,
    wanted: &str,
    left_out: &[LeftOut],
) -> Result<Vec<(&'a SurveyedAccelerator, f64)>, ChooseError> {
    let (named, others): (Vec<_>, Vec<_>) = usable.into_iter().partition(|(seen, _)| seen.is_named(wanted));
    if !named.is_empty() {
        return Ok(named);
    }
    let mut there: Vec<String> = others.iter().map(|(seen, _)| seen.label()).collect();
    there.extend(left_out.iter().map(|LeftOut { label, reason }| format!("{label}, left out: {reason}")));
    let there =
        if there.is_empty() { "there is none".to_owned() } else { format!("there is: {}", there.join("; ")) };
    Err(ChooseError { wanted: wanted.to_owned(), there })
}

/// Cards, the fastest first; of each the ways to it, the preferred one first.
fn cards<'a>(
    system: System,
    usable: &[(&'a SurveyedAccelerator, f64)],
) -> Vec<Vec<(&'a SurveyedAccelerator, f64)>> {
    let mut cards: Vec<Vec<(&SurveyedAccelerator, f64)>> = Vec::new();
    for &(seen, seconds) in usable {
        let is_it = |card: &&mut Vec<(&SurveyedAccelerator, f64)>| {
            card.iter().any(|(other, _)| other.is_same_card(seen))
        };
        match cards.iter_mut().find(is_it) {
            Some(card) => card.push((seen, seconds)),
            None => cards.push(vec![(seen, seconds)]),
        }
    }
    for card in &mut cards {
        card.sort_by_key(|(seen, _)| system.preference(seen.backend));
        let mut best = 0;
        for (at, (_, seconds)) in card.iter().enumerate() {
            if seconds * CLEARLY < card[best].1 {
                best = at;
            }
        }
        // The others stay in the system's order.
        card[..=best].rotate_right(1);
    }
    cards.sort_by(|a, b| a[0].1.total_cmp(&b[0].1));
    cards
}

fn candidate(seen: &SurveyedAccelerator, label: String, card: usize, seconds: f64) -> Candidate {
    let identity = seen.identity.clone();
    Candidate { label, backend: seen.backend, index: seen.index, identity, card, seconds }
}

#[cfg(test)]
mod tests {
    use exo_device::Quarantine;

    use super::*;
    use crate::survey::tests::found;
    use crate::{Backend, VERSION};

    /// GB and GFLOP per second.
    fn rates(read: f64, flops: f64) -> Option<Calibration> {
        Some(Calibration::of(read * 1e9, flops * 1e9))
    }

    /// `cuda:0 RTX@01 900 40000`: place, name, slot if it tells one, rates; or a reason after an exclamation
    /// mark.
    fn seen(line: &str) -> SurveyedAccelerator {
        let (line, obstacle) =
            line.split_once(" !").map_or((line, None), |(line, why)| (line, Some(why.to_owned())));
        let words: Vec<&str> = line.split(' ').collect();
        let (backend, index) = words[0].split_once(':').unwrap();
        let (name, slot) =
            words[1].split_once('@').map_or((words[1], None), |(name, slot)| (name, Some(slot)));
        let number = |at: usize| words.get(at).and_then(|word| Some(word.parse::<f64>().ok()? * 1e9));
        let slot = slot.map(|slot| format!("0000:{slot}:00.0"));
        let mut seen = found(Backend::parse(backend).unwrap(), index.parse().unwrap(), slot.as_deref());
        name.clone_into(&mut seen.identity.name);
        (seen.told.read_bytes_per_s, seen.told.flops_per_s) = (number(2), number(3));
        seen.trial = Some(Trial::new(VERSION, None, 1));
        let is_quarantined = obstacle.as_deref() == Some("in quarantine");
        seen.told.quarantine = is_quarantined.then(|| Quarantine::new("it was lost", 1));
        seen.trouble = obstacle;
        seen
    }

    /// What [`rank`] makes of these lines beside a processor.
    fn ranked(
        system: System,
        lines: &[&str],
        processor: Option<Calibration>,
        wanted: &str,
    ) -> Result<Ranking, ChooseError> {
        let all: Vec<SurveyedAccelerator> = lines.iter().map(|line| seen(line)).collect();
        rank(system, &all.iter().collect::<Vec<_>>(), processor, wanted)
    }

    fn tried(trial: Option<Trial>) -> SurveyedAccelerator {
        SurveyedAccelerator { trial, ..found(Backend::Cuda, 0, None) }
    }

    #[test]
    fn only_what_has_given_the_known_answer_is_chosen() {
        assert_eq!(tried(Some(Trial::new(VERSION, None, 1))).obstacle(), None);
        let why = |found: &SurveyedAccelerator| found.obstacle().unwrap();
        assert!(why(&tried(None)).contains("the next start of a node asks it"));
        let failed = tried(Some(Trial::new(VERSION, Some("it gave another text"), 1)));
        assert!(why(&failed).starts_with("it gave another text; it is asked again"), "{}", why(&failed));
        let software = SurveyedAccelerator { is_software: true, ..tried(Some(Trial::new(VERSION, None, 1))) };
        assert_eq!(why(&software), SOFTWARE);
        let quarantined = SurveyedAccelerator { trouble: Some("in quarantine".to_owned()), ..software };
        assert_eq!(why(&SurveyedAccelerator { is_software: false, ..quarantined }), "in quarantine");
    }

    /// The places that are tried in order, then `|` and those left out.
    fn order(system: System, lines: &[&str], wanted: &str) -> String {
        let ranking = ranked(system, lines, rates(20.0, 200.0), wanted).unwrap();
        let place = |label: &str| label.rsplit(['(', ')']).nth(1).unwrap().to_owned();
        let tried: Vec<_> = ranking.candidates.iter().map(|c| place(&c.label)).collect();
        let out: Vec<_> = ranking.left_out.iter().map(|out| place(&out.label)).collect();
        format!("{} | {}", tried.join(" "), out.join(" "))
    }

    #[test]
    fn the_estimate_is_bytes_of_the_answer_and_products_of_the_prompt() {
        // 128 · 1.0625 GB at 136 GB/s is a second; 512 · 2 GFLOP at 1024 GFLOP/s another.
        let estimate = estimate_s(rates(136.0, 1024.0).unwrap());
        assert!((estimate - 2.0).abs() < 1e-9, "{estimate}");
    }

    #[test]
    fn each_system_has_its_order_and_measurements_overrule_it() {
        let cases: &[(System, &[&str], &str)] = &[
            // Alike: the system's order decides.
            (System::Linux, &["vulkan:0 RTX@01 900 40000", "cuda:0 RTX@01 880 40000"], "cuda:0 vulkan:0 | "),
            (System::Windows, &["cuda:0 RTX@01 900 40000", "dx12:0 RTX@01 890 39000"], "dx12:0 cuda:0 | "),
            #[cfg(feature = "hip")]
            (System::Linux, &["vulkan:0 RX@01 900 40000", "hip:0 RX@01 880 40000"], "hip:0 vulkan:0 | "),
            // Measured: an NVIDIA card on Windows ends up with CUDA. Direct3D, which tells no slot, may show
            // any card of that name.
            (
                System::Windows,
                &["dx12:0 RTX 700 9000", "vulkan:0 RTX@01 750 12000", "cuda:0 RTX@01 900 80000"],
                "cuda:0 vulkan:0 | dx12:0",
            ),
            (System::Windows, &["dx12:0 Arc@03 400 9000", "vulkan:0 Arc@03 300 9000"], "dx12:0 vulkan:0 | "),
            (System::Linux, &["cuda:0 RTX@01 500 9000", "vulkan:0 RTX@01 900 40000"], "vulkan:0 cuda:0 | "),
            (System::Apple, &["metal:0 M2 100 3000"], "metal:0 | "),
            (System::Android, &["vulkan:0 Adreno 40 900"], "vulkan:0 | "),
            // Several cards: the fastest, whatever its backend and its place.
            (
                System::Linux,
                &["cuda:0 GTX@01 200 4000", "vulkan:0 GTX@01 190 3000", "vulkan:1 RX@02 800 30000"],
                "vulkan:1 cuda:0 vulkan:0 | ",
            ),
            // Equal cards, of which Direct3D tells no slots: it shows no others.
            (
                System::Windows,
                &[
                    "cuda:0 RTX@01 900 40000",
                    "cuda:1 RTX@02 880 40000",
                    "dx12:0 RTX 890 39000",
                    "dx12:1 RTX 870 39000",
                ],
                "cuda:0 cuda:1 | dx12:0 dx12:1",
            ),
            // A card with two drivers of one interface is one card.
            (
                System::Linux,
                &["vulkan:0 RADV@03 700 30000", "vulkan:1 AMDVLK@03 650 20000"],
                "vulkan:0 vulkan:1 | ",
            ),
            // Two cards of one name without slots are two cards.
            (System::Linux, &["vulkan:0 RX 300 9000", "vulkan:1 RX 400 9000"], "vulkan:1 vulkan:0 | "),
        ];
        for (system, lines, expected) in cases {
            assert_eq!(order(*system, lines, ""), *expected, "{system:?} {lines:?}");
        }
    }

    #[test]
    fn what_is_slower_than_the_processor_plays_a_card_or_is_broken_is_left_out() {
        let cases: &[(&[&str], &str)] = &[
            (&["vulkan:0 UHD@02 15 150"], " | vulkan:0"),
            // It reads a little slower and multiplies much faster.
            (&["vulkan:0 Iris@02 18 900"], "vulkan:0 | "),
            (&["vulkan:0 llvmpipe !is a software adapter"], " | vulkan:0"),
            (&["cuda:0 RTX@01 900 40000 !in quarantine", "vulkan:0 RTX@01 800 30000"], "vulkan:0 | cuda:0"),
            (
                &["cuda:0 RTX@01 !it computed a wrong sum", "vulkan:0 RTX@01 !it crashed"],
                " | cuda:0 vulkan:0",
            ),
            (&["cuda:0 RTX@01"], " | cuda:0"),
            (&[], " | "),
        ];
        for (lines, expected) in cases {
            assert_eq!(order(System::Linux, lines, ""), *expected, "{lines:?}");
        }
        let slow = ["vulkan:0 UHD@02 15 150"];
        let ranking = ranked(System::Linux, &slow, rates(20.0, 200.0), "").unwrap();
        assert_eq!(
            ranking.left_out[0].reason,
            "slower than the processor: 15.9 s for what takes that 11.9 s"
        );
        let unmeasured = ranked(System::Linux, &["cuda:0 RTX@01"], None, "").unwrap();
        assert_eq!(unmeasured.left_out[0].reason, "what it can do could not be measured");
    }

    #[test]
    fn a_card_in_quarantine_waits_for_its_end_where_no_other_way_leads_to_it_and_it_is_worth_it() {
        let quarantined = |lines: &[&str], wanted: &str| {
            let ranking = ranked(System::Linux, lines, rates(20.0, 200.0), wanted).unwrap();
            ranking.quarantined.into_iter().map(|candidate| candidate.label).collect::<Vec<_>>()
        };
        let rtx = "cuda:0 RTX@01 900 40000 !in quarantine";
        assert_eq!(quarantined(&[rtx], ""), ["RTX (cuda:0)"]);
        assert_eq!(quarantined(&[rtx, "cuda:1 RTX@02 900 40000"], ""), ["RTX (cuda:0)"], "another card");
        assert!(quarantined(&[rtx, "vulkan:0 RTX@01 800 30000"], "").is_empty(), "it is used as it is");
        let slow = "vulkan:0 RTX@01 15 150";
        assert_eq!(
            quarantined(&[rtx, slow], ""),
            ["RTX (cuda:0)"],
            "the other way is slower than the processor"
        );
        let both = [rtx, "vulkan:0 RTX@01 800 30000 !in quarantine"];
        assert_eq!(quarantined(&both, ""), ["RTX (cuda:0)"], "the best way");
        assert!(
            quarantined(&["vulkan:0 UHD@02 15 150 !in quarantine"], "").is_empty(),
            "slower than the processor"
        );
        assert!(quarantined(&["cuda:0 RTX@01 !in quarantine"], "").is_empty(), "nobody has measured it");
        assert!(quarantined(&["cuda:0 RTX@01 900 40000 !it crashed"], "").is_empty());
        assert!(quarantined(&[rtx, "vulkan:0 UHD@02 15 150"], "UHD").is_empty(), "another one was named");
    }

    #[test]
    fn a_name_or_a_place_chooses_among_the_candidates() {
        let lines = ["cuda:0 RTX@01 900 40000", "vulkan:0 RTX@01 800 30000", "vulkan:1 UHD@02 15 150"];
        let of = |wanted: &str| order(System::Linux, &lines, wanted);
        assert_eq!(of("rtx"), "cuda:0 vulkan:0 | ");
        assert_eq!(of("vulkan:0"), "vulkan:0 | ");
        // Named, it need not be faster than the processor.
        assert_eq!(of("UHD"), "vulkan:1 | ");
        let lines = [lines[0], "vulkan:0 llvmpipe !is a software adapter"];
        for wanted in ["Voodoo", "0", "llvmpipe"] {
            let error = ranked(System::Linux, &lines, None, wanted).unwrap_err().to_string();
            let told = format!(
                "no graphics processor to choose is called `{wanted}` or stands there (there is: RTX (cuda:0); llvmpipe \
                 (vulkan:0), left out: is a software adapter)"
            );
            assert!(error.starts_with(&told), "{error}");
        }
        let error = ranked(System::Linux, &[], None, "RTX").unwrap_err().to_string();
        assert!(error.contains("(there is none)"), "{error}");
    }
}
