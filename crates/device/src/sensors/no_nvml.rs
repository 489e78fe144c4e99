//! Where NVIDIA has no management library.

use super::Sensors;

/// Never open.
#[derive(Debug)]
pub struct Nvml {}

impl Nvml {
    /// There is none.
    pub fn open() -> Option<Self> {
        None
    }

    /// Nothing.
    pub fn sensors(&self, _pci_address: &str) -> Sensors {
        Sensors::default()
    }
}
