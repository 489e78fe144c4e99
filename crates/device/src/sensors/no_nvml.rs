//! Where NVIDIA has no management library.

use exo_types::Monitor;

use crate::GraphicsCard;

/// Never open.
#[derive(Debug)]
pub struct Nvml {}

impl Nvml {
    /// There is none.
    pub fn open() -> Option<Self> {
        None
    }

    /// Adds nothing.
    pub fn complete(&self, _card: &mut GraphicsCard) {}

    /// Nothing is known here.
    pub fn memory_free_bytes(&self, _pci_address: &str) -> Option<u64> {
        None
    }

    /// Nothing is known here.
    pub fn sensors(&self, _pci_address: &str) -> Monitor {
        Monitor::default()
    }
}
