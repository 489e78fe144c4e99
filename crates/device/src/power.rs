//! Whether the machine runs on mains power.

use std::fs;
use std::path::Path;

/// Whether a mains supply is connected, from `sys/class/power_supply` below `root`. `None` where nothing
/// says.
///
/// A machine with neither supply nor battery listed (a desktop, a virtual machine) tells nothing. One with a
/// battery and no supply listed runs on mains while the battery is charging or full.
pub fn mains_power(root: &Path) -> Option<bool> {
    let mut mains: Option<bool> = None;
    let mut battery: Option<bool> = None;
    for entry in fs::read_dir(root.join("sys/class/power_supply")).ok()?.flatten() {
        let read = |file: &str| {
            fs::read_to_string(entry.path().join(file)).map(|text| text.trim().to_owned()).unwrap_or_default()
        };
        // A headset or mouse has a battery of its own, which says nothing about the machine.
        if read("scope") == "Device" {
            continue;
        }
        match read("type").as_str() {
            "Mains" | "USB" | "Wireless" => match read("online").as_str() {
                "0" => mains = mains.or(Some(false)),
                "" => {}
                _ => mains = Some(true),
            },
            "Battery" => match read("status").as_str() {
                "Discharging" => battery = Some(false),
                "Charging" | "Full" | "Not charging" => battery = battery.or(Some(true)),
                _ => {}
            },
            _ => {}
        }
    }
    mains.or(battery)
}

/// The charge of the machine's battery in percent, from `sys/class/power_supply` below `root`; the lowest of
/// several, `None` where there is none.
pub fn battery_percent(root: &Path) -> Option<u8> {
    let charge = |entry: fs::DirEntry| {
        let read = |file: &str| fs::read_to_string(entry.path().join(file)).ok();
        let is = |file: &str, word: &str| read(file).is_some_and(|text| text.trim() == word);
        if !is("type", "Battery") || is("scope", "Device") {
            return None;
        }
        read("capacity")?.trim().parse().ok().filter(|percent| *percent <= 100)
    };
    fs::read_dir(root.join("sys/class/power_supply")).ok()?.flatten().filter_map(charge).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each supply is `name file=value …`.
    fn check(supplies: &[&str]) -> Option<bool> {
        mains_power(with(supplies).path())
    }

    fn with(supplies: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let class = root.path().join("sys/class/power_supply");
        fs::create_dir_all(&class).unwrap();
        for supply in supplies {
            let mut words = supply.split(';');
            let folder = class.join(words.next().unwrap());
            fs::create_dir(&folder).unwrap();
            for (file, value) in words.map(|word| word.split_once('=').unwrap()) {
                fs::write(folder.join(file), format!("{value}\n")).unwrap();
            }
        }
        root
    }

    #[test]
    fn the_lowest_battery_of_the_machine_counts_and_a_headsets_does_not() {
        let percent = |supplies: &[&str]| battery_percent(with(supplies).path());
        let headset = "mouse;type=Battery;scope=Device;capacity=3";
        assert_eq!(
            percent(&["BAT0;type=Battery;capacity=80", "BAT1;type=Battery;capacity=41", headset]),
            Some(41)
        );
        assert_eq!(percent(&["BAT0;type=Battery;capacity=130", "AC;type=Mains;online=1"]), None);
        assert_eq!(percent(&[headset]), None);
    }

    #[test]
    fn a_connected_supply_is_mains_and_a_pulled_plug_is_not() {
        assert_eq!(check(&["AC;type=Mains;online=1", "BAT0;type=Battery;status=Full"]), Some(true));
        assert_eq!(check(&["AC;type=Mains;online=0", "BAT0;type=Battery;status=Discharging"]), Some(false));
        assert_eq!(check(&["usb0;type=USB;online=0", "usb1;type=USB;online=1"]), Some(true));
    }

    #[test]
    fn a_battery_alone_tells_by_its_state() {
        assert_eq!(check(&["BAT0;type=Battery;status=Charging"]), Some(true));
        assert_eq!(check(&["BAT0;type=Battery;status=Discharging"]), Some(false));
        assert_eq!(check(&["BAT0;type=Battery;status=Unknown"]), None);
    }

    #[test]
    fn nothing_listed_is_unknown() {
        assert_eq!(check(&[]), None);
        assert_eq!(check(&["mouse;type=Battery;scope=Device;status=Discharging"]), None);
        assert_eq!(mains_power(Path::new("/does/not/exist")), None);
    }
}
