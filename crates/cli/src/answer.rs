//! Reads one streamed answer to its end, from either of OpenAI's two endpoints.

use serde_json::Value;

use crate::client::{Client, Event};

/// What happens while an answer comes in.
pub enum Part<'a> {
    /// Nothing yet, and why.
    Waiting(&'a str),
    /// The next piece of text, never empty.
    Text(&'a str),
}

/// A complete answer.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// All of the text.
    pub text: String,
    /// OpenAI's `usage`; `null` unless it was asked for.
    pub usage: Value,
    /// Our `exo` summary: stages, kernels, times.
    pub exo: Value,
}

impl Answer {
    /// Tokens generated per second after the first, as the node measured it.
    pub fn tokens_per_s(&self) -> Option<f64> {
        self.exo["timings"]["tokens_per_s"].as_f64()
    }
}

/// Sends a request with `"stream": true` in its body and reads until the end. `on_part` sees every step.
pub async fn read(
    client: &Client,
    path: &str,
    body: &Value,
    on_part: &mut dyn FnMut(Part<'_>),
) -> anyhow::Result<Answer> {
    let mut events = client.stream(path, body).await?;
    let mut answer = Answer::default();
    while let Some(event) = events.next().await? {
        match event {
            Event::Comment(reason) => on_part(Part::Waiting(&reason)),
            Event::Data(data) => take(data, &mut answer, on_part),
        }
    }
    Ok(answer)
}

fn take(mut data: Value, answer: &mut Answer, on_part: &mut dyn FnMut(Part<'_>)) {
    let choice = &data["choices"][0];
    // Chat sends deltas of a message, completions send text.
    let piece = choice["delta"]["content"].as_str().or(choice["text"].as_str()).unwrap_or_default();
    if !piece.is_empty() {
        answer.text.push_str(piece);
        on_part(Part::Text(piece));
    }
    if data["usage"].is_object() {
        answer.usage = data["usage"].take();
    }
    if data["exo"].is_object() {
        answer.exo = data["exo"].take();
    }
}
