//! Guesses of a small model: when a sequence asks for them, how many, and for how long a step waits.
//!
//! The small model runs beside the scheduler, on the same node. A sequence asks as soon as its last token is
//! known; the next step waits for the answer, but no longer than [`WAIT_MAX`]: late guesses are thrown away.
//! A long text, like a prompt, is read while the large model works, and nobody waits for that.
//!
//! How often guesses are right is learned per sequence, what they cost over all: as many are asked for as
//! raise the rate of tokens, none where none does, and after a while one again to see whether that has
//! changed. Where not even a guess that is surely right would pay, nothing is read either, until what was
//! measured is too old. A sequence that the small model cannot hold is asked about no more: it only grows,
//! and a question costs what its text is long.

use std::time::Duration;

use exo_types::{SamplingParams, Time};

use super::row_cost::DraftBudget;

/// A step waits so long for guesses: within what a running stream may be held up by others.
const WAIT_MAX: Duration = Duration::from_millis(200);
/// Tokens that the small model may have to read before it guesses while a step waits.
const NEWS_MAX: usize = 32;
/// How often a guess is right before anything is known.
const CHANCE_AT_FIRST: f64 = 0.7;
/// Weight of the newest guess in what is known of them: the last sixteen or so count.
const NEWEST: f64 = 1.0 / 16.0;
/// Tokens without a guess after which one is asked for whatever is known: text and machine change.
const ASK_AGAIN_AFTER: u32 = 128;
/// Share of a step of one row that a guess takes, until that is measured.
const COST_AT_FIRST: f64 = 0.1;
/// Tokens, over all sequences, after which a cost that was not measured again is forgotten: what slowed the
/// small model down may be gone.
const COST_HOLDS_FOR: u32 = 1024;
/// An answer that takes this many times the usual tells of the machine.
const OUTLIER: f64 = 3.0;
/// Measurements after which a cost may shut guesses out.
const MEASURED_WELL: u32 = 3;

/// A sequence that a small model guesses at.
#[derive(Clone, Debug)]
pub(super) struct Drafting {
    sampling: SamplingParams,
    prompt_tokens: u32,
    /// Share of right guesses.
    chance: f64,
    /// Length of the text that the small model has read.
    known: usize,
    pending: Option<Pending>,
    /// What follows the first so many tokens.
    guess: Option<(usize, Vec<u32>)>,
    /// Tokens since the last guess.
    idle: u32,
}

/// A question that is not answered.
#[derive(Clone, Copy, Debug)]
struct Pending {
    /// Length of the text it was about.
    len: usize,
    asked_at: Time,
    /// Whether a step waits for the answer.
    awaited: bool,
}

/// What one question may ask for.
pub(super) struct Terms<'a> {
    pub(super) now: Time,
    /// Guesses that have room.
    pub(super) count_max: u32,
    /// Weighs their rows and, at `cost` each, their making.
    pub(super) budget: &'a mut DraftBudget,
    pub(super) cost: f64,
}

impl Drafting {
    pub(super) fn new(sampling: SamplingParams, prompt_tokens: u32) -> Self {
        let (chance, known, idle) = (CHANCE_AT_FIRST, 0, 0);
        Self { sampling, prompt_tokens, chance, known, pending: None, guess: None, idle }
    }

    /// How its tokens are chosen, and how many of them are prompt.
    pub(super) fn sampling(&self) -> (SamplingParams, u32) {
        (self.sampling.clone(), self.prompt_tokens)
    }

    /// How many guesses to ask the small model for now, behind a text of `len` tokens: `None` for no question
    /// at all, 0 to have it read.
    pub(super) fn ask(&mut self, len: usize, terms: Terms<'_>) -> Option<u32> {
        if self.pending.is_some() || self.guess.as_ref().is_some_and(|(at, _)| *at == len) {
            return None;
        }
        let Terms { now, count_max, budget, cost } = terms;
        if !budget.clone().take_made(1.0, cost) {
            return None;
        }
        let far_behind = len > self.known + NEWS_MAX;
        let count = if far_behind { 0 } else { self.worth(count_max, budget, cost) };
        if count == 0 && !far_behind {
            return None;
        }
        self.pending = Some(Pending { len, asked_at: now, awaited: count > 0 });
        Some(count)
    }

