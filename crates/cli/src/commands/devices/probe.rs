//! Asking a driver in a child process: one that crashes or hangs costs the child.

use std::fmt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use exo_backend::{Device, OpKind, Support};
use exo_backend_cuda::{Api as Maker, Card, CudaDevice, CudaOptions, ListError};
use exo_backend_wgpu::{Adapter, Api, WgpuDevice, WgpuOptions};
use exo_device::{Calibration, GraphicsCard, Identity, Quarantine, Registry};
use exo_types::{DType, DeviceId, Monitor};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;

use super::steps::{self, StepCost};

/// For loading a driver, opening each adapter and measuring it.
const PROBE_MAX: Duration = Duration::from_secs(20);
/// For decoding a little.
const STEPS_MAX: Duration = Duration::from_secs(40);
/// Memory a check may use: the measured matrix and its like.
const CHECK_BYTES: u64 = 256 << 20;
/// The most a child may print.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

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
    /// Measure what each device can do, unless the registry of this data folder knows.
    pub measure: Option<&'a Path>,
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

/// An adapter, as the child tells of it.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Found {
    pub api: String,
    pub index: usize,
    /// With what the bus knows of it.
    pub identity: Identity,
    pub is_software: bool,
    pub driver: String,
    /// The maker's name for its generation, or its chip.
    pub architecture: Option<String>,
    /// Multiprocessors, or what its maker calls them.
    pub compute_units: Option<u32>,
    /// What was found out by opening it.
    pub abilities: Option<Abilities>,
    pub memory_bytes: Option<u64>,
    pub read_bytes_per_s: Option<f64>,
    pub flops_per_s: Option<f64>,
    pub times: Times,
    /// As the open device tells.
    pub sensors: Monitor,
    /// What handing over a decode step costs, where that was asked.
    pub step: Option<StepCost>,
    /// Why nodes do not use it for a while: then it was not opened.
    pub quarantine: Option<Quarantine>,
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
    /// Measuring; `None` where it was known or was not asked for.
    pub measure_ms: Option<f64>,
}

/// What became of asking one source.
pub struct Outcome {
    pub source: Source,
    /// Milliseconds of loading drivers and listing devices, in the child.
    pub list_ms: Option<f64>,
    /// There is no driver, or no card for it: nothing is broken.
    pub is_absent: bool,
    pub found: Result<Vec<Found>, String>,
}

impl Outcome {
    /// Whether it showed no graphics processor.
    pub fn is_empty(&self) -> bool {
        self.found.as_ref().map_or(true, Vec::is_empty)
    }
}

/// Asks `source` in a child process, within a bound, whether its devices work.
pub async fn in_child(source: Source) -> Outcome {
    ask_in_child(source, Ask::default()).await
}

/// As [`in_child`], and as much more as is asked.
pub async fn ask_in_child(source: Source, what: Ask<'_>) -> Outcome {
    match ask(source, what).await {
        Ok(Answer { trouble: Some(trouble), is_absent, .. }) => {
            Outcome { source, list_ms: None, is_absent, found: Err(trouble) }
        }
        Ok(Answer { list_ms, found, .. }) => {
            Outcome { source, list_ms: Some(list_ms), is_absent: false, found: Ok(found) }
        }
        Err(error) => Outcome { source, list_ms: None, is_absent: false, found: Err(format!("{error:#}")) },
    }
}

