//! The registry on disk.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{DEVICES_MAX, Device, REASON_CHARS_MAX, TEXT_CHARS_MAX, is_rate};

const NAME: &str = "gpu_registry.json";
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
}

/// What the file holds, nothing if there is none; the text says what is wrong with it.
pub(super) fn read(folder: &Path) -> Result<BTreeMap<String, Device>, String> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let file = match File::open(folder.join(NAME)) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(BTreeMap::new());
        }
        Err(error) => return Err(error.to_string()),
    };
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(format!("it has more than {BYTES_MAX} bytes"));
    }
    let Version { version } = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    if version != VERSION {
        return Err(format!("it is of version {version}, this exo writes version {VERSION}"));
    }
    let contents: Contents = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    check(&contents.devices)?;
    Ok(contents.devices)
}

/// Refuses what we would not have written.
fn check(devices: &BTreeMap<String, Device>) -> Result<(), String> {
    if devices.len() > DEVICES_MAX {
        return Err(format!("it lists {} devices, at most {DEVICES_MAX} are kept", devices.len()));
    }
    for (key, device) in devices {
        if *key != device.identity.key() {
            return Err(format!("the device under `{key}` is `{}`", device.identity.key()));
        }
        for known in device.backends.values() {
            let rates = [known.read_bytes_per_s, known.flops_per_s];
            if let Some(rate) = rates.into_iter().flatten().find(|rate| !is_rate(*rate)) {
                return Err(format!("`{key}` has a rate of {rate} per second"));
            }
            let reason = known.quarantine.as_ref().map_or("", |quarantine| &quarantine.reason);
            if reason.chars().count() > REASON_CHARS_MAX {
                return Err(format!(
                    "the quarantine of `{key}` has a reason of more than {REASON_CHARS_MAX} letters"
                ));
            }
            if known.driver.chars().count() > TEXT_CHARS_MAX {
                return Err(format!(
                    "the driver of `{key}` has a name of more than {TEXT_CHARS_MAX} letters"
                ));
            }
        }
    }
    Ok(())
}

/// Gives a damaged file another name, the last such one if all are taken, and says what was done.
pub(super) fn move_aside(folder: &Path, damage: &str) -> String {
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

/// Writes a neighbour and renames it.
pub(super) fn write(folder: &Path, devices: &BTreeMap<String, Device>) -> io::Result<()> {
    let contents = Contents { version: VERSION, devices: devices.clone() };
    let bytes = serde_json::to_vec_pretty(&contents)?;
    let neighbour = folder.join(format!("{NAME}.new-{}", std::process::id()));
    let written = write_whole(&neighbour, &bytes).and_then(|()| fs::rename(&neighbour, folder.join(NAME)));
    if written.is_err() {
        let _ = fs::remove_file(&neighbour);
    }
    written
}

fn write_whole(path: &PathBuf, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(true).write(true);
    for_owner_only(&mut options);
    let mut file = options.open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Serial numbers of cards are nobody else's business.
#[cfg(unix)]
fn for_owner_only(options: &mut OpenOptions) {
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
}

#[cfg(not(unix))]
fn for_owner_only(_options: &mut OpenOptions) {}
