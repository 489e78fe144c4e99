//! House rules.
//!
//! Long functions: none. Dead files: a `.rs` file that no module tree names. Links: a relative link in a
//! Markdown page must lead somewhere. Decisions: each page has a number of its own. How many lines there are:
//! see [`count`]. Modules and comments: see [`layout`]. Names of our own: see [`names`]. Platform code: see
//! [`platform`]. Crates that touch nothing: see [`pure`]. The lockfile of the fuzz targets: see [`lockfile`].
//! Claims of the threat model: see [`threats`].

mod count;
mod layout;
mod lockfile;
mod names;
mod platform;
mod pure;
mod threats;
pub mod tokens;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::bail;

use self::tokens::Source;
use crate::run;

/// STYLE section 8: functions past this are refused.
const LINES_MAX: usize = 70;
/// Crates that only tests use.
const TESTS_ONLY: [&str; 3] = ["crates/sim", "crates/golden", "crates/mock-hub"];

/// Runs every rule.
pub fn run() -> anyhow::Result<()> {
    let listed = run::output("git", &["ls-files", "--cached", "--others", "--exclude-standard"])?;
    let files: Vec<PathBuf> = listed.lines().map(PathBuf::from).filter(|p| p.is_file()).collect();
    let texts = rust_files(&files).map(|file| Ok((file.clone(), run::read(file)?)));
    let texts: Vec<(PathBuf, String)> = texts.collect::<anyhow::Result<_>>()?;
    let sources = tokens::sources(&texts);
    let mut complaints = dead_files(&files);
    complaints.extend(broken_links(&files)?);
    complaints.extend(long_functions(&sources));
    complaints.extend(names::invented(&sources));
    complaints.extend(layout::untidy(&sources));
    complaints.extend(platform::scattered(&sources));
    complaints.extend(pure::impure(&files, &sources)?);
    complaints.extend(shared_numbers(&files));
    complaints.extend(lockfile::disagreements()?);
    complaints.extend(threats::unproven(&sources)?);
    eprintln!("tidy: {} lines of Rust outside tests and sim", count::lines(&sources));
    if complaints.is_empty() {
        return Ok(());
    }
    bail!("{}", complaints.join("\n"))
}

fn rust_files(files: &[PathBuf]) -> impl Iterator<Item = &PathBuf> {
    files.iter().filter(|p| p.extension().is_some_and(|e| e == "rs"))
}

/// Whether a program is made of it that is no test.
fn is_shipped(source: &Source<'_>) -> bool {
    !source.is_test && !TESTS_ONLY.iter().any(|folder| source.path.starts_with(folder))
}

fn dead_files(files: &[PathBuf]) -> Vec<String> {
    let mut complaints: Vec<String> = rust_files(files)
        .filter(|file| is_no_test_of_all(file))
        .map(|file| format!("{}: a file of tests that `all.rs` beside it does not name", file.display()))
        .collect();
    for file in rust_files(files).filter(|p| p.components().any(|c| c.as_os_str() == "src")) {
        let stem = file.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
        let parent = file.parent().unwrap_or(Path::new("."));
        if matches!(stem, "lib" | "main") || parent.ends_with("src/bin") || parent.ends_with("examples") {
            continue;
        }
        let (name, homes) = (stem, homes_of(parent));
        let named = homes.iter().filter(|h| h.is_file()).any(|home| {
            std::fs::read_to_string(home).is_ok_and(|text| {
                text.contains(&format!("mod {name};")) || text.contains(&format!("mod {name} {{"))
            })
        });
        if !named {
            complaints.push(format!("{}: no module names this file", file.display()));
        }
    }
    complaints
}

/// Whether a manifest names a test program.
fn names_test(manifest: &str, name: &str) -> bool {
    let mut sections = manifest.split("\n[[test]]\n").skip(1);
    sections.any(|section| section.lines().next() == Some(&format!("name = \"{name}\"")))
}

/// Whether a file lies beside an `all.rs` of tests, and is neither a part of that nor a program of its own.
fn is_no_test_of_all(file: &Path) -> bool {
    let (Some(folder), Some(name)) = (file.parent(), file.file_stem().and_then(|s| s.to_str())) else {
        return false;
    };
    let read = |path: PathBuf| std::fs::read_to_string(path).ok();
    let (all, manifest) = (read(folder.join("all.rs")), read(folder.with_file_name("Cargo.toml")));
    folder.ends_with("tests")
        && name != "all"
        && all.is_some_and(|text| !text.contains(&format!("\nmod {name};")))
        && manifest.is_some_and(|text| !names_test(&text, name))
}

