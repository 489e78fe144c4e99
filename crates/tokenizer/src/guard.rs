//! Regular expressions from model files, held to a bound.
//!
//! The `tokenizers` crate ends its search quietly when an expression backtracks too much, which cuts a text
//! into wrong pieces, and it starts each search anew with a full allowance, which can take hours. Here every
//! search looks at a window, has an allowance of steps, and all searches of one text share a stopwatch.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use fancy_regex::{Regex, RegexBuilder};
use tokenizers::tokenizer::pattern::Pattern;

use crate::{EncodeError, TokenizerError};

/// Longest pattern accepted. The longest known (lists of scripts) has about 4 KiB.
const PATTERN_BYTES_MAX: usize = 32 << 10;
/// Memory of one compiled delegate. The largest known patterns need a tenth of it.
const COMPILED_BYTES_MAX: usize = 4 << 20;
/// Instructions of a compiled pattern.
const PROGRAM_LEN_MAX: usize = 100_000;

/// Text one search sees at first. With the allowance below, a search reads at most 2 GiB: seconds, not hours.
const WINDOW: usize = 32 << 10;
/// A match that ends closer than this to the window's end is searched again in a larger window, so lookahead
/// up to this length is exact. Known patterns look ahead by one character, or to the end of a number.
const MARGIN: usize = 8 << 10;
/// Backtracking steps of a search in the first window: two per byte.
const STEPS: usize = 64 << 10;
/// Backtracking steps in a grown window. Only a single match of many KiB leads there, and such a match (a run
/// of spaces) hardly backtracks.
const STEPS_GROWN: usize = 2 << 10;

/// How long all searches of one text may take.
pub(crate) const ENCODE_TIME_MAX: Duration = Duration::from_secs(5);

/// A stopwatch shared by everything done for one text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    pub(crate) fn start() -> Self {
        Self(Instant::now() + ENCODE_TIME_MAX)
    }

    pub(crate) fn is_past(self) -> bool {
        Instant::now() > self.0
    }
}

/// A checked pattern.
#[derive(Debug)]
pub(crate) struct GuardedRegex {
    source: String,
    regex: Regex,
    /// The same with the allowance of a grown window; few texts ever need it.
    grown: OnceLock<Option<Regex>>,
}

impl GuardedRegex {
    pub(crate) fn new(source: &str) -> Result<Self, TokenizerError> {
        let refuse = |reason: String| TokenizerError::Pattern { pattern: shorten(source), reason };
        if source.len() > PATTERN_BYTES_MAX {
            return Err(refuse(format!("it has {} bytes, at most {PATTERN_BYTES_MAX}", source.len())));
        }
        let regex = compile(source, STEPS).map_err(|e| refuse(e.to_string()))?;
        Ok(Self { source: source.to_owned(), regex, grown: OnceLock::new() })
    }

    /// All matches in `text`, left to right.
    pub(crate) fn find_all(
        &self,
        text: &str,
        deadline: Deadline,
    ) -> Result<Vec<(usize, usize)>, EncodeError> {
        let mut found: Vec<(usize, usize)> = Vec::new();
        let mut at = 0;
        while at <= text.len() {
            if deadline.is_past() {
                return Err(self.exploded(at, format!("{} s are over", ENCODE_TIME_MAX.as_secs())));
            }
            let Some((start, end)) = self.find_from(text, at)? else { break };
            // An empty match right behind a match is the end of that match, as everywhere.
            let again = start == end && found.last().is_some_and(|&(_, last)| last == end);
            if !again {
                found.push((start, end));
            }
            at = if start == end { next_char(text, end) } else { end };
        }
        Ok(found)
    }

    /// The first match that starts at `at` or later.
    fn find_from(&self, text: &str, mut at: usize) -> Result<Option<(usize, usize)>, EncodeError> {
        let mut window = WINDOW;
        loop {
            let end = text.floor_char_boundary(at.saturating_add(window));
            let whole = end == text.len();
            let settled = text.floor_char_boundary(end.saturating_sub(MARGIN)).max(at);
            match self.search(&text[..end], at, window)? {
                Some((from, to)) if whole || to <= settled => return Ok(Some((from, to))),
                Some(_) => window *= 2,
                None if whole => return Ok(None),
                // Nothing starts before `settled`: a match there would need to look further ahead than
                // MARGIN.
                None if settled > at => (at, window) = (settled, WINDOW),
                None => window *= 2,
            }
        }
    }

