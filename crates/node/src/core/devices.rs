//! Devices that workers lose: verified and used again, or put in quarantine, with the processor in their place. Cards that
//! come and go.

use std::time::Duration;

use exo_cluster::wire::{CardEvent, DeviceReport};
use exo_cluster::{ShardKey, WorkerInput};
use exo_device::{CardChange, Quarantine};
use exo_types::DeviceId;

use super::{Core, CoreEvent, unix_s};
use crate::Notice;
use crate::compute::{Check, Loss, Sensed};
use crate::device::Opened;
use crate::engine_host::chain;
use crate::worker::CardWords;

/// Somebody may have ended a quarantine, or its time has come.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Events of cards that are shown.
const CARD_EVENTS_MAX: usize = 16;
/// For the processor to be opened in a graphics processor's place, its bandwidth measured.
const REPLACED_MAX: Duration = Duration::from_secs(30);

/// What is to be known of devices.
pub enum DeviceEvent {
    /// A child begins to open it and make it compute.
    Verifying(DeviceId),
    /// It did, or could not.
    Verified(DeviceId, Result<Box<CardWords>, String>),
    /// The processor is open in its place, or cannot be.
    Replaced { device: DeviceId, quarantine: Quarantine, is_kept: bool, processor: Result<Opened, String> },
    /// Nothing stands against it in the registry any more.
    QuarantineOver(DeviceId),
    /// Sensors were read.
    Sensed(Sensed),
    /// A card came or went.
    Changed(CardChange),
}

impl Core {
    pub(super) fn worker_lost(&mut self, key: ShardKey, reason: &str) {
        let ShardKey { instance, stage, .. } = key;
        self.notice(Notice::Warning(format!(
            "stage {stage} of instance {instance} lost its device: {reason}"
        )));
        // Before the shard is wanted again: what is loaded from now on waits for the device.
        if let Some(device) = self.device_of(key) {
            self.device_lost(&device, reason);
        }
        if self.stages.remove(&key).is_some() {
            self.feed_worker(WorkerInput::Failed { key, reason: reason.to_owned() });
        }
    }

    pub(super) fn device_event(&mut self, event: DeviceEvent) {
        match event {
            DeviceEvent::Verifying(device) => self.p.compute.verifying(&device),
            DeviceEvent::Verified(device, found) => return self.device_verified(&device, found),
            DeviceEvent::Replaced { device, quarantine, is_kept, processor } => {
                self.device_replaced(&device, quarantine, is_kept, processor);
            }
            DeviceEvent::QuarantineOver(device) => self.retry_device(&device),
            DeviceEvent::Sensed(sensed) => return self.p.compute.sensed(sensed),
            DeviceEvent::Changed(change) => self.card_changed(&change),
        }
        self.report_now();
    }

    fn device_verified(&mut self, device: &DeviceId, found: Result<Box<CardWords>, String>) {
        if let Err(reason) = &found {
            self.notice(Notice::Warning(format!("the device {device} does not come back: {reason}")));
        }
        let was_kept_off = self.p.compute.is_kept_off(device);
        let now = self.now();
        match self.p.compute.verified(device, now, found) {
            Some(loss) => self.see_to(device, loss),
            None => {
                for device in self.p.compute.facts(false) {
                    self.p.worker.set_memory(device.id, device.memory_total_bytes);
                }
                if was_kept_off {
                    self.notice(Notice::Card(format!(
                        "the device {device} passed its check and is used again"
                    )));
                }
            }
        }
        self.report_now();
    }

    /// Until it is verified nothing is loaded on it; shards lost at the same time are one loss.
    fn device_lost(&mut self, device: &DeviceId, reason: &str) {
        let now = self.now();
        if let Some(loss) = self.p.compute.lost(device, now, reason) {
            self.see_to(device, loss);
            self.report_now();
        }
    }

