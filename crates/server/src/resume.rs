//! Answers that go on at another node when theirs is lost.
//!
//! The head of a streamed answer has its request's id and a secret (`exo-resume: ID.SECRET`), and each of its
//! events says how far its choices are (`id: 0:57`); those of Responses have their own numbers for that, and
//! Ollama's lines the number of tokens. Another member keeps a copy of the request; whoever shows the secret
//! gets the rest of the answer from any node, by the same handler as before, which is told what is there
//! already.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use exo_api::{BadParam, ChatMessage, ClaimedRequest, GenerateEvent, GenerateRequest, Resumable, Resumption};
use exo_types::{ModelId, Principal, RequestId, SampledToken};
use serde::{Deserialize, Serialize};

use crate::app::App;
use crate::encode::{push_comment, push_event};
use crate::errors::{ApiError, Path};
use crate::outlive::OutlivingAnswer;
use crate::{messages, ollama, openai, responses, sse};

/// The header with id and secret.
const RESUME: &str = "exo-resume";
/// Asks for an answer that outlives its reader: `true`, or `ID.SECRET` of the client's choice, with which it
/// finds the answer before it has seen its head.
const KEEP: &str = "exo-keep";
/// Of the id and the secret that a client chooses: 128 bits.
const CHOSEN_DIGITS: usize = 32;
/// How far the client's answer was, as browsers send it.
const LAST_EVENT_ID: &str = "last-event-id";
/// A longer request has no copy.
const RECORD_BYTES_MAX: usize = 1 << 20;

/// The endpoints whose streams go on elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resumed {
    Chat,
    Completion,
    Messages,
    Responses,
    OllamaChat,
    OllamaGenerate,
}

/// The first line of a request as another node needs it; behind it comes the body.
#[derive(Clone, Serialize, Deserialize)]
struct RecordHead {
    endpoint: Resumed,
    seed: u64,
    created: u64,
    /// What a response goes on from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    before: Vec<ChatMessage>,
}

/// Where a request comes from: its client, or a node that is lost.
pub struct Origin {
    /// For what is drawn.
    pub seed: u64,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// The conversation in front of a response's input, as the node had it that began the answer.
    pub before: Vec<ChatMessage>,
    secret: String,
    /// Whether the answer is to outlive its reader.
    keep: bool,
    /// What its client calls it.
    alias: Option<RequestId>,
    resuming: Option<Resuming>,
}

/// What a handler is told of an answer that goes on.
#[derive(Clone)]
struct Resuming {
    head: RecordHead,
    secret: String,
    model: ModelId,
    choices: Vec<Vec<SampledToken>>,
    had: Had,
    is_whole: bool,
}

/// What a client has of an answer, as the id of its last event says it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Had {
    /// Of each choice.
    pub(crate) positions: Positions,
    /// The last event, where they are numbered.
    pub(crate) event: Option<u32>,
}

/// What a client asks for who shows a secret.
pub(crate) struct Claim {
    secret: String,
    /// The id of the last event that it has.
    pub(crate) last: Option<String>,
    /// Whether the answer is to come in one piece.
    pub(crate) is_whole: bool,
}

/// What a streamed answer has beside its events.
pub struct Ticket {
    pub(crate) header: Option<HeaderValue>,
    pub(crate) resumable: Option<Resumable>,
    pub(crate) positions: Option<Positions>,
    /// What the client has already.
    pub(crate) had: Had,
    /// Whether the client wants it in one piece, though it was asked for as a stream.
    pub(crate) is_whole: bool,
    /// Where the answer goes that is to outlive its reader.
    pub(crate) outliving: Option<Arc<OutlivingAnswer>>,
}

impl Resumed {
    /// Whether the ids of its events are positions of its choices, and the answer may outlive its reader.
    fn has_positions(self) -> bool {
        matches!(self, Self::Chat | Self::Completion | Self::Messages)
    }

    /// What a client has whose last event has this id.
    fn had(self, last: Option<&str>) -> Result<Had, ApiError> {
        let Some(last) = last else { return Ok(Had::default()) };
        let number = last.parse().ok();
        let had = match self {
            Self::Chat | Self::Completion | Self::Messages => {
                Positions::parse(last).map(|positions| Had { positions, event: None })
            }
            Self::Responses => number.map(|_| Had { event: number, ..Had::default() }),
            Self::OllamaChat | Self::OllamaGenerate => {
                number.map(|tokens| Had { positions: Positions(vec![tokens]), event: None })
            }
        };
        let example = if self.has_positions() { "0:57" } else { "57" };
        had.ok_or_else(|| {
            let what = format!(
                "`{last:.80}` is no `{LAST_EVENT_ID}` of this answer: it is like `{example}`, as in the last event"
            );
            ApiError::invalid(StatusCode::BAD_REQUEST, "invalid_last_event_id", what)
        })
    }

