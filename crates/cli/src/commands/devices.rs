//! `exo devices`: every processor and graphics card of this machine, what it can do, and why one is not used.

mod decision;
mod filter;
mod probe;
pub mod remember;
mod steps;

use std::env::consts::OS;
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use exo_backend::{Device as _, OpKind};
use exo_backend_cpu::{CpuDevice, CpuOptions};
use exo_backend_wgpu::Api;
use exo_device::{GraphicsCard, Registry, RegistryError, Released};
use exo_node::{Host, SystemHost};
use exo_types::{DeviceFacts, SupportClass};
use serde::Serialize;

use crate::args::{Devices, Probing};
use crate::auto::rank::System;
use crate::config::Config;
use crate::run_node::node_config;
use crate::{auto, ui};
pub use filter::Filter;
use probe::{Abilities, Times, Told};
pub use probe::{Ask, Found, Outcome, Silence, Silent, Source, ask_in_child, by_card, in_child};
use steps::StepCost;

/// One device, as people and scripts see it.
#[derive(Serialize, Debug)]
pub struct Row {
    name: String,
    maker: Option<&'static str>,
    /// Backends that reach it, the preferred one first, with the number each gives it.
    backends: Vec<String>,
    pci_address: Option<String>,
    #[serde(flatten)]
    told: Told,
    /// From start to ready; of the preferred backend.
    #[serde(skip_serializing_if = "Option::is_none")]
    times: Option<Times>,
    pub support: SupportClass,
    pub reason: String,
    /// A node that is not told what to compute on takes this.
    pub chosen: bool,
}

impl Row {
    /// One of which nothing else is known.
    fn bare(name: String, support: SupportClass, reason: String) -> Self {
        Self {
            name,
            maker: None,
            backends: Vec::new(),
            pci_address: None,
            told: Told::default(),
            times: None,
            support,
            reason,
            chosen: false,
        }
    }

