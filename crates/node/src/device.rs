//! The device that a node computes on, as configured. Graphics processors are opened in a worker's process.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use exo_backend::Device;
use exo_backend_cpu::{CpuDevice, CpuOptions};
use exo_backend_cuda::{Card, CudaDevice, CudaOptions};
use exo_backend_wgpu::{Adapter, Api, WgpuDevice, WgpuOptions};
use exo_device::Identity;
use exo_types::{DeviceFacts, DeviceId, DeviceKind, SupportClass};

use crate::ranking::{Ranking, Wanted};
use crate::worker::{CardWords, DeviceAsk};
use crate::{Host, NodeConfig};

/// What a node computes on.
#[derive(Clone, PartialEq, Default, Debug)]
pub enum DeviceChoice {
    /// The processor.
    #[default]
    Processor,
    /// An NVIDIA card through its own driver.
    Cuda {
        /// Its place in the driver's list from 0, or a part of its name; empty for the first that can be used. Several
        /// places with commas between them are several cards.
        which: String,
    },
    /// One of AMD's cards through its own driver.
    #[cfg(feature = "hip")]
    Hip {
        /// As for NVIDIA's.
        which: String,
    },
    /// A graphics processor.
    Graphics {
        /// Through this interface.
        api: Api,
        /// Its place in the interface's list from 0, or a part of its name; empty for the first that is no software.
        /// Several places with commas between them are several processors.
        which: String,
    },
    /// The best of these that can be opened, else the processor.
    Best(Box<Ranking>),
}

impl DeviceChoice {
    /// From the settings `backend` (`cpu`, `cuda`, `hip`, `vulkan`, `metal`, `dx12`) and `device`.
    pub fn parse(backend: &str, which: &str) -> Result<Self, UnknownBackend> {
        match backend {
            "cpu" => Ok(Self::Processor),
            "cuda" => Ok(Self::Cuda { which: which.to_owned() }),
            #[cfg(feature = "hip")]
            "hip" => Ok(Self::Hip { which: which.to_owned() }),
            _ => Ok(Self::Graphics { api: backend.parse::<GraphicsApi>()?.0, which: which.to_owned() }),
        }
    }

    /// The same in words for other processes, one for each device; none for the processor, which needs none, and for what is
    /// chosen only when it is opened.
    pub(crate) fn asks(&self, config: &NodeConfig) -> Vec<DeviceAsk> {
        let (backend, which) = match self {
            Self::Processor | Self::Best(_) => return Vec::new(),
            Self::Cuda { which } => ("cuda", which),
            #[cfg(feature = "hip")]
            Self::Hip { which } => ("hip", which),
            Self::Graphics { api, which } => (api.name(), which),
        };
        let ask = |which: String| DeviceAsk {
            backend: backend.to_owned(),
            which,
            memory_max_bytes: config.memory_max_bytes,
            data_dir: config.data_dir.clone().into_os_string(),
            heeds_quarantine: true,
        };
        each(which).into_iter().map(ask).collect()
    }
}

/// The devices of a setting: places with commas between them are several, anything else is one.
fn each(which: &str) -> Vec<String> {
    let parts: Vec<_> = which.split(',').map(str::trim).collect();
    let are_places = parts.iter().all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
    if are_places { parts.into_iter().map(str::to_owned).collect() } else { vec![which.to_owned()] }
}

/// A setting names no backend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is no backend{}: it must be auto, cpu, cuda, vulkan, {}", left_out(.name), OTHERS)]
pub struct UnknownBackend {
    name: String,
}

const OTHERS: &str = if cfg!(feature = "hip") { "metal, dx12 or hip" } else { "metal or dx12" };

/// AMD's driver is used by programs that were built for it.
fn left_out(backend: &str) -> &'static str {
    if backend == "hip" { " of this program, which was built without the feature `hip`" } else { "" }
}

struct GraphicsApi(Api);

impl FromStr for GraphicsApi {
    type Err = UnknownBackend;

    fn from_str(name: &str) -> Result<Self, UnknownBackend> {
        let api = Api::ALL.into_iter().find(|api| api.name() == name);
        api.map(Self).ok_or_else(|| UnknownBackend { name: name.to_owned() })
    }
}

/// The chosen device is not there.
#[derive(Debug)]
struct NoAdapter {
    api: Api,
    which: String,
    found: Vec<String>,
}

impl std::error::Error for NoAdapter {}

impl fmt::Display for NoAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.found.as_slice(), self.which.as_str()) {
            ([], _) => write!(f, "{} shows no graphics processor on this machine", self.api),
            (found, which) => {
                write!(f, "{} shows no graphics processor `{which}`, only: {}", self.api, found.join(", "))
            }
        }
    }
}

