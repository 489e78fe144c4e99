//! Connections to members: dialling, the table of those that stand, and two tasks behind each.
//!
//! The machine decides which links are kept; here they are opened, written to, read from and closed. Frames
//! are encoded and decoded in the tasks of their link, so the loop only ever sees whole messages within their
//! bounds.

mod tasks;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use exo_cluster::wire::limits;
use exo_machine::{DialId, Input, LinkEnd, LinkId, Outgoing, Purpose, Received};
use exo_transport::{Channel, Endpoint, FrameLimits};
use exo_types::{NodeId, Transport};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::bulk::{Fetcher, PURPOSE_BULK};
use crate::bulk_answers::AnswerRoom;
use crate::dialling;
use crate::doctor::Doctor;
use crate::events::{Event, EventSender};
use crate::library::Library;
use crate::log_capture::LogCapture;
use crate::meters::Meters;
use exo_accelerators::chain;
use tasks::{FINISH_MAX, Frame, Queued};

/// For an address to refuse a connection.
const PROBE_MAX: Duration = Duration::from_millis(500);
/// For a burst, its connection included.
const BURST_MAX: Duration = Duration::from_secs(25);
/// The pauses before each attempt to find no port. Behind them membership's own bound is near.
const PROBES: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(20), Duration::from_millis(80), Duration::from_millis(300)];
/// Channels with questions about model files and logs that one member may have open. An honest one has some
/// for each model that it fetches, and one for what a person asks.
const ASKING_MAX: usize = 32;
/// Messages that may wait for a slow peer; one more and the link is given up.
const QUEUE_LEN_MAX: usize = 1024;
/// And their bytes, about: eight of the longest messages of the control channel, and of the data channel as
/// many steps of a long prompt as a pipeline of many stages has on their way.
const fn queue_bytes_max(purpose: Purpose) -> u32 {
    match purpose {
        Purpose::Control => 64 << 20,
        Purpose::Data => 256 << 20,
    }
}

/// The links of this node.
pub struct LinkHands {
    endpoint: Endpoint,
    events: EventSender,
    meters: Arc<Meters>,
    log: LogCapture,
    doctor: Doctor,
    last: LinkId,
    links: BTreeMap<LinkId, Link>,
    /// How many more channels with questions members may open, and the room for their answers.
    asking: BTreeMap<NodeId, (Arc<Semaphore>, AnswerRoom)>,
    /// The room for answers to all of them.
    answer_room: Arc<Semaphore>,
    /// They end some time after their links: what was queued goes out first.
    writers: JoinSet<()>,
}

/// A link that stands. Dropping it closes the link, behind what is queued.
struct Link {
    queue: mpsc::Sender<Queued>,
    /// Bytes that may still wait in it.
    room: Arc<Semaphore>,
    _closed: DropGuard,
}

impl LinkHands {
    pub fn new(
        endpoint: Endpoint,
        events: EventSender,
        meters: Arc<Meters>,
        log: LogCapture,
        doctor: Doctor,
    ) -> Self {
        Self {
            endpoint,
            events,
            meters,
            log,
            doctor,
            last: LinkId(0),
            links: BTreeMap::new(),
            asking: BTreeMap::new(),
            answer_room: AnswerRoom::of_node(),
            writers: JoinSet::new(),
        }
    }

    /// Tries the addresses side by side, and tells how that ended.
    pub fn dial(
        &mut self,
        dial: DialId,
        peer: NodeId,
        purpose: Purpose,
        addresses: Vec<(Transport, SocketAddr)>,
        within: Duration,
    ) {
        let (endpoint, events) = (self.endpoint.clone(), self.events.clone());
        tokio::spawn(async move {
            let dialled = dialling::dial(&endpoint, peer, &addresses, byte(purpose), within).await;
            let reason = match dialled {
                Some(Ok(channel)) => return events.post(Event::Dialled { dial, channel }),
                Some(Err(error)) => chain(&error),
                None => "no address".to_owned(),
            };
            events.post(Input::DialFailed { dial, reason });
        });
    }