    /// Appends the event that ends an answer which failed and may outlive its reader, as its clients read it.
    pub fn fail(self, error: &ApiError, request: RequestId, out: &mut String) {
        match self {
            Self::Messages => push_event(out, "error", &messages::error_body(error, &request.to_string())),
            _ => push_event(out, "error", &error.body()),
        }
    }

    /// Appends a sign of life of such an answer, and why it waits.
    pub fn keep_alive(self, waiting_for: Option<&str>, out: &mut String) {
        match self {
            Self::Messages => messages::keep_alive(waiting_for, out),
            _ => push_comment(out, waiting_for.unwrap_or("keep-alive")),
        }
    }

    /// The answer that says what is wrong, as its clients read it.
    fn refuse(self, error: ApiError, request: RequestId) -> Response {
        match self {
            Self::Messages => error.respond(&messages::error_body(&error, &request.to_string())),
            Self::OllamaChat | Self::OllamaGenerate => error.respond(&ollama::error_body(&error)),
            Self::Chat | Self::Completion | Self::Responses => error.into_response(),
        }
    }
}

impl Origin {
    /// Of a request with these parts.
    pub fn of(parts: &axum::http::request::Parts) -> Result<Self, ApiError> {
        if let Some(resuming) = parts.extensions.get::<Resuming>().cloned() {
            let RecordHead { seed, created, .. } = resuming.head;
            let (before, secret) = (resuming.head.before.clone(), resuming.secret.clone());
            let (keep, alias, resuming) = (false, None, Some(resuming));
            return Ok(Self { seed, created, before, secret, keep, alias, resuming });
        }
        let draw =
            |e| ApiError::internal(format!("no randomness for a seed and the secret of a request: {e}"));
        let seed = getrandom::u64().map_err(draw)?;
        let drawn =
            format!("{:016x}{:016x}", getrandom::u64().map_err(draw)?, getrandom::u64().map_err(draw)?);
        let (keep, chosen) = keep_of(&parts.headers)?;
        let (alias, secret) = chosen.map_or((None, drawn), |(alias, secret)| (Some(alias), secret));
        let (created, before) = (exo_stdx::unix_s(), Vec::new());
        Ok(Self { seed, created, before, secret, keep, alias, resuming: None })
    }

    /// Whether another node began the answer.
    pub fn is_resumed(&self) -> bool {
        self.resuming.is_some()
    }

    /// For the stream of a request that came with that body.
    pub fn ticket(
        self,
        app: &App,
        endpoint: Resumed,
        request: &GenerateRequest,
        body: Option<Vec<u8>>,
    ) -> Result<Ticket, ApiError> {
        let keep = self.keep && endpoint.has_positions();
        let wanted = app.options.resume || self.resuming.is_some() || keep;
        // An echo has no position.
        let Some(body) = body.filter(|_| wanted && !request.echo) else { return Ok(Ticket::none()) };
        let (id, choices) = (request.request, request.answers());
        let head = RecordHead { endpoint, seed: self.seed, created: self.created, before: self.before };
        let Ok(mut record) = serde_json::to_vec(&head) else { return Ok(Ticket::none()) };
        record.push(b'\n');
        record.extend_from_slice(&body);
        if record.len() > RECORD_BYTES_MAX {
            return Ok(Ticket::none());
        }
        let proof = proof(&self.secret);
        let (resumed, had, is_whole) = match self.resuming {
            Some(Resuming { model, choices, had, is_whole, .. }) => {
                let run = [getrandom::u64(), getrandom::u64()];
                let [Ok(high), Ok(low)] = run else {
                    return Err(ApiError::internal("no randomness for the id of a request"));
                };
                let run = RequestId(u128::from(high) << 64 | u128::from(low));
                (Some(Resumption { run, model, choices }), had, is_whole)
            }
            None => (None, Had::default(), false),
        };
        let positions = endpoint.has_positions().then(|| Positions(vec![0; usize::from(choices)]));
        // The same question once more, as some browsers send it over a new connection: the answer to the
        // first has no reader.
        if let Some(before) = self.alias.filter(|_| keep).and_then(|alias| app.outliving.find(alias, &proof))
        {
            app.requests.cancel(before.request());
        }
        let outliving =
            if keep { app.outliving.keep(endpoint, id, self.alias, request.principal, proof) } else { None };
        let has_copy = app.options.resume || resumed.is_some();
        let resumable = has_copy.then_some(Resumable { proof, record, resumed });
        // Only where something is kept.
        let is_kept = resumable.is_some() || outliving.is_some();
        let header = HeaderValue::from_str(&format!("{id}.{}", self.secret)).ok().filter(|_| is_kept);
        Ok(Ticket { header, resumable, positions, had, is_whole, outliving })
    }
}

