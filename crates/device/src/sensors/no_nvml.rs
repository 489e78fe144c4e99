//! Where NVIDIA has no management library.

use exo_types::Monitor;

/// Never open.
#[derive(Debug)]
pub struct Nvml {}

impl Nvml {
    /// There is none.
    pub fn open() -> Option<Self> {
        None
    }

    /// Nothing.
    pub fn sensors(&self, _pci_address: &str) -> Monitor {
        Monitor::default()
    }
}