    /// Tells each time that every address of a member refuses a connection.
    pub fn probe(&self, peer: NodeId, addresses: Vec<SocketAddr>) {
        let events = self.events.clone();
        tokio::spawn(async move {
            // A process that is being killed loses its connections and its port in any order.
            for pause in PROBES {
                tokio::time::sleep(pause).await;
                if all_refuse(&addresses).await {
                    events.post(Input::Refused { peer });
                }
            }
        });
    }

    /// Asks a member for a burst, and tells how fast it came.
    pub fn burst(&self, from: NodeId, addresses: Vec<SocketAddr>) {
        let (endpoint, events) = (self.endpoint.clone(), self.events.clone());
        tokio::spawn(async move {
            let measured = async { Fetcher::dial(&endpoint, from, &addresses).await?.burst().await };
            let (bytes, took) = match tokio::time::timeout(BURST_MAX, measured).await {
                Ok(Ok(measured)) => measured,
                Ok(Err(error)) => {
                    tracing::debug!(peer = %from, error = chain(&error), "the bandwidth was not measured");
                    (0, Duration::ZERO)
                }
                Err(_) => {
                    let within_s = BURST_MAX.as_secs();
                    tracing::debug!(peer = %from, within_s, "the bandwidth was not measured in its time");
                    (0, Duration::ZERO)
                }
            };
            events.post(Input::Received { from, received: Received { bytes, took, is_burst: true } });
        });
    }

    /// A member opened a channel: a link, or questions about its model files, which are answered here.
    pub fn incoming(&mut self, channel: Channel, library: &Arc<Library>) -> Option<Input> {
        if channel.purpose == PURPOSE_BULK {
            self.answer(channel, library.clone());
            return None;
        }
        self.opened(channel, None)
    }

    /// Answers the questions that come over a channel, unless its member has too many of them.
    fn answer(&mut self, channel: Channel, library: Arc<Library>) {
        self.asking.retain(|_, (left, _)| left.available_permits() < ASKING_MAX);
        let (left, room) = self.asking.entry(channel.peer).or_insert_with(|| {
            (Arc::new(Semaphore::new(ASKING_MAX)), AnswerRoom::of_member(self.answer_room.clone()))
        });
        let Ok(permit) = left.clone().try_acquire_owned() else {
            tracing::warn!(peer = %channel.peer, max = ASKING_MAX, "a member asks over too many channels; the newest is closed");
            return;
        };
        let (room, log, doctor) = (room.clone(), self.log.clone(), self.doctor.clone());
        let served = crate::bulk_answers::serve(channel, room, library, log, doctor, self.events.clone());
        tokio::spawn(async move {
            served.await;
            drop(permit);
        });
    }

    /// A channel stands: from now on it is a link, if its purpose is known.
    pub fn opened(&mut self, channel: Channel, dial: Option<DialId>) -> Option<Input> {
        let Some(purpose) = purpose_of(channel.purpose) else {
            tracing::warn!(peer = %channel.peer, purpose = channel.purpose, "a channel of unknown purpose");
            return None;
        };
        self.forget_ended();
        self.last = LinkId(self.last.0 + 1);
        let (link, peer, remote, via) = (self.last, channel.peer, channel.remote, channel.via);
        let meter = self.meters.link(peer);
        let open = (purpose == Purpose::Data).then(|| meter.runs_over(link, channel.local));
        let (queue, outgoing) = mpsc::channel(QUEUE_LEN_MAX);
        let closed = CancellationToken::new();
        let (writer, reader) = channel.split(limits_of(purpose));
        let ends =
            tasks::Ends { link, peer, purpose, events: self.events.clone(), closed: closed.clone(), meter };
        // The reader holds the queue weakly: only the table keeps a link open.
        let (write, read) = tasks::tasks(ends, writer, reader, outgoing, queue.downgrade());
        self.writers.spawn(write);
        tokio::spawn(async move {
            read.await;
            drop(open);
        });
        let room = Arc::new(Semaphore::new(queue_bytes_max(purpose) as usize));
        self.links.insert(link, Link { queue, room, _closed: closed.drop_guard() });
        Some(Input::LinkUp { link, peer, purpose, via, remote, dial })
    }

