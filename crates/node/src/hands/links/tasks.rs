//! The two tasks behind a link: one encodes and writes what is queued, one reads and decodes.
//!
//! | kind | frame | payload |
//! |---|---|---|
//! | 1 | message | a [`ControlMessage`] or a [`DataMessage`], as the link's purpose says |
//! | 2 | ping | 16 bytes, the sender's ([`Stamps`]) |
//! | 3 | pong | the same 16 bytes |
//! | 4 | Accept | [`WIRE_VERSION`], then 8 bytes, the little end first: which run of the sender's process this is; once, in front of all messages |
//! | 5 | two processes | none: the reader's key has another process, too. The sender closes the link behind it |
//!
//! The reader alone tells how the link ended, behind all that came over it. Silence is judged by the machine.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use exo_cluster::wire::{ControlMessage, DataMessage, WIRE_VERSION, WireError};
use exo_machine::{Input, LinkEnd, LinkId, Outgoing, Purpose};
use exo_transport::{FrameError, FrameReader, FrameWriter, SendError};
use exo_types::NodeId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::events::{Event, EventSender};
use crate::meters::LinkMeter;

/// For the frames that are queued in a link when it is closed.
pub(super) const FINISH_MAX: Duration = Duration::from_secs(1);
/// For what has arrived when a link can no longer be written to.
const LAST_READ_MAX: Duration = Duration::from_secs(1);
/// A part of a long frame is told of this often.
const PART_EVERY: Duration = Duration::from_secs(1);
/// Bytes of one link that wait for the loop: more wait in the socket. A longer message waits alone.
const UNREAD_BYTES_MAX: u32 = 8 << 20;

const KIND_MESSAGE: u8 = 1;
const KIND_PING: u8 = 2;
const KIND_PONG: u8 = 3;
const KIND_ACCEPT: u8 = 4;
const KIND_TWO_PROCESSES: u8 = 5;

/// A time and what only this link could say of it.
const STAMP_BYTES: usize = 16;

/// What waits to be written.
pub(super) enum Frame {
    Outgoing(Outgoing),
    Pong([u8; STAMP_BYTES]),
}

/// A frame in the queue of its link, with the room that it takes there.
pub(super) struct Queued {
    pub(super) frame: Frame,
    pub(super) _room: Option<OwnedSemaphorePermit>,
}

/// About how much of a queue it takes.
pub(super) fn bytes_about(message: &Outgoing) -> usize {
    match message {
        Outgoing::Accept { .. } | Outgoing::TwoProcesses | Outgoing::Ping => 0,
        Outgoing::Control(message) => message.bytes_about(),
        Outgoing::Data(message) => message.bytes_about(),
    }
}

/// Which link the tasks are behind, and how they reach the loop.
pub(super) struct Ends {
    pub(super) link: LinkId,
    pub(super) peer: NodeId,
    pub(super) purpose: Purpose,
    pub(super) events: EventSender,
    /// Closed from here, or ended.
    pub(super) closed: CancellationToken,
    pub(super) meter: Arc<LinkMeter>,
}

/// Both tasks, the writer's first.
pub(super) fn tasks(
    ends: Ends,
    writer: FrameWriter,
    reader: FrameReader,
    outgoing: mpsc::Receiver<Queued>,
    queue: mpsc::WeakSender<Queued>,
) -> (impl Future<Output = ()> + Send + use<>, impl Future<Output = ()> + Send + use<>) {
    let stamps = Stamps::new();
    let (failed, failure) = oneshot::channel();
    let write = write(writer, outgoing, stamps.clone(), ends.closed.clone(), failed, ends.meter.clone());
    let unread = Arc::new(Semaphore::new(UNREAD_BYTES_MAX as usize));
    let link = LinkReader { ends, queue, stamps, unread, is_accepted: false, received_bytes: 0 };
    (write, read(link, reader, failure))
}

