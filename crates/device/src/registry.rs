//! What earlier starts learnt of this machine's graphics processors: `gpu_registry.json` in the data folder.
//!
//! Measuring a card takes longer than using it for a moment, so what was measured is kept, under a name that
//! survives reboots: PCI address, vendor and device numbers, and the card's own serial number where its
//! driver tells one. A measurement counts for one backend and one driver version; whoever opens the card
//! still checks that it computes. Nothing in the file is secret or needed: a damaged one is moved aside and
//! another begun. Several processes look at it and change it; changes take turns.
//!
//! Start reading at [`Registry::change`].

mod driver;
mod file;
mod release;
mod trial;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use exo_types::{DType, LayerRates};
use serde::{Deserialize, Serialize};

use self::driver::Driver;
use self::file::ReadError;
use crate::{Calibration, CalibrationError, MeasuredAt, calibrate};

pub use file::RegistryLock;
pub use release::Released;
pub use trial::Trial;

/// Cards that are remembered; beyond, those that were not seen for longest are forgotten.
const DEVICES_MAX: usize = 64;
/// Of a name or a driver's version.
const TEXT_CHARS_MAX: usize = 200;
/// How long a quarantine lasts: what made a card fail may have been a passing thing.
pub const QUARANTINE_S: u64 = 6 * 3600;
/// Four others that measure a processor for about a second each.
const MEASURING_WAIT_MAX: Duration = Duration::from_secs(5);
/// By how much a clock is set back at most where it was right.
const CLOCK_STEP_MAX_S: u64 = 24 * 3600;
/// Of the reason for a quarantine.
const REASON_CHARS_MAX: usize = 500;
/// Of what measurements mean: those of another version, or of none, are made again.
pub const CALIBRATION_VERSION: u32 = 6;
/// No memory and no processor comes near.
const RATE_MAX: f64 = 1e18;

/// Who a card is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// As its driver names it.
    pub name: String,
    /// PCI vendor.
    pub vendor: u32,
    /// PCI device.
    pub device: u32,
    /// Where it is plugged in, where that is known.
    pub pci_address: Option<String>,
    /// Its own number, where its driver tells.
    pub uuid: Option<String>,
}

impl Identity {
    /// What it is kept under. A card in another slot, or another card in the slot, is another.
    fn key(&self) -> String {
        let numbers = format!("{:04x}:{:04x}", self.vendor, self.device);
        let place = self.pci_address.clone().unwrap_or_else(|| clip(&self.name));
        match &self.uuid {
            Some(uuid) => format!("{place} {numbers} {uuid}"),
            None => format!("{place} {numbers}"),
        }
    }
}

/// What opening a card through one backend showed.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct BackendRecord {
    /// With its version.
    pub driver: String,
    /// What the measurements mean; set by [`Registry::note`].
    #[serde(default)]
    pub calibration_version: u32,
    /// Bytes of its memory.
    pub memory_bytes: Option<u64>,
    /// What it reads per second; `None` for what was not worth measuring.
    pub read_bytes_per_s: Option<f64>,
    /// What it computes per second.
    pub flops_per_s: Option<f64>,
    /// What a layer takes beside products; earlier versions did not measure it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<LayerRates>,
    /// Whether the first of them is what the last cache gives.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_of_cache: bool,
    /// When all these were measured, and in how many passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<MeasuredAt>,
    /// The same two for other types of weights than Q8_0.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub by_type: BTreeMap<DType, KnownType>,
    /// When it last computed a known sum, in seconds since 1970.
    pub verified_unix_s: Option<u64>,
    /// Why it could not be used when it was last asked.
    pub trouble: Option<String>,
    /// Nodes do not use it for a while.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine: Option<Quarantine>,
    /// What came of asking it something whose answer is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial: Option<Trial>,
}

/// What was measured with one type of weights.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct KnownType {
    /// What it reads of them per second.
    pub read_bytes_per_s: f64,
    /// What it computes with them per second.
    pub flops_per_s: f64,
    /// What a step of several rows passes of them per second, where that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_16_rows_bytes_per_s: Option<f64>,
    /// When, in seconds since 1970.
    pub measured_unix_s: u64,
    /// In how many passes; earlier versions did not say.
    #[serde(default)]
    pub passes: u32,
}

impl KnownType {
    /// When, and in how many passes.
    pub fn measured(&self) -> MeasuredAt {
        MeasuredAt { unix_s: self.measured_unix_s, passes: self.passes }
    }

    fn is_plausible(&self) -> bool {
        let [read, flops] = [self.read_bytes_per_s, self.flops_per_s].map(is_rate);
        read && flops && self.read_16_rows_bytes_per_s.is_none_or(is_rate)
    }
}

