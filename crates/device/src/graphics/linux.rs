//! The PCI bus in sysfs, and what the kernel's drivers write below it and beside.

mod amd;

use std::fs;
use std::path::Path;

use exo_types::Monitor;

use super::{GraphicsCard, vendor_name};
use crate::folders::children;

pub fn cards(root: &Path) -> Vec<GraphicsCard> {
    let Ok(entries) = fs::read_dir(root.join("sys/bus/pci/devices")) else { return Vec::new() };
    let mut cards: Vec<_> = entries.flatten().filter_map(|entry| card(root, &entry.path())).collect();
    if cards.iter().any(|card| card.kernel_driver.as_deref() == Some("amdgpu")) {
        add_topology(&mut cards, &compute_nodes(root));
    }
    cards
}

pub fn memory_free_bytes(root: &Path, pci_address: &str) -> Option<u64> {
    free(&root.join("sys/bus/pci/devices").join(pci_address))
}

pub fn add_memory(_card: &mut GraphicsCard) {
    // What drivers tell of memory stands in sysfs, and is read with the rest.
}

/// The module `sensors` reads sysfs.
pub fn sensors(_pci_address: &str) -> Monitor {
    Monitor::default()
}

/// There is no such registry.
pub fn registered_address(_registry_id: u64) -> Option<String> {
    None
}

fn card(root: &Path, path: &Path) -> Option<GraphicsCard> {
    let text = |file: &str| text(&path.join(file));
    let hex = |file: &str| u32::from_str_radix(text(file)?.trim_start_matches("0x"), 16).ok();
    // Display controllers; 0x0302 are cards without a socket for a display.
    if hex("class")? >> 16 != 0x03 {
        return None;
    }
    let vendor = hex("vendor")?;
    vendor_name(vendor)?;
    let pci_address = path.file_name()?.to_str()?.to_owned();
    let page = NvidiaPage::read(root, &pci_address);
    let driver = fs::read_link(path.join("driver")).ok();
    let kernel_driver = driver.and_then(|link| Some(link.file_name()?.to_str()?.to_owned()));
    let version = |module: &String| self::text(&root.join("sys/module").join(module).join("version"));
    let told = |file: &str| text(file).filter(|text| !text.is_empty());
    Some(GraphicsCard {
        vendor,
        device: hex("device")?,
        name: told("product_name").or_else(|| page.line("Model:")),
        driver_version: kernel_driver.as_ref().and_then(version),
        kernel_driver,
        problem_code: None,
        architecture: graphics_core(path).and_then(amd::family).map(str::to_owned),
        compute_units: None,
        memory_bytes: bytes(path, "mem_info_vram_total").or_else(|| intel_memory(path)),
        memory_free_bytes: free(path),
        uuid: told("unique_id").or_else(|| page.line("GPU UUID:").filter(|uuid| uuid.starts_with("GPU-"))),
        pci_address,
    })
}

/// amdgpu's memory.
fn free(card: &Path) -> Option<u64> {
    bytes(card, "mem_info_vram_total")?.checked_sub(bytes(card, "mem_info_vram_used")?)
}

/// Of Intel's cards with memory of their own: Intel's i915 outside the kernel tells it, and so do some
/// versions of xe, tile by tile; the kernel's i915 and newer versions of xe do not.
fn intel_memory(card: &Path) -> Option<u64> {
    let of_card =
        children(&card.join("drm"), "card").into_iter().find_map(|home| bytes(&home, "lmem_total_bytes"));
    of_card.or_else(|| {
        let tiles = children(card, "tile");
        let sizes: Option<Vec<u64>> =
            tiles.iter().map(|tile| bytes(tile, "physical_vram_size_bytes")).collect();
        sizes.filter(|sizes| !sizes.is_empty()).map(|sizes| sizes.iter().sum())
    })
}

/// The version of the part that computes, as amdgpu read it from the card.
fn graphics_core(card: &Path) -> Option<amd::Core> {
    let core = card.join("ip_discovery/die/0/GC/0");
    let number = |file: &str| text(&core.join(file))?.parse().ok();
    Some(amd::Core { major: number("major")?, minor: number("minor")?, revision: number("revision")? })
}

/// What computes, as amdgpu's interface for programs (KFD) lists it.
fn compute_nodes(root: &Path) -> Vec<amd::Node> {
    let entries = fs::read_dir(root.join("sys/class/kfd/kfd/topology/nodes")).into_iter().flatten().flatten();
    let properties = entries.filter_map(|entry| fs::read_to_string(entry.path().join("properties")).ok());
    properties.filter_map(|text| amd::node(&text)).collect()
}

/// A card that is divided is several nodes in one slot.
fn add_topology(cards: &mut [GraphicsCard], nodes: &[amd::Node]) {
    for card in cards {
        let own: Vec<_> = nodes.iter().filter(|node| node.pci_address == card.pci_address).collect();
        let Some(first) = own.first() else { continue };
        card.architecture = first.architecture().or(card.architecture.take());
        card.compute_units = own.iter().map(|node| node.compute_units).sum();
    }
}

/// NVIDIA's kernel module has a page for each card.
struct NvidiaPage(String);

impl NvidiaPage {
    fn read(root: &Path, pci_address: &str) -> Self {
        let page = root.join("proc/driver/nvidia/gpus").join(pci_address).join("information");
        Self(fs::read_to_string(page).unwrap_or_default())
    }

    fn line(&self, name: &str) -> Option<String> {
        let value = self.0.lines().find_map(|line| line.strip_prefix(name))?.trim();
        (!value.is_empty()).then(|| value.to_owned())
    }
}

fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn bytes(folder: &Path, file: &str) -> Option<u64> {
    text(&folder.join(file))?.parse().ok()
}

#[cfg(test)]
mod tests;
