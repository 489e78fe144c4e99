//! Several clients at once, over the OpenAI API that exo and `llama-server` both have.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::http::Server;
use crate::rng::Rng;

/// For one request, queue included.
pub const ANSWER_MAX: Duration = Duration::from_secs(600);
/// Ids that every vocabulary of a real model has, and that are no control tokens.
const IDS: std::ops::Range<u64> = 300..4000;

/// A server under load.
pub struct Target {
    pub server: Server,
    pub model: String,
    /// Whether it is `llama-server`, which must be told not to reuse a prompt.
    pub is_llama: bool,
}

/// What a stream brings an event for.
#[derive(Clone, Copy, PartialEq)]
pub enum EventFor {
    /// Each token, also one without text of its own: the names of tokens are asked for, with their
    /// log-probabilities, which takes the server some time of its own.
    Token,
    /// Each piece of text, as most clients ask for it.
    Text,
}

/// What one burst of streams gave.
pub struct Burst {
    /// Tokens generated, over all streams.
    pub tokens: u64,
    /// From the first request to the last answer.
    pub seconds: f64,
}

/// Prompts of random tokens; the same `seed` gives the same ones.
pub fn prompt(len: usize, seed: u64) -> Vec<u64> {
    let mut rng = Rng::new(seed);
    let next = || IDS.start + (rng.draw() >> 32) % (IDS.end - IDS.start);
    std::iter::repeat_with(next).take(len).collect()
}

impl Target {
    /// Completes `prompt` greedily by exactly `tokens` tokens: seconds until the answer was there, and the
    /// tokens.
    pub fn complete(&self, prompt: &[u64], tokens: u32) -> anyhow::Result<(f64, u64)> {
        let mut body = json!({
            "model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
        });
        if self.is_llama {
            body["cache_prompt"] = json!(false);
        }
        let began = Instant::now();
        let answer = self.server.post("/v1/completions", &body, ANSWER_MAX)?;
        let seconds = began.elapsed().as_secs_f64();
        let made: &Value = &answer["usage"]["completion_tokens"];
        Ok((seconds, made.as_u64().context("the answer does not say how many tokens it has")?))
    }

    /// Completes `prompt` greedily by `tokens` tokens and tells of each event when it comes, until `each` has
    /// seen enough.
    pub fn stream(
        &self,
        prompt: &[u64],
        tokens: u32,
        event_for: EventFor,
        mut each: impl FnMut(Instant) -> ControlFlow<()>,
    ) -> anyhow::Result<()> {
        let mut body = json!({
            "model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
            "stream": true,
        });
        if event_for == EventFor::Token {
            body["logprobs"] = json!(0);
        }
        self.server.lines("/v1/completions", &body, ANSWER_MAX, |line| {
            let at = Instant::now();
            Ok(if is_token(line)? { each(at) } else { ControlFlow::Continue(()) })
        })
    }

    /// `streams` clients that each send one prompt of its own at the same time.
    pub fn burst(&self, streams: u32, prompt_tokens: usize, tokens: u32, seed: u64) -> anyhow::Result<Burst> {
        let prompts: Vec<_> =
            (0..streams).map(|i| prompt(prompt_tokens, seed * 1000 + u64::from(i))).collect();
        let began = Instant::now();
        let answers: Vec<_> = std::thread::scope(|scope| {
            let clients: Vec<_> = prompts.iter().map(|p| scope.spawn(|| self.complete(p, tokens))).collect();
            let join = |c: std::thread::ScopedJoinHandle<'_, _>| {
                c.join().unwrap_or_else(|e| std::panic::resume_unwind(e))
            };
            clients.into_iter().map(join).collect()
        });
        let seconds = began.elapsed().as_secs_f64();
        let made = answers.into_iter().map(|a: anyhow::Result<(f64, u64)>| Ok(a?.1));
        Ok(Burst { tokens: made.sum::<anyhow::Result<u64>>()?, seconds })
    }
}

/// Whether a line of a streamed answer brings a token, and not its end or a word to keep the connection
/// alive.
fn is_token(line: &str) -> anyhow::Result<bool> {
    let Some(event) = line.strip_prefix("data: ").filter(|data| *data != "[DONE]") else { return Ok(false) };
    let event: Value = serde_json::from_str(event).context("an event of the stream is not JSON")?;
    if !event["error"].is_null() {
        bail!("the stream failed: {}", event["error"]);
    }
    let choice = &event["choices"][0];
    Ok(!choice.is_null() && choice["finish_reason"].is_null())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_told_from_the_rest_of_a_stream() {
        for (line, token) in [
            (r#"data: {"choices":[{"text":"a","finish_reason":null}]}"#, true),
            (r#"data: {"choices":[{"text":"","index":0}]}"#, true),
            (r#"data: {"choices":[{"text":"","finish_reason":"length"}]}"#, false),
            (r#"data: {"choices":[],"usage":{}}"#, false),
            ("data: [DONE]", false),
            (": keep-alive", false),
            ("", false),
        ] {
            assert_eq!(is_token(line).unwrap(), token, "{line}");
        }
        let error = is_token(r#"data: {"error":{"message":"lost"}}"#).unwrap_err().to_string();
        assert!(error.contains("lost"), "{error}");
    }

    #[test]
    fn prompts_differ_by_seed_and_stay_in_the_vocabulary() {
        let (a, b) = (prompt(50, 1), prompt(50, 2));
        assert_ne!(a, b);
        assert_eq!(a, prompt(50, 1));
        assert!(a.iter().chain(&b).all(|id| IDS.contains(id)));
    }
}
