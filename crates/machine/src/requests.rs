//! The drivers of this node's clients, and the placing of models that requests ask for.

use std::sync::Arc;

use exo_api::GenerateError;
use exo_cluster::wire::{ControlAsk, ControlRefusal, ControlReply, Trouble};
use exo_cluster::{
    Driver, DriverInput, DriverOutput, DriverPhase, InstanceRequest, InstanceState, InstanceView,
    StageStatus, StageView,
};
use exo_types::{InstanceId, ModelId, RequestId, SequenceId};

use crate::coordination::Asker;
use crate::view::load_progress;
use crate::{Effect, NodeMachine, SequenceEvent, StartRequest, StreamId};

/// A sequence that this node drives.
#[derive(Debug)]
pub(crate) struct DriverEntry {
    driver: Driver,
    stream: StreamId,
    model: ModelId,
    /// To place the model if it is not placed.
    place: Arc<InstanceRequest>,
    /// What the client was last told that it waits for.
    told: String,
    is_started: bool,
}

impl NodeMachine {
    pub(crate) fn start_request(&mut self, stream: StreamId, request: StartRequest) {
        let StartRequest { config, starts, place } = request;
        let (place, links, instances) =
            (Arc::new(place), self.links.open_data().clone(), self.instances.clone());
        for start in starts {
            let (id, model) = (start.spec.sequence, start.model);
            let driver = Driver::new(config, self.now.time, start);
            let (place, told, is_started) = (place.clone(), String::new(), false);
            self.drivers.insert(id, DriverEntry { driver, stream, model, place, told, is_started });
            self.feed_driver(id, DriverInput::Links(links.clone()));
            self.feed_driver(id, DriverInput::Instances(instances.to_vec()));
        }
        self.place_if_missing(&place);
    }

    /// Asks for the model to be placed unless an instance of it is there or on its way.
    fn place_if_missing(&mut self, request: &InstanceRequest) {
        let model = request.model;
        let is_alive = |i: &&InstanceView| !matches!(i.state, InstanceState::Failed { .. });
        let is_there = self.instances.iter().filter(is_alive).any(|i| i.model() == model);
        if !is_there && !self.asks.is_placing(model) {
            self.ask(Asker::Placement(model), ControlAsk::Place(request.clone()));
        }
    }

    /// The coordinator's answer to a placement that a request caused.
    pub(crate) fn placed(&mut self, model: ModelId, reply: Option<ControlReply>) {
        match reply {
            Some(ControlReply::Refused { refusal: ControlRefusal::NotCoordinator, .. }) | None => {} // asked again
            Some(ControlReply::Refused { refusal, message }) => {
                self.refuse_waiting(model, refusal == ControlRefusal::DoesNotFit, &message);
            }
            Some(_) => {}
        }
    }

    /// Requests that wait for a model that its device refused are told why, once, instead of having it placed again. Later ones may
    /// try, and so may those that wait for one that failed for another reason.
    fn tell_failed(&mut self) {
        let is_failed = |i: &InstanceView| matches!(i.state, InstanceState::Failed { .. });
        let is_refused =
            |stage: &StageView| matches!(stage.status, StageStatus::Failed { failed_loads: 1.., .. });
        let others = |model| self.instances.iter().any(|i| i.model() == model && !is_failed(i));
        let failed = |instance: &InstanceView| match &instance.state {
            InstanceState::Failed { reason } if instance.stages.iter().any(is_refused) => {
                Some((instance.placement.instance, instance.model(), reason.clone()))
            }
            _ => None,
        };
        let failed: Vec<_> = self.instances.iter().filter_map(failed).collect();
        let told = std::mem::take(&mut self.refusals_told);
        let is_new = |(instance, model, _): &&(InstanceId, ModelId, String)| {
            !told.contains(instance) && !others(*model)
        };
        let new: Vec<_> = failed.iter().filter(is_new).cloned().collect();
        self.refusals_told = failed.into_iter().map(|(instance, ..)| instance).collect();
        for (_, model, reason) in new {
            self.refuse_waiting(model, false, &reason);
        }
    }

