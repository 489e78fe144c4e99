//! Every accelerator of one backend: listed, and, as far as is asked, opened, checked, measured and tried.
//! This is the part of the process that loads the driver.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use exo_backend::{Device, OpKind, Support};
use exo_device::{Calibration, CardSensors, GraphicsCard, Identity, Quarantine, Registry, Trial};
use exo_types::{DType, DeviceId, LayerRates, Monitor, Provenance, TypeRates};
use serde::{Deserialize, Serialize};

use crate::accelerator::OpenAccelerator;
use crate::steps::{self, StepCost};
use crate::{Accelerator, Backend, ListError, VERSION, list, trial};

/// Memory a check may use: the measured matrix and its like.
const CHECK_BYTES: u64 = 256 << 20;

/// How much is asked of a backend.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SurveyAsk {
    /// Who is asked.
    pub backend: Backend,
    /// The data folder whose registry says what is known, and what is in quarantine. A path, which need not
    /// be text.
    pub data_dir: Option<OsString>,
    /// The one accelerator with this number.
    pub only: Option<usize>,
    /// Open none: tell what the driver lists and the registry knows.
    pub list_only: bool,
    /// Measure what each can do, unless the registry knows it from within a day.
    pub measure: bool,
    /// Ask each for a known answer.
    pub trial: bool,
    /// Decode a little on each.
    pub steps: bool,
}

impl SurveyAsk {
    /// Whether the accelerators of a backend work.
    pub fn of(backend: Backend) -> Self {
        Self {
            backend,
            data_dir: None,
            only: None,
            list_only: false,
            measure: false,
            trial: false,
            steps: false,
        }
    }
}

/// What a backend shows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Survey {
    /// Milliseconds of loading drivers and listing devices.
    pub list_ms: f64,
    /// In its driver's order.
    pub found: Vec<SurveyedAccelerator>,
}

/// What is told of a device, by its driver or by what was measured.
#[derive(Serialize, Deserialize, Clone, Default, Debug)]
pub struct AcceleratorFacts {
    /// With its version.
    pub driver: String,
    /// The kernel's part of the driver, with its version where it has one of its own.
    pub kernel_driver: Option<String>,
    /// The vendor's name for its generation, its chip, or the instruction sets of a processor.
    pub architecture: Option<String>,
    /// Cores, multiprocessors, or what its vendor calls them; `None` where no interface tells.
    pub compute_units: Option<u32>,
    /// What was found out by opening it.
    #[serde(flatten)]
    pub abilities: Option<Abilities>,
    /// Of its own, or of that which it shares.
    pub memory_bytes: Option<u64>,
    /// That no one held when this was asked; `None` where nothing tells.
    pub memory_free_bytes: Option<u64>,
    /// What it reads per second.
    pub read_bytes_per_s: Option<f64>,
    /// What it computes per second.
    pub flops_per_s: Option<f64>,
    /// What a layer takes beside products with weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer_rates: Option<LayerRates>,
    /// How often and how long ago these three were measured; `None` where they were not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rates_measured: Option<Provenance>,
    /// The same two with other types of weights than Q8_0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rates_by_type: Vec<TypeRates>,
    /// How warm, hungry, fast and busy it is, as far as it tells.
    #[serde(default, skip_serializing_if = "Monitor::is_empty")]
    pub sensors: Monitor,
    /// Its own number.
    pub uuid: Option<String>,
    /// Why nodes do not use it for a while: then it was not opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine: Option<Quarantine>,
    /// What handing over a decode step costs, where that was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepCost>,
}

/// An accelerator, as a survey tells of it.
#[derive(Serialize, Deserialize, Clone, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct SurveyedAccelerator {
    pub backend: Backend,
    pub index: usize,
    pub identity: Identity,
    /// A software adapter.
    pub is_software: bool,
    /// Shares the machine's memory: what its driver counts as its own is a part of that.
    pub is_integrated: bool,
    pub told: AcceleratorFacts,
    pub times: Times,
    /// What came of asking it for a known answer, now or before.
    pub trial: Option<Trial>,
    /// Why it cannot be used.
    pub trouble: Option<String>,
}

