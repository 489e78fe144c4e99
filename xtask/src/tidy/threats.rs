//! What the threat model claims: each row of its tables names tests that exist, of which the ordinary run
//! executes one at least. A row that says that nothing stops it needs none.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context;

const PAGE: &str = "docs/threat-model.md";

/// A line for each row without a test that runs, and for each test that is not there.
pub fn unproven(files: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    let page = std::fs::read_to_string(PAGE).with_context(|| format!("cannot read {PAGE}"))?;
    let mut tests: BTreeMap<String, bool> = BTreeMap::new();
    for file in super::rust_files(files) {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        for (name, is_run) in tests_in(&text) {
            *tests.entry(name).or_default() |= is_run;
        }
    }
    Ok(complaints(&page, &tests))
}

/// The names of its functions that are marked as tests, and whether they run unless they are asked for.
fn tests_in(text: &str) -> Vec<(String, bool)> {
    let is_mark = |line: &str| line.starts_with("#[test]") || line.starts_with("#[tokio::test");
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let test_at = |at: usize| {
        let (above, below) = lines.split_at(at);
        let function = below.iter().position(|line| line.contains("fn "))?;
        let (_, behind) = below.get(function)?.split_once("fn ")?;
        let above = above.iter().rev().take_while(|line| line.starts_with("#["));
        let is_ignored = above.chain(below.iter().take(function)).any(|line| line.starts_with("#[ignore"));
        Some((behind.split('(').next()?.to_owned(), !is_ignored))
    };
    let marks = lines.iter().enumerate().filter(|(_, line)| is_mark(line));
    marks.filter_map(|(at, _)| test_at(at)).collect()
}

/// `tests` has whether each runs unless it is asked for.
fn complaints(page: &str, tests: &BTreeMap<String, bool>) -> Vec<String> {
    let mut found = Vec::new();
    for (number, row) in page.lines().enumerate().filter(|(_, line)| line.starts_with('|')) {
        let row = row.trim_end_matches('|').replace("\\|", " ");
        let (rest, last) = row.rsplit_once('|').unwrap_or_default();
        if last.trim() == "test" || last.chars().all(|c| c == '-') && !last.is_empty() {
            continue; // the head of a table
        }
        let named: Vec<&str> = last.split('`').skip(1).step_by(2).collect();
        let line = number + 1;
        // What is open beside something that stops it is no reason not to try that.
        let stops = rest.rsplit_once('|').map_or("", |(_, stops)| stops.trim());
        let is_open =
            stops.starts_with("**open**") || stops.starts_with("nothing") && stops.contains("**open**");
        if !is_open && named.iter().all(|name| tests.get(*name) == Some(&false)) {
            found.push(format!(
                "{PAGE}:{line}: a claim without a test that runs (an ignored one does not); name one, or begin with **open**"
            ));
        }
        let missing = named.iter().filter(|name| !tests.contains_key(**name));
        found.extend(missing.map(|name| format!("{PAGE}:{line}: there is no test `{name}`")));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_needs_a_test_that_exists_and_runs_or_says_that_nothing_stops_it() {
        let source = "#[test]\nfn is_there() {}\n\n#[tokio::test(flavor = \"x\")]\nasync fn is_async() {}\nfn is_gone() {}\n\
                      #[test]\n#[ignore = \"long\"]\nfn is_long() {}\n#[ignore]\n#[test]\nfn is_longer() {}\n#[test]\nfn is_last() {}\n";
        let tests: BTreeMap<String, bool> = tests_in(source).into_iter().collect();
        let run: Vec<&str> = tests.iter().filter(|(_, is_run)| **is_run).map(|(name, _)| &**name).collect();
        assert_eq!((run, tests.len()), (vec!["is_async", "is_last", "is_there"], 5));

        let rows = [
            ("| a | b | `is_there`, `is_gone` |", Some("there is no test `is_gone`")),
            ("| a \\| b | c | |", Some("a claim without a test")),
            ("| a | b | `is_long`, `is_longer` |", Some("a claim without a test")),
            ("| a | b | `is_long`, `is_there` |", None),
            ("| a | **open**: b | |", None),
            ("| a | nothing: b. **open** by nature | |", None),
            ("| a | nothing: b | |", Some("a claim without a test")),
            ("| a | b. **open**: c | |", Some("a claim without a test")),
            ("| a | b. **open**: c | `is_there` |", None),
            ("| a | b | **open**: c |", Some("a claim without a test")),
        ];
        for (row, wrong) in rows {
            let page = format!("text\n\n| wants | what stops it | test |\n|---|---|---|\n{row}\n");
            let found = complaints(&page, &tests);
            assert_eq!(found.len(), usize::from(wrong.is_some()), "{row}: {found:?}");
            let is_told = |wrong: &str| found[0].contains(&format!(":5: {wrong}"));
            assert!(wrong.is_none_or(is_told), "{row}: {found:?}");
        }
    }
}
