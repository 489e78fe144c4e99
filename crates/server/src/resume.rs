//! Answers that go on at another node when theirs is lost.
//!
//! The head of a streamed answer has its request's id and a secret (`exo-resume: ID.SECRET`), and each of its
//! events says how far its choices are (`id: 0:57`); those of Responses have their own numbers for that, and
//! Ollama's lines the number of tokens. Another member keeps a copy of the request; whoever shows the secret
//! gets the rest of the answer from any node, by the same handler as before, which is told what is there
//! already.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use exo_api::{BadParam, ClaimedRequest};
use exo_types::{Principal, RequestId};

use crate::app::App;
use crate::errors::{ApiError, Path};
use crate::outlive::OutlivingAnswer;
use crate::resumed::{LAST_EVENT_ID, Resumed};
use crate::ticket::{RESUME, RecordHead, Resuming, proof, request_id, secret_of};
use crate::{messages, ollama, openai, responses, sse};

/// What a client asks for who shows a secret.
struct Claim {
    secret: String,
    /// The id of the last event that it has.
    last: Option<String>,
    /// Whether the answer is to come in one piece.
    is_whole: bool,
}

impl Claim {
    /// Whether there is one.
    fn is_made(headers: &HeaderMap) -> bool {
        headers.contains_key(RESUME)
    }

    /// For the rest of a stream.
    fn of(headers: &HeaderMap) -> Result<Self, ApiError> {
        Ok(Self { secret: secret_of(headers)?, last: last_event_id(headers), is_whole: false })
    }
}

fn last_event_id(headers: &HeaderMap) -> Option<String> {
    headers.get(LAST_EVENT_ID).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

/// `GET /v1/requests/{request}`: the rest of an answer that outlives its reader, or whose node is lost.
pub async fn resume(
    State(app): State<Arc<App>>,
    Path(request): Path<String>,
    Extension(principal): Extension<Principal>,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let id = request_id(&request)?;
    let is_whole = match query.get("stream").map(String::as_str) {
        None | Some("true") => false,
        Some("false") => true,
        Some(_) => return Err(BadParam::invalid("stream", "`stream` must be true or false").into()),
    };
    go_on(app, id, principal, Claim { is_whole, ..Claim::of(&headers)? }).await
}

/// `DELETE /v1/requests/{request}`: ends an answer that outlives its reader.
pub async fn stop(
    State(app): State<Arc<App>>,
    Path(request): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let id = request_id(&request)?;
    let answer = app.outliving.find(id, &proof(&secret_of(&headers)?)).ok_or_else(|| not_found(id))?;
    // One that has ended already is what was asked for.
    app.requests.cancel(answer.request());
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// `GET /v1/responses/{response}`: one that is kept, or its events (`stream=true`, `starting_after`); for who
/// shows the secret of a stream whose node is lost, its rest, or the whole of it.
pub async fn response(
    State(app): State<Arc<App>>,
    Extension(principal): Extension<Principal>,
    Path(id): Path<String>,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let streams = query.get("stream").is_some_and(|streams| streams == "true");
    let mut after = None;
    for (name, value) in query {
        // What a response has, it has in whole.
        let asks_for_nothing = name.starts_with("include") || name == "stream" && value == "false";
        match name.as_str() {
            "stream" if streams => {}
            "starting_after" if streams => after = Some(value),
            _ if asks_for_nothing => {}
            _ => {
                let name: String = name.chars().take(80).collect();
                let message = format!(
                    "`{name}` is not supported: a response that is kept comes whole, or with `stream=true` as its events behind \
                     `starting_after`"
                );
                return Err(BadParam::unsupported(name, message).into());
            }
        }
    }
    let last = after.or_else(|| last_event_id(&headers));
    if streams && Claim::is_made(&headers) {
        let claim = Claim { last, ..Claim::of(&headers)? };
        return go_on(app, request_id(&id)?, principal, claim).await;
    }
    if streams {
        return responses::replay(&app, principal, &id, last.as_deref()).await;
    }
    match app.kept.json(principal, &id) {
        Some(kept) => {
            let kind = HeaderValue::from_static("application/json");
            Ok(([(CONTENT_TYPE, kind)], kept).into_response())
        }
        None if Claim::is_made(&headers) => {
            let mut claim = Claim::of(&headers)?;
            claim.is_whole = true;
            go_on(app, request_id(&id)?, principal, claim).await
        }
        None => Err(responses::gone(&id, "response_id")),
    }
}

/// The rest of an answer, or the whole of it, for who shows its secret.
async fn go_on(
    app: Arc<App>,
    id: RequestId,
    principal: Principal,
    claim: Claim,
) -> Result<Response, ApiError> {
    let Claim { secret, last, is_whole } = claim;
    if let Some(answer) = app.outliving.find(id, &proof(&secret)) {
        // Copies on other members are under the id that the node gave it, which its client may not have
        // heard.
        let header = HeaderValue::from_str(&format!("{}.{secret}", answer.request())).ok();
        let events = read_on(&app, &answer, last.as_deref(), is_whole);
        return Ok(match events {
            Ok(events) => sse::with_ticket(events, header),
            Err(error) => answer.endpoint().refuse(error, answer.request()),
        });
    }
    let claimed =
        app.admin(app.facade.claim(id, proof(&secret))).await.map_err(|error| match error.code {
            "not_found" => not_found(id),
            _ => error,
        })?;
    let unreadable = || ApiError::internal(format!("the copy of request {id} cannot be read"));
    let line = claimed.record.iter().position(|byte| *byte == b'\n').ok_or_else(unreadable)?;
    let (head, body) = (&claimed.record[..line], claimed.record[line + 1..].to_vec());
    let head: RecordHead = serde_json::from_slice(head).map_err(|_| unreadable())?;
    let endpoint = head.endpoint;
    let ClaimedRequest { model, choices, .. } = claimed;
    // What comes whole begins at the start.
    let had = match endpoint.had(last.as_deref().filter(|_| !is_whole)) {
        Ok(had) => had,
        Err(error) => return Ok(endpoint.refuse(error, id)),
    };
    let resuming = Resuming { head, secret, model, choices, had, is_whole };
    let mut again = Request::new(Body::from(body));
    again.extensions_mut().insert(resuming);
    let (state, posted) = (State(app), (Extension(id), Extension(principal), again));
    let answer = match endpoint {
        Resumed::Chat => openai::chat(state, posted).await,
        Resumed::Completion => openai::completion(state, posted).await,
        Resumed::Messages => messages::messages(state, posted).await,
        Resumed::Responses => responses::create(state, posted).await,
        Resumed::OllamaChat => ollama::chat(state, posted).await,
        Resumed::OllamaGenerate => ollama::generate(state, posted).await,
    };
    Ok(answer.unwrap_or_else(|error| endpoint.refuse(error, id)))
}

/// The events of an answer that outlives its reader.
fn read_on(
    app: &App,
    answer: &Arc<OutlivingAnswer>,
    last: Option<&str>,
    is_whole: bool,
) -> Result<Response, ApiError> {
    if is_whole {
        let message = "an answer that outlives its reader comes as the stream that it was asked for";
        return Err(BadParam::unsupported("stream", message).into());
    }
    sse::read(app, answer, &answer.endpoint().had(last)?.positions)
}

fn not_found(id: RequestId) -> ApiError {
    let what = format!(
        "no member that is reached has request {id} with this secret: its answer is over, it was lost more than 60 s ago, or it \
         was never kept (another prompt of more than 1 MiB, a node alone, `resume = false`)"
    );
    ApiError::invalid(StatusCode::NOT_FOUND, "request_not_found", what)
}
