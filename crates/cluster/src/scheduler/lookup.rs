//! Prompt lookup: a sequence's next tokens guessed from its own earlier ones.
//!
//! Where the last few tokens stood before, whatever followed them there is the guess; no second model is
//! needed (Saxena 2023, prompt lookup decoding). Guesses are made and judged at every token, sent or not, so
//! how often they are right is known before any is paid for, and a text that starts to repeat itself is
//! noticed for free.
//!
//! A token costs O(1): two table entries and, after a wrong guess, at most [`MATCH_MAX`] comparisons.

use super::row_cost::DraftBudget;

/// Tokens that must agree for a place to count, the long first: it finds the better place, the short finds
/// more.
const NGRAMS: [usize; 2] = [4, 2];
/// Agreeing tokens are counted up to here.
const MATCH_MAX: u32 = 16;
/// Entries of a table at most: 512 KiB. Longer texts overwrite what is old.
const ENTRIES_MAX: usize = 1 << 17;
const NOWHERE: u32 = u32::MAX;

/// Before anything is known of a text: how often a guess is right after matches of 2, 4, 8 and 16 tokens.
const CHANCE_AT_FIRST: [f64; 4] = [0.3, 0.5, 0.7, 0.85];
/// Weight of the newest guess in what is known of them: the last eight or so count.
const NEWEST: f64 = 1.0 / 8.0;

/// Where in its own text a sequence seems to be once more. The text is the caller's; it only grows.
#[derive(Clone, Debug)]
pub(super) struct Lookup {
    /// Per length of [`NGRAMS`]: by hash of that many tokens, the place behind where they were last seen. A
    /// place may be another's of the same hash.
    tables: [Vec<u32>; NGRAMS.len()],
    guess: Option<Guess>,
    /// Share of right guesses by [`class`] of match.
    chances: [f64; CHANCE_AT_FIRST.len()],
}

/// The next token is the one at `place`, because the last `matched` tokens are those in front of it.
#[derive(Clone, Copy, Debug)]
struct Guess {
    place: usize,
    matched: u32,
}

impl Lookup {
    /// Knows `tokens`; will know at most `tokens_max`.
    pub(super) fn new(tokens: &[u32], tokens_max: u32) -> Self {
        let entries = (2 * tokens_max as usize).next_power_of_two().clamp(64, ENTRIES_MAX);
        let mut lookup =
            Self { tables: NGRAMS.map(|_| vec![NOWHERE; entries]), guess: None, chances: CHANCE_AT_FIRST };
        (1..=tokens.len()).for_each(|end| lookup.push(&tokens[..end]));
        lookup
    }

    /// The last of `tokens` is new.
    pub(super) fn push(&mut self, tokens: &[u32]) {
        let Some(&token) = tokens.last() else { return };
        if let Some(guess) = self.guess {
            let right = tokens[guess.place] == token;
            let chance = &mut self.chances[class(guess.matched)];
            *chance += (f64::from(u8::from(right)) - *chance) * NEWEST;
            let (place, matched) = (guess.place + 1, (guess.matched + 1).min(MATCH_MAX));
            self.guess = right.then_some(Guess { place, matched });
        }
        if self.guess.is_none() {
            self.guess = self.find(tokens);
        }
        for (n, table) in NGRAMS.iter().zip(&mut self.tables) {
            if let Some(entry) = entry_of(tokens, *n, table.len()) {
                table[entry] = tokens.len() as u32;
            }
        }
    }

    /// Guesses at what follows `tokens`, at most `count`, none a token of `stop`; as many as `budget` finds
    /// worth a row.
    pub(super) fn drafts(
        &self,
        tokens: &[u32],
        count: u32,
        stop: &[u32],
        budget: &mut DraftBudget,
    ) -> Vec<u32> {
        let mut drafts: Vec<u32> = Vec::new();
        let Some(Guess { place, matched }) = self.guess else { return drafts };
        let mut chance = 1.0;
        for i in 0..count {
            let at = place + i as usize;
            // A text that repeats itself at once is continued by its own guesses.
            let token = tokens.get(at).copied().unwrap_or_else(|| drafts[at - tokens.len()]);
            chance *= self.chances[class((matched + i).min(MATCH_MAX))];
            if stop.contains(&token) || !budget.take(chance) {
                break;
            }
            drafts.push(token);
        }
        drafts
    }

