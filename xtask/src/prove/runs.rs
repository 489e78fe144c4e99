//! Proofs that repeat something on fresh clusters, each time with the next seed.

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use clap::Args;

use super::Verdict;
use crate::cluster::Cluster;

/// Which runs there are, and of what; where a proof has another number of them, it says so with `mut_arg`.
#[derive(Args)]
pub struct RunOptions {
    /// How many runs for each of them
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    times: u32,
    /// A GGUF file instead of the demo model
    #[arg(long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// The part of its time that each node computes
    #[arg(long, value_name = "10%..100%", default_value = "100%")]
    compute_share: String,
    /// The seed of the first run; each has the next
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl RunOptions {
    /// A verdict on each case: on how many runs there were, and what came of those that succeeded.
    pub fn verdicts<C: Copy + Debug, T>(
        &self,
        exo: &Path,
        cases: &[C],
        nodes: impl Fn(C) -> usize,
        run: impl Fn(&mut Cluster, C, u64) -> anyhow::Result<T>,
        verdict: impl Fn(C, u32, &[T]) -> Verdict,
    ) -> anyhow::Result<Vec<Verdict>> {
        let share = format!("--compute-share={}", self.compute_share);
        let last_seed = self.seed.saturating_add(u64::from(self.times));
        eprintln!("seeds {}..{last_seed}; `--seed N --times 1` repeats one", self.seed);
        let mut verdicts = Vec::new();
        for case in cases.iter().copied() {
            let mut results = Vec::new();
            for seed in self.seed..last_seed {
                let cluster = Cluster::start(exo, nodes(case), &[&share]);
                match cluster.and_then(|cluster| cluster.end_after(|cluster| run(cluster, case, seed))) {
                    Ok(result) => results.push(result),
                    Err(error) => eprintln!("{case:?}, seed {seed}: {error:#}"),
                }
            }
            verdicts.push(verdict(case, self.times, &results));
        }
        Ok(verdicts)
    }
}