/// Ends behind the last queued frame once the link is closed, or soon after.
async fn write(
    mut writer: FrameWriter,
    mut outgoing: mpsc::Receiver<Queued>,
    stamps: Stamps,
    closed: CancellationToken,
    failed: oneshot::Sender<SendError>,
    meter: Arc<LinkMeter>,
) {
    let all = write_all(&mut writer, &mut outgoing, &stamps, &meter);
    tokio::pin!(all);
    let outcome = tokio::select! {
        outcome = &mut all => outcome,
        () = closed.cancelled() => tokio::time::timeout(FINISH_MAX, all).await.unwrap_or(Ok(())),
    };
    if let Err(error) = outcome {
        let _ = failed.send(error); // a reader that has ended as well has told of it
    }
}

async fn write_all(
    writer: &mut FrameWriter,
    outgoing: &mut mpsc::Receiver<Queued>,
    stamps: &Stamps,
    meter: &LinkMeter,
) -> Result<(), SendError> {
    while let Some(Queued { frame, _room }) = outgoing.recv().await {
        match frame {
            Frame::Outgoing(Outgoing::Accept { incarnation }) => {
                writer.send(KIND_ACCEPT, &[&[WIRE_VERSION], &incarnation.to_le_bytes()]).await?;
            }
            Frame::Outgoing(Outgoing::TwoProcesses) => writer.send(KIND_TWO_PROCESSES, &[]).await?,
            Frame::Outgoing(Outgoing::Ping) => writer.send(KIND_PING, &[&stamps.stamp()]).await?,
            Frame::Pong(stamp) => writer.send(KIND_PONG, &[&stamp]).await?,
            Frame::Outgoing(Outgoing::Control(message)) => {
                let bytes = message.encode();
                writer.send(KIND_MESSAGE, &[&bytes]).await?;
                meter.sent(bytes.len());
            }
            Frame::Outgoing(Outgoing::Data(message)) => {
                let (header, rows) = message.encode_parts();
                writer.send(KIND_MESSAGE, &[&header, &rows]).await?;
                meter.sent(header.len() + rows.len());
            }
        }
    }
    writer.finish().await
}

/// What a link's pings carry out and its pongs carry back: microseconds of the link's own clock, so that no
/// two clocks are compared, and a keyed hash of them, so that no peer answers a ping that it has not seen. A
/// peer may seem further away than it is, and no nearer.
#[derive(Clone)]
pub(super) struct Stamps {
    clock: Instant,
    /// Random, and another for each link.
    key: RandomState,
}

