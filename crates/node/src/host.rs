//! What a node asks of the system around it, so that an app can answer differently from a server.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use exo_types::{DeviceFacts, MemoryDomain};

/// The system as a node sees it.
pub trait Host: Send + Sync + 'static {
    /// Whether the machine runs on mains power; `None` when it does not say.
    fn mains_power(&self) -> Option<bool>;

    /// The processor as a device, with memory free now. Rates are `None`, and the node measures them, unless
    /// whoever embeds it knows better.
    fn processor(&self) -> DeviceFacts;

    /// The machine's memory, which other nodes on it share. `None` where the system does not say which
    /// machine it is.
    fn memory_domain(&self) -> Option<MemoryDomain> {
        None
    }

    /// Operating system and architecture.
    fn platform(&self) -> String;

    /// Resident memory of this process, if the system says.
    fn process_bytes(&self) -> Option<u64>;

    /// The home folder of who runs this: where tokens and other programs' models are.
    fn home(&self) -> Option<PathBuf> {
        None
    }

    /// A variable of the environment: what the hub's own tools and other programs are set by.
    fn variable(&self, _name: &str) -> Option<String> {
        None
    }
}

/// An ordinary machine: Linux, Windows or macOS outside a sandbox.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemHost;

impl Host for SystemHost {
    fn mains_power(&self) -> Option<bool> {
        exo_device::mains_power(Path::new("/"))
    }

    fn processor(&self) -> DeviceFacts {
        exo_device::probe(&exo_device::ProbeOptions::default())
    }

    fn memory_domain(&self) -> Option<MemoryDomain> {
        // No process outlives the start of the system that drew it.
        static BOOT_ID: OnceLock<String> = OnceLock::new();
        let root = Path::new("/");
        let boot = if let Some(known) = BOOT_ID.get() {
            known
        } else {
            let read = exo_device::boot_id(root)?;
            BOOT_ID.get_or_init(|| read)
        };
        exo_device::memory_domain(boot, root)
    }

    fn platform(&self) -> String {
        exo_device::platform()
    }

    fn process_bytes(&self) -> Option<u64> {
        let pid = sysinfo::get_current_pid().ok()?;
        let mut system = sysinfo::System::new().ok()?;
        // Once a second: no more of it than is asked for.
        let memory = sysinfo::ProcessRefreshKind::nothing().with_memory().without_tasks();
        system.refresh_processes_specifics(sysinfo::ProcessesToUpdate::Some(&[pid]), true, memory);
        system.process(pid).map(sysinfo::Process::memory)
    }

    fn home(&self) -> Option<PathBuf> {
        std::env::home_dir()
    }

    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }
}

#[cfg(all(test, target_os = "linux"))] // which says at what start of the system a process runs
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_this_machine_is_the_same_each_time_that_it_is_asked_for() {
        let root = Path::new("/");
        let read = exo_device::memory_domain(&exo_device::boot_id(root).unwrap(), root).unwrap();
        for _ in 0..2 {
            let domain = SystemHost.memory_domain().unwrap();
            assert_eq!(domain.id, read.id);
            assert!(domain.free_bytes > 0);
        }
    }
}