/// What a device computes.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Abilities {
    /// Types that weights may be stored as.
    pub element_types: Vec<DType>,
    /// Kinds of op with a kernel, for each of these types where they have a weight.
    pub ops: Vec<String>,
}

impl Abilities {
    /// As the device says.
    pub fn of(device: &dyn Device) -> Self {
        let multiplies = |dtype: &DType| {
            [OpKind::MatMul, OpKind::Embed].map(|op| device.supports_op(op, Some(*dtype)))
                == [Support::Native; 2]
        };
        let element_types: Vec<_> = DType::ALL.into_iter().filter(multiplies).collect();
        let computes = |op: &OpKind| {
            let of = |dtype| device.supports_op(*op, dtype) == Support::Native;
            of(None) && element_types.iter().all(|dtype| of(Some(*dtype)))
        };
        let ops = OpKind::ALL.into_iter().filter(computes).map(|op| format!("{op:?}")).collect();
        Self { ops, element_types }
    }
}

/// Milliseconds from start to ready, by phase.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Default, Debug)]
pub struct Times {
    /// Opening the device, which compiles what it must.
    pub open_ms: f64,
    /// Allocating, copying, computing, comparing.
    pub check_ms: f64,
    /// Measuring; `None` where it was known, was not asked for or failed.
    pub measure_ms: Option<f64>,
}

impl SurveyedAccelerator {
    /// One that was not opened yet. `cards` is what the bus shows.
    fn listed(accelerator: &Accelerator, cards: &[GraphicsCard]) -> Self {
        let told = AcceleratorFacts {
            driver: accelerator.driver.clone(),
            memory_bytes: accelerator.memory_bytes,
            compute_units: accelerator.compute_units,
            ..AcceleratorFacts::default()
        };
        let mut found = Self {
            backend: accelerator.backend,
            index: accelerator.index,
            identity: accelerator.identity.clone(),
            is_software: accelerator.is_software,
            is_integrated: accelerator.is_integrated,
            told,
            times: Times::default(),
            trial: None,
            trouble: accelerator.trouble.clone(),
        };
        // The system's words for a generation come first: a driver's name of the card tells the chip at best.
        if let Some(card) = exo_device::find_card(cards, found.identity.pci_address.as_deref()) {
            found.learn(card);
        }
        found.told.architecture = found.told.architecture.take().or_else(|| accelerator.architecture.clone());
        found
    }

    /// `cuda:0`, as `exo devices` shows it.
    pub fn place(&self) -> String {
        format!("{}:{}", self.backend, self.index)
    }

    /// Name and place.
    pub fn label(&self) -> String {
        format!("{} ({})", self.identity.name, self.place())
    }

    /// What it can do, if that is known.
    pub fn rates(&self) -> Option<Calibration> {
        let (read_bytes_per_s, flops_per_s) = (self.told.read_bytes_per_s?, self.told.flops_per_s?);
        Some(Calibration { layer: self.told.layer_rates, ..Calibration::of(read_bytes_per_s, flops_per_s) })
    }

    /// Whether that is known, and was not measured too long ago. Rates without a date count as if they were
    /// new.
    fn has_fresh_rates(&self) -> bool {
        self.rates().is_some() && self.told.rates_measured.is_none_or(Provenance::is_fresh)
    }

    /// Adds what the system knows of the card that is not known yet.
    fn learn(&mut self, card: &GraphicsCard) {
        let told = &mut self.told;
        told.kernel_driver = told.kernel_driver.take().or_else(|| card.kernel_driver_text());
        told.architecture = told.architecture.take().or_else(|| card.architecture.clone());
        told.compute_units = told.compute_units.or(card.compute_units);
        told.memory_bytes = told.memory_bytes.or(card.memory_bytes);
        told.uuid = told.uuid.take().or_else(|| card.uuid.clone());
        if !self.is_integrated {
            told.memory_free_bytes = told.memory_free_bytes.or(card.memory_free_bytes);
        }
    }