    /// The text before `at` stays in sight for lookbehind.
    fn search(&self, text: &str, at: usize, window: usize) -> Result<Option<(usize, usize)>, EncodeError> {
        let regex = if window == WINDOW {
            &self.regex
        } else {
            let grown = self.grown.get_or_init(|| compile(&self.source, STEPS_GROWN).ok());
            grown.as_ref().ok_or_else(|| self.exploded(at, "it does not compile again".to_owned()))?
        };
        let found = regex.find_from_pos(text, at).map_err(|e| self.exploded(at, e.to_string()))?;
        Ok(found.map(|m| (m.start(), m.end())))
    }

    fn exploded(&self, offset: usize, reason: String) -> EncodeError {
        EncodeError::PatternExploded { pattern: shorten(&self.source), offset, reason }
    }
}

fn compile(source: &str, steps: usize) -> Result<Regex, fancy_regex::Error> {
    RegexBuilder::new(source)
        .backtrack_limit(steps)
        .delegate_size_limit(COMPILED_BYTES_MAX)
        .max_prog_size(PROGRAM_LEN_MAX)
        .build()
}

fn next_char(text: &str, at: usize) -> usize {
    at + text[at..].chars().next().map_or(1, char::len_utf8)
}

pub(crate) fn shorten(pattern: &str) -> String {
    pattern.chars().take(80).collect()
}

/// Matches already found, in the shape the `tokenizers` crate splits and replaces by.
pub(crate) struct FoundMatches {
    pub(crate) matches: Vec<(usize, usize)>,
    /// Swap what is a match and what lies between.
    pub(crate) invert: bool,
}

impl Pattern for FoundMatches {
    fn find_matches(&self, inside: &str) -> tokenizers::Result<Vec<((usize, usize), bool)>> {
        if inside.is_empty() {
            return Ok(vec![((0, 0), self.invert)]);
        }
        let mut pieces = Vec::with_capacity(2 * self.matches.len() + 1);
        let mut at = 0;
        for &(start, end) in &self.matches {
            if at != start {
                pieces.push(((at, start), self.invert));
            }
            pieces.push(((start, end), !self.invert));
            at = end;
        }
        if at != inside.len() {
            pieces.push(((at, inside.len()), self.invert));
        }
        Ok(pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(pattern: &str, text: &str) -> Result<Vec<(usize, usize)>, EncodeError> {
        GuardedRegex::new(pattern).expect("compiles").find_all(text, Deadline::start())
    }

    #[test]
    fn matches_are_those_of_the_plain_engine() {
        let text = "Hello,  wörld!\r\n\r\n  12345 it's   \u{3000}日本語 x".repeat(3000);
        for pattern in [crate::pre::LLAMA3, crate::pre::GPT2, r"\s+(?!\S)", r"(?<=l)o|\b", "zzz(?=z)", "x*"] {
            let plain = RegexBuilder::new(pattern).build().expect("compiles");
            let expected: Vec<_> = plain
                .find_iter(text.as_str())
                .map(|m| m.map(|m| (m.start(), m.end())).expect("finds"))
                .collect();
            assert_eq!(find(pattern, &text), Ok(expected), "{pattern}");
        }
    }

    #[test]
    fn a_match_longer_than_the_window_stays_whole() {
        let text = format!("{}x {}\n", " ".repeat(200_000), "é".repeat(100_000));
        let expected = [(0, 199_999), (199_999, 200_001), (200_001, 400_002), (400_002, 400_003)];
        assert_eq!(find(crate::pre::LLAMA3, &text), Ok(expected.to_vec()));
    }

    #[test]
    fn catastrophic_patterns_end_in_an_error_within_the_bound() {
        let start = Instant::now();
        for (pattern, text) in [
            (r"(?=(a+)+$)b|(a|a)*(?=c)\1", "a".repeat(3000)),
            (r"(?:(?=.*z)a|a|aa)+(?!.)x", "a".repeat(20_000)),
            (r"(x+x+)+(?=y)z", "x".repeat(5000)),
        ] {
            let error = find(pattern, &text).expect_err("gives up");
            assert!(matches!(error, EncodeError::PatternExploded { .. }), "{pattern}: {error}");
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    }

    #[test]
    fn oversized_patterns_are_refused() {
        for pattern in ["a".repeat(40_000), r"(\p{L}{500}){500}".to_owned(), "(".to_owned()] {
            let error = GuardedRegex::new(&pattern).expect_err("refused");
            assert!(matches!(error, TokenizerError::Pattern { .. }), "{error}");
            assert!(error.to_string().len() < 400, "the pattern is quoted short");
        }
    }
}
