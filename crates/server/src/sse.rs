//! A streamed answer: server-sent events, each written as soon as it is there.
//!
//! A task takes the node's events as they come, whether or not the client reads, so that everything that
//! waits for a client is in this crate's hands and counted. A client that falls too far behind loses its
//! request; one that leaves ends it, unless it has asked that its answer outlives it (`outlive`).
//!
//! While the request waits the client sees why, as comment lines (`: loading 37 %`). A failure after the
//! headers is an event of the dialect that says what the body would have said; then the stream ends.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::Response;
use bytes::Bytes;
use exo_api::GenerateEvent;
use futures_util::{FutureExt, Stream, stream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Duration, Instant};

use crate::app::App;
use crate::backlog::Backlog;
use crate::encode::{Chunks, EVENT_STREAM};
use crate::errors::ApiError;
use crate::outlive::OutlivingAnswer;
use crate::resumed::{Had, Positions, mark};
use crate::source::{Source, SourceEvent};
use crate::ticket::Ticket;

/// How often the writer looks whether the client has read.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// And at least, behind the end of an answer.
const LOOK_EVERY_MAX: Duration = Duration::from_millis(250);

/// While the node has not accepted a request, its prompt and its schemas are looked at, and the status is
/// open; some clients wait no longer for it.
const ACCEPT_MAX: Duration = Duration::from_secs(30);
/// How often is looked whether it has.
const ACCEPT_POLL: Duration = Duration::from_millis(50);

/// For so long a client that reads slowly has its request behind the end of its answer: while it lacks some
/// of it, another node may have to go on with it.
const READ_WITHIN: Duration = Duration::from_secs(60);

/// Waits until it is clear what the status code is: until the request starts or fails, but no longer than
/// `headers_after` once the node has accepted it. The first event after the queue comes back with the source.
pub async fn open(source: &mut Source, headers_after: Duration) -> Result<Option<GenerateEvent>, ApiError> {
    let latest = Instant::now() + ACCEPT_MAX;
    let mut until = Instant::now() + headers_after;
    loop {
        let look = if source.has_begun() { until } else { Instant::now() + ACCEPT_POLL };
        match source.next(look).await {
            SourceEvent::Quiet if !source.has_begun() && Instant::now() < latest => {
                until = Instant::now() + headers_after;
            }
            SourceEvent::Quiet if Instant::now() < until => {}
            SourceEvent::Event(GenerateEvent::Queued { .. } | GenerateEvent::Watched) => {}
            SourceEvent::Event(event) => return Ok(Some(event)),
            SourceEvent::Failed(error) => return Err(error),
            SourceEvent::Quiet => return Ok(None),
        }
    }
}

/// The answer that streams `first` and then the rest of `source`.
pub fn respond(
    app: &Arc<App>,
    source: Source,
    first: Option<GenerateEvent>,
    chunks: impl Chunks,
    ticket: Ticket,
) -> Response {
    let (content_type, header) = (chunks.content_type(), ticket.header.clone());
    let (unread, mut texts) = mpsc::unbounded_channel();
    let sink = Sink::Reader { unread: unread.clone(), backlog: app.backlog() };
    let mut writer = Writer::new(app, source, chunks, ticket, sink);
    app.streams.spawn(async move {
        let panicked = tokio::select! {
            // The client left. Dropping the source cancels the request.
            () = unread.closed() => None,
            panicked = caught(writer.run(first)) => panicked,
        };
        if let Some(error) = panicked {
            writer.fail(error);
        }
        drop(unread);
        writer.until_read().await;
    });
    with_ticket(streamed(content_type, stream::poll_fn(move |cx| texts.poll_recv(cx))), header)
}

/// With what a client shows to go on with the answer elsewhere.
pub fn with_ticket(mut response: Response, header: Option<HeaderValue>) -> Response {
    if let Some(header) = header {
        response.headers_mut().insert("exo-resume", header);
    }
    response
}

/// The events of an answer that outlives its readers, behind those that this one has had.
pub fn read(app: &App, answer: &Arc<OutlivingAnswer>, after: &Positions) -> Result<Response, ApiError> {
    Ok(event_stream(answer.read(after, app.options.keep_alive_every)?))
}

