//! Asking a driver in a child process: one that crashes or hangs costs the child.

use std::fmt;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use exo_backend::{Alone, CancelToken, Device, Element, Op, Recording, RunShape};
use exo_backend_cuda::{Card, CudaDevice, CudaOptions};
use exo_backend_wgpu::{Adapter, Api, WgpuDevice, WgpuOptions};
use exo_types::DeviceId;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;

use super::steps::{self, StepCost};

/// For loading a driver, opening each adapter and measuring it.
const PROBE_MAX: Duration = Duration::from_secs(20);
/// For decoding a little.
const STEPS_MAX: Duration = Duration::from_secs(40);
/// For the little work of the check.
const CHECK_MAX: Duration = Duration::from_secs(5);
/// Memory a check may use: the measured matrix and its like.
const CHECK_BYTES: u64 = 256 << 20;
/// The most a child may print.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// NVIDIA's PCI number.
const NVIDIA: u32 = 0x10de;

/// Who is asked for devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// NVIDIA's driver.
    Cuda,
    /// The drivers behind a graphics interface.
    Graphics(Api),
}

impl Source {
    /// As in the setting `backend`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Graphics(api) => api.name(),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a child prints.
#[derive(Serialize, Deserialize, Debug)]
struct Answer {
    found: Vec<Found>,
    /// Why nothing could be found.
    trouble: Option<String>,
}

/// An adapter, as the child tells of it.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Found {
    pub api: String,
    pub index: usize,
    pub name: String,
    pub vendor: u32,
    pub pci_address: Option<String>,
    pub is_software: bool,
    pub driver: String,
    pub memory_bytes: Option<u64>,
    pub read_bytes_per_s: Option<f64>,
    pub flops_per_s: Option<f64>,
    /// What handing over a decode step costs, where that was asked.
    pub step: Option<StepCost>,
    /// Why it cannot be used.
    pub trouble: Option<String>,
}

/// What became of asking one source.
pub struct Outcome {
    pub source: Source,
    pub found: Result<Vec<Found>, String>,
}

impl Outcome {
    /// Whether it showed no graphics processor.
    pub fn is_empty(&self) -> bool {
        self.found.as_ref().map_or(true, Vec::is_empty)
    }
}

/// Asks `source` in a child process, within a bound.
pub async fn in_child(source: Source) -> Outcome {
    ask_in_child(source, false).await
}

/// As [`in_child`], and decodes a little if `steps`.
pub async fn ask_in_child(source: Source, steps: bool) -> Outcome {
    let found = ask(source, steps).await.map_err(|error| format!("{error:#}"));
    Outcome { source, found }
}

async fn ask(source: Source, steps: bool) -> anyhow::Result<Vec<Found>> {
    let exe = std::env::current_exe().context("cannot find the exo program itself")?;
    let mut child = tokio::process::Command::new(exe)
        .args(["devices", "--probe", source.name()])
        .args(steps.then_some("--steps"))
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
    let bound = if steps { PROBE_MAX + STEPS_MAX } else { PROBE_MAX };
    let status = tokio::time::timeout(bound, reading).await.map_err(|_| {
        anyhow::anyhow!("the {source} driver did not answer within {} s and is not used", bound.as_secs())
    })??;
    if !status.success() {
        anyhow::bail!("the {source} driver ended the process that asked it ({status}) and is not used");
    }
    let answer: Answer = serde_json::from_str(&text)
        .with_context(|| format!("the answer of the {source} probe cannot be read"))?;
    match answer.trouble {
        Some(trouble) => Err(anyhow::Error::msg(trouble)),
        None => Ok(answer.found),
    }
}

/// The child's part: every device of one source, opened, checked and measured, as JSON.
pub fn answer(source: &str, steps: bool) -> anyhow::Result<()> {
    let api = Api::ALL.into_iter().find(|known| known.name() == source);
    let found = match (source, api) {
        ("cuda", _) => list_cards(),
        (_, Some(api)) => list_adapters(api, steps),
        (_, None) => anyhow::bail!("there is no backend `{source}` to ask"),
    };
    let (found, trouble) = match found {
        Ok(found) => (found, None),
        Err(error) => (Vec::new(), Some(format!("{error:#}"))),
    };
    crate::ui::json(&Answer { found, trouble })
}

