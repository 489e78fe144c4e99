//! The two tasks behind a channel to a member: one writes what is queued, one reads and tells the core.
//!
//! Both sides may dial at once, and one of the two channels goes. So that no message is ever in that one, each side sends
//! `Accept` first on the channel that it keeps, and messages only once the peer's `Accept` is here: then the link is open.

use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_cluster::wire::{WIRE_VERSION, limits};
use exo_transport::{Channel, FrameLimits, FrameReader, FrameWriter, Via};
use exo_types::{NodeId, Time};
use tokio::sync::mpsc;

use crate::core::{CoreEvent, CoreSender};

/// Messages that may wait for a slow peer; one more and the link is given up.
const QUEUE_LEN_MAX: usize = 1024;
/// A link carries at least a ping this often.
pub const PING_EVERY: Duration = Duration::from_millis(1000);
/// No frame for this long and the link is dead, whatever the transport says.
const SILENCE_MAX: Duration = Duration::from_secs(6);

const KIND_MESSAGE: u8 = 1;
const KIND_PING: u8 = 2;
const KIND_PONG: u8 = 3;
/// The sender keeps this link. Carries the version of its messages.
const KIND_ACCEPT: u8 = 4;

/// What a channel between members is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Purpose {
    /// [`exo_cluster::wire::ControlMessage`]s, over QUIC where it works.
    Control,
    /// [`exo_cluster::wire::DataMessage`]s, over TCP where it works: its reset tells of a death at once.
    Data,
    /// Questions for chunks of model files.
    Bulk,
}

impl Purpose {
    /// Its byte in the hello.
    pub fn byte(self) -> u8 {
        match self {
            Self::Control => 1,
            Self::Data => 2,
            Self::Bulk => 3,
        }
    }

    /// What a peer's byte means.
    pub fn from_byte(byte: u8) -> Option<Self> {
        [Self::Control, Self::Data, Self::Bulk].into_iter().find(|p| p.byte() == byte)
    }

    fn limits(self) -> FrameLimits {
        let max = match self {
            Self::Control => limits::CONTROL_BYTES_MAX + 16,
            Self::Data => limits::DATA_HEADER_BYTES_MAX + limits::ROWS_BYTES_MAX + 16,
            Self::Bulk => 64 << 20,
        };
        FrameLimits { payload_bytes_max: max as u32 }
    }
}

/// Splits a channel with the bounds of its purpose.
pub fn split(channel: Channel, purpose: Purpose) -> (FrameWriter, FrameReader) {
    channel.split(purpose.limits())
}

enum Outgoing {
    Accept,
    Message(Vec<u8>),
    Ping,
    Pong(Vec<u8>),
}

/// Who has said that the link stays.
#[derive(Clone, Copy, Default)]
struct Accepts {
    ours: bool,
    peers: bool,
}

/// The sending end of a link. Dropping it closes the link.
pub struct Link {
    /// Tells this link from an earlier one to the same peer.
    pub id: u64,
    /// Over what.
    pub via: Via,
    /// Whether this side dialled.
    pub initiator: bool,
    /// When the channel came up.
    pub since: Time,
    accepts: Accepts,
    queue: mpsc::Sender<Outgoing>,
}

impl Link {
    /// Starts both tasks. Neither side has accepted it yet.
    pub fn start(id: u64, since: Time, channel: Channel, purpose: Purpose, core: CoreSender) -> Self {
        let (peer, via, initiator) = (channel.peer, channel.via, channel.initiator);
        let (writer, reader) = split(channel, purpose);
        let (queue, outgoing) = mpsc::channel(QUEUE_LEN_MAX);
        let end = Arc::new(End { peer, purpose, id, core });
        // The reader holds the queue weakly: only the core keeps a link open.
        tokio::spawn(read(reader, queue.downgrade(), end.clone()));
        tokio::spawn(write(writer, outgoing, end));
        Self { id, via, initiator, since, accepts: Accepts::default(), queue }
    }

    /// Says that this side keeps the link.
    pub fn accept(&mut self) {
        if !std::mem::replace(&mut self.accepts.ours, true) {
            let _ = self.queue.try_send(Outgoing::Accept);
        }
    }

