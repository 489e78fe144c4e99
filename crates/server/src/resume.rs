//! Answers that go on at another node when theirs is lost.
//!
//! The head of a streamed answer has its request's id and a secret (`exo-resume: ID.SECRET`), and each of its
//! events says how far its choices are (`id: 0:57`). Another member keeps a copy of the request; whoever
//! shows the secret gets the rest of the answer from any node, by the same handler as before, which is told
//! what is there already.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use exo_api::{ClaimedRequest, GenerateEvent, GenerateRequest, Resumable, Resumption};
use exo_types::{ModelId, Principal, RequestId, SampledToken};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::app::App;
use crate::encode::{push_comment, push_event};
use crate::errors::{ApiError, Path};
use crate::outlive::OutlivingAnswer;
use crate::{messages, openai, sse};

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

/// The endpoints whose streams go on elsewhere. Responses lean on what their node keeps for the next one, and
/// Ollama's lines have no ids.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resumed {
    Chat,
    Completion,
    Messages,
}

/// The first line of a request as another node needs it; behind it comes the body.
#[derive(Serialize, Deserialize)]
struct RecordHead {
    endpoint: Resumed,
    seed: u64,
    created: u64,
}

/// Where a request comes from: its client, or a node that is lost.
pub struct Origin {
    /// For what is drawn.
    pub seed: u64,
    /// When it was made, in seconds since 1970.
    pub created: u64,
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
    seed: u64,
    created: u64,
    secret: String,
    model: ModelId,
    choices: Vec<Vec<SampledToken>>,
    after: Positions,
}

/// What a streamed answer has beside its events.
pub struct Ticket {
    pub(crate) header: Option<HeaderValue>,
    pub(crate) resumable: Option<Resumable>,
    pub(crate) positions: Option<Positions>,
    /// What the client has already.
    pub(crate) after: Positions,
    /// Where the answer goes that is to outlive its reader.
    pub(crate) outliving: Option<Arc<OutlivingAnswer>>,
}

impl Resumed {
    /// Appends the event that ends an answer which failed, as its clients read it.
    pub fn fail(self, error: &ApiError, request: RequestId, out: &mut String) {
        match self {
            Self::Messages => push_event(out, "error", &messages::error_body(error, &request.to_string())),
            Self::Chat | Self::Completion => push_event(out, "error", &error.body()),
        }
    }

    /// Appends a sign of life, and why the answer waits.
    pub fn keep_alive(self, waiting_for: Option<&str>, out: &mut String) {
        match self {
            Self::Messages => messages::keep_alive(waiting_for, out),
            Self::Chat | Self::Completion => push_comment(out, waiting_for.unwrap_or("keep-alive")),
        }
    }

    /// The answer that says what is wrong, as its clients read it.
    fn refuse(self, error: ApiError, request: RequestId) -> Response {
        match self {
            Self::Messages => error.respond(&messages::error_body(&error, &request.to_string())),
            Self::Chat | Self::Completion => error.into_response(),
        }
    }
}

impl Origin {
    /// Of a request with these parts.
    pub fn of(parts: &axum::http::request::Parts) -> Result<Self, ApiError> {
        if let Some(resuming) = parts.extensions.get::<Resuming>().cloned() {
            let Resuming { seed, created, ref secret, .. } = resuming;
            let secret = secret.clone();
            return Ok(Self { seed, created, secret, keep: false, alias: None, resuming: Some(resuming) });
        }
        let draw =
            |e| ApiError::internal(format!("no randomness for a seed and the secret of a request: {e}"));
        let seed = getrandom::u64().map_err(draw)?;
        let drawn =
            format!("{:016x}{:016x}", getrandom::u64().map_err(draw)?, getrandom::u64().map_err(draw)?);
        let (keep, chosen) = keep_of(&parts.headers)?;
        let (alias, secret) = chosen.map_or((None, drawn), |(alias, secret)| (Some(alias), secret));
        Ok(Self { seed, created: exo_stdx::unix_s(), secret, keep, alias, resuming: None })
    }

