//! A cluster of machines on a network of their own serves while something happens to one of them every few
//! seconds: its process is killed, ended, stopped, its cable pulled, its packets lost, its disk filled, or it
//! is drained. Clients ask all the while, one at each machine.
//!
//! A wrong text and a request without an end are faults whatever happened. An error counts where the machine
//! that was asked had nothing done to it: the others belong to what it went through.

mod clients;
mod disks;
mod faults;
mod hosts;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;

use self::clients::{Answers, Question};
use self::faults::Draw;
use self::hosts::Hosts;
use super::Verdict;
use super::streams::percentile;
use crate::wait::wait_for;

/// Of the requests that nothing happened to but elsewhere, so many end with their answer.
const AVAILABLE_PERCENT: usize = 99;
/// After the last fault every machine answers within this time.
const BACK_MAX: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(100);

#[derive(Args)]
pub struct Options {
    /// How long
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    minutes: u64,
    /// Machines
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(3..=8))]
    nodes: u8,
    /// Seconds from a fault to the next
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    every: u64,
    /// What the faults are drawn from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only these kinds of faults: kill, end, stop, cable, pair, drain, disk, loss
    #[arg(long, value_delimiter = ',')]
    only: Vec<faults::Kind>,
    /// Memory for models on each machine, so that a model needs several of them
    #[arg(long, value_name = "MIB")]
    memory_mib: Option<u64>,
    /// A model file instead of the demo model
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Where the machines' folders and logs stay; without, they go. No disk is filled then
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

/// Runs the cluster, the clients and the faults.
pub fn prove(exo: PathBuf, options: &Options) -> anyhow::Result<Vec<Verdict>> {
    let mut hosts =
        Hosts::start(exo, usize::from(options.nodes), options.memory_mib, options.keep.as_deref())?;
    let mut draw = Draw::new(options.seed, &options.only, hosts.impossible())?;
    hosts.impossible().iter().for_each(|(kind, why)| println!("skipped: {kind:?}: {why}"));
    let model = hosts.place(options.model.as_deref())?;
    let questions: Arc<Vec<Question>> = Arc::new(clients::questions(&hosts, &model)?);
    let before = hosts.held();
    let ends = Arc::new(AtomicBool::new(false));
    let asking: Vec<_> = (0..hosts.len())
        .map(|at| clients::start(&hosts, at, Arc::clone(&questions), Arc::clone(&ends)))
        .collect();
    let until = Instant::now() + Duration::from_secs(60 * options.minutes);
    let mut next = Instant::now() + Duration::from_secs(options.every);
    let mut faults = 0;
    while Instant::now() < until {
        std::thread::park_timeout(POLL);
        hosts.heal(false)?;
        if Instant::now() >= next {
            faults += u32::from(draw.strike(&mut hosts)?);
            next += Duration::from_secs(options.every);
        }
    }
    let healing =
        wait_for("healing", (Duration::from_secs(60), POLL), || Ok(hosts.heal(true)?.then_some(())));
    let healed = Instant::now();
    let back = healing.and_then(|()| {
        wait_for("serving again after the last fault", (BACK_MAX, POLL), || {
            let mut all = (0..hosts.len()).map(|at| clients::is_answered(&hosts, at, &questions[0]));
            Ok(all.all(|answered| answered).then(|| healed.elapsed()))
        })
    });
    ends.store(true, Ordering::Relaxed);
    let mut answers = Answers::default();
    for client in asking {
        answers.add(client.join().map_err(|_| anyhow::anyhow!("a client panicked"))?);
    }
    answers.pauses.sort_unstable();
    let after = hosts.held();
    Ok(vec![verdict(&answers, faults, options), served_again(&back), level(before, after)])
}

fn verdict(answers: &Answers, faults: u32, options: &Options) -> Verdict {
    let asked = answers.right + answers.errors;
    let at = |percent| percentile(&answers.pauses, percent).as_millis();
    let is_available = answers.right * 100 >= asked * AVAILABLE_PERCENT && answers.right > 0;
    Verdict {
        line: format!(
            "soak of {} min, {} machines, {faults} faults (seed {}): {} of {asked} requests answered, {} wrong texts, {} without an end; \
             {} more failed at a machine that was itself struck; longest silence in an answer {} ms (p50), {} ms (p95), {} ms (worst)",
            options.minutes,
            options.nodes,
            options.seed,
            answers.right,
            answers.wrong,
            answers.hung,
            answers.struck,
            at(50),
            at(95),
            at(100),
        ),
        is_kept: is_available && answers.wrong == 0 && answers.hung == 0,
    }
}

fn served_again(back: &anyhow::Result<Duration>) -> Verdict {
    let bound = BACK_MAX.as_secs();
    match back {
        Ok(took) => Verdict {
            line: format!(
                "soak: every machine answers {} ms after the last fault (bound {bound} s)",
                took.as_millis()
            ),
            is_kept: true,
        },
        Err(error) => Verdict { line: format!("soak: {error:#}"), is_kept: false },
    }
}

/// What the hungriest process holds, before and after. Memory may grow by half and 64 MiB, threads and files
/// by half and 16.
fn level(before: [u64; 3], after: [u64; 3]) -> Verdict {
    let [mib, threads, files] = [64 << 20, 16, 16];
    let is_level = |at: usize, more: u64| after[at] <= before[at] + before[at] / 2 + more;
    Verdict {
        line: format!(
            "soak: the largest process holds {} MiB, {} threads, {} files, before the faults {} MiB, {} and {}",
            after[0] >> 20,
            after[1],
            after[2],
            before[0] >> 20,
            before[1],
            before[2]
        ),
        is_kept: is_level(0, mib) && is_level(1, threads) && is_level(2, files),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options {
            minutes: 1,
            nodes: 4,
            every: 10,
            seed: 1,
            only: Vec::new(),
            memory_mib: None,
            model: None,
            keep: None,
        }
    }

    #[test]
    fn one_wrong_text_or_hang_is_too_many_and_one_error_in_fifty() {
        let kept = |right, errors, wrong, hung| {
            let answers = Answers { right, errors, wrong, hung, ..Answers::default() };
            verdict(&answers, 3, &options()).is_kept
        };
        assert!(kept(990, 10, 0, 0));
        assert!(!kept(49, 1, 0, 0) && !kept(990, 0, 1, 0) && !kept(990, 0, 0, 1) && !kept(0, 0, 0, 0));
    }

    #[test]
    fn what_a_process_holds_is_level() {
        assert!(level([100 << 20, 20, 40], [180 << 20, 30, 60]).is_kept);
        assert!(!level([100 << 20, 20, 40], [300 << 20, 20, 40]).is_kept);
        assert!(!level([100 << 20, 20, 40], [100 << 20, 20, 90]).is_kept);
    }
}
