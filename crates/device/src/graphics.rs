//! Graphics processors as the system shows them, driver of ours or not.
//!
//! What each system knows is in a file of its own: reading there, and the pure functions that make sense of what was read
//! below. Nothing here loads a driver.

#[cfg(target_os = "linux")]
mod linux;
mod names;
#[cfg(not(target_os = "linux"))]
mod plain;

use std::path::Path;

use exo_types::SupportClass;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
use plain as system;

use crate::Identity;

pub use names::name_cards;

/// A card, as far as the system tells: `None` is what it does not.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct GraphicsCard {
    /// `0000:01:00.0`: what joins it to the names that graphics interfaces give.
    pub pci_address: String,
    /// PCI vendor.
    pub vendor: u32,
    /// PCI device.
    pub device: u32,
    /// As people know it, where the system has a name for it.
    pub name: Option<String>,
    /// The kernel module that drives it; `None` if none does.
    pub kernel_driver: Option<String>,
    /// The version of that module, where it has one of its own (NVIDIA's, modules built outside the kernel).
    pub driver_version: Option<String>,
    /// Its maker's name for its generation, such as `RDNA 3 (gfx1100)`.
    pub architecture: Option<String>,
    /// Compute units, multiprocessors, or what its maker calls them.
    pub compute_units: Option<u32>,
    /// Bytes of its own memory.
    pub memory_bytes: Option<u64>,
    /// Of these, bytes that nobody held when the system was asked.
    pub memory_free_bytes: Option<u64>,
    /// Its own number.
    pub uuid: Option<String>,
}

impl GraphicsCard {
    /// Who made it.
    pub fn maker(&self) -> Option<&'static str> {
        maker(self.vendor)
    }

    /// The kernel's driver with its version.
    pub fn kernel_driver_text(&self) -> Option<String> {
        let version = self.driver_version.as_deref().map(|version| format!(" {version}"));
        self.kernel_driver.as_ref().map(|module| format!("{module}{}", version.unwrap_or_default()))
    }
}

/// The name behind a PCI vendor number, for the makers of graphics processors.
pub fn maker(vendor: u32) -> Option<&'static str> {
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

/// How far a graphics processor that has passed its check can be used, and why no further: the same words wherever it is told.
pub fn graphics_support(is_software: bool) -> (SupportClass, &'static str) {
    match is_software {
        true => (SupportClass::Partial, "the processor playing a graphics card"),
        false => (SupportClass::Experimental, "passed its check here, never run on such a card by us"),
    }
}

/// The cards of the system below `root` (`/`, or a fixture), by address; virtual displays of hypervisors are left out, for they
/// compute nothing.
pub fn graphics_cards(root: &Path) -> Vec<GraphicsCard> {
    let mut cards = system::cards(root);
    cards.sort_by(|a, b| a.pci_address.cmp(&b.pci_address));
    cards
}

/// Bytes that nobody holds of the memory of the card at `pci_address`, where the kernel's driver tells (amdgpu).
pub fn memory_free_bytes(root: &Path, pci_address: &str) -> Option<u64> {
    system::memory_free_bytes(root, pci_address)
}

/// The one at this address.
pub fn find_card<'a>(cards: &'a [GraphicsCard], pci_address: Option<&str>) -> Option<&'a GraphicsCard> {
    cards.iter().find(|card| Some(card.pci_address.as_str()) == pci_address)
}

/// Who a card is that a driver shows: what the system knows of it added. `device` is 0 where the driver does not tell.
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
