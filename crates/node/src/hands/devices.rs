//! The devices of this node: devices that workers lose are verified and used again, or put in quarantine,
//! with the processor in their place. Cards that come and go. What all of it comes to is sampled for the
//! machine.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_accelerators::{DeviceInfo, chain};
use exo_cluster::wire::{CardEvent, DeviceReport, NodeVitals, PullReport};
use exo_device::{CardChange, Quarantine};
use exo_machine::{Input, Notice, SampledMeasures, Samples};
use exo_stdx::unix_ms;
use exo_types::{DeviceId, DeviceKind, DeviceState, NodeFacts, NodeId, PacketCounts, Time, TypeRates};
use tokio::sync::{broadcast, watch};

use super::Engines;
use super::ages::Ages;
use crate::NodeConfig;
use crate::clock::Clock;
use crate::compute::{Check, CheckError, Compute, Loss, ShardTarget, SystemState};
use crate::events::{DeviceEvent, Event, EventSender};
use crate::host::Host;
use crate::meters::Meters;
use crate::open_device::{Opened, StandInError};
use crate::packets::PacketWindows;

/// Somebody may have ended a quarantine, or its time has come.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The device of this process, after what it gave could not be used: nothing checks it meanwhile.
const LEFT_OUT_FOR: Duration = Duration::from_secs(600);
/// Events of cards that are shown.
const CARD_EVENTS_MAX: usize = 16;
/// For the processor to be opened in a graphics processor's place, its bandwidth measured.
const REPLACED_MAX: Duration = Duration::from_secs(30);

pub struct Devices {
    compute: Compute,
    config: NodeConfig,
    host: Arc<dyn Host>,
    /// But for the devices.
    facts: NodeFacts,
    ages: Ages,
    card_events: VecDeque<CardEvent>,
    /// When the registry was looked at for the end of a quarantine.
    looked: Option<Instant>,
    clock: Clock,
    events: EventSender,
    notices: broadcast::Sender<Notice>,
    meters: Arc<Meters>,
    /// What all members are told of this node's downloads.
    pub pulls: Box<dyn Fn() -> Vec<PullReport> + Send + Sync>,
    packets: PacketWindows,
}

impl Devices {
    /// Over opened devices.
    pub fn new(
        compute: Compute,
        config: NodeConfig,
        host: Arc<dyn Host>,
        facts: NodeFacts,
        clock: Clock,
        events: EventSender,
        notices: broadcast::Sender<Notice>,
    ) -> Self {
        Self {
            compute,
            config,
            host,
            facts,
            ages: Ages::default(),
            card_events: VecDeque::new(),
            looked: None,
            clock,
            events,
            notices,
            meters: Arc::default(),
            pulls: Box::new(Vec::<PullReport>::new),
            packets: PacketWindows::default(),
        }
    }

    /// What is counted as the node works, which is sampled with the devices.
    pub fn meters(&self) -> Arc<Meters> {
        self.meters.clone()
    }

    /// Packets to each member, as its connections have counted them by now.
    pub fn count_packets(&mut self, counts: &BTreeMap<NodeId, PacketCounts>) {
        self.packets.sample(self.clock.now().time, counts);
    }

    /// Where a shard on `device` goes.
    pub fn shard_target(&self, device: &DeviceId) -> Option<ShardTarget> {
        self.compute.shard_target(device)
    }

    /// With what types of weights are measured on `device` before they are loaded; `None` where that is no
    /// processor of this process, or whoever embeds the node knows its rates.
    pub fn measures_types(&self, device: &DeviceId) -> Option<NodeConfig> {
        let is_here = matches!(self.compute.shard_target(device), Some(ShardTarget::Here(_)))
            && *device == DeviceId::cpu();
        (is_here && self.host.processor().read_bytes_per_s.is_none()).then(|| self.config.clone())
    }

    /// Types of weights were measured, or known; whether that is news.
    pub fn types_measured(&mut self, types: Vec<TypeRates>) -> bool {
        self.compute.types_measured(types)
    }

    /// Follows whether `device` can be loaded; `None` if it always can.
    pub fn follow(&self, device: &DeviceId) -> Option<watch::Receiver<DeviceState>> {
        self.compute.follow(device)
    }

    pub fn event(&mut self, event: DeviceEvent, engines: &Engines) -> Vec<Input> {
        match event {
            DeviceEvent::SampleDue => self.look_for_ends(),
            DeviceEvent::Verifying(device) => self.compute.verifying(&device),
            DeviceEvent::Verified(device, found) => self.verified(&device, found),
            DeviceEvent::Replaced { device, quarantine, is_kept, processor } => {
                self.replaced(&device, quarantine, is_kept, processor);
            }
            DeviceEvent::Retry(device) => self.retry(&device),
            DeviceEvent::Sensed(sensed) => {
                self.compute.sensed(sensed);
                return Vec::new();
            }
            DeviceEvent::Changed(change) => self.card_changed(&change),
        }
        vec![self.sampled(engines)]
    }

