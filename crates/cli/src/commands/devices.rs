//! `exo devices`: every processor and graphics card of this machine, what it can do, and why one is not used.

mod filter;

use std::env::consts::OS;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use exo_accelerators::report::{self, Row};
use exo_accelerators::{
    Abilities, BackendSurvey, StepCost, SurveyAsk, SurveyedAccelerator, Surveyor, System, Times, ask_backends,
};
use exo_backend::OpKind;
use exo_device::{Registry, RegistryError, Released};
use exo_node::{Host, NodeConfig, SystemHost, asking_drivers, processor_options};
use exo_types::{Provenance, TypeRates};

use crate::args::Devices;
use crate::config::Config;
use crate::run_node::node_config;
use crate::ui;

pub use filter::Filter;

/// Prints what there is.
pub async fn run(config: &Config, args: Devices) -> anyhow::Result<()> {
    let settings = node_config(config)?;
    let filter = Filter::of_flags(config)?;
    if args.retry {
        release(&settings.data_dir)?;
    }
    let (asks_none, worker) = (filter.is_processor(), settings.worker.clone());
    let look = move |surveyor: &dyn Surveyor| look(surveyor, &settings, asks_none, args.steps);
    let (rows, outcomes, took) = asking_drivers(worker, look).await?;
    let rows = filter.keep(rows, &outcomes)?;
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
    let typed: Vec<String> = rows.iter().flat_map(type_lines).collect();
    what.iter().chain(&typed).chain(&warm).chain(&costs).for_each(ui::paragraph);
    outcomes.iter().flat_map(|outcome| phases(outcome, &rows)).for_each(ui::paragraph);
    ui::paragraph(format!("graphics processors: asked, checked and ready in {:.2} s", took.as_secs_f64()));
    Ok(())
}

/// Asks, opens, checks, measures and notes all there is. Blocks.
fn look(
    surveyor: &dyn Surveyor,
    settings: &NodeConfig,
    asks_none: bool,
    steps: bool,
) -> anyhow::Result<(Vec<Row>, Vec<BackendSurvey>, Duration)> {
    let (began, data_dir, options) = (Instant::now(), &settings.data_dir, processor_options(settings));
    let First { may_measure, mut outcomes } = First::look(surveyor, data_dir, asks_none);
    let turn = may_measure.then(|| exo_accelerators::take_turn(data_dir, surveyor, &ui::message));
    // What another process measures at this moment would get half a card, and so would we.
    let measure = !turn.as_ref().is_some_and(|turn| turn.as_ref().is_err_and(RegistryError::is_late));
    let data = Some(data_dir.clone().into_os_string());
    let ask = |backend| SurveyAsk { data_dir: data.clone(), measure, steps, ..SurveyAsk::of(backend) };
    let has_hung = |backend| outcomes.iter().any(|outcome| outcome.backend == backend);
    let backends: Vec<_> = System::own().order().iter().copied().filter(|one| !has_hung(*one)).collect();
    if !asks_none {
        outcomes.extend(ask_backends(surveyor, &backends, &ask));
    }
    outcomes.sort_by_key(|outcome| System::own().order().iter().position(|one| *one == outcome.backend));
    // Without a turn there is no card: a software adapter is no reason to make a data folder.
    if turn.is_some() {
        let found: Vec<&SurveyedAccelerator> = outcomes.iter().flat_map(BackendSurvey::shown).collect();
        exo_accelerators::remember(data_dir, &found, &ui::message);
    }
    exo_accelerators::remember_drivers(data_dir, &outcomes, &ui::message);
    let took = began.elapsed();
    let mut processor = SystemHost.processor();
    let rates = measure.then(|| exo_accelerators::rates(data_dir, &options)).flatten();
    drop(turn);
    processor.read_bytes_per_s = rates.map(|rates| rates.read_bytes_per_s);
    processor.flops_per_s = rates.map(|rates| rates.flops_per_s);
    processor.layer_rates = rates.and_then(|rates| rates.layer);
    processor.rates_measured = rates.and_then(|rates| rates.told());
    processor.rates_by_type = exo_accelerators::known_types(data_dir, &options);
    let mut cards = exo_device::graphics_cards(Path::new("/"));
    exo_device::name_cards(Path::new("/"), &mut cards);
    let mut rows = report::join(processor, &cards, &outcomes);
    // Where no driver was asked there is nothing to compare the processor with.
    if !outcomes.is_empty() {
        let rates = || rates.or_else(|| exo_accelerators::rates(data_dir, &options));
        report::add_decisions(&mut rows, &exo_accelerators::ranking(rates, &cards, &outcomes, "")?);
    }
    rows.iter_mut().for_each(|row| row.ask_the_system(&cards));
    Ok((rows, outcomes, took))
}

