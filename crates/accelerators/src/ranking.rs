//! The accelerators that a node may compute on, in the order in which they are tried, and why each other one
//! is not used.

use exo_device::Identity;

use crate::Backend;

/// Cards that are tried before the processor is taken, and ways to each of them: each may take its bound to
/// say no.
const CARDS_TRIED_MAX: usize = 3;
const WAYS_TRIED_MAX: usize = 2;
/// Cards that one node computes on.
const CARDS_MAX: usize = 16;
/// Of one reason, and of all: they travel with every report.
const REASON_CHARS_MAX: usize = 240;
const TOLD_CHARS_MAX: usize = 1200;

/// What there is to choose from.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Ranking {
    /// Graphics processors to try, the best first. None that is slower than the processor, unless it was
    /// named.
    pub candidates: Vec<Candidate>,
    /// What is not tried.
    pub left_out: Vec<LeftOut>,
    /// Of those the ways to cards that would be candidates but for a quarantine, one for each card.
    pub quarantined: Vec<Candidate>,
    /// Estimate for the processor, in seconds; `None` where there was nothing to compare with.
    pub processor_s: Option<f64>,
    /// The candidates were named by the user: the processor does not stand in for them.
    pub is_named: bool,
}

/// A graphics processor through one backend.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct Candidate {
    pub label: String,
    pub backend: Backend,
    pub index: usize,
    /// Which card must answer there.
    pub identity: Identity,
    /// The same for all backends that show one card.
    pub card: usize,
    /// Estimate for a fixed piece of work, in seconds.
    pub seconds: f64,
}

impl Candidate {
    fn failed(&self, error: &Failure) -> LeftOut {
        let reason = format!("it could not be opened: {}", chain(&**error));
        LeftOut { label: self.label.clone(), reason }
    }

    /// Refuses another card than the one that was looked at: what is known counts for that one.
    pub fn check_identity(&self, found: &Identity) -> Result<(), OtherCard> {
        let place = |identity: &Identity| (identity.name.clone(), identity.pci_address.clone());
        match place(&self.identity) == place(found) {
            true => Ok(()),
            false => Err(OtherCard { name: found.name.clone() }),
        }
    }
}

/// Another card is where one was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} answers in its place")]
pub struct OtherCard {
    /// What it is called.
    pub name: String,
}

/// Why a candidate cannot be opened.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The one that the user named cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{label} cannot be used")]
pub struct NamedFailed {
    /// Name and place.
    pub label: String,
    /// What went wrong with it.
    pub source: Failure,
}

/// A device that is not used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeftOut {
    /// Name and place.
    pub label: String,
    /// Why it is not used.
    pub reason: String,
}

/// Which of the candidates are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CardSelection {
    /// The first that can be opened.
    Best,
    /// That, and the best way to each other card. If the user named one, that one.
    EachCard,
}

/// What trying the candidates came to.
pub struct Tried<T> {
    /// Those that could be opened, the best first; none is for the processor.
    pub opened: Vec<T>,
    /// Why it is those and none of the others. Empty where there was nothing to choose.
    pub told: String,
    /// What did not work on the way, for the user to know.
    pub warnings: Vec<String>,
}

impl Ranking {
    /// Opens what is wanted, the best first and then the other cards at once. If the user named one and that
    /// cannot be, it is an error.
    pub fn try_each<T: Send>(
        &self,
        wanted: CardSelection,
        open: impl Fn(&Candidate) -> Result<T, Failure> + Sync,
    ) -> Result<Tried<T>, NamedFailed> {
        let mut failed: Vec<LeftOut> = Vec::new();
        let mut used: Vec<&Candidate> = Vec::new();
        let mut opened = Vec::new();
        for candidate in self.first_tries() {
            match open(candidate) {
                Ok(device) => {
                    (used, opened) = (vec![candidate], vec![device]);
                    break;
                }
                Err(source) if self.is_named => {
                    return Err(NamedFailed { label: candidate.label.clone(), source });
                }
                Err(error) => failed.push(candidate.failed(&error)),
            }
        }
        if wanted == CardSelection::EachCard && !self.is_named && !used.is_empty() {
            let mut others = self.other_cards(&used, &failed);
            others.truncate(CARDS_MAX - 1);
            for (candidate, result) in open_all(&others, &open) {
                match result {
                    Ok(device) => {
                        used.push(candidate);
                        opened.push(device);
                    }
                    Err(error) => failed.push(candidate.failed(&error)),
                }
            }
        }
        let instead = used.first().map_or("the processor", |used| &used.label);
        let (told, warnings) = (self.told(&used, &failed), warnings(&failed, instead));
        Ok(Tried { opened, told, warnings })
    }