fn list_adapters(api: Api, steps: bool) -> anyhow::Result<Vec<Found>> {
    Ok(exo_backend_wgpu::list(api)?.iter().map(|adapter| describe(adapter, steps)).collect())
}

fn list_cards() -> anyhow::Result<Vec<Found>> {
    Ok(exo_backend_cuda::list()?.iter().map(describe_card).collect())
}

fn describe_card(card: &Card) -> Found {
    let checked = check_card(card);
    let measured = checked.as_ref().ok().and_then(|device| exo_device::calibrate(&**device).ok());
    let (major, minor) = card.capability;
    Found {
        api: Source::Cuda.name().to_owned(),
        index: card.index,
        name: card.name.clone(),
        vendor: NVIDIA,
        pci_address: Some(card.pci_address.clone()),
        is_software: false,
        driver: format!("CUDA {}, compute capability {major}.{minor}", card.driver),
        memory_bytes: Some(card.memory_bytes),
        read_bytes_per_s: measured.map(|m| m.read_bytes_per_s),
        flops_per_s: measured.map(|m| m.flops_per_s),
        step: None,
        trouble: checked.err().map(|error| format!("{error:#}")),
    }
}

fn check_card(card: &Card) -> anyhow::Result<Arc<CudaDevice>> {
    let memory_limit_bytes = Some(card.memory_bytes.min(CHECK_BYTES));
    let options = CudaOptions { memory_limit_bytes, ..CudaOptions::default() };
    let device = CudaDevice::open(card, DeviceId("probe".to_owned()), &options)?;
    check(&*device)?;
    Ok(device)
}

fn describe(adapter: &Adapter, steps: bool) -> Found {
    let checked = check_adapter(adapter);
    let step = checked.as_ref().ok().filter(|_| steps).map(steps::measure).transpose();
    let (step, trouble) = match (&checked, &step) {
        (Err(error), _) | (_, Err(error)) => (None, Some(format!("{error:#}"))),
        (Ok(_), Ok(step)) => (*step, None),
    };
    // A program that plays a card is slow: its numbers are not worth the wait.
    let to_measure = checked.as_ref().ok().filter(|_| !adapter.is_software);
    let measured = to_measure.and_then(|device| exo_device::calibrate(&**device).ok());
    Found {
        api: adapter.api.name().to_owned(),
        index: adapter.index,
        name: adapter.name.clone(),
        vendor: adapter.vendor,
        pci_address: adapter.pci_address.clone(),
        is_software: adapter.is_software,
        driver: adapter.driver.clone(),
        memory_bytes: adapter.memory_bytes,
        read_bytes_per_s: measured.map(|m| m.read_bytes_per_s),
        flops_per_s: measured.map(|m| m.flops_per_s),
        step,
        trouble,
    }
}

fn check_adapter(adapter: &Adapter) -> anyhow::Result<Arc<WgpuDevice>> {
    let memory = adapter.memory_bytes.unwrap_or(CHECK_BYTES).min(CHECK_BYTES);
    let options = WgpuOptions { memory_limit_bytes: Some(memory), ..WgpuOptions::default() };
    let device = WgpuDevice::open(adapter, DeviceId("probe".to_owned()), &options)?;
    check(&*device)?;
    Ok(device)
}

/// Allocates, copies, computes and compares: a driver that lists a device may still not be able to use it.
fn check(device: &dyn Device) -> anyhow::Result<()> {
    let (x, y) = (device.buffer(Element::F32, 100)?, device.buffer(Element::F32, 100)?);
    let numbers: Vec<f32> = (0..100).map(|i| i as f32).collect();
    let mut stream = device.stream()?;
    stream.upload_f32(&x, 0, &numbers)?;
    stream.upload_f32(&y, 0, &numbers)?;
    let program = device.compile(Recording { ops: vec![Op::Add { x: x.clone(), y, width: 10 }] })?;
    stream.run(&*program, RunShape { tokens: 10, selected: 0 }, &Alone, &CancelToken::default())?;
    let mut sums = vec![0.0; 100];
    stream.download_f32(&x, 0, &mut sums, CHECK_MAX)?;
    let expected: Vec<f32> = numbers.iter().map(|n| n + n).collect();
    anyhow::ensure!(sums == expected, "it computed a wrong sum");
    Ok(())
}