async fn ask(source: Source, what: Ask<'_>) -> anyhow::Result<Answer> {
    let exe = std::env::current_exe().context("cannot find the exo program itself")?;
    let mut command = tokio::process::Command::new(exe);
    command.args(["devices", "--probe", source.name()]).args(what.steps.then_some("--steps"));
    if let Some(folder) = what.measure {
        command.arg("--measure").arg("--data-dir").arg(folder);
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("cannot start a child to ask the driver in")?;
    let mut text = String::new();
    let reading = async {
        if let Some(stdout) = child.stdout.take() {
            stdout.take(ANSWER_BYTES_MAX).read_to_string(&mut text).await?;
        }
        child.wait().await
    };
    let bound = if what.steps { PROBE_MAX + STEPS_MAX } else { PROBE_MAX };
    let status = tokio::time::timeout(bound, reading).await.map_err(|_| {
        anyhow::anyhow!("the {source} driver did not answer within {} s and is not used", bound.as_secs())
    })??;
    if !status.success() {
        anyhow::bail!("the {source} driver ended the process that asked it ({status}) and is not used");
    }
    serde_json::from_str(&text).with_context(|| format!("the answer of the {source} probe cannot be read"))
}

/// The child's part: every device of one source, opened, checked and measured, as JSON.
pub fn answer(source: &str, what: Ask<'_>) -> anyhow::Result<()> {
    let api = Api::ALL.into_iter().find(|known| known.name() == source);
    let child = Child {
        cards: exo_device::graphics_cards(Path::new("/")),
        registry: what.measure.map(Registry::look),
        steps: what.steps,
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

fn is_absent(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(ListError::NoDriver { .. } | ListError::NoCard { .. }))
}

/// What a child knows before it asks.
struct Child {
    /// On the bus.
    cards: Vec<GraphicsCard>,
    /// Where to measure.
    registry: Option<Registry>,
    steps: bool,
}

impl Child {
    fn list_adapters(&self, api: Api) -> anyhow::Result<(f64, Vec<Found>)> {
        let began = Instant::now();
        let adapters = exo_backend_wgpu::list(api)?;
        Ok((ms(began), adapters.iter().map(|adapter| self.describe(adapter)).collect()))
    }

    fn list_cards(&self, maker: Maker) -> anyhow::Result<(f64, Vec<Found>)> {
        let began = Instant::now();
        let cards = match maker {
            Maker::Cuda => exo_backend_cuda::list()?,
            #[cfg(feature = "hip")]
            Maker::Hip => exo_backend_cuda::list_amd()?,
        };
        let list_ms = ms(began);
        Ok((list_ms, cards.iter().map(|card| self.describe_card(card)).collect()))
    }

    fn describe_card(&self, card: &Card) -> Found {
        let vendor = card.api.vendor();
        let identity = exo_device::identity(&card.name, vendor, 0, Some(&card.pci_address), &self.cards);
        let mut found = Found {
            api: card.api.name().to_owned(),
            index: card.index,
            identity,
            is_software: false,
            driver: card.driver_text(),
            architecture: card.architecture().map(str::to_owned),
            compute_units: Some(card.multiprocessors),
            abilities: None,
            memory_bytes: Some(card.memory_bytes),
            read_bytes_per_s: None,
            flops_per_s: None,
            times: Times::default(),
            sensors: Monitor::default(),
            step: None,
            quarantine: None,
            trouble: None,
        };
        if self.is_kept_off(&mut found) {
            return found;
        }
        let opened = check_card(card, &mut found.times);
        self.measure(&mut found, opened.map(|device| device as Arc<dyn Device>));
        found
    }

    fn describe(&self, adapter: &Adapter) -> Found {
        let address = adapter.pci_address.as_deref();
        let identity =
            exo_device::identity(&adapter.name, adapter.vendor, adapter.device, address, &self.cards);
        let mut found = Found {
            api: adapter.api.name().to_owned(),
            index: adapter.index,
            identity,
            is_software: adapter.is_software,
            driver: adapter.driver.clone(),
            architecture: adapter.architecture().map(str::to_owned),
            compute_units: None,
            abilities: None,
            memory_bytes: adapter.memory_bytes,
            read_bytes_per_s: None,
            flops_per_s: None,
            times: Times::default(),
            sensors: Monitor::default(),
            step: None,
            quarantine: None,
            trouble: None,
        };
        if self.is_kept_off(&mut found) {
            return found;
        }
        let opened = check_adapter(adapter, &mut found.times).and_then(|device| {
            found.step = self.steps.then(|| steps::measure(&device)).transpose()?;
            Ok(device as Arc<dyn Device>)
        });
        self.measure(&mut found, opened);
        found
    }

    /// Whether a device is in quarantine: then it stays shut.
    fn is_kept_off(&self, found: &mut Found) -> bool {
        let Some(registry) = &self.registry else { return false };
        let now = exo_device::unix_s();
        let quarantine = registry.quarantine(&found.identity, &found.api, &found.driver, now);
        found.trouble = quarantine.map(|quarantine| quarantine.text(now));
        found.quarantine = quarantine.cloned();
        found.quarantine.is_some()
    }

    /// Notes why a device cannot be used, or what it can do.
    fn measure(&self, found: &mut Found, opened: anyhow::Result<Arc<dyn Device>>) {
        let device = match opened {
            Ok(device) => device,
            Err(error) => return found.trouble = Some(format!("{error:#}")),
        };
        found.sensors = device.monitor();
        found.abilities = Some(Abilities::of(&*device));
        // A program that plays a card is slow: its numbers are not worth the wait.
        let Some(registry) = self.registry.as_ref().filter(|_| !found.is_software) else { return };
        let known = registry.calibration(&found.identity, &found.api, &found.driver);
        let began = Instant::now();
        let calibration = known.or_else(|| {
            let measured = exo_device::calibrate(&*device).ok();
            found.times.measure_ms = Some(ms(began));
            measured
        });
        if let Some(Calibration { read_bytes_per_s, flops_per_s }) = calibration {
            found.read_bytes_per_s = Some(read_bytes_per_s);
            found.flops_per_s = Some(flops_per_s);
        }
    }
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
