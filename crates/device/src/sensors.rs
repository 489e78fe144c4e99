//! How warm, hungry, fast and busy a graphics processor is now, from the kernel's driver or from NVIDIA's library.

#[cfg(not(any(target_os = "linux", windows)))]
mod no_nvml;
#[cfg(any(target_os = "linux", windows))]
mod nvml;

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

#[cfg(not(any(target_os = "linux", windows)))]
pub use no_nvml::Nvml;
#[cfg(any(target_os = "linux", windows))]
pub use nvml::Nvml;

/// What a card tells of itself; `None` for what it does not.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Sensors {
    /// Degrees Celsius.
    pub temperature_c: Option<f32>,
    /// Watts drawn.
    pub power_w: Option<f32>,
    /// Of the compute units, in MHz.
    pub clock_mhz: Option<f32>,
    /// Part of the time it was busy, 0 to 1.
    pub utilisation: Option<f32>,
}

impl Sensors {
    /// Whether it tells nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Where drivers write the clock, below the card's folder: i915, its older kernels, xe.
const CLOCKS: [&str; 3] = ["gt/gt0/rps_act_freq_mhz", "gt_act_freq_mhz", "tile0/gt0/freq0/act_freq"];

/// The card at `pci_address` as amdgpu, i915 or xe show it below `root` (`/`, or a fixture).
pub fn sensors(root: &Path, pci_address: &str) -> Sensors {
    let card = root.join("sys/bus/pci/devices").join(pci_address);
    let hwmon = children(&card.join("hwmon"), "hwmon");
    let monitored = |file: &str| hwmon.iter().find_map(|folder| number(&folder.join(file)));
    let intel = || {
        let homes = children(&card.join("drm"), "card").into_iter().chain([card.clone()]);
        homes.into_iter().find_map(|home| CLOCKS.iter().find_map(|file| number(&home.join(file))))
    };
    Sensors {
        temperature_c: monitored("temp1_input").map(|milli| milli / 1e3),
        power_w: monitored("power1_average").or_else(|| monitored("power1_input")).map(|micro| micro / 1e6),
        clock_mhz: monitored("freq1_input").map(|hertz| hertz / 1e6).or_else(intel),
        utilisation: number(&card.join("gpu_busy_percent")).map(|percent| percent / 100.0),
    }
}

/// The folders in `folder` that are called `prefix` and a number, in order.
fn children(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let is_one = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.strip_prefix(prefix).is_some_and(|rest| rest.parse::<u32>().is_ok())
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = entries.filter(is_one).collect();
    found.sort();
    found
}

fn number(path: &Path) -> Option<f32> {
    let value: f32 = fs::read_to_string(path).ok()?.trim().parse().ok()?;
    value.is_finite().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)]) -> Sensors {
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
            ("hwmon/hwmon4/power1_average", "153000000"),
            ("hwmon/hwmon4/freq1_input", "2105000000"),
            ("gpu_busy_percent", "97"),
        ]);
        let all = Sensors {
            temperature_c: Some(61.0),
            power_w: Some(153.0),
            clock_mhz: Some(2105.0),
            utilisation: Some(0.97),
        };
        assert_eq!(told, all);
        assert_eq!(check(&[("hwmon/hwmon4/power1_input", "9000000")]).power_w, Some(9.0));
    }

    #[test]
    fn intels_drivers_tell_the_clock_in_places_of_their_own() {
        for place in
            ["drm/card1/gt/gt0/rps_act_freq_mhz", "drm/card0/gt_act_freq_mhz", "tile0/gt0/freq0/act_freq"]
        {
            assert_eq!(check(&[(place, "1300")]), Sensors { clock_mhz: Some(1300.0), ..Sensors::default() });
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
}