    /// How many guesses raise the rate of tokens.
    fn worth(&mut self, count_max: u32, budget: &mut DraftBudget, cost: f64) -> u32 {
        let mut chance = 1.0;
        let mut takes = |_: &u32| {
            chance *= self.chance;
            budget.take_made(chance, cost)
        };
        let count = (0..count_max).take_while(&mut takes).count() as u32;
        let ask_again = self.idle >= ASK_AGAIN_AFTER;
        if count > 0 || ask_again {
            self.idle = 0;
        }
        if ask_again { count.max(1).min(count_max) } else { count }
    }

    /// Whether the step after the first `len` tokens waits for guesses.
    pub(super) fn is_awaited(&self, len: usize) -> bool {
        self.pending.is_some_and(|pending| pending.awaited && pending.len == len)
    }

    /// Waits no longer than is good for those who do.
    pub(super) fn check_wait(&mut self, now: Time) {
        if let Some(pending) = &mut self.pending {
            pending.awaited &= now.since(pending.asked_at) <= WAIT_MAX;
        }
    }

    /// The small model has read the first `len` tokens and guesses these.
    pub(super) fn answered(&mut self, len: usize, tokens: Vec<u32>) {
        if self.pending.is_some_and(|pending| pending.len == len) {
            (self.pending, self.known) = (None, len);
            self.guess = Some((len, tokens));
        }
    }

    /// Guesses at what follows `text`, at most `count`, none a token of `stop`; as many as `budget` finds
    /// worth a row.
    pub(super) fn drafts(
        &self,
        text: &[u32],
        count: u32,
        stop: &[u32],
        budget: &mut DraftBudget,
    ) -> Vec<u32> {
        let Some((_, tokens)) = self.guess.as_ref().filter(|(len, _)| *len == text.len()) else {
            return Vec::new();
        };
        let mut chance = 1.0;
        let mut good = |token: &&u32| {
            chance *= self.chance;
            !stop.contains(token) && budget.take(chance)
        };
        tokens.iter().take(count as usize).take_while(&mut good).copied().collect()
    }

    /// Of `drafts` that were checked, the first `accepted` were right.
    pub(super) fn learn(&mut self, drafts: u32, accepted: u32) {
        for _ in 0..accepted {
            self.chance += (1.0 - self.chance) * NEWEST;
        }
        if accepted < drafts {
            self.chance -= self.chance * NEWEST;
        }
        if drafts == 0 {
            self.idle = self.idle.saturating_add(1);
        }
    }
}

/// What it takes to make a guess for every sequence that asks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GuessCost {
    seconds: Option<f64>,
    /// How often.
    measured: u32,
    /// Tokens since it was measured.
    age: u32,
}

impl GuessCost {
    /// A guess, made for all who asked together, took `time`.
    pub(super) fn learn(&mut self, time: Duration) {
        let new = time.as_secs_f64();
        let before = self.seconds.unwrap_or(new);
        self.seconds = Some(before + (new.min(before * OUTLIER) - before) / 8.0);
        self.measured = self.measured.saturating_add(1);
        self.age = 0;
    }

    /// So many tokens were generated meanwhile.
    pub(super) fn grow_old(&mut self, tokens: u32) {
        self.age = self.age.saturating_add(tokens);
        if self.age > COST_HOLDS_FOR {
            *self = Self::default();
        }
    }

