//! How many lines of Rust there are that are no tests.

use std::path::{Path, PathBuf};

use anyhow::Context;

use super::tokens::{test_code, tokens};

/// Crates that only tests use.
const TESTS_ONLY: [&str; 3] = ["crates/sim", "crates/golden", "crates/mock-hub"];

/// Lines of all files but those of tests and of crates that only tests use, without what stands under `#[cfg(test)]`.
pub fn lines(files: &[PathBuf]) -> anyhow::Result<usize> {
    let is_test = |file: &Path| {
        let is_file = file.iter().any(|part| part == "tests" || part == "tests.rs");
        is_file || TESTS_ONLY.iter().any(|folder| file.starts_with(folder))
    };
    let mut all = 0;
    for file in super::rust_files(files).filter(|file| !is_test(file)) {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        all += lines_of(&text);
    }
    Ok(all)
}

fn lines_of(text: &str) -> usize {
    let tokens = tokens(text);
    let of_tests = test_code(&tokens).ranges.into_iter().map(|range| {
        let (first, last) = (tokens.get(range.start), tokens.get(range.end.saturating_sub(1)));
        first.zip(last).map_or(0, |(first, last)| last.line + 1 - first.line)
    });
    text.lines().count().saturating_sub(of_tests.sum())
}

#[cfg(test)]
mod tests {
    use super::lines_of;

    #[test]
    fn what_is_compiled_for_tests_is_not_counted() {
        let text =
            "fn f() {}\n\n#[cfg(test)]\nmod tests {\n    fn g() {}\n}\n#[cfg(test)]\nuse x;\nfn h() {}\n";
        assert_eq!(lines_of(text), 3);
    }
}