    /// What is tried until one can be opened: some ways to the first cards, so that one card which no one can
    /// open does not keep the others from being tried.
    fn first_tries(&self) -> Vec<&Candidate> {
        let mut cards: Vec<(usize, usize)> = Vec::new();
        let is_tried = |candidate: &&Candidate| {
            let at = cards.iter().position(|(card, _)| *card == candidate.card).unwrap_or_else(|| {
                cards.push((candidate.card, 0));
                cards.len() - 1
            });
            cards[at].1 += 1;
            at < CARDS_TRIED_MAX && cards[at].1 <= WAYS_TRIED_MAX
        };
        self.candidates.iter().filter(is_tried).collect()
    }

    /// Why `used` (none: the processor) is used, and why nothing else is.
    pub fn told(&self, used: &[&Candidate], failed: &[LeftOut]) -> String {
        let why = match (used, self.processor_s) {
            ([_, ..], _) if self.is_named => "chosen by its name".to_owned(),
            ([best, others @ ..], processor_s) => {
                let than = processor_s.map(|s| format!(" for what takes the processor {}", seconds(s)));
                let own = seconds(best.seconds);
                let best = format!("chosen as the fastest: {own}{} ({WORK})", than.unwrap_or_default());
                let others: Vec<_> =
                    others.iter().map(|o| format!("{} ({})", o.label, seconds(o.seconds))).collect();
                if others.is_empty() { best } else { format!("{best}; with it {}", others.join(", ")) }
            }
            ([], _) if self.candidates.is_empty() && self.left_out.is_empty() => return String::new(),
            ([], _) => "chosen because nothing faster can be used".to_owned(),
        };
        let rest = self.not_used(used, failed);
        let others: Vec<String> = rest
            .into_iter()
            .map(|(label, reason)| format!("{label}: {}", clip(&reason, REASON_CHARS_MAX)))
            .collect();
        let told = if others.is_empty() { why } else { format!("{why}; not used: {}", others.join("; ")) };
        clip(&told, TOLD_CHARS_MAX)
    }

    /// The best way to each card, the best first: what a node takes, unless one was named or cannot be
    /// opened.
    pub fn each_card(&self) -> Vec<&Candidate> {
        self.other_cards(&[], &[])
    }

    /// The best way to each card that is not `used`, of those that did not fail.
    fn other_cards<'a>(&'a self, used: &[&'a Candidate], failed: &[LeftOut]) -> Vec<&'a Candidate> {
        // Another way to a card that is used is no device that is not.
        let mut cards: Vec<usize> = used.iter().map(|used| used.card).collect();
        let is_failed = |label: &str| failed.iter().any(|failed| failed.label == label);
        let others = self.candidates.iter().filter(|other| {
            let is_new = !cards.contains(&other.card) && !is_failed(&other.label);
            if is_new {
                cards.push(other.card);
            }
            is_new
        });
        others.collect()
    }

    /// What is not used while `used` are, with the reasons.
    fn not_used<'a>(&'a self, used: &[&'a Candidate], failed: &'a [LeftOut]) -> Vec<(&'a str, String)> {
        let idle = self.other_cards(used, failed).into_iter().map(|other| {
            let reason = match used.first() {
                Some(used) if other.seconds >= used.seconds => {
                    format!("slower, {} for the same", seconds(other.seconds))
                }
                _ => "it was not tried".to_owned(),
            };
            (other.label.as_str(), reason)
        });
        let failed = failed.iter().map(|failed| (failed.label.as_str(), failed.reason.clone()));
        let left_out = self.left_out.iter().map(|out| (out.label.as_str(), out.reason.clone()));
        failed.chain(idle).chain(left_out).collect()
    }
}

/// Opens devices at once, and gives them in their order.
pub fn open_all<'a, T: Send>(
    candidates: &[&'a Candidate],
    open: &(impl Fn(&Candidate) -> Result<T, Failure> + Sync),
) -> Vec<(&'a Candidate, Result<T, Failure>)> {
    std::thread::scope(|scope| {
        let opening: Vec<_> =
            candidates.iter().map(|&candidate| (candidate, scope.spawn(move || open(candidate)))).collect();
        let results = opening.into_iter().map(|(candidate, thread)| {
            let panicked = |_| Err("the thread that opened it panicked".into());
            (candidate, thread.join().unwrap_or_else(panicked))
        });
        results.collect()
    })
}

/// What an estimate is for.
const WORK: &str = "a prompt of 512 and an answer of 128 tokens with a billion weights";

/// Seconds in words, with as many digits as they are worth.
pub fn seconds(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.0} ms", seconds * 1e3) } else { format!("{seconds:.1} s") }
}

/// An error with what led to it.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let more = cause.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = cause.source();
    }
    text
}

fn warnings(failed: &[LeftOut], instead: &str) -> Vec<String> {
    let each = failed.iter().map(|LeftOut { label, reason }| {
        format!(
            "{label} is not used, {instead} is: {reason}; `exo devices` shows more, `--backend` names another"
        )
    });
    each.collect()
}

