//! Every processor and accelerator of this machine as a report shows it: one row for a device however many
//! backends show it, what it can do, whether a node takes it, and why not.

use std::env::consts::OS;
use std::path::Path;

use exo_backend::Device as _;
use exo_backend_cpu::{CpuDevice, CpuOptions};
use exo_device::GraphicsCard;
use exo_types::{DeviceFacts, SupportClass};
use serde::Serialize;

use crate::backend_survey::{BackendSurvey, ProbeFailure, ProbeFailureKind};
use crate::rank::SOFTWARE;
use crate::survey::{Abilities, AcceleratorFacts, SurveyedAccelerator, Times};
use crate::{Backend, Candidate, Ranking, seconds};

/// One device.
#[derive(Serialize, Debug)]
pub struct Row {
    /// As its driver or the system names it.
    pub name: String,
    /// Who made it.
    pub vendor: Option<&'static str>,
    /// Backends that reach it, the preferred one first, with the number each gives it.
    pub backends: Vec<String>,
    /// Where it is plugged in.
    pub pci_address: Option<String>,
    /// What is told of it.
    #[serde(flatten)]
    pub told: AcceleratorFacts,
    /// From start to ready; of the preferred backend.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times: Option<Times>,
    /// How far it can be used.
    pub support: SupportClass,
    /// Why no further, and what a node makes of it.
    pub reason: String,
    /// A node that is not told what to compute on takes this.
    pub chosen: bool,
}

impl Row {
    /// One of which nothing else is known.
    pub fn bare(name: String, support: SupportClass, reason: String) -> Self {
        Self {
            name,
            vendor: None,
            backends: Vec::new(),
            pci_address: None,
            told: AcceleratorFacts::default(),
            times: None,
            support,
            reason,
            chosen: false,
        }
    }

    fn of(found: &SurveyedAccelerator) -> Self {
        let (support, reason) = match &found.trouble {
            Some(trouble) => (SupportClass::Unsupported, trouble.clone()),
            None => {
                let architecture = found.told.architecture.as_deref();
                let backend = found.backend.to_string();
                let (support, why) = exo_device::graphics_support(found.is_software, &backend, architecture);
                (support, why.to_owned())
            }
        };
        Self {
            vendor: exo_device::vendor_name(found.identity.vendor),
            backends: vec![found.place()],
            pci_address: found.identity.pci_address.clone(),
            told: found.told.clone(),
            times: found.trouble.is_none().then_some(found.times),
            ..Self::bare(found.identity.name.clone(), support, reason)
        }
    }

    /// Another backend shows the same card. It can be used if it can be through one of them.
    fn add(&mut self, found: &SurveyedAccelerator) {
        let place = found.place();
        match &found.trouble {
            None if self.support == SupportClass::Unsupported => {
                let other = Self::of(found);
                let (before, trouble) = (self.backends.join(", "), &self.reason);
                let reason = format!("{}; as {before}: {trouble}", other.reason);
                // What can be used comes first.
                let backends = [&[place], self.backends.as_slice()].concat();
                let pci_address = self.pci_address.take().or(other.pci_address);
                let told = AcceleratorFacts {
                    kernel_driver: other.told.kernel_driver.or_else(|| self.told.kernel_driver.take()),
                    architecture: other.told.architecture.or_else(|| self.told.architecture.take()),
                    compute_units: other.told.compute_units.or(self.told.compute_units),
                    quarantine: self.told.quarantine.take(),
                    ..other.told
                };
                *self = Self { backends, pci_address, told, reason, ..other };
                return;
            }
            None => {}
            Some(trouble) => self.reason = format!("{}; as {place}: {trouble}", self.reason),
        }
        self.backends.push(place);
        self.told.architecture = self.told.architecture.take().or_else(|| found.told.architecture.clone());
        self.told.compute_units = self.told.compute_units.or(found.told.compute_units);
        self.told.memory_free_bytes = self.told.memory_free_bytes.or(found.told.memory_free_bytes);
    }

