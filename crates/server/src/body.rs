//! Reading a request's body: bounded in bytes and time, then parsed.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, EXPECT};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::Value;

use crate::errors::ApiError;
use crate::options::ServerOptions;

/// For how long, and how much of, a body that is too large is read and thrown away. A client that is still
/// sending when the connection closes sees a reset instead of the answer that tells it why.
const DRAIN_TIME: Duration = Duration::from_secs(5);
const DRAIN_BYTES: usize = 256 << 20;

/// Reads a body as JSON.
pub async fn read_json(headers: &HeaderMap, body: Body, options: &ServerOptions) -> Result<Value, ApiError> {
    let bytes = read(headers, body, options).await?;
    parse(&bytes)
}

async fn read(headers: &HeaderMap, mut body: Body, options: &ServerOptions) -> Result<Bytes, ApiError> {
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
    options: &ServerOptions,
) -> Result<T, ApiError> {
    let value = read_json(headers, body, options).await?;
    serde_json::from_value(value)
        .map_err(|e| ApiError::invalid(StatusCode::BAD_REQUEST, "invalid_value", e.to_string()))
}

/// A JSON answer.
pub fn json<T: serde::Serialize>(value: &T) -> Response {
    use axum::response::IntoResponse;
    axum::Json(value).into_response()
}
