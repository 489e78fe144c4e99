//! Runs seeds, or one run with its trace: what `cargo xtask sim` and `cargo xtask prove planted` start.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use exo_sim::shrink::{Broken, shrink};
use exo_sim::{Kind, Options, RunSelection, planted, run_with, seconds};

/// Prints a line. Nobody who has closed the pipe minds.
macro_rules! say {
    ($($arg:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stdout(), $($arg)*);
    }};
}

/// Runs that shrinking may take.
const SHRINK_RUNS: u32 = 200;
/// Seeds that a planted bug has.
const PLANTED_SEEDS: u64 = 500;

struct Args {
    choice: RunSelection,
    seeds: Option<(u64, u64)>,
    trace: bool,
    shrink: bool,
    planted: bool,
    /// Of the planted bugs only these.
    bugs: Option<Vec<String>>,
}

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|_| {})); // a panic of a machine is a failure like others
    match parse(std::env::args().skip(1)).and_then(|args| act(&args)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(wrong) => {
            say!("error: {wrong}");
            ExitCode::FAILURE
        }
    }
}

fn parse(args: impl Iterator<Item = String>) -> Result<Args, String> {
    let choice = RunSelection::all(0, Kind::Faults);
    let mut parsed = Args { choice, seeds: None, trace: false, shrink: true, planted: false, bugs: None };
    let mut args = args;
    while let Some(option) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{option} needs a value"));
        match option.as_str() {
            "--seed" => parsed.choice.seed = number(&value()?)?,
            "--seeds" => {
                let text = value()?;
                let (from, to) = text.split_once("..").ok_or("--seeds needs A..B")?;
                parsed.seeds = Some((number(from)?, number(to)?));
            }
            "--only" => parsed.choice.only = Some(numbers(&value()?)?),
            "--clients" => parsed.choice.clients = Some(numbers(&value()?)?),
            "--nodes" => parsed.choice.nodes = Some(number(&value()?)? as usize),
            "--seconds" => parsed.choice.seconds = Some(number(&value()?)?),
            "--kind" => {
                let name = value()?;
                let kind = Kind::named(&name);
                parsed.choice.kind = kind.ok_or_else(|| {
                    format!(
                        "{name} is no kind of run: faults, everything, quiet, join, lies, wire, strangers or window"
                    )
                })?;
            }
            "--trace" => parsed.trace = true,
            "--no-shrink" => parsed.shrink = false,
            "--planted" => parsed.planted = true,
            "--bugs" => {
                (parsed.planted, parsed.bugs) =
                    (true, Some(value()?.split(',').map(str::to_owned).collect()));
            }
            other => return Err(format!("{other} is no option")),
        }
    }
    Ok(parsed)
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text} is no number"))
}

fn numbers(text: &str) -> Result<Vec<usize>, String> {
    if text == "none" {
        return Ok(Vec::new());
    }
    text.split(',').map(|one| number(one).map(|number| number as usize)).collect()
}

fn act(args: &Args) -> Result<bool, String> {
    if args.planted {
        return hunt_planted(args.bugs.as_deref());
    }
    match args.seeds {
        Some((from, to)) => Ok(run_seeds(args, from, to)),
        None => Ok(run_one(args)),
    }
}

/// One run. Not shrunk when its trace is wanted, or when it is a part of a seed's run already.
fn run_one(args: &Args) -> bool {
    let trace: Option<fn(&str)> = if args.trace { Some(|line| say!("{line}")) } else { None };
    let began = Instant::now();
    let report = run_with(&args.choice, Options { trace, ..Options::default() });
    for failed in &report.failed {
        say!("{failed}");
    }
    say!(
        "seed {}: {:.1} s with {} inputs in {:.0} ms; {} requests answered, {} not",
        args.choice.seed,
        seconds(report.until),
        report.handles,
        began.elapsed().as_secs_f64() * 1e3,
        report.answered,
        report.failed.len()
    );
    let Some(failure) = report.failure else { return true };
    let broken = Broken { choice: args.choice.clone(), failure };
    say!("{}", broken.describe());
    if args.shrink && !args.trace && broken.choice.only.is_none() {
        say!("smaller: {}", shrink(broken, SHRINK_RUNS).describe());
    }
    false
}

fn run_seeds(args: &Args, from: u64, to: u64) -> bool {
    let began = Instant::now();
    let (mut failures, mut handles, mut virtual_s) = (0, 0, 0.0);
    let (mut answered, mut unanswered, mut resumed) = (0, 0, 0);
    let mut fired: BTreeMap<&str, u32> = BTreeMap::new();
    for seed in from..to {
        let choice = RunSelection { seed, ..args.choice.clone() };
        let report = run_with(&choice, Options::default());
        handles += report.handles;
        virtual_s += seconds(report.until);
        answered += report.answered;
        resumed += report.resumed;
        unanswered += report.failed.len();
        for (name, times) in report.fired {
            *fired.entry(name).or_default() += times;
        }
        if let Some(failure) = report.failure {
            failures += 1;
            say!("{}", Broken { choice, failure }.describe());
        }
    }
    let elapsed = began.elapsed().as_secs_f64();
    say!(
        "{} seeds, {failures} broken: {virtual_s:.0} s with {handles} inputs in {elapsed:.1} s, {:.0} inputs a second; \
         {answered} requests answered, {unanswered} not; {resumed} went on at another node",
        to.saturating_sub(from),
        handles as f64 / elapsed
    );
    let fired: Vec<String> = fired.iter().map(|(name, times)| format!("{name} {times}")).collect();
    say!("what went wrong, and how often: {}", fired.join(", "));
    failures == 0
}

fn hunt_planted(only: Option<&[String]>) -> Result<bool, String> {
    if !cfg!(feature = "planted") {
        return Err("built without feature `planted`: run `cargo xtask prove planted`".to_owned());
    }
    let bugs: Vec<_> = match only {
        None => planted::PLANTED.iter().collect(),
        Some(names) => names.iter().map(|name| planted::named(name)).collect::<Result<_, _>>()?,
    };
    let mut all = true;
    for bug in bugs {
        let found = planted::hunt(bug, 0, PLANTED_SEEDS);
        match &found.broken {
            Some((seed, failure)) => {
                let wanted = bug.invariants.contains(&failure.invariant);
                let note = if wanted { "" } else { " (another invariant than the one made for it)" };
                let (name, what, broken, seeds) = (bug.name, bug.what, failure.invariant, found.seeds);
                say!("{name} ({what}): `{broken}` broken by seed {seed}, the {seeds}th run{note}");
            }
            None => say!("{} ({}): not found by {} seeds", bug.name, bug.what, found.seeds),
        }
        all &= found.broken.is_some();
    }
    Ok(all)
}
