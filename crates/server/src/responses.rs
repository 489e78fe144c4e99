//! `/v1/responses`: events to OpenAI's events and answers, and responses that are kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response as HttpResponse;
use bytes::Bytes;
use exo_api::responses::{
    InputTokenCount, Replay, Response, ResponseDeleted, ResponseEvent, ResponseStream, ResponsesRequest,
};
use exo_api::{BadParam, ChatMessage, GenerateEvent, Summary};
use exo_types::Principal;
use futures_util::stream;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::app::App;
use crate::backlog::Collected;
use crate::body::json;
use crate::client_memory::Lease;
use crate::dialect::Dialect;
use crate::encode::{Chunks, Whole, push_event};
use crate::errors::{ApiError, Path};
use crate::generate::{self, IncomingRequest, PostedRequest, read, whole};
use crate::kept::message_bytes;
use crate::resumed::{Resumed, mark};
use crate::sse::event_stream;
use crate::ticket::{Origin, recorded};

/// `POST /v1/responses`
pub async fn create(State(app): State<Arc<App>>, posted: PostedRequest) -> Result<HttpResponse, ApiError> {
    let IncomingRequest { body, context, mut origin, lease } = read(&app, posted, read_body).await?;
    let (id, principal) = (context.request, context.principal);
    let (asked, mut lease) = body.into_request(&app, principal, lease).await?;
    let before = before(&app, principal, &asked, &mut origin, &mut lease)?;
    let RecordedRequest { request: mut asked, record } = asked;
    let conversation = asked.conversation(before)?;
    let keep = asked.store.then(|| Keep { principal, conversation: conversation.clone() });
    let mut fold = ResponseStream::new(id.to_string(), asked.head(&id.to_string(), origin.created));
    let streams = asked.streams;
    let request = asked.into_generate(conversation, context)?;
    let ticket = origin.ticket(&app, Resumed::Responses, &request, record)?;
    if let Some(last) = ticket.had.event {
        fold = fold.behind(last);
    }
    let answer = Answering { fold, keep, has_ids: ticket.has_ids(), app: app.clone(), _lease: lease };
    match streams && !ticket.is_whole {
        true => generate::stream(&app, Dialect::Responses, request, answer, ticket).await,
        false => whole(&app, Dialect::Responses, request, answer, ticket).await,
    }
}

/// `POST /v1/responses/input_tokens`
pub async fn count_input(
    State(app): State<Arc<App>>,
    posted: PostedRequest,
) -> Result<HttpResponse, ApiError> {
    let IncomingRequest { body, context, mut origin, lease } = read(&app, posted, read_body).await?;
    let (asked, mut lease) = body.into_request(&app, context.principal, lease).await?;
    let before = before(&app, context.principal, &asked, &mut origin, &mut lease)?;
    let mut asked = asked.request;
    let conversation = asked.conversation(before)?;
    let count = asked.into_count(conversation, context)?;
    let answer = app.tokens(Dialect::Responses, count).await?;
    let (object, input_tokens) = ("response.input_tokens".to_owned(), answer.tokens.len() as u32);
    Ok(json(&InputTokenCount { object, input_tokens }))
}

/// A request, and what another node needs of it.
struct RecordedRequest {
    request: ResponsesRequest,
    record: Option<Vec<u8>>,
}

impl RecordedRequest {
    /// From a body, and its text.
    fn parse(body: Value, text: &str) -> Result<Self, ApiError> {
        let request = ResponsesRequest::parse(body)?;
        Ok(Self { record: recorded(request.streams, text), request })
    }
}

/// A body, read as far as it says everything itself.
enum Body {
    Whole(Box<RecordedRequest>),
    /// Some of its items are of responses that are kept.
    Refers(Value),
}

impl Body {
    /// The request, with all that it refers to.
    async fn into_request(
        self,
        app: &Arc<App>,
        principal: Principal,
        mut lease: Lease,
    ) -> Result<(RecordedRequest, Lease), ApiError> {
        let body = match self {
            Self::Whole(asked) => return Ok((*asked, lease)),
            Self::Refers(body) => body,
        };
        // Responses that are kept may be megabytes, too.
        let owner = app.clone();
        let read = move || {
            let body = with_items(&owner, principal, body, &mut lease)?;
            let text = body.to_string();
            Ok::<_, ApiError>((RecordedRequest::parse(body, &text)?, lease))
        };
        app.compute.run(app.options.body_timeout, read).await?
    }
}

const REFERENCE: &str = "item_reference";

fn read_body(body: Value, text: &str) -> Result<Body, ApiError> {
    let refers = |items: &Vec<Value>| items.iter().any(|item| item["type"] == REFERENCE);
    match body.get("input").and_then(Value::as_array).is_some_and(refers) {
        true => Ok(Body::Refers(body)),
        false => Ok(Body::Whole(Box::new(RecordedRequest::parse(body, text)?))),
    }
}