impl Stamps {
    pub(super) fn new() -> Self {
        Self { clock: Instant::now(), key: RandomState::new() }
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn signed(&self, sent_us: u64) -> [u8; STAMP_BYTES] {
        let mut stamp = [0; STAMP_BYTES];
        stamp[..8].copy_from_slice(&sent_us.to_le_bytes());
        stamp[8..].copy_from_slice(&self.key.hash_one(sent_us).to_le_bytes());
        stamp
    }

    fn stamp(&self) -> [u8; STAMP_BYTES] {
        self.signed(self.now_us())
    }

    /// Since the stamp was made; nothing if this link has not made it.
    fn elapsed(&self, stamp: &[u8]) -> Option<Duration> {
        let sent_us = u64::from_le_bytes(*stamp.first_chunk()?);
        let is_own = self.signed(sent_us) == *stamp;
        is_own.then(|| self.now_us().checked_sub(sent_us)).flatten().map(Duration::from_micros)
    }
}

/// Reads until the link ends, then tells how it ended; a link that is closed from here just ends.
async fn read(mut link: LinkReader, mut reader: FrameReader, failure: oneshot::Receiver<SendError>) {
    let closed = link.ends.closed.clone();
    let reason = {
        let all = link.read_all(&mut reader);
        tokio::pin!(all);
        tokio::select! {
            biased;
            () = closed.cancelled() => return,
            reason = &mut all => reason,
            // What has arrived counts, and the reader may know better how it ended.
            Ok(error) = failure => tokio::time::timeout(LAST_READ_MAX, all)
                .await
                .unwrap_or_else(|_| LinkEnd::Reset(error.to_string())),
        }
    };
    closed.cancel();
    if let LinkEnd::Protocol(reason) = &reason {
        tracing::warn!(peer = %link.ends.peer, purpose = ?link.ends.purpose, reason, "a member broke the protocol; cutting the link");
    }
    let down = Input::LinkDown { link: link.ends.link, reason };
    let _ = link.tell(down.into()).await; // the loop may have ended
}

struct LinkReader {
    ends: Ends,
    queue: mpsc::WeakSender<Queued>,
    stamps: Stamps,
    /// Bytes that may still wait for the loop.
    unread: Arc<Semaphore>,
    /// Whether the peer has said Accept.
    is_accepted: bool,
    /// As the reader had received when it was last told of.
    received_bytes: u64,
}

impl LinkReader {
    async fn read_all(&mut self, reader: &mut FrameReader) -> LinkEnd {
        loop {
            reader.begin().await;
            let next = reader.next(Some(PART_EVERY)).await;
            let before = std::mem::replace(&mut self.received_bytes, reader.received_bytes());
            self.ends.meter.received(self.received_bytes.saturating_sub(before));
            let outcome = match next {
                Ok(frame) => self.frame(frame.kind, frame.payload).await,
                Err(FrameError::Timeout { .. }) if self.received_bytes == before => Ok(()),
                Err(FrameError::Timeout { .. }) => self.tell(self.heard(None)).await,
                Err(error @ FrameError::Closed { .. }) => Err(LinkEnd::Reset(error.to_string())),
                Err(error) => Err(LinkEnd::Protocol(error.to_string())),
            };
            if let Err(reason) = outcome {
                return reason;
            }
        }
    }

    async fn frame(&mut self, kind: u8, payload: Bytes) -> Result<(), LinkEnd> {
        match kind {
            KIND_MESSAGE => self.message(payload).await,
            KIND_ACCEPT => self.accept(&payload).await,
            KIND_TWO_PROCESSES => Err(LinkEnd::TwoProcesses),
            KIND_PING => self.pong(&payload),
            KIND_PONG => {
                let rtt = self.stamps.elapsed(&payload);
                let rtt = rtt.ok_or_else(|| LinkEnd::Protocol("a pong that answers no ping".to_owned()))?;
                self.tell(self.heard(Some(rtt))).await
            }
            other => Err(LinkEnd::Protocol(format!("a frame of unknown kind {other}"))),
        }
    }

    async fn message(&self, payload: Bytes) -> Result<(), LinkEnd> {
        if !self.is_accepted {
            return Err(LinkEnd::Protocol("a message in front of Accept".to_owned()));
        }
        // Room for it first: what is decoded waits for the loop alone.
        let bytes = u32::try_from(payload.len()).unwrap_or(u32::MAX).clamp(1, UNREAD_BYTES_MAX);
        let unread = self.unread.clone().acquire_many_owned(bytes).await;
        let input = self.decode(payload).map_err(|error| LinkEnd::Protocol(error.to_string()))?;
        self.tell(Event::Received { input: Box::new(input), _unread: unread.ok() }).await
    }

    fn decode(&self, payload: Bytes) -> Result<Input, WireError> {
        let link = self.ends.link;
        Ok(match self.ends.purpose {
            Purpose::Control => Input::Control { link, message: Box::new(ControlMessage::decode(&payload)?) },
            Purpose::Data => Input::Data { link, message: Box::new(DataMessage::decode_frame(&payload)?) },
        })
    }

