//! Room for what clients make this process hold, counted in bytes: of each request, and in sum.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::errors::ApiError;

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

    /// Room of a request that has taken none yet.
    pub fn lease(&self) -> Lease {
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
