//! What this node computes on: its processor, or graphics processors whose drivers only its workers touch.

mod card;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use exo_accelerators::{Candidate, CardSelection, DeviceAsk, DeviceInfo, Ranking, chain, open_all};
use exo_backend::Device;
use exo_device::Quarantine;
use exo_discovery::Interface;
use exo_types::{
    DeviceFacts, DeviceId, DeviceKind, DeviceState, Monitor, Network, SupportClass, Time, TypeRates,
};
use tokio::sync::watch;

use crate::device::{ask_for, asks, both};
use crate::host::Host;
use crate::open_device::{Failure, Opened};
use crate::worker::{WorkerMemory, WorkerProgram};
use crate::{DeviceChoice, NodeConfig};

use card::{Card, RecordedQuarantine};
pub use card::{Check, CheckError, Loss};

/// The devices of a node.
pub struct Compute {
    /// The device of this process: the processor, opened when something computes on it; where no worker can
    /// be started, what was asked for.
    here: OnceLock<Opened>,
    /// What models may have of the memory of the processor, as known at the start.
    processor_bytes: u64,
    /// In the order in which they were asked for.
    cards: Vec<Card>,
    /// Why nothing is placed on the device of this process, and until when.
    left_out: Option<(Time, String)>,
    /// No one has said what computes: beside cards with memory of their own the processor is a device like
    /// them, for what they do not hold.
    is_chosen: bool,
    /// Why the node computes on what it does, where that was found out at the start: of the device that was
    /// the first then.
    why: Option<(DeviceId, String)>,
    /// Sensors, as this process can read them.
    sensed: Sensed,
    /// What the processor does with types of weights, where that was measured since it was opened.
    types: Option<Vec<TypeRates>>,
}

/// Sensors of the devices of a node.
#[derive(Clone, Default, Debug)]
pub struct Sensed {
    pub processor: Monitor,
    pub memory: Option<exo_device::Memory>,
    /// Free on the disk of the data folder.
    pub disk_free_bytes: Option<u64>,
    /// File descriptors of this process.
    pub descriptors: Option<exo_device::Descriptors>,
    /// Charge of the machine's battery.
    pub battery_percent: Option<u8>,
    /// Whether multicast of this node comes back to it, where it looks for others.
    pub multicast_heard: Option<bool>,
    pub cards: BTreeMap<String, Monitor>,
    /// What the system says of machine and process, once it was asked.
    pub system: Option<SystemState>,
}

/// What a [`Host`] says and what takes it a while.
#[derive(Clone, Debug)]
pub struct SystemState {
    pub mains_power: Option<bool>,
    pub process_bytes: Option<u64>,
    /// Empty where the system does not tell.
    pub networks: Vec<Network>,
    /// By address of this machine: whether its interface is a radio, where the system tells.
    pub wireless: BTreeMap<IpAddr, bool>,
}

impl SystemState {
    /// At this moment.
    pub fn of(host: &dyn Host) -> Self {
        let interfaces = exo_discovery::local_interfaces().unwrap_or_default();
        let networks = interfaces.iter().map(Interface::network).collect();
        let is_wireless =
            |interface: &Interface| Some((interface.ip, interface.is_wireless(Path::new("/"))?));
        let wireless = interfaces.iter().filter_map(is_wireless).collect();
        Self { mains_power: host.mains_power(), process_bytes: host.process_bytes(), networks, wireless }
    }
}

pub enum ShardTarget {
    /// A device of this process.
    Here(Arc<dyn Device>),
    /// A worker's.
    Worker(DeviceAsk, WorkerProgram),
}

impl Compute {
    /// What `config` asks for: the processor open, graphics processors asked what they are, all at once.
    /// Blocks for about a second. The warnings are about what was to be tried first and cannot be used.
    pub fn open(config: &NodeConfig, host: &dyn Host) -> Result<(Self, Vec<String>), Failure> {
        let DeviceChoice::Ranked(ranking) = &config.device else {
            return Ok((Self::open_asked(asks(&config.device, config), config, host)?, Vec::new()));
        };
        // Without a process for each this one opens the device that is used.
        let wanted = if config.worker.is_some() { CardSelection::EachCard } else { CardSelection::Best };
        let (quarantined, ranking) = Self::quarantined(ranking, config);
        let tried = ranking.try_each(wanted, |candidate| Self::open_candidate(candidate, config, host))?;
        let mut opened = tried.opened.into_iter();
        let mut compute = opened.next().map_or_else(|| Self::open_asked(Vec::new(), config, host), Ok)?;
        compute.cards.extend(opened.flat_map(|other| other.cards).chain(quarantined));
        compute.is_chosen = !ranking.is_named;
        if compute.has_both() && !compute.cards.is_empty() {
            compute.processor(config, host)?;
        }
        let first = compute.facts(false).into_iter().find(|facts| facts.support != SupportClass::Unsupported);
        compute.why = first.map(|first| (first.id, tried.told));
        Ok((compute, tried.warnings))
    }

