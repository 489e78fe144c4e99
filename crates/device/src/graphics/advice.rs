//! What drives a card, and what to do if no driver shows it, in the words of each system.

use super::GraphicsCard;

/// What drives a card on Windows that has no driver of its vendor's.
const BASIC_DRIVERS: [&str; 2] = ["BasicDisplay", "vga"];

/// What to do so that a driver shows this card, on the system that Rust calls `os`
/// ([`std::env::consts::OS`]).
pub fn advice(card: &GraphicsCard, os: &str) -> String {
    let vendor = card.vendor_name().unwrap_or("its vendor");
    match os {
        "windows" => windows(card, vendor),
        "macos" => {
            format!("update macOS: {vendor}'s drivers come with it, and it has none for a card of NVIDIA's")
        }
        _ if vendor == "NVIDIA" => {
            "install NVIDIA's driver with its Vulkan library (Debian: nvidia-driver nvidia-vulkan-icd)"
                .to_owned()
        }
        _ => "install its Vulkan driver (Debian: mesa-vulkan-drivers)".to_owned(),
    }
}

fn windows(card: &GraphicsCard, vendor: &str) -> String {
    let install = format!("install {vendor}'s driver from its web site or through Windows Update");
    match card.problem_code {
        // Nothing that is installed would help.
        Some(12) => {
            "turn on \"Above 4G Decoding\" in the machine's firmware, or take another card out".to_owned()
        }
        Some(14) => "restart Windows".to_owned(),
        Some(22) => "enable it in Device Manager".to_owned(),
        Some(24 | 45) => "check that it is plugged in and has power".to_owned(),
        Some(47) => "unplug it and plug it in again".to_owned(),
        Some(10 | 31 | 37..=40 | 43) => {
            format!("{install} again; if that does not help, the card may be broken")
        }
        _ if card.kernel_driver.as_deref().is_some_and(is_basic) => {
            format!("{install}: what drives it now is Windows' own driver for any display")
        }
        _ => install,
    }
}

/// Whether a service of Windows drives any display, and knows no vendor.
pub(super) fn is_basic(service: &str) -> bool {
    BASIC_DRIVERS.iter().any(|basic| basic.eq_ignore_ascii_case(service))
}

/// What drives it, or why nothing does.
pub fn driver_text(card: &GraphicsCard, os: &str) -> String {
    let what = if os == "linux" { "kernel module" } else { "driver" };
    let driver =
        card.kernel_driver_text().map_or_else(|| format!("no {what}"), |driver| format!("{what} {driver}"));
    match (card.problem_code, &card.kernel_driver) {
        (Some(code), Some(_)) => format!("{driver}, and {}", problem(code)),
        (Some(code), None) => problem(code),
        (None, _) => driver,
    }
}

/// A code of Windows' Device Manager in words.
fn problem(code: u32) -> String {
    let what = match code {
        1 | 18 | 28 => "no driver is installed",
        10 => "it cannot start",
        12 => "it finds no free room for its memory",
        14 => "Windows must be restarted first",
        22 => "it is disabled",
        24 | 45 => "it is not there, or does not answer",
        31 | 37 | 39 | 40 => "its driver cannot be loaded",
        43 => "its driver reports that it has failed",
        47 => "it was prepared to be unplugged",
        48 => "Windows blocks its driver",
        52 => "its driver is not signed",
        _ => "it does not work",
    };
    format!("Device Manager reports code {code}: {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(vendor: u32, driver: Option<&str>, problem_code: Option<u32>) -> GraphicsCard {
        GraphicsCard {
            pci_address: "0000:01:00.0".to_owned(),
            vendor,
            device: 0x2684,
            kernel_driver: driver.map(str::to_owned),
            problem_code,
            ..GraphicsCard::default()
        }
    }

    fn check(vendor: u32, driver: Option<&str>, problem_code: Option<u32>, os: &str) -> String {
        advice(&card(vendor, driver, problem_code), os)
    }

    #[test]
    fn what_drives_a_card_is_told_in_the_words_of_its_system() {
        let text = |driver, code, os| driver_text(&card(0x10de, driver, code), os);
        assert_eq!(text(Some("nouveau"), None, "linux"), "kernel module nouveau");
        assert_eq!(text(None, None, "linux"), "no kernel module");
        assert_eq!(text(None, None, "macos"), "no driver");
        assert_eq!(text(None, Some(28), "windows"), "Device Manager reports code 28: no driver is installed");
        let versioned = GraphicsCard {
            driver_version: Some("32.0.15.6094".to_owned()),
            ..card(0x10de, Some("nvlddmkm"), Some(43))
        };
        let failed = "driver nvlddmkm 32.0.15.6094, and Device Manager reports code 43: its driver reports that it has failed";
        assert_eq!(driver_text(&versioned, "windows"), failed);
    }

    #[test]
    fn a_card_without_its_vendors_driver_is_told_to_get_it() {
        let bare = check(0x10de, None, Some(28), "windows");
        assert_eq!(bare, "install NVIDIA's driver from its web site or through Windows Update");
        let basic = check(0x1002, Some("basicdisplay"), None, "windows");
        assert!(basic.starts_with("install AMD's") && basic.contains("Windows' own"), "{basic}");
        let own = check(0x1002, Some("amdkmdag"), None, "windows");
        assert!(own.starts_with("install AMD's") && !own.contains("Windows' own"), "{own}");
        assert!(check(0x10de, None, None, "linux").contains("nvidia-vulkan-icd"));
        assert!(check(0x8086, None, None, "linux").contains("mesa-vulkan-drivers"));
        assert!(check(0x1002, None, None, "macos").contains("update macOS: AMD's drivers"));
    }

    #[test]
    fn where_a_driver_would_not_help_none_is_to_be_installed() {
        for (code, what) in
            [(12, "Above 4G"), (14, "restart"), (22, "enable"), (45, "plugged"), (47, "again")]
        {
            let told = check(0x10de, Some("nvlddmkm"), Some(code), "windows");
            assert!(told.contains(what) && !told.contains("install"), "{code}: {told}");
        }
        assert!(check(0x10de, Some("nvlddmkm"), Some(43), "windows").contains("may be broken"));
        assert_eq!(problem(28), "Device Manager reports code 28: no driver is installed");
        assert_eq!(problem(4711), "Device Manager reports code 4711: it does not work");
    }
}
