//! Asking a driver in a child process: one that crashes or hangs costs the child.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use exo_backend::{Device, OpKind, Support};
use exo_backend_cuda::{Api as Maker, Card, CudaDevice, CudaOptions, ListError};
use exo_backend_wgpu::{Adapter, Api, WgpuDevice, WgpuOptions};
use exo_device::{Calibration, CardSensors, GraphicsCard, Identity, Quarantine, Registry, Trial};
use exo_types::{DType, DeviceId, Monitor};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;

use super::steps::{self, StepCost};
use crate::commands::start::{STOP_WITH_STDIN, stops_with_stdin};
use crate::{auto, system};

/// For loading a driver, opening each adapter and measuring it.
pub const PROBE_MAX: Duration = Duration::from_secs(20);
/// For the known answer of the built-in model.
const TRIAL_MAX: Duration = Duration::from_secs(40);
/// For decoding a little.
const STEPS_MAX: Duration = Duration::from_secs(40);
/// Memory a check may use: the measured matrix and its like.
const CHECK_BYTES: u64 = 256 << 20;
/// The most a child may print.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// What a child prints once its driver has listed its devices.
const LISTED: &str = "listed\n";

/// Who is asked for devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The driver of the cards' maker: NVIDIA's, AMD's.
    Maker(Maker),
    /// The drivers behind a graphics interface.
    Graphics(Api),
}

impl Source {
    /// As in the setting `backend`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Maker(api) => api.name(),
            Self::Graphics(api) => api.name(),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How much is asked.
#[derive(Clone, Copy, Default, Debug)]
pub struct Ask<'a> {
    /// The data folder whose registry says what is known, and what is in quarantine.
    pub registry: Option<&'a Path>,
    /// The backend that is meant, asked also where it would be left out.
    pub backend: Option<&'a str>,
    /// Open no device: tell what the driver lists and the registry knows.
    pub list_only: bool,
    /// The one device with this number.
    pub only: Option<usize>,
    /// Measure what each device can do, unless the registry knows.
    pub measure: bool,
    /// Ask each for a known answer.
    pub trial: bool,
    /// Decode a little on each.
    pub steps: bool,
}

/// What a child prints.
#[derive(Serialize, Deserialize, Debug)]
struct Answer {
    /// Milliseconds of loading drivers and listing devices.
    list_ms: f64,
    found: Vec<Found>,
    /// Why nothing could be found.
    trouble: Option<String>,
    /// There is no driver, or no card for it: nothing is broken.
    is_absent: bool,
}

