//! Writes frames, header and parts in one go, without copying the parts.

use std::any::Any;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::{FrameLimits, Header};
use crate::errors::SendError;

/// A peer that takes nothing for this long is treated as gone, so that no sender waits for ever.
const STALL_MAX: Duration = Duration::from_secs(30);
/// How long a finishing sender waits for its last bytes to be taken.
const FINISH_MAX: Duration = Duration::from_secs(5);

/// A stream that can also be broken off, so that the peer sees an end that is not clean.
pub(crate) trait RawSend: AsyncWrite + Send + Unpin {
    fn abort(&mut self);
}

/// The sending half of a channel.
///
/// Dropped without [`FrameWriter::finish`] it breaks the channel: the peer reads `Closed { clean: false }`.
pub struct FrameWriter {
    raw: Box<dyn RawSend>,
    limits: FrameLimits,
    stall_max: Duration,
    state: WriterState,
    /// Kept alive as long as this half.
    _guard: Option<Arc<dyn Any + Send + Sync>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WriterState {
    Between,
    /// A frame is on its way; still so at the next call if that send was cancelled.
    Inside,
    Finished,
    Broken,
}

impl FrameWriter {
    pub(crate) fn over(raw: Box<dyn RawSend>, limits: FrameLimits) -> Self {
        Self { raw, limits, stall_max: STALL_MAX, state: WriterState::Between, _guard: None }
    }

    pub(crate) fn set_limits(&mut self, limits: FrameLimits) {
        self.limits = limits;
    }

    pub(crate) fn keep_alive(&mut self, guard: Arc<dyn Any + Send + Sync>) {
        self._guard = Some(guard);
    }

    /// How long the peer may take no byte before [`SendError::Stalled`]; 30 s unless set.
    pub fn set_stall_max(&mut self, stall_max: Duration) {
        self.stall_max = stall_max;
    }

    /// Sends one frame made of `parts` in order. Waits while the peer reads slower than we write. Dropping
    /// the future half-way breaks the channel; run it to its end, or expect [`SendError::CutOff`].
    pub async fn send(&mut self, kind: u8, parts: &[&[u8]]) -> Result<(), SendError> {
        match self.state {
            WriterState::Between => {}
            WriterState::Inside => return Err(SendError::CutOff),
            WriterState::Finished | WriterState::Broken => return Err(SendError::Closed),
        }
        let bytes = parts.iter().map(|p| p.len() as u64).sum();
        let max_bytes = self.limits.payload_bytes_max;
        let len = u32::try_from(bytes).ok().filter(|len| *len <= max_bytes);
        let len = len.ok_or(SendError::TooLarge { kind, bytes, max_bytes })?;
        self.state = WriterState::Inside;
        let outcome = self.write_frame(&Header::encode(kind, len), parts).await;
        self.state = if outcome.is_ok() { WriterState::Between } else { WriterState::Broken };
        if outcome.is_err() {
            self.raw.abort();
        }
        outcome
    }

    async fn write_frame(&mut self, header: &[u8], parts: &[&[u8]]) -> Result<(), SendError> {
        let mut slices: Vec<_> = std::iter::once(header)
            .chain(parts.iter().copied())
            .filter(|part| !part.is_empty())
            .map(IoSlice::new)
            .collect();
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            let written = patiently(self.stall_max, self.raw.write_vectored(rest)).await?;
            if written == 0 {
                return Err(SendError::Closed);
            }
            IoSlice::advance_slices(&mut rest, written);
        }
        patiently(self.stall_max, self.raw.flush()).await
    }

    /// Says that no more frames follow; the other direction stays open. Does nothing the second time.
    pub async fn finish(&mut self) -> Result<(), SendError> {
        match self.state {
            WriterState::Finished => return Ok(()),
            WriterState::Inside => return Err(SendError::CutOff),
            WriterState::Broken => return Err(SendError::Closed),
            WriterState::Between => {}
        }
        let outcome = patiently(FINISH_MAX, self.raw.shutdown()).await;
        self.state = if outcome.is_ok() { WriterState::Finished } else { WriterState::Broken };
        outcome
    }
}

impl Drop for FrameWriter {
    fn drop(&mut self) {
        if self.state != WriterState::Finished {
            self.raw.abort();
        }
    }
}

async fn patiently<T>(within: Duration, io: impl Future<Output = io::Result<T>>) -> Result<T, SendError> {
    match tokio::time::timeout(within, io).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => {
            tracing::trace!(%error, "channel broke");
            Err(SendError::Closed)
        }
        Err(_) => Err(SendError::Stalled { within }),
    }
}