    /// Cards in quarantine that would be used but for that: listed, and offered once it is over. One that
    /// cannot even be listed stays among those that are left out.
    fn quarantined(ranking: &Ranking, config: &NodeConfig) -> (Vec<Card>, Ranking) {
        let mut rest = ranking.clone();
        let Some(program) = &config.worker else { return (Vec::new(), rest) };
        let list = |candidate: &Candidate| {
            let cards = Card::find_all(vec![ask_for(candidate, config)], program)?;
            cards.iter().try_for_each(|card| candidate.check_identity(&card.identity))?;
            Ok(cards)
        };
        let mut cards = Vec::new();
        for (candidate, listed) in open_all(&ranking.quarantined.iter().collect::<Vec<_>>(), &list) {
            match listed {
                Ok(listed) => {
                    rest.left_out.retain(|out| out.label != candidate.label);
                    cards.extend(listed);
                }
                Err(error) => {
                    let (card, error) = (&candidate.label, chain(&*error));
                    tracing::warn!(%card, %error, "what is in quarantine cannot be listed");
                }
            }
        }
        (cards, rest)
    }

    /// Whether the processor counts beside the cards. Those without memory of their own have the same as it.
    fn has_both(&self) -> bool {
        let used = self.cards.iter().filter(|card| card.quarantine.is_none());
        self.is_chosen && used.map(|card| card.facts.kind).all(|kind| kind == DeviceKind::DiscreteGpu)
    }

    /// As an explicit wish, but a card in quarantine is passed over, and so is another in the place of the
    /// one that was meant.
    fn open_candidate(candidate: &Candidate, config: &NodeConfig, host: &dyn Host) -> Result<Self, Failure> {
        let compute = Self::open_asked(vec![ask_for(candidate, config)], config, host)?;
        for card in &compute.cards {
            candidate.check_identity(&card.identity)?;
            if let Some(kept) = &card.quarantine {
                return Err(kept.quarantine.text(exo_stdx::unix_s()).into());
            }
        }
        Ok(compute)
    }

    fn open_asked(asks: Vec<DeviceAsk>, config: &NodeConfig, host: &dyn Host) -> Result<Self, Failure> {
        let (here, sensed) = (OnceLock::new(), Sensed::default());
        let total = host.processor().memory_total_bytes;
        let compute = Self {
            here,
            processor_bytes: config.memory_max_bytes.unwrap_or(total).min(total),
            cards: Vec::new(),
            left_out: None,
            is_chosen: false,
            why: None,
            sensed,
            types: None,
        };
        let Some(first) = asks.first() else {
            compute.processor(config, host)?;
            return Ok(compute);
        };
        let Some(program) = config.worker.clone() else {
            if asks.len() > 1 {
                return Err("several devices need a process each, and no worker program is known".into());
            }
            let opened = crate::open_device::open_asked(first, host, true)?;
            return Ok(Self { here: OnceLock::from(opened), ..compute });
        };
        let cards = Card::find_all(asks, &program)?;
        let compute = Self { cards, ..compute };
        if compute.is_left_to_processor() {
            compute.processor(config, host)?;
        }
        Ok(compute)
    }

