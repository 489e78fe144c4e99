//! A checked request to the node, and its answer back: what every dialect's handler ends in.

use std::sync::Arc;

use axum::Extension;
use axum::extract::Request;
use axum::response::Response;
use exo_api::{GenerateEvent, GenerateRequest, RequestContext};
use exo_types::{Principal, RequestId};
use serde_json::Value;
use tokio::time::Instant;

use crate::app::App;
use crate::backlog::Collected;
use crate::body::{json, read_json};
use crate::client_memory::Lease;
use crate::dialect::Dialect;
use crate::encode::{Chunks, Head, Whole};
use crate::errors::ApiError;
use crate::source::{Source, SourceEvent};
use crate::sse;
use crate::ticket::{Origin, Ticket};

/// A request as it comes to its handler: its id, its user, and what was posted.
pub type PostedRequest = (Extension<RequestId>, Extension<Principal>, Request);

/// A request as its handler begins with it.
pub struct IncomingRequest<T> {
    /// The body, parsed.
    pub body: T,
    /// What the server adds to it.
    pub context: RequestContext,
    /// Where an answer that another node began comes from.
    pub origin: Origin,
    /// For the room that the body takes: whole answers hold it, and streams until their headers, when the
    /// prompt is one of tokens.
    pub lease: Lease,
}

/// Reads a request.
pub async fn read<T: Send + 'static>(
    app: &App,
    (Extension(id), Extension(principal), request): PostedRequest,
    parse: fn(Value, &str) -> Result<T, ApiError>,
) -> Result<IncomingRequest<T>, ApiError> {
    let (parts, body) = request.into_parts();
    let origin = Origin::of(&parts)?;
    let queue_wait_max = app.options.queue_wait_max;
    let leaves_out_hosted_tools = app.options.leave_out_hosted_tools;
    let context =
        RequestContext { request: id, principal, seed: origin.seed, queue_wait_max, leaves_out_hosted_tools };
    let (body, lease) = read_json(&parts.headers, body, app, parse).await?;
    Ok(IncomingRequest { body, context, origin, lease })
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
    if let Some(answer) = ticket.outliving.take() {
        return sse::outlive(app, source, chunks, ticket, answer).await;
    }
    let first = sse::open(&mut source, app.options.stream_headers_after).await?;
    Ok(sse::respond(app, source, first, chunks, ticket))
}

/// The answer, when it is complete.
pub async fn whole(
    app: &App,
    dialect: Dialect,
    mut request: GenerateRequest,
    mut whole: impl Whole,
    ticket: Ticket,
) -> Result<Response, ApiError> {
    request.resumable = ticket.resumable;
    let mut source = Source::new(app, dialect, request);
    let mut collected = Collected::new(&app.room);
    loop {
        match source.next(Instant::now() + app.options.silence_max).await {
            SourceEvent::Event(GenerateEvent::Done(summary)) => {
                let answer = whole.finish(&summary);
                return answer
                    .map(|a| json(&a))
                    .ok_or_else(|| ApiError::internal("the answer is done, but not all of its choices are"));
            }
            SourceEvent::Event(event) => {
                if let GenerateEvent::Delta(delta) = &event {
                    collected.add(delta.bytes()).map_err(|refusal| source.give_up(refusal))?;
                }
                whole.push(event);
            }
            SourceEvent::Failed(error) => return Err(error),
            SourceEvent::Quiet => {}
        }
    }
}
