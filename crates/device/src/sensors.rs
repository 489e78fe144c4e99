//! How warm, hungry, fast and busy a device is now, from the kernel's driver or from NVIDIA's library.

#[cfg(not(any(target_os = "linux", windows)))]
mod no_nvml;
#[cfg(any(target_os = "linux", windows))]
mod nvml;
mod processor_meter;
mod throttling;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use exo_types::Monitor;

use crate::folders::children;
use crate::graphics::system_sensors;

#[cfg(not(any(target_os = "linux", windows)))]
use no_nvml::Nvml;
#[cfg(any(target_os = "linux", windows))]
use nvml::Nvml;

pub use processor_meter::ProcessorMeter;

use crate::{GraphicsCard, find_card, graphics_cards, memory_free_bytes};

/// NVIDIA's PCI number.
const NVIDIA: u32 = 0x10de;

/// The sensors of one card that is in use, read again and again, and what else its kernel driver and its
/// vendor's library tell.
///
/// For a card of NVIDIA asking loads its vendor's library into the process: for one that has loaded its
/// driver anyway.
#[derive(Debug)]
pub struct CardSensors {
    vendor: u32,
    pci_address: Option<String>,
    /// For a card of NVIDIA: opened at the first reading.
    nvml: Option<OnceLock<Option<Nvml>>>,
}

impl CardSensors {
    /// Of the card of this PCI vendor at this address; without one there is nothing to read.
    pub fn new(vendor: u32, pci_address: Option<&str>) -> Self {
        let nvml = (vendor == NVIDIA).then(OnceLock::new);
        Self { vendor, pci_address: pci_address.map(str::to_owned), nvml }
    }

    fn nvml(&self) -> Option<&Nvml> {
        self.nvml.as_ref().and_then(|nvml| nvml.get_or_init(Nvml::open).as_ref())
    }

    /// The card, as all of these together tell of it.
    pub fn card(&self) -> Option<GraphicsCard> {
        let pci_address = self.pci_address.as_deref()?;
        let known = find_card(&graphics_cards(Path::new("/")), Some(pci_address)).cloned();
        let mut card = known.unwrap_or_else(|| GraphicsCard {
            pci_address: pci_address.to_owned(),
            vendor: self.vendor,
            ..GraphicsCard::default()
        });
        self.nvml().inspect(|nvml| nvml.complete(&mut card));
        Some(card)
    }

    /// Bytes of its own memory that no one holds now.
    pub fn memory_free_bytes(&self) -> Option<u64> {
        let pci_address = self.pci_address.as_deref()?;
        let told = memory_free_bytes(Path::new("/"), pci_address);
        told.or_else(|| self.nvml()?.memory_free_bytes(pci_address))
    }

    /// What it tells now.
    pub fn read(&self) -> Monitor {
        let Some(address) = self.pci_address.as_deref() else { return Monitor::default() };
        let told = sensors(Path::new("/"), address);
        self.nvml().map_or(told, |nvml| nvml.sensors(address).or(told))
    }
}

/// Names of the drivers that tell how warm a processor is.
const PROCESSOR_HWMON: [&str; 4] = ["coretemp", "k10temp", "zenpower", "cpu_thermal"];

/// The processor's sensors below `root`: its warmest spot, and what its cores run at in the mean.
pub fn processor_sensors(root: &Path) -> Monitor {
    let folders = children(&root.join("sys/class/hwmon"), "hwmon").into_iter();
    let is_processor = |folder: &PathBuf| {
        let name = fs::read_to_string(folder.join("name")).unwrap_or_default();
        PROCESSOR_HWMON.contains(&name.trim())
    };
    let folders: Vec<PathBuf> = folders.filter(is_processor).collect();
    let spots = |folder: &PathBuf, what: &str| {
        let all = (1..=MONITORED_SPOTS_MAX).map(|n| number(&folder.join(format!("temp{n}_{what}"))));
        all.flatten().filter(|milli| *milli > 0.0).collect::<Vec<_>>()
    };
    let read = |what: &str| folders.iter().flat_map(|folder| spots(folder, what)).collect::<Vec<_>>();
    let cores = children(&root.join("sys/devices/system/cpu"), "cpu").into_iter();
    let khz: Vec<f32> = cores.filter_map(|core| number(&core.join("cpufreq/scaling_cur_freq"))).collect();
    Monitor {
        temperature_c: read("input").into_iter().reduce(f32::max).map(|milli| milli / 1e3),
        power_w: None,
        clock_mhz: (!khz.is_empty()).then(|| khz.iter().sum::<f32>() / khz.len() as f32 / 1e3),
        utilisation: None,
        limit_c: read("crit").into_iter().reduce(f32::min).map(|milli| milli / 1e3),
        throttled: None,
    }
}

/// Processors have a spot for each core.
const MONITORED_SPOTS_MAX: usize = 64;