fn clip(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(label: &str, card: usize, seconds: f64) -> Candidate {
        let identity =
            Identity { name: label.to_owned(), vendor: 1, device: 1, pci_address: None, uuid: None };
        Candidate { label: label.to_owned(), backend: Backend::Cuda, index: card, identity, card, seconds }
    }

    fn ranking() -> Ranking {
        Ranking {
            candidates: vec![candidate("A", 0, 0.05), candidate("A again", 0, 0.09), candidate("B", 1, 0.3)],
            left_out: vec![LeftOut { label: "C".to_owned(), reason: "a software adapter".to_owned() }],
            quarantined: Vec::new(),
            processor_s: Some(11.9),
            is_named: false,
        }
    }

    fn opened(ranking: &Ranking, broken: &[&str]) -> (Option<String>, String, usize) {
        let open = |candidate: &Candidate| match broken.contains(&candidate.label.as_str()) {
            true => Err("the driver is gone".into()),
            false => Ok(candidate.label.clone()),
        };
        let tried = ranking.try_each(CardSelection::Best, open).unwrap();
        (tried.opened.into_iter().next(), tried.told, tried.warnings.len())
    }

    #[test]
    fn the_best_is_used_and_the_others_are_told_with_their_reasons() {
        let (used, told, warnings) = opened(&ranking(), &[]);
        assert_eq!((used.as_deref(), warnings), (Some("A"), 0));
        assert_eq!(
            told,
            "chosen as the fastest: 50 ms for what takes the processor 11.9 s (a prompt of 512 and an answer of 128 \
             tokens with a billion weights); not used: B: slower, 300 ms for the same; C: a software adapter"
        );
    }

    #[test]
    fn what_cannot_be_opened_gives_way_to_the_next_and_at_last_to_the_processor() {
        let (used, told, warnings) = opened(&ranking(), &["A"]);
        assert_eq!((used.as_deref(), warnings), (Some("A again"), 1));
        assert!(
            told.contains("not used: A: it could not be opened: the driver is gone; B: slower"),
            "{told}"
        );
        let (used, told, warnings) = opened(&ranking(), &["A", "A again", "B"]);
        assert_eq!((used, warnings), (None, 3));
        assert!(
            told.starts_with(
                "chosen because nothing faster can be used; not used: A: it could not be opened"
            ),
            "{told}"
        );
        let named = Ranking { is_named: true, ..ranking() };
        let error = named
            .try_each(CardSelection::EachCard, |_| Err::<(), _>("the driver is gone".into()))
            .err()
            .unwrap();
        assert_eq!(chain(&error), "A cannot be used: the driver is gone");
    }

    #[test]
    fn some_ways_to_some_cards_are_tried_and_one_card_does_not_take_all_the_tries() {
        let ways = [(0, 3), (1, 3), (2, 1), (3, 1)];
        let ways = ways.iter().flat_map(|&(card, ways)| (0..ways).map(move |way| (card, way)));
        let candidates = ways.map(|(card, way)| candidate(&format!("{card}.{way}"), card, 1.0)).collect();
        let tried = std::sync::Mutex::new(Vec::new());
        let open = |candidate: &Candidate| {
            tried.lock().unwrap().push(candidate.label.clone());
            Err::<(), _>("the driver is gone".into())
        };
        let ranking = Ranking { candidates, ..Ranking::default() };
        assert!(ranking.try_each(CardSelection::EachCard, open).unwrap().opened.is_empty());
        assert_eq!(*tried.lock().unwrap(), ["0.0", "0.1", "1.0", "1.1", "2.0"]);
    }

    #[test]
    fn a_node_takes_the_best_way_to_each_card_and_tells_what_fails() {
        let open = |broken: &'static [&'static str]| {
            move |candidate: &Candidate| match broken.contains(&candidate.label.as_str()) {
                true => Err("the driver is gone".into()),
                false => Ok(candidate.label.clone()),
            }
        };
        let tried = ranking().try_each(CardSelection::EachCard, open(&[])).unwrap();
        assert_eq!((tried.opened, tried.warnings), (vec!["A".to_owned(), "B".to_owned()], Vec::new()));
        assert!(
            tried.told.contains("; with it B (300 ms); not used: C: a software adapter"),
            "{}",
            tried.told
        );
        let tried = ranking().try_each(CardSelection::EachCard, open(&["A", "B"])).unwrap();
        assert_eq!((tried.opened, tried.warnings.len()), (vec!["A again".to_owned()], 2));
        assert!(tried.told.contains("B: it could not be opened: the driver is gone"), "{}", tried.told);
        let named = Ranking { is_named: true, ..ranking() };
        assert_eq!(named.try_each(CardSelection::EachCard, open(&[])).unwrap().opened, ["A"]);
    }

    #[test]
    fn where_there_is_nothing_to_choose_there_is_nothing_to_say() {
        assert_eq!(opened(&Ranking::default(), &[]), (None, String::new(), 0));
    }

    #[test]
    fn reasons_are_cut_short() {
        let long = LeftOut { label: "C".to_owned(), reason: "é".repeat(5000) };
        let left_out = vec![long; 8];
        let told = Ranking { left_out, ..Ranking::default() }.told(&[], &[]);
        assert!(told.len() < 4096 && told.ends_with('…'), "{}", told.len());
    }
}
