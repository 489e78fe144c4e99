//! Systems whose cards are known only as drivers list them.

use std::path::Path;

use exo_types::Monitor;

use super::GraphicsCard;

pub fn cards(_root: &Path) -> Vec<GraphicsCard> {
    Vec::new()
}

pub fn memory_free_bytes(_root: &Path, _pci_address: &str) -> Option<u64> {
    None
}

pub fn add_memory(_card: &mut GraphicsCard) {
    // No one tells.
}

pub fn sensors(_pci_address: &str) -> Monitor {
    Monitor::default()
}

pub fn registered_address(_registry_id: u64) -> Option<String> {
    None
}
