//! A checked request to the node, and its answer back: what every dialect's handler ends in.

use std::sync::Arc;

use axum::response::Response;
use exo_api::{GenerateEvent, GenerateRequest, RequestContext};
use exo_types::{Principal, RequestId};
use tokio::time::Instant;

use crate::app::App;
use crate::body::json;
use crate::dialect::Dialect;
use crate::encode::{Chunks, Head, Whole};
use crate::errors::ApiError;
use crate::resume::Ticket;
use crate::source::{Heard, Source};
use crate::sse;

/// What the server adds to a request.
pub fn context(app: &App, request: RequestId, principal: Principal, seed: u64) -> RequestContext {
    RequestContext { request, principal, seed, queue_wait_max: app.options.queue_wait_max }
}

/// What stands at the top of its answers.
pub fn head(request: &GenerateRequest, created: u64) -> Head {
    Head {
        request: request.request.to_string(),
        created,
        model: request.model.clone(),
        choices: request.answers(),
    }
}

/// The answer, as it is made.
pub async fn stream(
    app: &Arc<App>,
    dialect: Dialect,
    mut request: GenerateRequest,
    chunks: impl Chunks,
    mut ticket: Ticket,
) -> Result<Response, ApiError> {
    request.resumable = ticket.resumable.take();
    let mut source = Source::new(app, dialect, request);
    let first = sse::open(&mut source, app.options.stream_headers_after).await?;
    Ok(sse::respond(app, source, first, chunks, ticket))
}

/// The answer, when it is complete.
pub async fn whole(
    app: &App,
    dialect: Dialect,
    request: GenerateRequest,
    mut whole: impl Whole,
) -> Result<Response, ApiError> {
    let mut source = Source::new(app, dialect, request);
    loop {
        match source.next(Instant::now() + app.options.silence_max).await {
            Heard::Event(GenerateEvent::Done(summary)) => {
                let answer = whole.finish(&summary);
                return answer
                    .map(|a| json(&a))
                    .ok_or_else(|| ApiError::internal("the answer is done, but not all of its choices are"));
            }
            Heard::Event(event) => whole.push(event),
            Heard::Failed(error) => return Err(error),
            Heard::Quiet => {}
        }
    }
}
