//! The life of one request as this crate watches it: the node's stream, with a bound on silence and a net under
//! panics. Dropping it drops the node's stream and so cancels the request.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use exo_api::{GenerateError, GenerateEvent, GenerateRequest, GenerateStream};
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use tokio::time::Instant;

use crate::app::App;
use crate::dialect::Dialect;
use crate::errors::ApiError;
use crate::requests::Tracked;

/// The events of one request.
pub struct Source {
    stream: GenerateStream,
    tracked: Tracked,
    dialect: Dialect,
    silence_max: Duration,
    /// The last sign of life: the start of the request, and every event but `Queued`.
    heard: Instant,
    /// Why it waits, as last told.
    pub waiting_for: Option<String>,
    ended: bool,
}

/// What a look at the source gave.
pub enum Heard {
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
        // Starting is part of the stream, so that a node that ponders before it accepts is bounded like one that
        // ponders afterwards, and a client that leaves meanwhile cancels it.
        let start = async move { facade.generate(request).await };
        Self {
            stream: Box::pin(stream::once(start).try_flatten()),
            tracked,
            dialect,
            silence_max: app.options.silence_max,
            heard: Instant::now(),
            waiting_for: None,
            ended: false,
        }
    }

    /// The next event, waiting at most until `until`. After a failure or `Done` every look fails.
    pub async fn next(&mut self, until: Instant) -> Heard {
        if self.ended {
            return self.end(GenerateError::Internal { message: "the answer has ended".to_owned() });
        }
        let silent = self.heard + self.silence_max;
        let look = AssertUnwindSafe(self.stream.next()).catch_unwind();
        let looked = tokio::select! {
            biased;
            () = self.tracked.cancelled.cancelled() => return self.fail(ApiError::cancelled()),
            looked = tokio::time::timeout_at(until.min(silent), look) => looked,
        };
        let failure = match looked {
            Err(_) if Instant::now() < silent => return Heard::Quiet,
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

    fn take(&mut self, event: GenerateEvent) -> Heard {
        self.tracked.take(&event);
        match &event {
            // Why one waits may be told by whoever wants; only the node's own watch over the request puts the bound off.
            GenerateEvent::Queued { reason } => self.waiting_for = Some(reason.clone()),
            GenerateEvent::Done(_) => self.ended = true,
            GenerateEvent::Watched => self.heard = Instant::now(),
            _ => {
                self.heard = Instant::now();
                self.waiting_for = None;
            }
        }
        Heard::Event(event)
    }

    fn end(&mut self, failure: GenerateError) -> Heard {
        self.fail(ApiError::of(self.dialect, failure))
    }

    fn fail(&mut self, error: ApiError) -> Heard {
        self.ended = true;
        self.tracked.failed(&error);
        // The slot is freed now, not when the client has read the error.
        self.stream = Box::pin(stream::empty());
        Heard::Failed(error)
    }
}
