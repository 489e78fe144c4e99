//! Which driver stands behind a source of devices, as of when: the files that asking the source would load.
//!
//! Nothing is loaded here. A driver that cannot be asked has no version to tell; another version of it has other files.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod plain;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
use plain as system;

use crate::graphics_cards;

/// Lines that are kept of one source.
pub(crate) const LINES_MAX: usize = 64;
/// Of one.
pub(crate) const LINE_CHARS_MAX: usize = 300;

/// Troubles that are told: the first of them are enough to begin with.
const TROUBLES_MAX: usize = 4;

/// The value of an environment variable.
pub type Setting<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// What chooses a driver: environment variables, and files.
#[derive(Default)]
struct Parts {
    settings: Vec<&'static str>,
    files: Vec<PathBuf>,
}

/// The driver behind `source` (`cuda`, `hip`, or a graphics interface), in lines to compare: files with their size and the time
/// they were changed, environment variables that choose among them, the kernel modules of the cards. `root` is `/`, or a
/// fixture.
pub fn driver_files(root: &Path, source: &str, setting: Setting<'_>) -> Vec<String> {
    let Parts { settings, files } = system::parts(root, source, setting);
    let mut lines: Vec<String> = files.iter().filter_map(|path| file_line(path)).collect();
    lines.sort();
    // Settings and cards count, however many files there are.
    lines.truncate(LINES_MAX / 2);
    let set = settings.into_iter().filter_map(|name| Some((name, setting(name)?)));
    lines.extend(set.map(|(name, value)| format!("{name}={}", value.display())));
    lines.extend(graphics_cards(root).into_iter().map(|card| {
        let (module, version) = (card.kernel_driver.as_deref(), card.driver_version.as_deref());
        format!("{} {} {}", card.pci_address, module.unwrap_or("-"), version.unwrap_or("-"))
    }));
    lines.iter_mut().for_each(|line| *line = line.chars().take(LINE_CHARS_MAX).collect());
    lines.sort();
    lines.dedup();
    lines.truncate(LINES_MAX);
    lines
}

/// What is wrong with the descriptions by which the loader of an interface finds its drivers, for people: files that are not
/// there, or name a library that is not. Where nothing is, drivers may be broken all the same.
pub fn driver_troubles(root: &Path, source: &str, setting: Setting<'_>) -> Vec<String> {
    let mut troubles = system::troubles(root, source, setting);
    troubles.sort();
    troubles.dedup();
    troubles.truncate(TROUBLES_MAX);
    troubles
}

/// `None` if it is not there.
fn file_line(path: &Path) -> Option<String> {
    // A driver's name is often a link to the file of one version.
    let path = fs::canonicalize(path).ok()?;
    let about = fs::metadata(&path).ok()?;
    let changed = about.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    Some(format!("{} of {} bytes, changed at {} ns", path.display(), about.len(), changed.as_nanos()))
}
