//! Decode of this tree beside that of another binary: on one node, and split over two on loopback.
//!
//! All nodes of both binaries run all the time; those that are not asked do nothing. No token is guessed
//! ahead, so a token is a step, and what a split adds to a token is what its hops cost.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;

use super::Verdict;
use super::decode::tokens_per_s;
use crate::cluster::Cluster;
use crate::pairs::{in_turns, median_of};
use crate::setup;

/// Least ratio of the speeds.
const RATIO_MIN: f64 = 0.98;
/// Most that a hop may add to a token.
const HOP_MS_MAX: f64 = 0.05;
const CONTEXT: u32 = 512;
/// Tokens of one answer, and for how long answers are asked for.
const TOKENS: u32 = 128;
const MEASURE: Duration = Duration::from_millis(500);
const SPLIT_NODES: usize = 2;

#[derive(Args)]
pub struct Options {
    /// The binary to compare with
    #[arg(long, value_name = "FILE")]
    before: PathBuf,
    /// A GGUF file to measure besides the demo model; may be repeated
    #[arg(long = "model", value_name = "FILE")]
    models: Vec<PathBuf>,
    /// Pairs for each model
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
    /// Processor threads of each node
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// No new pair is begun after this time
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=1000))]
    minutes: u64,
}

/// Milliseconds for a token, in one round.
#[derive(Clone, Copy)]
struct Times {
    solo: f64,
    split: f64,
}

impl Times {
    fn hop(self) -> f64 {
        // Every token goes from stage to stage and back to the first.
        (self.split - self.solo) / SPLIT_NODES as f64
    }
}

/// A round: this tree's, and those before.
type Pair = (Times, Times);

/// A verdict for each model.
pub fn prove(exo: &Path, options: &Options) -> anyhow::Result<Vec<Verdict>> {
    let before = setup::exo_binary(Some(&options.before))?;
    let until = Instant::now() + Duration::from_secs(60 * options.minutes);
    let mut models = vec![None];
    for model in &options.models {
        let file = model.canonicalize().with_context(|| format!("cannot find {}", model.display()))?;
        models.push(Some(file));
    }
    models.iter().map(|model| measure(options, (exo, &before), model.as_deref(), until)).collect()
}

fn measure(
    options: &Options,
    (exo, before): (&Path, &Path),
    model: Option<&Path>,
    until: Instant,
) -> anyhow::Result<Verdict> {
    let ours = Subject::start(exo, model, options.threads)?;
    let theirs = Subject::start(before, model, options.threads)?;
    let mut pairs: Vec<Pair> = Vec::new();
    for round in 0..options.pairs {
        if Instant::now() > until {
            eprintln!("{}: {} pairs are left out for lack of time", ours.model, options.pairs - round);
            break;
        }
        let pair = |now: &Placed, before: &Placed| {
            in_turns(round, || now.token_ms(&ours.model), || before.token_ms(&theirs.model))
        };
        let (solo, solo_before) = pair(&ours.solo, &theirs.solo)?;
        let (split, split_before) = pair(&ours.split, &theirs.split)?;
        pairs.push((Times { solo, split }, Times { solo: solo_before, split: split_before }));
    }
    let verdict = verdict(&ours.model, &pairs, options.pairs);
    ours.stop()?;
    theirs.stop()?;
    verdict
}

/// One binary with the model on one node, and on two of another cluster.
struct Subject {
    model: String,
    solo: Placed,
    split: Placed,
}

/// A cluster whose one instance is asked.
struct Placed(Cluster);

impl Subject {
    fn start(exo: &Path, model: Option<&Path>, threads: Option<usize>) -> anyhow::Result<Self> {
        let (solo, name) = Placed::start(exo, model, 1, threads)?;
        let (split, _) = Placed::start(exo, model, SPLIT_NODES, threads)?;
        Ok(Self { model: name, solo, split })
    }

