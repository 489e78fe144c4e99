//! What asking the drivers showed, kept for the next start.

use std::path::Path;

use exo_device::{Known, Registry};

use super::probe::Found;
use crate::ui;

/// Notes devices that a driver showed in the registry of the data folder. What goes wrong is a warning: the next start
/// measures again.
pub fn all(data_dir: &Path, found: &[&Found]) {
    if found.is_empty() {
        return;
    }
    let now = exo_device::unix_s();
    let note = || -> anyhow::Result<Option<String>> {
        std::fs::create_dir_all(data_dir)?;
        let ((), warning) = Registry::change(data_dir, |registry| {
            // Those in quarantine were not opened.
            for found in found.iter().filter(|found| found.quarantine.is_none()) {
                registry.note(&found.identity, &found.api, known(found, now), now);
            }
        })?;
        Ok(warning)
    };
    match note() {
        Ok(warning) => warning.iter().for_each(|warning| ui::warning(warning)),
        Err(error) => ui::warning(&format!(
            "what was learnt of the graphics processors is not kept in {}: {error:#}",
            data_dir.display()
        )),
    }
}

fn known(found: &Found, now_unix_s: u64) -> Known {
    // What was only listed computed nothing.
    let is_verified = found.trouble.is_none() && found.times.check_ms > 0.0;
    Known {
        driver: found.driver.clone(),
        memory_bytes: found.memory_bytes,
        read_bytes_per_s: found.read_bytes_per_s,
        flops_per_s: found.flops_per_s,
        verified_unix_s: is_verified.then_some(now_unix_s),
        trouble: found.trouble.clone(),
        quarantine: None,
        trial: found.trial.clone(),
    }
}