    /// What the node says of its devices. Beside graphics processors that were asked for the processor counts
    /// where it is needed: while it stands in for them all, and for as long as it `is_used` then. Beside
    /// those that the node chose it always does.
    pub fn facts(&self, is_used: bool) -> Vec<DeviceFacts> {
        let here = self.offered_here(is_used).map(|facts| {
            let mut facts = facts.clone();
            if let Some(types) = &self.types {
                facts.rates_by_type.clone_from(types);
            }
            if let Some((_, why)) = &self.left_out {
                facts.support = SupportClass::Unsupported;
                facts.support_reason = format!("{} ({}) is {why}", facts.name, facts.id);
            }
            facts
        });
        let mut facts: Vec<_> = self.cards.iter().map(Card::facts_now).chain(here).collect();
        let can_be_used = |facts: &&mut DeviceFacts| facts.support != SupportClass::Unsupported;
        if let Some((device, why)) = &self.why
            && let Some(first) = facts.iter_mut().filter(can_be_used).find(|facts| facts.id == *device)
        {
            first.support_reason = both(&first.support_reason, why);
        }
        facts
    }

    /// The device of this process where it counts, as it was opened.
    fn offered_here(&self, is_used: bool) -> Option<&DeviceFacts> {
        let here = self.here.get().map(|(_, facts)| facts);
        here.filter(|_| self.has_both() || self.is_left_to_processor() || is_used)
    }

    /// Whether there is no graphics processor, or none that is not in quarantine.
    fn is_left_to_processor(&self) -> bool {
        self.cards.iter().all(|card| card.quarantine.is_some())
    }

    fn card(&self, device: &DeviceId) -> Option<&Card> {
        self.cards.iter().find(|card| card.facts.id == *device)
    }

    fn card_mut(&mut self, device: &DeviceId) -> Option<&mut Card> {
        self.cards.iter_mut().find(|card| card.facts.id == *device)
    }

    /// Whether a device takes work, and why not.
    pub fn state(&self, device: &DeviceId) -> (DeviceState, String) {
        match (self.card(device), &self.left_out) {
            (Some(card), _) => (*card.state.borrow(), card.reason_now()),
            (None, Some((_, why))) if self.is_here(device) => (DeviceState::Quarantined, why.clone()),
            (None, _) => (DeviceState::Usable, String::new()),
        }
    }

    /// The driver of a graphics processor, as much of its text as every member takes.
    pub fn driver(&self, device: &DeviceId) -> Option<String> {
        let driver = self.card(device).map(|card| exo_cluster::wire::limits::clip(&card.driver));
        driver.filter(|driver| !driver.is_empty())
    }

    /// Whether it is the device of this process.
    pub fn is_here(&self, device: &DeviceId) -> bool {
        self.here.get().is_some_and(|(_, facts)| facts.id == *device)
    }

    /// Leaves the device of this process out until then. Gives what is displayed; `None` if it is another, or
    /// left out already.
    pub fn leave_out_here(&mut self, device: &DeviceId, until: Time, reason: &str) -> Option<String> {
        if !self.is_here(device) || self.left_out.is_some() {
            return None;
        }
        let why = format!(
            "in quarantine for ten minutes: {reason}; `exo devices --retry` or a restart of the node ends that sooner"
        );
        let text = format!("the device {device} is {why}");
        self.left_out = Some((until, why));
        Some(text)
    }

    /// Ends that, at this time only if its own has come. Gives the device if it was left out.
    pub fn end_left_out(&mut self, at: Option<Time>) -> Option<DeviceId> {
        let is_over = |(until, _): &(Time, String)| at.is_none_or(|at| at >= *until);
        self.left_out.take_if(|left_out| is_over(left_out))?;
        self.here.get().map(|(_, facts)| facts.id.clone())
    }

    /// The sensors of a device, given what its workers last said.
    pub fn monitor(&self, device: &DeviceId, workers: Option<Monitor>) -> Monitor {
        let Some(card) = self.card(device) else { return self.sensed.processor };
        let address = card.identity.pci_address.as_ref();
        let sensed = address.and_then(|address| self.sensed.cards.get(address)).copied();
        workers.unwrap_or_default().or(sensed.unwrap_or_default())
    }

    /// What this process has read last.
    pub fn last_sensed(&self) -> &Sensed {
        &self.sensed
    }

    /// Notes what was measured of the processor; whether it is news.
    pub fn types_measured(&mut self, types: Vec<TypeRates>) -> bool {
        let before = self.types.as_ref().or_else(|| Some(&self.here.get()?.1.rates_by_type));
        // Only older is no news.
        let rates = |types: &Vec<TypeRates>| -> Vec<_> {
            let of = |&TypeRates {
                          dtype,
                          read_bytes_per_s,
                          flops_per_s,
                          read_16_rows_bytes_per_s,
                          measured: _,
                      }: &TypeRates| {
                (dtype, read_bytes_per_s, flops_per_s, read_16_rows_bytes_per_s)
            };
            types.iter().map(of).collect()
        };
        let is_news = before.map(rates) != Some(rates(&types));
        self.types = Some(types);
        is_news
    }

