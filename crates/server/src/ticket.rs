//! What a request brings with it and its streamed answer has, so that the answer can go on elsewhere or
//! outlive its reader.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue, StatusCode};
use exo_api::{ChatMessage, GenerateRequest, Resumable, Resumption};
use exo_types::{ModelId, RequestId, SampledToken};
use serde::{Deserialize, Serialize};

use crate::app::App;
use crate::errors::ApiError;
use crate::outlive::OutlivingAnswer;
use crate::resumed::{Had, Positions, Resumed};

/// The header with id and secret.
pub const RESUME: &str = "exo-resume";
/// Asks for an answer that outlives its reader: `true`, or `ID.SECRET` of the client's choice, with which it
/// finds the answer before it has seen its head.
const KEEP: &str = "exo-keep";
/// Of the id and the secret that a client chooses: 128 bits.
const CHOSEN_DIGITS: usize = 32;
/// A longer request has no copy.
const RECORD_BYTES_MAX: usize = 1 << 20;

/// The first line of a request as another node needs it; behind it comes the body.
#[derive(Clone, Serialize, Deserialize)]
pub struct RecordHead {
    pub endpoint: Resumed,
    pub seed: u64,
    pub created: u64,
    /// What a response goes on from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<ChatMessage>,
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
pub struct Resuming {
    pub head: RecordHead,
    pub secret: String,
    pub model: ModelId,
    pub choices: Vec<Vec<SampledToken>>,
    pub had: Had,
    pub is_whole: bool,
}

/// What a streamed answer has beside its events.
pub struct Ticket {
    pub header: Option<HeaderValue>,
    pub resumable: Option<Resumable>,
    pub positions: Option<Positions>,
    /// What the client has already.
    pub had: Had,
    /// Whether the client wants it in one piece, though it was asked for as a stream.
    pub is_whole: bool,
    /// Where the answer goes that is to outlive its reader.
    pub outliving: Option<Arc<OutlivingAnswer>>,
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
        let positions = endpoint.has_positions().then(|| Positions::start(choices).behind(&had.positions));
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

/// The secret that a client shows.
pub fn secret_of(headers: &HeaderMap) -> Result<String, ApiError> {
    let given = headers.get(RESUME).and_then(|value| value.to_str().ok());
    let secret = given.map(|value| value.rsplit('.').next().unwrap_or(value).to_owned());
    secret.ok_or_else(|| {
        let what = format!("`{RESUME}: ID.SECRET` is missing: the head of the streamed answer had it");
        ApiError::invalid(StatusCode::UNAUTHORIZED, "missing_secret", what)
    })
}

/// The id in the name of a request or of its answer, as in `chatcmpl-ID`.
pub fn request_id(name: &str) -> Result<RequestId, ApiError> {
    let id = name.rsplit(['-', '_']).next().and_then(|id| u128::from_str_radix(id, 16).ok());
    id.map(RequestId).ok_or_else(|| {
        let what = format!(
            "`{name:.80}` is not the id of a request: that is in `x-request-id`, and in front of the dot in `{RESUME}`"
        );
        ApiError::invalid(StatusCode::BAD_REQUEST, "invalid_request_id", what)
    })
}

/// The hash of a secret.
pub fn proof(secret: &str) -> [u8; 32] {
    *blake3::hash(secret.as_bytes()).as_bytes()
}