    /// Ends requests that wait for the model.
    fn refuse_waiting(&mut self, model: ModelId, is_too_large: bool, message: &str) {
        let waiting: Vec<_> = self
            .drivers
            .iter()
            .filter(|(_, d)| d.model == model && !d.is_started)
            .map(|(id, _)| *id)
            .collect();
        for id in waiting {
            let Some(entry) = self.drivers.get(&id) else { continue };
            let devices = self.reports.values().flat_map(|r| &r.facts.devices);
            let free_bytes = devices.map(|d| d.memory_free_bytes).sum();
            let (model, detail) = (entry.place.model_name.clone(), message.to_owned());
            let error = if is_too_large {
                let needed_bytes = entry.place.shape.weight_bytes();
                GenerateError::DoesNotFit { model, needed_bytes, free_bytes, detail }
            } else {
                GenerateError::LoadFailed { model, reason: detail }
            };
            let (stream, event) = (entry.stream, SequenceEvent::Refused(error));
            self.out.push(Effect::Emit { stream, event });
            self.feed_driver(id, DriverInput::PlaceRefused { message: message.to_owned() });
        }
    }

    pub(crate) fn feed_driver(&mut self, id: SequenceId, input: DriverInput) {
        let Some(entry) = self.drivers.get_mut(&id) else { return };
        for output in entry.driver.handle(self.now.time, input) {
            self.driver_output(id, output);
        }
        self.tell_phase(id);
    }

    fn driver_output(&mut self, id: SequenceId, output: DriverOutput) {
        let event = match output {
            DriverOutput::Send { to, message } => return self.send_data(to, message),
            DriverOutput::Token { token, .. } => {
                self.tell_phase(id);
                SequenceEvent::Token { index: id.index, token }
            }
            DriverOutput::Ended(reason) => {
                self.tell_phase(id);
                let Some(driver) = self.drivers.get(&id).map(|entry| &entry.driver) else { return };
                let (index, cached_tokens, drafts) = (id.index, driver.cached_tokens(), driver.drafts());
                SequenceEvent::Ended { index, reason, cached_tokens, drafts }
            }
            DriverOutput::Failed { kind, message } => {
                let busy = self.drivers.get(&id).and_then(|entry| entry.driver.busy());
                SequenceEvent::Failed { kind, message, busy }
            }
        };
        let is_last = matches!(event, SequenceEvent::Ended { .. } | SequenceEvent::Failed { .. });
        let Some(stream) = self.drivers.get(&id).map(|entry| entry.stream) else { return };
        self.out.push(Effect::Emit { stream, event });
        if is_last {
            self.drivers.remove(&id);
        }
    }

    /// Tells the client what its request waits for, or that it has begun, when that changed.
    fn tell_phase(&mut self, id: SequenceId) {
        let Some(entry) = self.drivers.get(&id).filter(|entry| !entry.is_started) else { return };
        let waits_for = match entry.driver.phase() {
            DriverPhase::Running(instance) => return self.tell_started(id, instance),
            DriverPhase::Over => return,
            DriverPhase::WaitingForInstance => self.waiting_for(entry.model),
            DriverPhase::WaitingForLink(node) => {
                format!("waiting for the link to {}", self.name_of(node))
            }
            DriverPhase::Submitted(_) | DriverPhase::Queued(_) => "waiting for a slot".to_owned(),
        };
        let Some(entry) = self.drivers.get_mut(&id).filter(|entry| entry.told != waits_for) else { return };
        entry.told.clone_from(&waits_for);
        let (stream, event) = (entry.stream, SequenceEvent::Queued(waits_for));
        self.out.push(Effect::Emit { stream, event });
    }

