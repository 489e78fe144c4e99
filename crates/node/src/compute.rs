//! What this node computes on: its processor, or a graphics processor whose driver only its workers touch.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use exo_backend::Device;
use exo_device::{Identity, Quarantine, Registry};
use exo_types::{DeviceFacts, DeviceId, DeviceState, Monitor, SupportClass, Time};
use tokio::sync::watch;

use crate::NodeConfig;
use crate::device::{Failure, Opened};
use crate::engine_host::chain;
use crate::host::Host;
use crate::worker::{CardWords, DeviceAsk, Guard, MemoryWords, Verdict, WINDOW, WorkerProgram};

/// Of the reason why a device is not used: it travels with every report.
const REASON_CHARS_MAX: usize = 500;

/// The devices of a node.
pub struct Compute {
    /// The device of this process: the processor, opened when something computes on it; where no worker can be started,
    /// what was asked for.
    here: OnceLock<Opened>,
    card: Option<Card>,
    /// Sensors, as this process can read them.
    sensed: Sensed,
}

/// A graphics processor.
struct Card {
    facts: DeviceFacts,
    identity: Identity,
    driver: String,
    ask: DeviceAsk,
    program: WorkerProgram,
    guard: Guard,
    state: watch::Sender<DeviceState>,
    /// Why it is not usable.
    reason: String,
    /// It was lost too often: the processor stands in for it, also while it is looked at again.
    quarantine: Option<KeptOff>,
}

/// A quarantine, and whether the registry on disk has it.
struct KeptOff {
    quarantine: Quarantine,
    is_kept: bool,
}

/// Sensors of the devices of a node.
#[derive(Clone, Copy, Default, Debug)]
pub struct Sensed {
    pub processor: Monitor,
    pub card: Monitor,
}

/// Makes a device compute and compare in a child. Blocks.
pub type Check = Box<dyn FnOnce() -> Result<Box<CardWords>, String> + Send>;

/// What is to be done about a lost device.
pub enum Loss {
    /// After the wait, run the check.
    Verify { wait: Duration, check: Check },
    /// Keep it in the registry and open the processor in its place: both block.
    GiveUp { quarantine: Quarantine, keep: Keep },
}

/// Writes a quarantine to the registry; whether that worked.
pub type Keep = Box<dyn FnOnce(&Quarantine) -> bool + Send>;

/// Where a shard goes.
pub enum Seat {
    /// A device of this process.
    Here(Arc<dyn Device>),
    /// A worker's.
    Worker(DeviceAsk, WorkerProgram),
}

impl Compute {
    /// What `config` asks for: the processor open, a graphics processor asked what it is. Blocks for about a second.
    pub fn open(config: &NodeConfig, host: &dyn Host) -> Result<Self, Failure> {
        let compute = Self { here: OnceLock::new(), card: None, sensed: Sensed::default() };
        let Some(ask) = config.device.ask(config) else {
            compute.processor(config, host)?;
            return Ok(compute);
        };
        let Some(program) = config.worker.clone() else {
            let opened = crate::device::open_asked(&ask, host, true)?;
            return Ok(Self { here: OnceLock::from(opened), ..compute });
        };
        let card = Card::found(crate::worker::ask(&program, &ask)?, ask, program);
        if card.quarantine.is_some() {
            compute.processor(config, host)?;
        }
        Ok(Self { card: Some(card), ..compute })
    }

    /// What the node says of its devices. Beside a graphics processor the processor counts where it is needed: while it
    /// stands in for the other, and for as long as it `is_used` then.
    pub fn facts(&self, is_used: bool) -> Vec<DeviceFacts> {
        let here = self.here.get().map(|(_, facts)| facts.clone());
        match &self.card {
            Some(card) => {
                let here = here.filter(|_| card.quarantine.is_some() || is_used);
                [card.facts_now()].into_iter().chain(here).collect()
            }
            None => here.into_iter().collect(),
        }
    }