    /// Adds what a card's sensors tell through the system now, where its backend does not, and at least its
    /// chip's name.
    pub fn ask_the_system(&mut self, cards: &[GraphicsCard]) {
        let card = exo_device::find_card(cards, self.pci_address.as_deref());
        let told = &mut self.told.architecture;
        *told = told.take().or_else(|| card.and_then(|card| card.architecture.clone()));
        let Some(address) = self.pci_address.as_deref() else { return };
        if self.told.sensors.is_empty() {
            self.told.sensors = exo_device::sensors(Path::new("/"), address);
        }
    }

    /// Its name, and where backends show it.
    pub fn label(&self) -> String {
        match self.backends.is_empty() || self.is_driver() {
            true => self.name.clone(),
            false => format!("{} ({})", self.name, self.backends.join(", ")),
        }
    }

    /// It is no device: a driver that shows none.
    fn is_driver(&self) -> bool {
        self.name.starts_with("(driver of ")
    }

    /// It is the processor.
    pub fn is_processor(&self) -> bool {
        self.backends.first().is_some_and(|backend| backend == "cpu")
    }

    /// Nodes keep off it for a while.
    pub fn is_quarantined(&self) -> bool {
        self.told.quarantine.is_some()
    }

    /// Whether a backend shows it.
    pub fn is_shown_by(&self, backend: &str) -> bool {
        self.backends.iter().any(|place| place.split(':').next() == Some(backend))
    }

    /// Whether a label is that of a way to it.
    fn has_label(&self, label: &str) -> bool {
        self.backends.iter().any(|place| is_at(label, place))
    }
}

/// Joins what the bus and the backends show: one row for each device.
pub fn join(processor: DeviceFacts, cards: &[GraphicsCard], outcomes: &[BackendSurvey]) -> Vec<Row> {
    let mut rows = vec![processor_row(processor)];
    for found in outcomes.iter().flat_map(BackendSurvey::shown) {
        let is_it = |row: &&mut Row| match (&row.pci_address, &found.identity.pci_address) {
            (Some(a), Some(b)) => a == b,
            // A backend shows a card once.
            _ => row.name == found.identity.name && !row.is_shown_by(found.backend.name()),
        };
        match rows.iter_mut().find(is_it) {
            Some(row) => row.add(found),
            None => rows.push(Row::of(found)),
        }
    }
    for card in cards {
        if !rows.iter().any(|row| row.pci_address.as_deref() == Some(&card.pci_address)) {
            rows.push(idle_card(card, outcomes));
        }
    }
    // That a vendor's driver is missing is no news where there is no card of that vendor's.
    let is_news = |backend: Backend, failure: &ProbeFailure| match backend.vendor_api() {
        Some(api) if failure.kind == ProbeFailureKind::Absent => {
            cards.iter().any(|card| card.vendor_name() == Some(api.vendor_name()))
        }
        _ => true,
    };
    let silent = outcomes.iter().filter_map(|outcome| Some((outcome.backend, outcome.found.as_ref().err()?)));
    let silent = silent.filter(|(backend, failure)| is_news(*backend, failure));
    rows.extend(silent.map(|(backend, failure)| {
        let mut row = driver_row(backend, failure.reason.clone());
        if let ProbeFailureKind::Quarantined(quarantine) = &failure.kind {
            row.told.quarantine = Some(quarantine.clone());
        }
        row
    }));
    let described = outcomes.iter().filter(|outcome| !outcome.descriptions.is_empty());
    rows.extend(described.map(|outcome| {
        let what = outcome.descriptions.join("; ");
        driver_row(outcome.backend, format!("{what}: install that driver again, or take this away"))
    }));
    rows
}

fn driver_row(backend: Backend, reason: String) -> Row {
    let name = format!("(driver of {backend})");
    Row { backends: vec![backend.to_string()], ..Row::bare(name, SupportClass::Unsupported, reason) }
}

