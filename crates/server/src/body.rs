//! Reading a request's body: bounded in bytes and time, alone and in sum with all others, then parsed.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::header::{CONTENT_LENGTH, EXPECT};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body_util::BodyExt;
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

use crate::app::App;
use crate::client_memory::Lease;
use crate::errors::ApiError;
use crate::guard::Peer;
use crate::options::ServerOptions;
use crate::scan::{Scan, TooMuch};

/// For how long, and how much of, a body that is too large is read and thrown away. A client that is still
/// sending when the connection closes sees a reset instead of the answer that tells it why.
const DRAIN_TIME: Duration = Duration::from_secs(5);
const DRAIN_BYTES: usize = 256 << 20;

/// Of a request that shows who sends it in its body alone. A code or a secret is a fraction of this, and what
/// a connection reads ahead is more.
const UNPROVEN_BYTES_MAX: usize = 4 << 10;

/// A document of more bytes is parsed where it holds up nobody.
const PARSED_AT_ONCE_BYTES: usize = 64 << 10;

/// Reads a body as JSON and makes of it and its text what `take` does, both where a large one holds up
/// nobody. What it takes counts until the lease is dropped.
pub async fn read_json<T: Send + 'static>(
    headers: &HeaderMap,
    body: Body,
    app: &App,
    take: fn(Value, &str) -> Result<T, ApiError>,
) -> Result<(T, Lease), ApiError> {
    let mut lease = app.room.lease();
    let bytes_max = app.options.body_bytes_max;
    let bytes = read(headers, body, (&app.options, bytes_max), Some(&mut lease)).await?;
    // Its texts are copied.
    lease.grow(bytes.len())?;
    if bytes.len() <= PARSED_AT_ONCE_BYTES {
        return Ok((parse(&bytes, take)?, lease));
    }
    // It goes on when the client has gone, and takes its room until it is over.
    let parse = move || (parse(&bytes, take), lease);
    let (value, lease) = app.compute.run(app.options.body_timeout, parse).await?;
    Ok((value?, lease))
}

/// Reads the body of a request that nobody has shown anything for yet. It takes no room of those who are
/// known, and becomes nothing but what is asked for.
pub async fn read_unproven<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
    options: &ServerOptions,
) -> Result<T, ApiError> {
    read_uncounted(headers, body, (options, UNPROVEN_BYTES_MAX)).await
}

async fn read_uncounted<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
    bounds: (&ServerOptions, usize),
) -> Result<T, ApiError> {
    let bytes = read(headers, body, bounds, None).await?;
    serde_json::from_slice(&bytes).map_err(|e| {
        let code = if e.is_data() { "invalid_value" } else { "invalid_json" };
        ApiError::invalid(StatusCode::BAD_REQUEST, code, e.to_string())
    })
}

/// Whether the node's user sends it: what clients make this process hold keeps no command out.
fn is_owners(request: &Parts) -> bool {
    request.extensions.get::<Peer>() == Some(&Peer::Owner)
}

/// Of at most so many bytes, which are counted with what they become if there is a lease.
async fn read(
    headers: &HeaderMap,
    mut body: Body,
    (options, bytes_max): (&ServerOptions, usize),
    mut lease: Option<&mut Lease>,
) -> Result<Bytes, ApiError> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|n| n > bytes_max as u64) {
        // Who asks first has sent nothing yet, and must not be told to go on.
        if !headers.contains_key(EXPECT) {
            tokio::spawn(drain(body));
        }
        return Err(too_large(bytes_max));
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
        if bytes.len() + data.len() > bytes_max {
            tokio::spawn(drain(body));
            return Err(too_large(bytes_max));
        }
        if let Some(lease) = &mut lease {
            let counted = scan.document_bytes();
            let held = scan.feed(&data).map_err(|too_much| refusal(too_much).closing());
            let grown = held.and_then(|()| lease.grow(data.len() + scan.document_bytes() - counted));
            if let Err(refusal) = grown {
                tokio::spawn(drain(body));
                return Err(refusal);
            }
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

fn too_large(bytes_max: usize) -> ApiError {
    let message = format!("the body has more than {bytes_max} bytes");
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

/// A body that is a small request type of ours.
pub struct JsonBody<T>(pub T);

impl<T: DeserializeOwned + Send + 'static> FromRequest<Arc<App>> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        if is_owners(&parts) {
            let bounds = (&app.options, app.options.body_bytes_max);
            return Ok(Self(read_uncounted(&parts.headers, body, bounds).await?));
        }
        let take = |value, _: &str| {
            serde_json::from_value(value)
                .map_err(|e| ApiError::invalid(StatusCode::BAD_REQUEST, "invalid_value", e.to_string()))
        };
        Ok(Self(read_json(&parts.headers, body, app, take).await?.0))
    }
}

/// The body of a request that needs none: nothing, or a JSON document.
pub struct NoBody;

impl FromRequest<Arc<App>> for NoBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        let has_body = parts.headers.get(CONTENT_LENGTH).is_some_and(|n| n != "0");
        if has_body && is_owners(&parts) {
            let bounds = (&app.options, app.options.body_bytes_max);
            read_uncounted::<IgnoredAny>(&parts.headers, body, bounds).await?;
        } else if has_body {
            read_json(&parts.headers, body, app, |_, _| Ok(())).await?;
        }
        Ok(Self)
    }
}

/// A JSON answer.
pub fn json<T: Serialize>(value: &T) -> Response {
    axum::Json(value).into_response()
}