    /// Queues a frame. A peer that takes no more loses its link.
    pub fn send(&mut self, link: LinkId, message: Outgoing) {
        let Some(found) = self.links.get(&link) else {
            tracing::trace!(link = link.0, last = self.last.0, "a frame for a link that is gone");
            return;
        };
        let bytes = u32::try_from(tasks::bytes_about(&message)).unwrap_or(u32::MAX);
        let room = found.room.clone().try_acquire_many_owned(bytes).ok();
        let has_room = room.is_some();
        let sent = match found.queue.try_reserve() {
            Ok(place) if has_room => {
                place.send(Queued { frame: Frame::Outgoing(message), _room: room });
                return;
            }
            sent => sent.map(|_| ()),
        };
        if let Err(mpsc::error::TrySendError::Closed(())) = sent {
            return tracing::trace!(link = link.0, "a frame for a link that has ended"); // its end is on its way
        }
        let (waiting, left_bytes) = (QUEUE_LEN_MAX - found.queue.capacity(), found.room.available_permits());
        tracing::debug!(link = link.0, waiting, bytes, left_bytes, "the peer takes no more messages");
        self.links.remove(&link);
        self.events.post(Input::LinkDown { link, reason: LinkEnd::QueueFull });
    }

    /// Closes a link behind what is queued in it. Nothing more comes from it.
    pub fn close(&mut self, link: LinkId, reason: &LinkEnd) {
        let was_there = self.links.remove(&link).is_some();
        tracing::debug!(link = link.0, was_there, %reason, "closing a link");
    }

    /// Closes all of them, and waits a little until what is queued has gone out.
    pub async fn end(mut self) {
        self.links.clear();
        let written = async { while self.writers.join_next().await.is_some() {} };
        if tokio::time::timeout(FINISH_MAX * 2, written).await.is_err() {
            tracing::debug!(writers = self.writers.len(), "peers do not take their last messages");
        }
    }

    /// Links that ended by themselves. The machine has been told by their readers.
    fn forget_ended(&mut self) {
        self.links.retain(|_, link| !link.queue.is_closed());
        while self.writers.try_join_next().is_some() {}
    }
}

/// Its byte in the hello of a channel.
fn byte(purpose: Purpose) -> u8 {
    match purpose {
        Purpose::Control => 1,
        Purpose::Data => 2,
    }
}

fn purpose_of(channel: u8) -> Option<Purpose> {
    [Purpose::Control, Purpose::Data].into_iter().find(|purpose| byte(*purpose) == channel)
}

fn limits_of(purpose: Purpose) -> FrameLimits {
    let max = match purpose {
        Purpose::Control => limits::CONTROL_BYTES_MAX + 16,
        Purpose::Data => limits::DATA_HEADER_BYTES_MAX + limits::ROWS_BYTES_MAX + 16,
    };
    FrameLimits { payload_bytes_max: max as u32 }
}

/// Whether every address refuses a connection, and there is one.
async fn all_refuse(addresses: &[SocketAddr]) -> bool {
    let attempts = addresses.iter().map(|&address| async move {
        let attempt = tokio::time::timeout(PROBE_MAX, TcpStream::connect(address)).await;
        matches!(attempt, Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused)
    });
    let mut attempts: JoinSet<bool> = attempts.collect();
    let mut refused = !attempts.is_empty();
    while let Some(attempt) = attempts.join_next().await {
        refused &= attempt.unwrap_or(false);
    }
    refused
}