    fn tell_started(&mut self, id: SequenceId, instance: InstanceId) {
        let (kernels, stages) = self.served_by(instance);
        let Some(entry) = self.drivers.get_mut(&id) else { return };
        entry.is_started = true;
        let (stream, event) = (entry.stream, SequenceEvent::Started { kernels, stages });
        self.out.push(Effect::Emit { stream, event });
    }

    fn waiting_for(&self, model: ModelId) -> String {
        let Some(instance) = self.instances.iter().find(|i| i.model() == model) else {
            return "placing".to_owned();
        };
        match &instance.state {
            InstanceState::Loading => format!("loading {:.0} %", load_progress(instance) * 100.0),
            InstanceState::Wiring => "connecting its stages".to_owned(),
            InstanceState::Degraded { reason } => format!("placing again: {reason}"),
            InstanceState::Failed { reason } => format!("failed: {reason}"),
            InstanceState::Placing => "placing".to_owned(),
            InstanceState::Ready => "waiting for a slot".to_owned(),
        }
    }

    fn served_by(&self, instance: InstanceId) -> (Vec<String>, u32) {
        let Some(view) = self.instances.iter().find(|i| i.instance() == instance) else {
            return (Vec::new(), 0);
        };
        let mut kernels: Vec<String> = Vec::new();
        for (_, shard) in view.placement.shards() {
            let devices =
                self.reports.get(&shard.node).map(|r| r.facts.devices.as_slice()).unwrap_or_default();
            if let Some(device) = devices.iter().find(|d| d.id == shard.device)
                && !kernels.contains(&device.backend)
            {
                kernels.push(device.backend.clone());
            }
        }
        (kernels, view.placement.stages.len() as u32)
    }

    /// A client left, or one choice met its stop string.
    pub(crate) fn cancel_request(&mut self, request: RequestId, index: Option<u16>) {
        let is_meant = |id: &SequenceId| id.request == request && index.is_none_or(|i| i == id.index);
        let ids: Vec<_> = self.drivers.keys().copied().filter(is_meant).collect();
        for id in ids {
            self.feed_driver(id, DriverInput::Cancel);
        }
    }

    /// What every member is told of the instances, new.
    pub(crate) fn instances_now(&mut self, instances: Vec<InstanceView>) {
        self.instances = Arc::new(instances);
        self.view_changed();
        let (ids, instances): (Vec<_>, _) = (self.drivers.keys().copied().collect(), self.instances.clone());
        for id in ids {
            self.feed_driver(id, DriverInput::Instances(instances.to_vec()));
        }
        self.tell_failed();
        #[cfg(feature = "planted")]
        if self.config.planted == Some(crate::planted::Bug::ForgottenTrouble) {
            return self.troubles.clear();
        }
        let placements = instances.iter().map(|i| i.placement.id);
        let current: std::collections::BTreeSet<_> = placements.collect();
        // Another coordinator may not know the placement, and the next one may know it again: while its first stage stands here,
        // it has no scheduler, and somebody must hear why.
        let stages = &self.stages;
        let stands = |t: &Trouble| stages.keys().any(|p| p.placement == t.placement && p.stage == 0);
        self.troubles.retain(|t| current.contains(&t.placement) || stands(t));
    }

    /// Links opened or ended: drivers wait for those to the first and the last stage.
    pub(crate) fn links_changed(&mut self) {
        let (ids, links): (Vec<_>, _) =
            (self.drivers.keys().copied().collect(), self.links.open_data().clone());
        for id in ids {
            self.feed_driver(id, DriverInput::Links(links.clone()));
        }
    }

    pub(crate) fn tick_requests(&mut self) {
        let ids: Vec<_> = self.drivers.keys().copied().collect();
        for id in ids {
            self.feed_driver(id, DriverInput::Tick);
        }
        let is_waiting = |d: &&DriverEntry| d.driver.phase() == DriverPhase::WaitingForInstance;
        let unplaced: Vec<_> = self.drivers.values().filter(is_waiting).map(|d| d.place.clone()).collect();
        for request in unplaced {
            self.place_if_missing(&request);
        }
    }
}
