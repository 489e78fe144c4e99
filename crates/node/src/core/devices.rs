//! Devices that workers lose: verified and used again, or put in quarantine, with the processor in their place. Cards that
//! come and go.

use std::time::Duration;

use exo_cluster::wire::{CardEvent, DeviceReport};
use exo_cluster::{ShardKey, WorkerInput};
use exo_device::{CardChange, Quarantine};
use exo_types::{DeviceId, Monitor};

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
    Verifying,
    /// It did, or could not.
    Verified(Result<Box<CardWords>, String>),
    /// The processor is open in its place, or cannot be.
    Replaced { quarantine: Quarantine, is_kept: bool, processor: Result<Opened, String> },
    /// Nothing stands against it in the registry any more.
    QuarantineOver,
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
        self.device_lost(reason);
        if self.stages.remove(&key).is_some() {
            self.feed_worker(WorkerInput::Failed { key, reason: reason.to_owned() });
        }
    }

    pub(super) fn device_event(&mut self, event: DeviceEvent) {
        match event {
            DeviceEvent::Verifying => self.p.compute.verifying(),
            DeviceEvent::Verified(found) => return self.device_verified(found),
            DeviceEvent::Replaced { quarantine, is_kept, processor } => {
                self.device_replaced(quarantine, is_kept, processor);
            }
            DeviceEvent::QuarantineOver => self.retry_device(),
            DeviceEvent::Sensed(sensed) => return self.p.compute.sensed(sensed),
            DeviceEvent::Changed(change) => self.card_changed(&change),
        }
        self.report_now();
    }

    fn device_verified(&mut self, found: Result<Box<CardWords>, String>) {
        if let Err(reason) = &found {
            self.notice(Notice::Warning(format!("the device does not come back: {reason}")));
        }
        let was_kept_off = self.p.compute.is_kept_off();
        let now = self.now();
        match self.p.compute.verified(now, found) {
            Some(loss) => self.see_to(loss),
            None => {
                for device in self.p.compute.facts(false) {
                    self.p.worker.set_memory(device.id, device.memory_total_bytes);
                }
                if was_kept_off {
                    self.notice(Notice::Card("the device passed its check and is used again".to_owned()));
                }
            }
        }
        self.report_now();
    }

    /// Until it is verified nothing is loaded on it; shards lost at the same time are one loss.
    fn device_lost(&mut self, reason: &str) {
        let now = self.now();
        if let Some(loss) = self.p.compute.lost(now, reason) {
            self.see_to(loss);
            self.report_now();
        }
    }

    fn see_to(&mut self, loss: Loss) {
        let core = self.p.sender.clone();
        match loss {
            Loss::Verify { wait, check } => self.verify_after(wait, check),
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
                    core.post(CoreEvent::Device(DeviceEvent::Replaced { quarantine, is_kept, processor }));
                });
            }
        }
    }

    fn verify_after(&self, wait: Duration, check: Check) {
        let core = self.p.sender.clone();
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            core.post(CoreEvent::Device(DeviceEvent::Verifying));
            let verified = tokio::task::spawn_blocking(check).await;
            let verified = verified.unwrap_or_else(|error| Err(error.to_string()));
            core.post(CoreEvent::Device(DeviceEvent::Verified(verified)));
        });
    }

    /// From now on the node offers its processor, and says why.
    fn device_replaced(&mut self, quarantine: Quarantine, is_kept: bool, processor: Result<Opened, String>) {
        let processor = match processor {
            Ok(opened) => Some(opened),
            Err(error) => {
                self.notice(Notice::Warning(format!("the processor cannot take over: {error}")));
                None
            }
        };
        self.p.compute.keep_off(quarantine, is_kept, processor);
        let reasons = self.p.compute.facts(false).into_iter().map(|device| device.support_reason);
        if let Some(reason) = reasons.into_iter().next() {
            self.notice(Notice::Warning(reason));
        }
    }

    /// A device in quarantine gets another chance: its time is over, somebody said so, or its card is another.
    fn retry_device(&mut self) {
        if let Some(check) = self.p.compute.retry() {
            self.verify_after(Duration::ZERO, check);
        }
    }

    pub(super) fn tick_devices(&mut self) {
        let now = self.now();
        if now.since(self.quarantine_looked) < LOOK_EVERY {
            return;
        }
        self.quarantine_looked = now;
        let Some(is_over) = self.p.compute.is_over() else { return };
        let core = self.p.sender.clone();
        tokio::task::spawn_blocking(move || {
            if is_over() {
                core.post(CoreEvent::Device(DeviceEvent::QuarantineOver));
            }
        });
    }

    /// Tells of it everywhere, and looks at once at a device that it concerns.
    fn card_changed(&mut self, change: &CardChange) {
        let text = crate::cards::text(change, self.p.compute.pci_address());
        let event = CardEvent { at_unix_s: unix_s(), text: text.clone() };
        self.card_events.push_back(event);
        while self.card_events.len() > CARD_EVENTS_MAX {
            self.card_events.pop_front();
        }
        self.notice(Notice::Card(text));
        let (CardChange::Appeared(card)
        | CardChange::Vanished(card)
        | CardChange::DriverChanged { now: card, .. }) = change;
        if self.p.compute.pci_address() != Some(&card.pci_address) {
            return;
        }
        match change {
            CardChange::Vanished(_) => self.device_lost("its card vanished from the bus"),
            CardChange::Appeared(_) | CardChange::DriverChanged { .. } => self.retry_device(),
        }
    }

    /// What to report of the devices besides what they are.
    pub(super) fn device_reports(&self) -> Vec<DeviceReport> {
        let workers = self.worker_monitor();
        let report = |device: DeviceId| {
            let (state, reason) = self.p.compute.state(&device);
            DeviceReport { monitor: self.p.compute.monitor(&device, workers), device, state, reason }
        };
        self.p.facts.devices.iter().map(|device| report(device.id.clone())).collect()
    }

    fn worker_monitor(&self) -> Option<Monitor> {
        self.hosts().find_map(|host| host.worker()?.monitor())
    }
}