    /// For the stream of a request that came with that body.
    pub fn ticket(
        self,
        app: &App,
        endpoint: Resumed,
        request: &GenerateRequest,
        body: Option<Vec<u8>>,
    ) -> Result<Ticket, ApiError> {
        let keep = self.keep;
        let wanted = app.options.resume || self.resuming.is_some() || keep;
        // An echo has no position.
        let Some(body) = body.filter(|_| wanted && !request.echo) else { return Ok(Ticket::none()) };
        let (id, choices) = (request.request, request.answers());
        let head = RecordHead { endpoint, seed: self.seed, created: self.created };
        let Ok(mut record) = serde_json::to_vec(&head) else { return Ok(Ticket::none()) };
        record.push(b'\n');
        record.extend_from_slice(&body);
        if record.len() > RECORD_BYTES_MAX {
            return Ok(Ticket::none());
        }
        let proof = proof(&self.secret);
        let (resumed, after) = match self.resuming {
            Some(Resuming { model, choices, after, .. }) => {
                let run = [getrandom::u64(), getrandom::u64()];
                let [Ok(high), Ok(low)] = run else {
                    return Err(ApiError::internal("no randomness for the id of a request"));
                };
                let run = RequestId(u128::from(high) << 64 | u128::from(low));
                (Some(Resumption { run, model, choices }), after)
            }
            None => (None, Positions::default()),
        };
        let positions = Some(Positions(vec![0; usize::from(choices)]));
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
        Ok(Ticket { header, resumable, positions, after, outliving })
    }
}

impl Ticket {
    /// Of a stream that ends with its node.
    pub fn none() -> Self {
        Self { header: None, resumable: None, positions: None, after: Positions::default(), outliving: None }
    }
}

/// The text of a request that is to be streamed; of no more than may be kept.
pub fn recorded(body: &Value, text: &str) -> Option<Vec<u8>> {
    let is_kept = body["stream"] == Value::Bool(true) && text.len() <= RECORD_BYTES_MAX;
    is_kept.then(|| text.as_bytes().to_vec())
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
pub fn mark(out: &mut String, positions: &Positions) {
    if out.ends_with("\n\n") {
        out.pop();
        out.push_str(&format!("id: {positions}\n\n"));
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

/// `GET /v1/requests/{request}`: the rest of an answer that outlives its reader, or whose node is lost.
pub async fn resume(
    State(app): State<Arc<App>>,
    Path(request): Path<String>,
    Extension(principal): Extension<Principal>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let id = request_id(&request)?;
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let secret = secret_of(&headers)?;
    let after = match text(LAST_EVENT_ID) {
        None => Positions::default(),
        Some(last) => Positions::parse(last).ok_or_else(|| {
            let what =
                format!("`{last:.80}` is no `{LAST_EVENT_ID}`: it is like `0:57`, as in the last event");
            ApiError::invalid(StatusCode::BAD_REQUEST, "invalid_last_event_id", what)
        })?,
    };
    if let Some(answer) = app.outliving.find(id, &proof(&secret)) {
        // Copies on other members are under the id that the node gave it, which its client may not have
        // heard.
        let header = HeaderValue::from_str(&format!("{}.{secret}", answer.request())).ok();
        return Ok(match sse::read(&app, &answer, &after) {
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
    let RecordHead { endpoint, seed, created } = serde_json::from_slice(head).map_err(|_| unreadable())?;
    let ClaimedRequest { model, choices, .. } = claimed;
    let resuming = Resuming { seed, created, secret, model, choices, after };
    let mut again = Request::new(Body::from(body));
    again.extensions_mut().insert(resuming);
    let (state, name, principal) = (State(app), Extension(id), Extension(principal));
    let answer = match endpoint {
        Resumed::Chat => openai::chat(state, name, principal, again).await,
        Resumed::Completion => openai::completion(state, name, principal, again).await,
        Resumed::Messages => messages::messages(state, name, principal, again).await,
    };
    Ok(answer.unwrap_or_else(|error| endpoint.refuse(error, id)))
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
