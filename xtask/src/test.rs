//! `cargo xtask test`: everything CI checks, cheapest first, the tests last.

use std::io::{BufRead, BufReader, Write};
use std::num::NonZero;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow, bail};

use crate::{cuda, graph, licences, run, setup, tidy, web};

/// Names the file in which tests say what they could not check.
pub const SKIPS: &str = "EXO_TEST_SKIPS";
/// What random histories are drawn from.
const PROPERTY_SEED: &str = "20261123";

/// How a check ended that did not fail.
pub enum Outcome {
    Passed,
    /// It cannot be done on this machine, for this reason.
    Skipped(String),
}

/// Runs the checks and the tests; the last line printed counts the tests, and what was skipped of both.
pub fn run(filter: Option<&str>, tests_only: bool) -> anyhow::Result<()> {
    setup::for_tests()?;
    let skips = run::target_dir()?.join("skipped-tests.txt");
    let _ = std::fs::remove_file(&skips);
    // Tests look at the page, the checks before them do not. It mostly waits for its packages.
    let (page, checked) = std::thread::scope(|scope| {
        let page = scope.spawn(|| step("page", || web::run(false)));
        let checked = if tests_only { Ok(()) } else { checks(&skips) };
        (page.join(), checked)
    });
    let page = page.unwrap_or_else(|_| Err(anyhow!("the page's thread panicked")));
    match (page, checked) {
        (Err(page), Err(check)) => bail!("{check:#}; and {page:#}"),
        (page, checked) => page.and(checked)?,
    }
    tests(filter, &skips)
}

fn checks(skips: &Path) -> anyhow::Result<()> {
    step("format", || run::cargo(&["fmt", "--all", "--check"]))?;
    step("house rules", tidy::run)?;
    step("architecture page", || graph::run(true))?;
    step_if_possible("PTX", skips, cuda::check_if_possible)?;
    step("licences", licences::run)?;
    step("lints", || {
        run::cargo(&["clippy", "--quiet", "--workspace", "--all-targets", "--", "--deny", "warnings"])
    })?;
    step("AMD's cards (feature `hip`)", || cuda::hip_tests(Some(skips)))?;
    step("documentation", || {
        // One environment variable is how rustdoc takes lint levels.
        run::command(
            "env",
            &[
                "RUSTDOCFLAGS=-D warnings",
                &run::cargo_program(),
                "doc",
                "--quiet",
                "--workspace",
                "--no-deps",
            ],
        )
    })
}

fn step(name: &str, body: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let start = std::time::Instant::now();
    body().with_context(|| format!("check `{name}` failed"))?;
    eprintln!("check `{name}` passed in {:.1} s", start.elapsed().as_secs_f32());
    Ok(())
}

/// As [`step`], for a check that not every machine can do: then it counts as skipped.
fn step_if_possible(
    name: &str,
    skips: &Path,
    body: impl FnOnce() -> anyhow::Result<Outcome>,
) -> anyhow::Result<()> {
    let start = std::time::Instant::now();
    match body().with_context(|| format!("check `{name}` failed"))? {
        Outcome::Passed => eprintln!("check `{name}` passed in {:.1} s", start.elapsed().as_secs_f32()),
        Outcome::Skipped(why) => {
            eprintln!("check `{name}` skipped: {why}");
            let file = std::fs::OpenOptions::new().create(true).append(true).open(skips);
            // The file has a line for each.
            let why: Vec<&str> = why.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
            let noted = file.and_then(|mut file| writeln!(file, "check `{name}`: {}", why.join("; ")));
            noted.with_context(|| format!("cannot note a skipped check in {}", skips.display()))?;
        }
    }
    Ok(())
}

#[derive(Default)]
struct Count {
    passed: u64,
    failed: u64,
}