/// What is told of a device, by its driver or by what was measured.
#[derive(Serialize, Deserialize, Clone, Default, Debug)]
pub struct Told {
    pub driver: String,
    /// The kernel's part of the driver, with its version where it has one of its own.
    pub kernel_driver: Option<String>,
    /// The maker's name for its generation, its chip, or the instruction sets of a processor.
    pub architecture: Option<String>,
    /// Cores, multiprocessors, or what its maker calls them; `None` where no interface tells.
    pub compute_units: Option<u32>,
    /// What was found out by opening it.
    #[serde(flatten)]
    pub abilities: Option<Abilities>,
    pub memory_bytes: Option<u64>,
    /// That nobody held when this was asked; `None` where nothing tells.
    pub memory_free_bytes: Option<u64>,
    pub read_bytes_per_s: Option<f64>,
    pub flops_per_s: Option<f64>,
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

/// An adapter, as the child tells of it.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Found {
    pub api: String,
    pub index: usize,
    /// With what the bus knows of it.
    pub identity: Identity,
    pub is_software: bool,
    /// Shares the machine's memory: what its driver counts as its own is a part of that.
    pub is_integrated: bool,
    #[serde(flatten)]
    pub told: Told,
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

impl Found {
    /// One that was not opened yet.
    pub fn listed(api: &str, index: usize, identity: Identity, driver: String) -> Self {
        Self {
            api: api.to_owned(),
            index,
            identity,
            is_software: false,
            is_integrated: false,
            told: Told { driver, ..Told::default() },
            times: Times::default(),
            trial: None,
            trouble: None,
        }
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
    pub fn recall(&mut self, registry: &Registry) {
        let now = exo_device::unix_s();
        let (card, api, driver) = (&self.identity, &self.api, &self.told.driver);
        if let Some(known) = registry.calibration(card, api, driver) {
            self.told.read_bytes_per_s = Some(known.read_bytes_per_s);
            self.told.flops_per_s = Some(known.flops_per_s);
        }
        self.trial = registry.trial(card, api, driver, auto::VERSION, now).cloned();
        self.told.quarantine = registry.quarantine(card, api, driver, now).cloned();
        if let Some(quarantine) = &self.told.quarantine {
            self.trouble = Some(quarantine.text(now));
        }
    }
}

/// Milliseconds from start to ready, by phase.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Default, Debug)]
pub struct Times {
    /// Opening the device, which compiles what it must.
    pub open_ms: f64,
    /// Allocating, copying, computing, comparing.
    pub check_ms: f64,
    /// Measuring; `None` where it was known or was not asked for.
    pub measure_ms: Option<f64>,
}

/// What became of asking one source.
pub struct Outcome {
    pub source: Source,
    /// Milliseconds of loading drivers and listing devices, in the child.
    pub list_ms: Option<f64>,
    pub found: Result<Vec<Found>, Silence>,
    /// What is wrong with the descriptions of its drivers, where it shows no card.
    pub descriptions: Vec<String>,
}

/// A source that showed nothing.
#[derive(Clone, Debug)]
pub struct Silence {
    pub kind: Silent,
    /// For people.
    pub reason: String,
}

/// Why a source showed nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Silent {
    /// There is no driver, or no card for it: nothing is broken.
    Absent,
    /// Its driver crashed, answered with nonsense, or hung with a device.
    Broken,
    /// Its driver did not even list its devices within the bound.
    Hung,
    /// Somebody ended the process that asked it: that says nothing of its driver.
    Stopped,
    /// It was not asked, for its driver hung not long ago.
    KeptOff(Quarantine),
}

impl Outcome {
    /// It showed nothing.
    pub fn silent(source: Source, kind: Silent, reason: String) -> Self {
        Self { source, list_ms: None, found: Err(Silence { kind, reason }), descriptions: Vec::new() }
    }

    /// Whether it showed none but programs that play a card.
    pub fn shows_no_card(&self) -> bool {
        self.found.as_ref().map_or(true, |found| found.iter().all(|found| found.is_software))
    }

    /// Whether its driver did not even list its devices within the bound.
    pub fn has_hung(&self) -> bool {
        self.found.as_ref().is_err_and(|silence| silence.kind == Silent::Hung)
    }

