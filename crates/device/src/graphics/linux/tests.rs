use std::os::unix::fs::symlink;

use super::*;
use crate::{find_card, graphics_cards, identity, memory_free_bytes};

/// A system in a folder.
struct System(tempfile::TempDir);

impl System {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    #[allow(clippy::unwrap_used)] // a helper of tests fails by panicking
    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    #[allow(clippy::unwrap_used)] // a helper of tests fails by panicking
    fn plug(&self, address: &str, class: &str, vendor: &str, driver: Option<&str>, more: &[(&str, &str)]) {
        let folder = format!("sys/bus/pci/devices/{address}");
        let always = [("class", class), ("vendor", vendor), ("device", "0x2684")];
        for (file, text) in always.iter().chain(more) {
            self.write(&format!("{folder}/{file}"), text);
        }
        if let Some(name) = driver {
            let link = self.0.path().join(folder).join("driver");
            symlink(Path::new("../../drivers").join(name), link).unwrap();
        }
    }

    fn amd(&self, address: &str, more: &[(&str, &str)]) {
        self.plug(address, "0x030000", "0x1002", Some("amdgpu"), more);
    }

    fn node(&self, number: u32, properties: &str) {
        self.write(&format!("sys/class/kfd/kfd/topology/nodes/{number}/properties"), properties);
    }

    fn cards(&self) -> Vec<GraphicsCard> {
        graphics_cards(self.0.path())
    }

    /// What computes, a card after the other.
    fn computes(&self) -> Vec<(Option<String>, Option<u32>)> {
        self.cards().into_iter().map(|card| (card.architecture, card.compute_units)).collect()
    }
}

fn told(architecture: &str, units: u32) -> (Option<String>, Option<u32>) {
    (Some(architecture.to_owned()), Some(units))
}

/// Of a Radeon RX 7900 XTX in slot 0000:03:00.0.
const NAVI31: &str = "cpu_cores_count 0\nsimd_count 192\nmem_banks_count 1\narray_count 12\nsimd_per_cu 2\n\
                      gfx_target_version 110000\nvendor_id 4098\ndevice_id 29772\nlocation_id 768\ndomain 0";

#[test]
fn cards_are_told_from_other_devices_and_from_virtual_displays() {
    let system = System::new();
    assert_eq!(system.cards(), []);
    system.plug("0000:02:00.0", "0x030200", "0x10de", None, &[]);
    let more = [
        ("unique_id", "3a7d0f1e"),
        ("mem_info_vram_total", "17163091968"),
        ("mem_info_vram_used", "163091968"),
        ("product_name", "AMD Radeon PRO W7900"),
    ];
    system.amd("0000:01:00.0", &more);
    system.plug("0000:00:02.0", "0x030000", "0x1234", Some("bochs-drm"), &[]); // a hypervisor's display
    system.plug("0000:00:03.0", "0x020000", "0x8086", Some("e1000e"), &[]); // a network card
    system.plug("0000:00:04.0", "nonsense", "0x8086", None, &[]);
    system.write("sys/module/amdgpu/version", "6.12.12");
    let page = "Model: \t\t NVIDIA L4\nGPU UUID: \t GPU-6f1c\nBus Type: \t PCIe";
    system.write("proc/driver/nvidia/gpus/0000:02:00.0/information", page);
    let cards = system.cards();
    let amd = GraphicsCard {
        pci_address: "0000:01:00.0".to_owned(),
        vendor: 0x1002,
        device: 0x2684,
        name: Some("AMD Radeon PRO W7900".to_owned()),
        kernel_driver: Some("amdgpu".to_owned()),
        driver_version: Some("6.12.12".to_owned()),
        memory_bytes: Some(17_163_091_968),
        memory_free_bytes: Some(17_000_000_000),
        uuid: Some("3a7d0f1e".to_owned()),
        ..GraphicsCard::default()
    };
    assert_eq!((cards.len(), &cards[0], cards[1].vendor_name()), (2, &amd, Some("NVIDIA")));
    assert_eq!(amd.kernel_driver_text().as_deref(), Some("amdgpu 6.12.12"));
    let nvidia = &cards[1];
    assert_eq!(nvidia.name.as_deref(), Some("NVIDIA L4"));
    assert_eq!((&nvidia.kernel_driver, nvidia.uuid.as_deref()), (&None, Some("GPU-6f1c")));
    let known = identity("Card", 0x10de, 0, Some("0000:02:00.0"), &cards);
    assert_eq!((known.device, known.uuid.as_deref()), (0x2684, Some("GPU-6f1c")));
    assert_eq!(find_card(&cards, None), None, "a driver that tells no slot");
    let software = identity("llvmpipe", 0x10005, 7, None, &cards);
    assert_eq!((software.device, software.uuid), (7, None));
}

