//! Reading a request's body: bounded in bytes and time, alone and in sum with all others, then parsed.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, EXPECT};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::app::App;
use crate::errors::ApiError;
use crate::options::ServerOptions;

/// For how long, and how much of, a body that is too large is read and thrown away. A client that is still
/// sending when the connection closes sees a reset instead of the answer that tells it why.
const DRAIN_TIME: Duration = Duration::from_secs(5);
const DRAIN_BYTES: usize = 256 << 20;

/// What a value of a document takes at most beside its text.
const VALUE_BYTES: usize = 96;
/// A document of more bytes is parsed where it holds up nobody.
const PARSED_AT_ONCE_BYTES: usize = 64 << 10;
/// In such units room is given out.
const UNIT_BYTES: usize = 1 << 10;

/// Room for what all clients together make this process hold: bodies, the documents they become, and answers that nobody
/// has read yet.
#[derive(Clone)]
pub struct Room {
    units: Arc<Semaphore>,
    /// Answers take from these as well: half of all, so that answers never leave bodies without room.
    answer_units: Arc<Semaphore>,
    bytes_max: usize,
}

/// Room that a part of an answer has taken. It is given back when this is dropped.
pub struct AnswerLease {
    _units: OwnedSemaphorePermit,
    _answer_units: OwnedSemaphorePermit,
}

impl Room {
    /// For so many bytes.
    pub fn new(bytes_max: usize) -> Self {
        let units = (bytes_max / UNIT_BYTES).min(Semaphore::MAX_PERMITS);
        let (units, answer_units) = (Semaphore::new(units), Semaphore::new(units / 2));
        Self { units: Arc::new(units), answer_units: Arc::new(answer_units), bytes_max }
    }

    fn lease(&self) -> Lease {
        Lease { units: self.units.clone(), bytes_max: self.bytes_max, bytes: 0, held: None }
    }

    /// Takes room for so many bytes of an answer.
    pub fn hold_answer(&self, bytes: usize) -> Result<AnswerLease, ApiError> {
        let take = |units: &Arc<Semaphore>| {
            let count = u32::try_from(bytes.div_ceil(UNIT_BYTES)).ok()?;
            units.clone().try_acquire_many_owned(count).ok()
        };
        let lease = take(&self.answer_units).zip(take(&self.units));
        let lease = lease.map(|(answer, all)| AnswerLease { _units: all, _answer_units: answer });
        lease.ok_or_else(|| {
            let message = format!(
                "answers that their clients have not read leave no room for {bytes} bytes more, of {} for all",
                self.bytes_max / 2
            );
            ApiError::unavailable("too_many_bytes", message, 1)
        })
    }
}

/// Room that one request has taken. It is given back when this is dropped.
pub struct Lease {
    units: Arc<Semaphore>,
    bytes_max: usize,
    bytes: usize,
    held: Option<OwnedSemaphorePermit>,
}

impl Lease {
    fn grow(&mut self, bytes: usize) -> Result<(), ApiError> {
        let units = |bytes: usize| bytes.div_ceil(UNIT_BYTES);
        let more = units(self.bytes + bytes) - units(self.bytes);
        let taken =
            u32::try_from(more).ok().and_then(|more| self.units.clone().try_acquire_many_owned(more).ok());
        let Some(taken) = taken else { return Err(self.refusal(bytes)) };
        self.bytes += bytes;
        match &mut self.held {
            Some(held) => held.merge(taken),
            None => self.held = Some(taken),
        }
        Ok(())
    }

    fn refusal(&self, more: usize) -> ApiError {
        let (needed, bytes_max) = (self.bytes + more, self.bytes_max);
        if needed > bytes_max {
            let message =
                format!("the request would take {needed} bytes of memory, all together may take {bytes_max}");
            return ApiError::invalid(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message).closing();
        }
        let message =
            format!("other requests leave no room for this one's {needed} bytes, of {bytes_max} for all");
        ApiError::unavailable("too_many_bytes", message, 1).closing()
    }
}

