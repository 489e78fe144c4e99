//! What comes to the run loop, and the queues in front of it.

use std::sync::Arc;
use std::time::Instant;

use exo_accelerators::DeviceInfo;
use exo_cluster::EngineId;
use exo_device::{CardChange, Quarantine};
use exo_discovery::FoundNode;
use exo_formats::Model;
use exo_machine::{Answer, DialId, Input, Question, SequenceEvent, StartRequest};
use exo_transport::{Channel, JoinChannel};
use exo_types::{DeviceId, RequestId, TypeRates};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use crate::compute::{CheckError, Sensed};
use crate::draft_mismatch::DraftMismatch;
use crate::engine_start_error::EngineStartError;
use crate::engine_thread::EngineEvent;
use crate::open_device::{Opened, StandInError};

/// Messages of each kind of link that may wait for the loop: more wait in the sockets.
const UNREAD_MAX: usize = 1024;

/// Something for the loop: an input as it is, or something that its hands make one of.
pub enum Event {
    /// For the machine as it is.
    Input(Box<Input>),
    /// A message from a member. Its bytes count as unread of its link until this is dropped.
    Received { input: Box<Input>, _unread: Option<OwnedSemaphorePermit> },
    /// An engine thread or worker said something.
    Engine(EngineEvent),
    /// A model that is to be loaded is open, or cannot be opened.
    Opened(OpenedModel),
    /// Something about the devices.
    Device(DeviceEvent),
    /// A member opened a channel.
    Incoming(Channel),
    /// Our own dial opened one.
    Dialled { dial: DialId, channel: Channel },
    /// A stranger opened the join exchange.
    JoinIncoming(JoinChannel),
    /// Discovery saw something.
    Found(FoundNode),
    /// Somebody waits for the answer to a question.
    Asked { question: Question, answer: oneshot::Sender<Answer> },
    /// Run the sequences of a request.
    Started { request: Box<StartRequest>, events: mpsc::UnboundedSender<ToldEvent> },
}

/// What a request is told, and when the machine said it: the task that reads it may come to it late.
pub type ToldEvent = (Instant, SequenceEvent);

/// What is to be known of devices.
pub enum DeviceEvent {
    /// About a second has passed since the last sample.
    SampleDue,
    /// A child begins to open it and make it compute.
    Verifying(DeviceId),
    /// It did, or could not.
    Verified(DeviceId, Result<Box<DeviceInfo>, CheckError>),
    /// The processor is open in its place, or cannot be.
    Replaced {
        device: DeviceId,
        quarantine: Quarantine,
        is_kept: bool,
        processor: Result<Opened, StandInError>,
    },
    /// Nothing stands against it in the registry any more, or a person wants it tried again.
    Retry(DeviceId),
    /// Sensors were read.
    Sensed(Sensed),
    /// A card came or went.
    Changed(CardChange),
}

/// A model that is to be loaded is open, or cannot be opened.
pub struct OpenedModel {
    pub engine: EngineId,
    pub model: Result<Arc<Model>, EngineStartError>,
    /// Whether the small model can guess for it.
    pub draft: Option<Result<(), DraftMismatch>>,
    /// What the processor does with types of weights, where it loads it.
    pub types: Option<Vec<TypeRates>>,
}

impl From<Input> for Event {
    fn from(input: Input) -> Self {
        Self::Input(Box::new(input))
    }
}

/// Where events for the loop go.
#[derive(Clone)]
pub struct EventSender {
    /// From this process: each event answers something that the machine or a bounded number of clients asked
    /// for.
    local: mpsc::UnboundedSender<Event>,
    control: mpsc::Sender<Event>,
    data: mpsc::Sender<Event>,
}

impl EventSender {
    /// From this process: never waits. Events after the end go nowhere.
    pub fn post(&self, event: impl Into<Event>) {
        let _ = self.local.send(event.into());
    }

    /// From a control link, or a stranger: waits while the loop is behind. An error means that the loop has
    /// ended.
    pub async fn control(&self, event: impl Into<Event>) -> Result<(), LoopEnded> {
        self.control.send(event.into()).await.map_err(|_| LoopEnded)
    }

    /// From a data link, or from discovery, whom anybody on the network may flood. As
    /// [`EventSender::control`].
    pub async fn data(&self, event: impl Into<Event>) -> Result<(), LoopEnded> {
        self.data.send(event.into()).await.map_err(|_| LoopEnded)
    }

    /// No one listens to this request, or to one of its choices, any more.
    pub fn cancel_request(&self, request: RequestId, index: Option<u16>) {
        self.post(Input::Cancel { request, index });
    }
}

/// The loop has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoopEnded;

pub struct Inbox {
    local: mpsc::UnboundedReceiver<Event>,
    control: mpsc::Receiver<Event>,
    data: mpsc::Receiver<Event>,
}

impl Inbox {
    /// The next event. Control comes before data: heartbeats do not wait behind rows. `None` once no one can
    /// send.
    pub async fn next(&mut self) -> Option<Event> {
        tokio::select! {
            biased;
            Some(event) = self.control.recv() => Some(event),
            Some(event) = self.local.recv() => Some(event),
            Some(event) = self.data.recv() => Some(event),
            else => None,
        }
    }
}

#[cfg(test)]
impl Inbox {
    /// The next event, if there is one.
    pub fn try_next(&mut self) -> Option<Event> {
        let control = self.control.try_recv().or_else(|_| self.local.try_recv());
        control.or_else(|_| self.data.try_recv()).ok()
    }
}

pub fn channel() -> (EventSender, Inbox) {
    let (local, local_rx) = mpsc::unbounded_channel();
    let (control, control_rx) = mpsc::channel(UNREAD_MAX);
    let (data, data_rx) = mpsc::channel(UNREAD_MAX);
    (EventSender { local, control, data }, Inbox { local: local_rx, control: control_rx, data: data_rx })
}