    fn stop(self) -> anyhow::Result<()> {
        self.solo.0.stop()?;
        self.split.0.stop()
    }
}

impl Placed {
    /// With its model's name.
    fn start(
        exo: &Path,
        model: Option<&Path>,
        nodes: usize,
        threads: Option<usize>,
    ) -> anyhow::Result<(Self, String)> {
        let threads = threads.map(|threads| format!("--threads={threads}"));
        let flags: Vec<&str> = ["--speculate=off"].into_iter().chain(threads.as_deref()).collect();
        let mut cluster = Cluster::start(exo, nodes, &flags)?;
        let name = cluster.model(model)?;
        let instance = cluster.place(0, &name, CONTEXT)?;
        let placed = Self(cluster);
        // What is measured is measured on packed weights and warm caches.
        placed.token_ms(&name)?;
        placed.0.wait_settled(&instance)?;
        Ok((placed, name))
    }

    /// Milliseconds for a token.
    fn token_ms(&self, model: &str) -> anyhow::Result<f64> {
        Ok(1000.0 / tokens_per_s(&self.0.nodes()[0].server, model, TOKENS, MEASURE)?)
    }
}

fn verdict(model: &str, pairs: &[Pair], wanted: u32) -> anyhow::Result<Verdict> {
    let of = |value: fn(&Pair) -> f64| median_of(pairs, value);
    let solo = of(|(now, before)| before.solo / now.solo)?;
    let split = of(|(now, before)| before.split / now.split)?;
    let (hop, hop_before) = (of(|(now, _)| now.hop())?, of(|(_, before)| before.hop())?);
    let (solo_speed, split_speed) = (1000.0 / of(|(now, _)| now.solo)?, 1000.0 / of(|(now, _)| now.split)?);
    let line = format!(
        "speed {model}: {solo:.3} x before solo ({solo_speed:.1} tokens/s), {split:.3} x split over {SPLIT_NODES} \
         ({split_speed:.1} tokens/s; bound {RATIO_MIN}), {hop:.3} ms per token and hop ({hop_before:.3} before; bound \
         {HOP_MS_MAX}), median of {} pairs",
        pairs.len()
    );
    let is_kept =
        solo >= RATIO_MIN && split >= RATIO_MIN && hop <= HOP_MS_MAX && pairs.len() >= wanted as usize;
    Ok(Verdict { line, is_kept })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(now: (f64, f64), before: (f64, f64)) -> Verdict {
        let times = |(solo, split): (f64, f64)| Times { solo, split };
        // One pair that went wrong does not count.
        let odd = (times((9.0, 90.0)), times((1.0, 1.0)));
        verdict("m", &[odd, (times(now), times(before)), (times(now), times(before))], 3).unwrap()
    }

    #[test]
    fn the_line_has_ratios_speeds_and_what_a_hop_costs() {
        let Verdict { line, is_kept } = check((1.0, 1.08), (1.0, 1.2));
        assert_eq!(
            line,
            "speed m: 1.000 x before solo (1000.0 tokens/s), 1.111 x split over 2 (925.9 tokens/s; bound 0.98), 0.040 ms per \
             token and hop (0.100 before; bound 0.05), median of 3 pairs"
        );
        assert!(is_kept);
    }

    #[test]
    fn slower_than_before_a_dear_hop_and_too_few_pairs_miss() {
        assert!(!check((1.03, 1.08), (1.0, 1.2)).is_kept, "solo");
        assert!(!check((1.0, 1.08), (1.0, 1.05)).is_kept, "split");
        assert!(!check((1.0, 1.12), (1.0, 1.2)).is_kept, "hop");
        let pair = (Times { solo: 1.0, split: 1.0 }, Times { solo: 1.0, split: 1.0 });
        assert!(!verdict("m", &[pair], 20).unwrap().is_kept, "pairs");
        assert!(verdict("m", &[], 20).is_err());
    }
}
