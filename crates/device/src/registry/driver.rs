//! Drivers that did not answer: asking one again costs every start its bound.

use serde::{Deserialize, Serialize};

use super::file::Damage;
use super::{Quarantine, REASON_CHARS_MAX, Registry};

/// Backends that are kept.
const DRIVERS_MAX: usize = 16;

/// The driver behind a backend, which no one asks for a while.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Driver {
    pub(super) quarantine: Quarantine,
}

impl Driver {
    /// Refuses what we would not have written.
    pub(super) fn check(&self, backend: &str) -> Result<(), Damage> {
        match self.quarantine.reason.chars().count() > REASON_CHARS_MAX {
            true => Err(Damage::LongText {
                what: "the reason why the driver did not answer",
                of: backend.to_owned(),
            }),
            false => Ok(()),
        }
    }
}

impl Registry {
    /// Why the driver behind `backend` is not asked at this time, if it is not.
    pub fn driver_quarantine(&self, backend: &str, now_unix_s: u64) -> Option<&Quarantine> {
        let driver = self.drivers.get(backend)?;
        Some(&driver.quarantine).filter(|quarantine| quarantine.is_in_force(now_unix_s))
    }

    /// From now on the driver behind `backend` is not asked.
    pub fn set_driver_quarantine(&mut self, backend: &str, quarantine: Quarantine) {
        if self.drivers.len() < DRIVERS_MAX || self.drivers.contains_key(backend) {
            self.drivers.insert(backend.to_owned(), Driver { quarantine });
        }
    }

    /// The driver behind `backend` has answered.
    pub fn driver_answered(&mut self, backend: &str) {
        self.drivers.remove(backend);
    }

    /// Whether nothing is kept of any driver.
    pub fn has_no_drivers(&self) -> bool {
        self.drivers.is_empty()
    }
}
