//! What this node computes on: its processor, or a graphics processor whose driver only its workers touch.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use exo_backend::Device;
use exo_types::{DeviceFacts, DeviceId, SupportClass, Time};
use tokio::sync::watch;

use crate::NodeConfig;
use crate::device::{Failure, Opened};
use crate::host::Host;
use crate::worker::{DeviceAsk, Guard, MemoryWords, Verdict, WINDOW, WorkerProgram};

/// Of the reason why a device is not used: it travels with every report.
const REASON_CHARS_MAX: usize = 500;

/// The devices of a node.
pub struct Compute {
    /// The device of this process: the processor, opened when something computes on it; where no worker can be started,
    /// what was asked for.
    here: OnceLock<Opened>,
    card: Option<Card>,
}

/// A graphics processor.
struct Card {
    facts: DeviceFacts,
    ask: DeviceAsk,
    program: WorkerProgram,
    guard: Guard,
    stand: watch::Sender<Stand>,
}

/// Whether a graphics processor can be loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stand {
    /// It can.
    Usable,
    /// It was lost, and is being verified or replaced.
    Lost,
    /// Not until the node is started again.
    Over,
}

/// What is to be done about a lost device.
pub enum Loss {
    /// After the wait, run the check, which blocks.
    Verify { wait: Duration, check: Box<dyn FnOnce() -> Result<(), String> + Send> },
    /// Open the processor in its place.
    GiveUp { reason: String },
}

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
        let compute = Self { here: OnceLock::new(), card: None };
        let Some(ask) = config.device.ask(config) else {
            compute.processor(config, host)?;
            return Ok(compute);
        };
        let Some(program) = config.worker.clone() else {
            let opened = crate::device::open_asked(&ask, host, true)?;
            return Ok(Self { here: OnceLock::from(opened), card: None });
        };
        let facts = crate::worker::ask(&program, &ask)?;
        let (guard, (stand, _)) = (Guard::default(), watch::channel(Stand::Usable));
        Ok(Self { card: Some(Card { facts, ask, program, guard, stand }), ..compute })
    }

    /// What the node says of its devices. Beside a graphics processor the processor counts once it is needed.
    pub fn facts(&self) -> Vec<DeviceFacts> {
        let here = self.here.get().map(|(_, facts)| facts.clone());
        match &self.card {
            Some(card) if *card.stand.borrow() == Stand::Over => {
                [card.facts.clone()].into_iter().chain(here).collect()
            }
            Some(card) => vec![card.facts.clone()],
            None => here.into_iter().collect(),
        }
    }

    /// Memory of every device that models may ever be placed on.
    pub fn memory(&self, config: &NodeConfig, host: &dyn Host) -> BTreeMap<DeviceId, u64> {
        let mut memory: BTreeMap<_, _> =
            self.facts().into_iter().map(|d| (d.id, d.memory_total_bytes)).collect();
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
            if *card.stand.borrow() != Stand::Usable {
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
    pub fn follow(&self, device: &DeviceId) -> Option<watch::Receiver<Stand>> {
        self.card.as_ref().filter(|card| card.facts.id == *device).map(|card| card.stand.subscribe())
    }

    /// The graphics processor was lost. `None` if that is being seen to already.
    pub fn lost(&mut self, now: Time, reason: &str) -> Option<Loss> {
        let card = self.card.as_mut().filter(|card| *card.stand.borrow() == Stand::Usable)?;
        card.stand.send_replace(Stand::Lost);
        Some(match card.guard.lost(now) {
            Verdict::Verify { wait } => {
                let (program, ask) = (card.program.clone(), card.ask.clone());
                let check = move || {
                    let verified = crate::worker::ask(&program, &ask);
                    verified.map(|_| ()).map_err(|error| crate::engine_host::chain(&error))
                };
                Loss::Verify { wait, check: Box::new(check) }
            }
            Verdict::GiveUp { losses } => {
                let (id, name, minutes) = (&card.facts.id, &card.facts.name, WINDOW.as_secs() / 60);
                let reason = format!(
                    "{name} ({id}) is not used until exo is started again: it was lost {losses} times within {minutes} \
                     minutes, at last because {reason}"
                );
                Loss::GiveUp { reason }
            }
        })
    }

    /// What was found out about a lost graphics processor.
    pub fn stand(&self, stand: Stand) {
        if let Some(card) = &self.card {
            card.stand.send_replace(stand);
        }
    }

    /// The graphics processor stays listed with the reason; `processor` takes its place.
    pub fn give_up(&mut self, reason: &str, processor: Option<Opened>) {
        if let Some(card) = &mut self.card {
            card.facts.support = SupportClass::Unsupported;
            card.facts.support_reason = reason.chars().take(REASON_CHARS_MAX).collect();
            card.stand.send_replace(Stand::Over);
        }
        if let Some(processor) = processor {
            // A draft model may have opened it before.
            let _ = self.here.set(processor);
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
