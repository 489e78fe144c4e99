//! What asking the drivers showed, kept for the next start.

use std::path::Path;

use exo_device::{Known, Registry};

use super::probe::{Found, Outcome};
use crate::ui;

/// Notes every device that a driver showed in the registry of the data folder. What goes wrong is a warning: the next start
/// measures again.
pub fn all(data_dir: &Path, outcomes: &[Outcome]) {
    let found: Vec<_> = outcomes.iter().flat_map(|outcome| outcome.found.iter().flatten()).collect();
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
    Known {
        driver: found.driver.clone(),
        memory_bytes: found.memory_bytes,
        read_bytes_per_s: found.read_bytes_per_s,
        flops_per_s: found.flops_per_s,
        verified_unix_s: found.trouble.is_none().then_some(now_unix_s),
        trouble: found.trouble.clone(),
        quarantine: None,
    }
}