    /// As a share of a step of one row, which takes `step` seconds.
    pub(super) fn share(&self, step: Option<f64>) -> f64 {
        match (self.seconds, step) {
            // Before it is known well it shuts nobody out: one slow guess says little.
            (Some(guess), Some(step)) if step > 0.0 && self.measured < MEASURED_WELL => {
                (guess / step).min(COST_AT_FIRST)
            }
            (Some(guess), Some(step)) if step > 0.0 => guess / step,
            _ => COST_AT_FIRST,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: [u32; 8] = [1; 8];

    /// How many guesses are asked for when a row costs `row` of a step and a guess `cost`.
    fn asked(drafting: &mut Drafting, row: f64, cost: f64) -> u32 {
        let mut budget = DraftBudget::new(row, 1);
        let (now, count_max, budget) = (Time::ZERO, 16, &mut budget);
        drafting.ask(TEXT.len(), Terms { now, count_max, budget, cost }).unwrap_or(0)
    }

    fn new() -> Drafting {
        Drafting::new(SamplingParams::greedy(), 4)
    }

    /// One that has seen so many guesses, all right or all wrong.
    fn seen(right: bool) -> Drafting {
        let mut drafting = new();
        (0..64).for_each(|_| drafting.learn(1, u32::from(right)));
        drafting
    }

    #[test]
    fn as_many_are_asked_for_as_pay() {
        assert!(asked(&mut seen(true), 0.1, 0.1) > asked(&mut new(), 0.1, 0.1));
        assert!(asked(&mut new(), 0.1, 0.1) > asked(&mut new(), 0.1, 0.4));
        assert_eq!(asked(&mut seen(false), 0.1, 0.1), 0, "they are never right");
        assert_eq!(asked(&mut seen(true), 0.1, 1.0), 0, "the small model is as slow as the large one");
    }

    #[test]
    fn where_they_do_not_pay_one_is_asked_for_now_and_then() {
        let mut drafting = seen(false);
        for _ in 0..ASK_AGAIN_AFTER {
            assert_eq!(asked(&mut drafting, 0.1, 0.1), 0);
            drafting.learn(0, 0);
        }
        assert_eq!(asked(&mut drafting, 0.1, 0.1), 1);
    }

    #[test]
    fn where_no_guess_can_pay_nothing_is_read() {
        let asked = |cost| {
            let mut budget = DraftBudget::new(0.1, 1);
            let (now, count_max, budget) = (Time::ZERO, 16, &mut budget);
            new().ask(NEWS_MAX + 9, Terms { now, count_max, budget, cost })
        };
        assert_eq!((asked(0.1), asked(1.0)), (Some(0), None));
    }

    #[test]
    fn a_cost_is_forgotten_unless_it_is_measured_again() {
        let mut cost = GuessCost::default();
        let share = |cost: &GuessCost| cost.share(Some(0.01));
        assert_eq!(share(&cost), COST_AT_FIRST);
        for _ in 1..MEASURED_WELL {
            cost.learn(Duration::from_millis(10));
            assert_eq!(share(&cost), COST_AT_FIRST, "too early to say");
        }
        for _ in 0..3 {
            cost.learn(Duration::from_millis(10));
            cost.grow_old(COST_HOLDS_FOR);
            assert!((share(&cost) - 1.0).abs() < 1e-9);
        }
        cost.grow_old(1);
        assert_eq!(share(&cost), COST_AT_FIRST);
    }

    #[test]
    fn a_question_is_asked_once_and_waited_for_within_bounds() {
        let mut drafting = new();
        assert!(asked(&mut drafting, 0.1, 0.1) > 0);
        assert_eq!(asked(&mut drafting, 0.1, 0.1), 0, "it is asked already");
        assert!(drafting.is_awaited(8) && !drafting.is_awaited(9));
        drafting.check_wait(Time::ZERO + WAIT_MAX);
        assert!(drafting.is_awaited(8));
        drafting.check_wait(Time::ZERO + WAIT_MAX * 2);
        assert!(!drafting.is_awaited(8));
        assert_eq!(asked(&mut drafting, 0.1, 0.1), 0, "the small model is still busy with it");
        drafting.answered(8, vec![5, 99, 6]);
        let drafts = |text: &[u32]| drafting.drafts(text, 9, &[99], &mut DraftBudget::free());
        assert_eq!(drafts(&TEXT), [5], "none at or behind a token that ends the answer");
        assert_eq!(drafts(&TEXT[..7]), [0; 0], "they are about another text");
    }
}
