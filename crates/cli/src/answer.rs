//! Reads one streamed answer to its end, from either of OpenAI's two endpoints.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::Value;

use crate::client::{BrokeOff, Client, Event, Events, Refused, ResumePoint};

/// How long other members keep a copy of what a lost node was asked.
pub const AWAY_MAX: Duration = Duration::from_secs(60);
/// A node that is back finds the other members within this.
const FINDS_WITHIN: Duration = Duration::from_secs(15);
/// Ends of the node in a row, without a piece of text between them.
const ROUNDS_MAX: u32 = 3;
/// Between two looks whether the node is there again.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What happens while an answer comes in.
pub enum Part<'a> {
    /// Nothing yet, and why.
    Waiting(&'a str),
    /// The next piece of text, never empty.
    Text(&'a str),
    /// The node ended; the answer goes on when it is back.
    Away,
}

/// A complete answer.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// All of the text.
    pub text: String,
    /// Why it ended: `stop`, `length`.
    pub finish_reason: Option<String>,
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
    let mut answer = Answer::default();
    take_all(client.stream(path, body).await?, &mut answer, on_part).await.map_err(|ended| ended.error)?;
    Ok(answer)
}

/// The same, and where the node of a cluster ends in mid-answer: other members have a copy of what it was
/// asked, so the answer goes on when a node answers on its data folder again.
pub async fn read_through_restarts(
    data_dir: &Path,
    client: &Client,
    path: &str,
    body: &Value,
    on_part: &mut dyn FnMut(Part<'_>),
) -> anyhow::Result<Answer> {
    let (mut answer, mut read_before, mut rounds) = (Answer::default(), 0, 0);
    let mut events = client.stream(path, body).await?;
    loop {
        let Err(ended) = take_all(events, &mut answer, on_part).await else { return Ok(answer) };
        let Interrupted { error, place: Some(place) } = ended else { return Err(ended.error) };
        // What ends its node each time is not asked for ever.
        rounds = if answer.text.len() > read_before { 1 } else { rounds + 1 };
        read_before = answer.text.len();
        if !is_end_of_node(&error) || rounds > ROUNDS_MAX {
            return Err(error);
        }
        let text = format!("{error:#}; the answer did not go on within {} s", AWAY_MAX.as_secs());
        on_part(Part::Away);
        let went_on = tokio::time::timeout(AWAY_MAX, go_on(data_dir, &place)).await;
        events = went_on.with_context(|| text.clone())?.context(text)?;
    }
}

/// What ended an answer before its last event.
struct Interrupted {
    error: anyhow::Error,
    place: Option<ResumePoint>,
}

async fn take_all(
    mut events: Events,
    answer: &mut Answer,
    on_part: &mut dyn FnMut(Part<'_>),
) -> Result<(), Interrupted> {
    loop {
        match events.next().await {
            Ok(None) => return Ok(()),
            Ok(Some(Event::Comment(reason))) => on_part(Part::Waiting(&reason)),
            Ok(Some(Event::Data(data))) => take(data, answer, on_part),
            Err(error) => return Err(Interrupted { error, place: events.place }),
        }
    }
}

fn is_end_of_node(error: &anyhow::Error) -> bool {
    let is_told = |refused: &Refused| refused.code.as_deref() == Some("shutting_down");
    error.is::<BrokeOff>() || error.downcast_ref().is_some_and(is_told)
}

/// Waits for the node, and for the members that have the copy.
async fn go_on(data_dir: &Path, place: &ResumePoint) -> anyhow::Result<Events> {
    let mut back_since = None;
    loop {
        if let Some(client) = Client::of(data_dir) {
            match client.resume(place).await {
                Ok(events) => return Ok(events),
                Err(error) if error.is::<Refused>() => {
                    let since = *back_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > FINDS_WITHIN {
                        return Err(error);
                    }
                    tracing::debug!(%error, "the node is back, and no member with the answer yet");
                }
                Err(error) => tracing::debug!(%error, "the node is not back yet"),
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn take(mut data: Value, answer: &mut Answer, on_part: &mut dyn FnMut(Part<'_>)) {
    let choice = &data["choices"][0];
    // Chat sends deltas of a message, completions send text.
    let piece = choice["delta"]["content"].as_str().or(choice["text"].as_str()).unwrap_or_default();
    if !piece.is_empty() {
        answer.text.push_str(piece);
        on_part(Part::Text(piece));
    }
    if let Some(reason) = choice["finish_reason"].as_str() {
        answer.finish_reason = Some(reason.to_owned());
    }
    if data["usage"].is_object() {
        answer.usage = data["usage"].take();
    }
    if data["exo"].is_object() {
        answer.exo = data["exo"].take();
    }
}
