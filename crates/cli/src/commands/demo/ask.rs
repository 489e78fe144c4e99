//! What the demo asks the model, and how fast the answers come.

use std::time::Duration;

use anyhow::Context;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::{self, Answer, Part};
use crate::client::Client;

/// The built-in model's name.
pub const MODEL: &str = "demo";
/// Prompts with the answers that the model is known to give; written when the model is made.
const KNOWN: &str = include_str!("../../../../../demo-model/expected.json");
/// A sum, an ordering and a story.
const PROMPTS: usize = 3;
/// For one answer of this small model; it takes a second where nothing is wrong.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// Tokens of the text whose speed is measured: enough that the first ones do not matter.
const MEASURED_TOKENS: u32 = 160;
/// The best of so many runs is taken: other programs only ever make a run slower.
const MEASURED_RUNS: u32 = 3;

/// A prompt and its known answer.
#[derive(Deserialize, Clone, Debug)]
pub struct DemoPrompt {
    pub prompt: String,
    pub answer: String,
}

#[derive(Deserialize)]
struct KnownFile {
    greedy: Vec<DemoPrompt>,
}

/// The prompts of the demo.
pub fn known() -> anyhow::Result<Vec<DemoPrompt>> {
    let file: KnownFile =
        serde_json::from_str(KNOWN).context("demo-model/expected.json is not what the demo reads")?;
    Ok(file.greedy.into_iter().take(PROMPTS).collect())
}

/// Asks one prompt greedily; `on_text` sees the answer as it comes.
pub async fn chat(client: &Client, prompt: &str, on_text: &mut dyn FnMut(&str)) -> anyhow::Result<String> {
    let body = json!({
        "model": MODEL, "stream": true, "temperature": 0,
        "messages": [{"role": "user", "content": prompt}],
    });
    let mut on_part = |part: Part<'_>| {
        if let Part::Text(text) = part {
            on_text(text);
        }
    };
    let answer = read(client, "/v1/chat/completions", &body, &mut on_part).await;
    Ok(answer.with_context(|| format!("the model did not answer `{prompt}`"))?.text)
}

async fn read(
    client: &Client,
    path: &str,
    body: &Value,
    on_part: &mut dyn FnMut(Part<'_>),
) -> anyhow::Result<Answer> {
    let answer = answer::read(client, path, body, on_part);
    let late = || format!("the answer was not complete within {} s", ANSWER_MAX.as_secs());
    tokio::time::timeout(ANSWER_MAX, answer).await.with_context(late)?
}

/// A text of fixed length and the speed at which it came.
pub struct TimedText {
    pub text: String,
    pub tokens_per_s: f64,
}

/// Writes a long text greedily, a few times, and takes the fastest.
pub async fn measure(client: &Client) -> anyhow::Result<TimedText> {
    let body = json!({
        "model": MODEL, "stream": true, "temperature": 0, "prompt": "Once upon a time", "ignore_eos": true,
        "max_tokens": MEASURED_TOKENS, "stream_options": {"include_usage": true},
    });
    let mut best = TimedText { text: String::new(), tokens_per_s: 0.0 };
    for _ in 0..MEASURED_RUNS {
        let answer = read(client, "/v1/completions", &body, &mut |_| {}).await;
        let answer = answer.context("the model did not write the text whose speed is measured")?;
        let speed = answer.tokens_per_s().context("the node did not say how fast it was")?;
        if speed > best.tokens_per_s {
            best = TimedText { text: answer.text, tokens_per_s: speed };
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    #[test]
    fn there_are_three_prompts_with_answers() {
        let known = super::known().unwrap();
        assert_eq!(known.len(), super::PROMPTS);
        assert!(known.iter().all(|k| !k.prompt.is_empty() && !k.answer.is_empty()));
    }
}