/// A device and what it is.
pub type Opened = (Arc<dyn Device>, DeviceFacts);
/// Why it cannot be used.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Opens what `config` asks for in this process. What a graphics processor can do is measured here, about a second, unless
/// the registry in the data folder knows. What could not be opened on the way is logged.
pub fn open(config: &NodeConfig, host: &dyn Host) -> Result<Opened, Failure> {
    let DeviceChoice::Best(ranking) = &config.device else {
        return match config.device.asks(config).as_slice() {
            [] => processor(config, host),
            [ask] => open_asked(ask, host, true),
            several => Err(format!("{} devices are named, and one can be opened here", several.len()).into()),
        };
    };
    let tried = ranking.try_each(Wanted::Best, |candidate| {
        let asks = candidate.choice.asks(config);
        let ask = asks.first().ok_or_else(|| format!("{} is no graphics processor", candidate.label))?;
        let mut chosen = Chosen::find(ask, host)?;
        candidate.check_identity(&chosen.identity)?;
        chosen.open_and_measure(ask)
    })?;
    tried.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let opened = tried.opened.into_iter().next();
    let (device, mut facts) = opened.map_or_else(|| processor(config, host), Ok)?;
    facts.support_reason = both(&facts.support_reason, &tried.told);
    Ok((device, facts))
}

/// Two remarks as one.
pub fn both(one: &str, other: &str) -> String {
    let told = [one, other].into_iter().filter(|text| !text.is_empty());
    told.collect::<Vec<_>>().join("; ")
}

/// Opens a graphics processor in this process; makes it compute and compare, and finds out what it can do, if `examine`.
pub fn open_asked(ask: &DeviceAsk, host: &dyn Host, examine: bool) -> Result<Opened, Failure> {
    let mut chosen = Chosen::find(ask, host)?;
    if examine { chosen.open_and_measure(ask) } else { chosen.open(ask) }
}

/// Opens a graphics processor in this process to see what it is; one that is in quarantine stays shut, if that is heeded.
pub fn examine(ask: &DeviceAsk, host: &dyn Host) -> Result<CardWords, Failure> {
    let mut chosen = Chosen::find(ask, host)?;
    let (identity, driver) = (chosen.identity.clone(), chosen.driver.clone());
    let registry = exo_device::Registry::look(Path::new(&ask.data_dir));
    let now = exo_device::unix_s();
    let quarantine = registry.quarantine(&identity, &ask.backend, &driver, now).cloned();
    let quarantine = quarantine.filter(|_| ask.heeds_quarantine);
    let facts = match &quarantine {
        Some(_) => chosen.unopened(ask),
        None => chosen.open_and_measure(ask)?.1,
    };
    Ok(CardWords { facts, identity, driver, quarantine })
}

/// A graphics processor that a driver lists.
enum Listed {
    Adapter(Adapter),
    Card(Card),
}

/// The one that was asked for.
struct Chosen {
    listed: Listed,
    id: DeviceId,
    identity: Identity,
    driver: String,
    /// Memory it may use; `None` for what it has.
    limit: Option<u64>,
    phases: Phases,
}

impl Chosen {
    fn find(ask: &DeviceAsk, host: &dyn Host) -> Result<Self, Failure> {
        let mut phases = Phases::begin();
        let listed = match DeviceChoice::parse(&ask.backend, &ask.which)? {
            DeviceChoice::Processor | DeviceChoice::Best(_) => {
                return Err(format!("`{}` is no graphics processor", ask.backend).into());
            }
            DeviceChoice::Cuda { which } => Listed::Card(choose_card(exo_backend_cuda::list()?, &which)?),
            #[cfg(feature = "hip")]
            DeviceChoice::Hip { which } => Listed::Card(choose_card(exo_backend_cuda::list_amd()?, &which)?),
            DeviceChoice::Graphics { api, which } => {
                Listed::Adapter(choose(exo_backend_wgpu::list(api)?, api, &which)?)
            }
        };
        phases.end("drivers listed");
        Ok(match listed {
            Listed::Adapter(adapter) => Self {
                id: DeviceId(format!("{}-{}", adapter.api, adapter.index)),
                identity: identity(
                    &adapter.name,
                    adapter.vendor,
                    adapter.device,
                    adapter.pci_address.as_deref(),
                )
                .among_twins(adapter.twin),
                driver: adapter.driver.clone(),
                limit: shared_limit(
                    ask.memory_max_bytes.or(adapter.memory_bytes),
                    adapter.is_software || adapter.is_integrated,
                    host,
                ),
                listed: Listed::Adapter(adapter),
                phases,
            },
            Listed::Card(card) => Self {
                id: DeviceId(format!("{}-{}", card.api.name(), card.index)),
                identity: identity(&card.name, card.api.vendor(), 0, Some(&card.pci_address)),
                driver: card.driver_text(),
                limit: shared_limit(
                    ask.memory_max_bytes.map(|bytes| bytes.min(card.memory_bytes)),
                    card.is_integrated,
                    host,
                ),
                listed: Listed::Card(card),
                phases,
            },
        })
    }