/// The body with the items that it names in their places. They are found by their ids, which are made of
/// their response's.
fn with_items(
    app: &App,
    principal: Principal,
    mut body: Value,
    lease: &mut Lease,
) -> Result<Value, ApiError> {
    let mut responses = BTreeMap::<String, Value>::new();
    let items = body.get_mut("input").and_then(Value::as_array_mut).into_iter().flatten();
    for (i, item) in items.enumerate().filter(|(_, item)| item["type"] == REFERENCE) {
        let param = format!("input[{i}].id");
        let id = item["id"].as_str().ok_or_else(|| BadParam::missing(&param))?.to_owned();
        let is_gone = || gone(&id, &param);
        let response = format!("resp_{}", id.split('_').nth(1).unwrap_or_default());
        if !responses.contains_key(&response) {
            lease.grow(2 * app.kept.bytes(principal, &response).ok_or_else(is_gone)?)?;
            let json = app.kept.json(principal, &response).ok_or_else(is_gone)?;
            responses.insert(response.clone(), parse_kept(&json)?);
        }
        let mut said = responses[&response]["output"].as_array().into_iter().flatten();
        let found = said.find(|said| said["id"] == *id).ok_or_else(is_gone)?.clone();
        lease.grow(found.to_string().len())?;
        *item = found;
    }
    Ok(body)
}

fn parse_kept<T: DeserializeOwned>(json: &str) -> Result<T, ApiError> {
    serde_json::from_str(json).map_err(|_| ApiError::internal("a kept response is no JSON"))
}

/// The conversation that the request goes on from. It takes its room as if it had come with the request, once
/// more for the copy that is kept, and of a stream for that which another node gets.
fn before(
    app: &App,
    principal: Principal,
    asked: &RecordedRequest,
    origin: &mut Origin,
    lease: &mut Lease,
) -> Result<Vec<ChatMessage>, ApiError> {
    let copies = if asked.record.is_some() { 3 } else { 2 };
    if origin.is_resumed() {
        // Only the node that is lost kept it.
        lease.grow(copies * origin.before.iter().map(message_bytes).sum::<usize>())?;
        return Ok(origin.before.clone());
    }
    let Some(id) = &asked.request.previous else { return Ok(Vec::new()) };
    let is_gone = || gone(id, "previous_response_id");
    lease.grow(copies * app.kept.bytes(principal, id).ok_or_else(is_gone)?)?;
    let before = app.kept.conversation(principal, id).ok_or_else(is_gone)?;
    if asked.record.is_some() {
        origin.before = before.clone();
    }
    Ok(before)
}

/// The events of a response that is kept, behind the one of the number `last`: those that it came in, whether
/// or not it was streamed, so that who has some of them lacks none and gets none twice.
pub async fn replay(
    app: &App,
    principal: Principal,
    id: &str,
    last: Option<&str>,
) -> Result<HttpResponse, ApiError> {
    let after = Resumed::Responses.had(last)?.event;
    let is_gone = || gone(id, "response_id");
    let mut held = Collected::new(&app.room);
    // As JSON and parsed, then in its items and once more in the event that is written.
    held.add(4 * app.kept.bytes(principal, id).ok_or_else(is_gone)?)?;
    let (whole, deltas) = app.kept.replayed(principal, id).ok_or_else(is_gone)?;
    let parse = move || Ok::<_, ApiError>(Replay::new(parse_kept(&whole)?, deltas, after));
    let steps = app.compute.run(app.options.body_timeout, parse).await??;
    let texts = steps.filter(|events| !events.is_empty()).map(move |events| {
        // The room is taken until the client has read to the end.
        let _ = &held;
        let mut out = String::new();
        for event in &events {
            push(event, &mut out);
            mark(&mut out, &event.sequence_number);
        }
        Bytes::from(out)
    });
    Ok(event_stream(stream::iter(texts)))
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

/// No response of that id is kept.
pub fn gone(id: &str, param: &str) -> ApiError {
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
    /// Whether events have their numbers as ids.
    has_ids: bool,
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
            let (response, deltas) = (self.fold.response(), self.fold.deltas());
            self.app.kept.keep(keep.principal, response, deltas, keep.conversation);
        }
        events
    }
}

fn push(event: &ResponseEvent, out: &mut String) {
    push_event(out, event.body.name(), event);
}

impl Chunks for Answering {
    fn push(&mut self, event: GenerateEvent, out: &mut String) {
        for event in self.take(event) {
            push(&event, out);
            if self.has_ids {
                mark(out, &event.sequence_number);
            }
        }
    }

    /// Without ids: another node has other events in their place.
    fn fail(&mut self, error: &ApiError, out: &mut String) {
        self.fold.fail(error.code, &error.message).iter().for_each(|event| push(event, out));
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