    /// Another backend shows the same card. It can be used if it can be through one of them.
    fn add(&mut self, found: &Found) {
        let place = backend(found);
        match &found.trouble {
            None if self.support == SupportClass::Unsupported => {
                let other = adapter_row(found);
                let (before, trouble) = (self.backends.join(", "), &self.reason);
                let reason = format!("{}; as {before}: {trouble}", other.reason);
                // What can be used comes first.
                let backends = [&[place], self.backends.as_slice()].concat();
                let pci_address = self.pci_address.take().or(other.pci_address);
                let told = Told {
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

    /// What a card's sensors tell through sysfs now, where its backend does not, and at least its chip's name.
    fn ask_the_system(&mut self, cards: &[GraphicsCard]) {
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

    fn is_shown_by(&self, api: &str) -> bool {
        self.backends.iter().any(|place| place.split(':').next() == Some(api))
    }
}

/// Prints what there is. With `--probe` it is the child that asks one interface's driver.
pub async fn run(config: &Config, args: Devices) -> anyhow::Result<()> {
    let data_dir = config.data_dir();
    if let Some(api) = args.probe {
        let Probing { look, list, only, measure, trial } = args.probing;
        let registry = look.then_some(&*data_dir);
        let ask =
            Ask { registry, list_only: list, only, measure, trial, steps: args.steps, ..Ask::default() };
        return probe::answer(&api, ask);
    }
    let settings = node_config(config)?;
    let filter = Filter::of_flags(config)?;
    if args.retry {
        release(&data_dir)?;
    }
    let began = Instant::now();
    let first = First::look(&data_dir, &filter).await;
    let turn = if first.may_measure { Some(auto::turn(&data_dir).await) } else { None };
    // What another process measures at this moment would get half a card, and so would we.
    let measure = !turn.as_ref().is_some_and(|turn| turn.as_ref().is_err_and(RegistryError::is_late));
    let (registry, backend) = (Some(&*data_dir), filter.backend());
    let ask = Ask { registry, backend, measure, steps: args.steps, ..Ask::default() };
    let outcomes = ask_all_but(ask, first.hung).await;
    let mut cards = exo_device::graphics_cards(Path::new("/"));
    exo_device::name_cards(Path::new("/"), &mut cards);
    let found: Vec<&Found> = outcomes.iter().flat_map(|outcome| outcome.found.iter().flatten()).collect();
    // Without a turn there is no card: what plays one is no reason to make a data folder.
    if turn.is_some() {
        remember::all(&data_dir, &found);
    }
    remember::drivers(&data_dir, &outcomes);
    let took = began.elapsed();
    let mut processor = SystemHost.processor(true);
    let rates = measure.then(|| tokio::task::block_in_place(|| auto::processor_rates(&settings))).flatten();
    drop(turn);
    processor.flops_per_s = rates.map(|rates| rates.flops_per_s);
    let mut rows = join(processor, &cards, &outcomes);
    // Where no driver was asked there is nothing to compare the processor with.
    if !outcomes.is_empty() {
        let ranking = tokio::task::block_in_place(|| auto::ranking(&settings, &cards, &outcomes, ""))?;
        decision::add(&mut rows, &ranking);
    }
    let mut rows = filter.keep(rows, &outcomes)?;
    rows.iter_mut().for_each(|row| row.ask_the_system(&cards));
    if args.json {
        return ui::json(&rows);
    }
    let what: Vec<String> = rows.iter().filter_map(ability_line).collect();
    let warm =
        rows.iter().filter_map(|row| Some(format!("{}: {}", row.name, ui::sensors(row.told.sensors)?)));
    let warm: Vec<String> = warm.collect();
    let costs = rows.iter().filter_map(|row| Some((&row.name, row.told.step?)));
    let costs: Vec<String> = costs.map(|(name, cost)| step_line(name, cost)).collect();
    let header = ["device", "backend", "memory", "reads, multiplies", "support", "why"];
    ui::table(&header, rows.iter().map(cells).collect());
    what.iter().chain(&warm).chain(&costs).for_each(ui::paragraph);
    outcomes.iter().flat_map(|outcome| phases(outcome, &rows)).for_each(ui::paragraph);
    ui::paragraph(format!("graphics processors: asked, checked and ready in {:.2} s", took.as_secs_f64()));
    Ok(())
}

/// What `exo doctor` tells of: what drivers show, opened and checked. Nothing is measured, and nothing kept.
pub async fn rows_unmeasured(config: &Config, filter: &Filter) -> anyhow::Result<Vec<Row>> {
    let settings = node_config(config)?;
    let ask = Ask { registry: Some(&settings.data_dir), backend: filter.backend(), ..Ask::default() };
    let outcomes = ask_all(ask).await;
    let mut cards = exo_device::graphics_cards(Path::new("/"));
    exo_device::name_cards(Path::new("/"), &mut cards);
    let mut rows = join(SystemHost.processor(false), &cards, &outcomes);
    let known = || auto::known_processor_rates(&settings);
    let wanted = filter.device().filter(|_| filter.backend().is_none()).unwrap_or("");
    decision::add(&mut rows, &auto::ranking_beside(known, &cards, &outcomes, wanted)?);
    filter.keep(rows, &outcomes)
}

/// Of the table: numbers that belong together share a cell, for the reason needs the room.
fn cells(row: &Row) -> Vec<String> {
    let lines = |texts: &[Option<String>]| {
        let told: Vec<&str> = texts.iter().flatten().map(String::as_str).collect();
        if told.is_empty() { "-".to_owned() } else { told.join("\n") }
    };
    let free = row.told.memory_free_bytes.map_or("not told".to_owned(), ui::bytes);
    let reads = row.told.read_bytes_per_s.map(|rate| format!("{:.1} GB/s", rate / 1e9));
    let multiplies = row.told.flops_per_s.map(|rate| match rate < 1e12 {
        true => format!("{:.1} GFLOP/s", rate / 1e9),
        false => format!("{:.1} TFLOP/s", rate / 1e12),
    });
    vec![
        lines(&[Some(row.name.clone()), row.pci_address.clone()]),
        row.backends.join(" "),
        row.told.memory_bytes.map_or("-".to_owned(), |all| format!("{}\nfree: {free}", ui::bytes(all))),
        lines(&[reads, multiplies]),
        format!("{:?}", row.support).to_lowercase(),
        row.reason.clone(),
    ]
}

/// What a first look shows where there is no data folder yet: on a machine without any card none is made for taking turns.
struct First {
    /// There may be something to measure.
    may_measure: bool,
    /// Drivers that did not answer even this: nobody waits for one of them a second time, also where no folder can be made in
    /// which to note it.
    hung: Vec<Outcome>,
}

impl First {
    async fn look(data_dir: &Path, filter: &Filter) -> Self {
        if data_dir.is_dir() {
            return Self { may_measure: true, hung: Vec::new() };
        }
        let listed = ask_all(Ask { list_only: true, backend: filter.backend(), ..Ask::default() }).await;
        let may_measure = !listed.iter().all(Outcome::shows_no_card);
        Self { may_measure, hung: listed.into_iter().filter(Outcome::has_hung).collect() }
    }
}

/// Ends whatever keeps nodes off a device for a while. A node that runs notices the end of a quarantine within seconds.
fn release(data_dir: &Path) -> anyhow::Result<()> {
    let (released, warning) = match data_dir.is_dir() {
        true => Registry::change(data_dir, |registry| registry.release_all(exo_device::unix_s()))
            .context("nothing was released to be tried again")?,
        false => (Vec::new(), None),
    };
    warning.iter().for_each(|warning| ui::warning(warning));
    if released.is_empty() {
        ui::note(
            "nothing to retry: no device is in quarantine or has failed its trial, and no driver is left unasked",
        );
    }
    released.iter().for_each(|released| ui::note(&told(released)));
    Ok(())
}

fn told(released: &Released) -> String {
    match released {
        Released::Quarantine(card) => format!("the quarantine of {card} has ended"),
        Released::Trial(card) => {
            format!("the failed trial of {card} is forgotten: a node that starts from now on tries it again")
        }
        Released::Driver(source) => format!("the {source} driver, which had not answered, is asked again"),
    }
}

/// The preferred sources first, all at once: a card that two of them show is one row. No driver at all where the processor is meant.
pub async fn ask_all(ask: Ask<'_>) -> Vec<Outcome> {
    ask_all_but(ask, Vec::new()).await
}

/// The same, where something is known of some of them already.
async fn ask_all_but(ask: Ask<'_>, mut known: Vec<Outcome>) -> Vec<Outcome> {
    if ask.backend == Some("cpu") {
        return Vec::new();
    }
    let makers = exo_backend_cuda::Api::ALL.iter().map(|api| Source::Maker(*api));
    let sources = makers.chain(Api::ALL.map(Source::Graphics));
    let sources = sources.filter(|source| System::own().has(source.name()));
    let registry = ask.registry.map(Registry::look).unwrap_or_default();
    let asked = sources.map(|source| {
        let outcome =
            known.iter().position(|outcome| outcome.source == source).map(|at| known.swap_remove(at));
        let registry = &registry;
        async move {
            match outcome {
                Some(outcome) => outcome,
                None => ask_unless_kept_off(registry, source, ask).await,
            }
        }
    });
    futures_util::future::join_all(asked).await
}

async fn ask_unless_kept_off(registry: &Registry, source: Source, ask: Ask<'_>) -> Outcome {
    if let Some(outcome) = kept_off(registry, source) {
        return outcome;
    }
    let mut outcome = probe::ask_in_child(source, ask).await;
    if outcome.found.is_ok() && outcome.shows_no_card() {
        let setting = |name: &str| std::env::var_os(name);
        outcome.descriptions = exo_device::driver_troubles(Path::new("/"), source.name(), &setting);
    }
    outcome
}

/// What there is to say of a source that is not asked, for its driver did not answer not long ago.
fn kept_off(registry: &Registry, source: Source) -> Option<Outcome> {
    if registry.has_no_drivers() {
        return None;
    }
    let now = exo_device::unix_s();
    let quarantine = registry.kept_off_driver(source.name(), &remember::driver_files(source), now)?.clone();
    let reason = format!("the {source} driver is {}", quarantine.text(now));
    Some(Outcome::silent(source, Silent::KeptOff(quarantine), reason))
}

/// From start to ready, by phase, a line for each device.
fn phases(outcome: &Outcome, rows: &[Row]) -> Vec<String> {
    let line = |found: &Found| {
        let Times { open_ms, check_ms, measure_ms } = found.times;
        let measured = match measure_ms {
            Some(ms) => format!("measured in {ms:.0} ms"),
            None if found.told.read_bytes_per_s.is_some() => "measured before".to_owned(),
            None => "not measured".to_owned(),
        };
        format!(
            "{} ({}): drivers listed in {:.0} ms, opened in {open_ms:.0} ms, checked in {check_ms:.0} ms, {measured}",
            found.identity.name,
            backend(found),
            outcome.list_ms.unwrap_or(0.0)
        )
    };
    let is_shown = |found: &&Found| rows.iter().any(|row| row.backends.contains(&backend(found)));
    let found = outcome.found.iter().flatten().filter(is_shown);
    found.filter(|found| found.trouble.is_none()).map(line).collect()
}

/// What it is and computes, of a device that was opened.
fn ability_line(row: &Row) -> Option<String> {
    let Abilities { element_types, ops } = row.told.abilities.as_ref()?;
    let mut parts: Vec<String> = row.told.architecture.iter().cloned().collect();
    let units = if row.pci_address.is_none() && row.maker.is_none() { "cores" } else { "compute units" };
    parts.extend(row.told.compute_units.map(|n| format!("{n} {units}")));
    parts.extend(Some(&row.told.driver).filter(|driver| !driver.is_empty()).cloned());
    let word = if OS == "linux" { "kernel module" } else { "system's driver" };
    let kernel = row.told.kernel_driver.as_ref().filter(|driver| !row.told.driver.ends_with(*driver));
    parts.extend(kernel.map(|driver| format!("{word} {driver}")));
    let types: Vec<_> = element_types.iter().map(|dtype| format!("{dtype:?}")).collect();
    parts.push(format!("weights in {}", types.join(" ")));
    let lacks: Vec<_> =
        OpKind::ALL.into_iter().map(|op| format!("{op:?}")).filter(|op| !ops.contains(op)).collect();
    parts.push(if lacks.is_empty() { "every op".to_owned() } else { format!("no {}", lacks.join(" ")) });
    Some(format!("{}: {}", row.name, parts.join("; ")))
}

fn step_line(name: &str, cost: StepCost) -> String {
    let StepCost { layers, dispatches, submissions, encode_us, read_bytes } = cost;
    format!(
        "{name}: a decode step of {layers} layers is {dispatches:.0} dispatches in {submissions:.0} submissions, \
         handed over in {encode_us:.0} us ({:.1} us a layer), and brings back {read_bytes:.0} bytes",
        encode_us / f64::from(layers.max(1))
    )
}

/// Joins what the bus and the interfaces show: one row per device, by PCI address, else by name.
fn join(processor: DeviceFacts, cards: &[GraphicsCard], outcomes: &[Outcome]) -> Vec<Row> {
    let mut rows = vec![processor_row(processor)];
    for found in outcomes.iter().flat_map(|outcome| outcome.found.as_deref().unwrap_or_default()) {
        let known = rows.iter_mut().find(|row| match (&row.pci_address, &found.identity.pci_address) {
            (Some(a), Some(b)) => a == b,
            // A backend shows a card once: of equal ones the first joins the first.
            _ => row.name == found.identity.name && !row.is_shown_by(&found.api),
        });
        match known {
            Some(row) => row.add(found),
            None => rows.push(adapter_row(found)),
        }
    }
    for card in cards {
        if !rows.iter().any(|row| row.pci_address.as_deref() == Some(&card.pci_address)) {
            rows.push(idle_card(card, outcomes));
        }
    }
    // That a maker's driver is missing is no news where there is no card of that maker's.
    let is_news = |source: Source, silence: &Silence| match source {
        Source::Maker(api) if silence.kind == Silent::Absent => {
            cards.iter().any(|card| card.maker() == Some(api.maker()))
        }
        _ => true,
    };
    let silent = outcomes.iter().filter_map(|outcome| Some((outcome.source, outcome.found.as_ref().err()?)));
    let silent = silent.filter(|(source, silence)| is_news(*source, silence));
    rows.extend(silent.map(|(source, silence)| Row {
        backends: vec![source.to_string()],
        told: match &silence.kind {
            Silent::KeptOff(quarantine) => Told { quarantine: Some(quarantine.clone()), ..Told::default() },
            _ => Told::default(),
        },
        ..Row::bare(format!("(driver of {source})"), SupportClass::Unsupported, silence.reason.clone())
    }));
    rows.extend(outcomes.iter().filter(|outcome| !outcome.descriptions.is_empty()).map(|outcome| Row {
        backends: vec![outcome.source.to_string()],
        ..Row::bare(
            format!("(driver of {})", outcome.source),
            SupportClass::Unsupported,
            format!("{}: install that driver again, or take this away", outcome.descriptions.join("; ")),
        )
    }));
    rows
}

fn backend(found: &Found) -> String {
    format!("{}:{}", found.api, found.index)
}

fn processor_row(facts: DeviceFacts) -> Row {
    let device = CpuDevice::open(CpuOptions { threads: Some(1), ..CpuOptions::default() }).ok();
    let sets = device.as_ref().map(|device| device.facts().backend);
    let sets = sets.as_deref().and_then(|backend| backend.strip_prefix("cpu/"));
    Row {
        backends: vec![facts.backend],
        told: Told {
            architecture: Some(
                [Some(std::env::consts::ARCH), sets].into_iter().flatten().collect::<Vec<_>>().join(", "),
            ),
            compute_units: Some(facts.compute_units),
            abilities: device.map(|device| Abilities::of(&*device)),
            memory_bytes: Some(facts.memory_total_bytes),
            memory_free_bytes: Some(facts.memory_free_bytes),
            read_bytes_per_s: facts.read_bytes_per_s,
            flops_per_s: facts.flops_per_s,
            sensors: exo_device::processor_sensors(Path::new("/")),
            ..Told::default()
        },
        ..Row::bare(facts.name, facts.support, facts.support_reason)
    }
}

fn adapter_row(found: &Found) -> Row {
    let (support, reason) = match &found.trouble {
        Some(trouble) => (SupportClass::Unsupported, trouble.clone()),
        None => {
            let (support, why) = exo_device::graphics_support(found.is_software);
            (support, why.to_owned())
        }
    };
    Row {
        maker: exo_device::maker(found.identity.vendor),
        backends: vec![backend(found)],
        pci_address: found.identity.pci_address.clone(),
        told: found.told.clone(),
        times: found.trouble.is_none().then_some(found.times),
        ..Row::bare(found.identity.name.clone(), support, reason)
    }
}

/// A card on the bus that no interface shows.
fn idle_card(card: &GraphicsCard, outcomes: &[Outcome]) -> Row {
    let driver = exo_device::driver_text(card, OS);
    let asked: Vec<_> =
        outcomes.iter().filter(|o| o.trouble().is_none()).map(|outcome| outcome.source.name()).collect();
    let does_not = match asked.is_empty() {
        true => "no driver answers".to_owned(),
        false => format!("{} does not show it", asked.join(", ")),
    };
    let numbers = || {
        let maker = card.maker().unwrap_or("unknown");
        format!("{maker} graphics {:04x}:{:04x}", card.vendor, card.device)
    };
    let reason = format!("{driver}, and {does_not}: {}", exo_device::advice(card, OS));
    Row {
        maker: card.maker(),
        pci_address: Some(card.pci_address.clone()),
        told: Told {
            driver,
            kernel_driver: card.kernel_driver_text(),
            architecture: card.architecture.clone(),
            compute_units: card.compute_units,
            memory_bytes: card.memory_bytes,
            memory_free_bytes: card.memory_free_bytes,
            uuid: card.uuid.clone(),
            ..Told::default()
        },
        ..Row::bare(card.name.clone().unwrap_or_else(numbers), SupportClass::Unsupported, reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(index: usize, pci_address: Option<&str>) -> Found {
        let identity = exo_device::identity("Card", 0x1002, 1, pci_address, &[]);
        Found::listed("vulkan", index, identity, "radv".to_owned())
    }

    fn card(address: &str) -> GraphicsCard {
        GraphicsCard {
            pci_address: address.to_owned(),
            vendor: 0x10de,
            device: 0x2684,
            ..GraphicsCard::default()
        }
    }

    fn rows(cards: &[GraphicsCard], outcomes: &[Outcome]) -> Vec<(String, SupportClass)> {
        let rows = join(exo_device::probe(&exo_device::ProbeOptions::default()), cards, outcomes);
        rows.into_iter().skip(1).map(|row| (row.reason, row.support)).collect()
    }

    fn outcome(api: Api, found: Result<Vec<Found>, String>) -> Outcome {
        let source = Source::Graphics(api);
        match found {
            Ok(found) => Outcome { source, list_ms: None, found: Ok(found), descriptions: Vec::new() },
            Err(reason) => Outcome::silent(source, Silent::Broken, reason),
        }
    }

    #[test]
    fn a_card_is_one_row_however_many_sources_show_it() {
        let both = vec![found(0, Some("0000:01:00.0")), found(1, Some("0000:02:00.0"))];
        let vulkan = outcome(Api::Vulkan, Ok(both));
        let dx12 = outcome(Api::Dx12, Ok(vec![found(0, Some("0000:01:00.0"))]));
        assert_eq!(rows(&[card("0000:01:00.0")], &[vulkan, dx12]).len(), 2);
    }

    #[test]
    fn equal_cards_whose_slots_one_source_does_not_tell_are_rows_of_their_own() {
        let vulkan = vec![found(0, Some("0000:01:00.0")), found(1, Some("0000:02:00.0"))];
        let dx12 = [0, 1].map(|index| Found { api: "dx12".to_owned(), ..found(index, None) });
        let outcomes = [outcome(Api::Vulkan, Ok(vulkan)), outcome(Api::Dx12, Ok(dx12.to_vec()))];
        let facts = exo_device::probe(&exo_device::ProbeOptions::default());
        let rows = join(facts, &[], &outcomes).into_iter().skip(1).map(|row| row.backends);
        assert_eq!(rows.collect::<Vec<_>>(), [["vulkan:0", "dx12:0"], ["vulkan:1", "dx12:1"]]);
    }

    #[test]
    fn a_card_is_usable_if_one_of_its_backends_can_use_it_and_the_others_say_why_not() {
        let shown = |api: &str, trouble: Option<&str>| {
            let (api, trouble) = (api.to_owned(), trouble.map(str::to_owned));
            Found { api, trouble, ..found(0, Some("0000:01:00.0")) }
        };
        let facts = || exo_device::probe(&exo_device::ProbeOptions::default());
        let broken = outcome(Api::Vulkan, Ok(vec![shown("vulkan", Some("it computed a wrong sum"))]));
        let works = outcome(Api::Dx12, Ok(vec![shown("dx12", None)]));
        for outcomes in [[&broken, &works], [&works, &broken]] {
            let outcomes = outcomes.map(|outcome| Outcome {
                source: outcome.source,
                list_ms: None,
                found: outcome.found.clone(),
                descriptions: Vec::new(),
            });
            let row = join(facts(), &[], &outcomes).pop().unwrap();
            assert_eq!(
                (row.support, &row.backends[..]),
                (SupportClass::Experimental, &["dx12:0", "vulkan:0"].map(str::to_owned)[..])
            );
            assert!(row.reason.ends_with("by us; as vulkan:0: it computed a wrong sum"), "{}", row.reason);
        }
    }

    #[test]
    fn the_table_shows_slot_free_memory_and_rates_and_what_nobody_tells() {
        let mut told = found(0, Some("0000:01:00.0"));
        told.told.memory_bytes = Some(8 << 30);
        let mut untold = found(0, None);
        untold.told.memory_bytes = told.told.memory_bytes;
        told.told.memory_free_bytes = Some(3 << 30);
        (told.told.read_bytes_per_s, told.told.flops_per_s) = (Some(4.5e11), Some(2.25e13));
        let shown = cells(&adapter_row(&told));
        let memory = "8.00 GiB\nfree: 3.00 GiB";
        assert_eq!(shown[..4], ["Card\n0000:01:00.0", "vulkan:0", memory, "450.0 GB/s\n22.5 TFLOP/s"]);
        assert_eq!(cells(&adapter_row(&untold))[..4], ["Card", "vulkan:0", "8.00 GiB\nfree: not told", "-"]);
        let row = serde_json::to_value(adapter_row(&untold)).unwrap();
        assert_eq!(row.get("memory_free_bytes"), Some(&serde_json::Value::Null), "{row}");
    }

    #[test]
    fn a_card_without_driver_is_told_with_what_to_install() {
        let vulkan = outcome(Api::Vulkan, Ok(Vec::new()));
        let rows = rows(&[card("0000:01:00.0")], &[vulkan]);
        assert!(rows[0].0.contains("vulkan does not show it: install NVIDIA's driver"), "{rows:?}");
        assert_eq!(rows[0].1, SupportClass::Unsupported);
    }

    #[test]
    fn a_missing_nvidia_driver_is_news_where_a_card_of_nvidias_is() {
        let source = Source::Maker(exo_backend_cuda::Api::Cuda);
        let missing =
            || Outcome::silent(source, Silent::Absent, "libcuda.so.1 is not on this machine".to_owned());
        let amd = GraphicsCard { vendor: 0x1002, ..card("0000:01:00.0") };
        assert_eq!(rows(&[amd], &[missing()]).len(), 1);
        let with = rows(&[card("0000:01:00.0")], &[missing()]);
        assert!(with.len() == 2 && with[1].0.contains("libcuda.so.1 is not on this machine"), "{with:?}");
    }

    #[test]
    fn a_broken_driver_is_a_row_with_its_reason() {
        let vulkan = outcome(Api::Vulkan, Err("it crashed (signal 11)".to_owned()));
        assert_eq!(rows(&[], &[vulkan]), [("it crashed (signal 11)".to_owned(), SupportClass::Unsupported)]);
    }
}
