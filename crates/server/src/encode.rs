//! From the node's events to OpenAI's chunks and answers: what both endpoints share.

use exo_api::anthropic::MessageEvent;
use exo_api::{ExoSummary, GenerateEvent, Summary};
use serde::Serialize;

use crate::errors::ApiError;

/// What stands at the top of every chunk and answer of one request.
#[derive(Clone, Debug)]
pub struct Head {
    /// The request's id as logs show it.
    pub request: String,
    /// Seconds since 1970.
    pub created: u64,
    /// As requested.
    pub model: String,
    /// Number of choices.
    pub choices: u16,
}

impl Head {
    /// The `exo` extension at the end of the request.
    pub fn exo(&self, summary: &Summary) -> ExoSummary {
        ExoSummary::new(self.request.clone(), summary)
    }
}

/// The kernel families as OpenAI's `system_fingerprint`.
pub fn fingerprint(kernels: &[String]) -> Option<String> {
    (!kernels.is_empty()).then(|| kernels.join("+"))
}

/// Server-sent events.
pub const EVENT_STREAM: &str = "text/event-stream; charset=utf-8";

/// Turns events into the chunks of one endpoint.
pub trait Chunks: Send + 'static {
    /// What the stream is.
    fn content_type(&self) -> &'static str {
        EVENT_STREAM
    }

    /// Appends the events (in the sense of server-sent events) that `event` becomes; often one, sometimes
    /// none.
    fn push(&mut self, event: GenerateEvent, out: &mut String);

    /// Appends a sign of life, and why the answer waits.
    fn keep_alive(&self, waiting_for: Option<&str>, out: &mut String) {
        push_comment(out, waiting_for.unwrap_or("keep-alive"));
    }

    /// Appends the end of an answer that failed.
    fn fail(&mut self, error: &ApiError, out: &mut String) {
        push_event(out, "error", &error.body());
    }
}

/// Builds the whole answer of one endpoint.
pub trait Whole: Send {
    /// What it becomes.
    type Answer: Serialize;

    /// Takes an event before the last.
    fn push(&mut self, event: GenerateEvent);

    /// The answer; `None` if a choice did not finish, which is the node's fault.
    fn finish(self, summary: &Summary) -> Option<Self::Answer>;
}

/// Appends one server-sent event.
pub fn push_data<T: Serialize>(out: &mut String, value: &T) {
    out.push_str("data: ");
    // JSON of plain values always serialises, and never holds a line break.
    out.push_str(&serde_json::to_string(value).expect("plain values serialise"));
    out.push_str("\n\n");
}

/// Appends one server-sent event with a name.
pub fn push_event<T: Serialize>(out: &mut String, name: &str, value: &T) {
    out.push_str("event: ");
    out.push_str(name);
    out.push('\n');
    push_data(out, value);
}

/// Appends the end of a stream of chunks.
pub fn push_done(out: &mut String) {
    out.push_str("data: [DONE]\n\n");
}

/// Appends a comment, which clients skip. Line breaks would end it and start something else. No empty line
/// stands behind it: there, some clients see an event without data once one had an id.
pub fn push_comment(out: &mut String, text: &str) {
    out.push_str(": ");
    out.extend(text.chars().map(|c| if c.is_control() { ' ' } else { c }));
    out.push('\n');
}

/// Appends a sign of life as Anthropic's clients read it, and why the answer waits.
pub fn push_ping(waiting_for: Option<&str>, out: &mut String) {
    if let Some(reason) = waiting_for {
        push_comment(out, reason);
    }
    push_event(out, MessageEvent::Ping.name(), &MessageEvent::Ping);
}
