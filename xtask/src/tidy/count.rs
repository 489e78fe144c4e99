//! How many lines of Rust there are that are no tests.

use super::is_shipped;
use super::tokens::Source;

/// Lines of all files but those of tests and of crates that only tests use, without what stands under
/// `#[cfg(test)]`.
pub fn lines(sources: &[Source<'_>]) -> usize {
    sources.iter().filter(|source| is_shipped(source)).map(lines_of).sum()
}

fn lines_of(source: &Source<'_>) -> usize {
    let Source { text, tokens, tests, .. } = source;
    let of_tests = tests.ranges.iter().map(|range| {
        let (first, last) = (tokens.get(range.start), tokens.get(range.end.saturating_sub(1)));
        first.zip(last).map_or(0, |(first, last)| last.line + 1 - first.line)
    });
    text.lines().count().saturating_sub(of_tests.sum())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::tokens::sources;
    use super::lines;

    #[test]
    fn what_is_compiled_for_tests_is_not_counted() {
        let text =
            "fn f() {}\n\n#[cfg(test)]\nmod tests {\n    fn g() {}\n}\n#[cfg(test)]\nuse x;\nfn h() {}\n";
        let file = (PathBuf::from("crates/a/src/lib.rs"), text.to_owned());
        assert_eq!(lines(&sources(&[file])), 3);
    }
}
