//! What the threat model claims: each row of its tables names tests that exist, of which the ordinary run
//! executes one at least. A row that says that nothing stops it needs none. And what the README and the
//! manual claim of security: each point links to such a row.

use std::collections::{BTreeMap, BTreeSet};

use super::tokens::Source;
use crate::run;

const PAGE: &str = "docs/threat-model.md";
/// Pages that claim something of security, and the heading of what they say of it.
const CLAIMING: [(&str, &str); 2] =
    [("README.md", "## Security in short"), ("docs/manual.md", "## Security")];

/// A line for each row without a test that runs, for each test that is not there, and for each point of
/// another page that is in no row.
pub fn unproven(sources: &[Source<'_>]) -> anyhow::Result<Vec<String>> {
    let page = run::read(PAGE)?;
    let mut tests: BTreeMap<String, bool> = BTreeMap::new();
    for (name, is_run) in sources.iter().flat_map(|source| tests_in(source.text)) {
        *tests.entry(name).or_default() |= is_run;
    }
    let mut found = complaints(&page, &tests);
    for (name, heading) in CLAIMING {
        found.extend(unlinked(name, heading, &run::read(name)?, &rows(&page)));
    }
    Ok(found)
}

/// The names by which rows of the threat model are linked to.
fn rows(page: &str) -> BTreeSet<&str> {
    let rows = page.lines().filter(|line| line.starts_with('|'));
    let anchors = rows.filter_map(|row| row.split_once("<a id=\"")?.1.split_once('"'));
    anchors.map(|(anchor, _)| anchor).collect()
}

/// The points of a page's section: where each begins, and all of it.
fn points<'a>(heading: &str, text: &'a str) -> Vec<(usize, Vec<&'a str>)> {
    let lines = text.lines().enumerate().skip_while(|(_, line)| *line != heading).skip(1);
    let mut points: Vec<(usize, Vec<&str>)> = Vec::new();
    for (at, line) in lines.take_while(|(_, line)| !line.starts_with("## ")) {
        if line.starts_with("- ") {
            points.push((at + 1, vec![line]));
        } else if let Some((_, point)) = points.last_mut().filter(|_| line.starts_with("  ")) {
            point.push(line);
        }
    }
    points
}

fn unlinked(name: &str, heading: &str, text: &str, rows: &BTreeSet<&str>) -> Vec<String> {
    let points = points(heading, text);
    if points.is_empty() {
        return vec![format!("{name}: there is no point under `{heading}`")];
    }
    let mut found = Vec::new();
    for (line, point) in points {
        let point = point.join(" ");
        let links = point.split("threat-model.md#").skip(1).filter_map(|link| link.split(')').next());
        let links: Vec<&str> = links.collect();
        if links.is_empty() {
            found.push(format!("{name}:{line}: a claim of security that links to no row of {PAGE}"));
        }
        let missing = links.iter().filter(|link| !rows.contains(**link));
        found.extend(missing.map(|link| format!("{name}:{line}: {PAGE} has no row `{link}`")));
    }
    found
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
    fn a_point_about_security_links_to_a_row_that_is_there() {
        let page = "| wants | test |\n|---|---|\n| <a id=\"in\"></a>in | `a` |\n\n<a id=\"no-row\"></a>\n";
        let check = |section: &str| {
            let text = format!("- before\n\n## Security\n\n{section}\n## More\n\n- behind\n");
            unlinked("m.md", "## Security", &text, &rows(page))
        };
        let linked = "- **In.** Only\n  some ([row](threat-model.md#in)).\n";
        assert_eq!(check(linked), Vec::<String>::new());
        let found = check(&format!("{linked}- **Out.** None.\n\n  Of them ([row](manual.md#in)).\n"));
        assert_eq!(found, ["m.md:7: a claim of security that links to no row of docs/threat-model.md"]);
        let found = check("- In ([row](threat-model.md#in), [none](threat-model.md#no-row)).\n");
        assert_eq!(found, ["m.md:5: docs/threat-model.md has no row `no-row`"]);
        assert_eq!(check("It is secure.\n"), ["m.md: there is no point under `## Security`"]);
    }

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
