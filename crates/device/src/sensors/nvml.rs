//! NVIDIA's management library, opened at run time.

use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};

use exo_types::Monitor;

/// The library, open.
#[derive(Debug)]
pub struct Nvml(nvml_wrapper::Nvml);

impl Nvml {
    /// Opens it; `None` where it is not there or does not start. This loads the maker's code into the process: call it in a
    /// child first.
    pub fn open() -> Option<Self> {
        nvml_wrapper::Nvml::init().ok().map(Self)
    }

    /// What the card at `pci_address` tells.
    pub fn sensors(&self, pci_address: &str) -> Monitor {
        let Ok(card) = self.0.device_by_pci_bus_id(pci_address) else { return Monitor::default() };
        Monitor {
            temperature_c: card.temperature(TemperatureSensor::Gpu).ok().map(|degrees| degrees as f32),
            power_w: card.power_usage().ok().map(|milliwatts| milliwatts as f32 / 1e3),
            clock_mhz: card.clock_info(Clock::SM).ok().map(|mhz| mhz as f32),
            utilisation: card.utilization_rates().ok().map(|rates| rates.gpu as f32 / 100.0),
        }
    }
}