/// What `exo doctor` tells of: what drivers show, opened and checked. Nothing is measured, and nothing kept.
pub async fn rows_unmeasured(config: &Config, filter: &Filter) -> anyhow::Result<Vec<Row>> {
    let settings = node_config(config)?;
    let (asks_none, worker) = (filter.is_processor(), settings.worker.clone());
    let wanted = filter.device().filter(|_| filter.backend().is_none()).unwrap_or("").to_owned();
    let look = move |surveyor: &dyn Surveyor| -> anyhow::Result<_> {
        let data = Some(settings.data_dir.clone().into_os_string());
        let ask = |backend| SurveyAsk { data_dir: data.clone(), ..SurveyAsk::of(backend) };
        let backends = if asks_none { &[] } else { System::own().order() };
        let outcomes = ask_backends(surveyor, backends, &ask);
        let mut cards = exo_device::graphics_cards(Path::new("/"));
        exo_device::name_cards(Path::new("/"), &mut cards);
        let mut rows = report::join(SystemHost.processor(), &cards, &outcomes);
        let known = || exo_accelerators::known_rates(&settings.data_dir, &processor_options(&settings));
        report::add_decisions(&mut rows, &exo_accelerators::ranking(known, &cards, &outcomes, &wanted)?);
        Ok((rows, outcomes))
    };
    let (rows, outcomes) = asking_drivers(worker, look).await?;
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
    let multiplies = row.told.flops_per_s.map(ui::flops);
    vec![
        lines(&[Some(row.name.clone()), row.pci_address.clone()]),
        row.backends.join(" "),
        row.told.memory_bytes.map_or("-".to_owned(), |all| format!("{}\nfree: {free}", ui::bytes(all))),
        lines(&[reads, multiplies]),
        format!("{:?}", row.support).to_lowercase(),
        row.reason.clone(),
    ]
}

/// What a first look shows where there is no data folder yet: on a machine without any card none is made for
/// taking turns.
struct First {
    /// There may be something to measure.
    may_measure: bool,
    /// Of drivers that did not answer even this: nobody waits for one of them a second time, also where no
    /// folder can be made in which to note it.
    outcomes: Vec<BackendSurvey>,
}

impl First {
    fn look(surveyor: &dyn Surveyor, data_dir: &Path, asks_none: bool) -> Self {
        if data_dir.is_dir() {
            return Self { may_measure: true, outcomes: Vec::new() };
        }
        let backends = if asks_none { &[] } else { System::own().order() };
        let ask = |backend| SurveyAsk { list_only: true, ..SurveyAsk::of(backend) };
        let listed = ask_backends(surveyor, backends, &ask);
        let may_measure = !listed.iter().all(BackendSurvey::shows_no_card);
        Self { may_measure, outcomes: listed.into_iter().filter(BackendSurvey::has_hung).collect() }
    }
}

