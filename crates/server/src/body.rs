//! Reading a request's body: bounded in bytes and time, alone and in sum with all others, then parsed.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
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
use crate::scan::{Scan, TooMuch};

/// For how long, and how much of, a body that is too large is read and thrown away. A client that is still
/// sending when the connection closes sees a reset instead of the answer that tells it why.
const DRAIN_TIME: Duration = Duration::from_secs(5);
const DRAIN_BYTES: usize = 256 << 20;

/// A document of more bytes is parsed where it holds up nobody.
const PARSED_AT_ONCE_BYTES: usize = 64 << 10;
/// A request that takes no more finds room that large ones cannot take.
const SMALL_BYTES: usize = 64 << 10;
/// Freed memory is given back when requests have released so much since the last look.
const GIVE_BACK_BYTES: usize = 4 << 20;
const GIVE_BACK_EVERY: Duration = Duration::from_secs(2);
/// The last of them when what such requests became, beyond their bodies, is over as well.
const GIVE_BACK_TIMES: u32 = 5;
/// In such units room is given out.
const UNIT_BYTES: usize = 1 << 10;

/// Room for what all clients together make this process hold: bodies, the documents they become, and answers
/// that nobody has read yet.
#[derive(Clone)]
pub struct Room {
    units: Arc<Semaphore>,
    /// Answers take from these as well: half of all, so that answers never leave bodies without room.
    answer_units: Arc<Semaphore>,
    /// And so do large requests: seven eighths of all, so that a small one finds room beside any number of
    /// them.
    large_units: Arc<Semaphore>,
    bytes_max: usize,
    /// Bytes that requests gave back and that have not been looked at since.
    released_bytes: Arc<AtomicUsize>,
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
        let semaphore = |units| Arc::new(Semaphore::new(units));
        Self {
            units: semaphore(units),
            answer_units: semaphore(units / 2),
            large_units: semaphore(units - units / 8),
            bytes_max,
            released_bytes: Arc::default(),
        }
    }

    fn lease(&self) -> Lease {
        Lease { room: self.clone(), bytes: 0, held: None, held_as_large: None }
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
                "answers that are collected or not read yet leave no room for {bytes} bytes more, of {} for all",
                self.bytes_max / 2
            );
            ApiError::unavailable("too_many_bytes", message, 1)
        })
    }
}

/// Room that one request has taken. It is given back when this is dropped.
pub struct Lease {
    room: Room,
    bytes: usize,
    held: Option<OwnedSemaphorePermit>,
    /// The same again, of the room for large ones.
    held_as_large: Option<OwnedSemaphorePermit>,
}

impl Lease {
    /// Takes room for so many bytes more.
    pub fn grow(&mut self, bytes: usize) -> Result<(), ApiError> {
        let needed = self.bytes + bytes;
        let is_large = needed > SMALL_BYTES;
        let taken = take(&self.room.units, &mut self.held, needed)
            && (!is_large || take(&self.room.large_units, &mut self.held_as_large, needed));
        if !taken {
            return Err(self.refusal(bytes));
        }
        self.bytes = needed;
        Ok(())
    }

    fn refusal(&self, more: usize) -> ApiError {
        let (needed, bytes_max) = (self.bytes + more, self.room.bytes_max / 8 * 7);
        if needed > bytes_max {
            let message = format!(
                "the request would take {needed} bytes of memory, large ones together may take {bytes_max}"
            );
            return ApiError::invalid(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message).closing();
        }
        let message =
            format!("other requests leave no room for this one's {needed} bytes, of {bytes_max} for all");
        ApiError::unavailable("too_many_bytes", message, 1).closing()
    }
}

/// Takes what is missing for so many bytes; whether there is that much.
fn take(units: &Arc<Semaphore>, held: &mut Option<OwnedSemaphorePermit>, bytes: usize) -> bool {
    let missing =
        bytes.div_ceil(UNIT_BYTES).saturating_sub(held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits));
    let taken = u32::try_from(missing).ok().and_then(|more| units.clone().try_acquire_many_owned(more).ok());
    match (taken, held) {
        (None, _) => return false,
        (Some(taken), Some(held)) => held.merge(taken),
        (Some(taken), held) => *held = Some(taken),
    }
    true
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.room.released_bytes.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

