//! Answers that wait for their clients: bounded for each, and in sum with all others and with the bodies of
//! requests.
//!
//! Answers that are collected as a whole count while they are made, streams while they wait. The first bytes
//! of every answer cost nothing, so that a client that reads is never refused for one that does not. What
//! waits beyond them takes room, at most half of the [`Room`]: the other half stays for bodies.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::{Body, HttpBody};
use axum::http::StatusCode;
use axum::http::header::CONTENT_LENGTH;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body_util::BodyExt;

use crate::client_memory::{AnswerLease, Room};
use crate::errors::ApiError;

/// So much of each answer may wait without taking room. With 2048 connections, 64 MiB.
const FREE_BYTES: usize = 32 << 10;
/// A whole answer takes room in such steps while it is collected.
const STEP_BYTES: usize = 16 << 10;

/// Of an answer whose bytes are one copy for all who ask: it takes no room, however many leave it unread.
#[derive(Clone, Copy)]
pub struct OneCopy;

/// What of one answer its client has not taken yet.
pub struct Backlog {
    room: Room,
    unread: Arc<AtomicUsize>,
    unread_max: usize,
}

impl Backlog {
    /// For one answer, of which at most about `unread_max` bytes may wait.
    pub fn new(room: &Room, unread_max: usize) -> Self {
        Self { room: room.clone(), unread: Arc::default(), unread_max }
    }

    /// Bytes that wait.
    pub fn unread_bytes(&self) -> usize {
        self.unread.load(Ordering::Relaxed)
    }

    /// Whether so much waits that its sender should let others run before it goes on.
    pub fn is_behind(&self) -> bool {
        self.unread_bytes() > FREE_BYTES
    }

    /// Whether an answer may add so many bytes to what waits.
    pub fn takes(&self, bytes: usize) -> bool {
        let unread = self.unread_bytes();
        unread == 0 || unread + bytes <= self.unread_max
    }

    /// Counts `bytes` until they are written to the client's socket. An answer of which nothing waits may add
    /// any number of them, if there is room.
    pub fn hold(&self, bytes: Bytes) -> Result<Bytes, ApiError> {
        let unread = self.unread_bytes();
        if unread > 0 && unread + bytes.len() > self.unread_max {
            let message =
                format!("the client did not take {unread} bytes of its answer; the request was ended");
            return Err(ApiError::invalid(StatusCode::REQUEST_TIMEOUT, "slow_reader", message));
        }
        let lease = match unread + bytes.len() > FREE_BYTES {
            true => Some(self.room.hold_answer(bytes.len())?),
            false => None,
        };
        Ok(self.count(bytes, lease))
    }

    /// The last word of an answer; there is always room for it.
    pub fn hold_last(&self, bytes: Bytes) -> Bytes {
        self.count(bytes, None)
    }

    fn count(&self, bytes: Bytes, lease: Option<AnswerLease>) -> Bytes {
        self.unread.fetch_add(bytes.len(), Ordering::Relaxed);
        Bytes::from_owner(Unread { bytes, all: self.unread.clone(), _lease: lease })
    }
}

/// What of a whole answer has been collected. Its room is given back when this is dropped.
pub struct Collected {
    room: Room,
    bytes: usize,
    leases: Vec<AnswerLease>,
}

impl Collected {
    /// Nothing yet.
    pub fn new(room: &Room) -> Self {
        Self { room: room.clone(), bytes: 0, leases: Vec::new() }
    }

    /// Takes room for so many bytes more.
    pub fn add(&mut self, bytes: usize) -> Result<(), ApiError> {
        let (needed, bytes_max) = (self.bytes + bytes, self.room.answers_bytes_max());
        if needed > bytes_max {
            // Whoever asks again later asks in vain.
            let message = format!(
                "the answer would take {needed} bytes of memory, all answers together may take {bytes_max}; ask for less at once"
            );
            return Err(ApiError::invalid(StatusCode::PAYLOAD_TOO_LARGE, "answer_too_large", message));
        }
        let steps = |bytes: usize| bytes.saturating_sub(FREE_BYTES).div_ceil(STEP_BYTES);
        let more = steps(needed) - steps(self.bytes);
        if more > 0 {
            self.leases.push(self.room.hold_answer(more * STEP_BYTES)?);
        }
        self.bytes = needed;
        Ok(())
    }

    /// Takes what is missing to room for so many bytes.
    pub fn add_up_to(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.add(bytes.saturating_sub(self.bytes))
    }
}

/// Bytes on their way to a client. The connection drops them when it has written them, or when it ends.
struct Unread {
    bytes: Bytes,
    all: Arc<AtomicUsize>,
    _lease: Option<AnswerLease>,
}

impl AsRef<[u8]> for Unread {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

/// Counts an answer that is there as a whole until it is written. Streams pass: they count for themselves.
pub async fn hold_whole(room: &Room, response: Response) -> Response {
    let is_free = response.body().size_hint().exact().is_none_or(|bytes| bytes <= FREE_BYTES as u64);
    if is_free || response.extensions().get::<OneCopy>().is_some() {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let held = match body.collect().await {
        Ok(whole) => Backlog::new(room, usize::MAX).hold(whole.to_bytes()),
        Err(error) => Err(ApiError::internal(format!("the answer broke off: {error}"))),
    };
    match held {
        Ok(bytes) => {
            // The length is the body's to tell.
            parts.headers.remove(CONTENT_LENGTH);
            Response::from_parts(parts, Body::from(bytes))
        }
        Err(refusal) => refusal.into_response(),
    }
}
