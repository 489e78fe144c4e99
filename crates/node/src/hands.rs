//! What the node's machine wants done, carried out: one file for each thing in the world that is touched.
//!
//! A request comes with an id, is carried out, and its answer bears the same id. What is decided here is
//! decided about the world alone: in which state a device is, and when it is looked at again (`devices`).

mod ages;
mod devices;
mod engines;
mod fetches;
mod joining;
mod journal;
mod links;

use std::sync::Arc;
use std::time::Duration;

use exo_machine::{DraftAsk, Effect, Input};
use exo_transport::{Endpoint, MemberSet};

use crate::background;
use crate::checks::Checks;
use crate::draft::Draft;
use crate::events::{DeviceEvent, Event, EventSender};
use crate::library::Library;

pub use devices::Devices;
pub use engines::Engines;
pub use fetches::{Fetches, held_models};
pub(crate) use joining::JoinHands;
pub use journal::JournalWriter;
pub use links::LinkHands;

/// For the journal to write what is queued when the node ends.
const JOURNAL_END_MAX: Duration = Duration::from_secs(5);

pub struct Hands {
    pub links: LinkHands,
    pub(crate) joining: JoinHands,
    pub journal: JournalWriter,
    pub fetches: Fetches,
    pub checks: Arc<Checks>,
    pub engines: Engines,
    pub devices: Devices,
    pub draft: Option<Arc<Draft>>,
    pub members: MemberSet,
    pub endpoint: Endpoint,
    pub library: Arc<Library>,
    pub events: EventSender,
}

impl Hands {
    /// Has an effect carried out. Never waits.
    pub fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Dial { dial, peer, purpose, addresses, within } => {
                self.links.dial(dial, peer, purpose, addresses, within);
            }
            Effect::Probe { peer, addresses } => self.links.probe(peer, addresses),
            Effect::Burst { from, addresses } => self.links.burst(from, addresses),
            Effect::Send { link, message } => self.links.send(link, message),
            Effect::CloseLink { link, reason } => self.links.close(link, &reason),
            Effect::Persist { id, write } => {
                if let Err(gone) = self.journal.write(id, write) {
                    let result =
                        Err(exo_machine::WriteFailure { reason: gone.to_string(), may_be_there: false });
                    self.events.post(Input::Persisted { id, result });
                }
            }
            Effect::Plan { id, request } => {
                let (events, request) = (self.events.clone(), Arc::new(request));
                let work = move || {
                    let result = exo_planner::plan(&request);
                    events.post(Input::Planned { id, result });
                };
                // Seconds of search must not be felt between the tokens of a stream.
                if let Err(error) = background::run("planner", work.clone()) {
                    tracing::warn!(%error, "no thread for the planner; it goes with others");
                    tokio::task::spawn_blocking(work);
                }
            }
            Effect::Fetch { fetch, model, what, holders } => self.fetches.start(fetch, model, what, holders),
            Effect::CancelFetch(fetch) => self.fetches.cancel(fetch),
            Effect::ScanModels => self.fetches.scan(),
            Effect::Check { model, instance } => self.checks.when_ready(model, instance),
            Effect::Load { engine, spec } => self.engines.load(engine, *spec, &self.devices),
            Effect::Rewire { engine, position, term, keep } => {
                self.engines.rewire(engine, position, term, keep);
            }
            Effect::Compute { engine, position, job } => self.engines.compute(engine, position, job),
            Effect::Unload(engine) => self.engines.unload(engine),
            Effect::Quarantine { device, reason } => self.devices.give_up(&device, &reason),
            Effect::Sign { id, bytes } => self.joining.sign(id, &bytes),
            Effect::Draft(ask) => self.draft(ask),
            Effect::Joining(effect) => self.joining.carry_out(effect),
            Effect::SetMembers(members) => self.members.replace(members),
            Effect::Advertise { is_fresh } => self.joining.advertise(is_fresh),
            // The loop's own.
            Effect::Reply { .. }
            | Effect::Emit { .. }
            | Effect::Notice(_)
            | Effect::Publish { .. }
            | Effect::Stop => {}
        }
    }

    /// The inputs that an event of the world amounts to.
    pub fn event(&mut self, event: Event) -> Vec<Input> {
        match event {
            Event::Engine(event) => self.engines.event(event, &mut self.devices),
            Event::Opened(opened) => self.engines.opened(opened, &mut self.devices),
            Event::Device(event) => {
                if matches!(event, DeviceEvent::SampleDue) {
                    self.devices.count_packets(&self.endpoint.packets());
                }
                self.devices.event(event, &self.engines)
            }
            Event::Incoming(channel) => self.links.incoming(channel, &self.library).into_iter().collect(),
            Event::Dialled { dial, channel } => self.links.opened(channel, Some(dial)).into_iter().collect(),
            Event::JoinIncoming(channel) => {
                self.joining.accept(channel);
                Vec::new()
            }
            Event::Found(found) => joining::found(found).map(Input::Found).into_iter().collect(),
            Event::Input(input) | Event::Received { input, .. } => vec![*input],
            Event::Asked { .. } | Event::Started { .. } => Vec::new(), // the loop's own
        }
    }

    fn draft(&self, ask: DraftAsk) {
        let Some(draft) = &self.draft else { return };
        match ask {
            DraftAsk::Guess { instance, spec, count } => {
                draft.ask(instance, exo_engine::DraftRequest { spec, count });
            }
            DraftAsk::Forget(sequence) => draft.forget(sequence),
        }
    }

    /// The machine has ended: everything it has said is queued.
    pub async fn end(mut self) {
        // While engines end: who looks for a node meanwhile is not to find this one.
        let discovery = self.joining.take_discovery();
        let goodbye = discovery.map(|discovery| tokio::task::spawn_blocking(move || discovery.shutdown()));
        if let Some(draft) = &self.draft {
            draft.end();
        }
        self.engines.end().await;
        if let Some(goodbye) = goodbye {
            let _ = goodbye.await;
        }
        self.links.end().await; // the goodbyes are queued in them
        self.endpoint.close().await;
        let journal = self.journal;
        let closed = tokio::task::spawn_blocking(move || journal.close(JOURNAL_END_MAX)).await;
        if !matches!(closed, Ok(true)) {
            tracing::warn!(within_s = JOURNAL_END_MAX.as_secs(), "the journal is still being written");
        }
    }
}
