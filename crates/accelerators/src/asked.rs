//! One accelerator that somebody asked for: found, opened, checked, measured. In the process that computes on
//! it, or to see what it is.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use exo_backend::Device;
use exo_device::{CalibrationError, Identity, Quarantine, VerifyError};
use exo_types::DeviceFacts;
use serde::{Deserialize, Serialize};

use crate::ranking::OtherCard;
use crate::{Accelerator, Backend, Candidate, ListError, NotThere, OpenError, list};

/// Which accelerator, and how much of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceAsk {
    /// What shows it.
    pub backend: Backend,
    /// Its number in the backend's list or a part of its name; empty for the first that is likely to do.
    pub which: String,
    /// Memory that may be taken; `None` for all of it.
    pub memory_max_bytes: Option<u64>,
    /// Where compiled kernels are kept, and what was learnt of it. A path, which need not be text.
    pub data_dir: OsString,
    /// Whether a quarantine in the registry binds: then the device is not opened.
    pub heeds_quarantine: bool,
}

/// What was found out about an accelerator.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// As a node reports it.
    pub facts: DeviceFacts,
    /// Who it is.
    pub identity: Identity,
    /// With its version.
    pub driver: String,
    /// Why it was not opened.
    pub quarantine: Option<Quarantine>,
}

/// An accelerator that was asked for cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum DeviceError {
    #[error(transparent)]
    List(#[from] ListError),
    #[error(transparent)]
    NotThere(#[from] NotThere),
    /// It is not the one that was looked at before.
    #[error(transparent)]
    OtherCard(#[from] OtherCard),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Verify(#[from] VerifyError),
    #[error(transparent)]
    Measure(#[from] CalibrationError),
}

impl DeviceError {
    /// Stable, for whoever chooses by it.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::List(error) => error.code(),
            Self::NotThere(_) | Self::OtherCard(_) => "accelerator_not_there",
            Self::Open(_) => "accelerator_not_opened",
            Self::Verify(_) | Self::Measure(_) => "accelerator_broken",
        }
    }
}

/// Opens an accelerator in this process; makes it compute and compare, and finds out what it can do, if
/// `is_examined`. One that shares the machine's memory gets no more than `shared_free_bytes` says is free
/// there. Another card than that of `expected` stays shut.
pub fn open(
    ask: &DeviceAsk,
    expected: Option<&Candidate>,
    shared_free_bytes: impl FnOnce() -> u64,
    is_examined: bool,
) -> Result<(Arc<dyn Device>, DeviceFacts), DeviceError> {
    let mut asked = RequestedDevice::find(ask, shared_free_bytes)?;
    if let Some(expected) = expected {
        expected.check_identity(&asked.accelerator.identity)?;
    }
    if is_examined { asked.open_and_measure() } else { asked.open() }
}

/// Opens an accelerator in this process to see what it is; one that is in quarantine stays shut, if that is
/// heeded.
pub fn examine(ask: &DeviceAsk, shared_free_bytes: impl FnOnce() -> u64) -> Result<DeviceInfo, DeviceError> {
    let mut asked = RequestedDevice::find(ask, shared_free_bytes)?;
    let (identity, driver) = (asked.accelerator.identity.clone(), asked.accelerator.driver.clone());
    let registry = exo_device::Registry::look(Path::new(&ask.data_dir));
    let now = exo_stdx::unix_s();
    let quarantine = registry.quarantine(&identity, ask.backend.name(), &driver, now).cloned();
    let quarantine = quarantine.filter(|_| ask.heeds_quarantine);
    let facts = match &quarantine {
        Some(_) => asked.accelerator.facts_unopened(asked.limit),
        None => asked.open_and_measure()?.1,
    };
    Ok(DeviceInfo { facts, identity, driver, quarantine })
}

/// The one that was asked for.
struct RequestedDevice<'a> {
    ask: &'a DeviceAsk,
    accelerator: Accelerator,
    /// Memory it may use; `None` for what it has.
    limit: Option<u64>,
    phases: Phases,
}

impl<'a> RequestedDevice<'a> {
    fn find(ask: &'a DeviceAsk, shared_free_bytes: impl FnOnce() -> u64) -> Result<Self, DeviceError> {
        let mut phases = Phases::begin();
        let listed = list(ask.backend, &exo_device::graphics_cards(Path::new("/")))?;
        let accelerator = Accelerator::pick(listed, ask.backend, &ask.which)?;
        phases.end("drivers listed");
        let limit = match (ask.memory_max_bytes, accelerator.memory_bytes) {
            (Some(wanted), Some(all)) => Some(wanted.min(all)),
            // A vendor's driver says what is free when the card is opened.
            (None, all) => all.filter(|_| !accelerator.tells_free_memory()),
            (wanted, None) => wanted,
        };
        let is_shared = accelerator.is_software || accelerator.is_integrated;
        let limit = match is_shared.then(shared_free_bytes) {
            Some(free) => Some(limit.unwrap_or(free).min(free)),
            None => limit,
        };
        Ok(Self { ask, accelerator, limit, phases })
    }

    fn open(&mut self) -> Result<(Arc<dyn Device>, DeviceFacts), DeviceError> {
        let cache_dir = Path::new(&self.ask.data_dir).join("kernels");
        let opened = self.accelerator.open(self.accelerator.id(), self.limit, Some(cache_dir))?;
        self.phases.end("opened");
        let device = opened.device();
        let facts = device.facts();
        Ok((device, facts))
    }

    fn open_and_measure(&mut self) -> Result<(Arc<dyn Device>, DeviceFacts), DeviceError> {
        let (device, mut facts) = self.open()?;
        exo_device::verify(&*device)?;
        self.phases.end("verified");
        // A software adapter is there for tests, and slow; measuring it would take longer than using
        // it.
        if !self.accelerator.is_software {
            self.measure(&*device, &mut facts)?;
        }
        self.phases.end("measured");
        Ok((device, facts))
    }

    /// Adds what the registry knows of it with this backend and driver, else what is measured now.
    fn measure(&self, device: &dyn Device, facts: &mut DeviceFacts) -> Result<(), CalibrationError> {
        let Accelerator { identity, driver, backend, .. } = &self.accelerator;
        let folder = Path::new(&self.ask.data_dir);
        let kept = exo_device::calibrated(folder, identity, backend.name(), driver, device)?;
        if let Some(warning) = kept.warning {
            tracing::warn!("{warning}");
        }
        facts.read_bytes_per_s = Some(kept.calibration.read_bytes_per_s);
        facts.flops_per_s = Some(kept.calibration.flops_per_s);
        facts.layer_rates = kept.calibration.layer;
        facts.rates_measured = kept.calibration.told();
        Ok(())
    }
}

/// From start to ready, logged phase by phase.
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
