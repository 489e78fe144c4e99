//! What the processor can do, measured as accelerators are, so that both compare.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use exo_backend::Device;
use exo_backend_cpu::{CpuDevice, CpuOptions, Isa, OpenError};
use exo_device::{
    BackendRecord, Calibration, CalibrationError, CoreList, Identity, KnownType, MeasuredAt, Registry,
};

use exo_types::{ComputeShare, DType, Provenance, TypeRates};

use crate::VERSION;

/// In the registry.
const BACKEND: &str = "cpu";
/// A processor is measured with so much memory whatever it may take for models: a quarter of it are weights.
const MEASURING_BYTES_MIN: u64 = 256 << 20;

/// How models would use the processor: what its rates depend on.
#[derive(Clone, Default, Debug)]
pub struct ProcessorOptions {
    /// Worker threads; `None` for all it grants.
    pub threads: Option<usize>,
    /// Cores that they are kept to.
    pub cores: Option<CoreList>,
    /// Instruction set; `None` for the widest.
    pub isa: Option<Isa>,
    /// Part of the time in which it computes.
    pub share: ComputeShare,
    /// Weights are used from their file.
    pub mmap: bool,
    /// Memory that they may take; `None` for all that is free.
    pub memory_max_bytes: Option<u64>,
}

/// From the registry of a data folder, else measured now, about a second, and kept. `None` if it cannot
/// be measured: then any accelerator counts as faster.
pub fn rates(data_dir: &Path, options: &ProcessorOptions) -> Option<Calibration> {
    known_rates(data_dir, options).filter(|_| is_fresh(data_dir)).or_else(|| {
        let turn = Registry::measuring_turn();
        let measured = measure(options, DType::Q8_0);
        let measured = measured.inspect_err(|error| {
            tracing::warn!(error = crate::chain(error), "the processor could not be measured");
        });
        let (rates, is_usual) = measured.ok()?;
        match turn {
            Ok(_) if is_usual => keep(data_dir, options, rates),
            Ok(_) => {}
            // Beside others it is slower than it is: the next start measures again.
            Err(error) => tracing::info!(%error, "the processor was measured while others measured"),
        }
        Some(rates)
    })
}

/// From the registry of a data folder.
pub fn known_rates(data_dir: &Path, options: &ProcessorOptions) -> Option<Calibration> {
    Registry::look(data_dir).calibration(&identity(), BACKEND, &driver(options))
}

/// Types of weights that a shard has fewer bytes of decide nothing.
pub const TYPE_BYTES_MIN: u64 = 32 << 20;

/// From the registry of a data folder: what the processor does with other types than Q8_0.
pub fn known_types(data_dir: &Path, options: &ProcessorOptions) -> Vec<TypeRates> {
    let types = Registry::look(data_dir).types(&identity(), BACKEND, &driver(options));
    types.into_iter().map(type_rates).collect()
}

/// Measures those of `wanted` that are not known, or have been for too long, a second each, and keeps
/// them: all that is known then. What cannot be measured, or not alone on this machine, stays as it was.
/// Blocks, and waits for its turn among the processes of it.
pub fn measure_types(data_dir: &Path, options: &ProcessorOptions, wanted: &[DType]) -> Vec<TypeRates> {
    let mut known = known_types(data_dir, options);
    let is_known = |known: &[TypeRates], dtype: DType| {
        dtype == DType::Q8_0 || known.iter().any(|rates| rates.dtype == dtype && rates.measured.is_fresh())
    };
    for &dtype in wanted {
        if is_known(&known, dtype) {
            continue;
        }
        let _turn = match Registry::measuring_turn() {
            Ok(turn) => turn,
            Err(error) => {
                tracing::info!(?dtype, %error, "others measure: a type of weights is left for the next load");
                return known;
            }
        };
        // Another process with this data folder may have measured it meanwhile.
        known = merged(known, known_types(data_dir, options));
        if is_known(&known, dtype) {
            continue;
        }
        if let Some(rates) = measure_type(options, dtype) {
            keep_type(data_dir, options, dtype, rates);
            known = merged(known, vec![type_rates((dtype, rates))]);
        }
    }
    known
}

/// The later of each type.
fn merged(mut known: Vec<TypeRates>, later: Vec<TypeRates>) -> Vec<TypeRates> {
    known.retain(|rates| later.iter().all(|later| later.dtype != rates.dtype));
    known.extend(later);
    known.sort_by_key(|rates| rates.dtype);
    known
}

fn keep_type(data_dir: &Path, options: &ProcessorOptions, dtype: DType, rates: KnownType) {
    let found = BTreeMap::from([(dtype, rates)]);
    let note = |registry: &mut Registry| {
        registry.note_types(&identity(), BACKEND, &driver(options), &found, exo_stdx::unix_s());
    };
    if let Err(error) = Registry::change(data_dir, note) {
        tracing::debug!(%error, "what the processor does with types of weights is not kept");
    }
}