    /// Adds what the registry knows: what it can do, what came of its trial, whether it is in quarantine.
    pub(crate) fn recall(&mut self, registry: &Registry) {
        let now = exo_stdx::unix_s();
        let (card, backend, driver) = (&self.identity, self.backend.name(), &self.told.driver);
        if let Some(known) = registry.calibration(card, backend, driver) {
            self.told.read_bytes_per_s = Some(known.read_bytes_per_s);
            self.told.flops_per_s = Some(known.flops_per_s);
            self.told.layer_rates = known.layer;
            self.told.rates_measured = known.told();
        }
        self.trial = registry.trial(card, backend, driver, VERSION, now).cloned();
        self.told.quarantine = registry.quarantine(card, backend, driver, now).cloned();
        if let Some(quarantine) = &self.told.quarantine {
            self.trouble = Some(quarantine.text(now));
        }
    }
}

/// Asks one backend for its accelerators; `listed` is called once its driver has listed them.
///
/// This loads the backend's drivers into the process.
pub fn survey(ask: &SurveyAsk, listed: impl FnOnce()) -> Result<Survey, ListError> {
    let began = Instant::now();
    let cards = exo_device::graphics_cards(Path::new("/"));
    let all = list(ask.backend, &cards)?;
    let list_ms = ms(began);
    listed();
    let registry = ask.data_dir.as_ref().map(|folder| Registry::look(Path::new(folder)));
    let examiner = Examiner { ask, cards, registry };
    let asked: Vec<_> =
        all.into_iter().filter(|found| ask.only.is_none_or(|only| only == found.index)).collect();
    Ok(Survey { list_ms, found: examiner.examine_all(&asked) })
}

struct Examiner<'a> {
    ask: &'a SurveyAsk,
    /// On the bus.
    cards: Vec<GraphicsCard>,
    registry: Option<Registry>,
}

impl Examiner<'_> {
    /// Cards at once. What may be one card, by its slot, comes one after the other, as each is measured
    /// alone; so does everything where the cost of handing over a step is measured, which is the processor's.
    fn examine_all(&self, listed: &[Accelerator]) -> Vec<SurveyedAccelerator> {
        let slot = |accelerator: &Accelerator| match accelerator.is_software {
            // It is in no slot, and in no one's way.
            true => Some("software".to_owned()),
            false => accelerator.identity.pci_address.clone(),
        };
        let slots: Vec<_> = listed.iter().map(|one| if self.ask.steps { None } else { slot(one) }).collect();
        let examine = |card: &[usize]| -> Vec<(usize, SurveyedAccelerator)> {
            card.iter().map(|&at| (at, self.examine(&listed[at]))).collect()
        };
        let cards = by_card(&slots);
        let mut found = std::thread::scope(|scope| {
            let threads: Vec<_> = cards.iter().map(|card| scope.spawn(|| examine(card))).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                // What breaks here ends this process, as it does elsewhere.
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().flat_map(join).collect::<Vec<_>>()
        });
        found.sort_by_key(|(at, _)| *at);
        found.into_iter().map(|(_, found)| found).collect()
    }

    fn examine(&self, accelerator: &Accelerator) -> SurveyedAccelerator {
        let mut found = SurveyedAccelerator::listed(accelerator, &self.cards);
        if let Some(registry) = &self.registry {
            found.recall(registry);
        }
        if self.ask.list_only || found.told.quarantine.is_some() {
            return found;
        }
        found.trouble = None; // opening it says it in its own words
        if let Err(error) = self.open(accelerator, &mut found) {
            found.trouble = Some(crate::chain(&*error));
        }
        found
    }

    /// Opens it and makes it compute: a driver that lists a device may still not be able to use it.
    fn open(
        &self,
        accelerator: &Accelerator,
        found: &mut SurveyedAccelerator,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let limit = accelerator.memory_bytes.unwrap_or(CHECK_BYTES).min(CHECK_BYTES);
        let began = Instant::now();
        let opened = accelerator.open(DeviceId("probe".to_owned()), Some(limit), None)?;
        found.times.open_ms = ms(began);
        let device = opened.device();
        let began = Instant::now();
        exo_device::verify(&*device)?;
        found.times.check_ms = ms(began);
        found.told.memory_free_bytes = opened.free_bytes().or(found.told.memory_free_bytes);
        if let (true, OpenAccelerator::Graphics(device)) = (self.ask.steps, &opened) {
            found.told.step = Some(steps::measure(device)?);
        }
        self.measure(found, device);
        Ok(())
    }

    /// Notes what it can do.
    fn measure(&self, found: &mut SurveyedAccelerator, device: Arc<dyn Device>) {
        found.told.sensors = device.monitor();
        // Only now: for a card of NVIDIA this loads one more library of its driver.
        let told = CardSensors::new(found.identity.vendor, found.identity.pci_address.as_deref()).card();
        told.inspect(|card| found.learn(card));
        found.told.abilities = Some(Abilities::of(&*device));
        // A software adapter is slow: its numbers are not worth the wait.
        if found.is_software {
            return;
        }
        if self.ask.measure && !found.has_fresh_rates() {
            let began = Instant::now();
            match exo_device::calibrate(&*device) {
                Ok(rates) => {
                    found.told.read_bytes_per_s = Some(rates.read_bytes_per_s);
                    found.told.flops_per_s = Some(rates.flops_per_s);
                    found.told.layer_rates = rates.layer.or(found.told.layer_rates);
                    found.told.rates_measured = rates.told();
                    // Only then: what has it is noted with the date of today.
                    found.times.measure_ms = Some(ms(began));
                }
                Err(error) => {
                    let (card, error) = (found.label(), crate::chain(&error));
                    tracing::warn!(card, error, "a card could not be measured: what was known of it counts");
                }
            }
        }
        if self.ask.trial {
            match trial::run(device) {
                Ok(failed) => {
                    found.trial = Some(Trial::new(VERSION, failed.as_deref(), exo_stdx::unix_s()));
                }
                // Somebody has filled its memory, say: that may be over at the next start.
                Err(error) => {
                    found.trouble = Some(format!("it could not be tried: {}", crate::chain(&error)));
                }
            }
        }
    }
}

