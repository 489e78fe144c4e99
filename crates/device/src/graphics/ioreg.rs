//! What macOS's registry of devices tells of graphics processors, read: those on a PCI bus (Intel's Macs),
//! and the one that is part of Apple's chips.

use std::collections::BTreeMap;

use exo_types::Monitor;

use super::{GraphicsCard, vendor_name};

/// Apple's PCI number.
const APPLE: u32 = 0x106b;

/// The properties of an entry, by name.
pub(super) type Table = BTreeMap<String, Value>;

/// Of a property, as far as it is of use.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Value {
    Number(i64),
    Text(String),
    Bytes(Vec<u8>),
    Table(Table),
}

/// A driver of a graphics processor at work.
#[derive(Clone, Default, Debug)]
pub(super) struct Accelerator {
    /// Its number since the machine was started: what Metal tells.
    pub(super) registry_id: u64,
    pub(super) properties: Table,
    /// `pcidebug` of the PCI device that it drives, if it does.
    pub(super) slot: Option<String>,
}

/// All of them, of the devices on the PCI bus and of what drives.
pub(super) fn cards(devices: &[Table], accelerators: &[Accelerator]) -> Vec<GraphicsCard> {
    let on_the_bus = devices.iter().filter_map(|device| card(device, accelerators));
    on_the_bus.chain(accelerators.iter().filter_map(in_the_chip)).collect()
}

/// By number; `None` if there is no such driver.
pub(super) fn address(registry_id: u64, accelerators: &[Accelerator]) -> Option<String> {
    accelerators.iter().find(|accelerator| accelerator.registry_id == registry_id)?.address()
}

/// What the driver of the card at this address measures.
pub(super) fn sensors(pci_address: &str, accelerators: &[Accelerator]) -> Monitor {
    let Some(now) = now(pci_address, accelerators) else { return Monitor::default() };
    let real = |name| number(now, name).map(|value| value as f32);
    Monitor {
        temperature_c: real("Temperature(C)"),
        power_w: real("Total Power(W)"),
        clock_mhz: real("Core Clock(MHz)"),
        utilisation: real("Device Utilization %").map(|percent| percent / 100.0),
        ..Monitor::default()
    }
}

/// What no one holds of the memory of the card at this address.
pub(super) fn memory_free_bytes(
    pci_address: &str,
    memory_bytes: Option<u64>,
    accelerators: &[Accelerator],
) -> Option<u64> {
    let now = now(pci_address, accelerators)?;
    let used = number(now, "inUseVidMemoryBytes").or_else(|| number(now, "vramUsedBytes"));
    number(now, "vramFreeBytes").or_else(|| memory_bytes?.checked_sub(used?))
}

fn now<'a>(pci_address: &str, accelerators: &'a [Accelerator]) -> Option<&'a Table> {
    let is_its = |accelerator: &&Accelerator| accelerator.address().as_deref() == Some(pci_address);
    match accelerators.iter().find(is_its)?.properties.get("PerformanceStatistics")? {
        Value::Table(now) => Some(now),
        _ => None,
    }
}

impl Accelerator {
    /// Where what it drives is: in a slot, or in the chip, which has one of each kind.
    fn address(&self) -> Option<String> {
        match &self.slot {
            Some(slot) => location(slot),
            None => text(&self.properties, "IOClass"),
        }
    }

    /// The extension of the kernel that it is from.
    fn driver(&self) -> Option<String> {
        text(&self.properties, "CFBundleIdentifier").or_else(|| text(&self.properties, "IOClass"))
    }
}

/// A display controller on the bus, driven or not.
fn card(device: &Table, accelerators: &[Accelerator]) -> Option<GraphicsCard> {
    if number(device, "class-code")? >> 16 != 0x03 {
        return None;
    }
    let vendor = u32::try_from(number(device, "vendor-id")?).ok()?;
    vendor_name(vendor)?;
    let slot = text(device, "pcidebug")?;
    let driver = accelerators.iter().find(|accelerator| accelerator.slot.as_ref() == Some(&slot));
    let megabytes =
        driver.and_then(|driver| number(&driver.properties, "VRAM,totalMB")?.checked_mul(1 << 20));
    Some(GraphicsCard {
        pci_address: location(&slot)?,
        vendor,
        device: u32::try_from(number(device, "device-id")?).ok()?,
        name: text(device, "model"),
        kernel_driver: driver.and_then(Accelerator::driver),
        memory_bytes: number(device, "VRAM,totalsize").or(megabytes).filter(|bytes| *bytes > 0),
        ..GraphicsCard::default()
    })
}