fn type_rates((dtype, known): (DType, KnownType)) -> TypeRates {
    TypeRates {
        dtype,
        read_bytes_per_s: known.read_bytes_per_s,
        flops_per_s: known.flops_per_s,
        read_16_rows_bytes_per_s: known.read_16_rows_bytes_per_s,
        measured: known.measured().told(exo_stdx::unix_s()),
    }
}

fn measure_type(options: &ProcessorOptions, dtype: DType) -> Option<KnownType> {
    match measure(options, dtype) {
        Ok((Calibration { read_bytes_per_s, flops_per_s, read_16_rows_bytes_per_s, measured, .. }, true)) => {
            let MeasuredAt { unix_s: measured_unix_s, passes } = measured?;
            tracing::info!(target: "events::device", ?dtype, read_bytes_per_s, flops_per_s, "a type of weights was measured");
            Some(KnownType {
                read_bytes_per_s,
                flops_per_s,
                read_16_rows_bytes_per_s,
                measured_unix_s,
                passes,
            })
        }
        Ok((_, false)) => {
            tracing::debug!(?dtype, "no memory for a type of weights to be measured where models have it");
            None
        }
        Err(error) => {
            let error = crate::chain(&error);
            tracing::warn!(?dtype, error, "the processor could not be measured with a type of weights");
            None
        }
    }
}

/// Whether what is known is not older than a day: what a processor has left for models depends on what else
/// the machine does.
fn is_fresh(data_dir: &Path) -> bool {
    let registry = Registry::look(data_dir);
    let verified = registry.known(&identity(), BACKEND).and_then(|known| known.verified_unix_s);
    let age_s = verified.and_then(|unix_s| exo_stdx::unix_s().checked_sub(unix_s));
    age_s.is_some_and(|age_s| age_s <= u64::from(Provenance::FRESH_S))
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

/// What stands in the place of a driver.
fn driver(options: &ProcessorOptions) -> String {
    let isa = options.isa.unwrap_or_else(Isa::best);
    let threads = options.threads.unwrap_or_else(exo_device::cores);
    let cores = options.cores.as_ref().map_or_else(String::new, |cores| format!(" on {cores}"));
    let share = match options.share {
        ComputeShare::FULL => String::new(),
        share => format!(" for {share} of the time"),
    };
    let from = if options.mmap { " from files" } else { "" };
    let within = match options.memory_max_bytes {
        Some(bytes) => format!(" within {bytes} bytes"),
        None => String::new(),
    };
    format!("exo {VERSION}, {}, {threads} threads{cores}{share}{from}{within}", isa.name())
}

#[derive(Debug, thiserror::Error)]
enum MeasureError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Calibrate(#[from] CalibrationError),
}

/// What it can do, and whether with weights where models have them: they stay where they are while memory is
/// short.
fn measure(options: &ProcessorOptions, dtype: DType) -> Result<(Calibration, bool), MeasureError> {
    let device: Arc<dyn Device> = CpuDevice::open(without_rests(options))?;
    let rates = match dtype {
        DType::Q8_0 => exo_device::calibrate(&*device)?,
        other => exo_device::calibrate_type(&*device, other)?,
    };
    Ok((rates.for_share(options.share), device.residence().mapped_because.is_none()))
}

/// As models would use it, but all of the time. A rest comes when ops together owe milliseconds: it would
/// fall into some pieces of what is measured, and into others not at all.
fn without_rests(options: &ProcessorOptions) -> CpuOptions {
    let ProcessorOptions { threads, cores, isa, share: _, mmap, memory_max_bytes } = options.clone();
    let memory_limit_bytes = memory_max_bytes.map(|bytes| bytes.max(MEASURING_BYTES_MIN));
    CpuOptions { threads, cores, isa, mmap, memory_limit_bytes, ..CpuOptions::default() }
}

fn keep(data_dir: &Path, options: &ProcessorOptions, rates: Calibration) {
    let now = exo_stdx::unix_s();
    let known = BackendRecord {
        driver: driver(options),
        read_bytes_per_s: Some(rates.read_bytes_per_s),
        flops_per_s: Some(rates.flops_per_s),
        layer: rates.layer,
        is_of_cache: rates.is_of_cache,
        measured: rates.measured,
        verified_unix_s: Some(now),
        ..BackendRecord::default()
    };
    let note = |registry: &mut Registry| registry.note(&identity(), BACKEND, known, now);
    if let Err(error) = Registry::change(data_dir, note) {
        tracing::debug!(%error, "what the processor can do is not kept");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rests_is_measured_without_rests_and_in_all_else_as_it_is_used() {
        let options = ProcessorOptions {
            threads: Some(1),
            share: "10%".parse().unwrap(),
            mmap: true,
            memory_max_bytes: Some(1 << 30),
            ..ProcessorOptions::default()
        };
        let CpuOptions { threads, share, mmap, memory_limit_bytes, .. } = without_rests(&options);
        assert_eq!((threads, share, mmap), (Some(1), ComputeShare::FULL, true));
        assert_eq!(memory_limit_bytes, Some(1 << 30));
    }
}
