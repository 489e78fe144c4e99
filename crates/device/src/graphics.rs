//! Graphics processors as the system shows them, driver of ours or not.
//!
//! What each system knows is in a file of its own: reading there, and the pure functions that make sense of
//! what was read below. What Windows and macOS answer is read in files that know no system (`pnp`, `ioreg`)
//! and are tested on every one. Nothing here loads a driver.

mod advice;
#[cfg(target_os = "macos")]
mod apple;
#[cfg(any(target_os = "macos", test))]
mod ioreg;
#[cfg(target_os = "linux")]
mod linux;
mod names;
#[cfg(not(any(target_os = "linux", target_os = "macos", windows)))]
mod plain;
#[cfg(any(windows, test))]
mod pnp;
#[cfg(windows)]
mod windows;

use std::path::Path;

use exo_types::{Monitor, SupportClass};

#[cfg(target_os = "macos")]
use apple as system;
#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(any(target_os = "linux", target_os = "macos", windows)))]
use plain as system;
#[cfg(windows)]
use windows as system;

use crate::Identity;

pub use advice::{advice, driver_text};
pub use names::name_cards;

/// A card, as far as the system tells: `None` is what it does not.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct GraphicsCard {
    /// `0000:01:00.0`: what joins it to the names that graphics interfaces give. Of a processor that is on no
    /// PCI bus (in Apple's chips), its name in the system's registry of devices.
    pub pci_address: String,
    /// PCI vendor.
    pub vendor: u32,
    /// PCI device.
    pub device: u32,
    /// As people know it, where the system has a name for it.
    pub name: Option<String>,
    /// The kernel module that drives it, on Windows its service; `None` if none does.
    pub kernel_driver: Option<String>,
    /// The version of that module, where it has one of its own (NVIDIA's, modules built outside the kernel,
    /// those of Windows).
    pub driver_version: Option<String>,
    /// What keeps its driver from working, as a code of Windows' Device Manager: [`driver_text`] has the
    /// words.
    pub problem_code: Option<u32>,
    /// Its vendor's name for its generation, such as `RDNA 3 (gfx1100)`.
    pub architecture: Option<String>,
    /// Compute units, multiprocessors, or what its vendor calls them.
    pub compute_units: Option<u32>,
    /// Bytes of its own memory.
    pub memory_bytes: Option<u64>,
    /// Of these, bytes that no one held when the system was asked.
    pub memory_free_bytes: Option<u64>,
    /// Its own number.
    pub uuid: Option<String>,
}

impl GraphicsCard {
    /// Who made it.
    pub fn vendor_name(&self) -> Option<&'static str> {
        vendor_name(self.vendor)
    }

    /// The kernel's driver with its version.
    pub fn kernel_driver_text(&self) -> Option<String> {
        let version = self.driver_version.as_deref().map(|version| format!(" {version}"));
        self.kernel_driver.as_ref().map(|module| format!("{module}{}", version.unwrap_or_default()))
    }
}

/// The name behind a PCI vendor number, for the vendors of graphics processors.
pub fn vendor_name(vendor: u32) -> Option<&'static str> {
    match vendor {
        0x10de => Some("NVIDIA"),
        0x1002 => Some("AMD"),
        0x8086 => Some("Intel"),
        0x106b => Some("Apple"),
        0x5143 => Some("Qualcomm"),
        0x13b5 => Some("Arm"),
        0x1010 => Some("Imagination"),
        _ => None,
    }
}

/// Backends and generations of cards on which we have run every check and measured speed (docs/platforms.md).
const RUN_BY_US: [(&str, &str); 1] = [("cuda", "Hopper")];

/// How far a graphics processor that has passed its check can be used, and why no further: the same words
/// wherever it is told.
pub fn graphics_support(
    is_software: bool,
    backend: &str,
    architecture: Option<&str>,
) -> (SupportClass, &'static str) {
    let is_known = architecture.is_some_and(|it| RUN_BY_US.contains(&(backend, it)));
    match (is_software, is_known) {
        (true, _) => (SupportClass::Partial, "a software adapter"),
        (false, true) => {
            (SupportClass::Full, "passed its check here, and every check on such a card of ours")
        }
        (false, false) => {
            (SupportClass::Experimental, "passed its check here, never run on such a card by us")
        }
    }
}

/// The cards of the system below `root` (`/`, or a fixture), by address; virtual displays of hypervisors are
/// left out, for they compute nothing.
pub fn graphics_cards(root: &Path) -> Vec<GraphicsCard> {
    let mut cards = on_the_bus(root);
    cards.iter_mut().for_each(system::add_memory);
    cards
}

/// The same without what has to be asked of drivers: looking wakes no card that sleeps.
pub(crate) fn on_the_bus(root: &Path) -> Vec<GraphicsCard> {
    let mut cards = system::cards(root);
    cards.sort_by(|a, b| a.pci_address.cmp(&b.pci_address));
    cards
}

/// Bytes that no one holds of the memory of the card at `pci_address`, where the kernel's driver tells
/// (amdgpu, AMD's of macOS), or that the system lets this process have of it (Windows).
pub fn memory_free_bytes(root: &Path, pci_address: &str) -> Option<u64> {
    system::memory_free_bytes(root, pci_address)
}

/// The sensors of the card at this address, where the kernel tells them outside sysfs.
pub(crate) fn system_sensors(pci_address: &str) -> Monitor {
    system::sensors(pci_address)
}

/// The address of the graphics processor that macOS has under this number in its registry of devices: Metal
/// tells no other.
pub fn registered_address(registry_id: u64) -> Option<String> {
    system::registered_address(registry_id)
}

/// The one at this address.
pub fn find_card<'a>(cards: &'a [GraphicsCard], pci_address: Option<&str>) -> Option<&'a GraphicsCard> {
    cards.iter().find(|card| Some(card.pci_address.as_str()) == pci_address)
}

/// Who a card is that a driver shows: what the system knows of it added. `device` is 0 where the driver does
/// not tell.
pub fn identity(
    name: &str,
    vendor: u32,
    device: u32,
    pci_address: Option<&str>,
    cards: &[GraphicsCard],
) -> Identity {
    let card = find_card(cards, pci_address);
    Identity {
        name: name.to_owned(),
        vendor,
        device: card.map_or(device, |card| card.device),
        pci_address: pci_address.map(str::to_owned),
        uuid: card.and_then(|card| card.uuid.clone()),
    }
}
