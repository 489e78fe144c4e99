//! Room for what clients make this process hold, counted in bytes: of each request, and in sum.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

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
    released: Arc<ReleasedBytes>,
}

/// What requests gave back and nobody has looked at since.
#[derive(Default)]
struct ReleasedBytes {
    bytes: AtomicUsize,
    /// They have become [`GIVE_BACK_BYTES`].
    is_much: Notify,
}

impl ReleasedBytes {
    fn add(&self, bytes: usize) {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before < GIVE_BACK_BYTES && before.saturating_add(bytes) >= GIVE_BACK_BYTES {
            self.is_much.notify_one();
        }
    }

    /// Whether they were so many, and from now on none.
    fn take(&self) -> bool {
        self.bytes.swap(0, Ordering::Relaxed) >= GIVE_BACK_BYTES
    }
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
            released: Arc::default(),
        }
    }

    /// Room of a request that has taken none yet.
    pub fn lease(&self) -> Lease {
        Lease { room: self.clone(), bytes: 0, held: None, held_as_large: None }
    }

    /// What all answers together may take.
    pub fn answers_bytes_max(&self) -> usize {
        self.bytes_max / 2
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
                self.answers_bytes_max()
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
        self.room.released.add(self.bytes);
    }
}

/// Has freed memory given back while requests release much, and a few times after that. Before that it waits
/// without a clock.
pub async fn give_back(room: Room, give_freed_memory_back: fn()) -> Infallible {
    let mut times = 0;
    loop {
        if times == 0 {
            room.released.is_much.notified().await;
        }
        tokio::time::sleep(GIVE_BACK_EVERY).await;
        if room.released.take() {
            times = GIVE_BACK_TIMES;
        }
        if times > 0 {
            times -= 1;
            // A panic of it ends nothing here.
            let _ = tokio::task::spawn_blocking(give_freed_memory_back).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn memory_is_given_back_once_requests_have_released_much_and_no_clock_runs_before() {
        let room = Room::new(64 << 20);
        let is_told = || room.released.is_much.notified().now_or_never().is_some();
        let request = |bytes| room.lease().grow(bytes).unwrap();
        request(GIVE_BACK_BYTES - 1);
        assert!(!is_told());
        request(1);
        assert!(is_told() && !is_told(), "once");
        assert!(room.released.take() && !room.released.take());
        request(2 * GIVE_BACK_BYTES);
        assert!(is_told(), "again");
    }
}
