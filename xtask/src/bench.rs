//! `cargo xtask bench`: exo beside llama.cpp, on the same files and the same cores, in turns.
//!
//! Machines drift: what counts is the ratio of two runs that stand beside each other, and the median of
//! several such pairs. Every program is pinned to the cores it was given threads for, has a deadline, and is
//! ended by its own id. `solo` runs `exo bench` and `llama-bench`, `serving` a node and `llama-server` under
//! `load`, `gap` a long prompt beside a stream, `guesses` a node that guesses tokens ahead; `cells` knows the
//! bounds of the project and who keeps them.

mod args;
mod cells;
mod gap;
mod guesses;
pub mod load;
mod report;
mod serving;
mod solo;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;

pub use args::BenchArgs;
use args::{Part, Programs};
use cells::Cells;

/// What every part works with.
pub struct Bench {
    programs: Programs,
    args: BenchArgs,
    /// Processors we may use, in the system's numbering.
    cores: Vec<usize>,
    /// After it nothing new is started.
    until: Instant,
    cells: Cells,
    /// Facts about the machine and the programs, for the head of the report.
    facts: Vec<(String, String)>,
    /// Runs that gave no numbers. They do not stop the others.
    failures: Vec<String>,
}

/// Builds, measures, prints and writes the report.
pub fn run(args: BenchArgs) -> anyhow::Result<()> {
    let args = args.with_preset()?;
    let programs = Programs::find(&args)?;
    let cores = crate::system::cores()?;
    let threads_max = args.threads.iter().copied().max().unwrap_or(1);
    if threads_max > cores.len() {
        bail!("{threads_max} threads are asked for and this process may use {} cores", cores.len());
    }
    if programs.llama.is_none() {
        eprintln!("no llama.cpp is given (--llama DIR or EXO_LLAMA_BIN): exo is measured alone");
    }
    let until = Instant::now() + Duration::from_secs(60 * args.minutes);
    let (cells, facts, failures) = Default::default();
    let mut bench = Bench { programs, args, cores, until, cells, facts, failures };
    bench.measure();
    report::write(&bench)?;
    match bench.failures.len() {
        0 => Ok(()),
        n => bail!("{n} runs gave no numbers; the report names them"),
    }
}

impl Bench {
    fn measure(&mut self) {
        for round in 0..self.args.rounds {
            self.for_each_model(|bench, model, threads| bench.round(round, model, threads));
        }
        if [Part::Gap, Part::Streams, Part::Prefix, Part::Idle].into_iter().any(|part| self.has(part)) {
            self.for_each_model(|bench, model, threads| {
                let served = bench.serve(model, threads);
                bench.note_failure(served, || format!("serving {}", model.display()));
            });
        }
        if self.has(Part::Guesses) {
            self.for_each_model(|bench, model, threads| {
                let guessed = bench.guesses(model, threads);
                bench.note_failure(guessed, || format!("guesses for {}", model.display()));
            });
        }
    }

    fn for_each_model(&mut self, mut work: impl FnMut(&mut Self, &Path, usize)) {
        for model in self.args.models.clone() {
            for threads in self.args.threads.clone() {
                work(self, &model, threads);
            }
        }
    }

    fn round(&mut self, round: u32, model: &Path, threads: usize) {
        for part in [Part::Solo, Part::Depth] {
            if self.has(part) && self.has_time(&format!("round {} of {part:?}", round + 1)) {
                let pair = self.solo(part, round, model, threads);
                self.note_failure(pair, || format!("round {}", round + 1));
            }
        }
    }

    fn note_failure(&mut self, result: anyhow::Result<()>, what: impl FnOnce() -> String) {
        if let Err(error) = result {
            let failure = format!("{}: {error:#}", what());
            eprintln!("failed: {failure}");
            self.failures.push(failure);
        }
    }

    fn has(&self, part: Part) -> bool {
        self.args.only.contains(&part)
    }

    /// Whether something new may start; says so if not.
    fn has_time(&self, what: &str) -> bool {
        let has = Instant::now() < self.until;
        if !has {
            eprintln!("skipped for lack of time (--minutes {}): {what}", self.args.minutes);
        }
        has
    }
}