    async fn accept(&mut self, payload: &[u8]) -> Result<(), LinkEnd> {
        if std::mem::replace(&mut self.is_accepted, true) {
            return Err(LinkEnd::Protocol("a second Accept".to_owned()));
        }
        let (got, rest) = payload.split_first().map_or((0, payload), |(got, rest)| (*got, rest));
        if got != WIRE_VERSION {
            let reason =
                format!("it speaks version {got}, this node {WIRE_VERSION}: install the same one on both");
            return Err(LinkEnd::Protocol(reason));
        }
        let incarnation = rest.try_into().map(u64::from_le_bytes);
        let incarnation =
            incarnation.map_err(|_| LinkEnd::Protocol(format!("an Accept of {} bytes", payload.len())))?;
        self.tell(Input::LinkAccepted { link: self.ends.link, incarnation }.into()).await
    }

    /// The loop is not told of a ping: this node's own ones show whether the peer answers.
    fn pong(&self, payload: &[u8]) -> Result<(), LinkEnd> {
        let stamp = payload.try_into();
        let stamp = stamp.map_err(|_| LinkEnd::Protocol(format!("a ping of {} bytes", payload.len())))?;
        let queued = self
            .queue
            .upgrade()
            .map(|queue| queue.try_send(Queued { frame: Frame::Pong(stamp), _room: None }));
        if !matches!(queued, Some(Ok(()))) {
            tracing::trace!(link = self.ends.link.0, "no room for a pong");
        }
        Ok(())
    }

    fn heard(&self, rtt: Option<Duration>) -> Event {
        Input::Heard { link: self.ends.link, rtt }.into()
    }

    /// Waits while the loop is behind: then the rest waits in the socket.
    async fn tell(&self, event: Event) -> Result<(), LinkEnd> {
        let told = match self.ends.purpose {
            Purpose::Control => self.ends.events.control(event).await,
            Purpose::Data => self.ends.events.data(event).await,
        };
        told.map_err(|_ended| LinkEnd::Stopping)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[test]
    fn nobody_answers_a_ping_before_it_has_come() {
        let (own, other) = (Stamps::new(), Stamps::new());
        let stamp = own.stamp();
        assert!(own.elapsed(&stamp).is_some_and(|elapsed| elapsed < Duration::from_secs(5)));
        assert_eq!(other.elapsed(&stamp), None, "another link's");
        // Later by a microsecond, so that the way seems shorter by one.
        let mut later = stamp;
        later[0] = later[0].wrapping_add(1);
        assert_eq!(own.elapsed(&later), None);
        assert_eq!(own.elapsed(&own.signed(u64::MAX)), None, "not yet");
        assert_eq!(own.elapsed(&stamp[..15]), None);
    }

    #[tokio::test]
    async fn a_part_of_a_long_frame_is_a_sign_of_life_and_silence_is_none() {
        let (mut wire, end) = tokio::io::duplex(1 << 10);
        let reader = FrameReader::over(end, exo_transport::FrameLimits::CONTROL);
        let (events, mut inbox) = crate::events::channel();
        let (link, peer, purpose, closed) =
            (LinkId(4), NodeId([1; 32]), Purpose::Data, CancellationToken::new());
        let ends = Ends { link, peer, purpose, events, closed, meter: Arc::default() };
        let (_queue, unread) = (mpsc::channel(1), Arc::new(Semaphore::new(9)));
        let queue = _queue.0.downgrade();
        let stamps = Stamps::new();
        let reading = LinkReader { ends, queue, stamps, unread, is_accepted: true, received_bytes: 0 };
        let (_failed, failure) = oneshot::channel();
        tokio::spawn(read(reading, reader, failure));
        let started = Instant::now();
        // A header that announces 1000 bytes, and some of them.
        wire.write_all(&[0xe8, 3, 0, 0, 1, KIND_MESSAGE, 7, 7, 7]).await.unwrap();
        let Some(Event::Input(input)) = inbox.next().await else { panic!("no input") };
        assert_eq!(*input, Input::Heard { link, rtt: None });
        assert!(started.elapsed() >= PART_EVERY * 9 / 10, "not more often");
        let next = tokio::time::timeout(PART_EVERY * 2, inbox.next()).await;
        assert!(next.is_err(), "nothing came");
    }
}
