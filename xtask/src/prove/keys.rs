//! What the holder of one API key waits for its answers beside a hundred connections of another key, against
//! what it waits beside a single one. Rounds of both stand in turns; the median of the rounds counts.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use serde_json::json;

use super::Verdict;
use crate::cluster::Cluster;
use crate::http::Server;
use crate::pairs::median;
use crate::wait::wait_for;

/// The longest wait beside many connections, in waits beside one.
const RATIO_MAX: f64 = 2.0;
const CONNECTIONS: u32 = 100;
const TOKENS: u32 = 64;
const CONTEXT: u32 = 512;
const KEYS: [&str; 2] = ["key-of-the-many-connections", "key-of-the-one-who-waits"];
const ANSWER_MAX: Duration = Duration::from_secs(300);
/// For a node to read its keys again.
const KEYS_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);
/// In which a load builds up.
const LOAD_TIME: Duration = Duration::from_secs(3);
/// Before who was told to come back does, as clients do.
const COME_BACK: Duration = Duration::from_millis(100);

#[derive(Args)]
pub struct Options {
    /// A GGUF file instead of the demo model, whose rows cost a step nearly as much as its weights
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Rounds of answers beside one connection and beside a hundred
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Answers of a round; their median counts
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    answers: u32,
    /// Processor threads of the node
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: usize,
}

/// One node, two keys.
pub fn prove(exo: &Path, options: &Options) -> anyhow::Result<Verdict> {
    let mut cluster = Cluster::start(exo, 1, &[&format!("--threads={}", options.threads)])?;
    let model = cluster.model(options.model.as_deref())?;
    let instance = cluster.place(0, &model, CONTEXT)?;
    cluster.wait_settled(&instance)?;
    cluster.write_config(&format!("api_keys = [\"{}\", \"{}\"]\n", KEYS[0], KEYS[1]))?;
    let server = &cluster.nodes()[0].server;
    let [many, one] = KEYS.map(|key| Server { secret: key.to_owned(), ..server.clone() });
    // Until then anybody is let in, whatever key it shows, and all are one user.
    let nobody = Server { secret: "the-key-of-nobody".to_owned(), ..server.clone() };
    wait_for("reading the keys", (KEYS_MAX, POLL), || {
        Ok(nobody.get("/v1/models", ANSWER_MAX).is_err().then_some(()))
    })?;

    let mut rounds = Vec::new();
    for round in 0..options.rounds {
        let beside_one = wait_beside((&many, 1), &one, &model, options.answers)?;
        let beside_many = wait_beside((&many, CONNECTIONS), &one, &model, options.answers)?;
        println!(
            "round {}: {:.0} ms beside one connection, {:.0} ms beside {CONNECTIONS}: {:.2} times",
            round + 1,
            beside_one * 1e3,
            beside_many * 1e3,
            beside_many / beside_one
        );
        rounds.push(beside_many / beside_one);
    }
    cluster.stop()?;
    let ratio = median(rounds).context("there was no round")?;
    Ok(Verdict {
        line: format!(
            "keys: {model}, an answer of {TOKENS} tokens beside {CONNECTIONS} connections of another key takes {ratio:.2} \
             times as long as beside one (at most {RATIO_MAX}); none was refused"
        ),
        is_kept: ratio <= RATIO_MAX,
    })
}

/// The median wait, in seconds, of who asks one thing after the other while another key keeps so many
/// connections busy. A refusal of the one who waits is an error.
fn wait_beside(
    (many, connections): (&Server, u32),
    one: &Server,
    model: &str,
    answers: u32,
) -> anyhow::Result<f64> {
    let (is_over, answered) = (AtomicBool::new(false), AtomicU32::new(0));
    let body = json!({ "model": model, "prompt": "Once", "max_tokens": TOKENS, "ignore_eos": true });
    let waits = std::thread::scope(|scope| {
        for _ in 0..connections {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    match many.post("/v1/completions", &body, ANSWER_MAX) {
                        Ok(_) => _ = answered.fetch_add(1, Ordering::Relaxed),
                        Err(_) => std::thread::park_timeout(COME_BACK),
                    }
                }
            });
        }
        std::thread::park_timeout(LOAD_TIME);
        let waits: anyhow::Result<Vec<_>> = (0..answers)
            .map(|_| {
                let began = Instant::now();
                one.post("/v1/completions", &body, ANSWER_MAX)?;
                Ok(began.elapsed().as_secs_f64())
            })
            .collect();
        is_over.store(true, Ordering::Relaxed);
        waits
    })?;
    if answered.into_inner() == 0 {
        bail!("the other key got no answer: there was no load to wait beside");
    }
    median(waits).context("nothing was asked")
}