/// Where drivers write the clock, below the card's folder: i915, its older kernels, xe.
const CLOCKS: [&str; 3] = ["gt/gt0/rps_act_freq_mhz", "gt_act_freq_mhz", "tile0/gt0/freq0/act_freq"];

/// The card at `pci_address` as amdgpu, i915 or xe show it below `root` (`/`, or a fixture), or as Windows or
/// macOS do.
pub fn sensors(root: &Path, pci_address: &str) -> Monitor {
    system_sensors(pci_address).or(sysfs_sensors(root, pci_address))
}

fn sysfs_sensors(root: &Path, pci_address: &str) -> Monitor {
    let card = root.join("sys/bus/pci/devices").join(pci_address);
    let hwmon = children(&card.join("hwmon"), "hwmon");
    let monitored = |file: &str| hwmon.iter().find_map(|folder| number(&folder.join(file)));
    let intel = || {
        let homes = children(&card.join("drm"), "card").into_iter().chain([card.clone()]);
        homes.into_iter().find_map(|home| CLOCKS.iter().find_map(|file| number(&home.join(file))))
    };
    Monitor {
        temperature_c: monitored("temp1_input").map(|milli| milli / 1e3),
        power_w: monitored("power1_average").or_else(|| monitored("power1_input")).map(|micro| micro / 1e6),
        clock_mhz: monitored("freq1_input").map(|hertz| hertz / 1e6).or_else(intel),
        utilisation: number(&card.join("gpu_busy_percent")).map(|percent| percent / 100.0),
        limit_c: monitored("temp1_crit").filter(|milli| *milli > 0.0).map(|milli| milli / 1e3),
        throttled: throttling::of_card(&card),
    }
}

fn number(path: &Path) -> Option<f32> {
    let value: f32 = fs::read_to_string(path).ok()?.trim().parse().ok()?;
    value.is_finite().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)]) -> Monitor {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join("sys/bus/pci/devices/0000:03:00.0").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
        sensors(root.path(), "0000:03:00.0")
    }

    #[test]
    fn amdgpu_tells_everything() {
        let told = check(&[
            ("hwmon/hwmon4/temp1_input", "61000"),
            ("hwmon/hwmon4/temp1_crit", "100000"),
            ("hwmon/hwmon4/power1_average", "153000000"),
            ("hwmon/hwmon4/freq1_input", "2105000000"),
            ("gpu_busy_percent", "97"),
        ]);
        let all = Monitor {
            temperature_c: Some(61.0),
            power_w: Some(153.0),
            clock_mhz: Some(2105.0),
            utilisation: Some(0.97),
            limit_c: Some(100.0),
            throttled: None,
        };
        assert_eq!(told, all);
        assert_eq!(check(&[("hwmon/hwmon4/power1_input", "9000000")]).power_w, Some(9.0));
    }

    #[test]
    fn intels_drivers_tell_the_clock_in_places_of_their_own() {
        for place in
            ["drm/card1/gt/gt0/rps_act_freq_mhz", "drm/card0/gt_act_freq_mhz", "tile0/gt0/freq0/act_freq"]
        {
            assert_eq!(check(&[(place, "1300")]), Monitor { clock_mhz: Some(1300.0), ..Monitor::default() });
        }
    }

    #[test]
    fn what_is_missing_or_no_number_is_nothing() {
        assert!(check(&[]).is_empty());
        let nonsense = [
            ("hwmon/hwmon4/temp1_input", "hot"),
            ("gpu_busy_percent", "nan"),
            ("drm/renderD128/gt_act_freq_mhz", "5"),
        ];
        assert!(check(&nonsense).is_empty());
    }

    #[test]
    fn a_processor_is_as_warm_as_its_warmest_spot() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join("sys").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert!(processor_sensors(root.path()).is_empty());
        write("class/hwmon/hwmon0/name", "nvme\n");
        write("class/hwmon/hwmon0/temp1_input", "90000\n");
        write("class/hwmon/hwmon1/name", "coretemp\n");
        write("class/hwmon/hwmon1/temp1_input", "41000\n");
        write("class/hwmon/hwmon1/temp2_input", "55000\n");
        write("class/hwmon/hwmon1/temp1_crit", "100000\n");
        write("class/hwmon/hwmon1/temp2_crit", "95000\n");
        for (core, khz) in [("cpu0", "2000000"), ("cpu1", "3000000"), ("cpuidle", "9000000")] {
            write(&format!("devices/system/cpu/{core}/cpufreq/scaling_cur_freq"), khz);
        }
        let told = Monitor {
            temperature_c: Some(55.0),
            clock_mhz: Some(2500.0),
            limit_c: Some(95.0),
            ..Monitor::default()
        };
        assert_eq!(processor_sensors(root.path()), told);
    }
}