    /// Where the last tokens stood before, if they did.
    fn find(&self, tokens: &[u32]) -> Option<Guess> {
        NGRAMS.iter().zip(&self.tables).find_map(|(&n, table)| {
            let place = table[entry_of(tokens, n, table.len())?];
            let before = tokens.get(..place as usize)?;
            let pairs = before.iter().rev().zip(tokens.iter().rev()).take(MATCH_MAX as usize);
            let matched = pairs.take_while(|(a, b)| a == b).count();
            (matched >= n).then_some(Guess { place: place as usize, matched: matched as u32 })
        })
    }
}

/// Which of the chances a match of so many tokens has.
fn class(matched: u32) -> usize {
    (matched.max(2).ilog2() as usize - 1).min(CHANCE_AT_FIRST.len() - 1)
}

/// Where the last `n` tokens belong in a table of `entries`, a power of two.
fn entry_of(tokens: &[u32], n: usize, entries: usize) -> Option<usize> {
    let last = &tokens[tokens.len().checked_sub(n)?..];
    let hash = last
        .iter()
        .fold(n as u64, |h, &t| (h ^ u64::from(t)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29));
    Some((hash >> 20) as usize & (entries - 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What `text` is guessed to go on with, if rows cost nothing.
    fn guess(text: &[u32], count: u32) -> Vec<u32> {
        Lookup::new(text, 100).drafts(text, count, &[99], &mut DraftBudget::free())
    }

    #[test]
    fn what_followed_the_same_tokens_is_guessed_again() {
        assert_eq!(guess(&[1, 2, 3, 4, 5, 6, 1, 2], 2), [3, 4]);
        assert_eq!(guess(&[1, 2, 3, 1], 3), Vec::<u32>::new(), "one token is no match");
        assert_eq!(guess(&[1, 2, 3, 1, 2, 4, 1, 2], 1), [4], "the last time counts");
        assert_eq!(guess(&[7, 8, 1, 2, 3, 1, 2, 4, 7, 8, 1, 2], 1), [3], "but more so the longer match");
    }

    #[test]
    fn a_text_that_repeats_itself_at_once_is_continued() {
        assert_eq!(guess(&[1, 2, 3].repeat(20), 7), [1, 2, 3, 1, 2, 3, 1]);
        assert_eq!(guess(&[5; 20], 4), [5; 4]);
    }

    #[test]
    fn a_stop_token_is_never_guessed() {
        assert_eq!(guess(&[1, 2, 3, 99, 4, 1, 2], 5), [3]);
    }

    #[test]
    fn guesses_that_fail_are_not_worth_a_row_until_they_come_true() {
        let worth =
            |text: &[u32]| Lookup::new(text, 1000).drafts(text, 1, &[], &mut DraftBudget::new(0.2, 1)).len();
        // 1 2 is followed by something new every time.
        let mut text: Vec<u32> = (100..111).flat_map(|new| [1, 2, new]).collect();
        text.extend([1, 2]);
        assert_eq!(worth(&text), 0);
        text.extend([7, 1, 2].repeat(10));
        assert_eq!(worth(&text), 1);
    }

    proptest! {
        /// Against a search through the whole text: a guess has its match in front of it, and none is missed.
        #[test]
        fn guesses_continue_a_match(text in proptest::collection::vec(0u32..5, 0..60)) {
            // Tables so large that no two places share an entry.
            let lookup = Lookup::new(&text, 1 << 16);
            let n = text.len();
            let stood_before = n > 2 && (2..n).any(|end| text[end - 2..end] == text[n - 2..]);
            prop_assert_eq!(lookup.guess.is_some(), stood_before);
            if let Some(guess) = lookup.guess {
                prop_assert!(guess.matched >= 2 && guess.place < n);
                let m = guess.matched as usize;
                prop_assert_eq!(&text[guess.place - m..guess.place], &text[n - m..]);
            }
        }
    }
}