/// Reads a body as JSON. What it takes counts until the lease is dropped.
pub async fn read_json(headers: &HeaderMap, body: Body, app: &App) -> Result<(Value, Lease), ApiError> {
    let mut lease = app.room.lease();
    let bytes = read(headers, body, &app.options, &mut lease).await?;
    // Each value but the first stands behind one of these; text may hold them as well, so this is the most there can be.
    let values = bytes.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{' | b':')).count();
    lease.grow(bytes.len() + VALUE_BYTES * values)?;
    let value = if bytes.len() <= PARSED_AT_ONCE_BYTES {
        parse(&bytes)?
    } else {
        let parsed = tokio::task::spawn_blocking(move || parse(&bytes)).await;
        parsed.map_err(|_| ApiError::internal("parsing the body broke off"))??
    };
    Ok((value, lease))
}

async fn read(
    headers: &HeaderMap,
    mut body: Body,
    options: &ServerOptions,
    lease: &mut Lease,
) -> Result<Bytes, ApiError> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|n| n > options.body_bytes_max as u64) {
        // Who asks first has sent nothing yet, and must not be told to go on.
        if !headers.contains_key(EXPECT) {
            tokio::spawn(drain(body));
        }
        return Err(too_large(options));
    }
    let mut bytes = Vec::new();
    let deadline = tokio::time::Instant::now() + options.body_timeout;
    loop {
        let frame = match tokio::time::timeout_at(deadline, body.frame()).await {
            Err(_) => return Err(too_slow(options)),
            Ok(None) => return Ok(bytes.into()),
            Ok(Some(Err(e))) => {
                let message = format!("the body could not be read: {e}");
                return Err(ApiError::invalid(StatusCode::BAD_REQUEST, "bad_body", message).closing());
            }
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > options.body_bytes_max {
            tokio::spawn(drain(body));
            return Err(too_large(options));
        }
        if let Err(refusal) = lease.grow(data.len()) {
            tokio::spawn(drain(body));
            return Err(refusal);
        }
        bytes.extend_from_slice(&data);
    }
}

async fn drain(mut body: Body) {
    let rest = async {
        let mut left = DRAIN_BYTES;
        while let Some(Ok(frame)) = body.frame().await {
            let Some(rest) = left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) else { return };
            left = rest;
        }
    };
    // Running out of time or bytes both mean: close, whatever the client sees.
    let _ = tokio::time::timeout(DRAIN_TIME, rest).await;
}

fn too_large(options: &ServerOptions) -> ApiError {
    let message = format!("the body has more than {} bytes", options.body_bytes_max);
    ApiError::invalid(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message).closing()
}

fn too_slow(options: &ServerOptions) -> ApiError {
    let message = format!("the body did not arrive within {} s", options.body_timeout.as_secs_f32());
    ApiError::invalid(StatusCode::REQUEST_TIMEOUT, "body_too_slow", message).closing()
}

fn parse(bytes: &[u8]) -> Result<Value, ApiError> {
    let bad = |code, message: String| ApiError::invalid(StatusCode::BAD_REQUEST, code, message);
    let text = std::str::from_utf8(bytes).map_err(|e| {
        let before = &bytes[..e.valid_up_to()];
        let line = before.iter().filter(|b| **b == b'\n').count() + 1;
        let column = before.iter().rev().take_while(|b| **b != b'\n').count() + 1;
        bad("invalid_utf8", format!("the body is not UTF-8: bad byte at line {line} column {column}"))
    })?;
    serde_json::from_str(text).map_err(|e| bad("invalid_json", format!("the body is not valid JSON: {e}")))
}

/// Reads the body into a small request type of ours.
pub async fn read_typed<T: serde::de::DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
    app: &App,
) -> Result<T, ApiError> {
    let (value, _lease) = read_json(headers, body, app).await?;
    serde_json::from_value(value)
        .map_err(|e| ApiError::invalid(StatusCode::BAD_REQUEST, "invalid_value", e.to_string()))
}

/// A JSON answer.
pub fn json<T: serde::Serialize>(value: &T) -> Response {
    use axum::response::IntoResponse;
    axum::Json(value).into_response()
}