/// Files that may declare a module whose file lies in `folder`.
fn homes_of(folder: &Path) -> Vec<PathBuf> {
    let mut homes = vec![folder.with_extension("rs")];
    // A file beside may name it too, with a `path` attribute.
    let beside = std::fs::read_dir(folder).into_iter().flatten().flatten();
    homes.extend(beside.map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "rs")));
    homes
}

fn broken_links(files: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    let mut complaints = Vec::new();
    for file in files.iter().filter(|p| p.extension().is_some_and(|e| e == "md")) {
        let text = run::read(file)?;
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = target.split('#').next().unwrap_or_default();
            let outside = target.contains("://") || target.starts_with('#') || target.starts_with("mailto:");
            if !outside && !path.is_empty() && !file.parent().unwrap_or(Path::new("")).join(path).exists() {
                complaints.push(format!("{}: link to `{target}` leads nowhere", file.display()));
            }
        }
    }
    Ok(complaints)
}

/// Pages of decisions are cited by their number.
fn shared_numbers(files: &[PathBuf]) -> Vec<String> {
    let mut pages: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.parent() == Some(Path::new("docs/decisions"))) {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        pages.entry(name.split('-').next().unwrap_or_default()).or_default().push(name.to_owned());
    }
    let shared = pages.iter().filter(|(_, names)| names.len() > 1);
    shared.map(|(number, names)| format!("docs/decisions: {number} is {}", names.join(" and "))).collect()
}

fn long_functions(sources: &[Source<'_>]) -> Vec<String> {
    let counted = sources.iter().map(|source| (source.path.display(), count_long(source.text)));
    let long = counted.filter(|(_, long)| *long > 0);
    long.map(|(file, long)| format!("{file}: {long} functions past {LINES_MAX} lines; split them at a seam"))
        .collect()
}

/// Functions of formatted code: from a line that opens one to the closing brace at the same depth.
fn count_long(text: &str) -> usize {
    let mut open: Vec<(usize, usize)> = Vec::new(); // (indent, first line)
    let mut long = 0;
    for (n, line) in text.lines().enumerate() {
        let body = line.trim_start();
        let indent = line.len() - body.len();
        let head = body.split('(').next().unwrap_or_default();
        // A function's type has no name.
        if head.split_whitespace().any(|w| w == "fn")
            && !head.ends_with("fn")
            && !body.starts_with("//")
            && !body.ends_with([';', '}'])
        {
            open.push((indent, n));
        } else if body == "}" && open.last().is_some_and(|(at, _)| *at == indent) {
            let (_, first) = open.pop().unwrap_or_default();
            long += usize::from(n - first + 1 > LINES_MAX);
        }
    }
    long
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{count_long, names_test, shared_numbers};

    #[test]
    fn a_test_program_has_a_name_of_its_own_in_the_manifest() {
        let manifest = "[package]\nname = \"exo\"\n\n[[test]]\nname = \"all\"\n\n[[bin]]\nname = \"tool\"\n";
        assert!(names_test(manifest, "all"));
        assert!(!names_test(manifest, "exo") && !names_test(manifest, "tool"));
    }

    #[test]
    fn two_decisions_of_one_number_are_told() {
        let files = |names: &[&str]| -> Vec<PathBuf> { names.iter().map(PathBuf::from).collect() };
        let (one, other) = ("docs/decisions/0007-a.md", "docs/decisions/0008-b.md");
        assert!(shared_numbers(&files(&[one, other, "docs/0007-c.md"])).is_empty());
        let told = shared_numbers(&files(&[one, other, "docs/decisions/0007-c.md"]));
        assert_eq!(told, ["docs/decisions: 0007 is 0007-a.md and 0007-c.md"]);
    }

    #[test]
    fn a_function_is_long_past_seventy_lines() {
        let of = |lines: usize| format!("fn f() {{\n{}}}\n", "    x;\n".repeat(lines - 2));
        assert_eq!(count_long(&of(70)), 0);
        assert_eq!(count_long(&of(71)), 1);
        let takes_function = format!("fn f(\n    g: fn(u8),\n) {{\n}}\n{}", "x\n".repeat(80));
        assert_eq!(count_long(&takes_function), 0);
    }
}
