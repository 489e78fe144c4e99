//! What both listeners and both diallers share, and the last steps that turn a proven stream into a channel.

use std::any::Any;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use exo_types::{NodeId, Transport};
use tokio::io::AsyncRead;
use tokio::sync::{mpsc, watch};

use crate::channel::{Channel, Incoming};
use crate::errors::DialError;
use crate::frame::{FrameLimits, FrameReader, FrameWriter, RawSend};
use crate::hello::{self, HELLO_BYTES_MAX, Hello, HelloError};
use crate::join_slots::JoinSlots;
use crate::live::Live;
use crate::members::MemberSet;
use crate::protocols::Protocols;
use crate::renewal::{Renewal, Renewed};

/// Channels that wait to be taken by `accept`.
pub(crate) const QUEUE_MAX: usize = 64;

/// One endpoint's state, shared by its tasks.
pub(crate) struct EndpointState {
    pub(crate) node: NodeId,
    pub(crate) members: MemberSet,
    pub(crate) live: Arc<Live>,
    pub(crate) protocols: Protocols,
    pub(crate) handshake_max: Duration,
    pub(crate) queue: mpsc::Sender<Incoming>,
    /// Join exchanges that may run at once.
    pub(crate) joins: Arc<JoinSlots>,
    pub(crate) renewal: Renewal,
    pub(crate) renewed: Renewed,
    pub(crate) closed: watch::Sender<bool>,
}

/// A stream whose other end is proven, before the hello.
pub(crate) struct Proven {
    pub(crate) peer: NodeId,
    pub(crate) remote: SocketAddr,
    pub(crate) local: Option<IpAddr>,
    pub(crate) via: Transport,
    pub(crate) send: Box<dyn RawSend>,
    pub(crate) recv: Box<dyn AsyncRead + Send + Unpin>,
    /// Lives as long as either half.
    pub(crate) guard: Arc<dyn Any + Send + Sync>,
}

impl Proven {
    fn halves(self) -> (FrameWriter, FrameReader) {
        let limits = FrameLimits { payload_bytes_max: HELLO_BYTES_MAX };
        let mut writer = FrameWriter::over(self.send, limits);
        let mut reader = FrameReader::over(self.recv, limits);
        writer.keep_alive(self.guard.clone());
        reader.keep_alive(self.guard);
        (writer, reader)
    }
}

impl EndpointState {
    pub(crate) fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// The accepting side's hello; queues the channel. Whatever goes wrong ends here, with a line in the log.
    pub(crate) async fn welcome(&self, proven: Proven) {
        let Proven { peer, remote, local, via, .. } = proven;
        let (mut writer, mut reader) = proven.halves();
        let (protocol, purpose) =
            match hello::answer(&mut writer, &mut reader, self.protocols, self.handshake_max).await {
                Ok(agreed) => agreed,
                Err(HelloError::Version { theirs }) => {
                    tracing::warn!(%peer, %theirs, ours = %self.protocols, "no protocol version in common");
                    return;
                }
                Err(error) => {
                    tracing::debug!(%peer, ?error, "channel refused");
                    return;
                }
            };
        let channel =
            Channel { peer, remote, local, via, initiator: false, purpose, protocol, writer, reader };
        let taken = self.queue.send(Incoming::Channel(channel));
        match tokio::time::timeout(self.handshake_max, taken).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => tracing::trace!(%peer, purpose, "a channel of an endpoint that has ended"),
            Err(_) => {
                let within_s = self.handshake_max.as_secs();
                tracing::debug!(%peer, purpose, within_s, "nothing took a channel in its time; it is closed");
            }
        }
    }

    /// The dialling side's hello.
    pub(crate) async fn greet(&self, proven: Proven, purpose: u8) -> Result<Channel, DialError> {
        let Proven { peer, remote, local, via, .. } = proven;
        let (mut writer, mut reader) = proven.halves();
        let ours = Hello { protocols: self.protocols, purpose };
        match hello::greet(&mut writer, &mut reader, ours).await {
            Ok(protocol) => {
                Ok(Channel { peer, remote, local, via, initiator: true, purpose, protocol, writer, reader })
            }
            Err(HelloError::Version { theirs }) => {
                Err(DialError::Version { peer, ours: self.protocols, theirs })
            }
            // Its key is proven and it hung up: the only thing it could dislike is us.
            Err(HelloError::Closed) => Err(DialError::Refused {
                addr: remote,
                why: "it closed the connection; this node is probably not a member there".to_owned(),
            }),
            Err(HelloError::Malformed(why)) => Err(DialError::Broken { addr: remote, why }),
        }
    }
}
