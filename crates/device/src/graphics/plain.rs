//! Systems whose cards are known only as drivers list them.

use std::path::Path;

use super::GraphicsCard;

pub fn cards(_root: &Path) -> Vec<GraphicsCard> {
    Vec::new()
}

pub fn memory_free_bytes(_root: &Path, _pci_address: &str) -> Option<u64> {
    None
}