fn processor_row(facts: DeviceFacts) -> Row {
    let device = CpuDevice::open(CpuOptions { threads: Some(1), ..CpuOptions::default() }).ok();
    let sets = device.as_ref().map(|device| device.facts().backend);
    let sets = sets.as_deref().and_then(|backend| backend.strip_prefix("cpu/"));
    let architecture: Vec<_> = [Some(std::env::consts::ARCH), sets].into_iter().flatten().collect();
    Row {
        backends: vec![facts.backend],
        told: AcceleratorFacts {
            architecture: Some(architecture.join(", ")),
            compute_units: Some(facts.compute_units),
            abilities: device.map(|device| Abilities::of(&*device)),
            memory_bytes: Some(facts.memory_total_bytes),
            memory_free_bytes: Some(facts.memory_free_bytes),
            read_bytes_per_s: facts.read_bytes_per_s,
            flops_per_s: facts.flops_per_s,
            layer_rates: facts.layer_rates,
            rates_measured: facts.rates_measured,
            rates_by_type: facts.rates_by_type,
            sensors: exo_device::processor_sensors(Path::new("/")),
            ..AcceleratorFacts::default()
        },
        ..Row::bare(facts.name, facts.support, facts.support_reason)
    }
}

/// A card on the bus that no backend shows.
fn idle_card(card: &GraphicsCard, outcomes: &[BackendSurvey]) -> Row {
    let driver = exo_device::driver_text(card, OS);
    let asked = outcomes.iter().filter(|outcome| outcome.trouble().is_none());
    let asked: Vec<_> = asked.map(|outcome| outcome.backend.name()).collect();
    let does_not = match asked.is_empty() {
        true => "no driver answers".to_owned(),
        false => format!("{} does not show it", asked.join(", ")),
    };
    let numbers = || {
        let vendor = card.vendor_name().unwrap_or("unknown");
        format!("{vendor} graphics {:04x}:{:04x}", card.vendor, card.device)
    };
    let reason = format!("{driver}, and {does_not}: {}", exo_device::advice(card, OS));
    Row {
        vendor: card.vendor_name(),
        pci_address: Some(card.pci_address.clone()),
        told: AcceleratorFacts {
            driver,
            kernel_driver: card.kernel_driver_text(),
            architecture: card.architecture.clone(),
            compute_units: card.compute_units,
            memory_bytes: card.memory_bytes,
            memory_free_bytes: card.memory_free_bytes,
            uuid: card.uuid.clone(),
            ..AcceleratorFacts::default()
        },
        ..Row::bare(card.name.clone().unwrap_or_else(numbers), SupportClass::Unsupported, reason)
    }
}

/// Adds to each row whether a node computes on it by itself, else why not, and what asks for it.
pub fn add_decisions(rows: &mut [Row], ranking: &Ranking) {
    let chosen = ranking.each_card();
    for row in rows {
        if row.is_processor() {
            row.chosen = chosen.is_empty();
            let why = chosen.first().map(|best| {
                format!("a node takes {} before it by itself; --backend cpu asks for this alone", best.label)
            });
            append(&mut row.reason, why.as_deref().unwrap_or("a node takes it by itself"));
        } else if row.support != SupportClass::Unsupported {
            row.chosen = chosen.iter().any(|chosen| row.has_label(&chosen.label));
            let decision = decision(row, ranking, &chosen);
            append(&mut row.reason, &decision);
        }
    }
}

/// Of an accelerator that can be used.
fn decision(row: &Row, ranking: &Ranking, chosen: &[&Candidate]) -> String {
    let how = row.backends.first().and_then(|place| place.split_once(':'));
    let how = how.map_or_else(String::new, |(backend, index)| {
        format!("; --backend {backend} --device {index} asks for it")
    });
    match chosen.iter().find(|candidate| row.has_label(&candidate.label)) {
        Some(own) => {
            let own_s = seconds(own.seconds);
            let than = ranking.processor_s.map(|s| format!(", where the processor takes {}", seconds(s)));
            let place = row.backends.iter().find(|place| is_at(&own.label, place)).map_or("", String::as_str);
            format!("a node takes it by itself, as {place}: {own_s}{}{how}", than.unwrap_or_default())
        }
        None => {
            let out = ranking.left_out.iter().find(|out| row.has_label(&out.label));
            // That it is a software adapter, the row says.
            let out = out.filter(|out| out.reason != SOFTWARE);
            let why = out.map_or_else(String::new, |out| format!(": {}", out.reason));
            format!("no node takes it by itself{why}{how}")
        }
    }
}

fn is_at(label: &str, place: &str) -> bool {
    label.ends_with(&format!("({place})"))
}