impl Ticket {
    /// Of a stream that ends with its node.
    fn none() -> Self {
        let had = Had::default();
        Self { header: None, resumable: None, positions: None, had, is_whole: false, outliving: None }
    }

    /// Whether events are to say how far the answer is.
    pub fn has_ids(&self) -> bool {
        self.header.is_some()
    }
}

/// The text of a request that is to be streamed; of no more than may be kept.
pub fn recorded(streams: bool, text: &str) -> Option<Vec<u8>> {
    (streams && text.len() <= RECORD_BYTES_MAX).then(|| text.as_bytes().to_vec())
}

/// How far each choice of an answer is: its tokens; its end counts two more.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Positions(Vec<u32>);

impl Positions {
    /// Takes in an event; whether it is one that a client can go on behind.
    pub fn advance(&mut self, event: &GenerateEvent) -> bool {
        let (index, position) = match event {
            GenerateEvent::Delta(delta) if !delta.is_empty() => (delta.index, delta.position),
            GenerateEvent::Finished { index, completion_tokens, .. } => (*index, completion_tokens + 2),
            _ => return false,
        };
        match self.0.get_mut(usize::from(index)) {
            Some(own) => *own = (*own).max(position),
            None => return false,
        }
        true
    }

    /// Whether a client that was sent these has this event.
    pub fn covers(&self, event: &GenerateEvent) -> bool {
        let (index, position) = match event {
            GenerateEvent::Delta(delta) => (delta.index, delta.position),
            GenerateEvent::Finished { index, completion_tokens, .. } => (*index, completion_tokens + 2),
            GenerateEvent::Started { .. } => return self.0.iter().any(|position| *position > 0),
            _ => return false,
        };
        self.0.get(usize::from(index)).is_some_and(|own| *own >= position && *own > 0)
    }

    /// Whether a client that was sent these has all that was there at others.
    pub fn reach(&self, others: &Self) -> bool {
        self.0.len() == others.0.len() && self.0.iter().zip(&others.0).all(|(own, other)| own >= other)
    }

    /// As [`std::fmt::Display`] writes them.
    pub fn parse(text: &str) -> Option<Self> {
        let mut positions = Vec::new();
        for (number, part) in text.split(',').enumerate() {
            let (index, position) = part.trim().split_once(':')?;
            if index.parse() != Ok(number) || number > usize::from(u16::MAX) {
                return None;
            }
            positions.push(position.parse().ok()?);
        }
        Some(Self(positions))
    }
}