    /// Why it showed nothing, if something is wrong with it.
    pub fn trouble(&self) -> Option<&Silence> {
        self.found.as_ref().err().filter(|silence| silence.kind != Silent::Absent)
    }
}

/// Asks `source` in a child process, within a bound, whether its devices work.
pub async fn in_child(source: Source) -> Outcome {
    ask_in_child(source, Ask::default()).await
}

/// As [`in_child`], and as much more as is asked.
pub async fn ask_in_child(source: Source, what: Ask<'_>) -> Outcome {
    let silent = |kind, reason| Outcome::silent(source, kind, reason);
    match ask(source, what).await {
        Ok(Answer { trouble: Some(trouble), is_absent: true, .. }) => silent(Silent::Absent, trouble),
        Ok(Answer { trouble: Some(trouble), .. }) => silent(Silent::Broken, trouble),
        Ok(Answer { list_ms, found, .. }) => {
            Outcome { source, list_ms: Some(list_ms), found: Ok(found), descriptions: Vec::new() }
        }
        Err(error) => {
            let hung = error.downcast_ref().is_some_and(|late: &Late| !late.has_listed);
            let kind = match hung {
                true => Silent::Hung,
                false if error.is::<Stopped>() => Silent::Stopped,
                false => Silent::Broken,
            };
            silent(kind, format!("{error:#}"))
        }
    }
}

/// A child did not answer.
#[derive(Debug, thiserror::Error)]
#[error("the {asked} driver did not answer within {} s and is not used", .bound.as_secs())]
struct Late {
    asked: Source,
    bound: Duration,
    /// It had listed its devices by then.
    has_listed: bool,
}

/// A child was ended from outside.
#[derive(Debug, thiserror::Error)]
#[error("the process that asked the {asked} driver was told to stop ({status}); nothing is known of it")]
struct Stopped {
    asked: Source,
    status: ExitStatus,
}

async fn ask(source: Source, what: Ask<'_>) -> anyhow::Result<Answer> {
    let exe = std::env::current_exe().context("cannot find the exo program itself")?;
    let mut command = tokio::process::Command::new(exe);
    let Ask { registry, backend: _, list_only, only, measure, trial, steps } = what;
    command.args(["devices", "--probe", source.name()]);
    let flags = [(list_only, "--list"), (measure, "--measure"), (trial, "--trial"), (steps, "--steps")];
    command.args(flags.iter().filter_map(|(is_set, flag)| is_set.then_some(flag)));
    command.args(only.iter().flat_map(|index| ["--only".to_owned(), index.to_string()]));
    if let Some(folder) = registry {
        command.arg("--look").arg("--data-dir").arg(folder);
    }
    // A signal to our group is ours: it ends the child by dropping it. If we are killed, the child's input ends.
    system::lead_group(&mut command);
    let (watches, input) = match system::CAN_WATCH_STDIN {
        true => ("1", Stdio::piped()),
        false => ("0", Stdio::null()),
    };
    let mut child = command
        .env(STOP_WITH_STDIN, watches)
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("cannot start a child to ask the driver in")?;
    let _held = child.stdin.take();
    let mut bytes = Vec::new();
    let reading = async {
        if let Some(stdout) = child.stdout.take() {
            let mut stdout = stdout.take(ANSWER_BYTES_MAX);
            while stdout.read_buf(&mut bytes).await? > 0 {}
        }
        child.wait().await
    };
    let more = [(steps, STEPS_MAX), (trial, TRIAL_MAX)];
    let bound = PROBE_MAX + more.iter().filter(|(is_set, _)| *is_set).map(|(_, max)| *max).sum::<Duration>();
    let ended = tokio::time::timeout(bound, reading).await;
    let text = String::from_utf8_lossy(&bytes);
    let listed = text.rsplit_once(LISTED);
    let status = ended.map_err(|_| Late { asked: source, bound, has_listed: listed.is_some() })??;
    if system::was_told_to_stop(status) {
        return Err(Stopped { asked: source, status }.into());
    }
    if !status.success() {
        anyhow::bail!("the {source} driver ended the process that asked it ({status}) and is not used");
    }
    serde_json::from_str(listed.map_or(&*text, |(_, answer)| answer))
        .with_context(|| format!("the answer of the {source} probe cannot be read"))
}

/// The child's part: every device of one source, opened, checked and measured, as JSON.
pub fn answer(source: &str, what: Ask<'_>) -> anyhow::Result<()> {
    if stops_with_stdin() {
        end_with_stdin()?;
    }
    let api = Api::ALL.into_iter().find(|known| known.name() == source);
    let child = Child {
        cards: exo_device::graphics_cards(Path::new("/")),
        registry: what.registry.map(Registry::look),
        ask: what,
    };
    let maker = Maker::ALL.iter().find(|known| known.name() == source);
    let found = match (maker, api) {
        (Some(maker), _) => child.list_cards(*maker),
        (None, Some(api)) => child.list_adapters(api),
        (None, None) => anyhow::bail!("there is no backend `{source}` to ask"),
    };
    let answer = match found {
        Ok((list_ms, found)) => Answer { list_ms, found, trouble: None, is_absent: false },
        Err(error) => Answer {
            list_ms: 0.0,
            found: Vec::new(),
            is_absent: is_absent(&error),
            trouble: Some(format!("{error:#}")),
        },
    };
    crate::ui::json(&answer)
}

/// Whoever holds the other end of standard input waits for the answer; without it there is nobody.
fn end_with_stdin() -> anyhow::Result<()> {
    let wait = || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        // A driver may be stuck, or be busy for long.
        system::die();
    };
    let thread = std::thread::Builder::new().name("parent".to_owned());
    thread.spawn(wait).map(drop).context("cannot watch for the end of the process that asks")
}

fn is_absent(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(ListError::NoDriver { .. } | ListError::NoCard { .. }))
}

/// What a child knows before it asks.
struct Child<'a> {
    /// On the bus.
    cards: Vec<GraphicsCard>,
    registry: Option<Registry>,
    ask: Ask<'a>,
}

