//! What the processor can do, measured as graphics processors are, so that both compare.

use exo_backend_cpu::{CpuDevice, CpuOptions, Isa};
use exo_device::{Calibration, Identity, Known, Registry};
use exo_node::NodeConfig;

/// In the registry.
const BACKEND: &str = "cpu";

/// From the registry, else measured now, about 800 ms, and kept. `None` if it cannot be measured: then any graphics processor
/// counts as faster.
pub fn rates(settings: &NodeConfig) -> Option<Calibration> {
    known(settings).or_else(|| measure(settings))
}

/// From the registry.
pub fn known(settings: &NodeConfig) -> Option<Calibration> {
    Registry::look(&settings.data_dir).calibration(&identity(), BACKEND, &driver(settings))
}

fn identity() -> Identity {
    Identity {
        name: exo_device::processor_name("/".as_ref()).unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        vendor: 0,
        device: 0,
        pci_address: None,
        uuid: None,
    }
}

/// What stands in the place of a driver: what the rates depend on.
fn driver(settings: &NodeConfig) -> String {
    let isa = settings.cpu_isa.unwrap_or_else(Isa::best);
    let threads = settings.threads.unwrap_or_else(exo_device::cores);
    let cores = settings.cores.as_ref().map_or_else(String::new, |cores| format!(" on {cores}"));
    format!("exo {}, {}, {threads} threads{cores}", super::VERSION, isa.name())
}

fn measure(settings: &NodeConfig) -> Option<Calibration> {
    let options = CpuOptions {
        threads: settings.threads,
        cores: settings.cores.clone(),
        isa: settings.cpu_isa,
        ..CpuOptions::default()
    };
    let measured = CpuDevice::open(options).map_err(anyhow::Error::from).and_then(|device| {
        let device: std::sync::Arc<dyn exo_backend::Device> = device;
        Ok(exo_device::calibrate(&*device)?)
    });
    let Calibration { read_bytes_per_s, flops_per_s } = measured
        .inspect_err(|error| tracing::warn!("the processor could not be measured: {error:#}"))
        .ok()?;
    let now = exo_device::unix_s();
    let known = Known {
        driver: driver(settings),
        read_bytes_per_s: Some(read_bytes_per_s),
        flops_per_s: Some(flops_per_s),
        verified_unix_s: Some(now),
        ..Known::default()
    };
    let note = |registry: &mut Registry| registry.note(&identity(), BACKEND, known, now);
    let kept = Registry::change(&settings.data_dir, note);
    if let Err(error) = kept {
        tracing::debug!(%error, "what the processor can do is not kept");
    }
    Some(Calibration { read_bytes_per_s, flops_per_s })
}