/// A card was lost too often, or a driver did not answer. It binds nodes until it is over, the driver has
/// another version, or somebody releases it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Quarantine {
    /// When it began, in seconds since 1970.
    pub since_unix_s: u64,
    /// When it is over.
    pub until_unix_s: u64,
    /// What happened.
    pub reason: String,
}

impl Quarantine {
    /// One that begins now.
    pub fn new(reason: &str, now_unix_s: u64) -> Self {
        let until_unix_s = now_unix_s.saturating_add(QUARANTINE_S);
        Self {
            since_unix_s: now_unix_s,
            until_unix_s,
            reason: reason.chars().take(REASON_CHARS_MAX).collect(),
        }
    }

    /// To be displayed: how much longer, why, and what ends it.
    pub fn text(&self, now_unix_s: u64) -> String {
        let minutes = self.until_unix_s.saturating_sub(now_unix_s).div_ceil(60);
        let (hours, minutes, reason) = (minutes / 60, minutes % 60, &self.reason);
        format!(
            "in quarantine for another {hours} h {minutes} min: {reason}; `exo devices --retry` ends that"
        )
    }

    /// Whether it binds. A clock that was set back by a little does not end it; one that was far ahead when
    /// it began does not make it last for years.
    fn is_in_force(&self, now_unix_s: u64) -> bool {
        let longest = now_unix_s.saturating_add(QUARANTINE_S + CLOCK_STEP_MAX_S);
        now_unix_s < self.until_unix_s && self.until_unix_s <= longest
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Device {
    #[serde(flatten)]
    identity: Identity,
    seen_unix_s: u64,
    backends: BTreeMap<String, BackendRecord>,
}

/// The registry of a data folder cannot be changed; what it holds stays as it was.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} what is known of graphics processors in {}", .folder.display())]
pub struct RegistryError {
    what: &'static str,
    folder: PathBuf,
    source: io::Error,
}

impl RegistryError {
    /// Whether somebody else did not let us for too long.
    pub fn is_late(&self) -> bool {
        self.source.kind() == io::ErrorKind::TimedOut
    }
}

/// The file, read.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Registry {
    devices: BTreeMap<String, Device>,
    /// Those that did not answer, by source.
    drivers: BTreeMap<String, Driver>,
}

impl Registry {
    /// Changes the registry of a data folder, in turn with every other process, and says what `change` does
    /// and what else there is to say: one that is damaged is moved aside first. Nothing is written if nothing
    /// changed; on an error the file is as it was. Waits at most 2 s for its turn.
    pub fn change<T>(
        folder: &Path,
        change: impl FnOnce(&mut Self) -> T,
    ) -> Result<(T, Option<String>), RegistryError> {
        let _turn = file::lock(folder, file::LOCK_NAME, file::LOCK_WAIT_MAX)?;
        let (before, warning) = match file::read(folder) {
            Ok(registry) => (registry, None),
            Err(ReadError::Damaged(damage)) => (Self::default(), Some(file::move_aside(folder, &damage))),
            Err(ReadError::Unread(source)) => {
                return Err(RegistryError { what: "read", folder: folder.to_owned(), source });
            }
        };
        let mut registry = before.clone();
        let value = change(&mut registry);
        if registry != before {
            file::write(folder, registry).map_err(|source| RegistryError {
                what: "write",
                folder: folder.to_owned(),
                source,
            })?;
        }
        Ok((value, warning))
    }

    /// Waits for our turn to try what is new in a data folder, so that a card is tried by one process at a
    /// time. Whoever has waited looks at the registry again.
    pub fn trial_turn(folder: &Path, wait_max: Duration) -> Result<RegistryLock, RegistryError> {
        file::lock(folder, file::TRIAL_LOCK_NAME, wait_max)
    }

