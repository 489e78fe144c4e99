//! How fast answers come behind their first token, one at a time, as the node that is asked measures it.

use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::{Value, json};

use crate::http::Server;
use crate::pairs::median;

const ANSWER_MAX: Duration = Duration::from_secs(300);

/// Tokens per second of one answer.
pub fn speed_of(answer: &Value) -> anyhow::Result<f64> {
    let speed = answer["exo"]["timings"]["tokens_per_s"].as_f64().filter(|speed| *speed > 0.0);
    speed.context("the answer does not say how fast it came")
}

/// The median of greedy answers of so many tokens: those of a small model take milliseconds, and are asked
/// for until the time has passed.
pub fn tokens_per_s(server: &Server, model: &str, tokens: u32, time: Duration) -> anyhow::Result<f64> {
    let body = json!({
        "model": model, "prompt": "Once upon a time", "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
    });
    let (began, mut speeds) = (Instant::now(), Vec::new());
    while speeds.is_empty() || began.elapsed() < time {
        speeds.push(speed_of(&server.post("/v1/completions", &body, ANSWER_MAX)?)?);
    }
    median(speeds).context("nothing was measured")
}