    fn see_to(&mut self, device: &DeviceId, loss: Loss) {
        let (core, device) = (self.p.sender.clone(), device.clone());
        match loss {
            Loss::Verify { wait, check } => self.verify_after(device, wait, check),
            Loss::GiveUp { quarantine, keep } => {
                let (config, host) = (self.p.config.clone(), self.p.host.clone());
                let kept = quarantine.clone();
                let work = tokio::task::spawn_blocking(move || {
                    let is_kept = keep(&kept);
                    let processor = crate::device::processor(&config, host.as_ref());
                    (is_kept, processor.map_err(|error| chain(&*error)))
                });
                tokio::spawn(async move {
                    // Whatever happens there, the state goes on to quarantine.
                    let (is_kept, processor) = match tokio::time::timeout(REPLACED_MAX, work).await {
                        Ok(Ok(done)) => done,
                        Ok(Err(error)) => (false, Err(error.to_string())),
                        Err(_) => (false, Err(format!("it was not open after {} s", REPLACED_MAX.as_secs()))),
                    };
                    let event = DeviceEvent::Replaced { device, quarantine, is_kept, processor };
                    core.post(CoreEvent::Device(event));
                });
            }
        }
    }

    fn verify_after(&self, device: DeviceId, wait: Duration, check: Check) {
        let core = self.p.sender.clone();
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            core.post(CoreEvent::Device(DeviceEvent::Verifying(device.clone())));
            let verified = tokio::task::spawn_blocking(check).await;
            let verified = verified.unwrap_or_else(|error| Err(error.to_string()));
            core.post(CoreEvent::Device(DeviceEvent::Verified(device, verified)));
        });
    }

    /// From now on the node offers its processor, if no other graphics processor is left or all that are have memory of their own, and says why.
    fn device_replaced(
        &mut self,
        device: &DeviceId,
        quarantine: Quarantine,
        is_kept: bool,
        processor: Result<Opened, String>,
    ) {
        let processor = match processor {
            Ok(opened) => Some(opened),
            Err(error) => {
                self.notice(Notice::Warning(format!("the processor cannot take over: {error}")));
                None
            }
        };
        self.p.compute.keep_off(device, quarantine, is_kept, processor);
        let facts = self.p.compute.facts(false).into_iter().find(|facts| facts.id == *device);
        if let Some(facts) = facts {
            self.notice(Notice::Warning(facts.support_reason));
        }
    }

    /// A device in quarantine gets another chance: its time is over, somebody said so, or its card is another.
    fn retry_device(&mut self, device: &DeviceId) {
        if let Some(check) = self.p.compute.retry(device) {
            self.verify_after(device.clone(), Duration::ZERO, check);
        }
    }

    pub(super) fn tick_devices(&mut self) {
        let now = self.now();
        if now.since(self.quarantine_looked) < LOOK_EVERY {
            return;
        }
        self.quarantine_looked = now;
        let Some(are_over) = self.p.compute.are_over() else { return };
        let core = self.p.sender.clone();
        tokio::task::spawn_blocking(move || {
            for device in are_over() {
                core.post(CoreEvent::Device(DeviceEvent::QuarantineOver(device)));
            }
        });
    }

    /// Tells of it everywhere, and looks at once at a device that it concerns.
    fn card_changed(&mut self, change: &CardChange) {
        let (CardChange::Appeared(card)
        | CardChange::Vanished(card)
        | CardChange::DriverChanged { now: card, .. }) = change;
        let own = self.p.compute.plugged_in_at(&card.pci_address);
        let text = crate::cards::text(change, own.is_some());
        let event = CardEvent { at_unix_s: unix_s(), text: text.clone() };
        self.card_events.push_back(event);
        while self.card_events.len() > CARD_EVENTS_MAX {
            self.card_events.pop_front();
        }
        self.notice(Notice::Card(text));
        match (change, own) {
            (_, None) => {}
            (CardChange::Vanished(_), Some(device)) => {
                self.device_lost(&device, "its card vanished from the bus");
            }
            (_, Some(device)) => self.retry_device(&device),
        }
    }

    /// What to report of the devices besides what they are.
    pub(super) fn device_reports(&self) -> Vec<DeviceReport> {
        let report = |device: DeviceId| {
            let (state, reason) = self.p.compute.state(&device);
            let workers = self.hosts_on(&device).find_map(|host| host.worker()?.monitor());
            DeviceReport { monitor: self.p.compute.monitor(&device, workers), device, state, reason }
        };
        self.p.facts.devices.iter().map(|device| report(device.id.clone())).collect()
    }
}