/// Which of these are one card, by its slot; where one does not tell its slot, they all may be.
pub(crate) fn by_card(slots: &[Option<String>]) -> Vec<Vec<usize>> {
    let mut cards: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, slot) in slots.iter().enumerate() {
        match slot {
            Some(slot) => cards.entry(slot).or_default().push(at),
            None => return vec![(0..slots.len()).collect()],
        }
    }
    cards.into_values().collect()
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// One that was listed and measured, with this trial.
    pub(crate) fn found(backend: Backend, index: usize, pci_address: Option<&str>) -> SurveyedAccelerator {
        SurveyedAccelerator {
            backend,
            index,
            identity: exo_device::identity("Card", 0x1002, 1, pci_address, &[]),
            is_software: false,
            is_integrated: false,
            told: AcceleratorFacts { driver: "1.0".to_owned(), ..AcceleratorFacts::default() },
            times: Times::default(),
            trial: None,
            trouble: None,
        }
    }

    #[test]
    fn what_may_be_one_card_goes_together() {
        let slots = |names: &[&str]| -> Vec<Option<String>> {
            names.iter().map(|name| (*name != "?").then(|| (*name).to_owned())).collect()
        };
        assert_eq!(by_card(&slots(&["a", "b", "a", "c"])), [vec![0, 2], vec![1], vec![3]]);
        assert_eq!(by_card(&slots(&["a", "b", "?"])), [[0, 1, 2]]);
        assert!(by_card(&[]).is_empty());
    }

    #[test]
    fn what_was_measured_more_than_a_day_ago_is_not_fresh() {
        let mut found = found(Backend::Cuda, 0, None);
        assert!(!found.has_fresh_rates(), "nothing is known");
        (found.told.read_bytes_per_s, found.told.flops_per_s) = (Some(1e12), Some(1e14));
        let mut is_fresh = |age_s| {
            found.told.rates_measured = Some(Provenance { count: 9, age_s });
            found.has_fresh_rates()
        };
        assert!(is_fresh(Provenance::FRESH_S) && !is_fresh(Provenance::FRESH_S + 1));
    }
}
