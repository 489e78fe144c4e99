//! A streamed answer: server-sent events, each written as soon as it is there.
//!
//! A task takes the node's events as they come, whether or not the client reads, so that everything that waits for a
//! client is in this crate's hands and counted. A client that falls too far behind loses its request.
//!
//! While the request waits the client sees why, as comment lines (`: loading 37 %`). A failure after the headers
//! is an event of the dialect that says what the body would have said; then the stream ends.

use std::convert::Infallible;

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::Response;
use bytes::Bytes;
use exo_api::GenerateEvent;
use futures_util::{Stream, stream};
use tokio::sync::mpsc;
use tokio::time::{Duration, Instant};

use crate::app::App;
use crate::backlog::Backlog;
use crate::encode::{Chunks, EVENT_STREAM};
use crate::errors::ApiError;
use crate::resume::{Positions, Ticket, mark};
use crate::source::{Heard, Source};

/// How often the writer looks whether the client has read.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Waits until it is clear what the status code is: until the request starts or fails, but no longer than
/// `headers_after`. The first event after the queue comes back with the source.
pub async fn open(source: &mut Source, headers_after: Duration) -> Result<Option<GenerateEvent>, ApiError> {
    let until = Instant::now() + headers_after;
    loop {
        match source.next(until).await {
            Heard::Event(GenerateEvent::Queued { .. } | GenerateEvent::Watched) => {}
            Heard::Event(event) => return Ok(Some(event)),
            Heard::Failed(error) => return Err(error),
            Heard::Quiet => return Ok(None),
        }
    }
}

/// The answer that streams `first` and then the rest of `source`.
pub fn respond(
    app: &App,
    source: Source,
    first: Option<GenerateEvent>,
    chunks: impl Chunks,
    ticket: Ticket,
) -> Response {
    let (unread, mut texts) = mpsc::unbounded_channel();
    let (keep_alive_every, write_timeout) = (app.options.keep_alive_every, app.options.write_timeout);
    let (backlog, state, content_type) = (app.backlog(), State::Running, chunks.content_type());
    let Ticket { header, positions, after, .. } = ticket;
    let unread_too = unread.clone();
    let mut writer = Writer {
        source,
        chunks,
        keep_alive_every,
        write_timeout,
        state,
        backlog,
        positions,
        after,
        unread: unread_too,
    };
    app.streams.spawn(async move {
        tokio::select! {
            // The client left. Dropping the source cancels the request.
            () = unread.closed() => {}
            () = writer.run(first) => {}
        }
    });
    let mut response = streamed(content_type, stream::poll_fn(move |cx| texts.poll_recv(cx)));
    if let Some(header) = header {
        response.headers_mut().insert("exo-resume", header);
    }
    response
}

/// An answer made of server-sent events.
pub fn event_stream(events: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    streamed(EVENT_STREAM, events)
}

fn streamed(content_type: &'static str, events: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    use futures_util::StreamExt;
    let body = Body::from_stream(events.map(Ok::<_, Infallible>));
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
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
    write_timeout: Duration,
    state: State,
    backlog: Backlog,
    /// How far the answer is, where it can go on elsewhere.
    positions: Option<Positions>,
    /// What the client had before it came here.
    after: Positions,
    unread: mpsc::UnboundedSender<Bytes>,
}

impl<C: Chunks> Writer<C> {
    /// Sends `first` and what follows, to the end.
    async fn run(&mut self, first: Option<GenerateEvent>) {
        let begin = match first {
            Some(event) => self.write(event),
            None => self.comment(),
        };
        self.send(begin);
        while self.state == State::Running {
            let text = match self.source.next(Instant::now() + self.keep_alive_every).await {
                // What waits to be read keeps the connection alive.
                Heard::Quiet if self.backlog.unread_bytes() > 0 => continue,
                Heard::Quiet => self.comment(),
                Heard::Event(event) => {
                    let is_end = matches!(event, GenerateEvent::Finished { .. } | GenerateEvent::Done(_));
                    let text = self.write(event);
                    if is_end {
                        self.wait_for_reader(text.len()).await;
                    }
                    text
                }
                Heard::Failed(error) => {
                    self.fail(error);
                    return;
                }
            };
            self.send(text);
            if self.backlog.is_behind() {
                // A node that is always ahead must not keep the connection from writing.
                tokio::task::yield_now().await;
            }
        }
    }

    /// The end of an answer may say again all that was said: no sign that its client reads too slowly. It gets as long as one write
    /// may take.
    async fn wait_for_reader(&mut self, bytes: usize) {
        let until = Instant::now() + self.write_timeout;
        while !self.backlog.takes(bytes) && Instant::now() < until {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn send(&mut self, text: String) {
        if text.is_empty() {
            return;
        }
        match self.backlog.hold(text.into()) {
            // A client that left ends this task.
            Ok(text) => drop(self.unread.send(text)),
            Err(refusal) => self.fail(refusal),
        }
    }

    fn comment(&self) -> String {
        let mut out = String::new();
        self.chunks.keep_alive(self.source.waiting_for.as_deref(), &mut out);
        out
    }

    fn write(&mut self, event: GenerateEvent) -> String {
        if matches!(event, GenerateEvent::Queued { .. } | GenerateEvent::Watched) {
            return self.comment();
        }
        let mut out = String::new();
        let done = matches!(event, GenerateEvent::Done(_));
        let is_had = self.after.covers(&event);
        let is_mark = self.positions.as_mut().is_some_and(|positions| positions.advance(&event));
        self.chunks.push(event, &mut out);
        if is_had {
            out.clear();
        }
        if let Some(positions) = self.positions.as_ref().filter(|_| is_mark) {
            mark(&mut out, positions);
        }
        if done {
            self.state = State::Ended;
        }
        out
    }

    fn fail(&mut self, error: ApiError) {
        self.state = State::Ended;
        let mut out = String::new();
        self.chunks.fail(&error, &mut out);
        let _ = self.unread.send(self.backlog.hold_last(out.into()));
    }
}
