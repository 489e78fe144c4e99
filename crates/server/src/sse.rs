//! A streamed answer: server-sent events, each written as soon as it is there.
//!
//! While the request waits the client sees why, as comment lines (`: loading 37 %`). A failure after the headers
//! is an `error` event with the body that would have been the answer; then the stream ends, without `[DONE]`.

use std::convert::Infallible;

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::Response;
use bytes::Bytes;
use exo_api::{GenerateError, GenerateEvent};
use futures_util::{Stream, stream};
use tokio::time::{Duration, Instant};

use crate::encode::{Chunks, push_comment, push_data};
use crate::errors::ApiError;
use crate::source::{Heard, Source};

/// Waits until it is clear what the status code is: until the request starts or fails, but no longer than
/// `headers_after`. The first event after the queue comes back with the source.
pub async fn open(
    source: &mut Source,
    headers_after: Duration,
) -> Result<Option<GenerateEvent>, GenerateError> {
    let until = Instant::now() + headers_after;
    loop {
        match source.next(until).await {
            Heard::Event(GenerateEvent::Queued { .. }) => {}
            Heard::Event(event) => return Ok(Some(event)),
            Heard::Failed(error) => return Err(error),
            Heard::Quiet => return Ok(None),
        }
    }
}

/// The answer that streams `first` and then the rest of `source`.
pub fn respond(
    source: Source,
    first: Option<GenerateEvent>,
    chunks: impl Chunks,
    keep_alive_every: Duration,
) -> Response {
    let mut writer = Writer { source, chunks, keep_alive_every, state: State::Running };
    let begin = match first {
        Some(event) => writer.write(event),
        None => writer.comment(),
    };
    event_stream(stream::unfold((Some(begin), writer), |(begin, mut writer)| async move {
        let text = match begin.filter(|b| !b.is_empty()) {
            Some(begin) => begin,
            None => writer.next().await?,
        };
        Some((text, (None, writer)))
    }))
}

/// An answer made of server-sent events.
pub fn event_stream(events: impl Stream<Item = String> + Send + 'static) -> Response {
    use futures_util::StreamExt;
    let body = Body::from_stream(events.map(|text| Ok::<_, Infallible>(Bytes::from(text))));
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // nginx would gather events otherwise.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

#[derive(PartialEq)]
enum State {
    Running,
    Ended,
}

struct Writer<C> {
    source: Source,
    chunks: C,
    keep_alive_every: Duration,
    state: State,
}

impl<C: Chunks> Writer<C> {
    /// The next text to send, never empty; `None` at the end.
    async fn next(&mut self) -> Option<String> {
        while self.state == State::Running {
            let text = match self.source.next(Instant::now() + self.keep_alive_every).await {
                Heard::Quiet => self.comment(),
                Heard::Event(event) => self.write(event),
                Heard::Failed(error) => self.fail(error),
            };
            if !text.is_empty() {
                return Some(text);
            }
        }
        None
    }

    fn comment(&self) -> String {
        let mut out = String::new();
        push_comment(&mut out, self.source.waiting_for.as_deref().unwrap_or("keep-alive"));
        out
    }

    fn write(&mut self, event: GenerateEvent) -> String {
        if matches!(event, GenerateEvent::Queued { .. }) {
            return self.comment();
        }
        let mut out = String::new();
        let done = matches!(event, GenerateEvent::Done(_));
        self.chunks.push(event, &mut out);
        if done {
            out.push_str("data: [DONE]\n\n");
            self.state = State::Ended;
        }
        out
    }

    fn fail(&mut self, error: GenerateError) -> String {
        self.state = State::Ended;
        let mut out = "event: error\n".to_owned();
        push_data(&mut out, &ApiError::from(error).body());
        out
    }
}
