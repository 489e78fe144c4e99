//! The machine: where files go, what computes.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use exo_backend_cpu::Isa;
use exo_node::{Host, SystemHost, processor_options};

use super::Check;
use crate::config::Config;
use crate::run_node::{cpu_isa, node_config};
use crate::ui;

/// Less than this left on the disk and a fetched model will not fit.
const DISK_FREE_LOW_BYTES: u64 = 2 << 30;

/// A first start writes this much: the built-in model, keys and the journal.
const START_BYTES: usize = 8 << 20;

/// Whether the data folder can be written.
pub(super) fn data_folder(config: &Config, in_use_by_us: bool) -> Check {
    const NAME: &str = "data folder";
    let path = config.data_dir();
    if in_use_by_us {
        return Check::ok(NAME, format!("{}, in use by the running node", path.display()));
    }
    let existing = existing_part(&path);
    if !existing.is_dir() {
        return Check::broken(NAME, format!("{} is not a folder", existing.display()))
            .next("give --data-dir another place");
    }
    let written = tempfile::Builder::new().prefix(".exo-doctor-").tempfile_in(&existing);
    match written.and_then(|mut file| file.write_all(&vec![0; START_BYTES])) {
        Ok(()) if path.exists() => Check::ok(NAME, format!("{} can be written", path.display())),
        Ok(()) => Check::ok(NAME, format!("{} will be made when a node starts", path.display())),
        Err(error) if error.kind() == io::ErrorKind::StorageFull => {
            Check::broken(NAME, format!("{} has no room left for a start: {error}", existing.display()))
                .next("free 8 MiB there, or give --data-dir another place")
        }
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            Check::broken(NAME, format!("the disk of {} is read-only", existing.display()))
                .next("mount it so that it can be written, or give --data-dir another folder")
        }
        Err(error) => Check::broken(NAME, format!("{} cannot be written: {error}", existing.display()))
            .next("check who owns it, or give --data-dir a folder of your own"),
    }
}

/// The longest leading part of `path` that exists.
fn existing_part(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    absolute.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/")).to_owned()
}

/// Room for fetched models.
pub(super) fn disk(config: &Config) -> Option<Check> {
    let free = exo_stdx::free_bytes(&existing_part(&config.data_dir()))?;
    let found = format!("{} free for models fetched from other nodes", ui::bytes(free));
    Some(match free {
        0..DISK_FREE_LOW_BYTES => {
            Check::warning("disk", found).next("free some space, or give --data-dir a folder on another disk")
        }
        _ => Check::ok("disk", found),
    })
}

/// What computes.
pub(super) fn processor(config: &Config) -> Check {
    let facts = SystemHost.processor();
    let isa = match cpu_isa(config) {
        Ok(isa) => isa.unwrap_or_else(Isa::best),
        Err(error) => return Check::broken("processor", format!("{error:#}")).next("set cpu_isa to auto"),
    };
    let cores = facts.compute_units;
    let threads = match config.threads() {
        Ok(Some(threads)) => format!("{threads} threads as set, {cores} cores"),
        Ok(None) => format!("{cores} cores"),
        Err(error) => {
            return Check::broken("processor", error.to_string()).next("correct it, or take the setting out");
        }
    };
    let settings = node_config(config).ok();
    let known = settings.and_then(|s| exo_accelerators::known_rates(&s.data_dir, &processor_options(&s)));
    let speed =
        known.map_or(String::new(), |known| format!(", reads {:.1} GB/s", known.read_bytes_per_s / 1e9));
    let found = format!("{} · {threads} · instructions {}{speed}", facts.name, isa.name());
    match isa {
        missing if !missing.is_available() => {
            Check::broken("processor", found).next("this processor lacks them: set cpu_isa to auto")
        }
        Isa::Scalar => Check::warning("processor", found)
            .next("slow: this version has fast kernels for AVX2, AVX-512 and NEON with dot product"),
        _ => Check::ok("processor", found),
    }
}

/// Whether weights can be read from large pages. Tries it.
pub(super) fn large_pages() -> Option<Check> {
    const NAME: &str = "large pages";
    Some(match exo_backend_cpu::large_pages()? {
        true => Check::ok(NAME, "weights and caches lie in pages of 2 MiB"),
        false => {
            Check::warning(NAME, "the system gives pages of 4 KiB only: models answer up to a quarter slower")
                .next("as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
        }
    })
}

/// Room for models in memory.
pub(super) fn memory(config: &Config) -> Check {
    let facts = SystemHost.processor();
    if facts.memory_total_bytes == 0 {
        return Check::broken("memory", "the system does not say how much memory there is")
            .next("say how much models may take with --memory-mib");
    }
    let found = format!("{} free for models", ui::bytes(facts.memory_free_bytes));
    match config.memory_max_bytes() {
        Ok(None) => Check::ok("memory", found),
        Ok(Some(limit)) => Check::ok("memory", format!("{found}, at most {} as set", ui::bytes(limit))),
        Err(error) => Check::broken("memory", error.to_string()).next("correct it, or take the setting out"),
    }
}
