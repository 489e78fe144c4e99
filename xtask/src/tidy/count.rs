//! How many lines of Rust there are that are no tests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::TESTS_ONLY;
use super::tokens::{test_code, test_files, tokens};

/// Lines of all files but those of tests and of crates that only tests use, without what stands under
/// `#[cfg(test)]`.
pub fn lines(files: &[PathBuf]) -> anyhow::Result<usize> {
    let mut sources = BTreeMap::new();
    for file in super::rust_files(files) {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let tests = test_code(&tokens(&text));
        sources.insert(file.as_path(), (text, tests));
    }
    let tests = test_files(sources.iter().map(|(path, (_, tests))| (*path, tests)));
    let is_code =
        |file: &Path| !tests.contains(file) && !TESTS_ONLY.iter().any(|folder| file.starts_with(folder));
    Ok(sources.iter().filter(|(file, _)| is_code(file)).map(|(_, (text, _))| lines_of(text)).sum())
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