    /// What is known of it while it stays shut.
    fn unopened(&self, ask: &DeviceAsk) -> DeviceFacts {
        let (name, is_integrated, memory_bytes, compute_units) = match &self.listed {
            Listed::Adapter(adapter) => (&adapter.name, adapter.is_integrated, adapter.memory_bytes, 0),
            Listed::Card(card) => {
                (&card.name, card.is_integrated, Some(card.memory_bytes), card.multiprocessors)
            }
        };
        DeviceFacts {
            id: self.id.clone(),
            kind: if is_integrated { DeviceKind::IntegratedGpu } else { DeviceKind::DiscreteGpu },
            name: name.clone(),
            backend: ask.backend.clone(),
            memory_total_bytes: self.limit.or(memory_bytes).unwrap_or(0),
            memory_free_bytes: 0,
            compute_units,
            read_bytes_per_s: None,
            flops_per_s: None,
            support: SupportClass::Unsupported,
            support_reason: String::new(),
        }
    }

    fn open(&mut self, ask: &DeviceAsk) -> Result<Opened, Failure> {
        let device: Arc<dyn Device> = match &self.listed {
            Listed::Adapter(adapter) => {
                let cache_dir = Some(Path::new(&ask.data_dir).join("kernels"));
                let options =
                    WgpuOptions { memory_limit_bytes: self.limit, cache_dir, ..WgpuOptions::default() };
                WgpuDevice::open(adapter, self.id.clone(), &options)?
            }
            Listed::Card(card) => {
                let options = CudaOptions { memory_limit_bytes: self.limit, ..CudaOptions::default() };
                CudaDevice::open(card, self.id.clone(), &options)?
            }
        };
        self.phases.end("opened");
        let facts = device.facts();
        Ok((device, facts))
    }

    fn open_and_measure(&mut self, ask: &DeviceAsk) -> Result<Opened, Failure> {
        let (device, mut facts) = self.open(ask)?;
        exo_device::verify(&*device)?;
        self.phases.end("verified");
        // A program that plays a card is there for tests, and slow; measuring it would take longer than using it.
        let is_software = matches!(&self.listed, Listed::Adapter(adapter) if adapter.is_software);
        if !is_software {
            let data_dir = Path::new(&ask.data_dir);
            measure(data_dir, &self.identity, (&ask.backend, &self.driver), &*device, &mut facts)?;
        }
        self.phases.end("measured");
        Ok((device, facts))
    }
}

/// A device that shares the machine's memory has no more than is free there.
fn shared_limit(limit: Option<u64>, is_shared: bool, host: &dyn Host) -> Option<u64> {
    if !is_shared {
        return limit;
    }
    let shared = host.processor(false).memory_free_bytes;
    Some(limit.unwrap_or(shared).min(shared))
}

/// Opens the processor as `config` asks for. Its bandwidth is measured here.
pub fn processor(config: &NodeConfig, host: &dyn Host) -> Result<Opened, Failure> {
    let probed = host.processor(true);
    let limit =
        config.memory_max_bytes.unwrap_or(probed.memory_total_bytes).min(probed.memory_total_bytes.max(1));
    let options = CpuOptions {
        threads: config.threads,
        cores: config.cores.clone(),
        isa: config.cpu_isa,
        memory_limit_bytes: Some(limit),
        mmap: config.mmap,
        packing: config.packing,
    };
    let device = CpuDevice::open(options)?;
    let mut facts = device.facts();
    facts.name = probed.name;
    facts.memory_total_bytes = limit;
    facts.memory_free_bytes = probed.memory_free_bytes.min(limit);
    facts.read_bytes_per_s = probed.read_bytes_per_s;
    // Shown wherever the device is: a warning at the start is soon forgotten.
    let remarks = [Some(probed.support_reason).filter(|r| !r.is_empty()), crowding(config)];
    facts.support_reason = remarks.into_iter().flatten().collect::<Vec<_>>().join("; ");
    Ok((device, facts))
}

/// What a user should know who asked for more threads than there are processors.
pub fn crowding(config: &NodeConfig) -> Option<String> {
    let (threads, cores) = (config.threads?, exo_device::cores());
    (threads > cores).then(|| {
        format!(
            "{threads} threads on {cores} processors wait for each other; expect less speed than with {cores}"
        )
    })
}

/// The chosen card is not there.
#[derive(Debug, thiserror::Error)]
#[error("{maker}'s driver shows no card `{which}`, only: {}", .found.join(", "))]
struct NoCard {
    maker: &'static str,
    which: String,
    found: Vec<String>,
}

