//! Asking a driver in a child process: one that crashes or hangs costs the child.

use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use exo_backend::{Alone, CancelToken, Device, Element, Op, Recording, RunShape};
use exo_backend_wgpu::{Adapter, Api, WgpuDevice, WgpuOptions};
use exo_types::DeviceId;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;

/// For loading a driver, opening each adapter and measuring it.
const PROBE_MAX: Duration = Duration::from_secs(20);
/// For the little work of the check.
const CHECK_MAX: Duration = Duration::from_secs(5);
/// Memory a check may use: the measured matrix and its like.
const CHECK_BYTES: u64 = 256 << 20;
/// The most a child may print.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

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
    /// Why it cannot be used.
    pub trouble: Option<String>,
}

/// What became of asking one interface.
pub struct Outcome {
    pub api: Api,
    pub found: Result<Vec<Found>, String>,
}

/// Asks `api` in a child process, within a bound.
pub async fn in_child(api: Api) -> Outcome {
    let found = ask(api).await.map_err(|error| format!("{error:#}"));
    Outcome { api, found }
}

async fn ask(api: Api) -> anyhow::Result<Vec<Found>> {
    let exe = std::env::current_exe().context("cannot find the exo program itself")?;
    let mut child = tokio::process::Command::new(exe)
        .args(["devices", "--probe", api.name()])
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
    let status = tokio::time::timeout(PROBE_MAX, reading).await.map_err(|_| {
        anyhow::anyhow!("the {api} driver did not answer within {} s and is not used", PROBE_MAX.as_secs())
    })??;
    if !status.success() {
        anyhow::bail!("the {api} driver ended the process that asked it ({status}) and is not used");
    }
    serde_json::from_str(&text).with_context(|| format!("the answer of the {api} probe cannot be read"))
}

/// The child's part: every adapter of one interface, opened, checked and measured, as JSON.
pub fn answer(api: &str) -> anyhow::Result<()> {
    let api = Api::ALL.into_iter().find(|known| known.name() == api);
    let api = api.with_context(|| "there is no such graphics interface".to_owned())?;
    let found: Vec<Found> = exo_backend_wgpu::list(api)?.iter().map(describe).collect();
    crate::ui::json(&found)
}

fn describe(adapter: &Adapter) -> Found {
    let checked = check(adapter);
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
        trouble: checked.err().map(|error| format!("{error:#}")),
    }
}

/// Allocates, copies, computes and compares: a driver that lists an adapter may still not be able to use it.
fn check(adapter: &Adapter) -> anyhow::Result<std::sync::Arc<WgpuDevice>> {
    let memory = adapter.memory_bytes.unwrap_or(CHECK_BYTES).min(CHECK_BYTES);
    let options = WgpuOptions { memory_limit_bytes: Some(memory), ..WgpuOptions::default() };
    let device = WgpuDevice::open(adapter, DeviceId("probe".to_owned()), &options)?;
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
    Ok(device)
}