fn tests(filter: Option<&str>, skips: &Path) -> anyhow::Result<()> {
    let mut count = Count::default();
    let nextest = Command::new(run::cargo_program())
        .args(["nextest", "--version"])
        .output()
        .is_ok_and(|out| out.status.success());
    // Tests with processes mostly wait; what computes takes two of these threads (`.config/nextest.toml`).
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = (2 * processors).to_string();
    let mut args = if nextest {
        vec![
            "nextest",
            "run",
            "--workspace",
            // Examples have no tests, and the lints have compiled them.
            "--lib",
            "--bins",
            "--tests",
            "--profile",
            "ci",
            "--test-threads",
            &threads,
            "--no-fail-fast",
            "--hide-progress-bar",
            "--status-level",
            "slow",
        ]
    } else {
        vec!["test", "--workspace", "--lib", "--bins", "--tests", "--no-fail-fast"]
    };
    args.extend(filter);
    let ok = counted(&args, skips, &mut count)?;
    let skipped = report_skips(skips);
    println!("{} passed, {} failed, {skipped} skipped", count.passed, count.failed);
    if !ok || count.failed > 0 {
        bail!("{} tests failed", count.failed.max(1));
    }
    Ok(())
}

/// Runs cargo, passes its output on line by line, and adds up the summaries of either test runner.
fn counted(args: &[&str], skips: &Path, count: &mut Count) -> anyhow::Result<bool> {
    // Random histories are the same in each run, so that a red run is about the change; others:
    // `PROPTEST_RNG_SEED=N`.
    let seed = std::env::var("PROPTEST_RNG_SEED").unwrap_or_else(|_| PROPERTY_SEED.to_owned());
    let mut child = Command::new(run::cargo_program())
        .args(args)
        .env(SKIPS, skips)
        .env("PROPTEST_RNG_SEED", seed)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start cargo")?;
    let stderr = child.stderr.take().context("cargo has no stderr")?;
    let other = std::thread::spawn(move || forward(stderr));
    let stdout = child.stdout.take().context("cargo has no stdout")?;
    let mut lines = forward(stdout);
    lines.extend(other.join().unwrap_or_default());
    for line in &lines {
        add_summary(line, count);
    }
    Ok(child.wait().context("cannot wait for cargo")?.success())
}

fn forward(from: impl std::io::Read) -> Vec<String> {
    let mut summaries = Vec::new();
    for line in BufReader::new(from).lines().map_while(Result::ok) {
        println!("{line}");
        if line.contains("Summary [") || line.starts_with("test result:") {
            summaries.push(line);
        }
    }
    summaries
}

fn add_summary(line: &str, count: &mut Count) {
    let words: Vec<_> = line.split([' ', ',', ';', ':', '.']).filter(|w| !w.is_empty()).collect();
    for pair in words.windows(2) {
        if let Ok(n) = pair[0].parse::<u64>() {
            match pair[1] {
                "passed" => count.passed += n,
                "failed" | "timed" => count.failed += n,
                _ => {}
            }
        }
    }
}

/// Checks and tests whose hardware, tools or privilege are missing say so in a file; it is shown here, never
/// passed over.
fn report_skips(path: &Path) -> usize {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    for line in text.lines() {
        println!("skipped: {line}");
    }
    text.lines().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_cannot_be_done_counts_as_skipped_and_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let skips = folder.path().join("skips.txt");
        step_if_possible("PTX", &skips, || Ok(Outcome::Passed)).unwrap();
        assert_eq!(report_skips(&skips), 0);
        let why = "no compiler:\n  no network\n\n";
        step_if_possible("PTX", &skips, || Ok(Outcome::Skipped(why.to_owned()))).unwrap();
        assert_eq!(report_skips(&skips), 1);
        assert_eq!(std::fs::read_to_string(&skips).unwrap(), "check `PTX`: no compiler:; no network\n");
        let failed = step_if_possible("PTX", &skips, || bail!("another text")).unwrap_err();
        assert_eq!(failed.to_string(), "check `PTX` failed");
    }
}