    /// Whether a device takes work, and why not.
    pub fn state(&self, device: &DeviceId) -> (DeviceState, String) {
        let card = self.card.as_ref().filter(|card| card.facts.id == *device);
        card.map_or((DeviceState::Usable, String::new()), |card| (*card.state.borrow(), card.reason_now()))
    }

    /// The sensors of a device, given what its workers last said.
    pub fn monitor(&self, device: &DeviceId, workers: Option<Monitor>) -> Monitor {
        match &self.card {
            Some(card) if card.facts.id == *device => workers.unwrap_or_default().or(self.sensed.card),
            _ => self.sensed.processor,
        }
    }

    /// Notes what this process has read.
    pub fn sensed(&mut self, sensed: Sensed) {
        self.sensed = sensed;
    }

    /// Where the graphics processor is plugged in.
    pub fn pci_address(&self) -> Option<&str> {
        self.card.as_ref()?.identity.pci_address.as_deref()
    }

    /// Memory of every device that models may ever be placed on.
    pub fn memory(&self, config: &NodeConfig, host: &dyn Host) -> BTreeMap<DeviceId, u64> {
        let mut memory: BTreeMap<_, _> =
            self.facts(false).into_iter().map(|d| (d.id, d.memory_total_bytes)).collect();
        if self.card.is_some() {
            let total = host.processor(false).memory_total_bytes;
            memory.insert(DeviceId::cpu(), config.memory_max_bytes.unwrap_or(total).min(total));
        }
        memory
    }

    /// The device of this process: the processor, opened if it is not yet, which measures it.
    pub fn processor(&self, config: &NodeConfig, host: &dyn Host) -> Result<Arc<dyn Device>, Failure> {
        if let Some((device, _)) = self.here.get() {
            return Ok(device.clone());
        }
        let opened = crate::device::processor(config, host)?;
        Ok(self.here.get_or_init(|| opened).0.clone())
    }

    /// Where a shard on `device` goes; `None` if there is no such device, or it is lost at present.
    ///
    /// A worker is not limited to what is left just now: the limit would outlive the other workers. What is free is
    /// counted when shards are placed.
    pub fn seat(&self, device: &DeviceId) -> Option<Seat> {
        if let Some(card) = self.card.as_ref().filter(|card| card.facts.id == *device) {
            if *card.state.borrow() != DeviceState::Usable {
                return None;
            }
            return Some(Seat::Worker(card.ask.clone(), card.program.clone()));
        }
        let (opened, facts) = self.here.get()?;
        (facts.id == *device).then(|| Seat::Here(opened.clone()))
    }

    /// Memory of `device` that models can have now, given what its workers last said.
    pub fn free_bytes(&self, device: &DeviceId, workers: &[MemoryWords]) -> Option<u64> {
        if let Some(card) = self.card.as_ref().filter(|card| card.facts.id == *device) {
            return Some(free_beside(card.facts.memory_free_bytes, workers));
        }
        let (opened, _) = self.here.get().filter(|(_, facts)| facts.id == *device)?;
        Some(opened.memory().free_bytes)
    }
}

impl Compute {
    /// Follows whether `device` can be loaded; `None` if it always can.
    pub fn follow(&self, device: &DeviceId) -> Option<watch::Receiver<DeviceState>> {
        self.card.as_ref().filter(|card| card.facts.id == *device).map(|card| card.state.subscribe())
    }

    /// The graphics processor was lost. `None` if that is being seen to already.
    pub fn lost(&mut self, now: Time, reason: &str) -> Option<Loss> {
        let card = self.card.as_mut().filter(|card| *card.state.borrow() == DeviceState::Usable)?;
        Some(card.lost(now, reason))
    }

    /// The check of a lost graphics processor begins.
    pub fn verifying(&mut self) {
        if let Some(card) = &mut self.card {
            card.set_state(DeviceState::Verifying);
        }
    }

