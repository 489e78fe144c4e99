//! Tokens that a sequence's grammar leaves no choice about: the last stage names them with what it sampled,
//! and they go along as drafts.
//!
//! Their text is sure, their spelling is not: behind the last of them the text goes on with what is not
//! forced, and a token may reach over that border. How often they are right is learned at every token, sent
//! or not, of the last ones apart.

use super::row_cost::DraftBudget;

/// How often one is right before anything is known: one with forced text behind it, and the last.
const CHANCES_AT_FIRST: [f64; 2] = [0.95, 0.6];
/// Weight of the newest in what is known of them: the last sixteen or so count.
const NEWEST: f64 = 1.0 / 16.0;

/// What has to follow a sequence's tokens.
#[derive(Clone, Debug)]
pub(super) struct Forced {
    tokens: Vec<u32>,
    /// Shares of right ones, as in [`CHANCES_AT_FIRST`].
    chances: [f64; 2],
}

impl Forced {
    /// Nothing is known to follow.
    pub(super) fn new() -> Self {
        Self { tokens: Vec::new(), chances: CHANCES_AT_FIRST }
    }

    /// Whether nothing is known to follow.
    pub(super) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// These tokens came, and those have to follow them.
    pub(super) fn learn(&mut self, came: impl Iterator<Item = u32>, next: &[u32]) {
        for (i, token) in came.enumerate() {
            let Some(&forced) = self.tokens.get(i) else { break };
            let (right, class) = (token == forced, self.class(i));
            let chance = &mut self.chances[class];
            *chance += (f64::from(u8::from(right)) - *chance) * NEWEST;
            if !right {
                break;
            }
        }
        self.tokens.clear();
        self.tokens.extend_from_slice(next);
    }

    /// Whether somebody's guesses say the same, but for the last, and as much or more.
    pub(super) fn is_in(&self, guesses: &[u32]) -> bool {
        let sure = self.tokens.len().saturating_sub(1);
        guesses.len() >= self.tokens.len() && guesses[..sure] == self.tokens[..sure]
    }

    /// At most `count` of them, none a token of `stop`; as many as `budget` finds worth a row.
    pub(super) fn drafts(&self, count: u32, stop: &[u32], budget: &mut DraftBudget) -> Vec<u32> {
        let mut chance = 1.0;
        let mut good = |&(i, token): &(usize, &u32)| {
            chance *= self.chances[self.class(i)];
            !stop.contains(token) && budget.take(chance)
        };
        let tokens = self.tokens.iter().take(count as usize).enumerate().take_while(&mut good);
        tokens.map(|(_, token)| *token).collect()
    }

    fn class(&self, i: usize) -> usize {
        usize::from(i + 1 == self.tokens.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafts(forced: &Forced, row: f64) -> Vec<u32> {
        forced.drafts(9, &[99], &mut DraftBudget::new(row, 1))
    }

    #[test]
    fn the_last_is_sent_for_as_long_as_it_mostly_comes_true() {
        let mut forced = Forced::new();
        forced.learn([1].into_iter(), &[2, 3, 4]);
        assert_eq!(drafts(&forced, 0.1), [2, 3, 4]);
        for _ in 0..40 {
            forced.learn([2, 3, 7].into_iter(), &[2, 3, 4]);
        }
        assert_eq!(drafts(&forced, 0.1), [2, 3], "it was another token each time");
        for _ in 0..40 {
            forced.learn([2, 3, 4].into_iter(), &[2, 3, 4]);
        }
        assert_eq!(drafts(&forced, 0.1), [2, 3, 4]);
        assert_eq!(drafts(&forced, 1.0), [0; 0], "a row costs a step");
    }

    #[test]
    fn none_is_sent_at_or_behind_a_stop_token_nor_more_than_have_room() {
        let mut forced = Forced::new();
        forced.learn([1].into_iter(), &[2, 99, 4]);
        assert_eq!(drafts(&forced, 0.0), [2]);
        forced.learn([2].into_iter(), &[5, 6, 7]);
        assert_eq!(forced.drafts(2, &[], &mut DraftBudget::free()), [5, 6]);
        forced.learn([5].into_iter(), &[]);
        assert!(forced.is_empty() && drafts(&forced, 0.0).is_empty());
    }

    #[test]
    fn guesses_that_go_further_say_the_same() {
        let mut forced = Forced::new();
        forced.learn([1].into_iter(), &[2, 3, 4]);
        assert!(forced.is_in(&[2, 3, 4]) && forced.is_in(&[2, 3, 8, 9]));
        assert!(!forced.is_in(&[2, 3]) && !forced.is_in(&[2, 7, 4]));
    }
}
