//! The devices that a node computes on, as configured. Accelerators are opened in a worker's process.

use exo_accelerators::{
    Backend, Candidate, CardSelection, ChooseError, DeviceAsk, InProcess, Message, ProcessorOptions,
    Surveyor, TYPE_BYTES_MIN,
};
use exo_backend::Device;
use exo_backend_cpu::{CpuDevice, CpuOptions};
use exo_types::{ComputeShare, DType, TypeBytes, TypeRates};

use crate::open_device::{Failure, Opened, open_asked, shared_free_bytes};
use crate::worker::{Children, WorkerProgram};
use crate::{DeviceChoice, Host, NodeConfig};

/// For other processes, one for each device; none for the processor, which needs none, and for what is chosen
/// only when it is opened.
pub(crate) fn asks(choice: &DeviceChoice, config: &NodeConfig) -> Vec<DeviceAsk> {
    let DeviceChoice::Named { backend, which } = choice else { return Vec::new() };
    each(which).into_iter().map(|which| ask(*backend, which, config)).collect()
}

fn ask(backend: Backend, which: String, config: &NodeConfig) -> DeviceAsk {
    DeviceAsk {
        backend,
        which,
        memory_max_bytes: config.memory_max_bytes,
        data_dir: config.data_dir.clone().into_os_string(),
        heeds_quarantine: true,
    }
}

pub(crate) fn ask_for(candidate: &Candidate, config: &NodeConfig) -> DeviceAsk {
    ask(candidate.backend, candidate.index.to_string(), config)
}

/// The devices of a setting: numbers with commas between them are several, anything else is one.
fn each(which: &str) -> Vec<String> {
    let parts: Vec<_> = which.split(',').map(str::trim).collect();
    let are_numbers = parts.iter().all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
    if are_numbers { parts.into_iter().map(str::to_owned).collect() } else { vec![which.to_owned()] }
}

/// Runs `work`, which asks drivers, on a thread of its own: in children, or in this process where there is no
/// program for them. If this is dropped meanwhile, every child ends, and nothing is noted of what it was
/// about to find out.
pub async fn asking_drivers<T: Send + 'static>(
    worker: Option<WorkerProgram>,
    work: impl FnOnce(&dyn Surveyor) -> T + Send + 'static,
) -> T {
    let children = worker.map(Children::new);
    let _end = children.as_ref().map(Children::end_with);
    let asking = tokio::task::spawn_blocking(move || match &children {
        Some(children) => work(children),
        None => work(&InProcess),
    });
    asking.await.unwrap_or_else(|broken| match broken.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(broken) => unreachable!("nobody aborts it: {broken}"),
    })
}

/// Finds out what there is to choose from, if `config` leaves that open, and notes it there. `tell` hears
/// what goes on: the first start with a new accelerator, driver or exo takes some seconds.
pub async fn choose_devices(
    config: &mut NodeConfig,
    tell: impl Fn(Message) + Send + Sync + 'static,
) -> Result<(), ChooseError> {
    let DeviceChoice::Auto { which } = config.device.clone() else { return Ok(()) };
    let (data_dir, processor) = (config.data_dir.clone(), processor_options(config));
    let choose = move |surveyor: &dyn Surveyor| {
        exo_accelerators::choose(surveyor, &data_dir, &processor, &which, &tell)
    };
    let ranking = asking_drivers(config.worker.clone(), choose).await?;
    config.device = DeviceChoice::Ranked(Box::new(ranking));
    Ok(())
}

/// How models of this node would use the processor.
pub fn processor_options(config: &NodeConfig) -> ProcessorOptions {
    ProcessorOptions {
        threads: config.threads,
        cores: config.cores.clone(),
        isa: config.cpu_isa,
        share: config.compute_share,
        mmap: config.mmap,
        memory_max_bytes: config.memory_max_bytes,
    }
}

/// Opens what `config` asks for in this process. What an accelerator can do is measured here, about a second,
/// unless the registry in the data folder knows. What could not be opened on the way is logged.
pub fn open(config: &NodeConfig, host: &dyn Host) -> Result<Opened, Failure> {
    let DeviceChoice::Ranked(ranking) = &config.device else {
        return match asks(&config.device, config).as_slice() {
            [] => processor(config, host),
            [ask] => open_asked(ask, host, true),
            several => Err(format!("{} devices are named, and one can be opened here", several.len()).into()),
        };
    };
    let tried = ranking.try_each(CardSelection::Best, |candidate| {
        let ask = ask_for(candidate, config);
        Ok(exo_accelerators::open(&ask, Some(candidate), || shared_free_bytes(host), true)?)
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

/// Opens the processor as `config` asks for. Its rates are measured here, unless the registry in the data
/// folder knows them.
pub fn processor(config: &NodeConfig, host: &dyn Host) -> Result<Opened, Failure> {
    let probed = host.processor();
    let limit =
        config.memory_max_bytes.unwrap_or(probed.memory_total_bytes).min(probed.memory_total_bytes.max(1));
    let options = CpuOptions {
        threads: config.threads,
        cores: config.cores.clone(),
        isa: config.cpu_isa,
        memory_limit_bytes: Some(limit),
        mmap: config.mmap,
        packing: config.packing,
        share: config.compute_share,
    };
    let device = CpuDevice::open(options)?;
    let mut facts = device.facts();
    facts.name = probed.name;
    facts.memory_total_bytes = limit;
    facts.memory_free_bytes = probed.memory_free_bytes.min(limit);
    (facts.read_bytes_per_s, facts.flops_per_s) = (probed.read_bytes_per_s, probed.flops_per_s);
    let mut of_cache = None;
    if probed.read_bytes_per_s.is_none()
        && let Some(rates) = exo_accelerators::rates(&config.data_dir, &processor_options(config))
    {
        (facts.read_bytes_per_s, facts.flops_per_s) = (Some(rates.read_bytes_per_s), Some(rates.flops_per_s));
        facts.layer_rates = rates.layer;
        facts.rates_measured = rates.told();
        facts.rates_by_type = exo_accelerators::known_types(&config.data_dir, &processor_options(config));
        of_cache = rates.is_of_cache.then(|| {
            "measured within its last cache, for lack of memory or time: larger models are slower".to_owned()
        });
    }
    // Shown wherever the device is: a warning at the start is soon forgotten.
    let rests = (config.compute_share != ComputeShare::FULL)
        .then(|| format!("computes {} of the time, as `compute_share` says", config.compute_share));
    let remarks = [Some(probed.support_reason).filter(|r| !r.is_empty()), crowding(config), rests, of_cache];
    facts.support_reason = remarks.into_iter().flatten().collect::<Vec<_>>().join("; ");
    Ok((device, facts))
}

/// Measures what the processor does with types of weights that a model has enough of, those that are not
/// known, about a second each; all that is known then. Blocks.
pub fn measure_types(config: &NodeConfig, types: &TypeBytes) -> Vec<TypeRates> {
    let is_large = |(_, bytes): &&(DType, u64)| *bytes >= TYPE_BYTES_MIN;
    let wanted: Vec<DType> = types.0.iter().filter(is_large).map(|(dtype, _)| *dtype).collect();
    exo_accelerators::measure_types(&config.data_dir, &processor_options(config), &wanted)
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