/// Makes an answer whoever reads it, from this moment on, and forgets it a while after its end. What comes
/// back when it is clear what the status code is, is its first reader: a client that does not wait for it
/// finds the answer all the same, and a refusal as its only event.
pub async fn outlive(
    app: &Arc<App>,
    source: Source,
    chunks: impl Chunks,
    ticket: Ticket,
    answer: Arc<OutlivingAnswer>,
) -> Result<Response, ApiError> {
    let header = ticket.header.clone();
    let mut writer = Writer::new(app, source, chunks, ticket, Sink::Kept(answer.clone()));
    let (opened, is_open) = oneshot::channel();
    let mut opened = Some(opened);
    let (owner, kept) = (app.clone(), answer.clone());
    app.streams.spawn(async move {
        let ending = EndWhenDropped(kept.clone());
        // When the server has waited long enough for answers, their sources end them, with a word to whoever
        // reads.
        if let Some(error) = caught(writer.open(owner.options.stream_headers_after, &mut opened)).await {
            writer.fail(error.clone());
            tell(&mut opened, Err(error));
        }
        // The slot is free before the answer is. The copy of a whole one outlives its end here.
        if let Some(source) = writer.into_whole() {
            kept.hold_copy(Box::new(source));
        }
        drop(ending);
        tokio::select! {
            () = owner.stopping.cancelled() => {}
            () = owner.outliving.forget_later(kept) => {}
        }
    });
    let ending = || ApiError::internal("the node is shutting down");
    is_open.await.map_err(|_| ending())??;
    Ok(with_ticket(read(app, &answer, &Positions::default())?, header))
}

/// Says what the status code is, once. Whoever asked may be gone: then no one hears it here.
fn tell(opened: &mut Option<oneshot::Sender<Result<(), ApiError>>>, status: Result<(), ApiError>) {
    if let Some(opened) = opened.take() {
        drop(opened.send(status));
    }
}

/// Ends an answer even if its writer panics again while it says so: its readers must not wait for ever.
struct EndWhenDropped(Arc<OutlivingAnswer>);

impl Drop for EndWhenDropped {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Writes an answer; the error that ends it if that panics.
async fn caught(writing: impl Future<Output = ()>) -> Option<ApiError> {
    AssertUnwindSafe(writing).catch_unwind().await.err().map(|_panic| {
        tracing::error!("a panic while an answer was written");
        ApiError::internal("a panic while answering; the node goes on")
    })
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
    /// All of the answer is said.
    Whole,
    /// It failed.
    Ended,
}

struct Writer<C> {
    source: Source,
    chunks: C,
    keep_alive_every: Duration,
    write_timeout: Duration,
    state: State,
    sink: Sink,
    /// How far the answer is, where it can go on elsewhere.
    positions: Option<Positions>,
    /// Whether the last event says so.
    is_marked: bool,
    /// What the client had before it came here.
    had: Positions,
}

/// Where events go.
enum Sink {
    /// To one connection, counted until it has taken them.
    Reader { unread: mpsc::UnboundedSender<Bytes>, backlog: Backlog },
    /// To whoever reads.
    Kept(Arc<OutlivingAnswer>),
}

impl Sink {
    fn unread_bytes(&self) -> usize {
        match self {
            Self::Reader { backlog, .. } => backlog.unread_bytes(),
            Self::Kept(_) => 0,
        }
    }
}

impl<C: Chunks> Writer<C> {
    fn new(app: &App, source: Source, chunks: C, ticket: Ticket, sink: Sink) -> Self {
        let (keep_alive_every, write_timeout) = (app.options.keep_alive_every, app.options.write_timeout);
        let Ticket { positions, had: Had { positions: had, .. }, .. } = ticket;
        let state = State::Running;
        Self {
            source,
            chunks,
            keep_alive_every,
            write_timeout,
            state,
            sink,
            positions,
            is_marked: false,
            had,
        }
    }

    /// Tells what the status code is, as [`open`] finds it, and sends all that follows.
    async fn open(
        &mut self,
        headers_after: Duration,
        opened: &mut Option<oneshot::Sender<Result<(), ApiError>>>,
    ) {
        match open(&mut self.source, headers_after).await {
            Ok(first) => {
                tell(opened, Ok(()));
                self.run(first).await;
            }
            Err(error) => {
                self.fail(error.clone());
                tell(opened, Err(error));
            }
        }
    }

