//! Whether the descriptions by which an interface finds its drivers lead anywhere. Nothing is loaded here.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod plain;

use std::ffi::OsString;
use std::path::Path;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
use plain as system;

/// Troubles that are told: the first of them are enough to begin with.
const TROUBLES_MAX: usize = 4;

/// The value of an environment variable.
pub type Setting<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// What is wrong with the descriptions by which the loader of an interface finds its drivers, to be
/// displayed: files that are not there, or name a library that is not. Where nothing is, drivers may be
/// broken all the same.
pub fn driver_troubles(root: &Path, source: &str, setting: Setting<'_>) -> Vec<String> {
    let mut troubles = system::troubles(root, source, setting);
    troubles.sort();
    troubles.dedup();
    troubles.truncate(TROUBLES_MAX);
    troubles
}
