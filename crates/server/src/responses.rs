//! `/v1/responses`: events to OpenAI's events and answers, and responses that are kept.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Query, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response as HttpResponse};
use exo_api::responses::{Response, ResponseDeleted, ResponseEvent, ResponseStream, ResponsesRequest};
use exo_api::{BadParam, ChatMessage, GenerateEvent, Summary};
use exo_stdx::unix_s;
use exo_types::{Principal, RequestId};

use crate::app::App;
use crate::body::{Lease, json};
use crate::dialect::Dialect;
use crate::encode::{Chunks, Whole, push_event};
use crate::errors::{ApiError, Path};
use crate::generate::{Asked, read, stream, whole};
use crate::resume::Ticket;

/// `POST /v1/responses`
pub async fn create(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Result<HttpResponse, ApiError> {
    let Asked { body: mut asked, context, mut lease, .. } =
        read(&app, id, principal, request, |body, _| Ok(ResponsesRequest::parse(body)?)).await?;
    let previous = previous(&app, principal, &asked, &mut lease)?;
    let conversation = asked.conversation(previous)?;
    let keep = asked.store.then(|| Keep { principal, conversation: conversation.clone() });
    let fold = ResponseStream::new(id.to_string(), asked.head(&id.to_string(), unix_s()));
    let streams = asked.streams;
    let request = asked.into_generate(conversation, context)?;
    let answer = Answering { fold, keep, app: app.clone(), _lease: lease };
    match streams {
        true => stream(&app, Dialect::Responses, request, answer, Ticket::none()).await,
        false => whole(&app, Dialect::Responses, request, answer).await,
    }
}

/// The conversation that the request goes on from. It takes its room as if it had come with the request, and once more for the copy
/// that is kept.
fn previous(
    app: &App,
    principal: Principal,
    asked: &ResponsesRequest,
    lease: &mut Lease,
) -> Result<Vec<ChatMessage>, ApiError> {
    let Some(id) = &asked.previous else { return Ok(Vec::new()) };
    let is_gone = || gone(id, "previous_response_id");
    lease.grow(2 * app.kept.bytes(principal, id).ok_or_else(is_gone)?)?;
    app.kept.conversation(principal, id).ok_or_else(is_gone)
}

/// `GET /v1/responses/{response}`
pub async fn get(
    State(app): State<Arc<App>>,
    Extension(principal): Extension<Principal>,
    Path(id): Path<String>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<HttpResponse, ApiError> {
    for (name, value) in query {
        // What a response has, it has in whole.
        let asks_for_nothing = name.starts_with("include") || name == "stream" && value == "false";
        if !asks_for_nothing {
            let name: String = name.chars().take(80).collect();
            let message = format!("`{name}` is not supported: a response that is kept comes whole");
            return Err(BadParam::unsupported(name, message).into());
        }
    }
    let kept = app.kept.json(principal, &id).ok_or_else(|| gone(&id, "response_id"))?;
    let kind = HeaderValue::from_static("application/json");
    Ok(([(CONTENT_TYPE, kind)], kept).into_response())
}

/// `DELETE /v1/responses/{response}`
pub async fn delete(
    State(app): State<Arc<App>>,
    Extension(principal): Extension<Principal>,
    Path(id): Path<String>,
) -> Result<HttpResponse, ApiError> {
    match app.kept.forget(principal, &id) {
        true => Ok(json(&ResponseDeleted { id, object: "response".to_owned(), deleted: true })),
        false => Err(gone(&id, "response_id")),
    }
}

fn gone(id: &str, param: &str) -> ApiError {
    let message = format!(
        "this node keeps no response `{id:.100}` for you: responses stay in the memory of the node that made them until \
         others need the room, or it restarts; send the whole conversation as `input`"
    );
    let error = ApiError::invalid(StatusCode::NOT_FOUND, "response_not_found", message);
    ApiError { param: Some(param.to_owned()), ..error }
}

/// What is kept of a request until its answer is there.
struct Keep {
    principal: Principal,
    conversation: Vec<ChatMessage>,
}

/// An answer while it is made.
struct Answering {
    fold: ResponseStream,
    keep: Option<Keep>,
    app: Arc<App>,
    /// The answer repeats what was asked, and what is kept waits for it.
    _lease: Lease,
}

impl Answering {
    fn take(&mut self, event: GenerateEvent) -> Vec<ResponseEvent> {
        let events = self.fold.push(event);
        if self.fold.is_done()
            && let Some(keep) = self.keep.take()
        {
            self.app.kept.keep(keep.principal, self.fold.response(), keep.conversation);
        }
        events
    }
}

fn push_all(events: Vec<ResponseEvent>, out: &mut String) {
    for event in events {
        push_event(out, event.body.name(), &event);
    }
}

impl Chunks for Answering {
    fn push(&mut self, event: GenerateEvent, out: &mut String) {
        push_all(self.take(event), out);
    }

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        push_all(self.fold.fail(error.code, &error.message, error.param.clone()), out);
    }
}

impl Whole for Answering {
    type Answer = Response;

    fn push(&mut self, event: GenerateEvent) {
        let _ = self.take(event);
    }

    fn finish(mut self, summary: &Summary) -> Option<Response> {
        let _ = self.take(GenerateEvent::Done(summary.clone()));
        self.fold.is_done().then(|| self.fold.response().clone())
    }
}