#[test]
fn free_memory_is_told_where_amdgpu_tells_both_numbers() {
    let system = System::new();
    let write =
        |file: &str, text: &str| system.write(&format!("sys/bus/pci/devices/0000:03:00.0/{file}"), text);
    let free = |used: &str| {
        write("mem_info_vram_used", used);
        memory_free_bytes(system.0.path(), "0000:03:00.0")
    };
    assert_eq!(free("1000"), None, "of what it has in all nothing is told");
    write("mem_info_vram_total", "17163091968");
    assert_eq!(
        [free("163091968"), free("17163091969"), free("much")],
        [Some(17 * 1_000_000_000), None, None]
    );
}

#[test]
fn a_card_of_amds_tells_its_compute_units_and_its_generation() {
    let system = System::new();
    system.amd("0000:03:00.0", &[]);
    system.amd("0001:c1:00.1", &[]);
    assert_eq!(system.computes(), [(None, None), (None, None)]);
    system.node(0, "cpu_cores_count 32\nsimd_count 0\nlocation_id 0\ndomain 0"); // the processor
    system.node(1, NAVI31);
    system.node(2, "simd_count 440\nsimd_per_cu 4\ngfx_target_version 90010\nlocation_id 49409\ndomain 1");
    system.node(3, "no properties");
    assert_eq!(system.computes(), [told("RDNA 3 (gfx1100)", 96), told("CDNA 2 (gfx90a)", 110)]);
}

#[test]
fn the_parts_of_a_divided_card_are_counted_together() {
    let system = System::new();
    system.amd("0000:03:00.0", &[]);
    let part = "simd_count 152\nsimd_per_cu 4\ngfx_target_version 90402\ndomain 0\nlocation_id";
    system.node(1, &format!("{part} 768"));
    system.node(2, &format!("{part} {}", 768 + (1 << 28)));
    assert_eq!(system.computes(), [told("CDNA 3 (gfx942)", 76)]);
}

#[test]
fn what_the_list_of_computing_nodes_does_not_tell_is_nothing() {
    let with = |properties: &str| {
        let system = System::new();
        system.amd("0000:03:00.0", &[]);
        system.node(1, properties);
        system.computes().remove(0)
    };
    assert_eq!(
        with(&NAVI31.replace("\ndomain 0", "")),
        (None, None),
        "an older kernel does not tell the slot"
    );
    assert_eq!(
        with(&NAVI31.replace("simd_per_cu 2", "simd_per_cu 0")),
        (Some("RDNA 3 (gfx1100)".to_owned()), None)
    );
    assert_eq!(with(&NAVI31.replace("110000", "0")), (None, Some(96)));
    assert_eq!(with(&NAVI31.replace("110000", "130102")), told("gfx1312", 96), "one that is new to us");
    // A node of another card, and a card that another module holds.
    assert_eq!(with(&NAVI31.replace("location_id 768", "location_id 1024")), (None, None));
    let system = System::new();
    system.plug("0000:03:00.0", "0x030000", "0x1002", Some("vfio-pci"), &[]);
    system.node(1, NAVI31);
    assert_eq!(system.computes(), [(None, None)]);
}

#[test]
fn the_list_of_parts_tells_the_generation_where_nothing_else_does() {
    for (major, minor, revision, family) in [
        (10, 3, 6, Some("RDNA 2")),
        (11, 5, 1, Some("RDNA 3.5")),
        (9, 3, 0, Some("GCN 5")),
        (9, 4, 2, Some("CDNA 2")),
        (9, 4, 3, Some("CDNA 3")),
        (13, 0, 0, None),
    ] {
        let system = System::new();
        let numbers = [("major", major), ("minor", minor), ("revision", revision)];
        let files =
            numbers.map(|(file, number)| (format!("ip_discovery/die/0/GC/0/{file}"), number.to_string()));
        let files: Vec<_> = files.iter().map(|(file, number)| (file.as_str(), number.as_str())).collect();
        system.amd("0000:03:00.0", &files);
        assert_eq!(system.computes(), [(family.map(str::to_owned), None)], "{major}.{minor}.{revision}");
    }
}

#[test]
fn intels_drivers_tell_memory_in_places_of_their_own_or_not_at_all() {
    let memory = |files: &[(&str, &str)]| {
        let system = System::new();
        system.plug("0000:03:00.0", "0x030000", "0x8086", Some("xe"), files);
        system.cards().remove(0).memory_bytes
    };
    assert_eq!(memory(&[("drm/card1/lmem_total_bytes", "17079205888")]), Some(17_079_205_888));
    let tile = "physical_vram_size_bytes";
    let (first, second) = (format!("tile0/{tile}"), format!("tile1/{tile}"));
    assert_eq!(memory(&[(&first, "1000"), (&second, "24")]), Some(1024));
    assert_eq!(memory(&[(&first, "1000"), ("tile1/id", "1")]), None, "half of it is not what it has");
    assert_eq!(memory(&[("drm/card1/gt/gt0/rps_act_freq_mhz", "300")]), None);
}
