//! A client that sends its request the moment a model is ready gets an answer, on clusters that never had one
//! before.
//!
//! Each cluster has three nodes and the demo model over all of them. Nothing lies between `ready`, as the
//! node says it where the model was placed, and the first request; that node waits for nothing but to see the
//! others; the members take turns in being asked first, and are then all asked.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use serde_json::{Value, json};

use super::Verdict;
use crate::cluster::{Cluster, Node};
use crate::run;

const NODES: usize = 3;
/// The model in the binary.
const MODEL: &str = "demo";
const CONTEXT: u32 = 512;
/// From sending a request to its whole answer.
const ANSWER_BOUND: Duration = Duration::from_secs(2);
/// A late answer is waited for, to say how late it was or why there is none.
const ANSWER_MAX: Duration = Duration::from_secs(40);
/// What the model is known to answer.
const EXPECTED: &str = "demo-model/expected.json";

#[derive(Args)]
pub struct Options {
    /// How many, one after the other
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clusters: u32,
    /// No new cluster is started after this time
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..=1000))]
    minutes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { clusters: 100, minutes: 40 }
    }
}

/// A question and its answer.
struct Known {
    prompt: String,
    answer: String,
}

/// Starts the clusters and asks them.
pub fn prove(exo: &Path, options: &Options) -> anyhow::Result<Verdict> {
    let known = known()?;
    let until = Instant::now() + Duration::from_secs(60 * options.minutes);
    let (mut answered, mut slowest) = (0, Duration::ZERO);
    for number in 0..options.clusters {
        if Instant::now() > until {
            eprintln!(
                "after {} minutes {} clusters are left out",
                options.minutes,
                options.clusters - number
            );
            break;
        }
        match one(exo, number as usize, &known) {
            Ok(took) => {
                answered += 1;
                slowest = slowest.max(took);
            }
            Err(error) => eprintln!("cluster {}: {error:#}", number + 1),
        }
        if (number + 1).is_multiple_of(10) {
            eprintln!("{answered} of {} answered, slowest {} ms", number + 1, slowest.as_millis());
        }
    }
    Ok(verdict(answered, options.clusters, slowest))
}

fn verdict(answered: u32, clusters: u32, slowest: Duration) -> Verdict {
    let (slowest_ms, bound_ms) = (slowest.as_millis(), ANSWER_BOUND.as_millis());
    Verdict {
        line: format!(
            "fresh-clusters: {answered} of {clusters} answered, slowest {slowest_ms} ms (bound {bound_ms} ms)"
        ),
        is_kept: answered == clusters && slowest <= ANSWER_BOUND,
    }
}

/// The slowest answer of one cluster.
fn one(exo: &Path, number: usize, known: &Known) -> anyhow::Result<Duration> {
    let mut cluster = Cluster::start(exo, NODES, &[])?;
    match place_and_ask(&mut cluster, number, known) {
        Ok(slowest) => cluster.stop().map(|()| slowest),
        Err(error) => bail!("{error:#}{}", cluster.last_words()),
    }
}

fn place_and_ask(cluster: &mut Cluster, number: usize, known: &Known) -> anyhow::Result<Duration> {
    // Through each member, and for each of them each asked first.
    cluster.place(number / NODES % NODES, MODEL, CONTEXT)?;
    let mut slowest = Duration::ZERO;
    for turn in 0..NODES {
        let node = &cluster.nodes()[(number + turn) % NODES];
        let took = ask(node, known).with_context(|| format!("request {} to {}", turn + 1, node.name))?;
        slowest = slowest.max(took);
    }
    Ok(slowest)
}

fn ask(node: &Node, known: &Known) -> anyhow::Result<Duration> {
    let body = json!({
        "model": MODEL, "temperature": 0, "messages": [{ "role": "user", "content": known.prompt }],
    });
    let began = Instant::now();
    let answer = node.server.post("/v1/chat/completions", &body, ANSWER_MAX);
    let took = began.elapsed();
    let answer = answer.with_context(|| format!("no answer after {} ms", took.as_millis()))?;
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap_or_default();
    if text != known.answer {
        bail!("`{}` is not the answer `{}`", text, known.answer);
    }
    Ok(took)
}

fn known() -> anyhow::Result<Known> {
    let file: Value =
        serde_json::from_str(&run::read(EXPECTED)?).with_context(|| format!("{EXPECTED} is not JSON"))?;
    let first = &file["greedy"][0];
    let field = |name: &str| {
        let text = first[name].as_str().with_context(|| format!("{EXPECTED} has no {name}"))?;
        anyhow::Ok(text.to_owned())
    };
    Ok(Known { prompt: field("prompt")?, answer: field("answer")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_have_to_answer_and_none_late() {
        let check = |answered, ms| {
            let Verdict { line, is_kept } = verdict(answered, 100, Duration::from_millis(ms));
            (line, is_kept)
        };
        let line = "fresh-clusters: 100 of 100 answered, slowest 2000 ms (bound 2000 ms)".to_owned();
        assert_eq!(check(100, 2000), (line, true));
        assert!(!check(100, 2001).1);
        assert!(!check(99, 10).1);
    }
}