    /// What the check found. A device that does not come back is lost once more; one in quarantine stays there.
    pub fn verified(&mut self, now: Time, found: Result<Box<CardWords>, String>) -> Option<Loss> {
        let card = self.card.as_mut()?;
        match found {
            Ok(words) => {
                let CardWords { facts, identity, driver, .. } = *words;
                (card.identity, card.driver) = (identity, driver);
                if card.quarantine.take().is_some() {
                    // Nothing of ours is on it: what it has free now, it has for us.
                    card.facts = facts;
                }
                card.reason.clear();
                card.set_state(DeviceState::Usable);
                None
            }
            Err(reason) if card.quarantine.is_some() => Some(card.stay_off(&reason)),
            Err(reason) => Some(card.lost(now, &reason)),
        }
    }

    /// The graphics processor stays listed with the reason; `processor` takes its place.
    pub fn keep_off(&mut self, quarantine: Quarantine, is_kept: bool, processor: Option<Opened>) {
        if let Some(card) = &mut self.card {
            card.quarantine = Some(KeptOff { quarantine, is_kept });
            card.set_state(DeviceState::Quarantined);
        }
        if let Some(processor) = processor {
            // A draft model may have opened it before.
            let _ = self.here.set(processor);
        }
    }

    /// Whether the processor stands in for the graphics processor.
    pub fn is_kept_off(&self) -> bool {
        self.card.as_ref().is_some_and(|card| card.quarantine.is_some())
    }

    /// Looks at the registry, which blocks: whether the quarantine is over. `None` if there is none.
    pub fn is_over(&self) -> Option<impl FnOnce() -> bool + Send + 'static> {
        let card = self.card.as_ref().filter(|card| *card.state.borrow() == DeviceState::Quarantined)?;
        let KeptOff { quarantine, is_kept } = card.quarantine.as_ref()?;
        let (is_kept, until) = (*is_kept, quarantine.until_unix_s);
        let (folder, identity) = (PathBuf::from(&card.ask.data_dir), card.identity.clone());
        let (backend, driver) = (card.ask.backend.clone(), card.driver.clone());
        Some(move || {
            let (registry, now) = (Registry::look(&folder), exo_device::unix_s());
            let is_there = registry.quarantine(&identity, &backend, &driver, now).is_some();
            // What could not be written there ends by the clock.
            if is_kept { !is_there } else { now >= until }
        })
    }

    /// Begins to look at a graphics processor in quarantine once more; `None` if it is in none.
    pub fn retry(&mut self) -> Option<Check> {
        let card = self.card.as_mut().filter(|card| *card.state.borrow() == DeviceState::Quarantined)?;
        card.set_state(DeviceState::Verifying);
        Some(card.check())
    }
}

impl Card {
    fn found(words: CardWords, ask: DeviceAsk, program: WorkerProgram) -> Self {
        let CardWords { facts, identity, driver, quarantine } = words;
        let state = if quarantine.is_some() { DeviceState::Quarantined } else { DeviceState::Usable };
        let quarantine = quarantine.map(|quarantine| KeptOff { quarantine, is_kept: true });
        let (guard, (state, _), reason) = (Guard::default(), watch::channel(state), String::new());
        Self { facts, identity, driver, ask, program, guard, state, reason, quarantine }
    }

    fn set_state(&mut self, state: DeviceState) {
        let before = self.state.send_replace(state);
        if before != state {
            let (device, reason) = (&self.facts.id, &self.reason);
            tracing::info!(target: "events::device", %device, ?state, reason, "state");
        }
    }

    fn lost(&mut self, now: Time, reason: &str) -> Loss {
        self.reason = reason.chars().take(REASON_CHARS_MAX).collect();
        match self.guard.lost(now) {
            Verdict::Verify { wait } => {
                self.set_state(DeviceState::Lost);
                Loss::Verify { wait, check: self.check() }
            }
            Verdict::GiveUp { losses } => {
                let minutes = WINDOW.as_secs() / 60;
                self.set_state(DeviceState::Lost);
                self.give_up(&format!(
                    "it was lost {losses} times within {minutes} minutes, at last because {reason}"
                ))
            }
        }
    }

