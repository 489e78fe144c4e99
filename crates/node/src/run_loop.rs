//! The one task that has the node's machine: it feeds it time and events, and has its effects carried out.
//!
//! It never waits for anything but the next event. Everything that takes time happens in the hands, in tasks
//! and threads of their own, and comes back as events.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_machine::{Answer, Effect, Input, NodeMachine, Notice, ReplyId, SequenceEvent, StreamId};
use exo_telemetry::OwnFacts;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::time::Sleep;

use crate::clock::Clock;
use crate::events::{DeviceEvent, Event, Inbox, ToldEvent};
use crate::hands::Hands;
use crate::sample_pace::SamplePace;
use crate::telemetry::Telemetry;

/// From a change to its showing, at most: who places a model may ask about it at once.
const SHOW_WITHIN: Duration = Duration::from_millis(10);
/// The same of what is measured again and again. Views, alerts and whoever reads them along are made anew for
/// each showing.
const REFRESH_WITHIN: Duration = Duration::from_millis(1100);
/// So long after the last showing such a change is shown at once: with the sample that brings it, in one
/// wake.
const REFRESH_AFTER: Duration = Duration::from_millis(900);

/// The machine and what it needs of the world.
pub struct RunLoop {
    machine: NodeMachine,
    hands: Hands,
    clock: Clock,
    replies: BTreeMap<ReplyId, oneshot::Sender<Answer>>,
    reply_last: u64,
    streams: BTreeMap<StreamId, mpsc::UnboundedSender<ToldEvent>>,
    /// What clients are told behind all else that an input brings: an engine must not wait for their tasks to
    /// be woken.
    told: Vec<(StreamId, SequenceEvent)>,
    stream_last: u64,
    notices: broadcast::Sender<Notice>,
    view: watch::Sender<exo_api::ClusterView>,
    telemetry: Arc<Telemetry>,
    /// What only this node knows of its disk.
    own: Box<dyn Fn() -> OwnFacts + Send>,
    stale: Option<Stale>,
    /// Whether anything went to a member in this wake.
    has_sent: bool,
    is_stopped: bool,
}

/// How urgent it is to show the view again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stale {
    Measured,
    Changed,
}

impl RunLoop {
    /// A loop around a machine that has just started, with the effects of that.
    pub fn new(
        machine: NodeMachine,
        hands: Hands,
        clock: Clock,
        notices: broadcast::Sender<Notice>,
        view: watch::Sender<exo_api::ClusterView>,
        telemetry: Arc<Telemetry>,
        own: Box<dyn Fn() -> OwnFacts + Send>,
    ) -> Self {
        Self {
            machine,
            hands,
            clock,
            replies: BTreeMap::new(),
            reply_last: 0,
            streams: BTreeMap::new(),
            told: Vec::new(),
            stream_last: 0,
            notices,
            view,
            telemetry,
            own,
            stale: Some(Stale::Changed),
            has_sent: false,
            is_stopped: false,
        }
    }

    /// Runs until a clean end is asked for. The journal is closed and the data folder free when it returns.
    pub async fn run(mut self, first: Vec<Effect>, mut inbox: Inbox, mut stop: watch::Receiver<bool>) {
        self.carry_out(first);
        let mut shown = tokio::time::Instant::now();
        let mut samples = SamplePace::new(shown);
        let timer = tokio::time::sleep_until(shown);
        tokio::pin!(timer);
        while !self.is_stopped {
            let due = self.clock.at(self.machine.next_deadline()).min(samples.by);
            let due = match self.stale {
                Some(Stale::Changed) => due.min(shown + SHOW_WITHIN),
                Some(Stale::Measured) => due.min(shown + REFRESH_WITHIN),
                None => due,
            };
            set_timer(timer.as_mut(), due);
            tokio::select! {
                biased;
                _ = stop.wait_for(|s| *s) => self.feed(Input::Stop),
                // Before the events: it comes at most a hundred times a second, and they could starve it.
                () = &mut timer => self.feed(Input::Timer),
                Some(event) = inbox.next() => self.event(event),
            }
            let now = tokio::time::Instant::now();
            if samples.is_due(now, self.has_sent) {
                self.event(Event::Device(DeviceEvent::SampleDue));
                // What would wake this node by itself within a moment is done in this wake.
                self.feed(Input::Timer);
            }
            self.has_sent = false;
            let wait = match self.stale {
                Some(Stale::Changed) => SHOW_WITHIN,
                Some(Stale::Measured) => REFRESH_AFTER,
                None => continue,
            };
            if now >= shown + wait {
                (shown, self.stale) = (now, None);
                self.show();
            }
        }
        self.streams.clear();
        self.hands.end().await;
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Input(input) | Event::Received { input, .. } => self.feed(*input),
            Event::Asked { question, answer } => {
                self.reply_last += 1;
                let reply = ReplyId(self.reply_last);
                self.replies.retain(|_, waiting| !waiting.is_closed());
                self.replies.insert(reply, answer);
                self.feed(Input::Ask { reply, question });
            }
            Event::Started { request, events } => {
                self.stream_last += 1;
                let stream = StreamId(self.stream_last);
                self.streams.retain(|_, events| !events.is_closed());
                self.streams.insert(stream, events);
                self.feed(Input::Start { stream, request });
            }
            other => {
                for input in self.hands.event(other) {
                    self.feed(input);
                }
            }
        }
    }

    /// Shows the machine's view, with the alerts that follow from it and from what was measured.
    fn show(&mut self) {
        let mut view = self.machine.view();
        let told = || self.machine.telemetry();
        view.alerts = self.telemetry.observe(self.clock.now(), &view, told, &self.own);
        self.view.send_replace(view);
    }

    fn feed(&mut self, input: Input) {
        let effects = self.machine.handle(self.clock.now(), input);
        self.carry_out(effects);
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        let at = Instant::now();
        for effect in effects {
            match effect {
                Effect::Reply { reply, answer } => {
                    let asker = self.replies.remove(&reply);
                    if asker.is_none_or(|asker| asker.send(answer).is_err()) {
                        tracing::trace!(reply = reply.0, "an answer to who has gone");
                    }
                }
                Effect::Emit { stream, event } => self.told.push((stream, event)),
                Effect::Notice(notice) => drop(self.notices.send(notice)),
                Effect::Publish { is_news } => {
                    let stale = if is_news { Stale::Changed } else { Stale::Measured };
                    self.stale = self.stale.max(Some(stale));
                }
                Effect::Stop => self.is_stopped = true,
                other => {
                    self.has_sent |= matches!(other, Effect::Send { .. });
                    self.hands.carry_out(other);
                }
            }
        }
        for (stream, event) in self.told.drain(..) {
            if self.streams.get(&stream).is_none_or(|events| events.send((at, event)).is_err()) {
                tracing::trace!(stream = stream.0, "an event of a request for who has gone");
            }
        }
    }
}

/// A timer that is only extended still wakes the process at its old time, to find that there is nothing to
/// do: one that goes back is put up anew.
fn set_timer(mut timer: Pin<&mut Sleep>, due: tokio::time::Instant) {
    if due > timer.deadline() {
        timer.set(tokio::time::sleep_until(due));
    } else if due < timer.deadline() {
        timer.as_mut().reset(due);
    }
}