/// The part of Apple's chip that a driver on no bus drives. Its memory is the machine's.
fn in_the_chip(accelerator: &Accelerator) -> Option<GraphicsCard> {
    let vendor = number(&accelerator.properties, "vendor-id")?;
    if accelerator.slot.is_some() || vendor != u64::from(APPLE) {
        return None;
    }
    Some(GraphicsCard {
        pci_address: accelerator.address()?,
        vendor: APPLE,
        name: text(&accelerator.properties, "model"),
        kernel_driver: accelerator.driver(),
        compute_units: number(&accelerator.properties, "gpu-core-count").and_then(|n| u32::try_from(n).ok()),
        ..GraphicsCard::default()
    })
}

/// `1:0:0`, in tens, and of a bridge the buses behind it in brackets.
fn location(slot: &str) -> Option<String> {
    let mut numbers = slot.split('(').next()?.split([':', '.']).map(|part| part.parse::<u8>().ok());
    let (bus, device, function) = (numbers.next()??, numbers.next()??, numbers.next()??);
    numbers.next().is_none().then(|| format!("0000:{bus:02x}:{device:02x}.{function:x}"))
}

/// A number, or bytes that are one with the lowest first.
fn number(table: &Table, name: &str) -> Option<u64> {
    match table.get(name)? {
        Value::Number(number) => u64::try_from(*number).ok(),
        Value::Bytes(bytes) if (1..=8).contains(&bytes.len()) => {
            Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
        }
        _ => None,
    }
}

