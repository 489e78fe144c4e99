//! Reads frames from any stream of bytes, whoever wrote them.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::{Frame, FrameLimits, HEADER_BYTES, Header};
use crate::errors::FrameError;

/// Room made ahead of the bytes that have arrived. A peer that announces 64 MiB and sends nothing costs this.
const GROWTH_BYTES_MIN: usize = 16 << 10;

/// The receiving half of a channel.
///
/// [`FrameReader::next`] may be dropped at any await point: what has arrived stays and the next call goes on.
pub struct FrameReader {
    raw: Box<dyn AsyncRead + Send + Unpin>,
    limits: FrameLimits,
    header: [u8; HEADER_BYTES],
    header_len: usize,
    pending: Option<Header>,
    payload: BytesMut,
    received_bytes: u64,
    /// Set once nothing more can be read in step with the sender.
    dead: Option<FrameError>,
    /// Kept alive as long as this half.
    _guard: Option<Arc<dyn Any + Send + Sync>>,
}

impl FrameReader {
    /// Reads frames from any stream: tests, fuzzing, and the halves of a channel.
    pub fn over(raw: impl AsyncRead + Send + Unpin + 'static, limits: FrameLimits) -> Self {
        Self {
            raw: Box::new(raw),
            limits,
            header: [0; HEADER_BYTES],
            header_len: 0,
            pending: None,
            payload: BytesMut::new(),
            received_bytes: 0,
            dead: None,
            _guard: None,
        }
    }

    /// What may come from now on, where that is less than what may be sent.
    pub fn set_limits(&mut self, limits: FrameLimits) {
        self.limits = limits;
    }

    pub(crate) fn keep_alive(&mut self, guard: Arc<dyn Any + Send + Sync>) {
        self._guard = Some(guard);
    }

    /// The next whole frame. `within` bounds the wait; `None` waits as long as the connection lives.
    pub async fn next(&mut self, within: Option<Duration>) -> Result<Frame, FrameError> {
        if let Some(error) = &self.dead {
            return Err(error.clone());
        }
        let outcome = match within {
            None => self.read_frame().await,
            Some(within) => match tokio::time::timeout(within, self.read_frame()).await {
                Ok(outcome) => outcome,
                Err(_) => return Err(FrameError::Timeout { within }),
            },
        };
        if let Err(error) = &outcome {
            self.dead = Some(error.clone());
            self.payload = BytesMut::new();
        }
        outcome
    }

    /// Waits, however long, until something of the next frame has come, or none will: what
    /// [`FrameReader::next`] says then. While a channel is silent no timer runs for it.
    pub async fn begin(&mut self) {
        if self.dead.is_some() || self.pending.is_some() || self.header_len > 0 {
            return;
        }
        if let Err(error) = self.read_of_header().await {
            self.dead = Some(error);
        }
    }

    /// Bytes that have arrived in all, also of a frame that is not whole yet: while they grow, the sender
    /// lives.
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    async fn read_frame(&mut self) -> Result<Frame, FrameError> {
        let header = match self.pending {
            Some(header) => header,
            None => self.read_header().await?,
        };
        while self.payload.len() < header.len {
            let missing = header.len - self.payload.len();
            // Doubles what has arrived, so that copying stays linear and memory follows the sender's effort.
            self.payload.reserve(missing.min(self.payload.len().max(GROWTH_BYTES_MIN)));
            let room = missing.min(self.payload.capacity() - self.payload.len());
            let read = self.raw.read_buf(&mut (&mut self.payload).limit(room)).await;
            match read {
                Ok(n @ 1..) => self.received_bytes += n as u64,
                _ => return Err(FrameError::Closed { clean: false }),
            }
        }
        (self.pending, self.header_len) = (None, 0);
        Ok(Frame { kind: header.kind, payload: self.payload.split().freeze() })
    }

    async fn read_header(&mut self) -> Result<Header, FrameError> {
        while self.header_len < HEADER_BYTES {
            self.read_of_header().await?;
        }
        let header = Header::decode(self.header, self.limits)?;
        self.pending = Some(header);
        Ok(header)
    }

    /// What has come of a header.
    async fn read_of_header(&mut self) -> Result<(), FrameError> {
        match self.raw.read(&mut self.header[self.header_len..]).await {
            Ok(0) => Err(FrameError::Closed { clean: self.header_len == 0 }),
            Ok(n) => {
                self.header_len += n;
                self.received_bytes += n as u64;
                Ok(())
            }
            Err(error) => {
                tracing::trace!(%error, "channel broke");
                Err(FrameError::Closed { clean: false })
            }
        }
    }

    /// Bytes set aside for a frame that is still arriving.
    #[cfg(test)]
    fn reserved_bytes(&self) -> usize {
        self.payload.capacity()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::AsyncWriteExt;

    use super::*;

    const LIMITS: FrameLimits = FrameLimits { payload_bytes_max: 64 << 20 };

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
    }

