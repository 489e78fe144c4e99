//! NVIDIA's management library, opened at run time.

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor, TemperatureThreshold};

use exo_types::Monitor;

use crate::{GraphicsCard, nvidia_architecture};

/// What counts as slowed down. A card under load is at the power it may draw (`SW_POWER_CAP`): that is no
/// fault.
const SLOWED: ThrottleReasons = ThrottleReasons::SW_THERMAL_SLOWDOWN
    .union(ThrottleReasons::HW_SLOWDOWN)
    .union(ThrottleReasons::HW_THERMAL_SLOWDOWN)
    .union(ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN);

/// The library, open.
#[derive(Debug)]
pub struct Nvml(nvml_wrapper::Nvml);

impl Nvml {
    /// Opens it; `None` where it is not there or does not start. This loads the vendor's code into the
    /// process: call it in a child first.
    pub fn open() -> Option<Self> {
        nvml_wrapper::Nvml::init().ok().map(Self)
    }

    /// Adds to a card what is not known of it.
    pub fn complete(&self, card: &mut GraphicsCard) {
        let Ok(told) = self.0.device_by_pci_bus_id(card.pci_address.as_str()) else { return };
        let capability = told.cuda_compute_capability().ok().map(|version| (version.major, version.minor));
        let units = || multiprocessors(capability?, told.num_cores().ok()?);
        let architecture = capability.and_then(nvidia_architecture).map(str::to_owned);
        card.name = card.name.take().or_else(|| told.name().ok());
        card.driver_version = card.driver_version.take().or_else(|| self.0.sys_driver_version().ok());
        card.architecture = card.architecture.take().or(architecture);
        card.compute_units = card.compute_units.or_else(units);
        let memory = told.memory_info().ok();
        card.memory_bytes = card.memory_bytes.or_else(|| Some(memory.as_ref()?.total));
        card.memory_free_bytes = memory.map(|memory| memory.free).or(card.memory_free_bytes);
        card.uuid = card.uuid.take().or_else(|| told.uuid().ok());
    }

    /// Bytes of the memory of the card at `pci_address` that no one holds.
    pub fn memory_free_bytes(&self, pci_address: &str) -> Option<u64> {
        self.0.device_by_pci_bus_id(pci_address).ok()?.memory_info().ok().map(|memory| memory.free)
    }

    /// What the card at `pci_address` tells.
    pub fn sensors(&self, pci_address: &str) -> Monitor {
        let Ok(card) = self.0.device_by_pci_bus_id(pci_address) else { return Monitor::default() };
        let limits = [TemperatureThreshold::GpuMax, TemperatureThreshold::Slowdown].into_iter();
        // Where a limit is not known some drivers say 0.
        let limit =
            limits.filter_map(|limit| card.temperature_threshold(limit).ok()).find(|limit| *limit > 0);
        Monitor {
            temperature_c: card.temperature(TemperatureSensor::Gpu).ok().map(|degrees| degrees as f32),
            power_w: card.power_usage().ok().map(|milliwatts| milliwatts as f32 / 1e3),
            clock_mhz: card.clock_info(Clock::SM).ok().map(|mhz| mhz as f32),
            utilisation: card.utilization_rates().ok().map(|rates| rates.gpu as f32 / 100.0),
            limit_c: limit.map(|degrees| degrees as f32),
            throttled: card.current_throttle_reasons().ok().map(|reasons| reasons.intersects(SLOWED)),
        }
    }
}

/// The library counts the cores of all of them: how many each has, the compute capability says. `None` for
/// one that is newer than this.
fn multiprocessors(capability: (i32, i32), cores: u32) -> Option<u32> {
    let each = match capability {
        (3, _) => 192,
        (6, 0) | (7, _) | (8, 0) => 64,
        (5, _) | (6, _) | (8, _) | (9, 0) | (10, _) | (12, _) => 128,
        _ => return None,
    };
    (cores > 0 && cores.is_multiple_of(each)).then(|| cores / each)
}

#[cfg(test)]
mod tests {
    use super::multiprocessors;

    #[test]
    fn multiprocessors_are_counted_by_the_cores_that_each_has() {
        for (card, capability, cores, units) in [
            ("GTX 1080", (6, 1), 2560, Some(20)),
            ("V100", (7, 0), 5120, Some(80)),
            ("A100", (8, 0), 6912, Some(108)),
            ("RTX 4090", (8, 9), 16384, Some(128)),
            ("H200", (9, 0), 16896, Some(132)),
            ("one that is new", (13, 0), 16896, None),
            ("nonsense", (8, 9), 100, None),
            ("none told", (8, 9), 0, None),
        ] {
            assert_eq!(multiprocessors(capability, cores), units, "{card}");
        }
    }
}