/// A text, or its bytes with a zero at the end.
fn text(table: &Table, name: &str) -> Option<String> {
    let text = match table.get(name)? {
        Value::Text(text) => text.clone(),
        Value::Bytes(bytes) => String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned(),
        _ => return None,
    };
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(entries: &[(&str, Value)]) -> Table {
        entries.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
    }

    fn words(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    fn bytes(number: u32) -> Value {
        Value::Bytes(number.to_le_bytes().to_vec())
    }

    /// As `ioreg` prints them for a chip of Apple's.
    fn apple() -> Accelerator {
        let now = [
            ("Device Utilization %", Value::Number(42)),
            ("In use system memory", Value::Number(356_089_856)),
            ("Alloc system memory", Value::Number(2_181_693_440)),
        ];
        let properties = table(&[
            ("IOClass", words("AGXAcceleratorG13G")),
            ("CFBundleIdentifier", words("com.apple.AGXG13G")),
            ("model", words("Apple M1")),
            ("vendor-id", bytes(0x106b)),
            ("gpu-core-count", Value::Number(8)),
            ("PerformanceStatistics", Value::Table(table(&now))),
        ]);
        Accelerator { registry_id: 0x1_0000_03f1, properties, slot: None }
    }

    /// A Radeon of a Mac with Intel's processor.
    fn radeon() -> (Table, Accelerator) {
        let device = table(&[
            ("class-code", bytes(0x03_0000)),
            ("vendor-id", bytes(0x1002)),
            ("device-id", bytes(0x7340)),
            ("pcidebug", words("3:0:0")),
            ("model", Value::Bytes(b"AMD Radeon Pro 5500M\0".to_vec())),
        ]);
        let now = [
            ("Temperature(C)", Value::Number(51)),
            ("Total Power(W)", Value::Number(24)),
            ("Core Clock(MHz)", Value::Number(1300)),
            ("Device Utilization %", Value::Number(7)),
            ("inUseVidMemoryBytes", Value::Number(1 << 30)),
        ];
        let properties = table(&[
            ("CFBundleIdentifier", words("com.apple.kext.AMDRadeonX6000")),
            ("VRAM,totalMB", Value::Number(8192)),
            ("PerformanceStatistics", Value::Table(table(&now))),
        ]);
        (device, Accelerator { registry_id: 7, properties, slot: Some("3:0:0".to_owned()) })
    }

    #[test]
    fn the_processor_in_apples_chip_is_found_by_what_drives_it() {
        let found = cards(&[], &[apple()]);
        let expected = GraphicsCard {
            pci_address: "AGXAcceleratorG13G".to_owned(),
            vendor: 0x106b,
            name: Some("Apple M1".to_owned()),
            kernel_driver: Some("com.apple.AGXG13G".to_owned()),
            compute_units: Some(8),
            ..GraphicsCard::default()
        };
        assert_eq!(found, [expected]);
        assert_eq!(address(0x1_0000_03f1, &[apple()]).as_deref(), Some("AGXAcceleratorG13G"));
        assert_eq!(address(1, &[apple()]), None);
        let now = sensors("AGXAcceleratorG13G", &[apple()]);
        assert_eq!(now, Monitor { utilisation: Some(0.42), ..Monitor::default() });
        assert!(sensors("0000:01:00.0", &[apple()]).is_empty());
        let free = memory_free_bytes("AGXAcceleratorG13G", None, &[apple()]);
        assert_eq!(free, None, "the machine's memory is not its own");
    }

    #[test]
    fn a_card_on_the_bus_is_joined_to_its_driver_by_its_slot() {
        let (device, driver) = radeon();
        let found = cards(std::slice::from_ref(&device), &[apple(), driver.clone()]);
        let addresses: Vec<&str> = found.iter().map(|card| card.pci_address.as_str()).collect();
        assert_eq!(addresses, ["0000:03:00.0", "AGXAcceleratorG13G"]);
        assert_eq!((found[0].vendor, found[0].device), (0x1002, 0x7340));
        assert_eq!(found[0].kernel_driver.as_deref(), Some("com.apple.kext.AMDRadeonX6000"));
        assert_eq!(found[0].memory_bytes, Some(8 << 30));
        assert_eq!(address(7, &[apple(), driver.clone()]).as_deref(), Some("0000:03:00.0"));
        assert_eq!(found[0].name.as_deref(), Some("AMD Radeon Pro 5500M"));
        let both = [apple(), driver.clone()];
        let free = memory_free_bytes("0000:03:00.0", found[0].memory_bytes, &both);
        let all = Monitor {
            temperature_c: Some(51.0),
            power_w: Some(24.0),
            clock_mhz: Some(1300.0),
            utilisation: Some(0.07),
            ..Monitor::default()
        };
        assert_eq!((sensors("0000:03:00.0", &both), free), (all, Some(7 << 30)));
        assert_eq!(memory_free_bytes("0000:03:00.0", None, &both), None);
        let elsewhere = Accelerator { slot: Some("4:0:0".to_owned()), ..driver };
        let bare = &cards(&[device], &[elsewhere])[0];
        assert_eq!((&bare.kernel_driver, bare.memory_bytes), (&None, None), "a card without a driver");
    }

    #[test]
    fn what_is_no_graphics_processor_of_a_vendor_is_left_out() {
        let (device, _) = radeon();
        let with = |name: &str, value: Value| {
            let mut device = device.clone();
            device.insert(name.to_owned(), value);
            cards(&[device], &[]).len()
        };
        assert_eq!(with("class-code", bytes(0x03_8000)), 1, "without a socket for a display");
        assert_eq!(with("class-code", bytes(0x02_0000)), 0, "a network card");
        assert_eq!(with("class-code", Value::Bytes(vec![0; 9])), 0);
        assert_eq!(with("vendor-id", bytes(0x1234)), 0, "a hypervisor's display");
        assert_eq!(with("vendor-id", Value::Number(-1)), 0);
        assert_eq!(with("pcidebug", words("3:0")), 0);
        let mut other = apple();
        other.properties.remove("vendor-id");
        assert!(cards(&[], &[other]).is_empty());
    }

    #[test]
    fn slots_are_told_in_tens() {
        assert_eq!(location("0:2:0").as_deref(), Some("0000:00:02.0"));
        assert_eq!(location("196:31:7(197:197)").as_deref(), Some("0000:c4:1f.7"));
        for nonsense in ["", "1:0", "1:0:0:0", "300:0:0", "1:x:0"] {
            assert_eq!(location(nonsense), None, "{nonsense}");
        }
    }
}