    /// The same, for the machine.
    pub fn sampled(&mut self, engines: &Engines) -> Input {
        Input::Sampled(Box::new(self.sample(engines)))
    }

    /// What this machine is and has at this moment.
    pub fn sample(&mut self, engines: &Engines) -> Samples {
        let mut devices = self.compute.facts(engines.are_on(&DeviceId::cpu()));
        self.ages.advance(self.clock.now().time, &mut devices);
        let domain = self.host.memory_domain();
        for device in &mut devices {
            let free_bytes = self.compute.free_bytes(&device.id, &engines.worker_memory(&device.id));
            device.memory_free_bytes = free_bytes.unwrap_or(device.memory_free_bytes);
            if device.kind != DeviceKind::DiscreteGpu {
                device.memory_domain = domain;
            }
        }
        let report = |device: &DeviceId| {
            let (state, reason) = self.compute.state(device);
            let workers = engines.hosts_on(device).find_map(|host| host.worker()?.monitor());
            let monitor = self.compute.monitor(device, workers);
            let driver = self.compute.driver(device);
            DeviceReport { device: device.clone(), state, reason, driver, monitor }
        };
        let reports = devices.iter().map(|device| report(&device.id)).collect();
        let memory_bytes = self.compute.memory();
        // Read every few seconds with the sensors, off this loop.
        let sensed = self.compute.last_sensed().system.clone();
        let system = sensed.unwrap_or_else(|| SystemState::of(self.host.as_ref()));
        let measured = self.measured(&system.wireless);
        Samples {
            facts: NodeFacts { devices, mains_power: system.mains_power, ..self.facts.clone() },
            memory_bytes: memory_bytes.into_iter().collect(),
            devices: reports,
            card_events: self.card_events.iter().cloned().collect(),
            process_bytes: system.process_bytes,
            networks: system.networks,
            measured,
        }
    }

    /// What is only shown.
    fn measured(&self, wireless: &BTreeMap<IpAddr, bool>) -> SampledMeasures {
        let sensed = self.compute.last_sensed();
        let (transfers, transferred_bytes) = self.meters.transfers.now();
        let vitals = NodeVitals {
            at_unix_ms: unix_ms(),
            uptime_s: u32::try_from(self.clock.now().time.since(Time(0)).as_secs()).unwrap_or(u32::MAX),
            memory_total_bytes: sensed.memory.map(|memory| memory.total_bytes),
            memory_available_bytes: sensed.memory.map(|memory| memory.available_bytes),
            disk_free_bytes: sensed.disk_free_bytes,
            descriptors_open: sensed.descriptors.map(|descriptors| descriptors.open),
            descriptors_max: sensed.descriptors.map(|descriptors| descriptors.max),
            battery_percent: sensed.battery_percent,
            multicast_heard: sensed.multicast_heard,
            transfers,
            transferred_bytes,
        };
        SampledMeasures {
            vitals,
            requests: self.meters.requests(),
            pulls: (self.pulls)(),
            traffic: self.meters.traffic(&self.packets),
            wireless: self.meters.wireless(wireless),
        }
    }

    /// Until it is verified nothing is loaded on it; shards lost at the same time are one loss.
    pub fn lost(&mut self, device: &DeviceId, reason: &str) {
        if let Some(loss) = self.compute.lost(device, self.clock.now().time, reason) {
            self.see_to(device, loss);
        }
    }

    /// What a device gives cannot be used. A graphics processor is given up as one that was lost too often;
    /// the device of this process is left out for a while.
    pub fn give_up(&mut self, device: &DeviceId, reason: &str) {
        match self.compute.give_up(device, reason) {
            Some(loss) => self.see_to(device, loss),
            None => {
                let until = self.clock.now().time + LEFT_OUT_FOR;
                if let Some(text) = self.compute.leave_out_here(device, until, reason) {
                    self.notice(Notice::Warning(text));
                }
            }
        }
        self.events.post(Event::Device(DeviceEvent::SampleDue));
    }

    fn notice(&self, notice: Notice) {
        tracing::info!(%notice, "notice");
        let _ = self.notices.send(notice);
    }

    fn verified(&mut self, device: &DeviceId, found: Result<Box<DeviceInfo>, CheckError>) {
        if let Err(error) = &found {
            let reason = chain(error);
            self.notice(Notice::Warning(format!("the device {device} does not come back: {reason}")));
        }
        let was_quarantined = self.compute.is_quarantined(device);
        match self.compute.verified(device, self.clock.now().time, found) {
            Some(loss) => self.see_to(device, loss),
            None if was_quarantined => {
                self.notice(Notice::DeviceBack { device: device.to_string() });
            }
            None => {}
        }
    }