impl std::fmt::Display for Positions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, position) in self.0.iter().enumerate() {
            write!(f, "{}{index}:{position}", if index > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

/// Puts the id into the last of some server-sent events, behind its data: there are clients that look at the
/// first line only.
pub fn mark(out: &mut String, id: &impl Display) {
    if out.ends_with("\n\n") {
        out.pop();
        out.push_str(&format!("id: {id}\n\n"));
    }
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

/// Whether an answer is to be kept, and the id and secret that its client has chosen.
fn keep_of(headers: &HeaderMap) -> Result<(bool, Option<(RequestId, String)>), ApiError> {
    let Some(value) = headers.get(KEEP) else { return Ok((false, None)) };
    let text = value.to_str().unwrap_or_default();
    let is_chosen = |part: &str| part.len() == CHOSEN_DIGITS && part.bytes().all(|b| b.is_ascii_hexdigit());
    match text.split_once('.') {
        None if text == "true" => Ok((true, None)),
        None if text == "false" => Ok((false, None)),
        Some((id, secret)) if is_chosen(id) && is_chosen(secret) => {
            Ok((true, Some((request_id(id)?, secret.to_owned()))))
        }
        _ => {
            let what = format!(
                "`{KEEP}` is `true`, `false` or `ID.SECRET`, each of {CHOSEN_DIGITS} hexadecimal digits that the client has drawn"
            );
            Err(ApiError::invalid(StatusCode::BAD_REQUEST, "invalid_keep", what))
        }
    }
}

fn secret_of(headers: &HeaderMap) -> Result<String, ApiError> {
    let given = headers.get(RESUME).and_then(|value| value.to_str().ok());
    let secret = given.map(|value| value.rsplit('.').next().unwrap_or(value).to_owned());
    secret.ok_or_else(|| {
        let what = format!("`{RESUME}: ID.SECRET` is missing: the head of the streamed answer had it");
        ApiError::invalid(StatusCode::UNAUTHORIZED, "missing_secret", what)
    })
}

impl Claim {
    /// Whether there is one.
    pub(crate) fn is_made(headers: &HeaderMap) -> bool {
        headers.contains_key(RESUME)
    }

    /// For the rest of a stream.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self, ApiError> {
        let last = headers.get(LAST_EVENT_ID).and_then(|value| value.to_str().ok()).map(str::to_owned);
        Ok(Self { secret: secret_of(headers)?, last, is_whole: false })
    }
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

/// The rest of an answer, or the whole of it, for who shows its secret.
pub(crate) async fn go_on(
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
    let (state, name, principal) = (State(app), Extension(id), Extension(principal));
    let answer = match endpoint {
        Resumed::Chat => openai::chat(state, name, principal, again).await,
        Resumed::Completion => openai::completion(state, name, principal, again).await,
        Resumed::Messages => messages::messages(state, name, principal, again).await,
        Resumed::Responses => responses::create(state, name, principal, again).await,
        Resumed::OllamaChat => ollama::chat(state, name, principal, again).await,
        Resumed::OllamaGenerate => ollama::generate(state, name, principal, again).await,
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

/// The id in the name of a request or of its answer, as in `chatcmpl-ID`.
pub fn request_id(name: &str) -> Result<RequestId, ApiError> {
    let id = name.rsplit(['-', '_']).next().and_then(|id| u128::from_str_radix(id, 16).ok());
    id.map(RequestId).ok_or_else(|| {
        let what = format!(
            "`{name:.80}` is no id of a request: it is in `x-request-id`, and in front of the dot in `{RESUME}`"
        );
        ApiError::invalid(StatusCode::BAD_REQUEST, "invalid_request_id", what)
    })
}

fn not_found(id: RequestId) -> ApiError {
    let what = format!(
        "no member that is reached has request {id} with this secret: its answer is over, it was lost more than 60 s ago, or it \
         was never kept (another prompt of more than 1 MiB, a node alone, `resume = false`)"
    );
    ApiError::invalid(StatusCode::NOT_FOUND, "request_not_found", what)
}

fn proof(secret: &str) -> [u8; 32] {
    *blake3::hash(secret.as_bytes()).as_bytes()
}

#[cfg(test)]
mod tests {
    use exo_api::{Delta, FinishReason};

    use super::*;

    #[test]
    fn positions_are_told_and_read_alike() {
        let positions = Positions::parse("0:57,1:3").expect("positions");
        assert_eq!(positions.to_string(), "0:57,1:3");
        for wrong in ["", "57", "1:2", "0:x", "0:1,0:2", "0:1;1:2", "0:-1"] {
            assert_eq!(Positions::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_client_has_what_is_not_behind_its_last_event() {
        let delta = |position| {
            GenerateEvent::Delta(Delta { index: 0, position, text: "x".into(), ..Delta::default() })
        };
        let end = GenerateEvent::Finished {
            index: 0,
            reason: FinishReason::Stop,
            stop: None,
            completion_tokens: 4,
            kernels: Vec::new(),
        };
        let started = GenerateEvent::Started { prompt_tokens: 3 };
        let (nothing, three) =
            (Positions::parse("0:0").expect("none"), Positions::parse("0:3").expect("three"));
        assert!(!nothing.covers(&started) && three.covers(&started));
        assert!(three.covers(&delta(3)) && !three.covers(&delta(4)) && !three.covers(&end));
        let mut all = Positions(vec![0]);
        assert!(all.advance(&delta(5)) && !all.covers(&end));
        assert!(all.advance(&end) && all.covers(&end) && all.covers(&delta(5)));
    }

    #[test]
    fn the_last_event_of_some_is_marked() {
        let mut out = "event: a\ndata: 1\n\ndata: 2\n\n".to_owned();
        mark(&mut out, &Positions(vec![7]));
        assert_eq!(out, "event: a\ndata: 1\n\ndata: 2\nid: 0:7\n\n");
        let mut none = String::new();
        mark(&mut none, &Positions(vec![7]));
        assert_eq!(none, "");
    }
}
