//! The registry on disk.

#[cfg(not(unix))]
mod plain;
#[cfg(unix)]
mod unix;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

#[cfg(not(unix))]
use plain as system;
#[cfg(unix)]
use unix as system;

use super::{
    DEVICES_MAX, Device, Driver, KnownType, REASON_CHARS_MAX, Registry, RegistryError, TEXT_CHARS_MAX,
    is_rate,
};

const NAME: &str = "gpu_registry.json";
/// Beside the registry, which is replaced as a whole and so cannot be locked itself.
pub(super) const LOCK_NAME: &str = "gpu_registry.lock";
/// Of whoever tries what is new: two that try a card at once get in each other's way.
pub(super) const TRIAL_LOCK_NAME: &str = "gpu_trial.lock";
/// A change takes milliseconds.
pub(super) const LOCK_WAIT_MAX: Duration = Duration::from_secs(2);
const LOCK_STEP: Duration = Duration::from_millis(5);
/// Of this layout; another is not read.
const VERSION: u32 = 1;
/// Sixty-four cards with long names need a tenth of it.
const BYTES_MAX: u64 = 1 << 20;
/// Damaged files that are kept for whoever wants to know.
const ASIDE_MAX: u32 = 5;

#[derive(Serialize, Deserialize)]
struct Contents {
    version: u32,
    devices: BTreeMap<String, Device>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    drivers: BTreeMap<String, Driver>,
}

/// Why the file gives nothing.
#[derive(Debug)]
pub(super) enum ReadError {
    /// The system did not let us (no file handles left, no right to). What it holds may be good.
    Unread(io::Error),
    /// What it holds is not what we write.
    Damaged(Damage),
}

/// Why the file is not one that we have written.
#[derive(Debug, thiserror::Error)]
pub(super) enum Damage {
    #[error("it has more than {BYTES_MAX} bytes")]
    Long,
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("it is of version {version}, this exo writes version {VERSION}")]
    OtherVersion { version: u32 },
    #[error("it lists {devices} devices, at most {DEVICES_MAX} are kept")]
    ManyDevices { devices: usize },
    #[error("the device under `{key}` is `{is}`")]
    OtherKey { key: String, is: String },
    #[error("`{key}` has a rate of {rate} per second")]
    Rate { key: String, rate: f64 },
    #[error("`{key}` has rates of a layer that no device has")]
    LayerRates { key: String },
    #[error("{what} of `{of}` has more letters than are kept")]
    LongText { what: &'static str, of: String },
}

/// No one else changes the registry of a folder, or tries what is new for it, until this is dropped.
#[derive(Debug)]
pub struct RegistryLock {
    _file: File,
}

/// Waits for our turn at the lock of this name; as everything here it blocks the thread.
pub(super) fn lock(folder: &Path, name: &str, wait_max: Duration) -> Result<RegistryLock, RegistryError> {
    let failed = |source| RegistryError { what: "lock", folder: folder.to_owned(), source };
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true);
    let file = exo_stdx::for_owner_only(&mut options).open(folder.join(name)).map_err(failed)?;
    take_turn(file, folder, name, wait_max)
}

/// The same at a folder itself, in which nothing is left; where the system opens folders.
pub(super) fn lock_folder(folder: &Path, wait_max: Duration) -> Result<RegistryLock, RegistryError> {
    let failed = |source| RegistryError { what: "lock", folder: folder.to_owned(), source };
    take_turn(File::open(folder).map_err(failed)?, folder, "the folder", wait_max)
}

#[allow(
    clippy::disallowed_methods,
    reason = "files have no lock with a deadline, and no caller is on an executor but a command"
)]
fn take_turn(
    file: File,
    folder: &Path,
    name: &str,
    wait_max: Duration,
) -> Result<RegistryLock, RegistryError> {
    let failed = |source| RegistryError { what: "lock", folder: folder.to_owned(), source };
    let began = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(RegistryLock { _file: file }),
            // A file system without locks: writes are whole, so at worst what another process learnt just now
            // is lost.
            Err(TryLockError::Error(error)) if system::is_without_locks(&error) => {
                return Ok(RegistryLock { _file: file });
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
            Err(TryLockError::WouldBlock) if began.elapsed() >= wait_max => {
                let text = format!("another process has held {name} for {} s", wait_max.as_secs());
                return Err(failed(io::Error::new(io::ErrorKind::TimedOut, text)));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_STEP),
        }
    }
}

