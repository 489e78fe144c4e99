//! The one thing a stranger may do: a short exchange of small messages, with its key proven.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use exo_types::NodeId;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

use crate::frame::{FrameLimits, HEADER_BYTES, Header};
use crate::join_slots::{JOIN_CONCURRENT_MAX, JoinSlot};

/// Bytes a join exchange may carry in each direction, framing included.
pub const JOIN_BYTES_MAX: usize = 4096;
/// How long a join exchange may last.
pub const JOIN_TIME_MAX: Duration = Duration::from_secs(5);

/// The join exchange failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum JoinError {
    /// Its 5 seconds are over.
    #[error("the join exchange took longer than {} s", JOIN_TIME_MAX.as_secs())]
    Timeout,
    /// Its 4 KiB in one direction are used up.
    #[error("the join exchange is larger than {} bytes", JOIN_BYTES_MAX)]
    TooLarge,
    /// Its place is somebody else's.
    #[error("{} join exchanges run at once, and another one came", JOIN_CONCURRENT_MAX)]
    CrowdedOut,
    #[error("the other side ended the join exchange")]
    Closed,
    #[error("the other side broke the join exchange: {0}")]
    Protocol(String),
}

pub(crate) trait RawDuplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> RawDuplex for T {}

/// A join exchange with a node that proved its key and nothing else. Dropping it hangs up.
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct JoinChannel {
    /// The other side's proven key.
    pub peer: NodeId,
    pub remote: SocketAddr,
    pub initiator: bool,
    stream: Box<dyn RawDuplex>,
    exporter: [u8; 32],
    deadline: Instant,
    sent_bytes: usize,
    received_bytes: usize,
    /// Of the accepting side.
    place: Option<JoinSlot>,
}

impl JoinChannel {
    pub(crate) fn new(
        peer: NodeId,
        remote: SocketAddr,
        initiator: bool,
        stream: impl RawDuplex + 'static,
        exporter: [u8; 32],
        place: Option<JoinSlot>,
    ) -> Self {
        Self {
            peer,
            remote,
            initiator,
            stream: Box::new(stream),
            exporter,
            deadline: Instant::now() + JOIN_TIME_MAX,
            sent_bytes: 0,
            received_bytes: 0,
            place,
        }
    }

    /// A secret that only the two ends of this connection know (the TLS exporter): a code that is proven over
    /// it cannot be relayed by somebody in between.
    pub fn exporter(&self) -> &[u8; 32] {
        &self.exporter
    }

    /// Sends one message.
    pub async fn send(&mut self, kind: u8, payload: &[u8]) -> Result<(), JoinError> {
        let total = self.sent_bytes + HEADER_BYTES + payload.len();
        if total > JOIN_BYTES_MAX {
            return Err(JoinError::TooLarge);
        }
        self.sent_bytes = total;
        let mut bytes = Header::encode(kind, payload.len() as u32).to_vec();
        bytes.extend_from_slice(payload);
        let stream = &mut self.stream;
        let write = async {
            stream.write_all(&bytes).await?;
            stream.flush().await
        };
        in_time(self.deadline, self.place.as_mut(), write).await
    }

    /// The next message.
    pub async fn recv(&mut self) -> Result<(u8, Vec<u8>), JoinError> {
        let left = JOIN_BYTES_MAX.saturating_sub(self.received_bytes + HEADER_BYTES);
        let mut head = [0; HEADER_BYTES];
        in_time(self.deadline, self.place.as_mut(), self.stream.read_exact(&mut head)).await?;
        let limits = FrameLimits { payload_bytes_max: left as u32 };
        let header = Header::decode(head, limits).map_err(|error| match error {
            crate::FrameError::TooLarge { .. } => JoinError::TooLarge,
            other => JoinError::Protocol(other.to_string()),
        })?;
        let mut payload = vec![0; header.len]; // at most 4 KiB
        in_time(self.deadline, self.place.as_mut(), self.stream.read_exact(&mut payload)).await?;
        self.received_bytes += HEADER_BYTES + header.len;
        Ok((header.kind, payload))
    }

    /// Says that this side is done and waits, within the exchange's time, until the other side is too, so
    /// that the last message is not lost with the connection.
    pub async fn finish(mut self) -> Result<(), JoinError> {
        let stream = &mut self.stream;
        let hang_up = async {
            stream.shutdown().await?;
            let mut rest = [0; 64];
            for _ in 0..JOIN_BYTES_MAX / rest.len() {
                if stream.read(&mut rest).await? == 0 {
                    break;
                }
            }
            Ok(())
        };
        in_time(self.deadline, self.place.as_mut(), hang_up).await
    }
}

impl fmt::Debug for JoinChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinChannel({} at {})", self.peer, self.remote)
    }
}

async fn in_time<T>(
    deadline: Instant,
    place: Option<&mut JoinSlot>,
    io: impl Future<Output = std::io::Result<T>>,
) -> Result<T, JoinError> {
    // `timeout_at` would let through whatever is ready at once, however late it is.
    if Instant::now() >= deadline {
        return Err(JoinError::Timeout);
    }
    let crowded_out = async {
        match place {
            Some(place) => place.crowded_out().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = crowded_out => Err(JoinError::CrowdedOut),
        io = tokio::time::timeout_at(deadline, io) => match io {
            Ok(outcome) => outcome.map_err(|_| JoinError::Closed),
            Err(_) => Err(JoinError::Timeout),
        },
    }
}