    /// Waits for our turn to measure what the processes of this machine share: nodes of one machine have data
    /// folders of their own, so it is that of the folder for temporary files. An error when it is not our
    /// turn in time: whoever measures then finds what the others leave. No turn where the system has none.
    pub fn measuring_turn() -> Result<Option<RegistryLock>, RegistryError> {
        match file::lock_folder(&std::env::temp_dir(), MEASURING_WAIT_MAX) {
            Ok(turn) => Ok(Some(turn)),
            Err(error) if error.is_late() => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Reads it and touches nothing: for a process that only looks. One that cannot be read holds nothing.
    pub fn look(folder: &Path) -> Self {
        file::read(folder).unwrap_or_default()
    }

    /// As [`Registry::look`]; `None` if the system does not let it be read now.
    pub fn try_look(folder: &Path) -> Option<Self> {
        match file::read(folder) {
            Err(ReadError::Unread(_)) => None,
            read => Some(read.unwrap_or_default()),
        }
    }

    /// What was measured with the same backend and driver.
    pub fn calibration(&self, card: &Identity, backend: &str, driver: &str) -> Option<Calibration> {
        let BackendRecord { read_bytes_per_s, flops_per_s, layer, is_of_cache, measured, .. } =
            self.current(card, backend, driver)?;
        let (read_bytes_per_s, flops_per_s) = (read_bytes_per_s?, flops_per_s?);
        Some(Calibration { layer, is_of_cache, measured, ..Calibration::of(read_bytes_per_s, flops_per_s) })
    }

    /// The same of other types of weights.
    pub fn types(&self, card: &Identity, backend: &str, driver: &str) -> BTreeMap<DType, KnownType> {
        self.current(card, backend, driver).unwrap_or_default().by_type
    }

    /// Keeps what was measured with some types of weights beside what is known of the others; the last good
    /// value where it is none.
    pub fn note_types(
        &mut self,
        card: &Identity,
        backend: &str,
        driver: &str,
        types: &BTreeMap<DType, KnownType>,
        now_unix_s: u64,
    ) {
        let mut known = self.current(card, backend, driver).unwrap_or_default();
        driver.clone_into(&mut known.driver);
        known.by_type.extend(types.iter().filter(|(_, rates)| rates.is_plausible()));
        self.note(card, backend, known, now_unix_s);
    }

    /// All that is known of a card through a backend.
    pub fn known(&self, card: &Identity, backend: &str) -> Option<&BackendRecord> {
        self.devices.get(&card.key())?.backends.get(backend)
    }

    /// All that is known with the same driver, without measurements that mean something else than ours.
    fn current(&self, card: &Identity, backend: &str, driver: &str) -> Option<BackendRecord> {
        let mut known = self.known(card, backend).filter(|known| known.driver == clip(driver))?.clone();
        if known.calibration_version != CALIBRATION_VERSION {
            (known.read_bytes_per_s, known.flops_per_s, known.layer) = (None, None, None);
            (known.is_of_cache, known.measured) = (false, None);
            known.by_type.clear();
        }
        Some(known)
    }

    /// Why a card is not used with a backend and driver at this time, if it is not.
    pub fn quarantine(
        &self,
        card: &Identity,
        backend: &str,
        driver: &str,
        now_unix_s: u64,
    ) -> Option<&Quarantine> {
        let known = self.known(card, backend).filter(|known| known.driver == clip(driver))?;
        known.quarantine.as_ref().filter(|quarantine| quarantine.is_in_force(now_unix_s))
    }

    /// What came of a trial with the same backend and driver, as long as it counts for this version of exo.
    pub fn trial(
        &self,
        card: &Identity,
        backend: &str,
        driver: &str,
        version: &str,
        now_unix_s: u64,
    ) -> Option<&Trial> {
        let known = self.known(card, backend).filter(|known| known.driver == clip(driver))?;
        known.trial.as_ref().filter(|trial| trial.counts(version, now_unix_s))
    }

    /// From now on nodes do not use a card with a backend and driver.
    pub fn set_quarantine(&mut self, card: &Identity, backend: &str, driver: &str, quarantine: Quarantine) {
        let known = BackendRecord {
            driver: driver.to_owned(),
            trouble: Some(quarantine.reason.clone()),
            ..BackendRecord::default()
        };
        let since = quarantine.since_unix_s;
        self.note(card, backend, known, since);
        if let Some(known) = self.entry(card, backend) {
            known.quarantine = Some(quarantine);
        }
    }

    /// Ends the quarantine of a card with a backend; whether there was one.
    pub fn release(&mut self, card: &Identity, backend: &str) -> bool {
        self.entry(card, backend).is_some_and(|known| known.quarantine.take().is_some())
    }

    /// Notes that a card was opened and computed a known sum.
    pub fn verified(&mut self, card: &Identity, backend: &str, driver: &str, now_unix_s: u64) {
        let mut known = self.current(card, backend, driver).unwrap_or_default();
        driver.clone_into(&mut known.driver);
        known.verified_unix_s = Some(now_unix_s);
        known.trouble = None;
        self.note(card, backend, known, now_unix_s);
    }

    fn entry(&mut self, card: &Identity, backend: &str) -> Option<&mut BackendRecord> {
        self.devices.get_mut(&card.key())?.backends.get_mut(backend)
    }

    /// Keeps what opening a card showed now. After a failure the measurements of the same driver stay; a
    /// quarantine always does.
    pub fn note(&mut self, card: &Identity, backend: &str, mut known: BackendRecord, now_unix_s: u64) {
        known.driver = clip(&known.driver);
        known.trouble = known.trouble.as_deref().map(clip);
        known.read_bytes_per_s = known.read_bytes_per_s.filter(|rate| is_rate(*rate));
        known.flops_per_s = known.flops_per_s.filter(|rate| is_rate(*rate));
        known.layer = known.layer.filter(LayerRates::is_plausible);
        known.calibration_version = CALIBRATION_VERSION;
        let before = self.current(card, backend, &known.driver);
        known.layer = known.layer.or(before.as_ref().and_then(|before| before.layer));
        if let (Some(_), Some(before)) = (&known.trouble, &before) {
            known.memory_bytes = known.memory_bytes.or(before.memory_bytes);
            known.read_bytes_per_s = known.read_bytes_per_s.or(before.read_bytes_per_s);
            known.flops_per_s = known.flops_per_s.or(before.flops_per_s);
            known.is_of_cache |= before.is_of_cache;
            known.verified_unix_s = known.verified_unix_s.or(before.verified_unix_s);
        }
        known.by_type.retain(|_, rates| rates.is_plausible());
        if let Some(before) = before {
            before.by_type.into_iter().for_each(|(dtype, rates)| {
                known.by_type.entry(dtype).or_insert(rates);
            });
            known.quarantine = known.quarantine.or(before.quarantine);
            known.trial = known.trial.or(before.trial);
            // Rates without a date are those of before, noted again.
            known.measured = known.measured.or(before.measured);
        }
        let identity = Identity { name: clip(&card.name), ..card.clone() };
        let begin = || Device { identity, seen_unix_s: now_unix_s, backends: BTreeMap::new() };
        let device = self.devices.entry(card.key()).or_insert_with(begin);
        device.seen_unix_s = now_unix_s;
        device.backends.insert(backend.to_owned(), known);
        while self.devices.len() > DEVICES_MAX {
            let oldest = self.devices.iter().min_by_key(|(_, device)| device.seen_unix_s);
            let Some(key) = oldest.map(|(key, _)| key.clone()) else { break };
            self.devices.remove(&key);
        }
    }
}

/// A measurement, from the registry or made now.
#[derive(Debug)]
pub struct CalibrationResult {
    /// What the device can do.
    pub calibration: Calibration,
    /// Whether it was known.
    pub known: bool,
    /// What there is to say about the registry.
    pub warning: Option<String>,
}

/// What is known of an open `device` with this backend and driver; measures what is not, or was measured
/// more than a day ago, and keeps in `folder` that and that the device was seen and verified. A folder that
/// is not there or cannot be written keeps nothing, which costs the next start a measurement.
pub fn calibrated(
    folder: &Path,
    card: &Identity,
    backend: &str,
    driver: &str,
    device: &dyn exo_backend::Device,
) -> Result<CalibrationResult, CalibrationError> {
    let before = Registry::look(folder).calibration(card, backend, driver);
    let (calibration, is_new) = match before {
        Some(known) if known.is_fresh() => (known, false),
        Some(known) => measured_again(card, known, device).map_or((known, false), |found| (found, true)),
        None => (calibrate(device)?, true),
    };
    let changed = Registry::change(folder, |registry| {
        registry.verified(card, backend, driver, exo_stdx::unix_s());
        if let Some(known) = registry.entry(card, backend).filter(|_| is_new) {
            known.memory_bytes = Some(device.memory().total_bytes);
            known.read_bytes_per_s = Some(calibration.read_bytes_per_s).filter(|rate| is_rate(*rate));
            known.flops_per_s = Some(calibration.flops_per_s).filter(|rate| is_rate(*rate));
            known.layer = calibration.layer.filter(LayerRates::is_plausible);
            known.is_of_cache = calibration.is_of_cache;
            known.measured = calibration.measured;
        }
    });
    let warning = match changed {
        Ok(((), warning)) => warning,
        Err(_) if !folder.is_dir() => None,
        Err(error) => {
            let (name, why) = (&card.name, &error.source);
            Some(format!("what was learnt of {name} is not kept: {error}: {why}"))
        }
    };
    Ok(CalibrationResult { calibration, known: !is_new, warning })
}

/// `None` if that fails: then what was measured before counts.
fn measured_again(
    card: &Identity,
    before: Calibration,
    device: &dyn exo_backend::Device,
) -> Option<Calibration> {
    match calibrate(device) {
        Ok(found) => Some(Calibration { layer: found.layer.or(before.layer), ..found }),
        Err(error) => {
            let card = &card.name;
            tracing::warn!(card, %error, "what was measured long ago could not be measured again: it counts");
            None
        }
    }
}

fn clip(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

fn is_rate(rate: f64) -> bool {
    rate > 0.0 && rate < RATE_MAX
}

#[cfg(test)]
mod tests;