fn append(reason: &mut String, more: &str) {
    if !reason.is_empty() {
        reason.push_str("; ");
    }
    reason.push_str(more);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::survey::tests::found;

    fn card(address: &str) -> GraphicsCard {
        GraphicsCard {
            pci_address: address.to_owned(),
            vendor: 0x10de,
            device: 0x2684,
            ..GraphicsCard::default()
        }
    }

    fn processor() -> DeviceFacts {
        exo_device::probe(&exo_device::ProbeOptions::default())
    }

    fn rows(cards: &[GraphicsCard], outcomes: &[BackendSurvey]) -> Vec<(String, SupportClass)> {
        let rows = join(processor(), cards, outcomes);
        rows.into_iter().skip(1).map(|row| (row.reason, row.support)).collect()
    }

    fn outcome(backend: Backend, found: Vec<SurveyedAccelerator>) -> BackendSurvey {
        BackendSurvey { backend, list_ms: None, found: Ok(found), descriptions: Vec::new() }
    }

    fn silent(backend: Backend, kind: ProbeFailureKind, reason: &str) -> BackendSurvey {
        BackendSurvey::new(backend, Err(ProbeFailure::new(kind, reason.to_owned())))
    }

    #[test]
    fn a_card_is_one_row_however_many_backends_show_it() {
        let vulkan = |index, address| found(Backend::Vulkan, index, Some(address));
        let both = vec![vulkan(0, "0000:01:00.0"), vulkan(1, "0000:02:00.0")];
        let vulkan = outcome(Backend::Vulkan, both);
        let dx12 = outcome(Backend::Dx12, vec![found(Backend::Dx12, 0, Some("0000:01:00.0"))]);
        assert_eq!(rows(&[card("0000:01:00.0")], &[vulkan, dx12]).len(), 2);
    }

    #[test]
    fn a_card_is_usable_if_one_of_its_backends_can_use_it_and_the_others_say_why_not() {
        let shown = |backend, trouble: Option<&str>| SurveyedAccelerator {
            trouble: trouble.map(str::to_owned),
            ..found(backend, 0, Some("0000:01:00.0"))
        };
        let broken = outcome(Backend::Vulkan, vec![shown(Backend::Vulkan, Some("it computed a wrong sum"))]);
        let works = outcome(Backend::Dx12, vec![shown(Backend::Dx12, None)]);
        for outcomes in [[broken.clone(), works.clone()], [works, broken]] {
            let row = join(processor(), &[], &outcomes).pop().unwrap();
            assert_eq!(
                (row.support, &row.backends[..]),
                (SupportClass::Experimental, &["dx12:0", "vulkan:0"].map(str::to_owned)[..])
            );
            assert!(row.reason.ends_with("by us; as vulkan:0: it computed a wrong sum"), "{}", row.reason);
        }
    }

    #[test]
    fn a_card_without_driver_is_told_with_what_to_install() {
        let rows = rows(&[card("0000:01:00.0")], &[outcome(Backend::Vulkan, Vec::new())]);
        assert!(rows[0].0.contains("vulkan does not show it: install NVIDIA's driver"), "{rows:?}");
        assert_eq!(rows[0].1, SupportClass::Unsupported);
    }

    #[test]
    fn a_missing_nvidia_driver_is_news_where_a_card_of_nvidias_is() {
        let missing =
            || silent(Backend::Cuda, ProbeFailureKind::Absent, "libcuda.so.1 is not on this machine");
        let amd = GraphicsCard { vendor: 0x1002, ..card("0000:01:00.0") };
        assert_eq!(rows(&[amd], &[missing()]).len(), 1);
        let with = rows(&[card("0000:01:00.0")], &[missing()]);
        assert!(with.len() == 2 && with[1].0.contains("libcuda.so.1 is not on this machine"), "{with:?}");
    }

    #[test]
    fn a_broken_driver_is_a_row_with_its_reason() {
        let vulkan = silent(Backend::Vulkan, ProbeFailureKind::Broken, "it crashed (signal 11)");
        assert_eq!(rows(&[], &[vulkan]), [("it crashed (signal 11)".to_owned(), SupportClass::Unsupported)]);
    }
}