    /// The peer keeps it.
    pub fn accepted(&mut self) {
        self.accepts.peers = true;
    }

    /// Whether both sides keep it: messages may be sent.
    pub fn is_open(&self) -> bool {
        self.accepts.ours && self.accepts.peers
    }

    /// Queues a message; `false` if the link is closed or the peer takes nothing any more.
    pub fn send(&self, bytes: Vec<u8>) -> bool {
        self.queue.try_send(Outgoing::Message(bytes)).is_ok()
    }

    /// Queues a ping.
    pub fn ping(&self) {
        let _ = self.queue.try_send(Outgoing::Ping);
    }
}

/// Tells the core once when either task ends.
struct End {
    peer: NodeId,
    purpose: Purpose,
    id: u64,
    core: CoreSender,
}

impl End {
    async fn closed(&self, reason: String) {
        let event = CoreEvent::LinkClosed { peer: self.peer, purpose: self.purpose, id: self.id, reason };
        let _ = self.core.send(event).await;
    }
}

async fn write(mut writer: FrameWriter, mut outgoing: mpsc::Receiver<Outgoing>, end: Arc<End>) {
    while let Some(item) = outgoing.recv().await {
        let sent = match item {
            Outgoing::Accept => writer.send(KIND_ACCEPT, &[&[WIRE_VERSION]]).await,
            Outgoing::Message(bytes) => writer.send(KIND_MESSAGE, &[&bytes]).await,
            Outgoing::Ping => writer.send(KIND_PING, &[&own_clock_us().to_le_bytes()]).await,
            Outgoing::Pong(stamp) => writer.send(KIND_PONG, &[&stamp]).await,
        };
        if let Err(error) = sent {
            return end.closed(error.to_string()).await;
        }
    }
    let _ = tokio::time::timeout(Duration::from_secs(1), writer.finish()).await;
}

/// Microseconds of this process's own clock. A ping carries it out and back, so no two clocks are compared.
fn own_clock_us() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_micros() as u64
}

async fn read(mut reader: FrameReader, queue: mpsc::WeakSender<Outgoing>, end: Arc<End>) {
    let mut is_accepted = false;
    loop {
        let frame = match reader.next(Some(SILENCE_MAX)).await {
            Ok(frame) => frame,
            Err(error) => return end.closed(error.to_string()).await,
        };
        let event = match frame.kind {
            KIND_ACCEPT if *frame.payload != [WIRE_VERSION] => {
                return end.closed(other_version(end.peer, &frame.payload)).await;
            }
            KIND_ACCEPT => {
                is_accepted = true;
                CoreEvent::LinkAccepted { peer: end.peer, purpose: end.purpose, id: end.id }
            }
            KIND_MESSAGE if !is_accepted => {
                return end.closed("a message on a link that the peer has not accepted".to_owned()).await;
            }
            KIND_MESSAGE => CoreEvent::Frame { peer: end.peer, purpose: end.purpose, bytes: frame.payload },
            KIND_PING => {
                if let Some(queue) = queue.upgrade() {
                    let _ = queue.try_send(Outgoing::Pong(frame.payload.to_vec()));
                }
                continue;
            }
            KIND_PONG => match round_trip(&frame.payload) {
                Some(rtt) => CoreEvent::RoundTrip { peer: end.peer, purpose: end.purpose, rtt },
                None => return end.closed("a pong that answers no ping".to_owned()).await,
            },
            other => return end.closed(format!("a frame of unknown kind {other}")).await,
        };
        if end.core.send(event).await.is_err() {
            return;
        }
    }
}

fn other_version(peer: NodeId, payload: &[u8]) -> String {
    let got = payload.first().copied().unwrap_or(0);
    tracing::warn!(%peer, got, own = WIRE_VERSION, "a member speaks another version; install the same one on both");
    format!("the peer speaks version {got}, this node {WIRE_VERSION}")
}

fn round_trip(payload: &[u8]) -> Option<Duration> {
    let sent = u64::from_le_bytes(payload.try_into().ok()?);
    own_clock_us().checked_sub(sent).map(Duration::from_micros)
}
