//! An answer goes on, with the same tokens, when a node with a stage of it is killed in its middle.
//!
//! Each run is a fresh cluster of three nodes with the demo model over all of them, and an answer drawn with
//! a seed: it is asked for once while nothing happens, and once more, and in the middle of that the node of
//! the first, the middle or the last stage is killed. The client is connected to another one.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use serde_json::{Value, json};

use super::Verdict;
use super::cluster::Cluster;
use crate::setup;

const NODES: usize = 3;
/// Tokens of an answer.
const TOKENS: u32 = 300;
/// The node is killed behind so many of them.
const KILLED_AFTER: usize = 100;
/// For the whole answer, interrupted or not.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// From the kill to the next token: half of the runs, and all but one in twenty.
const P50: Duration = Duration::from_millis(1500);
const P95: Duration = Duration::from_secs(3);
const STAGES: [&str; NODES] = ["first", "middle", "last"];

#[derive(Args)]
pub struct Options {
    /// How many for each of the three stages
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    times: u32,
    /// An exo binary instead of this tree's, which is built
    #[arg(long, value_name = "FILE")]
    exo: Option<PathBuf>,
}

/// Kills nodes, and says how long answers stood still.
pub fn prove(options: &Options) -> anyhow::Result<Vec<Verdict>> {
    let exo = setup::exo_binary(options.exo.as_deref())?;
    let mut verdicts = Vec::new();
    for (stage, name) in STAGES.iter().enumerate() {
        let mut pauses = Vec::new();
        for number in 0..options.times {
            match one(&exo, stage, u64::from(number)) {
                Ok(pause) => pauses.push(pause),
                Err(error) => eprintln!("{name} stage, run {}: {error:#}", number + 1),
            }
        }
        verdicts.push(verdict(name, options.times, pauses));
    }
    Ok(verdicts)
}

fn verdict(stage: &str, times: u32, mut pauses: Vec<Duration>) -> Verdict {
    pauses.sort_unstable();
    let at = |percent: usize| pauses.get((pauses.len() * percent / 100).min(pauses.len().saturating_sub(1)));
    let (p50, p95) = (at(50).copied().unwrap_or_default(), at(95).copied().unwrap_or_default());
    let (ms, same) = (Duration::as_millis, pauses.len());
    Verdict {
        line: format!(
            "kills of the {stage} stage: {same} of {times} answers go on with the same tokens; the next token after {} ms \
             (p50, bound {}), {} ms (p95, bound {})",
            ms(&p50),
            ms(&P50),
            ms(&p95),
            ms(&P95)
        ),
        is_kept: same == times as usize && p50 <= P50 && p95 <= P95,
    }
}

/// How long an answer stood still when the node of a stage was killed.
fn one(exo: &Path, stage: usize, seed: u64) -> anyhow::Result<Duration> {
    let mut cluster = Cluster::start(exo, NODES, &[])?;
    match kill_one(&mut cluster, stage, seed) {
        Ok(pause) => {
            cluster.last_words();
            Ok(pause)
        }
        Err(error) => bail!("{error:#}{}", cluster.last_words()),
    }
}

fn kill_one(cluster: &mut Cluster, stage: usize, seed: u64) -> anyhow::Result<Duration> {
    let instance = cluster.place(0, "demo", 512)?;
    let stages = cluster.stages_of(&instance)?;
    let [first, middle, last] = stages[..] else { bail!("the model is on {} stages", stages.len()) };
    let victim = [first, middle, last][stage];
    let driver = [middle, last, first][stage];
    let server = cluster.nodes().get(driver).context("no driver")?.server.clone();
    let mut expected = String::new();
    server.lines("/v1/completions", &request(seed), ANSWER_MAX, |line| {
        expected.push_str(&text_of(line)?);
        Ok(ControlFlow::Continue(()))
    })?;
    let mut heard = Heard::default();
    server.lines("/v1/completions", &request(seed), ANSWER_MAX, |line| {
        if heard.take(&text_of(line)?) == KILLED_AFTER {
            cluster.kill(victim)?;
            heard.killed = Some(Instant::now());
        }
        Ok(ControlFlow::Continue(()))
    })?;
    if heard.text != expected {
        bail!("another text: `{}` instead of `{expected}`", heard.text);
    }
    Ok(heard.longest)
}

/// What has come of an answer.
#[derive(Default)]
struct Heard {
    text: String,
    pieces: usize,
    killed: Option<Instant>,
    /// When the last piece came.
    last: Option<Instant>,
    /// The longest time between two pieces since the kill. The first of them may have been on their way
    /// before.
    longest: Duration,
}

impl Heard {
    /// Takes a line's text; how many pieces there are if it was one.
    fn take(&mut self, piece: &str) -> usize {
        if piece.is_empty() {
            return 0;
        }
        let now = Instant::now();
        if let Some(since) = self.killed.max(self.last).filter(|_| self.killed.is_some()) {
            self.longest = self.longest.max(now - since);
        }
        self.last = Some(now);
        self.text.push_str(piece);
        self.pieces += 1;
        self.pieces
    }
}

fn request(seed: u64) -> Value {
    json!({
        "model": "demo", "prompt": "Once", "max_tokens": TOKENS, "ignore_eos": true, "temperature": 1.0, "seed": seed,
        "stream": true,
    })
}

/// The text in a line of a stream.
pub(super) fn text_of(line: &str) -> anyhow::Result<String> {
    let Some(data) = line.strip_prefix("data: ").filter(|data| data.starts_with('{')) else {
        return Ok(String::new());
    };
    let chunk: Value = serde_json::from_str(data).context("an event is not JSON")?;
    if let Some(message) = chunk["error"]["message"].as_str() {
        bail!("the answer ended: {message}");
    }
    Ok(chunk["choices"][0]["text"].as_str().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_has_to_go_on_and_none_late() {
        let check = |ms: &[u64], times| {
            let pauses = ms.iter().map(|ms| Duration::from_millis(*ms)).collect();
            verdict("last", times, pauses).is_kept
        };
        assert!(check(&[900, 1000, 1500], 3));
        assert!(!check(&[900, 1000], 3), "one was lost");
        assert!(!check(&[900, 1600, 1700], 3), "half of them late");
        assert!(!check(&[900, 1000, 3001], 3), "one far too late");
        assert!(verdict("last", 1, vec![]).line.starts_with("kills of the last stage: 0 of 1 answers"));
    }

    #[test]
    fn the_pause_is_the_longest_silence_since_the_kill() {
        let mut heard = Heard::default();
        assert_eq!((heard.take(""), heard.take("a")), (0, 1));
        heard.killed = Some(Instant::now());
        std::thread::park_timeout(Duration::from_millis(20));
        assert_eq!(heard.take("b"), 2);
        assert!(heard.longest >= Duration::from_millis(10) && heard.text == "ab", "{:?}", heard.longest);
    }
}
