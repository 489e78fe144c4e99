//! `cargo xtask test`: everything CI checks, cheapest first, the tests last.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::{cuda, graph, licences, run, setup, tidy};

/// Runs the checks and the tests; the last line printed counts the tests.
pub fn run(filter: Option<&str>, tests_only: bool) -> anyhow::Result<()> {
    setup::for_tests()?;
    if !tests_only {
        checks()?;
    }
    tests(filter)
}

fn checks() -> anyhow::Result<()> {
    step("format", || run::cargo(&["fmt", "--all", "--check"]))?;
    step("house rules", || tidy::run(false))?;
    step("architecture page", || graph::run(true))?;
    step("PTX", cuda::check_if_possible)?;
    step("licences", licences::run)?;
    step("lints", || {
        run::cargo(&["clippy", "--quiet", "--workspace", "--all-targets", "--", "--deny", "warnings"])
    })?;
    step("AMD's cards (feature `hip`)", cuda::hip_tests)?;
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

#[derive(Default)]
struct Count {
    passed: u64,
    failed: u64,
}

fn tests(filter: Option<&str>) -> anyhow::Result<()> {
    let skips = run::target_dir()?.join("skipped-tests.txt");
    let _ = std::fs::remove_file(&skips);
    let mut count = Count::default();
    let nextest = Command::new(run::cargo_program())
        .args(["nextest", "--version"])
        .output()
        .is_ok_and(|out| out.status.success());
    let mut ok = true;
    let mut args = if nextest {
        vec![
            "nextest",
            "run",
            "--workspace",
            "--no-fail-fast",
            "--hide-progress-bar",
            "--status-level",
            "slow",
        ]
    } else {
        vec!["test", "--workspace", "--lib", "--bins", "--tests", "--no-fail-fast"]
    };
    args.extend(filter);
    ok &= counted(&args, &skips, &mut count)?;
    if filter.is_none() {
        ok &= counted(&["test", "--quiet", "--workspace", "--doc"], &skips, &mut count)?;
    }
    let skipped = report_skips(&skips);
    println!("{} passed, {} failed, {skipped} skipped", count.passed, count.failed);
    if !ok || count.failed > 0 {
        bail!("{} tests failed", count.failed.max(1));
    }
    Ok(())
}

/// Runs cargo, passes its output on line by line, and adds up the summaries of both test runners.
fn counted(args: &[&str], skips: &PathBuf, count: &mut Count) -> anyhow::Result<bool> {
    let mut child = Command::new(run::cargo_program())
        .args(args)
        .env("EXO_TEST_SKIPS", skips)
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

/// Tests whose hardware or privilege is missing say so in a file; it is shown here, never passed over.
fn report_skips(path: &PathBuf) -> usize {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    for line in text.lines() {
        println!("skipped: {line}");
    }
    text.lines().count()
}