    /// All frames in `bytes`, then how it ended.
    fn read_all(bytes: Vec<u8>, limits: FrameLimits) -> (Vec<Frame>, FrameError) {
        runtime().block_on(async {
            let mut reader = FrameReader::over(std::io::Cursor::new(bytes), limits);
            let mut frames = Vec::new();
            loop {
                match reader.next(None).await {
                    Ok(frame) => frames.push(frame),
                    Err(error) => return (frames, error),
                }
            }
        })
    }

    #[test]
    fn an_announced_length_alone_reserves_almost_nothing() {
        runtime().block_on(async {
            let (mut tx, rx) = tokio::io::duplex(64);
            let mut reader = FrameReader::over(rx, LIMITS);
            tx.write_all(&Header::encode(7, 64 << 20)).await.unwrap();
            tx.write_all(b"tiny").await.unwrap();
            let within = Duration::from_millis(50);
            assert_eq!(reader.next(Some(within)).await, Err(FrameError::Timeout { within }));
            assert!(reader.reserved_bytes() <= 2 * GROWTH_BYTES_MIN, "{}", reader.reserved_bytes());
        });
    }

    #[test]
    fn a_frame_that_arrives_over_several_timeouts_is_whole() {
        runtime().block_on(async {
            let (mut tx, rx) = tokio::io::duplex(64);
            let mut reader = FrameReader::over(rx, LIMITS);
            let mut wire = Header::encode(3, 5).to_vec();
            wire.extend_from_slice(b"hello");
            for byte in &wire[..wire.len() - 1] {
                let before = reader.received_bytes();
                tx.write_all(&[*byte]).await.unwrap();
                assert!(reader.next(Some(Duration::from_millis(5))).await.is_err());
                assert_eq!(reader.received_bytes(), before + 1, "a part of a frame is a sign of life");
            }
            tx.write_all(&wire[wire.len() - 1..]).await.unwrap();
            assert_eq!(reader.next(None).await.unwrap().payload, &b"hello"[..]);
        });
    }

    #[test]
    fn a_silent_channel_is_waited_for_without_a_bound_and_a_frame_that_has_begun_is_not() {
        runtime().block_on(async {
            let (mut tx, rx) = tokio::io::duplex(64);
            let mut reader = FrameReader::over(rx, LIMITS);
            assert!(
                tokio::time::timeout(Duration::from_millis(20), reader.begin()).await.is_err(),
                "silence"
            );
            tx.write_all(&Header::encode(3, 1)[..2]).await.unwrap();
            for _ in 0..2 {
                reader.begin().await;
                assert_eq!(reader.received_bytes(), 2);
            }
            let within = Duration::from_millis(5);
            assert_eq!(reader.next(Some(within)).await, Err(FrameError::Timeout { within }));
            tx.write_all(&Header::encode(3, 1)[2..]).await.unwrap();
            tx.write_all(b"a").await.unwrap();
            assert_eq!(reader.next(None).await.unwrap().payload, &b"a"[..]);
            drop(tx);
            for _ in 0..2 {
                reader.begin().await;
                assert_eq!(reader.next(None).await, Err(FrameError::Closed { clean: true }));
            }
        });
    }

    #[test]
    fn an_oversize_frame_is_refused_for_good() {
        let limits = FrameLimits { payload_bytes_max: 4 };
        let mut wire = Header::encode(1, 5).to_vec();
        wire.extend_from_slice(&[0; 32]);
        let error = FrameError::TooLarge { kind: 1, announced_bytes: 5, max_bytes: 4 };
        assert_eq!(read_all(wire, limits), (vec![], error));
    }

    #[test]
    fn an_end_inside_a_frame_is_not_clean() {
        let mut wire = Header::encode(1, 2).to_vec();
        assert_eq!(read_all(wire[..3].to_vec(), LIMITS).1, FrameError::Closed { clean: false });
        wire.push(0);
        assert_eq!(read_all(wire.clone(), LIMITS).1, FrameError::Closed { clean: false });
        wire.push(0);
        let (frames, end) = read_all(wire, LIMITS);
        assert_eq!((frames.len(), end), (1, FrameError::Closed { clean: true }));
    }

    proptest! {
        #[test]
        fn reading_garbage_never_panics_and_always_ends(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            read_all(bytes, FrameLimits { payload_bytes_max: 64 });
        }

        /// Near-valid bytes reach further than random ones.
        #[test]
        fn damaged_frames_never_panic(
            payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 1..6),
            at in any::<prop::sample::Index>(),
            flip in 0u8..,
        ) {
            let mut wire = Vec::new();
            for payload in &payloads {
                wire.extend_from_slice(&Header::encode(1, payload.len() as u32));
                wire.extend_from_slice(payload);
            }
            let at = at.index(wire.len());
            wire[at] ^= flip;
            let (frames, _) = read_all(wire, FrameLimits { payload_bytes_max: 64 });
            if flip == 0 {
                let read: Vec<_> = frames.iter().map(|f| f.payload.to_vec()).collect();
                prop_assert_eq!(read, payloads);
            }
        }
    }
}