impl Child<'_> {
    fn list_adapters(&self, api: Api) -> anyhow::Result<(f64, Vec<Found>)> {
        let began = Instant::now();
        let adapters = exo_backend_wgpu::list(api)?;
        let list_ms = listed(began);
        let asked: Vec<_> = adapters.iter().filter(|adapter| self.is_asked(adapter.index)).collect();
        // A program that plays a card is in no slot, and in nobody's way.
        let slot = |adapter: &&Adapter| {
            adapter.pci_address.as_deref().or(adapter.is_software.then_some("software")).map(str::to_owned)
        };
        Ok((list_ms, self.at_once(&asked, slot, |adapter| self.describe(adapter))))
    }

    fn list_cards(&self, maker: Maker) -> anyhow::Result<(f64, Vec<Found>)> {
        let began = Instant::now();
        let cards = match maker {
            Maker::Cuda => exo_backend_cuda::list()?,
            #[cfg(feature = "hip")]
            Maker::Hip => exo_backend_cuda::list_amd()?,
        };
        let list_ms = listed(began);
        let asked: Vec<_> = cards.iter().filter(|card| self.is_asked(card.index)).collect();
        let slot = |card: &&Card| Some(card.pci_address.clone());
        Ok((list_ms, self.at_once(&asked, slot, |card| self.describe_card(card))))
    }

    /// Describes what was listed, cards at once. What may be one card, by its slot, comes one after the other, as each is measured
    /// alone; so does everything where the cost of handing over a step is measured, which is the processor's.
    fn at_once<T: Sync>(
        &self,
        listed: &[T],
        slot: impl Fn(&T) -> Option<String>,
        describe: impl Fn(&T) -> Found + Sync,
    ) -> Vec<Found> {
        let slots: Vec<_> = listed.iter().map(|one| if self.ask.steps { None } else { slot(one) }).collect();
        let cards = by_card(&slots);
        let describe_all = |card: &[usize]| -> Vec<(usize, Found)> {
            card.iter().map(|&at| (at, describe(&listed[at]))).collect()
        };
        let mut found = std::thread::scope(|scope| {
            let threads: Vec<_> = cards.iter().map(|card| scope.spawn(|| describe_all(card))).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                // What breaks here ends this process, as it does elsewhere.
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().flat_map(join).collect::<Vec<_>>()
        });
        found.sort_by_key(|(at, _)| *at);
        found.into_iter().map(|(_, found)| found).collect()
    }

    fn is_asked(&self, index: usize) -> bool {
        self.ask.only.is_none_or(|only| only == index)
    }

    fn describe_card(&self, card: &Card) -> Found {
        let vendor = card.api.vendor();
        let identity = exo_device::identity(&card.name, vendor, 0, Some(&card.pci_address), &self.cards);
        let mut found = Found::listed(card.api.name(), card.index, identity, card.driver_text());
        found.is_integrated = card.is_integrated;
        self.ask_the_system(&mut found);
        found.told.architecture = found.told.architecture.or(card.architecture().map(str::to_owned));
        (found.told.compute_units, found.told.memory_bytes) =
            (Some(card.multiprocessors), Some(card.memory_bytes));
        found.trouble = card.trouble();
        if self.stays_shut(&mut found) {
            return found;
        }
        found.trouble = None; // opening it says it in its own words
        let opened = check_card(card, &mut found.times);
        let free = opened.as_ref().ok().and_then(|device| device.card_free_bytes());
        found.told.memory_free_bytes = free.or(found.told.memory_free_bytes);
        self.measure(&mut found, opened.map(|device| device as Arc<dyn Device>));
        found
    }

    fn describe(&self, adapter: &Adapter) -> Found {
        let address = adapter.pci_address.as_deref();
        let identity =
            exo_device::identity(&adapter.name, adapter.vendor, adapter.device, address, &self.cards)
                .among_twins(adapter.twin);
        let mut found = Found::listed(adapter.api.name(), adapter.index, identity, adapter.driver.clone());
        (found.is_integrated, found.told.memory_bytes) = (adapter.is_integrated, adapter.memory_bytes);
        self.ask_the_system(&mut found);
        found.told.architecture = found.told.architecture.or(adapter.architecture().map(str::to_owned));
        found.is_software = adapter.is_software;
        if self.stays_shut(&mut found) {
            return found;
        }
        let opened = check_adapter(adapter, &mut found.times).and_then(|device| {
            found.told.step = self.ask.steps.then(|| steps::measure(&device)).transpose()?;
            Ok(device as Arc<dyn Device>)
        });
        self.measure(&mut found, opened);
        found
    }

    /// Its words for a generation come first: a driver's name of the card tells the chip at best.
    fn ask_the_system(&self, found: &mut Found) {
        if let Some(card) = exo_device::find_card(&self.cards, found.identity.pci_address.as_deref()) {
            found.learn(card);
        }
    }

    /// Adds what the registry knows. Whether the device is not opened: it is in quarantine, or nobody wants it opened.
    fn stays_shut(&self, found: &mut Found) -> bool {
        let Some(registry) = &self.registry else { return self.ask.list_only };
        found.recall(registry);
        found.told.quarantine.is_some() || self.ask.list_only
    }

    /// Notes why a device cannot be used, or what it can do.
    fn measure(&self, found: &mut Found, opened: anyhow::Result<Arc<dyn Device>>) {
        let device = match opened {
            Ok(device) => device,
            Err(error) => return found.trouble = Some(format!("{error:#}")),
        };
        found.told.sensors = device.monitor();
        // Only now: for a card of NVIDIA this loads one more library of its driver.
        let told = CardSensors::new(found.identity.vendor, found.identity.pci_address.as_deref()).card();
        told.inspect(|card| found.learn(card));
        found.told.abilities = Some(Abilities::of(&*device));
        // A program that plays a card is slow: its numbers are not worth the wait.
        if found.is_software {
            return;
        }
        if self.ask.measure && (found.told.read_bytes_per_s.is_none() || found.told.flops_per_s.is_none()) {
            let began = Instant::now();
            if let Ok(Calibration { read_bytes_per_s, flops_per_s }) = exo_device::calibrate(&*device) {
                found.told.read_bytes_per_s = Some(read_bytes_per_s);
                found.told.flops_per_s = Some(flops_per_s);
            }
            found.times.measure_ms = Some(ms(began));
        }
        if self.ask.trial {
            match auto::trial::run(device) {
                Ok(failed) => {
                    found.trial = Some(Trial::new(auto::VERSION, failed.as_deref(), exo_device::unix_s()));
                }
                // Somebody has filled its memory, say: that may be over at the next start.
                Err(error) => found.trouble = Some(format!("it could not be tried: {error:#}")),
            }
        }
    }
}