/// Ends whatever keeps nodes off a device for a while. A node that runs notices the end of a quarantine
/// within seconds.
fn release(data_dir: &Path) -> anyhow::Result<()> {
    let (released, warning) = match data_dir.is_dir() {
        true => Registry::change(data_dir, |registry| registry.release_all(exo_stdx::unix_s()))
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

/// From start to ready, by phase, a line for each device.
fn phases(outcome: &BackendSurvey, rows: &[Row]) -> Vec<String> {
    let line = |found: &SurveyedAccelerator| {
        let Times { open_ms, check_ms, measure_ms } = found.times;
        let measured = match measure_ms {
            Some(ms) => format!("measured in {ms:.0} ms"),
            None if found.told.read_bytes_per_s.is_some() => "measured before".to_owned(),
            None => "not measured".to_owned(),
        };
        format!(
            "{} ({}): drivers listed in {:.0} ms, opened in {open_ms:.0} ms, checked in {check_ms:.0} ms, {measured}",
            found.identity.name,
            found.place(),
            outcome.list_ms.unwrap_or(0.0)
        )
    };
    let is_shown =
        |found: &&SurveyedAccelerator| rows.iter().any(|row| row.backends.contains(&found.place()));
    let found = outcome.shown().iter().filter(is_shown);
    found.filter(|found| found.trouble.is_none()).map(line).collect()
}

/// What it is and computes, of a device that was opened.
fn ability_line(row: &Row) -> Option<String> {
    let Abilities { element_types, ops } = row.told.abilities.as_ref()?;
    let mut parts: Vec<String> = row.told.architecture.iter().cloned().collect();
    let units = if row.pci_address.is_none() && row.vendor.is_none() { "cores" } else { "compute units" };
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

/// How often and how long ago the rates of the table were measured, which are of Q8_0, and what it does with
/// other types of weights.
fn type_lines(row: &Row) -> Vec<String> {
    let times = |Provenance { count, age_s }| ui::measured(count, age_s.into());
    let general =
        row.told.rates_measured.map(|measured| format!("{}: measured in {}", row.name, times(measured)));
    let line = |rates: &TypeRates| {
        let text = ui::type_rates(rates.dtype, rates.read_bytes_per_s, rates.flops_per_s);
        format!("{}: {text} ({})", row.name, times(rates.measured))
    };
    general.into_iter().chain(row.told.rates_by_type.iter().map(line)).collect()
}

fn step_line(name: &str, cost: StepCost) -> String {
    let StepCost { layers, dispatches, submissions, encode_us, read_bytes } = cost;
    format!(
        "{name}: a decode step of {layers} layers is {dispatches:.0} dispatches in {submissions:.0} submissions, \
         handed over in {encode_us:.0} us ({:.1} us a layer), and brings back {read_bytes:.0} bytes",
        encode_us / f64::from(layers.max(1))
    )
}

#[cfg(test)]
mod tests {
    use exo_types::SupportClass;

    use super::*;

    #[test]
    fn the_table_shows_slot_free_memory_and_rates_and_what_nobody_tells() {
        let row = || Row {
            backends: vec!["vulkan:0".to_owned()],
            ..Row::bare("Card".to_owned(), SupportClass::Experimental, String::new())
        };
        let (mut told, mut untold) = (row(), row());
        told.pci_address = Some("0000:01:00.0".to_owned());
        told.told.memory_bytes = Some(8 << 30);
        untold.told.memory_bytes = told.told.memory_bytes;
        told.told.memory_free_bytes = Some(3 << 30);
        (told.told.read_bytes_per_s, told.told.flops_per_s) = (Some(4.5e11), Some(2.25e13));
        let memory = "8.00 GiB\nfree: 3.00 GiB";
        assert_eq!(cells(&told)[..4], ["Card\n0000:01:00.0", "vulkan:0", memory, "450.0 GB/s\n22.5 TFLOP/s"]);
        assert_eq!(cells(&untold)[..4], ["Card", "vulkan:0", "8.00 GiB\nfree: not told", "-"]);
        let row = serde_json::to_value(untold).unwrap();
        assert_eq!(row.get("memory_free_bytes"), Some(&serde_json::Value::Null), "{row}");
    }

    #[test]
    fn rates_say_how_often_and_how_long_ago_they_were_measured() {
        let mut row = Row::bare("Card".to_owned(), SupportClass::Experimental, String::new());
        assert!(type_lines(&row).is_empty(), "not measured");
        row.told.rates_measured = Some(Provenance { count: 12, age_s: 7300 });
        row.told.rates_by_type = vec![TypeRates {
            dtype: exo_types::DType::Q4_K,
            read_bytes_per_s: 9.1e9,
            flops_per_s: 8e10,
            read_16_rows_bytes_per_s: None,
            measured: Provenance { count: 1, age_s: 90 },
        }];
        let expected = [
            "Card: measured in 12 passes, 2 h ago",
            "Card: Q4_K: 9.1 GB/s, 80.0 GFLOP/s (1 pass, 1 min ago)",
        ];
        assert_eq!(type_lines(&row), expected);
    }
}
