//! What Windows' Plug and Play tells of devices on the PCI bus, read: which of them are graphics cards, who
//! made them, where they are, and what drives them.

use super::advice::is_basic;
use super::{GraphicsCard, vendor_name};

/// A device, its properties as they were told.
#[derive(Clone, Default, Debug)]
pub(super) struct Device {
    /// From the most to the least exact.
    pub(super) hardware_ids: Vec<String>,
    /// Whether a driver for displays is installed for it. Without any driver a device belongs to no class.
    pub(super) is_display: bool,
    /// With the PCI segment above the lowest eight bits.
    pub(super) bus: Option<u32>,
    /// Device and function.
    pub(super) address: Option<u32>,
    /// The kernel's part of its driver.
    pub(super) service: Option<String>,
    pub(super) driver_version: Option<String>,
    /// By its driver, or of its class where it has none.
    pub(super) description: Option<String>,
    /// 0 where all is well.
    pub(super) problem: Option<u32>,
}

impl Device {
    /// Whether it is of class 03 of PCI, a display controller. Those without a socket for a display are.
    pub(super) fn is_graphics(&self) -> bool {
        let of_class = |id: &String| field(id, "CC_").is_some_and(|class| class.starts_with("03"));
        self.is_display || self.hardware_ids.iter().any(of_class)
    }

    /// The card that it is, if it is one and says where.
    pub(super) fn card(&self) -> Option<GraphicsCard> {
        let number = |name| {
            let of_id = |id: &String| u32::from_str_radix(field(id, name)?, 16).ok();
            self.hardware_ids.iter().find_map(of_id)
        };
        let vendor = number("VEN_").filter(|_| self.is_graphics())?;
        vendor_name(vendor)?;
        Some(GraphicsCard {
            pci_address: location(self.bus?, self.address?)?,
            vendor,
            device: number("DEV_")?,
            name: self.description.clone().filter(|_| self.service.as_ref().is_some_and(|by| !is_basic(by))),
            kernel_driver: self.service.clone().filter(|service| !service.is_empty()),
            driver_version: self.driver_version.clone().filter(|version| !version.is_empty()),
            problem_code: self.problem.filter(|code| *code != 0),
            ..GraphicsCard::default()
        })
    }
}

/// What follows `name` in an identifier such as `PCI\VEN_10DE&DEV_2684&SUBSYS_16F110DE&REV_A1`, up to the
/// next part.
fn field<'a>(id: &'a str, name: &str) -> Option<&'a str> {
    let parts = id.strip_prefix(r"PCI\")?.split('&');
    parts.into_iter().find_map(|part| part.strip_prefix(name))
}

/// As Linux writes it, and graphics interfaces do.
fn location(bus: u32, address: u32) -> Option<String> {
    let (segment, bus, device, function) = (bus >> 8, bus & 0xff, address >> 16, address & 0xffff);
    let is_slot = segment <= 0xffff && device < 32 && function < 8;
    is_slot.then(|| format!("{segment:04x}:{bus:02x}:{device:02x}.{function:x}"))
}

/// Whether the kernel's part of Direct3D means the card at `pci_address` by these numbers of bus, device and
/// function. It has no word for the segment.
pub(super) fn is_at(pci_address: &str, bus: u32, device: u32, function: u32) -> bool {
    let place = (device < 32).then(|| location(bus & 0xff, device << 16 | function & 0xffff)).flatten();
    // Both begin with the four digits and the colon of a segment.
    place.is_some_and(|place| pci_address.get(5..) == place.get(5..))
}

/// Texts of UTF-16, each ended by a zero: the form of one text as well as that of a list.
pub(super) fn texts(bytes: &[u8]) -> Vec<String> {
    let units: Vec<u16> = bytes.as_chunks().0.iter().map(|pair| u16::from_le_bytes(*pair)).collect();
    let texts = units.split(|unit| *unit == 0).filter(|text| !text.is_empty());
    texts.map(String::from_utf16_lossy).collect()
}