    /// Sends `first` and what follows, to the end.
    async fn run(&mut self, first: Option<GenerateEvent>) {
        let begin = match first {
            Some(event) => self.write(event),
            None => self.comment(),
        };
        self.send(begin);
        let mut written = Instant::now();
        while self.state == State::Running {
            let text = match self.source.next(written + self.keep_alive_every).await {
                SourceEvent::Quiet => self.sign_of_life(&mut written),
                SourceEvent::Event(event) => {
                    let is_end = matches!(event, GenerateEvent::Finished { .. } | GenerateEvent::Done(_));
                    let text = self.write(event);
                    if is_end {
                        self.wait_for_reader(text.len()).await;
                    }
                    match text.is_empty() && written.elapsed() >= self.keep_alive_every {
                        // Of a thought that is not shown, or a call that is told as a whole, nothing is
                        // written for minutes.
                        true => self.sign_of_life(&mut written),
                        false => text,
                    }
                }
                SourceEvent::Failed(error) => {
                    self.fail(error);
                    return;
                }
            };
            if !text.is_empty() {
                written = Instant::now();
            }
            self.send(text);
            if matches!(&self.sink, Sink::Reader { backlog, .. } if backlog.is_behind()) {
                // A node that is always ahead must not keep the connection from writing.
                tokio::task::yield_now().await;
            }
        }
    }

    /// The end of an answer may say again all that was said: no sign that its client reads too slowly. It
    /// gets as long as one write may take.
    async fn wait_for_reader(&mut self, bytes: usize) {
        let Sink::Reader { backlog, .. } = &self.sink else { return };
        let until = Instant::now() + self.write_timeout;
        while !backlog.takes(bytes) && Instant::now() < until {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn send(&mut self, text: String) {
        if text.is_empty() {
            return;
        }
        match &self.sink {
            Sink::Reader { unread, backlog } => match backlog.hold(text.into()) {
                // A client that left ends this task.
                Ok(text) => drop(unread.send(text)),
                Err(refusal) => self.fail(refusal),
            },
            Sink::Kept(answer) => {
                let positions = self.positions.clone().filter(|_| self.is_marked);
                answer.push(text, positions);
            }
        }
    }

    /// What keeps the connection alive that has had nothing for a while; what waits to be read does so by
    /// itself.
    fn sign_of_life(&self, written: &mut Instant) -> String {
        *written = Instant::now();
        if self.sink.unread_bytes() > 0 { String::new() } else { self.comment() }
    }

    /// A sign of life with the reason why nothing comes. Of an answer that is kept, its readers make their
    /// own.
    fn comment(&self) -> String {
        if let Sink::Kept(answer) = &self.sink {
            answer.set_wait_reason(self.source.waiting_for.as_deref());
            return String::new();
        }
        let mut out = String::new();
        self.chunks.keep_alive(self.source.waiting_for.as_deref(), &mut out);
        out
    }

    fn write(&mut self, event: GenerateEvent) -> String {
        if matches!(event, GenerateEvent::Queued { .. } | GenerateEvent::Watched) {
            return self.comment();
        }
        let mut out = String::new();
        self.is_marked = false;
        let done = matches!(event, GenerateEvent::Done(_));
        let is_had = self.had.covers(&event);
        let is_mark = self.positions.as_mut().is_some_and(|positions| positions.advance(&event));
        self.chunks.push(event, &mut out);
        if is_had {
            out.clear();
        }
        if let Some(positions) = self.positions.as_ref().filter(|_| is_mark) {
            mark(&mut out, positions);
            self.is_marked = true;
        }
        if done {
            self.state = State::Whole;
        }
        out
    }

    /// Ends all but the request, and that as well unless its answer is whole and may have a copy elsewhere.
    fn into_whole(self) -> Option<Source> {
        let Self { source, state, .. } = self;
        (state == State::Whole && source.may_have_copy()).then_some(source)
    }

    /// Ends the request: a whole answer's when its client has taken it or has left, and not when it is
    /// computed, since the copy that another node has goes with it.
    async fn until_read(self) {
        let Self { source, chunks, state, sink, .. } = self;
        let Sink::Reader { unread, backlog } = sink else { return };
        // The body ends with the last that can add to it.
        drop((unread, chunks));
        let read = async {
            // Most have read it at once; who has not in a while is one of many slow ones.
            let mut pause = LOOK_EVERY;
            while state == State::Whole && backlog.unread_bytes() > 0 {
                tokio::time::sleep(pause).await;
                pause = (2 * pause).min(LOOK_EVERY_MAX);
            }
        };
        let closing = source.closing();
        tokio::select! {
            _ = tokio::time::timeout(READ_WITHIN, read) => {}
            () = closing.cancelled() => {}
        }
    }

    fn fail(&mut self, error: ApiError) {
        self.state = State::Ended;
        let mut out = String::new();
        self.chunks.fail(&error, &mut out);
        match &self.sink {
            Sink::Reader { unread, backlog } => drop(unread.send(backlog.hold_last(out.into()))),
            Sink::Kept(answer) => answer.push(out, None),
        }
    }
}
