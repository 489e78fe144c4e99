//! Decode of answers that are held to a schema, beside decode of free ones: on one node and over three, one
//! answer at a time and several at once.
//!
//! Both are drawn at temperature 1 and cut after as many tokens. No token is guessed ahead, or what a grammar
//! forces would count as speed. Measurements stand beside each other, as in `speed`; the median of the pairs
//! counts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use serde_json::{Value, json};

use super::Verdict;
use super::decode::speed_of;
use crate::cluster::Cluster;
use crate::http::Server;
use crate::pairs::{in_turns, median_of};

/// Numbers of nodes, and the least ratio of the speeds on so many.
const CLUSTERS: [(usize, f64); 2] = [(1, 0.95), (3, 0.98)];
const STREAMS: [u32; 2] = [1, 8];
const CONTEXT: u32 = 512;
const TOKENS: u32 = 64;
const ANSWER_MAX: Duration = Duration::from_secs(300);

#[derive(Args)]
pub struct Options {
    /// A GGUF file with a chat template to measure instead of the demo model
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Pairs for each number of nodes and answers
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
    /// Processor threads of each node
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
}

/// A verdict for each number of nodes and of answers at once.
pub fn prove(exo: &Path, options: &Options) -> anyhow::Result<Vec<Verdict>> {
    let mut verdicts = Vec::new();
    for (nodes, ratio_min) in CLUSTERS {
        verdicts.extend(on(exo, nodes, ratio_min, options)?);
    }
    Ok(verdicts)
}

fn on(exo: &Path, nodes: usize, ratio_min: f64, options: &Options) -> anyhow::Result<Vec<Verdict>> {
    let threads = format!("--threads={}", options.threads);
    let mut cluster = Cluster::start(exo, nodes, &["--speculate=off", &threads])?;
    let model = cluster.model(options.model.as_deref())?;
    let slots = STREAMS.iter().max();
    let order = json!({ "model": model, "nodes_min": nodes, "context_tokens": CONTEXT, "slots": slots });
    let instance = cluster.place_as(0, &order)?;
    cluster.wait_settled(&instance)?;
    let server = &cluster.nodes()[0].server;
    let speed = |streams, is_held| tokens_per_s(server, &model, streams, is_held);
    let mut verdicts = Vec::new();
    for streams in STREAMS {
        speed(streams, true)?;
        let mut pairs = Vec::new();
        for pair in 0..options.pairs {
            pairs.push(in_turns(pair, || speed(streams, true), || speed(streams, false))?);
        }
        verdicts.push(verdict((&model, nodes, streams), &pairs, ratio_min)?);
    }
    cluster.stop()?;
    Ok(verdicts)
}

/// Tokens per second behind the first token, of all answers together.
fn tokens_per_s(server: &Server, model: &str, streams: u32, is_held: bool) -> anyhow::Result<f64> {
    let body = |seed| if is_held { held(model, seed) } else { free(model, seed) };
    std::thread::scope(|scope| {
        let asked: Vec<_> =
            (0..streams).map(|seed| scope.spawn(move || answer(server, &body(seed)))).collect();
        let each =
            asked.into_iter().map(|one| one.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?);
        each.sum()
    })
}

fn answer(server: &Server, body: &Value) -> anyhow::Result<f64> {
    let answer = server.post("/v1/chat/completions", body, ANSWER_MAX)?;
    if answer["usage"]["completion_tokens"] != TOKENS {
        bail!("an answer has {} tokens instead of {TOKENS}", answer["usage"]["completion_tokens"]);
    }
    speed_of(&answer)
}

fn free(model: &str, seed: u32) -> Value {
    json!({
        "model": model, "messages": [{ "role": "user", "content": "List people." }], "max_tokens": TOKENS,
        "temperature": 1, "seed": seed, "ignore_eos": true,
    })
}

/// Of a schema that no answer of so many tokens is done with.
fn held(model: &str, seed: u32) -> Value {
    let person = json!({
        "type": "object", "additionalProperties": false, "required": ["name", "age", "tags"],
        "properties": {
            "name": { "type": "string" }, "age": { "type": "integer" },
            "tags": { "type": "array", "items": { "enum": ["new", "old", "borrowed", "blue"] } },
        },
    });
    let schema = json!({ "type": "array", "items": person, "minItems": TOKENS });
    json!({
        "model": model, "messages": [{ "role": "user", "content": "List people." }], "max_tokens": TOKENS,
        "temperature": 1, "seed": seed,
        "response_format": { "type": "json_schema", "json_schema": { "name": "people", "schema": schema } },
    })
}

fn verdict(
    (model, nodes, streams): (&str, usize, u32),
    pairs: &[(f64, f64)],
    ratio_min: f64,
) -> anyhow::Result<Verdict> {
    let ratio = median_of(pairs, |(held, free)| held / free)?;
    let line = format!(
        "schemas {model}, {nodes} nodes, {streams} answers at once: {ratio:.3} x as fast with a schema ({:.1} tokens/s, \
         {:.1} without; bound {ratio_min}), median of {} pairs",
        median_of(pairs, |(held, _)| *held)?,
        median_of(pairs, |(_, free)| *free)?,
        pairs.len()
    );
    Ok(Verdict { line, is_kept: ratio >= ratio_min })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_the_pairs_is_held_to_the_bound() {
        let judged =
            |ratio: f64| verdict(("m", 3, 8), &[(9.0, 1.0), (ratio, 1.0), (0.1, 1.0)], 0.98).unwrap();
        assert_eq!(
            judged(0.99).line,
            "schemas m, 3 nodes, 8 answers at once: 0.990 x as fast with a schema (1.0 tokens/s, 1.0 without; bound 0.98), \
             median of 3 pairs"
        );
        assert!(judged(0.98).is_kept);
        assert!(!judged(0.97).is_kept);
        assert!(verdict(("m", 1, 1), &[], 0.95).is_err());
    }
}