    /// Notes what this process has read.
    pub fn sensed(&mut self, sensed: Sensed) {
        self.sensed = sensed;
    }

    /// Where graphics processors are plugged in.
    pub fn pci_addresses(&self) -> Vec<String> {
        self.cards.iter().filter_map(|card| card.identity.pci_address.clone()).collect()
    }

    /// The graphics processor that is plugged in there.
    pub fn plugged_in_at(&self, pci_address: &str) -> Option<DeviceId> {
        let card =
            self.cards.iter().find(|card| card.identity.pci_address.as_deref() == Some(pci_address))?;
        Some(card.facts.id.clone())
    }

    /// Memory of every device that models may ever be placed on.
    pub fn memory(&self) -> BTreeMap<DeviceId, u64> {
        let all = self.cards.iter().map(|card| &card.facts).chain(self.offered_here(false));
        let mut memory: BTreeMap<_, _> =
            all.map(|facts| (facts.id.clone(), facts.memory_total_bytes)).collect();
        if !self.cards.is_empty() {
            memory.insert(DeviceId::cpu(), self.processor_bytes);
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
    /// A worker is not limited to what is left just now: the limit would outlive the other workers. What is
    /// free is counted when shards are placed.
    pub fn shard_target(&self, device: &DeviceId) -> Option<ShardTarget> {
        if let Some(card) = self.card(device) {
            if *card.state.borrow() != DeviceState::Usable {
                return None;
            }
            return Some(ShardTarget::Worker(card.ask.clone(), card.program.clone()));
        }
        let (opened, facts) = self.here.get()?;
        (facts.id == *device).then(|| ShardTarget::Here(opened.clone()))
    }

    /// Memory of `device` that models can have now, given what its workers last said.
    pub fn free_bytes(&self, device: &DeviceId, workers: &[WorkerMemory]) -> Option<u64> {
        if let Some(card) = self.card(device) {
            return Some(free_beside(card.facts.memory_free_bytes, workers));
        }
        let (opened, _) = self.here.get().filter(|(_, facts)| facts.id == *device)?;
        Some(opened.memory().free_bytes)
    }
}

impl Compute {
    /// Follows whether `device` can be loaded; `None` if it always can.
    pub fn follow(&self, device: &DeviceId) -> Option<watch::Receiver<DeviceState>> {
        self.card(device).map(|card| card.state.subscribe())
    }

    /// A graphics processor was lost. `None` if that is being seen to already.
    pub fn lost(&mut self, device: &DeviceId, now: Time, reason: &str) -> Option<Loss> {
        let card = self.card_mut(device).filter(|card| *card.state.borrow() == DeviceState::Usable)?;
        Some(card.lost(now, reason))
    }

    /// A graphics processor is there and cannot be used. `None` if it is none, or not in use anyway.
    pub fn give_up(&mut self, device: &DeviceId, reason: &str) -> Option<Loss> {
        let card = self.card_mut(device).filter(|card| *card.state.borrow() == DeviceState::Usable)?;
        Some(card.fail(reason))
    }

    /// The check of a lost graphics processor begins.
    pub fn verifying(&mut self, device: &DeviceId) {
        if let Some(card) = self.card_mut(device) {
            card.set_state(DeviceState::Verifying);
        }
    }

    /// What the check found. A device that does not come back is lost once more; one in quarantine stays
    /// there.
    pub fn verified(
        &mut self,
        device: &DeviceId,
        now: Time,
        found: Result<Box<DeviceInfo>, CheckError>,
    ) -> Option<Loss> {
        let card = self.card_mut(device)?;
        match found {
            Ok(info) => {
                let DeviceInfo { facts, identity, driver, .. } = *info;
                (card.identity, card.driver) = (identity, driver);
                if card.quarantine.take().is_some() {
                    // Nothing of ours is on it: what it has free now, it has for us.
                    card.facts = facts;
                }
                card.reason.clear();
                card.set_state(DeviceState::Usable);
                None
            }
            Err(error) if card.quarantine.is_some() => Some(card.extend_quarantine(&chain(&error))),
            Err(error) => Some(card.lost(now, &chain(&error))),
        }
    }

    /// The graphics processor stays listed with the reason; `processor` takes its place where no other is
    /// left.
    pub fn set_quarantine(
        &mut self,
        device: &DeviceId,
        quarantine: Quarantine,
        is_kept: bool,
        processor: Option<Opened>,
    ) {
        if let Some(card) = self.card_mut(device) {
            card.quarantine = Some(RecordedQuarantine { quarantine, is_kept });
            card.set_state(DeviceState::Quarantined);
        }
        if let Some(processor) = processor {
            // A draft model may have opened it before.
            let _ = self.here.set(processor);
        }
    }

    /// Whether a graphics processor is in quarantine.
    pub fn is_quarantined(&self, device: &DeviceId) -> bool {
        self.card(device).is_some_and(|card| card.quarantine.is_some())
    }

    /// Looks at the registry, which blocks: which quarantines are over. `None` if there are none.
    pub fn are_over(&self) -> Option<impl FnOnce() -> Vec<DeviceId> + Send + 'static> {
        let checks: Vec<_> =
            self.cards.iter().filter_map(|card| Some((card.facts.id.clone(), card.is_over()?))).collect();
        (!checks.is_empty()).then_some(move || {
            checks.into_iter().filter_map(|(device, is_over)| is_over().then_some(device)).collect()
        })
    }

    /// Begins to look at a graphics processor in quarantine once more; `None` if it is in none.
    pub fn retry(&mut self, device: &DeviceId) -> Option<Check> {
        let card = self.card_mut(device).filter(|card| *card.state.borrow() == DeviceState::Quarantined)?;
        card.set_state(DeviceState::Verifying);
        Some(card.check())
    }
}

/// Some drivers know what all programs hold, others only what the asking process does: the least of both
/// holds for either.
fn free_beside(free_at_start: u64, workers: &[WorkerMemory]) -> u64 {
    let held = workers.iter().fold(0u64, |held, w| held.saturating_add(w.allocated_bytes));
    let told = workers.iter().map(|w| w.free_bytes).min().unwrap_or(u64::MAX);
    free_at_start.saturating_sub(held).min(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_of_this_process_is_left_out_for_its_time_and_says_why() {
        let device = exo_backend_cpu::CpuDevice::open(Default::default()).unwrap();
        let facts = device.facts();
        let id = facts.id.clone();
        let here: OnceLock<Opened> = OnceLock::from((device as Arc<dyn Device>, facts));
        let (cards, left_out, is_chosen, why, types) = (Vec::new(), None, false, None, None);
        let sensed = Sensed::default();
        let processor_bytes = 0; // of no use without cards
        let mut compute = Compute { here, processor_bytes, cards, left_out, is_chosen, why, sensed, types };
        let total_bytes = compute.facts(false)[0].memory_total_bytes;
        assert_eq!(compute.memory(), BTreeMap::from([(id.clone(), total_bytes)]));
        let until = Time::from_millis(10);
        assert_eq!(compute.leave_out_here(&DeviceId("cuda:1".to_owned()), until, "wrong"), None);
        assert!(compute.leave_out_here(&id, until, "it was wrong").is_some());
        let facts = compute.facts(false).remove(0);
        assert!(facts.support == SupportClass::Unsupported && facts.support_reason.contains("it was wrong"));
        assert_eq!(compute.state(&id).0, DeviceState::Quarantined);
        assert_eq!(compute.end_left_out(Some(Time::from_millis(9))), None, "not yet");
        assert_eq!(compute.end_left_out(Some(until)), Some(id.clone()));
        assert_eq!(compute.state(&id), (DeviceState::Usable, String::new()));
    }

    #[test]
    fn free_memory_counts_what_every_worker_holds_and_what_the_driver_knows_of_others() {
        let worker = |free_bytes, allocated_bytes| WorkerMemory { free_bytes, allocated_bytes };
        assert_eq!(free_beside(100, &[]), 100);
        // Each knows itself only.
        assert_eq!(free_beside(100, &[worker(70, 30), worker(50, 20)]), 50);
        // The driver knows of another program's 40.
        assert_eq!(free_beside(100, &[worker(30, 30)]), 30);
        assert_eq!(free_beside(10, &[worker(0, 30)]), 0);
    }
}