fn identity(name: &str, vendor: u32, device: u32, pci_address: Option<&str>) -> Identity {
    let cards = exo_device::graphics_cards(Path::new("/"));
    exo_device::identity(name, vendor, device, pci_address, &cards)
}

/// Adds to `facts` what the registry knows of the card with this backend and driver, else what is measured now.
fn measure(
    data_dir: &Path,
    card: &Identity,
    (backend, driver): (&str, &str),
    device: &dyn Device,
    facts: &mut DeviceFacts,
) -> Result<(), Failure> {
    let kept = exo_device::calibrated(data_dir, card, backend, driver, device)?;
    if let Some(warning) = kept.warning {
        tracing::warn!("{warning}");
    }
    facts.read_bytes_per_s = Some(kept.calibration.read_bytes_per_s);
    facts.flops_per_s = Some(kept.calibration.flops_per_s);
    Ok(())
}

/// From start to ready, told phase by phase.
struct Phases(Instant);

impl Phases {
    fn begin() -> Self {
        Self(Instant::now())
    }

    fn end(&mut self, phase: &str) {
        let elapsed_ms = self.0.elapsed().as_millis() as u64;
        tracing::info!(target: "events::device", phase, elapsed_ms);
        self.0 = Instant::now();
    }
}

/// Whether a name has this part, in whatever letters.
fn is_part(which: &str, name: &str) -> bool {
    name.to_lowercase().contains(&which.to_lowercase())
}

fn choose_card(cards: Vec<Card>, which: &str) -> Result<Card, NoCard> {
    let found = cards.iter().map(|card| card.name.clone()).collect();
    let maker = cards.first().map_or("the", |card| card.api.maker());
    let position = match which {
        "" => cards.iter().position(|card| card.trouble().is_none()).or(Some(0)),
        _ => match which.parse() {
            Ok(index) => Some(index),
            Err(_) => cards.iter().position(|card| is_part(which, &card.name)),
        },
    };
    let chosen = position.and_then(|position| cards.into_iter().nth(position));
    chosen.ok_or_else(|| NoCard { maker, which: which.to_owned(), found })
}

fn choose(adapters: Vec<Adapter>, api: Api, which: &str) -> Result<Adapter, NoAdapter> {
    let found = adapters.iter().map(|adapter| adapter.name.clone()).collect();
    let position = match which {
        "" => adapters.iter().position(|adapter| !adapter.is_software).or(Some(0)),
        _ => match which.parse() {
            Ok(index) => Some(index),
            Err(_) => adapters.iter().position(|adapter| is_part(which, &adapter.name)),
        },
    };
    let chosen = position.and_then(|position| adapters.into_iter().nth(position));
    chosen.ok_or_else(|| NoAdapter { api, which: which.to_owned(), found })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_named_or_refused() {
        assert_eq!(DeviceChoice::parse("cpu", ""), Ok(DeviceChoice::Processor));
        let vulkan = DeviceChoice::Graphics { api: Api::Vulkan, which: "1".to_owned() };
        assert_eq!(DeviceChoice::parse("vulkan", "1"), Ok(vulkan));
        assert_eq!(DeviceChoice::parse("cuda", "1"), Ok(DeviceChoice::Cuda { which: "1".to_owned() }));
        let error = DeviceChoice::parse("opencl", "").unwrap_err();
        assert!(error.to_string().contains("`opencl` is no backend"), "{error}");
    }

    #[test]
    fn a_card_is_chosen_by_number_or_name_and_by_itself_if_it_can_be_used() {
        let card = |index: usize, name: &str, capability| Card {
            api: exo_backend_cuda::Api::Cuda,
            index,
            name: name.to_owned(),
            pci_address: format!("0000:0{index}:00.0"),
            capability,
            multiprocessors: 1,
            memory_bytes: 1 << 30,
            is_integrated: false,
            driver: "12.0".to_owned(),
            kernel_driver: None,
        };
        let cards = vec![card(0, "Old", (5, 0)), card(1, "New", (8, 9))];
        let chosen = |which| choose_card(cards.clone(), which).map(|card| card.index);
        assert_eq!([chosen("").unwrap(), chosen("0").unwrap(), chosen("Ne").unwrap()], [1, 0, 1]);
        let error = chosen("Voodoo").unwrap_err();
        assert_eq!(error.to_string(), "NVIDIA's driver shows no card `Voodoo`, only: Old, New");
    }

    #[test]
    fn an_adapter_that_is_not_there_is_told_with_those_that_are() {
        let error = choose(Vec::new(), Api::Vulkan, "").unwrap_err();
        assert!(error.to_string().contains("shows no graphics processor"), "{error}");
    }
}
