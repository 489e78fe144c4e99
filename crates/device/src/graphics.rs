//! Graphics processors as the system's bus shows them, driver or not.

use std::fs;
use std::path::Path;

use exo_types::SupportClass;

use crate::Identity;

/// A card on the PCI bus.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GraphicsCard {
    /// `0000:01:00.0`: what joins it to the names that graphics interfaces give.
    pub pci_address: String,
    /// PCI vendor.
    pub vendor: u32,
    /// PCI device.
    pub device: u32,
    /// The kernel module that drives it; `None` if none does.
    pub kernel_driver: Option<String>,
    /// The version of that module, where it has one of its own (NVIDIA's, modules built outside the kernel).
    pub driver_version: Option<String>,
    /// Bytes of its own memory, where the driver tells (amdgpu).
    pub memory_bytes: Option<u64>,
    /// Its own number, where the driver tells (amdgpu, NVIDIA's).
    pub uuid: Option<String>,
}

impl GraphicsCard {
    /// Who made it.
    pub fn maker(&self) -> Option<&'static str> {
        maker(self.vendor)
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

/// The cards below `root` (`/`, or a fixture), by address: class 03 of `sys/bus/pci/devices`, virtual displays of
/// hypervisors left out, for they compute nothing.
pub fn graphics_cards(root: &Path) -> Vec<GraphicsCard> {
    let Ok(entries) = fs::read_dir(root.join("sys/bus/pci/devices")) else { return Vec::new() };
    let mut cards: Vec<_> = entries.flatten().filter_map(|entry| card(root, &entry.path())).collect();
    cards.sort_by(|a, b| a.pci_address.cmp(&b.pci_address));
    cards
}

fn card(root: &Path, path: &Path) -> Option<GraphicsCard> {
    let text = |file: &str| fs::read_to_string(path.join(file)).ok().map(|text| text.trim().to_owned());
    let hex = |file: &str| u32::from_str_radix(text(file)?.trim_start_matches("0x"), 16).ok();
    // Display controllers; 0x0302 are cards without a socket for a display.
    if hex("class")? >> 16 != 0x03 {
        return None;
    }
    let vendor = hex("vendor")?;
    maker(vendor)?;
    let driver = fs::read_link(path.join("driver")).ok();
    let pci_address = path.file_name()?.to_str()?.to_owned();
    let uuid = text("unique_id").filter(|id| !id.is_empty()).or_else(|| nvidia_uuid(root, &pci_address));
    let kernel_driver = driver.and_then(|link| Some(link.file_name()?.to_str()?.to_owned()));
    let version =
        |module: &String| fs::read_to_string(root.join("sys/module").join(module).join("version")).ok();
    Some(GraphicsCard {
        uuid,
        pci_address,
        vendor,
        device: hex("device")?,
        driver_version: kernel_driver.as_ref().and_then(version).map(|text| text.trim().to_owned()),
        kernel_driver,
        memory_bytes: text("mem_info_vram_total").and_then(|bytes| bytes.parse().ok()),
    })
}

/// NVIDIA's kernel module has a page for each card.
fn nvidia_uuid(root: &Path, pci_address: &str) -> Option<String> {
    let page = root.join("proc/driver/nvidia/gpus").join(pci_address).join("information");
    let text = fs::read_to_string(page).ok()?;
    let uuid = text.lines().find_map(|line| line.strip_prefix("GPU UUID:"))?.trim();
    uuid.starts_with("GPU-").then(|| uuid.to_owned())
}

/// Who a card is that a driver shows: what the bus knows of it added. `device` is 0 where the driver does not tell.
pub fn identity(
    name: &str,
    vendor: u32,
    device: u32,
    pci_address: Option<&str>,
    cards: &[GraphicsCard],
) -> Identity {
    let card = cards.iter().find(|card| Some(card.pci_address.as_str()) == pci_address);
    Identity {
        name: name.to_owned(),
        vendor,
        device: card.map_or(device, |card| card.device),
        pci_address: pci_address.map(str::to_owned),
        uuid: card.and_then(|card| card.uuid.clone()),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[allow(clippy::unwrap_used)] // a helper of tests fails by panicking
    fn add(
        root: &Path,
        address: &str,
        class: &str,
        vendor: &str,
        driver: Option<&str>,
        memory: Option<&str>,
    ) {
        let folder = root.join("sys/bus/pci/devices").join(address);
        fs::create_dir_all(&folder).unwrap();
        for (file, text) in [("class", class), ("vendor", vendor), ("device", "0x2684")] {
            fs::write(folder.join(file), format!("{text}\n")).unwrap();
        }
        if let Some(bytes) = memory {
            fs::write(folder.join("mem_info_vram_total"), bytes).unwrap();
        }
        if let Some(name) = driver {
            std::os::unix::fs::symlink(Path::new("../../drivers").join(name), folder.join("driver")).unwrap();
        }
    }

    #[test]
    fn cards_are_told_from_other_devices_and_from_virtual_displays() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(graphics_cards(root.path()), []);
        add(root.path(), "0000:02:00.0", "0x030200", "0x10de", None, None);
        add(root.path(), "0000:01:00.0", "0x030000", "0x1002", Some("amdgpu"), Some("17163091968\n"));
        add(root.path(), "0000:00:02.0", "0x030000", "0x1234", Some("bochs-drm"), None); // a hypervisor's display
        add(root.path(), "0000:00:03.0", "0x020000", "0x8086", Some("e1000e"), None); // a network card
        add(root.path(), "0000:00:04.0", "nonsense", "0x8086", None, None);
        fs::write(root.path().join("sys/bus/pci/devices/0000:01:00.0/unique_id"), "3a7d0f1e\n").unwrap();
        fs::create_dir_all(root.path().join("sys/module/amdgpu")).unwrap();
        fs::write(root.path().join("sys/module/amdgpu/version"), "6.12.12\n").unwrap();
        let page = root.path().join("proc/driver/nvidia/gpus/0000:02:00.0");
        fs::create_dir_all(&page).unwrap();
        fs::write(page.join("information"), "Model: \t\t Card\nGPU UUID: \t GPU-6f1c\nBus Type: \t PCIe\n")
            .unwrap();
        let cards = graphics_cards(root.path());
        let amd = GraphicsCard {
            pci_address: "0000:01:00.0".to_owned(),
            vendor: 0x1002,
            device: 0x2684,
            kernel_driver: Some("amdgpu".to_owned()),
            driver_version: Some("6.12.12".to_owned()),
            memory_bytes: Some(17_163_091_968),
            uuid: Some("3a7d0f1e".to_owned()),
        };
        assert_eq!((cards.len(), &cards[0], cards[1].maker()), (2, &amd, Some("NVIDIA")));
        assert_eq!((&cards[1].kernel_driver, cards[1].uuid.as_deref()), (&None, Some("GPU-6f1c")));
        let known = identity("Card", 0x10de, 0, Some("0000:02:00.0"), &cards);
        assert_eq!((known.device, known.uuid.as_deref()), (0x2684, Some("GPU-6f1c")));
        let software = identity("llvmpipe", 0x10005, 7, None, &cards);
        assert_eq!((software.device, software.uuid), (7, None));
    }
}
