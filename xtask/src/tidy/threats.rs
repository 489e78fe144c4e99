//! What the threat model claims: each row of its tables names a test that exists, or says that it is open.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::Context;

const PAGE: &str = "docs/threat-model.md";

/// A line for each row without a test, and for each test that is not there.
pub fn unproven(files: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    let page = std::fs::read_to_string(PAGE).with_context(|| format!("cannot read {PAGE}"))?;
    let mut tests = BTreeSet::new();
    for file in super::rust_files(files) {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        tests.extend(tests_in(&text));
    }
    Ok(complaints(&page, &tests))
}

/// The names of its functions that are marked as tests.
fn tests_in(text: &str) -> Vec<String> {
    let is_mark = |line: &str| line.starts_with("#[test]") || line.starts_with("#[tokio::test");
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let name_behind = |at: usize| {
        let function = lines.iter().skip(at).find_map(|line| Some(line.split_once("fn ")?.1))?;
        Some(function.split('(').next()?.to_owned())
    };
    let marks = lines.iter().enumerate().filter(|(_, line)| is_mark(line));
    marks.filter_map(|(at, _)| name_behind(at)).collect()
}

fn complaints(page: &str, tests: &BTreeSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    for (number, row) in page.lines().enumerate().filter(|(_, line)| line.starts_with('|')) {
        let row = row.trim_end_matches('|').replace("\\|", " ");
        let (rest, last) = row.rsplit_once('|').unwrap_or_default();
        if last.trim() == "test" || last.chars().all(|c| c == '-') && !last.is_empty() {
            continue; // the head of a table
        }
        let named: Vec<&str> = last.split('`').skip(1).step_by(2).collect();
        let line = number + 1;
        if named.is_empty() && !rest.contains("**open**") && !last.contains("**open**") {
            found
                .push(format!("{PAGE}:{line}: a claim without a test; name one, or say that it is **open**"));
        }
        let missing = named.iter().filter(|name| !tests.contains(**name));
        found.extend(missing.map(|name| format!("{PAGE}:{line}: there is no test `{name}`")));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_needs_a_test_that_exists_or_says_that_it_is_open() {
        let page = "text\n\n| wants | what stops it | test |\n|---|---|---|\n\
                    | a | b | `is_there`, `is_gone` |\n| a \\| b | c | |\n| d | **open**: e | |\n| f | g | **open**: h |\n";
        let source = "#[test]\nfn is_there() {}\n\n#[tokio::test(flavor = \"x\")]\nasync fn is_async() {}\nfn is_gone() {}\n";
        let tests: BTreeSet<String> = tests_in(source).into_iter().collect();
        assert_eq!(tests.iter().collect::<Vec<_>>(), ["is_async", "is_there"]);
        let found = complaints(page, &tests);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].contains(":5: there is no test `is_gone`") && found[1].contains(":6: a claim without")
        );
    }
}