    fn see_to(&mut self, device: &DeviceId, loss: Loss) {
        let (events, device) = (self.events.clone(), device.clone());
        match loss {
            Loss::Verify { wait, check } => self.verify_after(device, wait, check),
            Loss::GiveUp { quarantine, keep } => {
                let (config, host) = (self.config.clone(), self.host.clone());
                let kept = quarantine.clone();
                let work = tokio::task::spawn_blocking(move || {
                    let is_kept = keep(&kept);
                    let processor = crate::device::processor(&config, host.as_ref());
                    (is_kept, processor.map_err(StandInError::Open))
                });
                tokio::spawn(async move {
                    // Whatever happens there, the state goes on to quarantine.
                    let (is_kept, processor) = match tokio::time::timeout(REPLACED_MAX, work).await {
                        Ok(Ok(done)) => done,
                        Ok(Err(error)) => (false, Err(error.into())),
                        Err(_) => (false, Err(StandInError::Late { seconds: REPLACED_MAX.as_secs() })),
                    };
                    let event = DeviceEvent::Replaced { device, quarantine, is_kept, processor };
                    events.post(Event::Device(event));
                });
            }
        }
    }

    fn verify_after(&self, device: DeviceId, wait: Duration, check: Check) {
        let events = self.events.clone();
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            events.post(Event::Device(DeviceEvent::Verifying(device.clone())));
            let verified = tokio::task::spawn_blocking(check).await;
            let verified = verified.unwrap_or_else(|error| Err(error.into()));
            events.post(Event::Device(DeviceEvent::Verified(device, verified)));
        });
    }

    /// From now on the node offers its processor, if no other graphics processor is left or all that are have
    /// memory of their own, and says why.
    fn replaced(
        &mut self,
        device: &DeviceId,
        quarantine: Quarantine,
        is_kept: bool,
        processor: Result<Opened, StandInError>,
    ) {
        let processor = match processor {
            Ok(opened) => Some(opened),
            Err(error) => {
                let reason = chain(&error);
                self.notice(Notice::Warning(format!("the processor cannot take over: {reason}")));
                None
            }
        };
        self.compute.set_quarantine(device, quarantine, is_kept, processor);
        let facts = self.compute.facts(false).into_iter().find(|facts| facts.id == *device);
        if let Some(facts) = facts {
            self.notice(Notice::Warning(facts.support_reason));
        }
    }

    /// A device in quarantine gets another chance: its time is over, somebody said so, or its card is
    /// another.
    fn retry(&mut self, device: &DeviceId) {
        if let Some(check) = self.compute.retry(device) {
            tracing::info!(device = %device.0, "a device in quarantine is checked again");
            self.verify_after(device.clone(), Duration::ZERO, check);
        } else if self.compute.is_here(device) {
            self.end_left_out(None);
        }
    }

    /// The device of this process is used again: at this time, if its own has come, or at once.
    fn end_left_out(&mut self, at: Option<Time>) {
        if let Some(device) = self.compute.end_left_out(at) {
            tracing::info!(target: "events::device", %device, "a device that was left out is used again");
        }
    }

    /// Looks now and then whether quarantines are over.
    fn look_for_ends(&mut self) {
        if self.looked.is_some_and(|looked| looked.elapsed() < LOOK_EVERY) {
            return;
        }
        self.looked = Some(Instant::now());
        self.end_left_out(Some(self.clock.now().time));
        let Some(are_over) = self.compute.are_over() else { return };
        let events = self.events.clone();
        tokio::task::spawn_blocking(move || {
            for device in are_over() {
                events.post(Event::Device(DeviceEvent::Retry(device)));
            }
        });
    }

    /// Tells of it everywhere, and looks at once at a device that it concerns.
    fn card_changed(&mut self, change: &CardChange) {
        let (CardChange::Appeared(card)
        | CardChange::Vanished(card)
        | CardChange::DriverChanged { now: card, .. }) = change;
        let own = self.compute.plugged_in_at(&card.pci_address);
        let event = crate::cards::event(change, own.is_some());
        self.card_events.push_back(event.clone());
        while self.card_events.len() > CARD_EVENTS_MAX {
            self.card_events.pop_front();
        }
        self.notice(Notice::Card(event));
        match (change, own) {
            (_, None) => {}
            (CardChange::Vanished(_), Some(device)) => self.lost(&device, "its card vanished from the bus"),
            (_, Some(device)) => self.retry(&device),
        }
    }
}