/// The kernel tells tenths of degrees, and 0 where it knows nothing.
pub(super) fn celsius(tenths: u32) -> Option<f32> {
    // A chip stops itself at about 110.
    (1..2000).contains(&tenths).then_some(tenths as f32 / 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a GeForce with NVIDIA's driver is told.
    fn geforce() -> Device {
        let ids = [
            r"PCI\VEN_10DE&DEV_2684&SUBSYS_16F110DE&REV_A1",
            r"PCI\VEN_10DE&DEV_2684&SUBSYS_16F110DE",
            r"PCI\VEN_10DE&DEV_2684&CC_030000",
            r"PCI\VEN_10DE&DEV_2684&CC_0300",
        ];
        Device {
            hardware_ids: ids.map(str::to_owned).to_vec(),
            is_display: true,
            bus: Some(1),
            address: Some(0),
            service: Some("nvlddmkm".to_owned()),
            driver_version: Some("32.0.15.6094".to_owned()),
            description: Some("NVIDIA GeForce RTX 4090".to_owned()),
            problem: Some(0),
        }
    }

    #[test]
    fn a_card_with_its_driver_is_read() {
        let card = geforce().card().unwrap();
        let expected = GraphicsCard {
            pci_address: "0000:01:00.0".to_owned(),
            vendor: 0x10de,
            device: 0x2684,
            name: Some("NVIDIA GeForce RTX 4090".to_owned()),
            kernel_driver: Some("nvlddmkm".to_owned()),
            driver_version: Some("32.0.15.6094".to_owned()),
            ..GraphicsCard::default()
        };
        assert_eq!(card, expected);
        let description = Some("Microsoft Basic Display Adapter".to_owned());
        let basic = Device { service: Some("BasicDisplay".to_owned()), description, ..geforce() };
        assert_eq!(basic.card().unwrap().name, None, "its driver does not know it");
    }

    /// A card for computing, of which Windows knows no more than what it is: "3D Video Controller", of no
    /// class.
    #[test]
    fn a_card_without_any_driver_is_told_by_its_class_on_the_bus() {
        let ids = [
            r"PCI\VEN_10DE&DEV_20B5&SUBSYS_153310DE&REV_A1",
            r"PCI\VEN_10DE&DEV_20B5&CC_030200",
            r"PCI\VEN_10DE&DEV_20B5&CC_0302",
        ];
        let bare = Device {
            hardware_ids: ids.map(str::to_owned).to_vec(),
            bus: Some(0x1c1),
            address: Some(0x1f_0003),
            description: Some("3D Video Controller".to_owned()),
            problem: Some(28),
            ..Device::default()
        };
        let card = bare.card().unwrap();
        assert_eq!((card.pci_address.as_str(), card.problem_code), ("0001:c1:1f.3", Some(28)));
        assert_eq!((card.kernel_driver, card.driver_version, card.name), (None, None, None));
        let broken = Device { problem: Some(43), ..geforce() }.card().unwrap();
        assert_eq!((broken.kernel_driver.as_deref(), broken.problem_code), (Some("nvlddmkm"), Some(43)));
    }

    #[test]
    fn what_is_no_card_of_a_vendor_or_says_not_where_it_is_is_left_out() {
        let with = |id: &str| Device { hardware_ids: vec![id.to_owned()], is_display: false, ..geforce() };
        assert!(with(r"PCI\VEN_10DE&DEV_22BA&CC_040300").card().is_none(), "its sound");
        assert!(with(r"PCI\VEN_10DE&DEV_2684&REV_A1").card().is_none(), "of no class that is told");
        assert!(with(r"PCI\VEN_1234&DEV_1111&CC_030000").card().is_none(), "a hypervisor's display");
        assert!(with(r"ROOT\VEN_10DE&DEV_2684&CC_030000").card().is_none(), "on no bus");
        assert!(with(r"PCI\VEN_GONE&DEV_2684&CC_030000").card().is_none());
        assert!(with(r"PCI\CC_030000").card().is_none());
        assert!(with(r"PCI\VEN_10DE&DEV_2684&CC_030000").card().is_some());
        for nowhere in [Device { bus: None, ..geforce() }, Device { address: None, ..geforce() }] {
            assert!(nowhere.card().is_none());
        }
    }

    #[test]
    fn an_adapter_is_joined_to_the_card_in_its_slot_only() {
        assert!(is_at("0000:01:00.0", 1, 0, 0) && is_at("0001:c1:1f.3", 0xc1, 0x1f, 3));
        assert!(!is_at("0000:01:00.0", 2, 0, 0));
        assert!(!is_at("0000:01:00.0", 1, 1, 0) && !is_at("0000:01:00.0", 1, 0, 1));
    }

    #[test]
    fn lists_and_single_texts_are_read_whole_or_cut() {
        let utf16 = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
        assert_eq!(texts(&utf16("nvlddmkm\0")), ["nvlddmkm"]);
        assert_eq!(texts(&utf16("PCI\\A\0PCI\\B\0\0")), ["PCI\\A", "PCI\\B"]);
        assert_eq!(texts(&[b'n', 0, b'v']), ["n"], "half a letter");
        assert!(texts(&[]).is_empty());
        assert_eq!([celsius(0), celsius(455), celsius(u32::MAX)], [None, Some(45.5), None]);
    }
}