/// What the file holds, nothing if there is none.
pub(super) fn read(folder: &Path) -> Result<Registry, ReadError> {
    let file = match File::open(folder.join(NAME)) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Registry::default());
        }
        Err(error) => return Err(ReadError::Unread(error)),
    };
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(ReadError::Unread)?;
    parse(&bytes).map_err(ReadError::Damaged)
}

fn parse(bytes: &[u8]) -> Result<Registry, Damage> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    if bytes.len() as u64 > BYTES_MAX {
        return Err(Damage::Long);
    }
    let Version { version } = serde_json::from_slice(bytes)?;
    if version != VERSION {
        return Err(Damage::OtherVersion { version });
    }
    let Contents { devices, drivers, .. } = serde_json::from_slice(bytes)?;
    check(&devices)?;
    drivers.iter().try_for_each(|(source, driver)| driver.check(source))?;
    Ok(Registry { devices, drivers })
}

/// Refuses what we would not have written.
fn check(devices: &BTreeMap<String, Device>) -> Result<(), Damage> {
    if devices.len() > DEVICES_MAX {
        return Err(Damage::ManyDevices { devices: devices.len() });
    }
    for (key, device) in devices {
        if *key != device.identity.key() {
            return Err(Damage::OtherKey { key: key.clone(), is: device.identity.key() });
        }
        for known in device.backends.values() {
            let rates = [known.read_bytes_per_s, known.flops_per_s].into_iter().flatten();
            let of_type = |of: &KnownType| {
                [of.read_bytes_per_s, of.flops_per_s].into_iter().chain(of.read_16_rows_bytes_per_s)
            };
            let typed = known.by_type.values().flat_map(of_type);
            if let Some(rate) = rates.chain(typed).find(|rate| !is_rate(*rate)) {
                return Err(Damage::Rate { key: key.clone(), rate });
            }
            if known.layer.as_ref().is_some_and(|rates| !rates.is_plausible()) {
                return Err(Damage::LayerRates { key: key.clone() });
            }
            let reason = known.quarantine.as_ref().map_or("", |quarantine| &quarantine.reason);
            let failed = known.trial.as_ref().and_then(|trial| trial.failed.as_deref()).unwrap_or_default();
            for (text, what, chars_max) in [
                (reason, "the reason for the quarantine", REASON_CHARS_MAX),
                (failed, "the reason for the failed trial", REASON_CHARS_MAX),
                (&known.driver, "the driver", TEXT_CHARS_MAX),
            ] {
                if text.chars().count() > chars_max {
                    return Err(Damage::LongText { what, of: key.clone() });
                }
            }
        }
    }
    Ok(())
}

/// Gives a damaged file another name, the last such one if all are taken, and says what was done.
pub(super) fn move_aside(folder: &Path, damage: &Damage) -> String {
    let path = folder.join(NAME);
    let aside = |n: u32| folder.join(format!("{NAME}.bad-{n}"));
    let free = (1..ASIDE_MAX).map(aside).find(|path| !path.exists()).unwrap_or_else(|| aside(ASIDE_MAX));
    let what =
        format!("what was known of graphics processors cannot be read from {} ({damage})", path.display());
    match fs::rename(&path, &free) {
        Ok(()) => format!("{what}: moved to {} and measured again", free.display()),
        Err(error) => format!("{what}, nor moved aside ({error}): measured again"),
    }
}

/// Writes it whole.
pub(super) fn write(folder: &Path, Registry { devices, drivers }: Registry) -> io::Result<()> {
    let contents = Contents { version: VERSION, devices, drivers };
    exo_stdx::replace_for_owner(&folder.join(NAME), &serde_json::to_vec_pretty(&contents)?)
}
