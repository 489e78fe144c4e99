//! The life of one request as this crate watches it: the node's stream, with a bound on silence and a net
//! under panics. Dropping it drops the node's stream and so cancels the request.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use exo_api::{GenerateError, GenerateEvent, GenerateRequest, GenerateStream};
use exo_types::RequestId;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::dialect::Dialect;
use crate::errors::ApiError;
use crate::requests::Tracked;

/// What is later than it was asked for by so much was not merely delayed.
pub const STILL_MIN: Duration = Duration::from_secs(5);

/// The events of one request.
pub struct Source {
    stream: GenerateStream,
    tracked: Tracked,
    dialect: Dialect,
    silence_max: Duration,
    /// Whether the node has accepted the request: until then it may be refused.
    has_begun: Arc<AtomicBool>,
    /// Cancelled when the server has waited long enough for answers to end.
    closing: CancellationToken,
    /// Under which id another member may have a copy of the request.
    resumable: Option<RequestId>,
    /// The last sign of life: the start of the request, and every event but `Queued`.
    heard: Instant,
    /// Why it waits, as last told.
    pub waiting_for: Option<String>,
    ended: bool,
}

/// What a look at the source gave.
pub enum SourceEvent {
    /// The next event.
    Event(GenerateEvent),
    /// The request failed; nothing follows.
    Failed(ApiError),
    /// Nothing yet.
    Quiet,
}

impl Source {
    /// Starts `request` on the first look.
    pub fn new(app: &App, dialect: Dialect, request: GenerateRequest) -> Self {
        let (facade, tracked) = (app.facade.clone(), app.requests.track(&request));
        let resumable = request.resumable.is_some().then_some(request.request);
        // Starting is part of the stream, so that a node that ponders before it accepts is bounded like one
        // that ponders afterwards, and a client that leaves meanwhile cancels it.
        let begun = Arc::<AtomicBool>::default();
        let has_begun = begun.clone();
        let start = async move {
            let stream = facade.generate(request).await;
            begun.store(true, Ordering::Relaxed);
            stream
        };
        Self {
            stream: Box::pin(stream::once(start).try_flatten()),
            tracked,
            dialect,
            silence_max: app.options.silence_max,
            has_begun,
            closing: app.closing.clone(),
            resumable,
            heard: Instant::now(),
            waiting_for: None,
            ended: false,
        }
    }

    /// Whether the node has accepted the request, whenever it is at work on it.
    pub fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Relaxed)
    }

    /// The next event, waiting at most until `until`. After a failure or `Done` every look fails.
    pub async fn next(&mut self, until: Instant) -> SourceEvent {
        if self.ended {
            return self.end(GenerateError::Internal { message: "the answer has ended".to_owned() });
        }
        let (asked_at, silent) = (Instant::now(), self.heard + self.silence_max);
        let due = until.min(silent).max(asked_at);
        let look = AssertUnwindSafe(self.stream.next()).catch_unwind();
        let looked = tokio::select! {
            biased;
            () = self.tracked.cancelled.cancelled() => return self.fail(ApiError::cancelled()),
            () = self.closing.cancelled() => return self.fail(ApiError::shutting_down(self.resumable)),
            looked = tokio::time::timeout_at(due, look) => looked,
        };
        // A process that slept, or was stopped, has heard nobody meanwhile.
        let still = Instant::now().saturating_duration_since(due);
        if still >= STILL_MIN {
            self.heard += still;
        }
        let silent = self.heard + self.silence_max;
        let failure = match looked {
            Err(_) if Instant::now() < silent => return SourceEvent::Quiet,
            Err(_) => {
                let waited_ms = u64::try_from(self.silence_max.as_millis()).unwrap_or(u64::MAX);
                let reason = self.waiting_for.clone().unwrap_or_else(|| "the node is silent".to_owned());
                GenerateError::Deadline { waited_ms, reason }
            }
            Ok(Err(_panic)) => GenerateError::Internal { message: "a panic while answering".to_owned() },
            Ok(Ok(None)) => {
                GenerateError::Internal { message: "the answer ended without its end".to_owned() }
            }
            Ok(Ok(Some(Err(error)))) => error,
            Ok(Ok(Some(Ok(event)))) => return self.take(event),
        };
        self.end(failure)
    }

    fn take(&mut self, event: GenerateEvent) -> SourceEvent {
        self.tracked.take(&event);
        match &event {
            // Why one waits may be told by whoever wants; only the node's own watch over the request puts the
            // bound off.
            GenerateEvent::Queued { reason } => self.waiting_for = Some(reason.clone()),
            GenerateEvent::Done(_) => self.ended = true,
            GenerateEvent::Watched => self.heard = Instant::now(),
            _ => {
                self.heard = Instant::now();
                self.waiting_for = None;
            }
        }
        SourceEvent::Event(event)
    }

    /// Whether another member may have a copy of the request, which ends when this is dropped.
    pub fn may_have_copy(&self) -> bool {
        self.resumable.is_some()
    }

    /// Cancelled when the server has waited long enough for answers to end.
    pub fn closing(&self) -> CancellationToken {
        self.closing.clone()
    }

    /// Ends the request because of what this crate found, which comes back.
    pub fn give_up(&mut self, error: ApiError) -> ApiError {
        self.ended = true;
        self.tracked.failed(&error);
        // The slot is freed now, not when the client has read the error.
        self.stream = Box::pin(stream::empty());
        error
    }

    fn end(&mut self, failure: GenerateError) -> SourceEvent {
        self.fail(ApiError::of(self.dialect, failure))
    }

    fn fail(&mut self, error: ApiError) -> SourceEvent {
        SourceEvent::Failed(self.give_up(error))
    }
}