    fn give_up(&mut self, reason: &str) -> Loss {
        self.keep_off(Quarantine::new(reason, exo_device::unix_s()))
    }

    /// It was looked at once more and did not come back. That makes a quarantine that still runs no longer.
    fn stay_off(&mut self, reason: &str) -> Loss {
        let now = exo_device::unix_s();
        let mut quarantine = Quarantine::new(&format!("it does not come back: {reason}"), now);
        if let Some(before) = self.quarantine.as_ref().map(|kept| &kept.quarantine)
            && before.until_unix_s > now
        {
            quarantine.until_unix_s = quarantine.until_unix_s.min(before.until_unix_s);
        }
        self.keep_off(quarantine)
    }

    fn keep_off(&self, quarantine: Quarantine) -> Loss {
        let (folder, identity) = (PathBuf::from(&self.ask.data_dir), self.identity.clone());
        let (backend, driver) = (self.ask.backend.clone(), self.driver.clone());
        let keep = move |quarantine: &Quarantine| {
            let kept = Registry::change(&folder, |registry| {
                registry.keep_off(&identity, &backend, &driver, quarantine.clone());
            });
            if let Err(error) = &kept {
                let error = chain(error);
                tracing::warn!(%error, "the quarantine of a device is not kept across a start");
            }
            kept.is_ok()
        };
        Loss::GiveUp { quarantine, keep: Box::new(keep) }
    }

    /// Opens it in a child, whatever the registry says of it; if that works, the registry says nothing more against it.
    fn check(&self) -> Check {
        let ask = DeviceAsk { heeds_quarantine: false, ..self.ask.clone() };
        let (program, identity) = (self.program.clone(), self.identity.clone());
        Box::new(move || {
            let words = crate::worker::ask(&program, &ask).map_err(|error| chain(&error))?;
            // What else is told of a card may differ while it is pulled.
            let places = (&identity.pci_address, &words.identity.pci_address);
            if matches!(places, (Some(before), Some(now)) if before != now) {
                return Err(format!("{} answers in its place", words.facts.name));
            }
            let released = Registry::change(Path::new(&ask.data_dir), |registry| {
                registry.release(&words.identity, &ask.backend)
            });
            if let Err(error) = released {
                let error = chain(&error);
                tracing::warn!(%error, "the end of a device's quarantine is not kept across a start");
            }
            Ok(Box::new(words))
        })
    }

    fn facts_now(&self) -> DeviceFacts {
        match &self.quarantine {
            Some(_) => DeviceFacts {
                support: SupportClass::Unsupported,
                support_reason: format!("{} ({}) is {}", self.facts.name, self.facts.id, self.reason_now()),
                ..self.facts.clone()
            },
            None => self.facts.clone(),
        }
    }

    fn reason_now(&self) -> String {
        match &self.quarantine {
            Some(kept) => kept.quarantine.text(exo_device::unix_s()),
            None => self.reason.clone(),
        }
    }
}

/// Some drivers know what all programs hold, others only what the asking process does: the least of both holds for either.
fn free_beside(free_at_start: u64, workers: &[MemoryWords]) -> u64 {
    let held = workers.iter().fold(0u64, |held, w| held.saturating_add(w.allocated_bytes));
    let told = workers.iter().map(|w| w.free_bytes).min().unwrap_or(u64::MAX);
    free_at_start.saturating_sub(held).min(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_counts_what_every_worker_holds_and_what_the_driver_knows_of_others() {
        let worker = |free_bytes, allocated_bytes| MemoryWords { free_bytes, allocated_bytes };
        assert_eq!(free_beside(100, &[]), 100);
        // Each knows itself only.
        assert_eq!(free_beside(100, &[worker(70, 30), worker(50, 20)]), 50);
        // The driver knows of another program's 40.
        assert_eq!(free_beside(100, &[worker(30, 30)]), 30);
        assert_eq!(free_beside(10, &[worker(0, 30)]), 0);
    }
}