/// Has freed memory given back while large requests come and after them; of small ones the allocator keeps
/// little.
pub async fn give_back(room: Room, give_freed_memory_back: fn()) -> Infallible {
    let mut times = 0;
    loop {
        tokio::time::sleep(GIVE_BACK_EVERY).await;
        if room.released_bytes.swap(0, Ordering::Relaxed) >= GIVE_BACK_BYTES {
            times = GIVE_BACK_TIMES;
        }
        if times > 0 {
            times -= 1;
            // A panic of it ends nothing here.
            let _ = tokio::task::spawn_blocking(give_freed_memory_back).await;
        }
    }
}

/// Reads a body as JSON and makes of it and its text what `take` does, both where a large one holds up
/// nobody. What it takes counts until the lease is dropped.
pub async fn read_json<T: Send + 'static>(
    headers: &HeaderMap,
    body: Body,
    app: &App,
    take: fn(Value, &str) -> Result<T, ApiError>,
) -> Result<(T, Lease), ApiError> {
    let mut lease = app.room.lease();
    let bytes = read(headers, body, &app.options, &mut lease).await?;
    // Its texts are copied.
    lease.grow(bytes.len())?;
    if bytes.len() <= PARSED_AT_ONCE_BYTES {
        return Ok((parse(&bytes, take)?, lease));
    }
    // It goes on when the client has gone, and takes its room until it is over.
    let parse = move || (parse(&bytes, take), lease);
    let (value, lease) = tokio::task::spawn_blocking(parse)
        .await
        .map_err(|_| ApiError::internal("parsing the body broke off"))?;
    Ok((value?, lease))
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
    let (mut bytes, mut scan) = (Vec::new(), Scan::default());
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
        let counted = scan.document_bytes();
        let held = scan.feed(&data).map_err(|too_much| refusal(too_much).closing());
        if let Err(refusal) = held.and_then(|()| lease.grow(data.len() + scan.document_bytes() - counted)) {
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

fn refusal(too_much: TooMuch) -> ApiError {
    let (status, code) = match too_much {
        TooMuch::Depth(_) => (StatusCode::BAD_REQUEST, "invalid_json"),
        TooMuch::Containers | TooMuch::Values => (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"),
    };
    ApiError::invalid(status, code, too_much.to_string())
}

fn too_large(options: &ServerOptions) -> ApiError {
    let message = format!("the body has more than {} bytes", options.body_bytes_max);
    ApiError::invalid(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message).closing()
}

fn too_slow(options: &ServerOptions) -> ApiError {
    let message = format!("the body did not arrive within {} s", options.body_timeout.as_secs_f32());
    ApiError::invalid(StatusCode::REQUEST_TIMEOUT, "body_too_slow", message).closing()
}

/// How the parser's complaint about a number begins; the place follows.
const OUT_OF_RANGE: &str = "number out of range";

fn parse<T>(bytes: &[u8], take: fn(Value, &str) -> Result<T, ApiError>) -> Result<T, ApiError> {
    let bad = |code, message: String| ApiError::invalid(StatusCode::BAD_REQUEST, code, message);
    let text = std::str::from_utf8(bytes).map_err(|e| {
        let before = &bytes[..e.valid_up_to()];
        let line = before.iter().filter(|b| **b == b'\n').count() + 1;
        let column = before.iter().rev().take_while(|b| **b != b'\n').count() + 1;
        bad("invalid_utf8", format!("the body is not UTF-8: bad byte at line {line} column {column}"))
    })?;
    let value = serde_json::from_str(text).map_err(|e| {
        let reason = e.to_string();
        match reason.strip_prefix(OUT_OF_RANGE) {
            // JSON has it, and leaves it to whoever reads how large a number may be.
            Some(place) => bad(
                "number_out_of_range",
                format!("the number{place} is larger than any that exo reads: send one up to 1.7e308"),
            ),
            None => bad("invalid_json", format!("the body is not valid JSON: {reason}")),
        }
    })?;
    take(value, text)
}

/// Reads the body into a small request type of ours.
pub async fn read_typed<T: serde::de::DeserializeOwned + Send + 'static>(
    headers: &HeaderMap,
    body: Body,
    app: &App,
) -> Result<T, ApiError> {
    let take = |value, _: &str| {
        serde_json::from_value(value)
            .map_err(|e| ApiError::invalid(StatusCode::BAD_REQUEST, "invalid_value", e.to_string()))
    };
    Ok(read_json(headers, body, app, take).await?.0)
}

/// A JSON answer.
pub fn json<T: serde::Serialize>(value: &T) -> Response {
    use axum::response::IntoResponse;
    axum::Json(value).into_response()
}