/// Which of these are one card, by its slot; where one does not tell its slot, they all may be.
pub fn by_card(slots: &[Option<String>]) -> Vec<Vec<usize>> {
    let mut cards: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, slot) in slots.iter().enumerate() {
        match slot {
            Some(slot) => cards.entry(slot).or_default().push(at),
            None => return vec![(0..slots.len()).collect()],
        }
    }
    cards.into_values().collect()
}

/// Says that the driver has listed its devices, and what that took.
fn listed(since: Instant) -> f64 {
    crate::ui::exactly(LISTED);
    ms(since)
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn check_card(card: &Card, times: &mut Times) -> anyhow::Result<Arc<CudaDevice>> {
    let memory_limit_bytes = Some(card.memory_bytes.min(CHECK_BYTES));
    let options = CudaOptions { memory_limit_bytes, ..CudaOptions::default() };
    let began = Instant::now();
    let device = CudaDevice::open(card, DeviceId("probe".to_owned()), &options)?;
    times.open_ms = ms(began);
    check(&*device, times)?;
    Ok(device)
}

fn check_adapter(adapter: &Adapter, times: &mut Times) -> anyhow::Result<Arc<WgpuDevice>> {
    let memory = adapter.memory_bytes.unwrap_or(CHECK_BYTES).min(CHECK_BYTES);
    let options = WgpuOptions { memory_limit_bytes: Some(memory), ..WgpuOptions::default() };
    let began = Instant::now();
    let device = WgpuDevice::open(adapter, DeviceId("probe".to_owned()), &options)?;
    times.open_ms = ms(began);
    check(&*device, times)?;
    Ok(device)
}

/// Makes it compute: a driver that lists a device may still not be able to use it.
fn check(device: &dyn Device, times: &mut Times) -> anyhow::Result<()> {
    let began = Instant::now();
    exo_device::verify(device)?;
    times.check_ms = ms(began);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::by_card;

    #[test]
    fn what_may_be_one_card_goes_together() {
        let slots = |names: &[&str]| -> Vec<Option<String>> {
            names.iter().map(|name| (*name != "?").then(|| (*name).to_owned())).collect()
        };
        assert_eq!(by_card(&slots(&["a", "b", "a", "c"])), [vec![0, 2], vec![1], vec![3]]);
        assert_eq!(by_card(&slots(&["a", "b", "?"])), [[0, 1, 2]]);
        assert!(by_card(&[]).is_empty());
    }
}
