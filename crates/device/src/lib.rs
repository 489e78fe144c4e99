//! What this machine has: processor, memory, graphics cards, mains power; and which of its cores are used.
//!
//! Everything is read from the system at the moment of the call; what was costly to measure of a graphics
//! processor is kept in a [`Registry`] in the data folder. A source that is missing is `None`, never a guess.
//!
//! **Architecture invariant:** opens no device and runs no model; it measures through the contract it is
//! handed.
//!
//! Start reading at [`probe`].

#![deny(unsafe_code)] // allowed in the two files that call Windows and macOS

mod affinity;
mod architecture;
mod calibrate;
mod descriptors;
mod drivers;
mod folders;
mod graphics;
mod memory;
mod power;
mod processor;
mod registry;
mod sensors;
mod sustained;
mod verify;
mod watch;

use std::path::{Path, PathBuf};

use exo_types::{DeviceFacts, DeviceId, DeviceKind, MemoryDomain, SupportClass};

pub use affinity::{BadCoreList, ConfineError, CoreList};
pub use architecture::{amd_architecture, nvidia_architecture};
pub use calibrate::{Calibration, CalibrationError, MeasuredAt, calibrate, calibrate_type};
pub use descriptors::{Descriptors, descriptors};
pub use drivers::{Setting, driver_troubles};
pub use graphics::{
    GraphicsCard, advice, driver_text, find_card, graphics_cards, graphics_support, identity,
    memory_free_bytes, name_cards, registered_address, vendor_name,
};
pub use memory::{Memory, boot_id, memory};
pub use power::{battery_percent, mains_power};
pub use processor::{cores, platform, processor_name};
pub use registry::{
    BackendRecord, CALIBRATION_VERSION, CalibrationResult, Identity, KnownType, QUARANTINE_S, Quarantine,
    Registry, RegistryError, RegistryLock, Released, Trial, calibrated,
};
pub use sensors::{CardSensors, ProcessorMeter, processor_sensors, sensors};
pub use verify::{VerifyError, verify};
pub use watch::{CardChange, CardWatch};

/// Left to the rest of the machine, besides what is in use already: 1/16 of memory, at most 2 GiB.
fn default_reserve_bytes(total_bytes: u64) -> u64 {
    (total_bytes / 16).min(2 << 30)
}

/// Where to look and how much to do.
#[derive(Clone, Debug)]
pub struct ProbeOptions {
    /// Where `/proc` and `/sys` are: `/`, or a fixture.
    pub root: PathBuf,
    /// Memory never offered to models; `None` for a sixteenth of it, at most 2 GiB.
    pub reserve_bytes: Option<u64>,
}

impl Default for ProbeOptions {
    fn default() -> Self {
        Self { root: PathBuf::from("/"), reserve_bytes: None }
    }
}

/// The processor as a device. `backend` is `cpu`: whoever opens it adds the instruction set.
pub fn probe(options: &ProbeOptions) -> DeviceFacts {
    let memory = memory(&options.root);
    let total = memory.map_or(0, |m| m.total_bytes);
    let reserve = options.reserve_bytes.unwrap_or_else(|| default_reserve_bytes(total));
    let cores = cores();
    let (support, support_reason) = match memory {
        Some(_) => (SupportClass::Full, String::new()),
        None => (SupportClass::Partial, "the system does not say how much memory it has".to_owned()),
    };
    let name = processor_name(&options.root).unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    DeviceFacts {
        memory_free_bytes: memory.map_or(0, |m| m.available_bytes).saturating_sub(reserve),
        compute_units: cores as u32,
        support,
        support_reason,
        ..DeviceFacts::unmeasured(
            DeviceId::cpu(),
            DeviceKind::Cpu,
            &name,
            "cpu",
            total.saturating_sub(reserve),
        )
    }
}

/// The memory of the machine, also what this process may not use of it. `boot` is its [`boot_id`]; `root` is
/// where `/proc` is.
pub fn memory_domain(boot: &str, root: &Path) -> Option<MemoryDomain> {
    let memory = memory::of_machine(root)?;
    // Containers may be shown memory of their own beside the host's boot: then it is another one.
    let name = format!("{} {}", boot.trim(), memory.total_bytes);
    Some(MemoryDomain::of(name.as_bytes(), memory.available_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory_cores_and_a_name() {
        let facts = probe(&ProbeOptions::default());
        assert!(facts.memory_total_bytes > 64 << 20, "{facts:?}");
        assert!(facts.memory_free_bytes <= facts.memory_total_bytes);
        assert!(facts.compute_units >= 1);
        assert!(!facts.name.is_empty());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn an_empty_root_is_partial_support_and_not_a_guess() {
        let empty = tempfile::tempdir().unwrap();
        let facts = probe(&ProbeOptions { root: empty.path().to_owned(), ..ProbeOptions::default() });
        assert_eq!(facts.memory_total_bytes, 0);
        assert_eq!(facts.support, SupportClass::Partial);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_shares_the_memory_is_known_by_the_start_of_the_system() {
        let machine = |boot: &str| {
            let root = tempfile::tempdir().unwrap();
            let folder = root.path().join("proc/sys/kernel/random");
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("boot_id"), boot).unwrap();
            std::fs::write(root.path().join("proc/meminfo"), "MemTotal: 4096 kB\nMemAvailable: 1024 kB\n")
                .unwrap();
            memory_domain(&boot_id(root.path()).unwrap(), root.path()).unwrap()
        };
        let (one, same, other) = (machine("1b4e28ba\n"), machine("1b4e28ba\n"), machine("6fa459ea\n"));
        assert_eq!((one, one.free_bytes), (same, 1024 << 10));
        assert_ne!(one.id, other.id);
        let of = |cluster: u8| one.within(&[cluster; 32]).id;
        assert!(of(1) == of(1) && of(1) != of(2) && of(1) != one.id, "other clusters know it by another id");
    }

    #[test]
    fn a_reserve_is_not_offered() {
        let all = probe(&ProbeOptions { reserve_bytes: Some(0), ..ProbeOptions::default() });
        let less = probe(&ProbeOptions { reserve_bytes: Some(1 << 20), ..ProbeOptions::default() });
        assert_eq!(all.memory_total_bytes - less.memory_total_bytes, 1 << 20);
    }
}
