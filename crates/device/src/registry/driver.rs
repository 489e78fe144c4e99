//! Drivers that did not answer: asking one again costs every start its bound.

use serde::{Deserialize, Serialize};

use super::{Quarantine, REASON_CHARS_MAX, Registry};
use crate::drivers::{LINE_CHARS_MAX, LINES_MAX};

/// Sources of devices that are kept.
const DRIVERS_MAX: usize = 16;

/// The driver behind a source of devices, which nobody asks for a while.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Driver {
    /// Of [`crate::driver_files`] when it was asked.
    files: Vec<String>,
    pub(super) quarantine: Quarantine,
}

impl Driver {
    /// Refuses what we would not have written.
    pub(super) fn check(&self, source: &str) -> Result<(), String> {
        let is_long = |line: &String| line.chars().count() > LINE_CHARS_MAX;
        if self.files.len() > LINES_MAX || self.files.iter().any(is_long) {
            return Err(format!("the driver of `{source}` has more or longer files than are kept"));
        }
        match self.quarantine.reason.chars().count() > REASON_CHARS_MAX {
            true => Err(format!(
                "the driver of `{source}` did not answer for a reason of more than {REASON_CHARS_MAX} letters"
            )),
            false => Ok(()),
        }
    }
}

impl Registry {
    /// Why the driver behind `source` is not asked at this time, if it is not. `files` is what
    /// [`driver_files`](crate::driver_files) gives now: another driver is asked.
    pub fn kept_off_driver(&self, source: &str, files: &[String], now_unix_s: u64) -> Option<&Quarantine> {
        let driver = self.drivers.get(source).filter(|driver| driver.files == files)?;
        Some(&driver.quarantine).filter(|quarantine| quarantine.is_in_force(now_unix_s))
    }

    /// From now on the driver behind `source` is not asked.
    pub fn keep_off_driver(&mut self, source: &str, files: Vec<String>, quarantine: Quarantine) {
        if self.drivers.len() < DRIVERS_MAX || self.drivers.contains_key(source) {
            self.drivers.insert(source.to_owned(), Driver { files, quarantine });
        }
    }

    /// The driver behind `source` has answered.
    pub fn driver_answered(&mut self, source: &str) {
        self.drivers.remove(source);
    }

    /// Whether nothing is kept of any driver.
    pub fn has_no_drivers(&self) -> bool {
        self.drivers.is_empty()
    }
}
